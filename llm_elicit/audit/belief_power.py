"""The power of the utility that the belief is, and what of an audit depends on it.

Comparisons identify the utility f up to a power: the belief is one of p_k ∝ exp(k f). Ranges,
ratios, quantiles or points may identify k (`llm_elicit.density.fit_power`). If nothing does, the
saved belief has a power by convention, and quantities that depend on it are evaluated from a
quarter to four times that power. The power at which the data are most likely is reported
separately: it bounds how well any belief of this shape can agree with the data and is not a
property of the judge.
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
"""Powers evaluated, as multiples of the saved belief's."""
UNIDENTIFIED = ("assumed noise level", "convention")
"""Sources of a saved belief's power if no other answers identify it."""

_LARGEST = 64.0
_COUNT = 4000
_LEAST_EFFECTIVE = 400
_SIZE, _REPEATS = 500, 3
_GRID = 2001


class SourcePower(StrictModel):
    """The power by one source, relative to the fitted utility's own; 90 % interval."""

    source: str
    value: float
    low: float
    high: float


class DataPower(SourcePower):
    """The power at which the data are most likely; 0 if no power is likelier than λ.

    The interval is over rows, for the fitted utility.

    Attributes:
        bounded: whether the maximum lies within the powers evaluated.
    """

    bounded: bool


class WidthResponse(StrictModel):
    """The judge's response to the width of ranges.

    Attributes:
        width: coefficient of log width in the log-odds, 95 % interval.
        expected: its value for the holder of a density who otherwise answers alike.
        p_value: of the test that the judge holds a density.
        coherent: whether that is not rejected at 5 %.
    """

    width: Interval
    expected: float
    p_value: float
    coherent: bool


class IdentifiedPower(StrictModel):
    """The power identified by answers other than comparisons of points.

    Attributes:
        value, low, high: relative to the fitted utility's own; 90 % interval.
        source: the sources, joined by " + ".
        sources: the powers by each alone.
        agreement: p-value of the test that they share one power; None for one source.
        coherence: the judge's response to width, if ranges were compared.
        used: whether the saved belief has this power: not if the interval excludes no power.
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
        factor: the power relative to the saved belief's.
        belief_data: Wasserstein-1 to the data; None without data.
        log_density: mean log density of the data's rows, nats a row, per unit of every feature's
            scale (standard deviations of the data; one a category); None without data.
        shifts: each feature's mean minus the data's (λ's without data), in its standard
            deviations, on the feature's scale, in the order of the space; None for a categorical
            feature.
        widths: each feature's standard deviation relative to the data's (λ's without data).
    """

    factor: float
    belief_data: Estimate | None
    log_density: float | None
    shifts: list[float | None]
    widths: list[float | None]


class BeliefPowers(StrictModel):
    """A judge's belief over a range of powers.

    Attributes:
        saved: the saved belief's power, relative to the fitted utility's own.
        source: what it comes from; "assumed noise level" or "convention" if it is not identified.
        identified: the power by answers other than comparisons of points, if there are any.
        data: the power at which the data are most likely; None without data.
        rows: in increasing order of the power.
        size: points on each side of the distances here.
        sampling_data: Wasserstein-1 of λ from the data at that size; None without data.
        sampling_log_density: log density of λ, in the same unit as the rows'; None without data.
        nearer: whether the belief is nearer to the data than λ at every power (true), at none
            (false), or depending on the power (None); also None without data.
    """

    saved: float
    source: str
    identified: IdentifiedPower | None
    data: DataPower | None
    rows: list[AtPower]
    size: int
    sampling_data: Estimate | None
    sampling_log_density: float | None
    nearer: bool | None = None

    @property
    def scale(self) -> str | None:
        """The sources that identify the belief's power; None if nothing does."""
        if self.identified is None or not self.identified.used:
            return None
        width = self.identified.coherence
        if width is not None and not width.coherent and self.identified.source == "ranges":
            return None
        return self.identified.source


