"""The power of a judge's belief, from its answers about ranges, ratios, quantiles and points.

Comparisons of points determine the utility f up to a factor, so the belief is one of
p_k ∝ exp(k f). Direct answers determine k (`llm_elicit.density.fit_power`). Without them, a belief
from choices keeps the power of the assumed noise level, and one from log-odds, or from choices of
which none contradicts a rule, is scaled by convention to a standard deviation of f of one nat over
λ. The diagnostics name the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit import density
from llm_elicit.audit.direct_answers import DirectEvidence
from llm_elicit.audit.own_density import OwnDensity
from llm_elicit.comparisons.table import PROBABILITY_ROUNDING
from llm_elicit.planning.direct_questions import range_pairs
from llm_elicit.planning.pairs import Plan
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.questions.parse import read_ratio
from llm_elicit.spaces.features import FeatureSpace, Floats

ASSUMED, CONVENTION = "assumed noise level", "convention"
"""The source of a belief's power without direct answers: of choices, and of log-odds or choices
that bound it from below only."""

MIN_ANSWERS = 5
"""The least number of answers of a kind that are used."""

_MIN_LOG_RATIO = 1.92
_MAX_INTERVAL_RATIO = 10.0
_MIN_PROBABILITY = 1e-9


@dataclass(frozen=True)
class PowerSources:
    """A judge's answers that may determine the power of its belief, as arguments of `fit_power`.

    Attributes:
        points: the sampled points, `(m, d)`, natural units, inside the range asked about.
        quantiles: the median of the stated quantiles of each feature, by its index and level.
        ranges: pairs of ranges with their log-odds.
        ratios: two points each and the logarithm of how many times as plausible the first is.
        likelihood: two points each and the log-ratio of the densities that the model gives them.
        notes: a line for each kind of answers that cannot be used.
    """

    points: Floats | None = None
    quantiles: Mapping[int, Mapping[float, float]] = field(default_factory=dict)
    ranges: density.Ranges | None = None
    ratios: tuple[Floats, Floats, Floats] | None = None
    likelihood: tuple[Floats, Floats, Floats] | None = None
    notes: tuple[str, ...] = ()

    @property
    def available(self) -> dict[str, Any]:
        """The sources that are present, by the names of `fit_power`'s arguments."""
        names = ("points", "quantiles", "ranges", "ratios", "likelihood")
        sources = {name: getattr(self, name) for name in names}
        return {name: value for name, value in sources.items() if value is not None and len(value)}

    def arrays(self) -> Iterator[Floats]:
        """Yield every number of the answers as arrays, for a digest."""
        for name, value in self.available.items():
            yield np.frombuffer(name.encode(), dtype=np.uint8).astype(np.float64)
            if isinstance(value, np.ndarray):
                yield value
            elif isinstance(value, density.Ranges):
                yield from (value.first, value.second, value.log_odds)
            elif isinstance(value, Mapping):
                rows = [(j, q, v) for j, levels in value.items() for q, v in levels.items()]
                yield np.array(rows, dtype=np.float64)
            else:
                yield from value


def read_sources(
    table: pd.DataFrame | None, judge: str, space: FeatureSpace, seed: int, plan: Plan
) -> PowerSources:
    """Read a judge's direct answers as sources of a power.

    Args:
        table: the run's direct answers; None if none were asked.
        judge: the judge's name.
        space: the feature space.
        seed: the campaign's, from which the ranges follow.
        plan: the campaign's pairs, for ratios and likelihoods.
    """
    read = DirectEvidence.from_table(table, judge, space, seed)
    if table is None or read is None:
        return PowerSources()
    rows = table[table["judge"] == judge]
    ranges, about_ranges = _ranges(rows[rows["kind"] == "range"], space, seed)
    ratios, about_ratios = _ratios(rows[rows["kind"] == "ratio"], plan)
    points, about_points = _points(read.points, space)
    quantiles, about_quantiles = _usable_quantiles(read.quantiles, space)
    likelihood, about_likelihood = _likelihood(OwnDensity.read(rows, judge, space, seed, plan))
    lines = (about_points, about_quantiles, about_ranges, about_ratios, about_likelihood)
    notes = tuple(line for line in lines if line)
    return PowerSources(points, quantiles, ranges, ratios, likelihood, notes)


