"""Whether a judge has a preference and how reliable it is: the verdict.

1. *No usable answers*: no question has an answer that could be read.
2. *Too few answers*: so few pairs were answered that no preference between the points could have
   been found, however the judge had answered.
3. *Position only*: the answers depend on which option is shown first; no preference was found.
4. *No consistent preference*: neither was found.
5. *Consistent preference*: the answers depend on the points. The shape of the utility is
   identified, its scale is not.
6. *Belief with a scale*: as 5, and ranges, ratios, quantiles or points identify the power of the
   utility at which the judge's density lies.

The test is `llm_elicit.audit.randomization`, with Holm's (1979) adjustment over the judges of a
run. *Reliability* is the share of the responses' mean square that is predicted for held-out pairs;
its *ceiling*, which no prediction can exceed, is the share that answers to the same pair have in
common. None of these changes when all log-odds are multiplied by a constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy import stats

from llm_elicit.audit.inference import Interval, holm, p_text
from llm_elicit.audit.position_effect import PositionEffect, measure_position
from llm_elicit.audit.randomization import (
    RandomizationTest,
    feature_differences,
    leave_one_out_residuals,
)
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Kind, Response
from llm_elicit.audit.sample_size import SampleSize, required_pairs
from llm_elicit.config.base_model import StrictModel
from llm_elicit.planning.detectable import fewest_pairs, smallest_p
from llm_elicit.planning.rounds import Schedule
from llm_elicit.spaces.features import FeatureSpace, Floats

Verdict = Literal[
    "no usable answers",
    "too few answers",
    "position only",
    "no consistent preference",
    "consistent preference",
    "belief with a scale",
]
CONSISTENT: tuple[Verdict, Verdict] = ("consistent preference", "belief with a scale")
"""The verdicts that find a preference."""

_FEWEST = 5
"""Pairs needed for a reliability or a ceiling."""


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


class Preference(StrictModel):
    """Whether a judge's answers depend on the points, and how reliably.

    Attributes:
        verdict: the kind of judge.
        response: whether the answers are measured log-odds or choices.
        pairs: number of answered pairs; the sample size.
        p_value, p_holm: of the randomization test; Holm-adjusted over the judges of the run.
        at_floor: whether p is the smallest that the flips can give.
        smallest_p: the smallest p that so many pairs can give; None with several rounds.
        flips: random sign flips, in every round; fewer where few pairs have fewer patterns.
        reliability: None if fewer than five pairs were answered, or nothing was preferred.
        ceiling: None if every pair was asked once.
        position: the position effect; None if nothing was answered.
        sample_size: how many pairs would find the dependence measured, if the test found none;
            None with several rounds, for which there is no such rule.
        reason: the grounds of the verdict in one sentence.
    """

    verdict: Verdict
    response: Kind
    pairs: int
    p_value: float
    p_holm: float
    at_floor: bool
    smallest_p: float | None = None
    flips: int
    reliability: Reliability | None
    ceiling: Ceiling | None
    position: PositionEffect | None
    sample_size: SampleSize | None = None
    reason: str

    @property
    def consistent(self) -> bool:
        """Whether the verdict finds a preference."""
        return self.verdict in CONSISTENT


def measure_preference(
    response: Response,
    space: FeatureSpace,
    settings: AuditSettings,
    rng: np.random.Generator,
    schedule: Schedule | None = None,
    diagnostics: Mapping[str, Any] | None = None,
) -> Preference:
    """Measure one judge alone; `decide_verdicts` adjusts for the others and adds the verdict.

    Args:
        response: the judge's answers.
        space: the feature space.
        settings: the flips and the level.
        rng: draws the flips.
        schedule: which pairs belong to which round.
        diagnostics: of the fit of its belief; `response` is read from them.
    """
    found = RandomizationTest(response, space, schedule).run(settings.flips, rng)
    sample_size = None
    if found.null is not None and found.p_value >= settings.level:
        sample_size = required_pairs(found.gain, found.null, len(response), settings.level)
    fitted = (diagnostics or {}).get("response") if response.kind == "log-odds" else None
    (child,) = rng.spawn(1)
    residual = _residuals(response, space)
    return Preference(
        verdict="no consistent preference",
        response=response.kind,
        pairs=len(response),
        p_value=found.p_value,
        p_holm=found.p_value,
        at_floor=found.at_floor,
        smallest_p=smallest_p(len(response), settings.flips)
        if schedule is None or len(schedule.pairs) < 2
        else None,
        flips=settings.flips,
        reliability=_reliability(response, residual, fitted),
        ceiling=_ceiling(response),
        position=measure_position(
            response, _noise_variance(residual, fitted), space, settings.flips, child
        ),
        sample_size=sample_size,
        reason="",
    )


def decide_verdicts(
    found: Sequence[Preference], scales: Sequence[str | None], level: float
) -> list[Preference]:
    """Return the judges of a run with Holm-adjusted p-values, verdicts and reasons.

    Args:
        found: each judge alone.
        scales: what identifies the power of each one's belief; None if nothing does.
        level: of the tests.
    """
    positions = [one.position for one in found]
    contents = [None if position is None else position.content for position in positions]
    p_preference, p_position, p_content = (
        holm(np.array([1.0 if test is None else test.p_value for test in tests]))
        for tests in (found, positions, contents)
    )
    judges = sum(one.pairs > 0 for one in found)
    decided = []
    for i, (alone, scale) in enumerate(zip(found, scales, strict=True)):
        position, content = positions[i], contents[i]
        if content is not None:
            content = content.model_copy(update={"p_holm": float(p_content[i])})
        if position is not None:
            adjusted = {"p_holm": float(p_position[i]), "content": content}
            position = position.model_copy(update=adjusted)
        one = alone.model_copy(update={"p_holm": float(p_preference[i]), "position": position})
        verdict = _verdict(one, scale, level, judges)
        reason = _reason(one, verdict, scale, level)
        decided.append(one.model_copy(update={"verdict": verdict, "reason": reason}))
    return decided


def _verdict(one: Preference, scale: str | None, level: float, judges: int) -> Verdict:
    if one.pairs == 0:
        return "no usable answers"
    if one.p_holm < level:
        return "consistent preference" if scale is None else "belief with a scale"
    if one.position is not None and one.position.p_holm < level:
        return "position only"
    if one.smallest_p is not None and one.pairs < fewest_pairs(judges, level):
        return "too few answers"
    return "no consistent preference"


def _reason(one: Preference, verdict: Verdict, scale: str | None, level: float) -> str:
    """Return the grounds of the verdict in one sentence."""
    if verdict == "no usable answers":
        return "No question has an answer that could be used."
    p = p_text(one.p_holm, one.at_floor)
    if one.p_holm < level:
        depends = f"The answers depend on the points shown ({p})"
        if scale is None:
            return f"{depends}; the sharpness of the belief is not identified."
        sources = " and ".join(scale.split(" + "))
        return f"{depends}; the sharpness of the belief is identified by {sources}."
    if verdict == "too few answers":
        return f"With so few pairs ({one.pairs}) no preference could have been found ({p})."
    none = f"No preference between the points shown was found ({p})"
    if verdict == "position only" and one.position is not None:
        p = p_text(one.position.p_holm, one.position.at_floor)
        return f"{none}; the answers depend on which option is shown first ({p})."
    return f"{none}, nor an effect of which option is shown first."


def _residuals(response: Response, space: FeatureSpace) -> Floats | None:
    """Return leave-one-out residuals `(n,)` of the quadratic rule; None if it cannot be fitted."""
    if len(response) < _FEWEST or not response.value.any():
        return None
    return leave_one_out_residuals(feature_differences(response, space)[0], response.value)


def _noise_variance(residual: Floats | None, fitted: Mapping[str, Any] | None) -> float | None:
    """Return the variance of a half difference about the utility.

    It equals the variance of a half sum about its mean.
    """
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
    """Return the ceiling by repeats if answers to the same question vary, else by the orders."""
    squares = np.square(response.value)
    repeated = np.isfinite(response.noise)
    if repeated.sum() >= _FEWEST and response.noise[repeated].any() and squares[repeated].any():
        found = share_explained(response.noise[repeated], squares[repeated])
        return Ceiling(**found.model_dump(), source="repeats")
    both = np.isfinite(response.position)
    if both.sum() >= _FEWEST and squares[both].any():
        centred = response.position[both] - response.position[both].mean()
        n = int(both.sum())
        found = share_explained(np.square(centred) * n / (n - 1), squares[both])
        return Ceiling(**found.model_dump(), source="orders")
    return None


def share_explained(unexplained: Floats, squares: Floats) -> Interval:
    """Return 1 − Σ unexplained / Σ squares `(n,)`, with a 95 % interval over pairs.

    The interval is by the infinitesimal jackknife of the logarithm of the ratio, so that it stays
    below one, with Student's quantile.

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
