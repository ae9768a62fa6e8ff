"""The power of a belief's utility, and the results of an audit that depend on it.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from llm_elicit import density
from llm_elicit._util.files import read_points
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.distances import Estimate, common_size, estimate_of, wasserstein
from llm_elicit.audit.inference import finite
from llm_elicit.audit.reference import Reference
from llm_elicit.spaces.features import FeatureSpace, Floats

FACTORS = tuple(2.0 ** (k / 2) for k in range(-4, 5))
"""Powers evaluated, as multiples of the saved belief's."""
UNIDENTIFIED = ("assumed noise level", "convention")
"""Sources of a saved belief's power if no other answers identify it."""

_MAX_FACTOR = 64.0
_COUNT = 4000
_MIN_EFFECTIVE = 400
_FLATTEST = 1e-6


@dataclass(frozen=True)
class PowerEvidence:
    """A belief at `FACTORS` times its power.

    Attributes:
        saved: the belief's own power.
        source: what that comes from.
        identified: the power by other answers; None if there are none.
        points: draws `(m, d)`, natural units, by factor.
        log_normalizers: log of the mean of exp(factor · utility) over the box asked about, 0 where
            constraints exclude it, by factor: 0, `FACTORS`, and above them up to where the data are
            most likely. Beyond the compared points of a λ that is not uniform, the belief's taper
            multiplies it.
        data: the utility `(n,)` at the data's rows, with mean 0 over λ; None without a table.
        taper: the mean log of the taper at these rows.
        sampling: the mean log density of λ at these rows, relative to a uniform one on the box.
    """

    saved: float
    source: str
    identified: density.Power | None
    points: Mapping[float, Floats]
    log_normalizers: Mapping[float, float]
    data: Floats | None
    taper: float = 0.0
    sampling: float = 0.0


def at_powers(
    belief: density.BeliefDensity,
    space: FeatureSpace,
    points: Floats,
    data: Floats | None,
    seed: int,
    identified: density.Power | None = None,
) -> PowerEvidence:
    """Evaluate a belief, with `points` `(m, d)` its own draws, at other powers.

    These points, or new ones where they are few, and as many from λ are importance-weighted to each
    power; only if too few of them have weight is the belief sampled anew.
    """
    rng = np.random.default_rng([seed, 0x5CA1E])
    if len(points) < 2 * _COUNT:  # sampling each power anew would take far longer
        points = belief.sample(2 * _COUNT, seed=seed)
    own = points[rng.permutation(len(points))[: 2 * _COUNT]]
    candidates = np.concatenate([own, belief.sampling.sample(len(own), rng)])
    tempering = _Tempering.of(belief, space, candidates[len(own) :], seed)
    utility, taper = tempering.utility(candidates)
    proposal = np.logaddexp(
        tempering.relative(belief, candidates), tempering.relative(belief.sampling, candidates)
    )
    proposal -= math.log(2.0)
    drawn, logs = {}, {}
    for factor in (0.0, *FACTORS):
        exponents = factor * utility + taper - proposal
        weights = np.exp(exponents - exponents.max())
        if factor != 1.0 and weights.sum() ** 2 / (weights**2).sum() < _MIN_EFFECTIVE:
            tempered, logs[factor] = tempering.at(factor)
            drawn[factor] = tempered.sample(_COUNT, seed=seed)
            continue
        logs[factor] = float(logsumexp(exponents) - math.log(len(candidates)))
        rows = rng.choice(len(candidates), _COUNT, p=weights / weights.sum())
        drawn[factor] = own[:_COUNT] if factor == 1.0 else candidates[rows]
    evidence = PowerEvidence(
        saved=belief.power,
        source=str(belief.diagnostics.get("power", {}).get("source", UNIDENTIFIED[0])),
        identified=identified,
        points={factor: drawn[factor] for factor in FACTORS},
        log_normalizers=logs,
        data=None,
    )
    if data is None:
        return evidence
    at_data, taper = tempering.utility(data)
    return replace(
        evidence,
        log_normalizers=tempering.extended(logs, at_data),
        data=at_data,
        taper=float(taper.mean()),
        sampling=float(tempering.relative(belief.sampling, data).mean()),
    )


