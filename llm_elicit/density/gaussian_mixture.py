"""A Gaussian or a mixture of Gaussians as the sampling density λ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from llm_elicit.density.errors import Array, DensityError, Flags, brief, finite, numbers
from llm_elicit.density.feature_names import in_order
from llm_elicit.density.sampling import LOG_2PI, SamplingDensity, bisect, check_draw


class GaussianMixture(SamplingDensity):
    """λ = Σ_k weights[k] · N(means[k], covariances[k]); one component gives a Gaussian.

    Args:
        weights: (k,) >= 0, summing to one.
        means: (k, d) in natural units. A data frame, or a list of Series, names the features.
        covariances: (k, d, d) variances and covariances, not standard deviations; a list of data
            frames is matched by name.

    Raises:
        DensityError: shapes that do not fit, weights that are not probabilities, or a
            covariance that is not symmetric positive definite.

    Examples:
        >>> import numpy as np
        >>> normal = GaussianMixture([1.0], [[0.0]], [[[4.0]]])     # standard deviation 2
        >>> float(normal.to_cube([[0.0]])[0, 0])
        0.5
    """

    def __init__(
        self, weights: npt.ArrayLike, means: npt.ArrayLike, covariances: npt.ArrayLike
    ) -> None:
        means, self.names = in_order("GaussianMixture: means", means, None)
        label = "GaussianMixture: covariances"
        covariances, self.names = in_order(label, covariances, self.names)
        self.weights = numbers("GaussianMixture: weights", weights).copy()
        self.means = numbers("GaussianMixture: means", means).copy()
        self.covariances = numbers(label, covariances).copy()
        k = max(self.weights.size, 1)
        d = self.means.shape[-1] if self.means.ndim == 2 else 0
        fits = self.weights.shape == (k,) and self.means.shape == (k, d)
        if not fits or d == 0 or self.covariances.shape != (k, d, d):
            raise DensityError(
                f"GaussianMixture: weights {self.weights.shape}, means {self.means.shape} and "
                f"covariances {self.covariances.shape} do not fit; the shapes must be (k,), "
                "(k, d), (k, d, d); wrap a single Gaussian as k = 1."
            )
        for name, values in (("means", self.means), ("covariances", self.covariances)):
            finite(f"GaussianMixture: {name}", values)
        total = self.weights.sum()
        if not (np.isfinite(total) and (self.weights >= 0).all() and abs(total - 1) < 1e-6):
            raise DensityError(
                f"GaussianMixture: weights {self.weights.tolist()} are not probabilities; they "
                "must be >= 0 and sum to 1; divide them by their sum."
            )
        infinite = np.full(self.means.shape[1], np.inf)
        self._set_numbers(-infinite, infinite, infinite < 0.0)
        factors = []
        for at, covariance in enumerate(self.covariances):
            try:
                close = 1e-10 * np.abs(covariance).max()
                if not np.allclose(covariance, covariance.T, atol=close):
                    raise np.linalg.LinAlgError("not symmetric")
                factors.append(np.linalg.cholesky(covariance))
            except np.linalg.LinAlgError as error:
                raise DensityError(
                    f"GaussianMixture: covariances[{at}] is {error}; a covariance must be symmetric"
                    " and positive definite; check that it holds variances, not correlations or "
                    "deviations."
                ) from error
        self.cholesky = np.stack(factors)
        with np.errstate(divide="ignore"):
            self._log_weights = np.log(self.weights)

    def __repr__(self) -> str:
        return brief(
            f"GaussianMixture({self.weights.tolist()}, {self.means.tolist()}, "
            f"{self.covariances.tolist()})"
        )

    @property
    def mean(self) -> Array:
        """Mean of the mixture (d,)."""
        return np.asarray(self.weights @ self.means)

    @property
    def covariance(self) -> Array:
        """Covariance of the mixture (d, d)."""
        centred = self.means - self.mean
        between = np.einsum("k,ki,kj->ij", self.weights, centred, centred)
        return np.asarray(np.einsum("k,kij->ij", self.weights, self.covariances) + between)

    def reordered(self, order: Sequence[int]) -> GaussianMixture:
        """Return λ with the features of these numbers, in this order."""
        at = list(order)
        covariances = self.covariances[:, at][:, :, at]
        return GaussianMixture(self.weights, self.means[:, at], covariances)._name(self.names, at)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return n random points (n, d)."""
        check_draw(n, rng)
        k = rng.choice(self.weights.size, size=n, p=self.weights / self.weights.sum())
        white = rng.standard_normal((n, self.dimension))
        return np.asarray(self.means[k] + np.einsum("nij,nj->ni", self.cholesky[k], white))

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log densities (n,), nats per natural unit."""
        points = self._points(x, no_nan=True)
        log_parts = self._log_weights + self._log_prefix(self._white(points), self.dimension)
        return np.where(self.contains(points), logsumexp(log_parts, axis=1), -np.inf)

    def _white(self, points: Array) -> Array:
        """Return L_k⁻¹(x − μ_k), (n, k, d)."""
        centred = points[:, None, :] - self.means
        return np.stack(
            [np.linalg.solve(low, centred[:, k].T).T for k, low in enumerate(self.cholesky)], axis=1
        )

    def _log_prefix(self, white: Array, j: int) -> Array:
        """Return the log density (n, k) of the first j features under each component."""
        diagonal = np.diagonal(self.cholesky, axis1=1, axis2=2)[:, :j]
        steps = -0.5 * white[..., :j] ** 2 - 0.5 * LOG_2PI - np.log(diagonal)
        return np.asarray(steps.sum(axis=-1))

    def to_cube(self, x: npt.ArrayLike) -> Array:
        """Return the distribution function of each feature given those before it, (n, d).

        Within a component, feature j given the earlier ones is normal, and its standardized
        residual is entry j of L⁻¹(x − μ). The earlier features reweight the components
        (Rosenblatt, 1952).
        """
        points = self._points(x)
        white = self._white(points)
        cube = np.empty_like(points)
        for j in range(self.dimension):
            cube[:, j] = np.exp(
                logsumexp(self._log_responsibility(white, j) + log_ndtr(white[..., j]), axis=1)
            )
        return np.clip(cube, 0.0, 1.0)

    def _log_responsibility(self, white: Array, j: int) -> Array:
        if j == 0:
            return np.broadcast_to(self._log_weights, white.shape[:2])
        logs = self._log_weights + self._log_prefix(white, j)
        return np.asarray(logs - logsumexp(logs, axis=1, keepdims=True))

    def from_cube(self, y: npt.ArrayLike) -> Array:
        """Return the inverse of `to_cube`, by bisection if there are several components."""
        cube = np.clip(self._points(y), 1e-300, 1.0 - 1e-16)
        n, d = cube.shape
        white = np.zeros((n, self.weights.size, d))
        x = np.empty((n, d))
        for j in range(d):
            centre = self.means[:, j] + np.einsum(
                "nki,ki->nk", white[..., :j], self.cholesky[:, j, :j]
            )
            spread = self.cholesky[:, j, j]
            share = np.exp(self._log_responsibility(white, j))
            x[:, j] = _invert(cube[:, j], share, centre, spread)
            white[..., j] = (x[:, j, None] - centre) / spread
        return x

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return self._text(
            {
                "kind": "gaussian_mixture",
                "weights": self.weights.tolist(),
                "means": self.means.tolist(),
                "covariances": self.covariances.tolist(),
            }
        )


def _invert(level: Array, share: Array, centre: Array, spread: Array) -> Array:
    """Return x (n,) with Σ_k share_k Φ((x − centre_k)/spread_k) = level, all rows at once."""
    quantiles = centre + spread * ndtri(level)[:, None]
    # The mixture's quantile lies between its components' quantiles.
    low, high = quantiles.min(axis=1), quantiles.max(axis=1)
    if share.shape[1] == 1:
        return np.asarray(low)

    def below(x: Array) -> Flags:
        reached = (share * ndtr((x[:, None] - centre) / spread)).sum(axis=1)
        return np.asarray(reached < level)

    return bisect(below, low, high)