def _ranges(
    rows: pd.DataFrame, space: FeatureSpace, seed: int
) -> tuple[density.Ranges | None, str | None]:
    if not len(rows):
        return None, None
    measured = rows[rows["first"].notna()]
    if not len(measured):
        return None, "ranges: the answers are letters without probabilities"
    pairs = measured["number"].to_numpy(np.int64)
    if len(np.unique(pairs)) < MIN_ANSWERS:
        count = len(np.unique(pairs))
        return None, f"ranges: {count} pairs answered; at least {MIN_ANSWERS} are needed"
    a, b = range_pairs(space, int(pairs.max()) + 1, seed)
    swapped = (measured["order"] == "ba").to_numpy()[:, None, None]
    first = np.where(swapped, b[pairs], a[pairs])
    second = np.where(swapped, a[pairs], b[pairs])
    is_stated = measured["template"].str.contains("probability").to_numpy()
    min_share = np.where(is_stated, 0.5 * PROBABILITY_ROUNDING, _MIN_PROBABILITY)
    share = np.clip(measured["first"].to_numpy(np.float64), min_share, 1.0 - min_share)
    return density.Ranges(first, second, np.log(share / (1.0 - share))), None


def _ratios(
    rows: pd.DataFrame, plan: Plan
) -> tuple[tuple[Floats, Floats, Floats] | None, str | None]:
    if not len(rows):
        return None, None
    read = [read_ratio(reply) for reply in rows["reply"]]
    is_read = np.array([ratio is not None for ratio in read])
    if is_read.sum() < MIN_ANSWERS:
        return None, f"ratios: {is_read.sum()} could be read; at least {MIN_ANSWERS} are needed"
    pairs = rows["number"].to_numpy(np.int64)[is_read]
    ratios = np.array([ratio for ratio in read if ratio is not None])
    return (plan.a[pairs], plan.b[pairs], np.log(ratios)), None


def _likelihood(
    own: OwnDensity | None,
) -> tuple[tuple[Floats, Floats, Floats] | None, str | None]:
    if own is None or own.log_ratios is not None:
        return None if own is None else own.log_ratios, None
    bounds = int(own.is_bound.sum())
    line = f"likelihood: {len(own.pairs)} pairs, {bounds} of them with only a bound"
    return None, f"{line}; at least {MIN_ANSWERS} without a bound are needed"


def _points(points: Floats, space: FeatureSpace) -> tuple[Floats | None, str | None]:
    if not len(points):
        return None, None
    inside = points[space.contains(points)]
    if len(inside) < MIN_ANSWERS:
        line = f"{len(inside)} of {len(points)} lie in the range asked about"
        return None, f"points: {line}; at least {MIN_ANSWERS} are needed"
    return inside, None


def _usable_quantiles(
    statements: Floats, space: FeatureSpace
) -> tuple[dict[int, dict[float, float]], str | None]:
    """Return the quantiles of features whose statements increase within their range."""
    quantiles: dict[int, dict[float, float]] = {}
    refused = []
    for j in range(space.dimension):
        values = statements[:, j][np.isfinite(statements[:, j]).all(axis=1)]
        if not len(values):
            continue
        medians = np.median(values, axis=0)
        # The least whole number can be a quantile: part of its cell lies below it.
        ends = space.low[j] - space.cells[j], space.high[j] + space.cells[j]
        edges = np.concatenate([ends[:1], medians, ends[1:]])
        if (np.diff(edges) > 0).all():
            quantiles[j] = {level / 100: float(v) for level, v in zip(LEVELS, medians, strict=True)}
        else:
            refused.append(space.names[j])
    reason = "do not increase within the range asked about"
    return quantiles, f"quantiles of {', '.join(refused)} {reason}" if refused else None