@dataclass(frozen=True)
class PowerEvidence:
    """A belief at `FACTORS` times its power.

    Attributes:
        saved: the belief's own power.
        source: what that comes from.
        identified: the power by other answers; None if there are none.
        points: draws `(m, d)`, natural units, by factor.
        log_normalizers: log of the mean of exp(factor · utility) over λ, by factor, including
            factors above `FACTORS` up to where the data are most likely.
        data: the utility `(n,)` at the data's rows, with mean 0 over λ; None without a table.
    """

    saved: float
    source: str
    identified: density.Power | None
    points: Mapping[float, Floats]
    log_normalizers: Mapping[float, float]
    data: Floats | None


def at_powers(
    belief: density.BeliefDensity,
    space: FeatureSpace,
    points: Floats,
    data: Floats | None,
    seed: int,
    identified: density.Power | None = None,
) -> PowerEvidence:
    """Evaluate a belief, with `points` `(m, d)` its own draws, at other powers.

    These points and as many from λ are importance-weighted to each power; only if too few of them
    have weight is the belief sampled anew.
    """
    rng = np.random.default_rng([seed, 0x5CA1E])
    some = points[rng.permutation(len(points))[: 2 * _COUNT]]
    both = np.concatenate([some, space.sample(len(some), rng)])
    slope = belief.sampling.log_scale_slope(both)
    utility = belief.utility(both)
    centre = float(utility[len(some) :].mean())
    # λ is uniform on the scales; densities are relative to it.
    flat = float((belief.sampling.log_prob(both) - slope)[0])
    proposal = np.logaddexp(belief.log_prob(both) - slope - flat, 0.0) - math.log(2.0)
    drawn, logs = {}, {}
    for factor in FACTORS:
        exponents = factor * (utility - centre) - proposal
        weights = np.exp(exponents - exponents.max())
        if factor != 1.0 and weights.sum() ** 2 / (weights**2).sum() < _LEAST_EFFECTIVE:
            other = belief.tempered(factor, seed=seed)
            drawn[factor] = other.sample(_COUNT, seed=seed)
            logs[factor] = _log_normalizer(belief, other, factor, centre, flat)
            continue
        logs[factor] = float(logsumexp(exponents) - math.log(len(both)))
        rows = rng.choice(len(both), _COUNT, p=weights / weights.sum())
        drawn[factor] = some[:_COUNT] if factor == 1.0 else both[rows]
    at_data = None if data is None else belief.utility(data) - centre
    if at_data is not None:
        # Beyond the range, until the data are less likely than at the power before.
        last, factor = FACTORS[-2], FACTORS[-1]
        while (factor - last) * at_data.mean() > logs[factor] - logs[last] and factor < _LARGEST:
            last, factor = factor, 2.0 * factor
            other = belief.tempered(factor, seed=seed)
            logs[factor] = _log_normalizer(belief, other, factor, centre, flat)
    return PowerEvidence(
        saved=belief.power,
        source=str(belief.diagnostics.get("power", {}).get("source", UNIDENTIFIED[0])),
        identified=identified,
        points=drawn,
        log_normalizers=logs,
        data=at_data,
    )


def _log_normalizer(
    belief: density.BeliefDensity,
    other: density.BeliefDensity,
    factor: float,
    centre: float,
    flat: float,
) -> float:
    """Return log Z of a tempered belief, from its density at one point."""
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
    """Return the points by factor that `write_powers` wrote; empty if there is no such file."""
    if not path.is_file():
        return {}
    table = read_points(path)
    factors, values = table[:, 0], table[:, 1:]
    return {factor: values[factors == factor] for factor in np.unique(factors).tolist()}


