"""How sure a belief is of its own numbers: credible bands over draws of its posterior.

A band holds the middle of what the same answers allow (`llm_elicit.density.BeliefDraws`), feature
by feature and for every two of them; many bands together hold the truth less often than each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.ndimage import gaussian_filter1d

from llm_elicit import density
from llm_elicit._util.read_files import read_points
from llm_elicit.audit.distance import bin_edges, bin_widths
from llm_elicit.audit.shape import associable, correlation_matrix, pairs_of
from llm_elicit.audit.summary import (
    QUANTILES,
    Bands,
    BeliefBands,
    CategoryBands,
    CorrelationBand,
    FeatureBands,
    MarginalBand,
)
from llm_elicit.spaces.features import FeatureSpace, Floats

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
