"""p-values of many tests at once."""

from __future__ import annotations

import numpy as np

from llm_elicit.features import Floats


def holm(p_values: Floats) -> Floats:
    """Holm's step-down adjustment of p-values `(m,)` for looking at all of them.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    stepped = (len(p_values) - np.arange(len(p_values))) * p_values[order]
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted
