"""What each number of a report means: its definition in one place, and where it comes from.

The page shows a definition where its number stands and lists them all; `docs/reading.md` holds the
same sentences, which a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llm_elicit.report.references import (
    ACERBI,
    BONNEEL,
    BORDT,
    BRADLEY,
    FISHER,
    FREEDMAN_LANE,
    GNEITING,
    HANLEY,
    HOLM,
    HYNDMAN,
    KENDALL,
    LEMOS,
    LOPEZ_PAZ,
    MIKKOLA,
    NAEINI,
    OHAGAN,
    PITMAN,
    REQUEIMA,
    STOUFFER,
    SZEKELY,
    TVERSKY,
    TVERSKY_KAHNEMAN,
    VAART,
    VILLANI,
    WILSON,
    ZOU,
)


@dataclass(frozen=True)
class Entry:
    """One term.

    Attributes:
        term: what the page calls it.
        definition: what it means, for a reader who knows none of the methods.
        references: where it comes from, in full.
    """

    term: str
    definition: str
    references: tuple[str, ...] = ()


GLOSSARY: Mapping[str, Entry] = MappingProxyType(
    {
        "belief": Entry(
            "Belief",
            "The probability density over the features that is proportional to exp(k f): f is the "
            "utility that best explains the judge's answers to pairs, k its power.",
            (MIKKOLA,),
        ),
        "lambda": Entry(
            "Sampling density λ",
            "The density that options were drawn from. A judge without a preference gets a belief "
            "equal to λ, but for noise.",
            (MIKKOLA,),
        ),
        "power": Entry(
            "Power",
            "Comparisons identify the logarithm of a density only up to a factor: beliefs ∝ exp(k "
            "f), f the fitted utility, have one shape and differ in sharpness. k is the power. "
            "Orderings and level sets are the same at every power; distances, quantiles and "
            "marginals are not.",
            (MIKKOLA,),
        ),
        "noise": Entry(
            "Noise level",
            "The assumed amount of chance in the judge's choices, which are explained alike by a "
            "sharper belief and more noise. A level has to be assumed, or be known from elsewhere; "
            "conclusions should hold at others too. Log-odds need none: their noise is estimated.",
            (
                BRADLEY,
                MIKKOLA,
            ),
        ),
        "verdict": Entry(
            "Verdict",
            "Consistent preference: the randomization test shows that the answers depend on the "
            "points; the scale of the belief is not known. Belief with a scale: as before, and "
            "ranges, ratios, quantiles or points show at which power. Position only: answers "
            "depend on which option is shown first, and not on the points. No consistent "
            "preference: neither.",
        ),
        "test": Entry(
            "Randomization test",
            "If the answers ignored the points, exchanging the points of any pair would change "
            "nothing. p is how often such random exchanges predict answers left out as well as the "
            "real ones do, corrected for the number of judges. With pairs chosen in rounds, those "
            "of one round are exchanged at a time, and the p of the rounds combined.",
            (
                FISHER,
                PITMAN,
                STOUFFER,
                HOLM,
            ),
        ),
        "search": Entry(
            "Pairs to find a preference",
            "Where the randomization test found nothing: how many pairs, in all, would let it find "
            "a dependence as strong as the one measured in four of five such studies. Not stated "
            "where what was measured is less than one standard error above chance, nor for pairs "
            "chosen in rounds.",
        ),
        "pairs": Entry(
            "Pairs answered",
            "Pairs with at least one choice or tie. The answers to one pair, in both orders and "
            "asked again, count as one comparison.",
        ),
        "reliability": Entry(
            "Reliability (R²)",
            "The share of the variation of the answers that is predicted for pairs left out of the "
            "fit: by the fitted utility for log-odds, by a quadratic rule on the features for "
            "choices. 0 % if nothing is predicted. It does not depend on the unit of the answers.",
        ),
        "ceiling": Entry(
            "Ceiling",
            "The most that could be reached. Of the reliability: the share of the variation that "
            "repeated questions, or the two orders, have in common, the rest being noise. Of the "
            "AUC and the level set: what the data's own density reaches, estimated by kernels from "
            "the other rows.",
        ),
        "position": Entry(
            "Position effect",
            "What being shown first adds to an option, whatever it is. The share of the variation "
            "of the answers that its mean and its spread over pairs make up. Asking both orders "
            "removes its mean, and that part of its spread that both points of a pair share.",
        ),
        "auc": Entry(
            "AUC of the data",
            "The area under the curve: how often the judge's utility is higher for a row of the "
            "data than for a draw from λ. 50 % if it says nothing of which is which, 100 % if it "
            "is always higher.",
            (HANLEY,),
        ),
        "rank": Entry(
            "Rank correlation",
            "Spearman's, between the judge's utility and the logarithm of the data's own density, "
            "over draws from λ: +1 if both put all points in the same order, 0 if the orders are "
            "unrelated.",
        ),
        "level-set": Entry(
            "Level set",
            "The tenth of the range, by λ, that the judge finds most plausible. If its preference "
            "had nothing to do with the data, 10 % of the rows would lie in it.",
            (HYNDMAN,),
        ),
        "effect": Entry(
            "Effect",
            "What a feature adds to the log-odds of an option over the middle half of its range, "
            "averaged over the other features: its upper quartile over the lower where higher or "
            "lower values are preferred, its median over the quartiles where those in the middle "
            "or at the ends are, the highest category over the lowest. Size: the standard "
            "deviation of that average over λ.",
        ),
        "holm": Entry(
            "p, corrected",
            "The randomization test of one feature beside the others (signs of what the others "
            "leave of the answers are flipped), made larger for looking at all features: if the "
            "answers ignore them all, one of these p is below 5 % in about 5 % of judges.",
            (HOLM, FREEDMAN_LANE),
        ),
        "coherence": Entry(
            "Reaction to width",
            "Whether the judge is coherent: for the holder of a density a wider range is more "
            "probable, so the coefficient of log width in the log-odds of two ranges, beside their "
            "mean density, is above 0. A judge with a coefficient near 0 prefers some values to "
            "others but does not answer as the holder of a probability density.",
            (TVERSKY_KAHNEMAN,),
        ),
        "w1": Entry(
            "W1 (Wasserstein-1)",
            "How far, on average, points must be moved to turn one sample into the other, in "
            "standard deviations of the data (without data: of λ) on each feature's scale.",
            (VILLANI,),
        ),
        "sliced": Entry(
            "Sliced W1",
            "W1 of what is seen from one direction, averaged over 256 directions. Less than W1, "
            "and with a lower floor where there are many features.",
            (BONNEEL,),
        ),
        "energy": Entry(
            "Energy distance",
            "The root of how much farther apart points of two samples are than points of the same "
            "sample. 0 only where the densities are equal.",
            (SZEKELY,),
        ),
        "classifier": Entry(
            "Classifier",
            "How often the nearest neighbours of a point, itself excluded, identify which of two "
            "samples it came from. 50 %: the samples cannot be distinguished; 100 %: always.",
            (LOPEZ_PAZ,),
        ),
        "pqmass": Entry(
            "PQMass",
            "Points of two samples are counted in cells around random points of both, and the "
            "counts compared by χ², divided by its degrees of freedom. 1 if the densities are "
            "equal; it grows with the number of points.",
            (LEMOS,),
        ),
        "tv": Entry(
            "MMTV, TV",
            "Total variation of a marginal: the share of probability that lies elsewhere, from 0 "
            "(equal) to 1 (apart). MMTV is its mean over the features.",
            (ACERBI,),
        ),
        "spread": Entry(
            "Distance ± sd",
            "Mean and standard deviation of a distance over fresh subsamples of both sides. The "
            "subsamples share one belief, so this is not the uncertainty of the belief. Where "
            "there are brackets they hold that: the middle 90 % over draws of the posterior.",
        ),
        "floor": Entry(
            "Floor",
            "The same distance between two samples of one and the same density. Nothing can be "
            "measured to be nearer than that.",
        ),
        "density": Entry(
            "Log density of the data",
            "The mean logarithm of the belief's density at rows of the data, nats a row, on "
            "standardized features. Read it beside λ's: above it the belief predicts the data "
            "better than the range alone.",
            (GNEITING,),
        ),
        "shift": Entry(
            "Mean and sd beside the data",
            "The belief's mean less that of the data (without data: of λ), in standard deviations "
            "of theirs, and the ratio of the standard deviations, on each feature's scale.",
        ),
        "summary": Entry(
            "Mean, sd, quantiles",
            "Of the data, of draws of the belief at its saved power and of λ, in the units asked "
            "in. A share of q % lies below the q % quantile; the median is the 50 % quantile.",
        ),
        "shares": Entry(
            "Shares",
            "The probability of each category of a feature in the data, the belief and λ. "
            "Categories have no order, so there are no means or quantiles of them. In distances "
            "over all features together any two of them are equally far apart, and rows of the "
            "data scatter over them as much as over a number.",
        ),
        "band": Entry(
            "90 % band",
            "The middle 90 % of the posterior at each place: what the same answers leave open at "
            "the saved power. It covers chance, not a wrong noise level, and a mode that no answer "
            "pointed to is in no draw.",
        ),
        "more-pairs": Entry(
            "Effect of more pairs",
            "The width of a band now, and with four times as many pairs. Once the answers outweigh "
            "the prior, from about 100 pairs a feature, bands narrow with the root of the number "
            "of pairs; with fewer pairs, more than that are needed to halve them.",
            (VAART,),
        ),
        "correlation": Entry(
            "Correlation",
            "Pearson's, of two features each on its scale. A category counts as 1 where it applies "
            "and 0 where not; of two the second alone is shown. λ draws every feature by itself, "
            "so it has none. The belief's band is over draws of the posterior, the data's interval "
            "over rows; the interval of their difference covers both.",
            (ZOU,),
        ),
        "tails": Entry(
            "Tails",
            "Below the belief's 5 % quantile and above its 95 % quantile lie 5 % of the belief "
            "each, and as much of data that are distributed alike. The second number of each side "
            "is the share at both ends of that quantile's own 90 % band.",
        ),
        "boxes": Entry(
            "Boxes",
            "Parts of the space with nearly equal shares of the data: its rows are halved at the "
            "median of the feature that varies most among them (of categories, into the most "
            "frequent and the others), and the halves again. The belief's share of each shows "
            "where it has too much or too little; the band is over draws of the posterior. One box "
            "in ten lies outside its band by chance.",
        ),
        "regions": Entry(
            "Densest regions",
            "The smallest region that holds a given mass of the belief. If the data came from the "
            "belief it would hold the same share of them, whatever the number of features. A "
            "share above the mass: the belief is wider than the data; below: narrower, or "
            "elsewhere.",
            (HYNDMAN,),
        ),
        "log-likelihood": Entry(
            "Held-out log-likelihood",
            "The mean logarithm of the probability that was predicted for choices left out of the "
            "fit. Predicting one half for all gives −0.693; 0 is certainty that is always right.",
            (GNEITING,),
        ),
        "gain": Entry(
            "Gain over a model",
            "The belief's held-out log-likelihood less that of a simpler model on the same "
            "choices. Above 0 the belief predicts them better.",
        ),
        "calibration": Entry(
            "Calibration",
            "How often held-out choices came out as predicted, beside the predicted probability. "
            "The error is the mean difference between the two, weighted by the number of choices.",
            (NAEINI,),
        ),
        "interval": Entry(
            "95 % interval",
            "The values that are compatible with the answers: in 95 of 100 such studies the "
            "interval holds the true one. Wilson's for shares, from means and standard errors "
            "otherwise; answers to one pair do not count as independent.",
            (WILSON,),
        ),
        "unread": Entry(
            "Direct answers read",
            "Answers to direct questions that hold just the numbers, categories or letter asked "
            "for. Refusals, cut-off answers, numbers too many or too few, words that are no "
            "category, and quantiles out of order are counted and not used; nothing is guessed.",
        ),
        "stated": Entry(
            "Stated quantiles",
            "The quantiles that the judge states for a feature; medians where it was asked more "
            "often, with the mean distance of one statement from them as spread. Distances are W1 "
            "between five quantiles each, joined by straight lines to each other and to the ends "
            "of the range: those of the data and of the belief are reduced to five too.",
            (OHAGAN,),
        ),
        "level": Entry(
            "Noise level by statement",
            "The noise level, as a multiple of the assumed one, at which the belief is nearest to "
            "the stated quantiles, and the middle 90 % over features, statements and draws of the "
            "posterior. Not identified where that spans more than a factor of eight, or reaches an "
            "end of the levels tried, an eighth and eight times.",
            (OHAGAN,),
        ),
        "generated": Entry(
            "Generated points",
            "Points that the judge gave when asked for one at a time. The floor is the mean "
            "distance of as many true draws, p how often these are as far or farther.",
            (REQUEIMA,),
        ),
        "recited": Entry(
            "Rows completed exactly",
            "Rows of the reference table of which the beginning was shown and the next value was "
            "given exactly, to four digits. By chance: how often its answers are those of the 20 "
            "rows that begin most alike. p is of exchanging a row's value with one of theirs; "
            "below 1 % the judge has memorized at least a part of the table.",
            (BORDT,),
        ),
        "order-bias": Entry(
            "Order bias",
            "Probability of naming option A, less one half, over pairs asked in both orders. "
            "Asking both orders removes from the belief the part that does not depend on the "
            "content. From the letters, and from the probabilities where the judge gives them.",
            (WILSON,),
        ),
        "agreement": Entry(
            "Agreement under swap",
            "Share of pairs where the judge picks the same point when the options change places. "
            "50 % for random answers, 0 % for a judge who always names the same option.",
            (WILSON,),
        ),
        "retest": Entry(
            "Agreement asked again",
            "Share of times that the same question, in the same order, gets the same answer when "
            "it is asked again; measurable where the campaign has replicates. 100 % for a judge "
            "who never varies, which does not show that it is right.",
            (WILSON,),
        ),
        "likelier": Entry(
            "Reply is the likelier letter",
            "Share of answers whose letter is the one that the model gave the higher probability; "
            "measurable where probabilities came with the answers. Below 100 % where replies are "
            "drawn at a temperature.",
            (WILSON,),
        ),
        "swap": Entry(
            "Change under swap",
            "How much the probability of a point changes, on average, when the options change "
            "places.",
        ),
        "decisiveness": Entry(
            "Decisiveness",
            "Mean distance of the preference from one half: 0 never prefers, 0.5 is always sure.",
        ),
        "cycles": Entry(
            "Cycles",
            "Three pairs that join the same three points are a triad. A cycle: the first preferred "
            "to the second, the second to the third and the third to the first. Random choices "
            "make one in 25 % of triads; “p, of random choices” is how probable it is that they "
            "make as few. A noisy judge with a belief makes cycles too, so their number alone does "
            "not refute a belief.",
            (KENDALL,),
        ),
        "firm": Entry(
            "Firm cycles",
            "Cycles in both orders; random choices make one in 3 % of triads. “By the belief” is "
            "the most that the belief predicts if the noise of every answer is independent, p how "
            "probable it is that it makes as many. A small p: the judge's preferences are cyclic, "
            "so that no density explains them, or its errors about a pair repeat.",
            (TVERSKY,),
        ),
        "reading": Entry(
            "How a reply was read",
            "A and B are choices; a tie counts as half a choice each way; refused, truncated and "
            "unparsable answers are counted but not used.",
        ),
        "unanswered": Entry(
            "Questions without a choice",
            "Share of the questions about a third of a feature's range, or about a category, that "
            "came back without a choice. p is of a permutation test that the feature has no part "
            "in it, made larger for looking at all features.",
            (HOLM,),
        ),
        "soft": Entry(
            "Soft",
            "Share of the choices that come with a probability of their own, from the model's "
            "token log-probabilities; the others count as 0 or 1.",
        ),
        "orders": Entry(
            "Orders agree",
            "Whether all choices on a pair, in both orders, pick one point. Unknown where one of "
            "the orders has no choice of A or B.",
        ),
        "usage": Entry(
            "Requests and cost",
            "Requests answered, tokens as the provider counted them, and USD at the judge's "
            "prices. An answer served from an earlier run costs nothing and is not asked a second "
            "time.",
        ),
    }
)
"""Every term by its key, in the order in which the page lists them."""
