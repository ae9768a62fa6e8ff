"""What of an audit depends on the power of the utility that the belief is.

Comparisons tell the utility f up to a power, and the belief is one of p_k ∝ exp(k f). Ranges,
ratios, quantiles or points may say which (`llm_elicit.density.fit_power`); where nothing does, the
saved belief has a power by convention, and what depends on it is measured from a quarter to four
times that power. The power at which the data are most likely is shown beside, as that: it bounds
what any belief of this shape can say of the data and is no property of the judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from llm_elicit import density
from llm_elicit._util.read_files import read_points
from llm_elicit.audit.distances import Estimate, common_size, estimate_of, wasserstein
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.reference import Reference
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats

FACTORS = tuple(2.0 ** (k / 2) for k in range(-4, 5))
"""Powers looked at, over the saved belief's."""
UNPINNED = ("assumed noise level", "convention")
"""What a saved belief's power comes from where nothing says it."""

_SHARPEST = 64.0
_COUNT = 4000
_ENOUGH = 400
_SIZE, _REPEATS = 500, 3
_FINE = 2001


class SourcePower(StrictModel):
    """The power by one source, over the fitted utility's own; 90 % interval."""

    source: str
    value: float
    low: float
    high: float


class DataPower(SourcePower):
    """The power at which the data are most likely; 0 where no power is likelier than λ.

    The interval is over rows, the utility taken as it is.

    Attributes:
        bounded: whether the best lies within the powers looked at.
    """

    bounded: bool


class WidthResponse(StrictModel):
    """How the judge reacts to the width of ranges.

    Attributes:
        width: the coefficient of log-width in the log-odds, 95 % interval.
        expected: what the holder of a density who answers alike otherwise would have.
        p_value: of the test that the judge is one.
        coherent: whether that is not refused at 5 %.
    """

    width: Interval
    expected: float
    p_value: float
    coherent: bool


class PinnedPower(StrictModel):
    """The power that other answers than comparisons of points say.

    Attributes:
        value, low, high: over the fitted utility's own; 90 % interval.
        source: the sources, joined by " + ".
        sources: the powers by each alone.
        agreement: p-value of a test that they have one power in common; None of one source.
        coherence: how the judge reacts to width, where ranges were compared.
        used: whether the saved belief has this power: not where the interval excludes no power.
    """

    value: float
    low: float
    high: float
    source: str
    sources: tuple[SourcePower, ...]
    agreement: float | None
    coherence: WidthResponse | None
    used: bool = True


class AtPower(StrictModel):
    """A judge's belief at one power.

    Attributes:
        factor: the power over the saved belief's.
        belief_data: Wasserstein-1 to the data; None without data.
        log_density: mean log density of the data's rows, nats a row, per unit of every feature's
            scale (standard deviations of the data; one a category); None without data.
        shifts: each feature's mean less the data's (λ's without data), in its standard
            deviations, on the feature's scale, in the order of the space; None of a categorical
            feature.
        widths: each feature's standard deviation over the data's (λ's without data), likewise.
    """

    factor: float
    belief_data: Estimate | None
    log_density: float | None
    shifts: list[float | None]
    widths: list[float | None]


class Powers(StrictModel):
    """A judge's belief over a range of powers.

    Attributes:
        saved: the saved belief's power, over the fitted utility's own.
        source: where that comes from; "assumed noise level" or "convention" where nothing says.
        pinned: the power by other answers than comparisons of points, if there are any.
        data: the power at which the data are most likely; None without data.
        rows: from the flattest belief to the sharpest.
        size: points on each side of the distances here.
        sampling_data: Wasserstein-1 of λ from the data at that size; None without data.
        sampling_log_density: log density of λ, in the unit of the rows'; None without data.
        nearer: whether the belief is nearer to the data than λ at every power (true), at none
            (false), or depends on the power (None); None without data, too.
    """

    saved: float
    source: str
    pinned: PinnedPower | None
    data: DataPower | None
    rows: list[AtPower]
    size: int
    sampling_data: Estimate | None
    sampling_log_density: float | None
    nearer: bool | None = None

    @property
    def scale(self) -> str | None:
        """What says the belief's power; None where nothing does."""
        if self.pinned is None or not self.pinned.used:
            return None
        width = self.pinned.coherence
        if width is not None and not width.coherent and self.pinned.source == "ranges":
            return None
        return self.pinned.source


