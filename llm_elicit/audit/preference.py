"""The verdict on a judge: whether it has a preference, and how reliable the preference is.

1. *No usable answers*: no question has an answer that could be read.
2. *Too few answers*: so few pairs were answered that no preference between the points could have
   been found, however the judge had answered.
3. *Position only*: the answers depend on which option is shown first; no dependence on the points
   was shown.
4. *No consistent preference*: a dependence neither on the points nor on the position was shown.
5. *Repeatable, not described by these features*: answers to a pair agree between its two orders,
   but no linear or quadratic rule is shown to predict them.
6. *Consistent preference*: the answers depend on the points. The shape of the utility is
   identified, its scale is not.
7. *Depends on the wording*: the answers depend on the points, and on how the question is put, and
   are not shown to have a preference over wordings (`llm_elicit.audit.presentations`). *Depends on
   the presentation*: the same, where wordings do not vary.
8. *Surface of the text*: they depend on the length and digits of the text that shows the points,
   and on the points themselves not beyond it (`llm_elicit.audit.surface`).
9. *Belief with a scale*: as 6, and ranges, ratios, quantiles or points identify the power of the
   utility at which the judge's density lies.

The test is `llm_elicit.audit.randomization`, with Holm's (1979) adjustment over the judges of a run
that answered. A simulated judge beside real ones is a control: how it answers is known, so its test
is no hypothesis of the study, is not adjusted, and does not count in the adjustment of the other
judges. Verdicts 3 and 5 are given at a fifth of the level, so that a judge who answers at random
gets another verdict than 4 hardly more often than the level says. Agreement of the orders is tested
by sign flips of `Response.agreement`: positive if a pair's answers agree beyond what answers to
different pairs asked equally far apart do. *Reliability* is the share of the responses' mean square
that is predicted for held-out pairs; its *ceiling*, which no prediction can exceed, is the share
that answers to the same pair have in common. None of these changes when all log-odds are multiplied
by a constant.

*The position effect* is what being shown first adds to an option. Half the sum of a pair's answers
in its two orders is its position effect plus noise; their mean is the order bias. Averaging the
orders removes what both points of a pair have in common. It cannot remove what an option gains by
its own content when it is shown first, which looks like a preference. Half sums that depend on the
pair's points are evidence of such an interaction.

*Sample size.* The statistic of the test is a mean over pairs: as pairs are added the judge's part
of it stays, its expectation under chance shrinks with 1/n and its standard deviation with 1/√n.
This holds for pairs drawn independently. With pairs chosen in rounds no number is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from llm_elicit.audit.inference import (
    AdjustedTest,
    Interval,
    SampleSize,
    adjust_fields,
    adjust_tests,
    estimate_explained_share,
    estimate_inflation,
    estimate_sample_size,
    format_p_value,
    t_interval,
    t_test,
)
from llm_elicit.audit.randomization import (
    RandomizationTest,
    feature_differences,
    leave_one_out_residuals,
    permutation_test,
    sign_test,
)
from llm_elicit.audit.reference import AuditSettings, Standardizer
from llm_elicit.audit.responses import Response, ResponseKind
from llm_elicit.planning.pairs import fewest_pairs, smallest_p
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

_MIN_POSITION_PAIRS = 10
"""Smallest number of pairs in both orders for which the interaction is tested."""


class PositionInteraction(AdjustedTest):
    """The test of whether the position effect depends on the points shown.

    By permutations of half sums over pairs; p-values are adjusted over the judges.

    Attributes:
        loo_r2: leave-one-out share of the variance of half sums that the pair's points predict.
    """

    loo_r2: float


class PositionEffect(AdjustedTest):
    """The effect of being shown first, in the unit of the response (nats, or probability).

    The hypothesis that the mean is 0 is tested by sign flips, or by Student's test with a corrected
    standard error if half sums are autocorrelated; p-values are adjusted over the judges.

    Attributes:
        orders: "both" if pairs were asked in both, so that the effect is averaged out of the
            response; "one" if it was estimated from pairs asked once and subtracted.
        pairs: number of pairs it was estimated from.
        mean: mean effect, with its 95 % interval over pairs.
        sd: standard deviation over pairs beyond the noise; None if not measurable.
        explained_share: share of the answers' mean square that mean and sd account for.
        interaction: whether the effect depends on the points; None if too few pairs were asked in
            both orders.
    """

    orders: Literal["both", "one"]
    pairs: int
    mean: Interval
    sd: float | None
    explained_share: float
    interaction: PositionInteraction | None


def measure_position(
    response: Response,
    noise_variance: float | None,
    space: FeatureSpace,
    flips: int,
    rng: np.random.Generator,
) -> PositionEffect | None:
    """Measure the position effect; None with fewer than two pairs.

    Args:
        response: the judge's responses.
        noise_variance: variance of the noise in a half sum, which equals that in a half difference;
            None if unknown.
        space: the feature space.
        flips: number of randomizations of each test.
        rng: generator of the randomizations.
    """
    in_both_orders = np.isfinite(response.position)
    effects = response.position[in_both_orders]
    if not in_both_orders.any():
        effects = response.single_order
    if len(effects) < 2:
        return None
    mean = float(effects.mean())
    sd = None
    if in_both_orders.sum() > 1 and noise_variance is not None:
        sd = math.sqrt(max(float(effects.var(ddof=1)) - noise_variance, 0.0))
    total = np.square(np.where(in_both_orders, response.position, response.single_order))
    mean_square = float((total + np.where(in_both_orders, response.value**2, 0.0)).mean())
    explained = mean**2 + (sd or 0.0) ** 2
    p_value, at_floor = sign_test(effects, flips, rng)
    inflation = estimate_inflation(effects)
    serial_p = t_test(effects, inflation) if inflation > 1.0 else 0.0
    if serial_p > p_value:
        p_value, at_floor = serial_p, False
    content = None
    if in_both_orders.sum() >= _MIN_POSITION_PAIRS:
        sides = response.a[in_both_orders], response.b[in_both_orders]
        first, second = map(Standardizer.of(space, np.concatenate(sides)), sides)
        # Exchanging the points of a pair leaves these columns unchanged.
        design = np.hstack([first + second, first**2 + second**2, (first - second) ** 2])
        scale = design.std(axis=0)
        design /= np.where(scale > 1e-12, scale, 1.0)
        test = permutation_test(design, response.position[in_both_orders], flips, rng)
        smallest = 1.0 / (1 + flips)
        content = PositionInteraction.unadjusted(test.p_value, smallest, loo_r2=test.statistic)
    return PositionEffect(
        orders="both" if in_both_orders.any() else "one",
        pairs=len(effects),
        mean=t_interval(effects, inflation),
        sd=sd,
        explained_share=min(1.0, explained / mean_square) if mean_square > 0 else 0.0,
        p_value=p_value,
        p_is_bound=at_floor,
        interaction=content,
    )


Verdict = Literal[
    "no usable answers",
    "too few answers",
    "repeatable, not described by these features",
    "position only",
    "no consistent preference",
    "depends on the wording",
    "depends on the presentation",
    "surface of the text",
    "consistent preference",
    "belief with a scale",
]
CONSISTENT_VERDICTS: tuple[Verdict, Verdict] = ("consistent preference", "belief with a scale")
"""The verdicts of judges with a preference."""
WORDING: Verdict = "depends on the wording"
PRESENTATION: Verdict = "depends on the presentation"
SURFACE: Verdict = "surface of the text"
DOUBTFUL_VERDICTS: tuple[Verdict, ...] = (WORDING, PRESENTATION, SURFACE)
"""The verdicts of judges whose answers depend on more than the content."""
REPEATABLE: Verdict = "repeatable, not described by these features"

# Share of the level at which position effects and agreement are tested in judges without a
# preference, so that a judge who answers at random gets these verdicts hardly more often than the
# level says.
_SECONDARY_LEVEL_SHARE = 0.2
# z-score beyond which answers depend on earlier answers: once in a thousand by chance.
_MAX_SERIAL_Z = 3.3
_SERIAL_LAGS = (1, 2, 3, 4)
# Share of censored log-odds beyond which no ceiling is estimated.
_MAX_CENSORED_SHARE = 0.25
# A rule for choices counts as worse than its ceiling only below this share of it, because the
# ceiling assumes a normal utility.
_CEILING_TOLERANCE = 0.95
MIN_PAIRS = 10
"""Smallest number of pairs for which a reliability or a ceiling is estimated."""


class Reliability(Interval):
    """Share of the responses' mean square predicted for held-out pairs, with 95 % interval.

    Attributes:
        source: "belief" if its utility predicts; "quadratic rule" on the features for choices and
            if no belief was fitted.
    """

    source: Literal["belief", "quadratic rule"]


class Ceiling(Interval):
    """Share of the responses' mean square that is not noise, with 95 % interval.

    Attributes:
        source: "repeats" of the same question, or the two "orders" as parallel measurements
            (split-half, Spearman–Brown), which count variation of the position effect as noise.
    """

    source: Literal["orders", "repeats"]


class PairAgreement(AdjustedTest):
    """The test of whether answers to the same pair agree.

    By sign flips of `Response.agreement`, which corrects for dependence on earlier answers;
    p-values are adjusted over the judges.

    Attributes:
        source: "orders": the two orders of a pair; "repeats": answers to the same question, if all
            pairs were asked in one order.
    """

    source: Literal["orders", "repeats"]


class Preference(AdjustedTest):
    """The test of whether a judge's answers depend on the points, and how reliable they are.

    By the randomization test; p-values are adjusted over the judges of the run.

    Attributes:
        verdict: the kind of judge.
        response: whether the answers are measured log-odds or choices.
        pairs: number of answered pairs; the sample size.
        family_size: number of judges over which p-values are adjusted; 1 for a control.
        agreement: agreement of answers to the same pair; None if every pair was asked once, or if
            answers alternate, so that agreement cannot be separated from their order in time.
        smallest_p: smallest p-value that this number of pairs can give; None with several rounds.
        flips: number of random sign flips in every round; fewer if there are so few pairs that all
            patterns can be tried.
        reliability: how well answers to held-out pairs are predicted; None if fewer than ten pairs
            were answered, or nothing was preferred.
        ceiling: the highest possible reliability; None if every pair was asked once, or answers
            depend on those before or are bounds.
        position: the position effect; None if fewer than two pairs were answered.
        sample_size: number of pairs needed to find the measured dependence, if the test did not
            find it; None with several rounds, for which there is no such rule.
        reason: the reason for the verdict in one sentence.
    """

    verdict: Verdict
    response: ResponseKind
    pairs: int
    family_size: int = 1
    agreement: PairAgreement | None = None
    smallest_p: float | None = None
    flips: int
    reliability: Reliability | None
    ceiling: Ceiling | None
    position: PositionEffect | None
    sample_size: SampleSize | None = None
    reason: str

    @property
    def consistent(self) -> bool:
        """Whether the verdict is that the judge has a preference."""
        return self.verdict in CONSISTENT_VERDICTS

    def describe_p_value(self, level: float) -> str:
        """Return p and its adjustment as text, and the unadjusted p if only that is significant."""
        if self.family_size == 1:
            return self.p_text
        unadjusted = f"; {format_p_value(self.p_value, self.p_is_bound)} alone"
        decisive = self.p_value < level <= self.p_holm
        return (
            f"{self.p_text}, adjusted for {self.family_size} judges{unadjusted if decisive else ''}"
        )

    @property
    def explained_share(self) -> float:
        """The share of the reproducible variation that is predicted; 1 if not clearly less."""
        reliability, ceiling = self.reliability, self.ceiling
        if reliability is None or ceiling is None:
            return 1.0
        low, value = ceiling.low, ceiling.value
        if self.response == "choices":
            low, value = map(_linear_explained_share, (low, value))
            low *= _CEILING_TOLERANCE
        return 1.0 if reliability.high >= low or not value else max(reliability.value, 0.0) / value


def measure_preference(
    response: Response,
    space: FeatureSpace,
    settings: AuditSettings,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    diagnostics: Mapping[str, Any] | None = None,
) -> Preference:
    """Measure one judge; `decide_verdicts` then adjusts the p-values and adds the verdict.

    Args:
        response: the judge's answers.
        space: the feature space.
        settings: the number of flips and the level.
        rng: generator of the flips.
        schedule: the pairs of each round.
        diagnostics: diagnostics of the fit of its belief, of which `response` is used.
    """
    test = RandomizationTest(response, space, schedule).run(settings.flips, rng)
    sample_size = None
    if test.null_r2 is not None and test.p_value >= settings.level:
        sample_size = estimate_sample_size(test.loo_r2, test.null_r2, len(response), settings.level)
    fitted = (diagnostics or {}).get("response") if response.kind == "log-odds" else None
    position_rng, agreement_rng = rng.spawn(2)
    # Leave-one-out, of the quadratic rule.
    residual = None
    if len(response) >= MIN_PAIRS and response.value.any():
        design = feature_differences(response, space)[0]
        residual = leave_one_out_residuals(design, response.value, response.estimated_side)
    reliability = None
    if len(response) >= MIN_PAIRS and fitted is not None and fitted.get("held_out_r2") is not None:
        low, high = fitted.get("held_out_r2_interval") or (-math.inf, 1.0)
        value = float(fitted["held_out_r2"])
        reliability = Reliability(value=value, low=low, high=high, source="belief")
    elif residual is not None:
        explained_interval = estimate_explained_share(np.square(residual), response.squares)
        reliability = Reliability(**explained_interval.model_dump(), source="quadratic rule")
    dispersion = None if fitted is None else fitted.get("dispersion")
    # The variance of a half difference about the utility equals that of a half sum about its mean.
    noise_variance = None if residual is None else float(np.square(residual).mean())
    if dispersion is not None:
        noise_variance = 0.5 * float(dispersion) ** 2
    several_rounds = schedule is not None and len(schedule.pairs) > 1
    return Preference(
        verdict="no consistent preference",
        response=response.kind,
        pairs=len(response),
        p_value=test.p_value,
        p_is_bound=test.p_is_bound,
        agreement=_test_agreement(response, settings.flips, agreement_rng),
        smallest_p=None if several_rounds else smallest_p(len(response), settings.flips),
        flips=settings.flips,
        reliability=reliability,
        ceiling=_estimate_ceiling(response),
        position=measure_position(response, noise_variance, space, settings.flips, position_rng),
        sample_size=sample_size,
        reason="",
    )


@dataclass(frozen=True)
class Doubt:
    """What answers depend on beside the content of the points.

    Attributes:
        presentation: the test that the preference depends on the presentation, if it is not shown
            to hold over presentations.
        surface: the test that the surface of the text predicts the answers beyond the content, if
            the content is not shown to predict them beyond it.
        facets: what varies between presentations.
    """

    presentation: AdjustedTest | None = None
    surface: AdjustedTest | None = None
    facets: str = ""


def decide_verdicts(
    preferences: Sequence[Preference],
    scales: Sequence[str | None],
    level: float,
    controls: Sequence[bool] | None = None,
    doubts: Sequence[Doubt] | None = None,
) -> list[Preference]:
    """Return the judges of a run with Holm-adjusted p-values, verdicts and reasons.

    Args:
        preferences: the judges, with unadjusted p-values.
        scales: the sources that identify the power of each judge's belief; None if there are none.
        level: significance level of the tests.
        controls: whether each judge is a control, which is not adjusted; none is by default.
        doubts: what else the answers of each depend on; nothing by default.
    """
    doubts = doubts or [Doubt()] * len(preferences)
    controls = controls or [False] * len(preferences)
    in_family = [
        preference.pairs > 0 and not control
        for preference, control in zip(preferences, controls, strict=True)
    ]
    tested, positions = [], [preference.position for preference in preferences]
    positions = adjust_fields(positions, ["interaction"], in_family)
    for preference, position, control in zip(preferences, positions, controls, strict=True):
        family_size = 1 if control else max(sum(in_family), 1)
        update = {"position": position, "family_size": family_size}
        tested.append(preference.model_copy(update=update))
    adjusted = adjust_tests(tested, in_family)
    adjusted = adjust_fields(adjusted, ["position", "agreement"], in_family)
    results = []
    for judge, scale, doubt in zip(adjusted, scales, doubts, strict=True):
        assert judge is not None
        verdict, reason = _apply_doubt(_decide_verdict(judge, scale, level), doubt, level)
        reason = reason or _explain_verdict(judge, verdict, scale, level)
        results.append(judge.model_copy(update={"verdict": verdict, "reason": reason}))
    return results


def _decide_verdict(preference: Preference, scale: str | None, level: float) -> Verdict:
    if preference.pairs == 0:
        return "no usable answers"
    if preference.p_holm < level:
        return "consistent preference" if scale is None else "belief with a scale"
    if (
        is_repeatable(preference, level)
        and preference.agreement is not None
        and preference.agreement.source == "orders"
    ):
        return REPEATABLE
    position = preference.position
    # With few answers, the smallest possible p may be above this share of the level.
    if position is not None and (
        position.p_holm <= _SECONDARY_LEVEL_SHARE * level
        or (position.p_is_bound and position.p_holm < level)
    ):
        return "position only"
    min_pairs = fewest_pairs(preference.family_size, level)
    if preference.smallest_p is not None and preference.pairs < min_pairs:
        return "too few answers"
    return "no consistent preference"


def _apply_doubt(verdict: Verdict, doubt: Doubt, level: float) -> tuple[Verdict, str]:
    """Return the verdict on a judge whose answers may depend on the wording or the text.

    The second part is the reason for a changed verdict; it is empty if the verdict is unchanged.
    """
    if verdict in ("no usable answers", "too few answers"):
        return verdict, ""
    surface, presentation = doubt.surface, doubt.presentation
    if surface is not None and surface.p_holm < _SECONDARY_LEVEL_SHARE * level:
        return SURFACE, (
            f"The answers depend on the length and digits of the text ({surface.p_text}), "
            "and are not shown to depend on the content beyond these."
        )
    own_level = level if verdict in CONSISTENT_VERDICTS else _SECONDARY_LEVEL_SHARE * level
    if presentation is not None and presentation.p_holm < own_level:
        return WORDING if "wordings" in doubt.facets else PRESENTATION, (
            f"The answers depend on how the question is put ({presentation.p_text}); no preference "
            f"common to all {doubt.facets} is shown."
        )
    return verdict, ""


def is_repeatable(preference: Preference, level: float) -> bool:
    """Return whether agreement of answers to the same pair is significant."""
    return (
        preference.agreement is not None
        and preference.agreement.p_holm <= _SECONDARY_LEVEL_SHARE * level
    )


def _explain_verdict(
    preference: Preference, verdict: Verdict, scale: str | None, level: float
) -> str:
    """Return the reason for the verdict in one sentence."""
    if verdict == "no usable answers":
        return "No question has an answer that could be used."
    p = preference.describe_p_value(level)
    if preference.p_holm < level:
        sources = "not identified" if scale is None else "identified by "
        sources += " and ".join((scale or "").split(" + "))
        return (
            f"The answers depend on the points shown ({p}); the sharpness of the belief is "
            f"{sources}."
        )
    if verdict == "too few answers":
        return (
            f"With {preference.pairs} answered pairs no preference could have been found, whatever "
            f"the answers ({p})."
        )
    if verdict == REPEATABLE and preference.agreement is not None:
        return (
            f"No linear or quadratic rule on the features is shown to describe the answers ({p}); "
            f"but answers to the same pair agree in its two orders ({preference.agreement.p_text})."
        )
    no_dependence = f"The answers are not shown to depend on the points ({p})"
    if verdict == "position only" and preference.position is not None:
        p_position = preference.position.p_text
        return f"{no_dependence}; they depend on which option is shown first ({p_position})."
    return f"{no_dependence}, nor on which option is shown first."


def _test_agreement(
    response: Response, flips: int, rng: np.random.Generator
) -> PairAgreement | None:
    products = response.agreement[np.isfinite(response.agreement)]
    # Which point is called a is random, so responses to different pairs should be uncorrelated.
    values = response.value
    is_serial = any(_z_score(values[lag:] * values[:-lag]) > _MAX_SERIAL_Z for lag in _SERIAL_LAGS)
    if is_serial or not len(products):
        return None
    p_value, at_floor = sign_test(products, flips, rng, positive=True)
    source: Literal["orders", "repeats"] = (
        "orders" if np.isfinite(response.position).any() else "repeats"
    )
    return PairAgreement(source=source, p_value=p_value, p_is_bound=at_floor)


def _z_score(values: Floats) -> float:
    """Return the absolute sum of values `(n,)` divided by its standard error if their mean is 0."""
    scale = math.sqrt(float(values @ values))
    return abs(float(values.sum())) / scale if scale > 0.0 else 0.0


def _estimate_ceiling(response: Response) -> Ceiling | None:
    """Return the ceiling by repeats if answers to the same question vary, else by the orders."""
    if not response.is_censored.size or response.is_censored.mean() > _MAX_CENSORED_SHARE:
        return None
    repeated = np.isfinite(response.noise)
    noise, squares = response.noise[repeated], response.squares[repeated]
    if len(noise) >= MIN_PAIRS and noise.any() and squares.any():
        return Ceiling(**estimate_explained_share(noise, squares).model_dump(), source="repeats")
    controls = response.agreement_control[np.isfinite(response.agreement_control)]
    interval = orders_reliability(response)
    if interval is None or _z_score(controls) > _MAX_SERIAL_Z:
        return None
    return Ceiling(**interval.model_dump(), source="orders")


def orders_reliability(response: Response) -> Interval | None:
    """Return the share of the mean square that the two orders have in common; None if few pairs."""
    in_both_orders = np.isfinite(response.position)
    sums, squares = response.position[in_both_orders], response.squares[in_both_orders]
    n = len(sums)
    if n < MIN_PAIRS or not squares.any():
        return None
    return estimate_explained_share(np.square(sums - sums.mean()) * n / (n - 1), squares)


def _linear_explained_share(ceiling: float) -> float:
    """Return the share of choices that a linear rule predicts if a normal utility decides them.

    The two orders' correlation φ follows from their ceiling by Spearman and Brown, that of their
    log-odds is sin(π φ / 2), and a sign is linear in a normal variable to √(2 / π).

    Examples:
        >>> round(_linear_explained_share(1.0), 3), round(_linear_explained_share(0.5), 3)
        (0.637, 0.477)
    """
    phi = max(ceiling, 0.0) / (2.0 - max(ceiling, 0.0))
    return 4.0 / math.pi * math.sin(0.5 * math.pi * phi) / (1.0 + phi)
