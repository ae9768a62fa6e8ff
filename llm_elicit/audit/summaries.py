"""Marginal summaries of samples and beliefs: means, quantiles, shares of categories; bands.

How sure a belief is of its own numbers: credible bands over draws of its posterior.

A band holds the middle of what the same answers allow (`llm_elicit.density.BeliefDraws`), feature
by feature and for every two of them; many bands together hold the truth less often than each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field
from scipy.ndimage import gaussian_filter1d

from llm_elicit import density
from llm_elicit._util.read_files import read_points
from llm_elicit.audit.scales import bin_edges, bin_widths, shares_of
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Band = tuple[float, float]


class FeatureSummary(StrictModel):
    """One feature of one sample, natural units."""

    name: str
    mean: float
    sd: float
    q05: float
    q25: float
    q50: float
    q75: float
    q95: float


class CategorySummary(StrictModel):
    """The shares of a categorical feature's words in one sample."""

    name: str
    shares: dict[str, float]


Summary = FeatureSummary | CategorySummary


class FeatureBands(StrictModel):
    """One feature's bands, natural units: its mean and its quantiles."""

    name: str
    mean: Band
    q05: Band
    q25: Band
    q50: Band
    q75: Band
    q95: Band


class CategoryBands(StrictModel):
    """The bands of the shares of a categorical feature's words."""

    name: str
    shares: dict[str, Band]


Bands = FeatureBands | CategoryBands


class MarginalBand(StrictModel):
    """The band of one feature's density, per unit of its scale, at `at` (natural units).

    Of a categorical feature, of its shares, at the codes.
    """

    name: str
    at: list[float]
    low: list[float]
    high: list[float]


class Pair(StrictModel):
    """Two features that may hang together: a number on its scale, or whether it is a category.

    Attributes:
        first, second: the features.
        first_category, second_category: the category that is or is not had; None of a number.
    """

    first: str
    second: str
    first_category: str | None = None
    second_category: str | None = None

    @property
    def sides(self) -> tuple[tuple[str, str | None], ...]:
        """Feature and category, of the first and the second."""
        return (self.first, self.first_category), (self.second, self.second_category)


class CorrelationBand(Pair):
    """The band of the correlation of two features."""

    correlation: Band


class BeliefBands(StrictModel):
    """A belief's bands of one level over so many draws.

    `correlations` has every two features once, in the order of the space, those of categories
    once a category; none in bands that were measured before there were any.
    """

    level: Annotated[float, Field(gt=0, lt=1)]
    draws: int
    features: list[Bands]
    marginals: list[MarginalBand]
    correlations: tuple[CorrelationBand, ...] = ()


def summarize(points: Floats, space: FeatureSpace) -> list[Summary]:
    """Each feature of a sample `(n, d)`, in the order of the space."""
    quantiles = np.quantile(points, QUANTILES, axis=0)
    return [
        CategorySummary(
            name=feature.name, shares=by_word(feature, shares_of(points[:, column], feature))
        )
        if feature.categories
        else FeatureSummary(
            name=feature.name,
            mean=float(points[:, column].mean()),
            sd=float(points[:, column].std(ddof=1)),
            **{
                f"q{round(100 * q):02d}": float(quantiles[k, column])
                for k, q in enumerate(QUANTILES)
            },
        )
        for column, feature in enumerate(space.features)
    ]


def by_word(feature: Feature, shares: Floats) -> dict[str, float]:
    """Shares `(K,)` by the categories' words."""
    return dict(zip(feature.categories, shares.tolist(), strict=True))


def side_by_side(summaries: Mapping[str, list[Summary]]) -> pd.DataFrame:
    """A tidy table: a row a feature and sample, columns feature, sample, mean, sd, q05 ... q95.

    Of a categorical feature there is a row a category and sample, with columns category and share
    in place of these.

    Args:
        summaries: by the sample's name ("data", "belief", ...).
    """
    records: list[dict[str, object]] = []
    for sample, rows in summaries.items():
        for row in rows:
            of = {"feature": row.name, "sample": sample}
            if isinstance(row, CategorySummary):
                records += [of | {"category": k, "share": p} for k, p in row.shares.items()]
            else:
                records.append(of | row.model_dump(exclude={"name"}))
    frame = pd.DataFrame(records)
    order = {name: place for place, name in enumerate(dict.fromkeys(frame["feature"]))}
    return frame.sort_values(
        "feature", key=lambda column: column.map(order), kind="stable", ignore_index=True
    )


Index = npt.NDArray[np.int64]
BINS = 60
"""Bins of a drawn marginal."""
KEPT = 1000
"""Points kept of each draw: as many as distances between densities are measured on."""


def measure_bands(
    draws: density.BeliefDraws, space: FeatureSpace, level: float = 0.9
) -> BeliefBands:
    """Bands of means, quantiles, marginals and correlations, in the order of the space.

    Of categorical features, of the shares.
    """
    marginals = [_marginal(draws, space, column, level) for column in range(space.dimension)]
    means = density.band(draws.mean(), level)
    quantiles = density.band(draws.quantile(QUANTILES), level)
    features: list[Bands] = []
    for column, (feature, marginal) in enumerate(zip(space.features, marginals, strict=True)):
        if feature.categories:
            ends = zip(marginal.low, marginal.high, strict=True)
            shares = dict(zip(feature.categories, ends, strict=True))
            features.append(CategoryBands(name=feature.name, shares=shares))
            continue
        each = {
            f"q{round(100 * q):02d}": (
                float(quantiles[0][k, column]),
                float(quantiles[1][k, column]),
            )
            for k, q in enumerate(QUANTILES)
        }
        mean = (float(means[0][column]), float(means[1][column]))
        features.append(FeatureBands(name=feature.name, mean=mean, **each))
    return BeliefBands(
        level=level,
        draws=len(draws),
        features=features,
        marginals=marginals,
        correlations=_correlations(draws, space, level),
    )


