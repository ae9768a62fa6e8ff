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
from dataclasses import dataclass
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
from llm_elicit.audit.distances import Estimate, common_size, estimate_from_repeats, wasserstein
from llm_elicit.audit.inference import finite_or_none
from llm_elicit.audit.reference import Reference
from llm_elicit.spaces.features import FeatureSpace, Floats

POWER_FACTORS = tuple(2.0 ** (k / 2) for k in range(-4, 5))
"""Powers evaluated, as multiples of the saved belief's."""
UNIDENTIFIED_SOURCES = ("assumed noise level", "convention")
"""Sources of a saved belief's power if no other answers identify it."""

_MAX_FACTOR = 64.0
"""Largest multiple of the saved power at which the likelihood of the data is evaluated."""
_POINTS = 4000
"""Points of the belief at each power."""
_MIN_EFFECTIVE_POINTS = 400
"""Effective sample size of importance weights below which the belief is sampled anew."""
_MIN_FACTOR = 1e-6
"""Multiple of the saved power that stands for a power of 0, at which beliefs are not defined."""


@dataclass(frozen=True)
class PowerEvidence:
    """A belief at `POWER_FACTORS` times its power.

    Attributes:
        saved_power: the belief's own power.
        saved_source: the source of the saved power.
        identified_power: the power by other answers; None if there are none.
        points_by_factor: draws `(m, d)`, natural units, by factor.
        log_normalizers: by factor, the log of the mean of exp(factor · utility) over the box asked
            about, where points that constraints exclude count as 0. The factors are 0,
            `POWER_FACTORS`, and larger ones up to where the data are most likely. If λ is not
            uniform, exp(factor · utility) is multiplied by the belief's taper, which lowers the
            density beyond the compared points.
        data_utility: the utility `(n,)` at the rows of the data, with mean 0 over λ; None without a
            table.
        mean_log_taper: the mean of the taper's logarithm at these rows.
        mean_log_sampling: the mean log density of λ at these rows, relative to a uniform density on
            the box.
    """

    saved_power: float
    saved_source: str
    identified_power: density.Power | None
    points_by_factor: Mapping[float, Floats]
    log_normalizers: Mapping[float, float]
    data_utility: Floats | None = None
    mean_log_taper: float = 0.0
    mean_log_sampling: float = 0.0

    def mean_log_density(self, factor: float) -> float | None:
        """Return the mean log density at the data, relative to a uniform one; None without data."""
        if self.data_utility is None:
            return None
        gain = factor * float(self.data_utility.mean()) - self.log_normalizers[factor]
        return gain + self.mean_log_taper


def evaluate_powers(
    belief: density.BeliefDensity,
    space: FeatureSpace,
    points: Floats,
    data: Floats | None,
    seed: int,
    identified_power: density.Power | None = None,
) -> PowerEvidence:
    """Return a belief at other powers, from draws `(m, d)` of it in `points`.

    The draws, or new ones if they are few, and as many draws from λ are importance-weighted to each
    power. The belief is sampled anew at a power only if too few of them have weight there.
    """
    rng = np.random.default_rng([seed, 0x5CA1E])
    if len(points) < 2 * _POINTS:  # sampling each power anew would take far longer
        points = belief.sample(2 * _POINTS, seed=seed)
    belief_points = points[rng.permutation(len(points))[: 2 * _POINTS]]
    candidates = np.concatenate([belief_points, belief.sampling.sample(len(belief_points), rng)])
    tempering = _TemperedBelief.of(belief, space, candidates[len(belief_points) :], seed)
    utility, taper = tempering.utility(candidates)
    proposal = np.logaddexp(
        tempering.relative_log_density(belief, candidates),
        tempering.relative_log_density(belief.sampling, candidates),
    )
    proposal -= math.log(2.0)
    points_by_factor, log_normalizers = {}, {}
    for factor in (0.0, *POWER_FACTORS):
        exponents = factor * utility + taper - proposal
        weights = np.exp(exponents - exponents.max())
        if factor != 1.0 and weights.sum() ** 2 / (weights**2).sum() < _MIN_EFFECTIVE_POINTS:
            tempered, log_normalizers[factor] = tempering.temper(factor)
            points_by_factor[factor] = tempered.sample(_POINTS, seed=seed)
            continue
        log_normalizers[factor] = float(logsumexp(exponents) - math.log(len(candidates)))
        rows = rng.choice(len(candidates), _POINTS, p=weights / weights.sum())
        points_by_factor[factor] = belief_points[:_POINTS] if factor == 1.0 else candidates[rows]
    data_fields: dict[str, Any] = {}
    if data is not None:
        at_data, taper = tempering.utility(data)
        log_normalizers = tempering.extend_log_normalizers(log_normalizers, at_data)
        at_sampling = tempering.relative_log_density(belief.sampling, data)
        data_fields = {
            "data_utility": at_data,
            "mean_log_taper": float(taper.mean()),
            "mean_log_sampling": float(at_sampling.mean()),
        }
    return PowerEvidence(
        saved_power=belief.power,
        saved_source=str(
            belief.diagnostics.get("power", {}).get("source", UNIDENTIFIED_SOURCES[0])
        ),
        identified_power=identified_power,
        points_by_factor={factor: points_by_factor[factor] for factor in POWER_FACTORS},
        log_normalizers=log_normalizers,
        **data_fields,
    )


