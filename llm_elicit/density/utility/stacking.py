"""Several descriptions of one utility, stacked by how well they foretell held-out choices.

The stack f = Σ_i a_i f_i, a_i >= 0, maximizes the likelihood of the choices that the parts never
saw (Wolpert, 1992). The weights need not sum to one: a sum above one sharpens a belief whose
parts came out too flat, a sum below one flattens one that came out too steep. The parts' spreads
stay out of the weights, since the stack is used as it is, not averaged over its posterior: with
them the sum came out too large. What the stack foretells is moderated like any other form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.response import Response
from llm_elicit.density.utility.data import Array, HeldOut

_HOLD_SUM = 10.0


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