@dataclass(frozen=True)
class PowerEvidence:
    """A belief at `FACTORS` times its power.

    Attributes:
        saved: the belief's own power.
        source: where that comes from.
        pinned: the power by other answers; None where there are none.
        points: draws `(m, d)`, natural units, by factor.
        log_normalizers: log of the mean of exp(factor · utility) over λ, by factor, those above
            `FACTORS` up to where the data are most likely among them.
        data: the utility `(n,)` at the data's rows; None without a table. Its mean over λ is 0.
    """

    saved: float
    source: str
    pinned: density.Power | None
    points: Mapping[float, Floats]
    log_normalizers: Mapping[float, float]
    data: Floats | None


def at_powers(
    belief: density.BeliefDensity,
    space: FeatureSpace,
    points: Floats,
    data: Floats | None,
    seed: int,
    pinned: density.Power | None = None,
) -> PowerEvidence:
    """A belief, with `points` `(m, d)` its own draws, at other powers.

    These and as many from λ are weighted into each, and only where too few would count is the
    belief drawn anew.
    """
    rng = np.random.default_rng([seed, 0x5CA1E])
    some = points[rng.permutation(len(points))[: 2 * _COUNT]]
    both = np.concatenate([some, space.sample(len(some), rng)])
    slope = belief.sampling.log_scale_slope(both)
    utility = belief.utility(both)
    centre = float(utility[len(some) :].mean())
    # λ is uniform on the scales; densities are relative to it.
    flat = float((belief.sampling.log_prob(both) - slope)[0])
    drawn = np.logaddexp(belief.log_prob(both) - slope - flat, 0.0) - math.log(2.0)
    found, logs = {}, {}
    for factor in FACTORS:
        exponents = factor * (utility - centre) - drawn
        weights = np.exp(exponents - exponents.max())
        if factor != 1.0 and weights.sum() ** 2 / (weights**2).sum() < _ENOUGH:
            other = belief.tempered(factor, seed=seed)
            found[factor] = other.sample(_COUNT, seed=seed)
            logs[factor] = _log_normalizer(belief, other, factor, centre, flat)
            continue
        logs[factor] = float(logsumexp(exponents) - math.log(len(both)))
        rows = rng.choice(len(both), _COUNT, p=weights / weights.sum())
        found[factor] = some[:_COUNT] if factor == 1.0 else both[rows]
    stated = belief.diagnostics.get("power", {})
    of_data = None if data is None else belief.utility(data) - centre
    if of_data is not None:
        # Up to where the data are less likely than before.
        last, factor = FACTORS[-2], FACTORS[-1]
        while (factor - last) * of_data.mean() > logs[factor] - logs[last] and factor < _SHARPEST:
            last, factor = factor, 2.0 * factor
            other = belief.tempered(factor, seed=seed)
            logs[factor] = _log_normalizer(belief, other, factor, centre, flat)
    return PowerEvidence(
        saved=belief.power,
        source=str(stated.get("source", UNPINNED[0])),
        pinned=pinned,
        points=found,
        log_normalizers=logs,
        data=of_data,
    )


def _log_normalizer(
    belief: density.BeliefDensity,
    other: density.BeliefDensity,
    factor: float,
    centre: float,
    flat: float,
) -> float:
    """log Z of a tempered belief, from its density at one point."""
    at = other.sample(1)
    per_scale = other.log_prob(at) - other.sampling.log_scale_slope(at) - flat
    return float((factor * (belief.utility(at) - centre) - per_scale)[0])


def write_powers(evidence: PowerEvidence, space: FeatureSpace, path: Path) -> None:
    """Write the points as a table: the factor and the features."""
    tables = [
        pd.DataFrame(points, columns=space.names).assign(factor=factor)
        for factor, points in evidence.points.items()
    ]
    pd.concat(tables, ignore_index=True)[["factor", *space.names]].to_parquet(path, index=False)


def read_powers(path: Path) -> dict[float, Floats]:
    """The points by factor that `write_powers` wrote; empty where there is no such file."""
    if not path.is_file():
        return {}
    table = read_points(path)
    factors, values = table[:, 0], table[:, 1:]
    return {factor: values[factors == factor] for factor in np.unique(factors).tolist()}


