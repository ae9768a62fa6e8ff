"""A belief as a frozen distribution with SciPy's method names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llm_elicit.density.empirical import Empirical
from llm_elicit.density.errors import DensityError, integer, numbers, seed_of
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.utility_density import UtilityDensity

Array = npt.NDArray[np.float64]


class Prior:
    """A belief with the methods of SciPy's frozen multivariate distributions.

    Made by `BeliefDensity.as_prior`. Densities are per natural unit of every feature.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density import Uniform, fit_belief
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
    >>> nearer = abs(a - 1) < abs(b - 1)
    >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
    ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
    >>> prior = belief.as_prior()
    >>> prior.rvs(5, random_state=1).shape, prior.logpdf([1.0]).shape, prior.pdf([[9.0]]).tolist()
    ((5, 1), (), [0.0])
    """

    def __init__(
        self,
        sample: Callable[[int, int], Array],
        log_prob: Callable[[Array], Array],
        kept: Array,
        sampling: SamplingDensity,
        model: UtilityDensity | None = None,
    ) -> None:
        self._sample, self._log_prob, self._kept = sample, log_prob, kept
        self._sampling, self._model = sampling, model

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self._sampling.dimension

    def rvs(self, size: int = 1, random_state: int | np.random.Generator | None = None) -> Array:
        """Return (size, d) draws, by a seed, a generator, or fresh entropy."""
        integer("rvs: size", size)
        if random_state is not None and not isinstance(random_state, np.random.Generator):
            seed_of("rvs: random_state", random_state)
        rng = np.random.default_rng(random_state)
        return self._sample(size, int(rng.integers(2**62)))

    def logpdf(self, x: npt.ArrayLike) -> Array:
        """Return the log density (...) at points (..., d), nats; −inf outside the support."""
        points = self._points("logpdf: x", x)
        flat = self._log_prob(points.reshape(-1, self.dim))
        return np.asarray(flat.reshape(points.shape[:-1]))

    def logpdf_and_gradient(self, x: npt.ArrayLike) -> tuple[Array, Array]:
        """Return the log density (...) and its gradient (..., d) at points (..., d).

        The gradient is in nats per natural unit. Outside the support they are −inf and 0.

        Raises
        ------
        DensityError : the belief was fitted by another method than "utility" and "auto", or has
            features with categories.

        Examples
        --------
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> _, gradient = belief.as_prior().logpdf_and_gradient([[0.0], [2.0]])
        >>> (gradient[:, 0] > 0).tolist()                # uphill is towards 1
        [True, False]
        """
        if self._model is None:
            raise DensityError(
                'logpdf_and_gradient: beliefs of methods "utility" and "auto" alone have a '
                "gradient; fit by one of them, or use a sampler that needs none."
            )
        if self._sampling.categorical.any():
            raise DensityError(
                f"logpdf_and_gradient: feature {int(self._sampling.categorical.argmax())} has "
                "categories, and no gradient; use a sampler that needs none."
            )
        points = self._points("logpdf_and_gradient: x", x)
        flat = points.reshape(-1, self.dim)
        values, slopes = np.full(len(flat), -np.inf), np.zeros_like(flat)
        inside = self._sampling.contains(flat)
        if inside.any():
            with one_thread():
                values[inside], slopes[inside] = self._model.log_prob_and_slope(flat[inside])
        return values.reshape(points.shape[:-1]), slopes.reshape(points.shape)

    def _points(self, where: str, x: npt.ArrayLike) -> Array:
        points = numbers(where, x)
        if not points.ndim or points.shape[-1] != self.dim:
            raise DensityError(f"{where} has shape {points.shape}; it must be (..., {self.dim}).")
        return points

    def pdf(self, x: npt.ArrayLike) -> Array:
        """Return the density (...) at points (..., d)."""
        return np.asarray(np.exp(self.logpdf(x)))

    def mean(self) -> Array:
        """Return the means (d,), from draws kept with the fit."""
        return np.asarray(self._kept.mean(axis=0))

    def cov(self) -> Array:
        """Return the covariance (d, d), from draws kept with the fit."""
        return np.asarray(np.cov(self._kept.T).reshape(self.dim, self.dim))

    def support(self) -> tuple[Array, Array]:
        """Return lower and upper bounds (d,); infinite where λ has none."""
        if isinstance(self._sampling, Uniform):
            return self._sampling.low.copy(), self._sampling.high.copy()
        if isinstance(self._sampling, Empirical):
            return self._sampling.marginals.low.copy(), self._sampling.marginals.high.copy()
        return np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
