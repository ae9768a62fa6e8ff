"""Does the belief's densest region of mass q hold a share q of the data?

The *level* of a row of the data is the belief's mass that is denser than the row. Were the data
drawn from the belief, levels would be even over 0..1, whatever the dimension: a curve of the share
of rows within each region against its mass is the diagonal. Below it the belief is too narrow or in
the wrong place, above it too wide.

What a fit foretells of choices it never saw, beside what it must beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kstwo

from llm_elicit import density
from llm_elicit.audit.inference import Interval, wilson
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats

MASSES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_CURVE = 51
_ROWS = 4000


class Region(StrictModel):
    """The densest region of a mass, and the share of the data it holds, with Wilson's interval."""

    mass: float
    holds: Interval


class DataCoverage(StrictModel):
    """The data against the belief's densest regions.

    Attributes:
        rows: how many rows of the data were looked at.
        regions: some of the regions.
        curve: the share held by regions of mass 0, 0.02, ..., 1.
        error: mean |share held - mass| over the curve; 0 for a perfect belief.
        p_value: that levels are even, by Kolmogorov and Smirnov's test of two samples: the belief
            is known by its draws alone.
    """

    rows: int
    regions: list[Region]
    curve: list[float]
    error: float
    p_value: float


@dataclass(frozen=True)
class DataLevels:
    """Levels `(n,)` of rows of the data, by so many draws of the belief."""

    values: Floats
    draws: int


def data_levels(
    belief: density.BeliefDensity, space: FeatureSpace, points: Floats
) -> DataLevels | None:
    """Levels of the table's rows, at most 4000, under a belief with these samples `(m, d)`.

    Densities are per unit of each feature's scale. None for a space without a table.
    """
    if space.table is None:
        return None
    rng = np.random.default_rng(0xC0FE)
    slope = belief.sampling.log_scale_slope

    def log_density(some: Floats) -> Floats:
        kept = rng.permutation(some)[:_ROWS]
        return belief.log_prob(kept) - slope(kept)

    drawn = log_density(points)
    return DataLevels(levels_of(log_density(space.table_points()), drawn, rng), len(drawn))


def levels_of(
    log_density_of_data: Floats, log_density_of_belief: Floats, rng: np.random.Generator
) -> Floats:
    """Each row's level `(n,)`: the share of belief draws that are denser than it.

    Among draws as dense as it, to five decimals, its place is drawn: a flat belief has no
    densest region, and any region of its mass will do.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> levels_of(np.array([0.0, -9.0]), np.array([-1.0, -2.0, 1.0, -3.0]), rng).tolist()
        [0.25, 1.0]
    """
    data, ranked = (np.round(some, 5) for some in (log_density_of_data, log_density_of_belief))
    ranked = np.sort(ranked)
    most, least = (len(ranked) - np.searchsorted(ranked, data, side=s) for s in ("left", "right"))
    return np.asarray((least + rng.uniform(size=len(data)) * (most - least)) / len(ranked))


def measure_data_coverage(levels: DataLevels) -> DataCoverage:
    """From the levels of the data's rows.

    Example:
        >>> even = measure_data_coverage(DataLevels((np.arange(400) + 0.5) / 400, 4000))
        >>> narrow = measure_data_coverage(DataLevels(np.full(400, 0.97), 4000))
        >>> even.error < 0.01, narrow.error > 0.4
        (True, True)
    """
    masses, values, rows = np.linspace(0.0, 1.0, _CURVE), levels.values, len(levels.values)
    held = np.searchsorted(np.sort(values), masses, side="right") / rows
    return DataCoverage(
        rows=rows,
        regions=[
            Region(mass=mass, holds=wilson(float((values <= mass).mean()), rows)) for mass in MASSES
        ],
        curve=held.tolist(),
        error=float(np.abs(held - masses).mean()),
        p_value=_p_value(levels),
    )


def _p_value(levels: DataLevels) -> float:
    """Of two samples: the greatest distance of the levels from even ones, by the effective size.

    Rows and draws scatter both, as one sample of n m / (n + m) does alone.
    """
    ranked, n = np.sort(levels.values), len(levels.values)
    above, below = np.arange(1, n + 1) / n - ranked, ranked - np.arange(n) / n
    size = max(1, round(n * levels.draws / (n + levels.draws)))
    return float(kstwo.sf(max(above.max(), below.max()), size))


class NullModel(StrictModel):
    """A model to beat: its log-likelihood, and by how much the belief beats it.

    Attributes:
        name: "coin"; "sampling density" (λ for a belief), where that is no coin; "places", where
            they were told; "quadratic".
        log_likelihood: nats a comparison.
        gain: the belief's less this one's, with its 95 % interval over pairs; None where the two
            were not paired, or are the same.
    """

    name: str
    log_likelihood: float
    gain: Interval | None = None


class CalibrationBin(StrictModel):
    """Held-out choices whose likelier side was foretold with about the same probability.

    Attributes:
        share: of all held-out choices.
        foretold: the mean probability.
        found: how often that side was chosen.
    """

    share: float
    foretold: float
    found: float


class Foretold(StrictModel):
    """How well choices held out of the fit are foretold.

    Attributes:
        log_likelihood: the belief's, nats a comparison.
        nulls: what it must beat.
        calibration: how often choices foretold with a probability came true.
        calibration_error: mean |found - foretold|.
    """

    log_likelihood: float
    nulls: list[NullModel]
    calibration: list[CalibrationBin]
    calibration_error: float


def read_foretold(diagnostics: Mapping[str, Any]) -> Foretold | None:
    """From what a fit says of itself; None where it says nothing of it (a flow)."""
    utility, nulls = diagnostics.get("utility"), diagnostics.get("null_models")
    if not utility or not nulls or "calibration" not in utility:
        return None
    told = "judging" in utility
    gains = {"places" if told else "coin": utility["gains"]["constant"]}
    if utility["form"] != "quadratic":
        gains["quadratic"] = utility["gains"]["quadratic"]
    coin, table = nulls["coin"], utility["calibration"]
    shown = {
        name: value
        for name, value in nulls.items()
        if (name != "places" or told) and (name != "sampling density" or abs(value - coin) > 1e-9)
    }
    return Foretold(
        log_likelihood=diagnostics["held_out_log_likelihood"],
        nulls=[
            NullModel(name=name, log_likelihood=value, gain=_interval(gains.get(name)))
            for name, value in shown.items()
        ],
        calibration=[CalibrationBin(**row) for row in table["bins"]],
        calibration_error=table["error"],
    )


def _interval(gain: Mapping[str, float] | None) -> Interval | None:
    if gain is None:
        return None
    mean, half = gain["mean"], 1.96 * gain["se"]
    return Interval(value=mean, low=mean - half, high=mean + half)