def measure_powers(
    evidence: PowerEvidence, reference: Reference, rng: np.random.Generator
) -> Powers:
    """From a belief at several powers; see `at_powers`."""
    space, data = reference.space, reference.data
    sampling = space.round(reference.sampling)
    centre = sampling if data is None else space.round(data)
    standard = reference.standard
    size = common_size(_SIZE, centre, *evidence.points.values())
    numbers = standard.numbers(centre)

    def apart(points: Floats) -> Estimate | None:
        return None if data is None else _apart(standard(points), standard(centre), size, rng)

    flat = _log_flat(reference)
    rows = []
    for factor, drawn in sorted(evidence.points.items()):
        points = space.round(drawn)
        at = standard.numbers(points)
        spread = numbers.std(axis=0)
        log_density = None
        if evidence.data is not None:
            gain = factor * float(evidence.data.mean()) - evidence.log_normalizers[factor]
            log_density = gain + flat
        rows.append(
            AtPower(
                factor=factor,
                belief_data=apart(points),
                log_density=log_density,
                shifts=_listed(at.mean(axis=0) - numbers.mean(axis=0)),
                widths=_listed(at.std(axis=0) / np.where(spread > 0, spread, 1.0)),
            )
        )
    of_sampling = apart(sampling)
    return Powers(
        saved=evidence.saved,
        source=evidence.source,
        pinned=None if evidence.pinned is None else _pinned(evidence.pinned, evidence.source),
        data=None if evidence.data is None else _data_power(evidence, evidence.data),
        rows=rows,
        size=size,
        sampling_data=of_sampling,
        sampling_log_density=None if evidence.data is None else flat,
        nearer=_nearer(rows, of_sampling),
    )


def _pinned(power: density.Power, source: str) -> PinnedPower:
    width = power.coherence
    return PinnedPower(
        value=power.value,
        low=power.low,
        high=power.high,
        source=power.source,
        sources=tuple(
            SourcePower(source=one.source, value=one.value, low=one.low, high=one.high)
            for one in power.sources
        ),
        agreement=power.agreement,
        coherence=None
        if width is None
        else WidthResponse(
            width=Interval(**dict(zip(("value", "low", "high"), width.width, strict=True))),
            expected=width.expected,
            p_value=width.p_value,
            coherent=width.coherent,
        ),
        used=source not in UNPINNED,
    )


def _data_power(evidence: PowerEvidence, data: Floats) -> DataPower:
    """Where the mean of k u − log Z(k) over rows is highest, log Z a spline through the powers.

    The interval is the score's: the standard error of the rows' mean utility over the variance of
    the utility under the belief, log Z's curvature.
    """
    factors = np.array([0.0, *sorted(evidence.log_normalizers)])
    logs = np.array([0.0, *(evidence.log_normalizers[f] for f in factors[1:])])
    spline = CubicSpline(factors, logs)
    at = np.linspace(0.0, factors[-1], _FINE)
    best = float(at[int((at * data.mean() - spline(at)).argmax())])
    curvature = max(float(spline(best, 2)), 1e-12)
    error = 1.645 * float(data.std(ddof=1)) / math.sqrt(len(data)) / curvature
    return DataPower(
        source="data",
        value=best * evidence.saved,
        low=max(0.0, best - error) * evidence.saved,
        high=(best + error) * evidence.saved,
        bounded=best < factors[-1],
    )


def _log_flat(reference: Reference) -> float:
    """Log density of λ per unit of every feature's scale: standard deviations, or categories."""
    space, standard = reference.space, reference.standard
    low, high = space.to_scale(np.stack([space.low, space.high]))
    widths = np.where(space.categorical, high - low + 1.0, (high - low) / standard.sd)
    return -float(np.log(widths).sum())


def _listed(values: Floats) -> list[float | None]:
    return [None if np.isnan(each) else float(each) for each in values]


def _apart(x: Floats, y: Floats, size: int, rng: np.random.Generator) -> Estimate:
    def some(points: Floats) -> Floats:
        return points[rng.choice(len(points), size, replace=False)]

    return estimate_of([wasserstein(some(x), some(y)) for _ in range(_REPEATS)])


def _nearer(rows: list[AtPower], of_sampling: Estimate | None) -> bool | None:
    """Whether all, or none, of the powers' beliefs are nearer to the data than λ."""
    if of_sampling is None:
        return None
    nearer = {
        each.belief_data.mean < of_sampling.mean for each in rows if each.belief_data is not None
    }
    return nearer.pop() if len(nearer) == 1 else None


def power_of(text: Mapping[str, Any]) -> density.Power:
    """A power as `dataclasses.asdict` of it left it, with its sources and coherence."""
    coherence = text.get("coherence")
    return density.Power(
        value=text["value"],
        low=text["low"],
        high=text["high"],
        source=text["source"],
        log_sd=text["log_sd"],
        sources=tuple(power_of(each) for each in text.get("sources", ())),
        agreement=text.get("agreement"),
        coherence=None
        if coherence is None
        else density.Coherence(
            tuple(coherence["width"]), coherence["expected"], coherence["p_value"]
        ),
    )
