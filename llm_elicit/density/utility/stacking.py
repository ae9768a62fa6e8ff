"""Several descriptions of one utility, stacked by how well they foretell held-out choices.

The stack f = Σ_i a_i f_i, a_i >= 0, maximizes the likelihood of the choices that the parts never
saw (Wolpert, 1992). The weights need not sum to one: a sum above one sharpens a belief whose
parts came out too flat, a sum below one flattens one that came out too steep. The parts' spreads
stay out of the weights, since the stack is used as it is, not averaged over its posterior: with
them the sum came out too large. What the stack foretells is moderated like any other form.

Draws of a posterior are shared out among forms by `bootstrapped_shares` instead: those weights
are chances that a form is the best, not parts of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.likelihood import Response
from llm_elicit.density.utility.folds import Array, CrossValidation, Folds, HeldOut

_HOLD_SUM = 10.0
_BOOTSTRAPS = 200


def stacked(parts: Sequence[HeldOut], shares: Array) -> HeldOut:
    """What Σ_i a_i f_i foretells, shares a (F,), if the parts' errors go together."""
    return HeldOut(
        shares @ np.stack([p.difference for p in parts]),
        shares @ np.stack([p.spread for p in parts]),
    )


def stack_weights(parts: Sequence[HeldOut], weights: Array, response: Response) -> Array:
    """Weights a (F,) from what F parts foretell of the same rows, and the rows' weights (m,).

    A weak pull of the weights' sum towards one keeps them finite when every held-out choice
    is foretold.

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
        foretold = response.log_cdf(a @ difference) @ mass
        loss = 0.5 * _HOLD_SUM * (a.sum() - 1.0) ** 2 - foretold
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
    weights = validation.data.weights[validation.judged.numpy()]
    response = validation.response.at(validation.judged)
    fold_of = validation.fold_of[validation.judged].numpy()
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
    response = validation.response.at(validation.judged)
    seen = response.log_cdf(torch.from_numpy(fitted))
    return np.asarray(0.5 * (held_out.log_likelihood(response) + seen.numpy()))


def bootstrapped_shares(logs: Array, groups: Folds, generator: torch.Generator) -> Array:
    """Shares (F,), summing to one, of forms by their log-likelihoods (F, m) of the judged rows.

    Each share is the mean of exp(total) over all forms' over Bayesian bootstraps of the rows'
    ``groups`` (m,): a form only seemingly ahead does not take all (pseudo-BMA+; Yao, Vehtari,
    Simpson and Gelman, 2018).

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
    lots = torch.empty(_BOOTSTRAPS, of_group.shape[1], dtype=torch.float64)
    lots = lots.exponential_(generator=generator)
    lots = lots * (lots.shape[1] / lots.sum(1, keepdim=True))
    shares = torch.softmax(lots @ torch.from_numpy(of_group).T, 1)
    return np.asarray(shares.mean(0).numpy())