@dataclass(frozen=True)
class _Tempering:
    """A belief at other powers.

    Attributes:
        belief: the belief.
        centre: the mean of its utility over λ.
        flat: log density of a uniform law on the box asked about, on the features' scales.
        seed: of the samplers.
    """

    belief: density.BeliefDensity
    centre: float
    flat: float
    seed: int

    @classmethod
    def of(
        cls, belief: density.BeliefDensity, space: FeatureSpace, sampled: Floats, seed: int
    ) -> _Tempering:
        """Return it from draws `(n, d)` of λ."""
        low, high = space.scale_ends
        centre = float(belief.utility(sampled, tapered=False).mean())
        return cls(belief, centre, -float(np.log(high - low).sum()), seed)

    def utility(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the utility `(n,)` at points `(n, d)`, with mean 0 over λ, and the log taper."""
        utility = self.belief.utility(points, tapered=False)
        return utility - self.centre, self.belief.utility(points) - utility

    def relative(
        self, law: density.BeliefDensity | density.SamplingDensity, points: Floats
    ) -> Floats:
        """Return log densities `(n,)` relative to the uniform law on the box."""
        slope = self.belief.sampling.log_scale_slope(points)
        return law.log_prob(points) - slope - self.flat

    def at(self, factor: float) -> tuple[density.BeliefDensity, float]:
        """Return the belief at a power, and its log Z, from its density at one point."""
        tempered = self.belief.tempered(max(factor, _FLATTEST), seed=self.seed)
        point = tempered.sample(1)
        utility, taper = self.utility(point)
        return tempered, float((factor * utility + taper - self.relative(tempered, point))[0])

    def extended(self, logs: Mapping[float, float], data: Floats) -> dict[float, float]:
        """Return log Z also of larger powers, until the data are less likely than before."""
        log_normalizers = dict(logs)
        mean, last, factor = data.mean(), FACTORS[-2], FACTORS[-1]
        while factor < _MAX_FACTOR:
            if (factor - last) * mean <= log_normalizers[factor] - log_normalizers[last]:
                break
            last, factor = factor, 2.0 * factor
            _, log_normalizers[factor] = self.at(factor)
        return log_normalizers


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


def power_of(stored: Mapping[str, Any]) -> density.Power:
    """Return a power from its stored fields, with its sources and coherence."""
    return TypeAdapter(density.Power).validate_python(stored)


_SIZE, _REPEATS = 500, 3
_GRID = 2001
_ERRORS = 2.0
"""Standard deviations over subsamples by which two distances have to differ to be told apart."""


class DataPower(StrictModel):
    """The power at which the data are most likely, relative to the fitted utility's own.

    0 if a uniform density is likelier. The 90 % interval is over rows, for the fitted utility.

    Attributes:
        bounded: whether the maximum lies within the powers evaluated.
    """

    value: float
    low: float
    high: float
    bounded: bool


class AtPower(StrictModel):
    """A judge's belief at one power.

    Attributes:
        factor: the power relative to the saved belief's.
        belief_data: Wasserstein-1 to the data; None without data.
        log_density: mean log density of the data's rows, nats per row, per unit of every feature's
            scale (standard deviations of the data; 1 per category); None without data.
        shifts: each feature's mean minus the data's (λ's without data), in its standard
            deviations, on the feature's scale, in the order of the space; None for a categorical
            or periodic feature.
        widths: each feature's standard deviation relative to the data's (λ's without data).
    """

    factor: float
    belief_data: Estimate | None
    log_density: float | None
    shifts: list[float | None]
    widths: list[float | None]

    def nearer_than(self, sampling_data: Estimate) -> int:
        """Return 1 if the belief is nearer to the data than λ, −1 if farther, 0 if within error."""
        if self.belief_data is None:
            return 0
        difference = sampling_data.mean - self.belief_data.mean
        clear = abs(difference) > _ERRORS * math.hypot(self.belief_data.sd, sampling_data.sd)
        return int(math.copysign(1.0, difference)) if clear else 0


class BeliefPowers(StrictModel):
    """A judge's belief over a range of powers.

    Attributes:
        saved: the saved belief's power, relative to the fitted utility's own.
        source: what it comes from; "assumed noise level" or "convention" if it is not identified.
        identified: the power by answers other than comparisons of points, if there are any,
            relative to the fitted utility's own, with a 90 % interval.
        data: the power at which the data are most likely; None without data.
        rows: in increasing order of the power.
        size: points on each side of the distances here.
        sampling_data: Wasserstein-1 of λ from the data at that size; None without data.
        sampling_log_density: mean log density of λ at the data's rows, in the same unit; None
            without data.
        nearer: whether the belief is nearer to the data than λ at every power (true), farther at
            every power (false), or neither (None); also None without data.
    """

    saved: float
    source: str
    identified: density.Power | None
    data: DataPower | None
    rows: list[AtPower]
    size: int
    sampling_data: Estimate | None
    sampling_log_density: float | None
    nearer: bool | None = None

    @property
    def coherence(self) -> density.Coherence | None:
        """The judge's response to the width of ranges; None if none were asked about."""
        return None if self.identified is None else self.identified.coherence

    @property
    def used(self) -> bool:
        """Whether the saved belief has the power identified: not if its interval excludes none."""
        return self.source not in UNIDENTIFIED

    @property
    def scale(self) -> str | None:
        """The sources that identify the belief's power; None if nothing does.

        Points alone do not: they tell at which power this fit is nearest to them.
        """
        if self.identified is None or not self.used or self.identified.source == "points":
            return None
        width = self.coherence
        if width is not None and not width.coherent and self.identified.source == "ranges":
            return None
        return self.identified.source


def measure_powers(
    evidence: PowerEvidence, reference: Reference, rng: np.random.Generator
) -> BeliefPowers:
    """Measure a belief at several powers; see `llm_elicit.audit.belief_power`."""
    space, data = reference.space, reference.data
    sampling = space.round(reference.sampling)
    compared = sampling if data is None else space.round(data)
    standardizer = reference.standardizer
    size = common_size(_SIZE, sampling, compared, *evidence.points.values())
    low, high = space.scale_ends
    scales = np.where(space.categorical, high - low, (high - low) / standardizer.sd)
    flat = -float(np.log(scales).sum())  # log density of a uniform law, per unit of every scale

    def to_data(points: Floats) -> Estimate | None:
        if data is None:
            return None
        x, y = standardizer(points), standardizer(compared)

        def some(points: Floats) -> Floats:
            return points[rng.choice(len(points), size, replace=False)]

        return estimate_of([wasserstein(some(x), some(y)) for _ in range(_REPEATS)])

    rows = []
    for factor, drawn in sorted(evidence.points.items()):
        points = space.round(drawn)
        numbers, others = standardizer.numbers(points), standardizer.numbers(compared)
        shifts, sd = numbers.mean(axis=0) - others.mean(axis=0), others.std(axis=0)
        widths = numbers.std(axis=0) / np.where(sd > 0, sd, 1.0)
        log_density = None
        if evidence.data is not None:
            gain = factor * float(evidence.data.mean()) - evidence.log_normalizers[factor]
            log_density = gain + evidence.taper + flat
        rows.append(
            AtPower(
                factor=factor,
                belief_data=to_data(points),
                log_density=log_density,
                shifts=[finite(shift) for shift in shifts],
                widths=[finite(width) for width in widths],
            )
        )
    sampling_data, nearer = to_data(sampling), None
    if sampling_data is not None:
        signs = {row.nearer_than(sampling_data) for row in rows}
        nearer = {frozenset({1}): True, frozenset({-1}): False}.get(frozenset(signs))
    return BeliefPowers(
        saved=evidence.saved,
        source=evidence.source,
        identified=evidence.identified,
        data=None if evidence.data is None else _data_power(evidence, evidence.data),
        rows=rows,
        size=size,
        sampling_data=sampling_data,
        sampling_log_density=None if evidence.data is None else flat + evidence.sampling,
        nearer=nearer,
    )


def _data_power(evidence: PowerEvidence, data: Floats) -> DataPower:
    """Maximize the mean of k u − log Z(k) over rows, with a spline of log Z through the powers.

    The interval's standard error is that of the rows' mean utility over the variance of the utility
    under the belief, the curvature of log Z.
    """
    factors = np.array(sorted(evidence.log_normalizers))
    logs = np.array([evidence.log_normalizers[factor] for factor in factors])
    spline = CubicSpline(factors, logs)
    grid = np.linspace(0.0, factors[-1], _GRID)
    best = float(grid[int((grid * data.mean() - spline(grid)).argmax())])
    curvature = max(float(spline(best, 2)), 1e-12)
    error = 1.645 * float(data.std(ddof=1)) / math.sqrt(len(data)) / curvature
    return DataPower(
        value=best * evidence.saved,
        low=max(0.0, best - error) * evidence.saved,
        high=(best + error) * evidence.saved,
        bounded=best < factors[-1],
    )
