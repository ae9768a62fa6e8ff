"""Several descriptions of one utility, stacked by how well they foretell held-out choices.

The stack f = Σ_i a_i f_i, a_i >= 0, maximizes the likelihood of the choices that the parts never
saw (Wolpert, 1992). The weights need not sum to one: a sum above one sharpens a belief whose
parts came out too flat, a sum below one flattens one that came out too steep.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b

from llm_elicit.density.choice import Noise
from llm_elicit.density.utility.data import Array

_HOLD_SUM = 10.0


def stack_weights(differences: Array, weights: Array, noise: Noise) -> Array:
    """Weights a (F,) from held-out differences (F, m) and the rows' weights (m,).

    A weak pull of the weights' sum towards one keeps them finite when every held-out choice
    is foretold.

    Examples
    --------
    >>> import numpy as np
    >>> truth = np.random.default_rng(0).normal(0, 3, 4000)
    >>> choices = np.sign(truth + np.random.default_rng(1).logistic(0, 0.78, 4000))
    >>> half = np.stack([0.5 * truth * choices, np.zeros(4000)])   # one part, twice too flat
    >>> bool(abs(stack_weights(half, np.ones(4000), Noise())[0] - 2.0) < 0.2)
    True
    """
    parts, mass = torch.from_numpy(differences), torch.from_numpy(weights)

    def objective(a: Array) -> tuple[float, Array]:
        difference = torch.from_numpy(a) @ parts
        log_cdf = noise.log_cdf(difference)
        slope = -mass * torch.exp(noise.log_pdf(difference) - log_cdf)
        excess = float(a.sum()) - 1.0
        value = -float(log_cdf @ mass) + 0.5 * _HOLD_SUM * excess**2
        return value, np.asarray((parts @ slope).numpy()) + _HOLD_SUM * excess

    count = len(differences)
    first = np.full(count, 1.0 / count)
    found, _, _ = fmin_l_bfgs_b(objective, first, bounds=[(0.0, None)] * count)
    return np.asarray(found)