@dataclass(frozen=True)
class _TemperedBelief:
    """A belief at other powers.

    Attributes:
        belief: the belief.
        mean_utility: the mean of its utility over λ.
        log_uniform: log density of a uniform law on the box asked about, on the features' scales.
        seed: seed of the samplers.
    """

    belief: density.BeliefDensity
    mean_utility: float
    log_uniform: float
    seed: int

    @classmethod
    def of(
        cls, belief: density.BeliefDensity, space: FeatureSpace, sampled: Floats, seed: int
    ) -> _TemperedBelief:
        """Return the belief with the constants that draws `(n, d)` from λ determine."""
        low, high = space.scale_ends
        centre = float(belief.utility(sampled, tapered=False).mean())
        return cls(belief, centre, -float(np.log(high - low).sum()), seed)

    def utility(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the utility `(n,)` at points `(n, d)`, with mean 0 over λ, and the log taper."""
        utility = self.belief.utility(points, tapered=False)
        return utility - self.mean_utility, self.belief.utility(points) - utility

    def relative_log_density(
        self, law: density.BeliefDensity | density.SamplingDensity, points: Floats
    ) -> Floats:
        """Return log densities `(n,)` relative to the uniform law on the box."""
        slope = self.belief.sampling.log_scale_derivative(points)
        return law.log_prob(points) - slope - self.log_uniform

    def temper(self, factor: float) -> tuple[density.BeliefDensity, float]:
        """Return the belief at a power, and its log Z, from its density at one point."""
        tempered = self.belief.tempered(max(factor, _MIN_FACTOR), seed=self.seed)
        point = tempered.sample(1)
        utility, taper = self.utility(point)
        return tempered, float(
            (factor * utility + taper - self.relative_log_density(tempered, point))[0]
        )

    def extend_log_normalizers(
        self, logs: Mapping[float, float], data: Floats
    ) -> dict[float, float]:
        """Return the log Z, and those of larger powers until the data become less likely."""
        log_normalizers = dict(logs)
        mean, previous, factor = data.mean(), POWER_FACTORS[-2], POWER_FACTORS[-1]
        while factor < _MAX_FACTOR:
            if (factor - previous) * mean <= log_normalizers[factor] - log_normalizers[previous]:
                break
            previous, factor = factor, 2.0 * factor
            _, log_normalizers[factor] = self.temper(factor)
        return log_normalizers


def write_powers(evidence: PowerEvidence, space: FeatureSpace, path: Path) -> None:
    """Write the points as a table: the factor and the features."""
    tables = [
        pd.DataFrame(points, columns=space.names).assign(factor=factor)
        for factor, points in evidence.points_by_factor.items()
    ]
    pd.concat(tables, ignore_index=True)[["factor", *space.names]].to_parquet(path, index=False)


def read_powers(path: Path) -> dict[float, Floats]:
    """Return the points by factor that `write_powers` wrote; empty if there is no such file."""
    if not path.is_file():
        return {}
    table = read_points(path)
    factors, values = table[:, 0], table[:, 1:]
    return {factor: values[factors == factor] for factor in np.unique(factors).tolist()}


def parse_power(stored: Mapping[str, Any]) -> density.Power:
    """Return a power from its stored fields, with its sources and coherence."""
    return TypeAdapter(density.Power).validate_python(stored)


_DISTANCE_POINTS, _DISTANCE_REPEATS = 500, 3
"""Points on each side of a distance, and subsamples over which it is averaged."""
_GRID_POINTS = 2001
"""Powers among which the one that predicts the data best is searched."""
_MIN_DIFFERENCE_SDS = 2.0
"""Smallest difference of two distances that counts, in standard deviations over subsamples."""


class DataPower(StrictModel):
    """The power at which the data are most likely, relative to the fitted utility's own.

    0 if a uniform density is likelier. The 90 % interval is over rows, for the fitted utility.

    Attributes:
        is_maximum_inside: whether the maximum lies within the powers evaluated.
    """

    value: float
    low: float
    high: float
    is_maximum_inside: bool


class BeliefAtPower(StrictModel):
    """A judge's belief at one power.

    Attributes:
        factor: the power relative to the saved belief's.
        data_distance: Wasserstein-1 to the data; None without data.
        log_density: mean log density of the data's rows, nats per row, per unit of every feature's
            scale (standard deviations of the data; 1 per category); None without data.
        mean_shifts: each feature's mean minus the data's (λ's without data), in its standard
            deviations, on the feature's scale, in the order of the space; None for a categorical
            or periodic feature.
        sd_ratios: each feature's standard deviation relative to the data's (λ's without data).
    """

    factor: float
    data_distance: Estimate | None
    log_density: float | None
    mean_shifts: list[float | None]
    sd_ratios: list[float | None]

    def compare_with_sampling(self, sampling_data: Estimate) -> int:
        """Return 1 if the belief is nearer to the data than λ, −1 if farther, 0 if within error."""
        if self.data_distance is None:
            return 0
        difference = sampling_data.mean - self.data_distance.mean
        is_clear = abs(difference) > _MIN_DIFFERENCE_SDS * math.hypot(
            self.data_distance.sd, sampling_data.sd
        )
        return int(math.copysign(1.0, difference)) if is_clear else 0


class BeliefPowers(StrictModel):
    """A judge's belief over a range of powers.

    Attributes:
        saved_power: the saved belief's power, relative to the fitted utility's own.
        saved_source: source of the saved power; "assumed noise level" or "convention" if nothing
            identifies it.
        identified_power: the power by answers other than comparisons of points, if there are any,
            relative to the fitted utility's own, with a 90 % interval.
        data_power: the power at which the data are most likely; None without data.
        beliefs: the belief at several powers, in increasing order.
        size: points on each side of the distances here.
        sampling_data_distance: Wasserstein-1 of λ from the data at that size; None without data.
        sampling_log_density: mean log density of λ at the data's rows, in the same unit; None
            without data.
        is_nearer: whether the belief is nearer to the data than λ at every power (true), farther at
            every power (false), or neither (None); also None without data.
    """

    saved_power: float
    saved_source: str
    identified_power: density.Power | None
    data_power: DataPower | None
    beliefs: list[BeliefAtPower]
    size: int
    sampling_data_distance: Estimate | None
    sampling_log_density: float | None
    is_nearer: bool | None = None

    @property
    def coherence(self) -> density.Coherence | None:
        """The judge's response to the width of ranges; None if none were asked about."""
        return None if self.identified_power is None else self.identified_power.coherence

    @property
    def is_identified(self) -> bool:
        """Whether the saved belief has the identified power.

        It has not if the interval of the identified power excludes no power.
        """
        return self.saved_source not in UNIDENTIFIED_SOURCES

    @property
    def scale_sources(self) -> str | None:
        """The sources that identify the belief's power; None if nothing does.

        Points alone do not: they tell at which power this fit is nearest to them.
        """
        if (
            self.identified_power is None
            or not self.is_identified
            or self.identified_power.source == "points"
        ):
            return None
        width = self.coherence
        if width is not None and not width.coherent and self.identified_power.source == "ranges":
            return None
        return self.identified_power.source


def measure_powers(
    evidence: PowerEvidence, reference: Reference, rng: np.random.Generator
) -> BeliefPowers:
    """Measure a belief's distances, likelihood, means and widths at several powers."""
    space, standardizer = reference.space, reference.standardizer
    sampling = space.round(reference.sampling)
    compared = sampling if reference.data is None else space.round(reference.data)
    size = common_size(_DISTANCE_POINTS, sampling, compared, *evidence.points_by_factor.values())
    low, high = space.scale_ends
    scales = np.where(space.categorical, high - low, (high - low) / standardizer.sd)
    log_uniform = -float(np.log(scales).sum())  # of a uniform law, per unit of every scale

    def subsample(columns: Floats) -> Floats:
        return columns[rng.choice(len(columns), size, replace=False)]

    def to_data(points: Floats) -> Estimate | None:
        if reference.data is None:
            return None
        x, y = standardizer(points), standardizer(compared)
        distances = [wasserstein(subsample(x), subsample(y)) for _ in range(_DISTANCE_REPEATS)]
        return estimate_from_repeats(distances)

    compared_numbers = standardizer.standardize_numbers(compared)
    compared_mean, compared_sd = compared_numbers.mean(axis=0), compared_numbers.std(axis=0)
    beliefs = []
    for factor, unrounded in sorted(evidence.points_by_factor.items()):
        points, log_density = space.round(unrounded), evidence.mean_log_density(factor)
        numbers = standardizer.standardize_numbers(points)
        shifts = numbers.mean(axis=0) - compared_mean
        widths = numbers.std(axis=0) / np.where(compared_sd > 0, compared_sd, 1.0)
        belief = BeliefAtPower(
            factor=factor,
            data_distance=to_data(points),
            log_density=None if log_density is None else log_density + log_uniform,
            mean_shifts=[finite_or_none(shift) for shift in shifts],
            sd_ratios=[finite_or_none(width) for width in widths],
        )
        beliefs.append(belief)
    sampling_distance, is_nearer = to_data(sampling), None
    if sampling_distance is not None:
        signs = {belief.compare_with_sampling(sampling_distance) for belief in beliefs}
        is_nearer = {frozenset({1}): True, frozenset({-1}): False}.get(frozenset(signs))
    data_power = sampling_log_density = None
    if evidence.data_utility is not None:
        data_power = _fit_data_power(evidence, evidence.data_utility)
        sampling_log_density = log_uniform + evidence.mean_log_sampling
    return BeliefPowers(
        saved_power=evidence.saved_power,
        saved_source=evidence.saved_source,
        identified_power=evidence.identified_power,
        data_power=data_power,
        beliefs=beliefs,
        size=size,
        sampling_data_distance=sampling_distance,
        sampling_log_density=sampling_log_density,
        is_nearer=is_nearer,
    )


def _fit_data_power(evidence: PowerEvidence, data: Floats) -> DataPower:
    """Return the power k that maximizes the mean of k u − log Z(k) over rows, with its interval.

    log Z is a spline through the powers evaluated.

    The interval's standard error is that of the rows' mean utility over the variance of the utility
    under the belief, the curvature of log Z.
    """
    factors = np.array(sorted(evidence.log_normalizers))
    logs = np.array([evidence.log_normalizers[factor] for factor in factors])
    spline = CubicSpline(factors, logs)
    grid = np.linspace(0.0, factors[-1], _GRID_POINTS)
    best = float(grid[int((grid * data.mean() - spline(grid)).argmax())])
    curvature = max(float(spline(best, 2)), 1e-12)
    error = 1.645 * float(data.std(ddof=1)) / math.sqrt(len(data)) / curvature
    return DataPower(
        value=best * evidence.saved_power,
        low=max(0.0, best - error) * evidence.saved_power,
        high=(best + error) * evidence.saved_power,
        is_maximum_inside=best < factors[-1],
    )