def measure_powers(
    evidence: PowerEvidence, reference: Reference, rng: np.random.Generator
) -> BeliefPowers:
    """Measure a belief at several powers; see `at_powers`."""
    space, data = reference.space, reference.data
    sampling = space.round(reference.sampling)
    compared = sampling if data is None else space.round(data)
    standardizer = reference.standardizer
    size = common_size(_SIZE, compared, *evidence.points.values())
    numbers = standardizer.numbers(compared)
    sd = numbers.std(axis=0)

    def to_data(points: Floats) -> Estimate | None:
        if data is None:
            return None
        return _distance(standardizer(points), standardizer(compared), size, rng)

    flat = _log_flat(reference)
    rows = []
    for factor, drawn in sorted(evidence.points.items()):
        points = space.round(drawn)
        at = standardizer.numbers(points)
        log_density = None
        if evidence.data is not None:
            gain = factor * float(evidence.data.mean()) - evidence.log_normalizers[factor]
            log_density = gain + flat
        rows.append(
            AtPower(
                factor=factor,
                belief_data=to_data(points),
                log_density=log_density,
                shifts=_finite(at.mean(axis=0) - numbers.mean(axis=0)),
                widths=_finite(at.std(axis=0) / np.where(sd > 0, sd, 1.0)),
            )
        )
    sampling_data = to_data(sampling)
    return BeliefPowers(
        saved=evidence.saved,
        source=evidence.source,
        identified=_identified(evidence),
        data=None if evidence.data is None else _data_power(evidence, evidence.data),
        rows=rows,
        size=size,
        sampling_data=sampling_data,
        sampling_log_density=None if evidence.data is None else flat,
        nearer=_nearer(rows, sampling_data),
    )


def _identified(evidence: PowerEvidence) -> IdentifiedPower | None:
    power = evidence.identified
    if power is None:
        return None
    width = power.coherence
    return IdentifiedPower(
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
        used=evidence.source not in UNIDENTIFIED,
    )


def _data_power(evidence: PowerEvidence, data: Floats) -> DataPower:
    """Maximize the mean of k u − log Z(k) over rows, with a spline of log Z through the powers.

    The interval's standard error is that of the rows' mean utility over the variance of the utility
    under the belief, the curvature of log Z.
    """
    factors = np.array([0.0, *sorted(evidence.log_normalizers)])
    logs = np.array([0.0, *(evidence.log_normalizers[f] for f in factors[1:])])
    spline = CubicSpline(factors, logs)
    grid = np.linspace(0.0, factors[-1], _GRID)
    best = float(grid[int((grid * data.mean() - spline(grid)).argmax())])
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
    """Return log density of λ per unit of every feature's scale (sd, or category)."""
    space, standardizer = reference.space, reference.standardizer
    low, high = space.to_scale(np.stack([space.low, space.high]))
    widths = np.where(space.categorical, high - low + 1.0, (high - low) / standardizer.sd)
    return -float(np.log(widths).sum())


def _finite(values: Floats) -> list[float | None]:
    return [None if np.isnan(each) else float(each) for each in values]


def _distance(x: Floats, y: Floats, size: int, rng: np.random.Generator) -> Estimate:
    def some(points: Floats) -> Floats:
        return points[rng.choice(len(points), size, replace=False)]

    return estimate_of([wasserstein(some(x), some(y)) for _ in range(_REPEATS)])


def _nearer(rows: list[AtPower], sampling_data: Estimate | None) -> bool | None:
    """Return whether the belief is nearer to the data than λ at all powers, or at none."""
    if sampling_data is None:
        return None
    nearer = {
        each.belief_data.mean < sampling_data.mean for each in rows if each.belief_data is not None
    }
    return nearer.pop() if len(nearer) == 1 else None


def power_of(stored: Mapping[str, Any]) -> density.Power:
    """Return a power from its stored fields, with its sources and coherence."""
    coherence = stored.get("coherence")
    return density.Power(
        value=stored["value"],
        low=stored["low"],
        high=stored["high"],
        source=stored["source"],
        log_sd=stored["log_sd"],
        sources=tuple(power_of(each) for each in stored.get("sources", ())),
        agreement=stored.get("agreement"),
        coherence=None
        if coherence is None
        else density.Coherence(
            tuple(coherence["width"]), coherence["expected"], coherence["p_value"]
        ),
    )
