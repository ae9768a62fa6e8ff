"""A model's own density, from its probabilities of numbers, beside its choices and the data.

By the chain rule, the probabilities that a model gives the values of a row, one after the other
(`llm_elicit.backends.row_likelihood`), have the density of the point as their product, over the
volume of the points that are worded alike. No answer is stated, so that the density has a scale of
its own. It is the mean of the log density over two orders of the features. A text of another form
("five million", or more decimals) has a part of the probability, so that the density is a lower
bound and its log score is, too; whole numbers with more digits than the question's are counted.

*Slope.* If the choices follow the density, its log-ratios are k times the differences of the
belief's utility: k is the power of the belief by this source (`llm_elicit.density.fit_power`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import (
    Interval,
    fisher_interval,
    percentile_interval,
    share_interval,
    t_interval,
)
from llm_elicit.audit.responses import Response
from llm_elicit.audit.utility import auc
from llm_elicit.planning.direct_questions import likelihood_rows
from llm_elicit.planning.pairs import Plan
from llm_elicit.questions.numbers import RowLikelihood
from llm_elicit.spaces.features import FeatureSpace, Floats

_RESAMPLES = 400
_MIN_PAIRS = 5
"""Smallest number of pairs, or rows, from which a number is estimated."""


@dataclass(frozen=True)
class OwnDensity:
    """Log densities of points by the model's own probabilities, per unit of the features' scales.

    Attributes:
        pairs: the numbers of the pairs whose points both have a log density, `(n,)`.
        a, b: the points of these pairs, `(n, d)`, natural units.
        of_a, of_b: the log densities of these points by order of the features, `(n, o)`.
        rows: the rows of the table, `(m, d)`.
        of_rows: the log densities of these rows, `(m, o)`.
        is_bound: whether the log density of a point of the pair is only an upper bound, `(n,)`.
        bounds: number of points and rows whose log density is only an upper bound.
        others: the most that other tokenizations add to a log density, the mean over all points.
        belief_points, belief_rows: the log density of the belief at the points of all pairs, a
            first, and at the rows; None without a belief.
    """

    pairs: npt.NDArray[np.int64]
    a: Floats
    b: Floats
    of_a: Floats
    of_b: Floats
    rows: Floats
    of_rows: Floats
    is_bound: npt.NDArray[np.bool_]
    bounds: int
    others: float
    belief_points: Floats | None = None
    belief_rows: Floats | None = None

    @classmethod
    def read(
        cls, table: pd.DataFrame | None, judge: str, space: FeatureSpace, seed: int, plan: Plan
    ) -> OwnDensity | None:
        """Read a judge's likelihoods from a run's table of direct answers; None without any.

        Points with answers for all orders of the features are used.
        """
        if table is None:
            return None
        answers = table[(table["judge"] == judge) & (table["kind"] == "likelihood")]
        if not len(answers):
            return None
        orders = min(space.dimension, 2)
        scored = likelihood_rows(space, seed) if (answers["order"] == "row").any() else plan.a[:0]
        points = {"a": plan.a, "b": plan.b, "row": scored}
        values: dict[tuple[str, int], Floats] = {}
        bounded: set[tuple[str, int]] = set()
        others = []
        columns = ("order", "number", "replicate", "reply")
        for side, number, order, reply in zip(*(answers[c] for c in columns), strict=True):
            read = RowLikelihood.read(reply)
            if read is None:
                continue
            others.append(read.others)
            by_order = values.setdefault((side, number), np.full(orders, np.nan))
            by_order[order] = read.log_prob - space.log_cells(points[side][number])[0]
            if read.is_bound:
                bounded.add((side, number))
        finite = {key: by_order for key, by_order in values.items() if np.isfinite(by_order).all()}
        pairs = sorted(n for side, n in finite if side == "a" and ("b", n) in finite)
        rows = sorted(n for side, n in finite if side == "row")

        def of(side: str, numbers: list[int]) -> Floats:
            return np.array([finite[side, number] for number in numbers]).reshape(-1, orders)

        return cls(
            np.array(pairs, dtype=np.int64), plan.a[pairs], plan.b[pairs], of("a", pairs),
            of("b", pairs), scored[rows], of("row", rows),
            np.array([("a", n) in bounded or ("b", n) in bounded for n in pairs], dtype=bool),
            len(bounded), float(np.mean(others)) if others else 0.0,
        )  # fmt: skip

    @property
    def log_ratios(self) -> tuple[Floats, Floats, Floats] | None:
        """Points of pairs and the log-ratio of their densities, for `fit_power`.

        Pairs with a bound are left out; None if fewer than five are left.
        """
        exact = ~self.is_bound
        if exact.sum() < _MIN_PAIRS:
            return None
        return self.a[exact], self.b[exact], (self.of_a - self.of_b).mean(axis=1)[exact]

    def with_belief(self, belief: density.BeliefDensity) -> OwnDensity:
        """Return the densities with those of a belief at the same points."""
        points = np.concatenate([self.a, self.b, self.rows])
        logs = belief.log_prob(points) - belief.sampling.log_scale_derivative(points)
        split = 2 * len(self.pairs)
        return replace(self, belief_points=logs[:split], belief_rows=logs[split:])


class OwnDensityAudit(StrictModel):
    """A model's own density beside its choices and the data.

    Attributes:
        pairs, rows: the numbers of pairs and of rows of the table.
        bounds: number of points whose log density is only an upper bound; they are left out of the
            comparison with the choices.
        others: the most that other tokenizations add to a log density, nats.
        order_correlation: the correlation of the log densities of all points under both orders of
            the features; None for one feature.
        correlation: correlation of the log-ratios of the density with the responses of the choices.
        agreement: the share of pairs on which density and choices prefer the same point.
        slope: the power of the belief by the density, with its 95 % interval; None without a fit.
        auc, belief_auc: the probability that a row of the table has a higher density than a point
            of a pair, a draw from λ.
        log_score, belief_log_score: the mean log density of the rows above that of a uniform
            density on the ranges, nats a row.
    """

    pairs: int
    rows: int
    bounds: int
    others: float
    order_correlation: float | None
    correlation: Interval | None
    agreement: Interval | None
    slope: Interval | None
    auc: Interval | None
    belief_auc: Interval | None
    log_score: Interval | None
    belief_log_score: Interval | None


def measure_own_density(
    own: OwnDensity,
    response: Response,
    power: density.Power | None,
    space: FeatureSpace,
    rng: np.random.Generator,
) -> OwnDensityAudit:
    """Compare a model's own density with its choices, its belief and the data.

    Args:
        own: the density.
        response: the judge's answers about pairs.
        power: the power of the belief by direct answers, if it was fitted.
        space: the feature space.
        rng: generator of the bootstrap.
    """
    _, indices, answered = np.intersect1d(
        own.pairs[~own.is_bound], response.pair, return_indices=True
    )
    ratios = (own.of_a - own.of_b).mean(axis=1)[~own.is_bound][indices]
    values = response.value[answered]
    decided = (values != 0.0) & (ratios != 0.0)
    sources = () if power is None else (power.sources or (power,))
    slope = next((source for source in sources if source.source == "likelihood"), None)
    of_points = np.concatenate([own.of_a, own.of_b]).mean(axis=1)
    of_rows, by_order = own.of_rows.mean(axis=1), np.concatenate([own.of_a, own.of_b, own.of_rows])
    low, high = space.scale_ends
    uniform = -float(np.log(high - low).sum())
    belief_points, belief_rows = own.belief_points, own.belief_rows
    return OwnDensityAudit(
        pairs=len(own.pairs),
        rows=len(own.rows),
        bounds=own.bounds,
        others=own.others,
        order_correlation=_correlation(*by_order.T) if by_order.shape[1] > 1 else None,
        correlation=_correlation_interval(ratios, values),
        agreement=share_interval((np.sign(values) == np.sign(ratios))[decided]),
        slope=None if slope is None else _power_interval(slope),
        auc=_auc_interval(of_rows, of_points, rng),
        belief_auc=None
        if belief_rows is None or belief_points is None
        else _auc_interval(belief_rows, belief_points, rng),
        log_score=_mean_above(of_rows, uniform),
        belief_log_score=None if belief_rows is None else _mean_above(belief_rows, uniform),
    )


def _power_interval(power: density.Power) -> Interval:
    """Return a power with its 95 % interval, in which its logarithm is normal."""
    factor = math.exp(1.96 * power.log_sd)
    return Interval(value=power.value, low=power.value / factor, high=power.value * factor)


def _correlation(x: Floats, y: Floats) -> float | None:
    """Return Pearson's correlation; None with fewer than five points, or if one is constant."""
    if len(x) < _MIN_PAIRS or not x.std() > 0.0 or not y.std() > 0.0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _correlation_interval(x: Floats, y: Floats) -> Interval | None:
    """Return Pearson's correlation with Fisher's 95 % interval."""
    value = _correlation(x, y)
    if value is None:
        return None
    limit = 1.0 - 1e-12
    return fisher_interval(min(max(value, -limit), limit), len(x))


def _auc_interval(rows: Floats, points: Floats, rng: np.random.Generator) -> Interval | None:
    """Return the area under the curve with its bootstrap interval over rows and points."""
    if min(len(rows), len(points)) < _MIN_PAIRS:
        return None
    draws = [
        auc(rng.choice(rows, len(rows)), rng.choice(points, len(points))) for _ in range(_RESAMPLES)
    ]
    return percentile_interval(auc(rows, points), draws)


def _mean_above(values: Floats, base: float) -> Interval | None:
    return t_interval(values - base) if len(values) >= _MIN_PAIRS else None
