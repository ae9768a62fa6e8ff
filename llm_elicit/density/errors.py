"""The one exception of the density core."""

from __future__ import annotations


class DensityError(ValueError):
    """Something handed to the density core cannot be used.

    The message is one line: what was found, where, the rule it breaks, the way out.

    Examples
    --------
    >>> from llm_elicit.density import Uniform
    >>> Uniform([0.0], [0.0])
    Traceback (most recent call last):
    ...
    llm_elicit.density.errors.DensityError: Uniform: low[0] = 0.0 is not below high[0] = 0.0; \
every lower bound must lie below its upper bound; swap or widen the bounds.
    """
