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
    GNEITING,
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
            "The probability density over the features that best explains the judge's choices "
            "between pairs.",
            (MIKKOLA,),
        ),
        "lambda": Entry(
            "Sampling density λ",
            "What the options were drawn from. A judge who says nothing gets a belief that looks "
            "like λ.",
            (MIKKOLA,),
        ),
        "noise": Entry(
            "Noise level",
            "The assumed amount of chance in the judge's choices, which are explained alike by a "
            "sharper belief and more noise. A level has to be assumed, or be known from "
            "elsewhere; conclusions should hold at others too.",
            (BRADLEY, MIKKOLA),
        ),
        "power": Entry(
            "Power",
            "Comparisons tell the logarithm of a density only up to a factor: beliefs ∝ exp(k f), "
            "f the fitted utility, have one shape and differ in sharpness. k is the power. "
            "Orderings and level sets are the same at every power; distances, quantiles and "
            "marginals are not.",
            (MIKKOLA,),
        ),
        "signal": Entry(
            "Signal",
            "The randomization test says that the answers depend on the points, and the belief is "
            "farther from λ (energy distance) than chance draws of λ are. Where either fails: no "
            "signal found.",
            (SZEKELY,),
        ),
        "search": Entry(
            "Pairs to find a signal",
            "Where the randomization test found nothing: how many pairs, in all, would let it "
            "find a dependence as strong as the one measured in four of five such studies. Where "
            "what was measured is less than one standard error above chance, no number can be "
            "said, nor of pairs chosen in rounds.",
        ),
        "pairs": Entry(
            "Pairs answered",
            "Pairs with at least one choice or tie. The answers to one pair, in both orders and "
            "asked again, are averaged and count as one comparison.",
        ),
        "test": Entry(
            "Randomization test",
            "If the answers ignored the points, exchanging winner and loser of any pair would "
            "change nothing. p is how often such random exchanges predict left-out choices as "
            "well as the real answers do. Of pairs chosen in rounds, those of one round are "
            "exchanged at a time, and the p of the rounds combined.",
            (FISHER, PITMAN, STOUFFER),
        ),
        "predicted": Entry(
            "Choices predicted",
            "How much of the variation of the choices a quadratic rule on the features predicts "
            "when each pair is left out in turn. 0 % for a coin.",
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
            "How much farther apart points of two samples are than points of the same, as a root. "
            "0 only where the densities are equal.",
            (SZEKELY,),
        ),
        "classifier": Entry(
            "Classifier",
            "How often the nearest neighbours of a point, it not being among them, tell which of "
            "two samples it came from. 50 %: they cannot be told apart; 100 %: always.",
            (LOPEZ_PAZ,),
        ),
        "pqmass": Entry(
            "PQMass",
            "Do two samples fill the same places? Points are counted in cells around random "
            "points of both, and the counts compared by χ², divided by its degrees of freedom. 1 "
            "if the densities are equal; it grows with the number of points.",
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
            "subsamples share one belief, so this is not the uncertainty of the belief. That is in "
            "the brackets, where there are any: nine tenths of the beliefs that the answers allow "
            "are that far from the same sample.",
        ),
        "floor": Entry(
            "Floor",
            "The same distance between two samples of one and the same density. Nothing can be "
            "measured to be nearer than that.",
        ),
        "summary": Entry(
            "Mean, sd, quantiles",
            "Of the data, of draws of the belief and of λ, in the units asked in. A share of q % "
            "lies below the q % quantile; the median is the 50 % quantile.",
        ),
        "shares": Entry(
            "Shares",
            "How much of the data, of the belief and of λ each category of a feature has. "
            "Categories have no order, so there are no means or quantiles of them. "
            "In distances over all features together any two of them are as far apart, and rows of "
            "the data scatter over them as much as over a number.",
        ),
        "band": Entry(
            "90 % band",
            "What the same answers leave open: nine tenths of the beliefs they allow, at the "
            "noise level the fit was told, lie within it at each place. It knows of chance, not "
            "of a wrong noise level, and a mode that no answer pointed to is in none of them.",
        ),
        "more-pairs": Entry(
            "What more pairs would buy",
            "How wide a band is now, and with three times as many pairs again as were answered. "
            "Once the answers outweigh the fit's prior, from about 100 pairs a feature, bands "
            "narrow with the root of the number of pairs, so that four times as many in all "
            "halve them; with fewer, more are needed.",
            (VAART,),
        ),
        "correlation": Entry(
            "Correlation",
            "Pearson's, of two features each on its scale: how far one goes along with the other, "
            "from −1 to +1. A category is 1 where it is had and 0 where not; of two the second "
            "alone is shown. λ draws every feature by itself, so it has none. The belief's band is "
            "of what the answers leave open, and knows that answers to one pair hang together; "
            "the data's interval is of having so many rows and no more. The interval of their "
            "difference holds both.",
            (ZOU,),
        ),
        "tails": Entry(
            "Tails",
            "Below the belief's 5 % quantile and above its 95 % quantile lie 5 % of the belief "
            "each, and as much of data that are like it. The second number of each side is the "
            "share at both ends of that quantile's own 90 % band.",
        ),
        "boxes": Entry(
            "Boxes",
            "Parts of the space that hold nearly equal shares of the data: its rows are halved at "
            "the median of the feature that scatters most among them (of categories, into the most "
            "frequent and the others), and the halves again. The belief's share of each says where "
            "it has too much or too little; the band is what the answers leave open. One box in "
            "ten lies outside its band by chance.",
        ),
        "regions": Entry(
            "Densest regions",
            "The smallest region that holds a given mass of the belief. If the data came from the "
            "belief it would hold the same share of them, whatever the number of features. A "
            "share above the mass: the belief is wider than the data; below: narrower, or "
            "elsewhere.",
            (HYNDMAN,),
        ),
        "alone": Entry(
            "Alone",
            "How much of the choices one feature predicts by itself, as it stands and squared, "
            "when each pair is left out in turn.",
        ),
        "lost": Entry(
            "Lost without it",
            "How much less of the choices all features predict when this one is left out. Little "
            "for a feature that others stand in for.",
        ),
        "holm": Entry(
            "p, corrected",
            "The randomization test of one feature alone, made larger for looking at all "
            "features: one below 5 % anywhere is chance in at most 5 % of judges who ignore "
            "them all.",
            (HOLM,),
        ),
        "log-likelihood": Entry(
            "Held-out log-likelihood",
            "The mean logarithm of the probability given to choices that the fit never saw. A "
            "coin has −0.693; 0 is certainty that is always right.",
            (GNEITING,),
        ),
        "gain": Entry(
            "Gain over a model",
            "The belief's held-out log-likelihood less that of a simpler model on the same "
            "choices. Above 0 the belief foretells them better.",
        ),
        "calibration": Entry(
            "Calibration",
            "How often held-out choices came true beside the probability they were foretold "
            "with. The error is the mean gap between the two, each group of choices weighing as "
            "many as it has.",
            (NAEINI,),
        ),
        "interval": Entry(
            "95 % interval",
            "The values that the answers leave possible: in 95 of 100 such studies the interval "
            "holds the true one. Wilson's for shares, from means and standard errors otherwise; "
            "answers to one pair do not count as independent.",
            (WILSON,),
        ),
        "unread": Entry(
            "Direct answers read",
            "Answers to direct questions that hold just the numbers and categories asked for. "
            "Refusals, cut-off answers, numbers too many or too few, words that are no category, "
            "and quantiles out of order are counted and not used; nothing is guessed.",
        ),
        "stated": Entry(
            "Stated quantiles",
            "What the judge itself says a feature's quantiles are; medians where it was asked "
            "more often, with the mean distance of one statement from them as spread. Distances "
            "are W1 between five quantiles each, joined by straight lines to each other and to "
            "the ends of the range: those of the data and of the belief are reduced to five too.",
            (OHAGAN,),
        ),
        "level": Entry(
            "Noise level by statement",
            "The noise level, over the one that the fit was told, at which the belief is nearest "
            "to the stated quantiles, and the middle 90 % of what features, statements and the "
            "belief drawn anew give. Not identified where that spans more than a factor of eight, "
            "or reaches an end of what is looked at, an eighth and eight times.",
            (OHAGAN,),
        ),
        "generated": Entry(
            "Written points",
            "Points that the judge wrote down, each asked for by itself. The floor is the mean "
            "distance of as many true draws, p how often these are as far or farther.",
            (REQUEIMA,),
        ),
        "recited": Entry(
            "Recited rows",
            "Rows of the reference table whose beginning was shown and whose next value the "
            "judge gave exactly, to four digits. By chance: how often its answers are those of "
            "the 20 rows that begin most alike. p is of exchanging a row's value with one of "
            "theirs; below 1 % the judge has at least a part of the table by heart.",
            (BORDT,),
        ),
        "order-bias": Entry(
            "Order bias",
            "Probability of naming option A, less one half, over pairs asked in both orders. "
            "Asking both orders removes from the belief what of it does not depend on the "
            "content. From the verdicts, and from the probabilities where the judge gives them.",
            (WILSON,),
        ),
        "agreement": Entry(
            "Agreement under swap",
            "Share of pairs where the judge picks the same point when the options change places. "
            "50 % for a coin, 0 % for a judge who always names the same option.",
            (WILSON,),
        ),
        "retest": Entry(
            "Agreement asked again",
            "Share of times that the same question, in the same order, gets the same answer when "
            "it is asked again; measurable where the campaign has replicates. 100 % for a judge "
            "who never varies, which is no proof of being right.",
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
            "Three pairs that join the same three points are a triad. A coin's choices go round "
            "in a circle in 25 % of triads; those of a judge with a belief do so where its noise "
            "turns a choice. “p, of a coin” is how probable it is that a coin makes as few. How "
            "many there are cannot tell a judge without a belief from a noisy one.",
            (KENDALL,),
        ),
        "firm": Entry(
            "Firm cycles",
            "Cycles in both orders; a coin makes one in 3 % of triads, because noise seldom "
            "repeats itself. “By the belief” is the most that the belief foretells if every "
            "answer has noise of its own, p how probable it is that it makes as many. A small p: "
            "the judge's preferences go round in circles, so that no density explains them, or it "
            "errs about a pair the same way every time.",
            (TVERSKY,),
        ),
        "verdict": Entry(
            "Verdict",
            "How a reply was read. A and B are choices; a tie counts as half a choice each way; "
            "refused, truncated and unparsable answers are counted but not used.",
        ),
        "unanswered": Entry(
            "Where it did not choose",
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
            "What it took",
            "Requests answered, tokens as the provider counted them, and USD at the judge's "
            "prices. An answer served from an earlier run costs nothing and is asked no second "
            "time.",
        ),
    }
)
"""Every term by its key, in the order in which the page lists them."""