def write_draws(draws: density.BeliefDraws, space: FeatureSpace, path: Path) -> None:
    """Write `KEPT` points of each draw, one after the other, as Parquet; see `read_draws`."""
    both = zip(draws.points, draws.weights, strict=True)
    points = np.concatenate([x[_evenly(weights, KEPT)] for x, weights in both])
    pd.DataFrame(points.astype(np.float32), columns=space.names).to_parquet(path)


def read_draws(path: Path) -> Floats | None:
    """Points `(S, KEPT, d)`, natural units, of the densities that the answers allow.

    None where there is no such file: of a method without draws, or of an older fit.
    """
    if not path.is_file():
        return None
    points = read_points(path, multiple=KEPT)
    return points.reshape(-1, KEPT, points.shape[1])


def _evenly(weights: Floats, count: int) -> Index:
    """Rows (count,) of points with weights (m,) that sum to one, each about its share of times."""
    cuts = (np.arange(count) + 0.5) / count
    return np.searchsorted(np.cumsum(weights), cuts).clip(max=len(weights) - 1)


def smoothed(densities: Floats) -> Floats:
    """Histogram densities (..., bins) as lines are drawn, no mass leaking out of the range."""
    return np.asarray(gaussian_filter1d(densities, 1.5, mode="reflect"))


def _marginal(
    draws: density.BeliefDraws, space: FeatureSpace, column: int, level: float
) -> MarginalBand:
    feature = space.features[column]
    edges = bin_edges(feature, BINS)
    curves = draws.marginal(column, edges) / bin_widths(feature, edges)
    if not feature.categories:  # which have no neighbours
        curves = smoothed(curves)
    low, high = density.band(curves, level)
    centres = (edges[:-1] + edges[1:]) / 2
    return MarginalBand(
        name=feature.name, at=centres.tolist(), low=low.tolist(), high=high.tolist()
    )


def _correlations(
    draws: density.BeliefDraws, space: FeatureSpace, level: float
) -> tuple[CorrelationBand, ...]:
    both = zip(draws.points, draws.weights, strict=True)
    drawn = np.stack([correlation_matrix(associable(space, x), w) for x, w in both])
    low, high = density.band(drawn, level)
    return tuple(
        CorrelationBand(**pair.model_dump(), correlation=(float(low[i, j]), float(high[i, j])))
        for i, j, pair in pairs_of(space)
    )


def pairs_of(space: FeatureSpace) -> list[tuple[int, int, Pair]]:
    """Every two of the columns of `associable` that are of different features, and their names."""
    return [
        (i, j, _pair(space, one, other))
        for (i, one), (j, other) in combinations(enumerate(_columns(space)), 2)
        if one[0] != other[0]
    ]


def associable(space: FeatureSpace, points: Floats) -> Floats:
    """Columns `(n, c)` of points `(n, d)`: numbers on their scale, 1 or 0 for each category.

    Two categories have one column, of the second: the first is had where it is not.
    """
    scaled = space.to_scale(points)
    return np.column_stack([
        scaled[:, place]
        if category is None
        else (points[:, place] == space.features[place].code(category)).astype(np.float64)
        for place, category in _columns(space)
    ])  # fmt: skip


def _pair(space: FeatureSpace, one: _Column, other: _Column) -> Pair:
    (first, first_category), (second, second_category) = one, other
    return Pair(
        first=space.names[first],
        first_category=first_category,
        second=space.names[second],
        second_category=second_category,
    )


def _columns(space: FeatureSpace) -> list[_Column]:
    """The place of the feature, and the category if it has them, of each column."""
    return [
        (place, category)
        for place, feature in enumerate(space.features)
        for category in feature.categories[len(feature.categories) == 2 :] or (None,)
    ]


def correlation_matrix(points: Floats, weights: Floats | None = None) -> Floats:
    """Pearson's correlations `(d, d)` of points `(m, d)` with weights `(m,)` that sum to one.

    A feature that never varies hangs together with none: its correlations are 0.

    Example:
        >>> points = np.array([[0.0, 0.0, 7.0], [1.0, 2.0, 7.0], [5.0, -4.0, 7.0]])
        >>> correlation_matrix(points, np.array([0.5, 0.5, 0.0]))[0].tolist()
        [1.0, 1.0, 0.0]
    """
    weights = np.full(len(points), 1.0 / len(points)) if weights is None else weights
    z = standardized(points, weights)
    return np.clip((weights[:, None] * z).T @ z, -1.0, 1.0)


def standardized(points: Floats, weights: Floats) -> Floats:
    """Columns of mean 0 and variance 1, or of zeros where they never vary."""
    mean = weights @ points
    centred = points - mean
    sd = np.sqrt(weights @ centred**2)
    # Rounding leaves a constant column a sd of some ulps, not 0.
    return np.asarray(centred / np.where(sd > _TINY * np.maximum(1.0, np.abs(mean)), sd, np.inf))


_Column = tuple[int, str | None]


_TINY = 1e-12
