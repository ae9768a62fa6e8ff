"""Stacking: a weighted sum of several forms of one utility, by how well they predict.

The stack f = Σ_i a_i f_i, a_i >= 0, maximizes the likelihood of choices that the forms did not see
(Wolpert, 1992). The weights need not sum to one: a sum above one sharpens a belief whose forms are
too flat, a sum below one flattens one whose forms are too steep. The forms' spreads do not enter
the weights, because the stack is not averaged over its posterior; with them the sum is too large.
The stack's own predictions are moderated like those of any other form.

Draws of a posterior are divided among forms by `bootstrapped_shares` instead, which are
probabilities that a form is the best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.folds import Array, CrossValidation, Folds, HeldOut

_SUM_PENALTY = 10.0
_BOOTSTRAPS = 200


def stacked(parts: Sequence[HeldOut], shares: Array) -> HeldOut:
    """Return the predictions of Σ_i a_i f_i, shares a (F,), for perfectly correlated errors."""
    return HeldOut(
        shares @ np.stack([p.difference for p in parts]),
        shares @ np.stack([p.spread for p in parts]),
    )


def stack_weights(parts: Sequence[HeldOut], weights: Array, response: Response) -> Array:
    """Return stacking weights a (F,) of F forms' predictions of the same rows.

    A weak penalty draws the sum of the weights towards one, which keeps them finite when every
    held-out choice is predicted.

    Parameters
    ----------
    weights : (m,) of the rows.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density import Noise
    >>> truth = np.random.default_rng(0).normal(0, 3, 4000)
    >>> choices = np.sign(truth + np.random.default_rng(1).logistic(0, 0.78, 4000))
    >>> nothing = np.zeros(4000)
    >>> half = HeldOut(0.5 * truth * choices, nothing)             # one part, twice too flat
    >>> found = stack_weights([half, HeldOut(nothing, nothing)], np.ones(4000), Response(Noise()))
    >>> bool(abs(found[0] - 2.0) < 0.2)
    True
    """
    difference = torch.from_numpy(np.stack([p.difference for p in parts]))
    mass = torch.from_numpy(weights)

    def objective(shares: Array) -> tuple[float, Array]:
        a = torch.from_numpy(shares).requires_grad_()
        fit = response.log_cdf(a @ difference) @ mass
        loss = 0.5 * _SUM_PENALTY * (a.sum() - 1.0) ** 2 - fit
        (slope,) = torch.autograd.grad(loss, [a])
        return float(loss.detach()), np.asarray(slope.numpy())

    count = len(parts)
    first = np.full(count, 1.0 / count)
    found, _, _ = fmin_l_bfgs_b(objective, first, bounds=[(0.0, None)] * count)
    return np.asarray(found)


def cross_fitted_stack(
    validation: CrossValidation, parts: Sequence[HeldOut]
) -> tuple[Array, HeldOut]:
    """Return the stack's weights, and its predictions of the validation rows.

    Every fold is predicted with weights chosen on the other folds, so that the score of the stack
    is of rows that took no part in it.
    """
    weights = validation.data.weights[validation.rows.numpy()]
    response = validation.response.at(validation.rows)
    fold_of = validation.fold_of[validation.rows].numpy()
    difference, spread = np.empty(len(weights)), np.empty(len(weights))
    for fold in range(validation.count):
        unseen = fold_of == fold
        seen = [HeldOut(p.difference[~unseen], p.spread[~unseen]) for p in parts]
        at = response.at(torch.from_numpy(np.flatnonzero(~unseen)))
        predicted = stacked(parts, stack_weights(seen, weights[~unseen], at))
        difference[unseen], spread[unseen] = predicted.difference[unseen], predicted.spread[unseen]
    return stack_weights(parts, weights, response), HeldOut(difference, spread)


def halfway(validation: CrossValidation, held_out: HeldOut, fitted: Array) -> Array:
    """Return about the log-likelihood (m,) of the validation rows by the best a form could be.

    Halfway between the prediction by fits that did not see a row and that by the fit that saw
    all, ``fitted`` (m,) f(winner) − f(loser). With P parameters to learn the first falls ½P nats
    short of the best in all and the second exceeds it by as many (Akaike, 1974).
    """
    response = validation.response.at(validation.rows)
    seen = response.log_cdf(torch.from_numpy(fitted))
    return np.asarray(0.5 * (held_out.log_likelihood(response) + seen.numpy()))


def bootstrapped_shares(logs: Array, groups: Folds, generator: torch.Generator) -> Array:
    """Return shares (F,), summing to one, of forms by their log-likelihoods (F, m).

    Each share is exp(total log-likelihood) over the sum of all forms', averaged over Bayesian
    bootstraps of the rows' ``groups`` (m,), so that a form that leads by chance does not take all
    (pseudo-BMA+; Yao, Vehtari, Simpson and Gelman, 2018).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logs = rng.normal(-0.5, 0.3, (2, 400))                     # alike but for chance
    >>> worse = np.vstack([logs, logs[:1] - 0.1])                 # and one clearly behind
    >>> shares = bootstrapped_shares(worse, np.arange(400), torch.Generator().manual_seed(0))
    >>> bool(shares[:2].min() > 0.1), bool(shares[2] < 0.01)
    (True, True)
    """
    of_group = np.stack([np.bincount(groups, row) for row in logs])
    multiples = torch.empty(_BOOTSTRAPS, of_group.shape[1], dtype=torch.float64)
    multiples = multiples.exponential_(generator=generator)
    multiples = multiples * (multiples.shape[1] / multiples.sum(1, keepdim=True))
    shares = torch.softmax(multiples @ torch.from_numpy(of_group).T, 1)
    return np.asarray(shares.mean(0).numpy())