@dataclass(frozen=True)
class EstimatedPower:
    """The power of a belief by a judge's direct answers.

    Attributes:
        power: the power by all sources that could be used; None without any.
        used: whether it is precise enough, see `is_identified`.
        notes: a line for each kind of answers left out, with the reason.
    """

    power: density.Power | None = None
    used: bool = False
    notes: tuple[str, ...] = ()


def is_identified(power: density.Power) -> bool:
    """Return whether a power is identified: its interval excludes the flattest and is not too wide.

    The likelihood at the flattest power looked at lies at least 1.92 nats below its maximum (the
    5 % point of a likelihood-ratio test of one parameter), and the 90 % interval spans less than a
    factor of 10.
    """
    return power.above_flat >= _MIN_LOG_RATIO and power.high < _MAX_INTERVAL_RATIO * power.low


def estimate_power(
    belief: density.BeliefDensity, sources: PowerSources, seed: int
) -> EstimatedPower:
    """Return the power of a belief by a judge's direct answers.

    Ranges determine no power if the judge's answers do not depend on their width as a density
    would. Their coherence is kept then, and the power is that of the other sources, if any.
    """
    arguments, notes = sources.available, list(sources.notes)
    if not arguments or not belief.has_noise_levels:
        return EstimatedPower(notes=tuple(notes))
    power, refused = _fit_sources(belief, arguments, seed)
    notes += refused
    if power is None:
        return EstimatedPower(notes=tuple(notes))
    width = power.coherence
    if width is not None and not width.coherent:
        notes.append(
            "ranges: the answers do not depend on width as a density requires, so they "
            f"determine no power (p = {width.p_value:.2g})"
        )
        others = {name: value for name, value in arguments.items() if name != "ranges"}
        refit, _ = _fit_sources(belief, others, seed)
        if refit is None:
            return EstimatedPower(power, False, tuple(notes))
        power = replace(refit, coherence=width)
    return EstimatedPower(power, is_identified(power), tuple(notes))


def _fit_sources(
    belief: density.BeliefDensity, arguments: Mapping[str, Any], seed: int
) -> tuple[density.Power | None, list[str]]:
    """Return the power by all sources that can be used, and a line for each that cannot."""
    if not arguments:
        return None, []
    try:
        return density.fit_power(belief, **arguments, seed=seed), []
    except density.DensityError as error:
        line = str(error).removeprefix("fit_power: ")
        if len(arguments) == 1:
            return None, [f"{next(iter(arguments))}: {line}"]
    usable, notes = {}, []
    for name, value in arguments.items():
        source_power, refused = _fit_sources(belief, {name: value}, seed)
        notes += refused
        if source_power is not None:
            usable[name] = value
    return (_fit_sources(belief, usable, seed)[0] if usable else None), notes


def scale_to_power(
    belief: density.BeliefDensity, pinned: EstimatedPower, *, measured: bool, seed: int
) -> density.BeliefDensity:
    """Scale a fitted belief to its power, whose source its diagnostics name.

    Args:
        belief: the fitted belief.
        pinned: the power by direct answers.
        measured: whether it was fitted to log-odds.
        seed: seed of the normalizing constant.
    """
    source = ASSUMED
    if pinned.used and pinned.power is not None:
        belief, source = belief.tempered(pinned.power, seed=seed), pinned.power.source
    elif belief.has_noise_levels and (measured or density.bounded_below(belief.diagnostics)):
        unit, source = belief.unit_power(), CONVENTION
        belief = belief.tempered(unit, seed=seed) if np.isfinite(unit) else belief
    power = {"value": 1.0, "log_sd": 0.0, **belief.diagnostics.get("power", {})}
    belief.diagnostics["power"] = power | {"source": source}
    return belief


def scale_by_answers(
    belief: density.BeliefDensity, sources: PowerSources, measured: bool, seed: int
) -> density.BeliefDensity:
    """Scale a belief to the power that a judge's other answers imply."""
    pinned = estimate_power(belief, sources, seed)
    return scale_to_power(belief, pinned, measured=measured, seed=seed)
