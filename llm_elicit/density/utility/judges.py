"""Terms of the judges beside their belief: order bias, noise levels, ties.

Given predicted differences of utility, the few terms maximize their posterior under weak normal
priors. The differences are cross-validated: those fitted to the same choices are too large, and
would make the terms too large. Terms and utility are estimated in turns.

*Rankings* are comparisons by the Plackett–Luce model: a judge picks the best of m, then the best of
the rest. The score (the gradient of the log-likelihood) of one pick w among S is

    ∇f_w − Σ_j π_j ∇f_j  =  Σ_{j ≠ w} v_wj · (1 − F(f_w − f_j)) (∇f_w − ∇f_j),   v_wj = π_w + π_j,

with π the probabilities of S and F logistic. It is that of Bradley–Terry comparisons of w with each
of the others, weighted by the probability that the pick falls on the two. v is symmetric, so these
comparisons are unbiased at whatever utility the weights are evaluated. At the true utility they
have the score of Plackett–Luce and its expected information, since Σ_{j<k} v² (π_j π_k/v²) (∇f_j −
∇f_k)² is the variance of ∇f under π. With equal utilities v = 2/m, and 1 for a pick of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from llm_elicit.density.errors import Array, Index
from llm_elicit.density.evidence import UNKNOWN
from llm_elicit.density.likelihood import Context, Noise, Response
from llm_elicit.density.torch_utils import minimize
from llm_elicit.density.utility.cross_validation import ChoiceData

_ORDER_BIAS_SD = 3.0  # of an order bias, in units of the noise's scale
_LOG_LEVEL_SD = 1.0  # of the logarithm of a noise level
_LOG_TIES_SD = 3.0  # of log ν


@dataclass(frozen=True)
class JudgeTerms:
    """The terms of the judges, and their standard errors.

    Attributes:
        order_bias: (B,) nats.
        log_gain: (J,), of which the first is 0.
        log_ties: log ν; None without ties.
        standard_errors: (B + J − 1 + 1,) of the three above, without the first gain, from the
            curvature, as if every row were an independent judgment; NaN before an estimate.
    """

    order_bias: Array
    log_gain: Array
    log_ties: float | None
    standard_errors: Array

    @classmethod
    def neutral(cls, context: Context) -> JudgeTerms:
        """Return no bias, equal levels and, if there are ties, ν = 1."""
        b, j, has_ties = len(context.position_terms), len(context.judges), bool(context.tie.any())
        standard_errors = np.full(b + j - 1 + has_ties, np.nan)
        return cls(np.zeros(b), np.zeros(j), 0.0 if has_ties else None, standard_errors)

    def response(self, context: Context, noise: Noise) -> Response:
        """Return the noise of every judgment under these terms."""
        ties = 0.0 if self.log_ties is None else math.exp(self.log_ties)
        gain = torch.from_numpy(np.exp(self.log_gain)[context.judge])
        offset = torch.from_numpy(context.position_columns @ self.order_bias)
        return Response(replace(noise, ties=ties), gain, offset)

    def weight_rankings(
        self, data: ChoiceData, noise: Noise, difference: Array | None = None
    ) -> ChoiceData:
        """Return the rows, with those of rankings weighted by `pick_weights`.

        ``difference`` (n,) is f(winner) − f(loser); utilities count as equal where it is NaN, and
        everywhere if it is None.
        """
        context = data.context
        if context is None or not (context.pick != UNKNOWN).any():
            return data
        response = self.response(context, noise)
        differences = np.zeros(len(data.weights)) if difference is None else difference
        odds = response.linear_predictor(torch.from_numpy(differences)).numpy() / noise.scale
        weights, is_pick = data.weights.copy(), context.pick != UNKNOWN
        weights[is_pick] *= pick_weights(context.pick[is_pick], odds[is_pick])
        return replace(data, weights=weights)

    def estimate(self, data: ChoiceData, noise: Noise, difference: Array) -> JudgeTerms:
        """Return the most likely terms, from the rows where ``difference`` (n,) is not NaN."""
        context = data.context
        finite = ~np.isnan(difference)
        if context is None or not len(self.standard_errors) or not finite.any():
            return self
        problem = _TermsPosterior(data, context, noise, np.flatnonzero(finite), difference[finite])
        # The first gain is 0.
        log_ties = [] if self.log_ties is None else [self.log_ties]
        values = problem.maximize(np.concatenate([self.order_bias, self.log_gain[1:], log_ties]))
        order_bias, others = np.split(values, [len(self.order_bias)])
        log_gain = np.concatenate([[0.0], others[: len(self.log_gain) - 1]])
        ties = None if self.log_ties is None else float(values[-1])
        return JudgeTerms(order_bias, log_gain, ties, problem.standard_errors(values))

    def report(self, context: Context, noise: Noise) -> dict[str, Any]:
        """Return each judge's noise ``level`` and ``order_bias``, and ``ties`` (JSON-able).

        ``order_bias`` has, by the number of points shown, the effect of each position in nats,
        relative to the last one, with its standard error; the mean over presentations.
        """
        b = len(self.order_bias)
        judges: dict[str, Any] = {}
        for index, name in enumerate(context.judges):
            ratio = math.exp(self.log_gain[index])
            level = noise.level * ratio if noise.family == "exponential" else noise.level / ratio
            error = float(self.standard_errors[b + index - 1]) if index else 0.0
            bias: dict[str, list[dict[str, float]]] = {}
            places = sorted({term[:3] for term in context.position_terms if term[0] == name})
            for place in places:
                terms = [i for i, term in enumerate(context.position_terms) if term[:3] == place]
                nats = float(self.order_bias[terms].mean())
                se = float(np.linalg.norm(self.standard_errors[terms])) / len(terms)
                effect = {"place": place[2], "nats": nats, "se": se}
                bias.setdefault(str(place[1]), []).append(effect)
            judges[name] = {"level": level, "log_level_se": error, "order_bias": bias}
        ties = None if self.log_ties is None else math.exp(self.log_ties)
        return {"judges": judges, "ties": ties}


class _TermsPosterior:
    """The likelihood of the terms given differences of utility."""

    def __init__(
        self, data: ChoiceData, context: Context, noise: Noise, rows: Index, difference: Array
    ) -> None:
        self.noise, self.scale = noise, noise.scale
        self.difference = torch.from_numpy(difference)
        self.weights = torch.from_numpy(data.weights[rows])
        self.order = torch.from_numpy(context.position_columns[rows])
        judge = np.eye(len(context.judges))[context.judge[rows]]
        self.judge = torch.from_numpy(judge[:, 1:])
        self.tie_weight = (
            float(data.weights[rows][context.tie[rows]].sum()) if context.tie.any() else None
        )
        b, j = self.order.shape[1], self.judge.shape[1]
        prior_sd = [_ORDER_BIAS_SD * self.scale] * b + [_LOG_LEVEL_SD] * j
        prior_sd += [] if self.tie_weight is None else [_LOG_TIES_SD]
        self.precision = torch.tensor(prior_sd, dtype=torch.float64) ** -2

    def loss(self, values: Tensor) -> Tensor:
        """Return minus the log-posterior () of packed terms."""
        b, j = self.order.shape[1], self.judge.shape[1]
        bias, log_gain = values[:b], values[b : b + j]
        predictor = torch.exp(self.judge @ log_gain) * self.difference + self.order @ bias
        prior = 0.5 * (self.precision * values.square()).sum()
        if self.tie_weight is None:
            return prior - (self.noise.log_cdf(predictor) * self.weights).sum()
        log_ties, t = values[-1], predictor / self.scale
        total = torch.logaddexp(torch.logaddexp(0.5 * t, -0.5 * t), log_ties.expand_as(t))
        fit = ((0.5 * t - total) * self.weights).sum() + self.tie_weight * log_ties
        return prior - fit

    def maximize(self, start: Array) -> Array:
        """Return the packed terms that maximize the posterior."""
        return minimize(self.loss, start, [(-20.0, 20.0)] * len(start))

    def standard_errors(self, values: Array) -> Array:
        """Return the standard errors of the packed terms, from the curvature at them."""
        curvature = hessian(self.loss, torch.from_numpy(values)).numpy()  # type: ignore[no-untyped-call]
        # The likelihood of Laplace noise has corners without curvature: use the prior there.
        variances = np.diagonal(np.linalg.pinv(curvature, hermitian=True))
        prior = self.precision.numpy() ** -0.5
        return np.asarray(np.where(variances > 0, np.sqrt(np.abs(variances)), prior))


def pick_weights(pick: Index, odds: Array) -> Array:
    """Return v_wj (m,) of the comparisons of picks numbered ``pick`` (m,).

    ``odds`` (m,) are f_w − f_j in units of the noise's scale; where NaN, utilities count as equal.

    Examples:
        >>> pick_weights(np.array([0, 0]), np.zeros(2)).round(2).tolist()    # one of three
        [0.67, 0.67]
    """
    pick_index = np.unique(pick, return_inverse=True)[1].reshape(-1)
    # log Σ_S e / e_w, over the losers of each pick and the winner itself.
    log_totals = np.zeros(int(pick_index.max()) + 1)
    np.logaddexp.at(log_totals, pick_index, -odds)
    pair_probability = np.exp(np.logaddexp(0.0, -odds) - log_totals[pick_index])
    equal_utilities = 2.0 / (1.0 + np.bincount(pick_index))[pick_index]
    return np.where(np.isnan(pair_probability), equal_utilities, pair_probability)
