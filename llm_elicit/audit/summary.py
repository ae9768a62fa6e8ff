"""Marginal summaries of samples and beliefs: means, quantiles, shares of categories; bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from llm_elicit.audit.standard import shares_of
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
