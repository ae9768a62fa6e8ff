"""Two calibration checks: of the belief against the data, and of its predictions of choices.

*Data coverage.* The level of a row of the data is the belief's mass in the highest-density region
that ends at the row. If the data were drawn from the belief, levels would be uniform on [0, 1],
whatever the dimension: the share of rows within each region against its mass is the diagonal. Below
it the belief is too narrow or in the wrong place, above it too wide.

*Predictive check.* Choices that were held out of the fit, against the predicted probabilities and
against simpler models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from llm_elicit import density
from llm_elicit.audit.inference import Interval, normal_interval, wilson
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import FeatureSpace, Floats

MASSES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_CURVE = 51
_ROWS = 4000


class Region(StrictModel):
    """The highest-density region of a mass, and the share of the data in it (Wilson's interval)."""

    mass: float
    data_share: Interval


class DataCoverage(StrictModel):
    """The data against the belief's highest-density regions.

    Attributes:
        rows: number of rows of the data used.
        regions: some of the regions.
        curve: the share of the data in regions of mass 0, 0.02, ..., 1.
        error: mean |share − mass| over the curve; 0 for a perfect belief.
        p_value: that levels are uniform, by the two-sample Kolmogorov–Smirnov test: the belief is
            known by its draws only.
    """

    rows: int
    regions: list[Region]
    curve: list[float]
    error: float
    p_value: float


@dataclass(frozen=True)
class DataLevels:
    """Levels `(n,)` of rows of the data, from this number of draws of the belief."""

    values: Floats
    draws: int


def data_levels(
    belief: density.BeliefDensity, space: FeatureSpace, points: Floats
) -> DataLevels | None:
    """Return levels of at most 4000 of the table's rows under a belief with samples `(m, d)`.

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
    values = density_levels(log_density(space.table_points()), drawn, rng)
    return DataLevels(values, len(drawn))


def density_levels(data: Floats, belief: Floats, rng: np.random.Generator) -> Floats:
    """Return each row's level `(n,)`: the share of belief draws with a higher density.

    Among draws of the same density, to five decimals, the row's rank is drawn at random: in a flat
    belief the highest-density region is not unique.

    Args:
        data, belief: log densities of the belief at rows of the data `(n,)` and at its own draws.
        rng: breaks ties.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> density_levels(np.array([0.0, -9.0]), np.array([-1.0, -2.0, 1.0, -3.0]), rng).tolist()
        [0.25, 1.0]
    """
    data, ranked = (np.round(some, 5) for some in (data, belief))
    ranked = np.sort(ranked)
    most, least = (len(ranked) - np.searchsorted(ranked, data, side=s) for s in ("left", "right"))
    return np.asarray((least + rng.uniform(size=len(data)) * (most - least)) / len(ranked))


def measure_data_coverage(levels: DataLevels) -> DataCoverage:
    """Measure coverage from the levels of the data's rows.

    Example:
        >>> uniform = measure_data_coverage(DataLevels((np.arange(400) + 0.5) / 400, 4000))
        >>> narrow = measure_data_coverage(DataLevels(np.full(400, 0.97), 4000))
        >>> uniform.error < 0.01, narrow.error > 0.4
        (True, True)
    """
    masses, values, rows = np.linspace(0.0, 1.0, _CURVE), levels.values, len(levels.values)
    shares = np.searchsorted(np.sort(values), masses, side="right") / rows
    return DataCoverage(
        rows=rows,
        regions=[
            Region(mass=mass, data_share=wilson(float((values <= mass).mean()), rows))
            for mass in MASSES
        ],
        curve=shares.tolist(),
        error=float(np.abs(shares - masses).mean()),
        p_value=_uniformity_p_value(levels),
    )


def _uniformity_p_value(levels: DataLevels) -> float:
    """Return p of the Kolmogorov–Smirnov test with the effective size n m / (n + m).

    Rows and draws both vary, as much as one sample of that size does alone.
    """
    n = len(levels.values)
    size = max(1, round(n * levels.draws / (n + levels.draws)))
    return float(stats.kstwo.sf(stats.kstest(levels.values, "uniform").statistic, size))


class NullModel(StrictModel):
    """A simpler model: its log-likelihood, and the belief's gain over it.

    Attributes:
        name: "random choices"; "sampling density" (λ as the belief), if that differs; "position",
            if the fit knew positions; "quadratic".
        log_likelihood: nats per comparison.
        gain: the belief's minus this one's, with its 95 % interval over pairs; None if the two
            were not compared by pairs, or are the same.
    """

    name: str
    log_likelihood: float
    gain: Interval | None = None


class CalibrationBin(StrictModel):
    """Held-out choices whose likelier side was predicted with about the same probability.

    Attributes:
        share: of all held-out choices.
        predicted: the mean predicted probability.
        observed: how often that side was chosen.
    """

    share: float
    predicted: float
    observed: float


class PredictiveCheck(StrictModel):
    """How well choices held out of the fit are predicted.

    Attributes:
        log_likelihood: the belief's, nats per comparison.
        null_models: simpler models.
        calibration: predicted and observed frequencies, by bins of the predicted probability.
        calibration_error: mean |observed − predicted|.
    """

    log_likelihood: float
    null_models: list[NullModel]
    calibration: list[CalibrationBin]
    calibration_error: float


def read_predictive_check(diagnostics: Mapping[str, Any]) -> PredictiveCheck | None:
    """Return the predictive check in a fit's diagnostics; None if they have none (a flow)."""
    utility, nulls = diagnostics.get("utility"), diagnostics.get("null_models")
    if not utility or not nulls or "calibration" not in utility:
        return None
    nulls = dict(nulls)
    has_positions = "judging" in utility
    constant = "position" if has_positions else "random choices"
    gains = {constant: utility["gains"]["constant"], "quadratic": utility["gains"].get("quadratic")}
    if not has_positions:
        nulls.pop("position", None)
    if abs(nulls.get("sampling density", np.inf) - nulls["random choices"]) <= 1e-9:
        del nulls["sampling density"]
    return PredictiveCheck(
        log_likelihood=diagnostics["held_out_log_likelihood"],
        null_models=[
            NullModel(name=name, log_likelihood=value, gain=_gain(gains.get(name)))
            for name, value in nulls.items()
        ],
        calibration=[CalibrationBin(**row) for row in utility["calibration"]["bins"]],
        calibration_error=utility["calibration"]["error"],
    )


def _gain(gain: Mapping[str, float] | None) -> Interval | None:
    return None if gain is None else normal_interval(gain["mean"], gain["se"])
