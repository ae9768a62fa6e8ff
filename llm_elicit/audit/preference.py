"""Has a judge a preference, how reliable is it, and what kind of judge is that? The verdict.

1. *Position only*: the position effect explains the answers, the content does not.
2. *No consistent preference*: neither does.
3. *Consistent preference*: the answers depend on the points. The shape of the utility is real, its
   scale is not known.
4. *Belief with a scale*: as 3, and ranges, ratios, quantiles or points say at which power of the
   utility the judge's density is.

The test is `llm_elicit.audit.randomization`, Holm's (1979) over the judges of a run. *Reliability*
is the share of the responses' mean square that is predicted of pairs left out; what no prediction
can exceed is its *ceiling*, the share that answers to the same pair have in common. None of these
changes when all log-odds are multiplied by a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy import stats

from llm_elicit.audit.inference import Interval, holm, p_words
from llm_elicit.audit.position_effect import PositionEffect, measure_position
from llm_elicit.audit.randomization import RandomizationTest, feature_differences, left_out
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Kind, Response
from llm_elicit.audit.sample_size import SearchPower, measure_search_power
from llm_elicit.config.base_model import StrictModel
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

Verdict = Literal[
    "position only", "no consistent preference", "consistent preference", "belief with a scale"
]
CONSISTENT: tuple[Verdict, Verdict] = ("consistent preference", "belief with a scale")
"""The verdicts that say there is a preference."""

_FEWEST = 5


class Reliability(Interval):
    """A share of the responses' mean square that is predicted of pairs left out, 95 % interval.

    Attributes:
        source: "belief", whose utility predicts, or "quadratic rule" on the features, for choices
            and where no belief was fitted.
    """

    source: Literal["belief", "quadratic rule"]


class Ceiling(Interval):
    """The share of the responses' mean square that is no noise, with its 95 % interval.

    Attributes:
        source: "repeats" of the same question, or the two "orders" as parallel measurements
            (split half, Spearman-Brown), which count what the position effect varies as noise.
    """

    source: Literal["orders", "repeats"]


class Preference(StrictModel):
    """Whether a judge's answers depend on the points, and how reliably.

    Attributes:
        verdict: what kind of judge it is.
        response: whether the answers are measured log-odds or choices.
        pairs: how many pairs have an answer; the sample size.
        p_value, p_holm: of the randomization test, and the same over the judges of the run.
        at_floor: whether p is the smallest that the flips can show.
        flips: sign flips drawn, of every round.
        reliability: None where fewer than five pairs were answered, or none was preferred.
        ceiling: None where every pair was asked once.
        position: the position effect; None where nothing was answered.
        search: how many pairs would find what was measured, where the answers cannot be told from
            ones that ignore the points; None with rounds, whose test has no such rule.
        reason: the verdict's grounds in one sentence.
    """

    verdict: Verdict
    response: Kind
    pairs: int
    p_value: float
    p_holm: float
    at_floor: bool
    flips: int
    reliability: Reliability | None
    ceiling: Ceiling | None
    position: PositionEffect | None
    search: SearchPower | None = None
    reason: str

    @property
    def consistent(self) -> bool:
        """Whether the verdict says that there is a preference."""
        return self.verdict in CONSISTENT


def measure_preference(
    response: Response,
    space: FeatureSpace,
    settings: AuditSettings,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    diagnostics: Mapping[str, Any] | None = None,
) -> Preference:
    """One judge by itself; `settle` corrects for the others and says the verdict.

    Args:
        response: the judge's answers.
        space: the feature space.
        settings: the flips and the level.
        rng: draws the flips.
        schedule: which pairs belong to which round.
        diagnostics: what the fit of its belief says of itself; its `response` is read.
    """
    found = RandomizationTest(response, space, schedule).run(settings.flips, rng)
    search = None
    if found.by_chance is not None and found.p_value >= settings.level:
        search = measure_search_power(found.gain, found.by_chance, len(response), settings.level)
    fitted = (diagnostics or {}).get("response") if response.kind == "log-odds" else None
    (aside,) = rng.spawn(1)
    residual = _residuals(response, space)
    return Preference(
        verdict="no consistent preference",
        response=response.kind,
        pairs=len(response),
        p_value=found.p_value,
        p_holm=found.p_value,
        at_floor=found.at_floor,
        flips=settings.flips,
        reliability=_reliability(response, residual, fitted),
        ceiling=_ceiling(response),
        position=measure_position(
            response, _noise_variance(residual, fitted), space, settings.flips, aside
        ),
        search=search,
        reason="",
    )


def settle(
    found: Sequence[Preference], scales: Sequence[str | None], level: float
) -> list[Preference]:
    """The judges of a run together: p-values corrected for their number, verdicts and reasons.

    Args:
        found: each judge by itself.
        scales: what says at which power each one's belief is; None where nothing does.
        level: of the tests.
    """
    p_holm = holm(np.array([one.p_value for one in found]))
    place = holm(np.array([1.0 if one.position is None else one.position.p_value for one in found]))
    settled = []
    for alone, p, p_place, scale in zip(found, p_holm, place, scales, strict=True):
        position = alone.position
        if position is not None:
            position = position.model_copy(update={"p_holm": float(p_place)})
        one = alone.model_copy(update={"p_holm": float(p), "position": position})
        verdict = _verdict(one, scale, level)
        reason = _reason(one, verdict, scale, level)
        settled.append(one.model_copy(update={"verdict": verdict, "reason": reason}))
    return settled


def _verdict(one: Preference, scale: str | None, level: float) -> Verdict:
    if one.p_holm < level:
        return "consistent preference" if scale is None else "belief with a scale"
    if one.position is not None and one.position.p_holm < level:
        return "position only"
    return "no consistent preference"


def _reason(one: Preference, verdict: Verdict, scale: str | None, level: float) -> str:
    """The grounds of the verdict, in one sentence."""
    if one.pairs == 0:
        return "It never chose."
    p = p_words(one.p_holm, one.at_floor)
    if one.p_holm < level:
        depends = f"The answers depend on the points shown ({p})"
        if scale is None:
            return f"{depends}; nothing says how sharp the belief is."
        return f"{depends}, and {scale} say how sharp the belief is."
    ignore = f"The answers cannot be told from ones that ignore the points ({p})"
    if verdict == "position only" and one.position is not None:
        p = p_words(one.position.p_holm, one.position.at_floor)
        return f"{ignore}; they depend on which option is shown first ({p})."
    return f"{ignore}, nor do they depend on which option is shown first."


def _residuals(response: Response, space: FeatureSpace) -> Floats | None:
    """Leave-one-out residuals `(n,)` of the quadratic rule; None of too few pairs, or of zeros."""
    if len(response) < _FEWEST or not response.value.any():
        return None
    return left_out(feature_differences(response, space)[0], response.value)


def _noise_variance(residual: Floats | None, fitted: Mapping[str, Any] | None) -> float | None:
    """Of a half difference about the utility, which is that of a half sum about its mean."""
    dispersion = None if fitted is None else fitted.get("dispersion")
    if dispersion is not None:
        return 0.5 * float(dispersion) ** 2
    return None if residual is None else float(np.square(residual).mean())


def _reliability(
    response: Response, residual: Floats | None, fitted: Mapping[str, Any] | None
) -> Reliability | None:
    if fitted is not None and fitted.get("held_out_r2") is not None:
        low, high = fitted.get("held_out_r2_interval") or (-math.inf, 1.0)
        value = float(fitted["held_out_r2"])
        return Reliability(value=value, low=low, high=high, source="belief")
    if residual is None:
        return None
    found = share_explained(np.square(residual), np.square(response.value))
    return Reliability(**found.model_dump(), source="quadratic rule")


def _ceiling(response: Response) -> Ceiling | None:
    """From repeats where answers to the same question vary, else from the orders."""
    squares = np.square(response.value)
    again = np.isfinite(response.noise)
    if again.sum() >= _FEWEST and response.noise[again].any() and squares[again].any():
        found = share_explained(response.noise[again], squares[again])
        return Ceiling(**found.model_dump(), source="repeats")
    both = np.isfinite(response.position)
    if both.sum() >= _FEWEST and squares[both].any():
        apart = response.position[both] - response.position[both].mean()
        n = int(both.sum())
        found = share_explained(np.square(apart) * n / (n - 1), squares[both])
        return Ceiling(**found.model_dump(), source="orders")
    return None


def share_explained(unexplained: Floats, squares: Floats) -> Interval:
    """1 − Σ unexplained / Σ squares `(n,)`, with a 95 % interval over pairs.

    By the jackknife's linearization of the logarithm of the ratio, so that the interval stays below
    one, with Student's quantile.

    Example:
        >>> found = share_explained(np.array([1.0, 2.0, 1.0, 0.5, 1.5]), np.full(5, 4.0))
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (0.7, 0.46, 0.83)
    """
    total, rest, n = float(squares.sum()), float(unexplained.sum()), len(squares)
    if rest <= 0.0:
        return Interval(value=1.0, low=1.0, high=1.0)
    influence = unexplained / rest - squares / total
    half = stats.t.ppf(0.975, n - 1) * math.sqrt(float(influence @ influence) * n / (n - 1))
    ratio = rest / total
    low, high = 1.0 - ratio * math.exp(half), 1.0 - ratio * math.exp(-half)
    return Interval(value=1.0 - ratio, low=low, high=high)
