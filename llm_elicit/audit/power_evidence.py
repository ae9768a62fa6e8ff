"""A belief evaluated at powers from a quarter to four times its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from pydantic import TypeAdapter
from scipy.special import logsumexp

from llm_elicit import density
from llm_elicit._util.read_files import read_points
from llm_elicit.spaces.features import FeatureSpace, Floats

FACTORS = tuple(2.0 ** (k / 2) for k in range(-4, 5))
"""Powers evaluated, as multiples of the saved belief's."""
UNIDENTIFIED = ("assumed noise level", "convention")
"""Sources of a saved belief's power if no other answers identify it."""

_LARGEST = 64.0
_COUNT = 4000
_LEAST_EFFECTIVE = 400
_FLATTEST = 1e-6


class _Law(Protocol):
    def log_prob(self, x: Floats) -> Floats: ...


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
    some = points[rng.permutation(len(points))[: 2 * _COUNT]]
    both = np.concatenate([some, belief.sampling.sample(len(some), rng)])
    tempering = _Tempering.of(belief, space, both[len(some) :], seed)
    utility, taper = tempering.utility(both)
    proposal = np.logaddexp(
        tempering.relative(belief, both), tempering.relative(belief.sampling, both)
    )
    proposal -= math.log(2.0)
    drawn, logs = {}, {}
    for factor in (0.0, *FACTORS):
        exponents = factor * utility + taper - proposal
        weights = np.exp(exponents - exponents.max())
        if factor != 1.0 and weights.sum() ** 2 / (weights**2).sum() < _LEAST_EFFECTIVE:
            other, logs[factor] = tempering.at(factor)
            drawn[factor] = other.sample(_COUNT, seed=seed)
            continue
        logs[factor] = float(logsumexp(exponents) - math.log(len(both)))
        rows = rng.choice(len(both), _COUNT, p=weights / weights.sum())
        drawn[factor] = some[:_COUNT] if factor == 1.0 else both[rows]
    found = PowerEvidence(
        saved=belief.power,
        source=str(belief.diagnostics.get("power", {}).get("source", UNIDENTIFIED[0])),
        identified=identified,
        points={factor: drawn[factor] for factor in FACTORS},
        log_normalizers=logs,
        data=None,
    )
    if data is None:
        return found
    at_data, taper = tempering.utility(data)
    return replace(
        found,
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

    def relative(self, law: _Law, points: Floats) -> Floats:
        """Return log densities `(n,)` relative to the uniform law on the box."""
        slope = self.belief.sampling.log_scale_slope(points)
        return law.log_prob(points) - slope - self.flat

    def at(self, factor: float) -> tuple[density.BeliefDensity, float]:
        """Return the belief at a power, and its log Z, from its density at one point."""
        other = self.belief.tempered(max(factor, _FLATTEST), seed=self.seed)
        at = other.sample(1)
        utility, taper = self.utility(at)
        return other, float((factor * utility + taper - self.relative(other, at))[0])

    def extended(self, logs: Mapping[float, float], data: Floats) -> dict[float, float]:
        """Return log Z also of larger powers, until the data are less likely than before."""
        found = dict(logs)
        last, factor = FACTORS[-2], FACTORS[-1]
        while (factor - last) * data.mean() > found[factor] - found[last] and factor < _LARGEST:
            last, factor = factor, 2.0 * factor
            _, found[factor] = self.at(factor)
        return found


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
