"""Marginal summaries of samples and beliefs, natural units: means, quantiles, their bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from llm_elicit.features import FeatureSpace, Floats, Strict

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
Band = tuple[float, float]


class FeatureSummary(Strict):
    """One feature of one sample, natural units."""

    name: str
    mean: float
    sd: float
    q05: float
    q25: float
    q50: float
    q75: float
    q95: float


class FeatureBands(Strict):
    """One feature's bands, natural units: its mean and its quantiles."""

    name: str
    mean: Band
    q05: Band
    q25: Band
    q50: Band
    q75: Band
    q95: Band


class MarginalBand(Strict):
    """The band of one feature's density, per unit of its scale, at `at` (natural units)."""

    name: str
    at: list[float]
    low: list[float]
    high: list[float]


class CorrelationBand(Strict):
    """The band of the correlation of two features, each on its scale."""

    first: str
    second: str
    correlation: Band


class BeliefBands(Strict):
    """A belief's bands of one level over so many draws.

    `correlations` has every two features once, in the order of the space; none in bands that
    were measured before there were any.
    """

    level: Annotated[float, Field(gt=0, lt=1)]
    draws: int
    features: list[FeatureBands]
    marginals: list[MarginalBand]
    correlations: tuple[CorrelationBand, ...] = ()


def summarize(points: Floats, space: FeatureSpace) -> list[FeatureSummary]:
    """Each feature of a sample `(n, d)`, in the order of the space."""
    quantiles = np.quantile(points, QUANTILES, axis=0)
    return [
        FeatureSummary(
            name=name,
            mean=float(points[:, column].mean()),
            sd=float(points[:, column].std(ddof=1)),
            **{
                f"q{round(100 * q):02d}": float(quantiles[k, column])
                for k, q in enumerate(QUANTILES)
            },
        )
        for column, name in enumerate(space.names)
    ]


def side_by_side(summaries: Mapping[str, list[FeatureSummary]]) -> pd.DataFrame:
    """A tidy table: a row a feature and sample, columns feature, sample, mean, sd, q05 ... q95.

    Args:
        summaries: by the sample's name ("data", "belief", ...).
    """
    records = [
        {"feature": row.name, "sample": sample, **row.model_dump(exclude={"name"})}
        for sample, rows in summaries.items()
        for row in rows
    ]
    frame = pd.DataFrame(records)
    order = {name: place for place, name in enumerate(dict.fromkeys(frame["feature"]))}
    return frame.sort_values(
        "feature", key=lambda column: column.map(order), kind="stable", ignore_index=True
    )
