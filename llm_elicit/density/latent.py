"""Latent coordinates g: unbounded, with a simple λ, and every point inside the support.

* For a `Uniform` λ, each feature's cube coordinate goes through the normal quantile function, so
  λ becomes N(0, I) and the box has no edges.
* For a `GaussianMixture`, g = L⁻¹(x − m) with the mixture's mean m and covariance LLᵀ, so λ stays
  a mixture.
* For an `Empirical` λ, x_j = Q_j(h_j) with h = L g, and λ becomes N(0, I).

In each case λ smoothed by N(0, σ²I) is a Gaussian mixture whose score is known exactly at every
noise level σ.

The utility u = log p is a density *per unit of the feature's scale* z. In latent coordinates
the belief therefore has log-density u + log|dz/dg|: dropping that Jacobian returns p·λ
instead of p.

**Beliefs on an unbounded space** must be integrable for any fitted utility. Beyond the radius of
the compared points there are no data. The utility is constant there along each direction, with its
value on the sphere of that radius, and the belief falls off like a standardized normal: the factor
exp(−(|g|² − radius²)/2). Inside the radius nothing changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from scipy.linalg import helmert
from scipy.special import ndtri
from torch import Tensor
from torch.quasirandom import SobolEngine

from llm_elicit.density.errors import Array, DensityError, Index
from llm_elicit.density.sampling import LOG_2PI, SamplingDensity, Uniform, sample_by_rejection
from llm_elicit.density.torch_utils import sum_last
from llm_elicit.density.unbounded import Empirical, GaussianMixture

_SOBOL_MARGIN = 1e-10


def sobol_cube(n: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return a scrambled Sobol sequence (n, dimension), uniform on the open unit cube.

    Examples:
        >>> cube = sobol_cube(256, 2, torch.Generator().manual_seed(0))
        >>> bool((cube.mean(0) - 0.5).abs().max() < 0.005)         # random: about 0.02
        True
    """
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = SobolEngine(dimension, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    cube: Tensor = engine.draw(n, dtype=torch.float64)
    return cube.clamp(_SOBOL_MARGIN, 1.0 - _SOBOL_MARGIN)


class Coordinates(ABC):
    """A change of coordinates, and λ in it. Tensors are (n, d); log-densities (n,), nats.

    The methods given here are those of coordinates in which λ is N(0, I) on a bounded space.

    Attributes:
        sampling: λ itself.
        radius: the distance |g| of the farthest compared point; infinite where λ has no tails.
    """

    sampling: SamplingDensity
    radius: float = math.inf

    @abstractmethod
    def to_latent(self, x: Array) -> Array:
        """Return the latent points of points in natural units."""

    @abstractmethod
    def from_latent(self, g: Array) -> Array:
        """Return the points, natural units and inside the support, of latent points."""

    @abstractmethod
    def features(self, g: Tensor) -> Tensor:
        """Return the inputs (n, p) of the utility: bounded, of unit variance under λ.

        p is d, or more where a feature is periodic or has categories.
        """

    @abstractmethod
    def gradient_from_features(self, g: Tensor, v: Tensor) -> Tensor:
        """Return the gradient in g of a function with gradient v (n, p) in the features."""

    @abstractmethod
    def log_volume(self, g: Tensor) -> Tensor:
        """Return log|dz/dg|, with z the features on their scales."""

    @abstractmethod
    def log_volume_gradient(self, g: Tensor) -> Tensor:
        """Return the gradient of `log_volume`."""

    def taper(self, g: Tensor) -> Tensor:
        """Return the term added to the utility beyond the compared points; 0 on a bounded space."""
        return torch.zeros_like(g[:, 0])

    def taper_gradient(self, g: Tensor) -> Tensor:
        """Return the gradient of `taper`."""
        return torch.zeros_like(g)


class Latent(Coordinates):
    """Coordinates that are affine in functions of single features: those the core fits in."""

    def log_sampling(self, g: Tensor) -> Tensor:
        """Return log λ in latent coordinates."""
        return -0.5 * sum_last(g * g) - 0.5 * LOG_2PI * g.shape[-1]

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """Return ∇ log (λ * N(0, σ²I)) in latent coordinates; σ is a number or (n, 1)."""
        return -g / (1.0 + sigma * sigma)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n exact draws (n, d) of λ."""
        size = (n, self.sampling.dimension)
        return self.from_cube(torch.rand(*size, generator=generator, dtype=torch.float64))

    def draw_sobol(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n points (n, d) of λ, more even than those of `draw`: a Sobol sequence."""
        return self.from_cube(sobol_cube(n, self.sampling.dimension, generator))

    def from_cube(self, cube: Tensor) -> Tensor:
        """Return points (n, d) of λ from uniform numbers (n, d), by the Rosenblatt map.

        Constraints of λ are ignored.
        """
        return torch.from_numpy(self.to_latent(self.sampling.from_cube(cube.numpy())))

    @property
    def feature_of_column(self) -> Index:
        """The feature (p,) that each column of `features` belongs to."""
        return np.arange(self.sampling.dimension)

    @property
    def category(self) -> Index:
        """The categorical feature of each input of the utility (p,); −1 for the others."""
        return np.full(self.sampling.dimension, -1)

    @abstractmethod
    def from_features(self, t: Tensor) -> tuple[Tensor, float] | None:
        """Return the latent points (n, d) of features t (n, d), and log|dz/dt|.

        Points are NaN where no latent point has these features. None if several latent points share
        features, or z is not linear in them.
        """

    @abstractmethod
    def gradient_per_unit(self, g: Array, v: Array) -> Array:
        """Return the gradient (n, d) per natural unit of f + log|dz/dx|, for f of gradient v in g.

        The second term turns a log-density per unit of the scales z into one per natural unit. It
        varies where a scale is logarithmic.
        """

    @abstractmethod
    def box_bounds(self, boxes: Array) -> tuple[Array, Array]:
        """Return the bounds (G, d) of h in boxes (G, d, 2), which are in natural units or ±∞.

        h_j is a function of x_j alone, and h = L g up to a constant, with L the `root`.
        """

    @property
    @abstractmethod
    def root(self) -> Array:
        """L (d, d), lower triangular; see `box_bounds`."""


CUBE_MARGIN = 1e-12
_SQRT_2, _SQRT_3 = math.sqrt(2.0), math.sqrt(3.0)
_SQRT_2PI = math.sqrt(2.0 * math.pi)
_MIN_WHOLE_NUMBERS = 8  # with fewer whole numbers the slope does not help a sampler
_MAX_CELLS = 10_000  # whose widths are summed; narrower ones add nothing


class BoxLatent(Latent):
    """Latent coordinates of a `Uniform` λ: g = Φ⁻¹(cube), so that λ is N(0, I).

    A whole number or a category is an interval of its axis. Where a constraint does not hold the
    taper is −∞, and λ is N(0, I) truncated to where all do. The features have columns of mean 0 and
    variance 1 under λ:

    * a number has one, linear in the feature on its scale;
    * a whole number too, with the value of its cell's centre throughout the cell, so that the
      utility is a step function of the latent point and the belief a probability per whole number;
    * a periodic feature has √2 cos and √2 sin of its angle, so that the utility is periodic;
    * a category has one of the K corners of a regular simplex in K − 1 columns, all equally far
      from each other, so that categories have no order.

    Numbers come first, then periodic features, then categories.

    Examples:
        >>> import torch
        >>> latent = BoxLatent(Uniform([0.0, 0.0], [1.0, 23.0], integer=[True, True],
        ...                            periodic=[False, True]))
        >>> points = torch.tensor([[-1.0, 0.1], [-2.0, 0.1]]).double()
        >>> latent.features(points).numpy().round(2).tolist()
        [[-1.0, -1.4, -0.18], [-1.0, -1.4, -0.18]]
    """

    sampling: Uniform

    def __init__(self, sampling: Uniform) -> None:
        self.sampling = sampling
        self._widths = sampling.scale_high - sampling.scale_low
        self._log_widths = float(np.log(self._widths).sum())
        # Whether all features are numbers, and the columns linear in them.
        self._is_linear = not (sampling.discrete | sampling.periodic).any()
        self._number_features = np.flatnonzero(~(sampling.categorical | sampling.periodic)).tolist()
        self._periodic_features = np.flatnonzero(sampling.periodic).tolist()
        # The corners (K, K − 1) of a regular simplex around 0, with columns of unit variance. Any
        # rotation of them would do for a fit. A saved belief needs the same ones, which a singular
        # value decomposition does not give on every processor.
        self._category_corners: dict[int, Tensor] = {}
        for j in np.flatnonzero(sampling.categorical).tolist():
            count = round(sampling.high[j] - sampling.low[j]) + 1
            corners = math.sqrt(count) * helmert(count)[:, ::-1].T.copy()
            self._category_corners[j] = torch.from_numpy(corners)
        self._column_scale = torch.ones(len(self._number_features), dtype=torch.float64)
        for column, j in enumerate(self._number_features):
            if not sampling.integer[j]:
                continue
            # Σ_k w_k³ of the cells' shares of the scale: the share of variance within cells.
            low, high = sampling.low[j], sampling.high[j]
            variance_within_cells = (high - low + 1.0) ** -2
            if sampling.log[j]:
                edges = np.log(np.arange(low - 0.5, min(high, low + _MAX_CELLS) + 1.0))
                variance_within_cells = np.sum((np.diff(edges) / self._widths[j]) ** 3)
            self._column_scale[column] = 1.0 / math.sqrt(1.0 - variance_within_cells)
        has_few_values = sampling.integer & (sampling.high - sampling.low < _MIN_WHOLE_NUMBERS)
        no_gradient = has_few_values | sampling.categorical
        self._has_gradient = torch.from_numpy(np.where(no_gradient, 0.0, 1.0))

    @property
    def feature_of_column(self) -> Index:
        owners = self._number_features + 2 * self._periodic_features
        for j, corners in self._category_corners.items():
            owners += [j] * corners.shape[1]
        return np.array(owners, dtype=np.int64)

    @property
    def category(self) -> Index:
        owners = self.feature_of_column
        return np.where(self.sampling.categorical[owners], owners, -1)

    def to_latent(self, x: Array) -> Array:
        """Return latent points; the faces of the box map to a large finite value."""
        cube = np.clip(self.sampling.to_cube(x), CUBE_MARGIN, 1.0 - CUBE_MARGIN)
        return np.asarray(ndtri(cube))

    def from_latent(self, g: Array) -> Array:
        return self.sampling.from_cube(torch.special.ndtr(torch.from_numpy(g)).numpy())

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n exact draws of λ."""
        if not self.sampling.constraints:
            return super().draw(n, generator)

        def draw_inside(count: int) -> Array:
            g = super(BoxLatent, self).draw(count, generator)
            return g[self._violates_constraints(g).logical_not()].numpy()

        return torch.from_numpy(sample_by_rejection(draw_inside, n, self.sampling.box_share))

    def draw_sobol(self, n: int, generator: torch.Generator) -> Tensor:
        if self.sampling.constraints:
            return self.draw(n, generator)
        return super().draw_sobol(n, generator)

    def from_cube(self, cube: Tensor) -> Tensor:
        """Return normal points; natural units would lose the position within a cell."""
        g: Tensor = torch.special.ndtri(cube.clamp(min=CUBE_MARGIN))
        return g

    def features(self, g: Tensor) -> Tensor:
        if self._is_linear:
            return _SQRT_3 * torch.erf(g / _SQRT_2)
        number_columns = _SQRT_3 * torch.erf(g[:, self._number_features] / _SQRT_2)
        for column, j in enumerate(self._number_features):
            if self.sampling.integer[j]:
                cell_middle = self._cell_middle(torch.special.ndtr(g[:, j]), j)
                scale = self._column_scale[column] * _SQRT_3
                number_columns[:, column] = scale * (2.0 * cell_middle - 1.0)
        angles = self._angles(g)
        columns = [number_columns, _SQRT_2 * torch.cos(angles), _SQRT_2 * torch.sin(angles)]
        for j, corners in self._category_corners.items():
            category = (torch.special.ndtr(g[:, j]) * len(corners)).long()
            columns.append(corners.to(g)[category.clamp(0, len(corners) - 1)])
        return torch.cat(columns, 1)

    def from_features(self, t: Tensor) -> tuple[Tensor, float] | None:
        """Return the inverse of `features` in the box; None unless all are numbers."""
        if not self._is_linear:
            return None
        g = torch.special.ndtri(0.5 + t / (2.0 * _SQRT_3))  # NaN beyond [0, 1]
        return g, self._log_widths - t.shape[1] * math.log(2.0 * _SQRT_3)

    def gradient_from_features(self, g: Tensor, v: Tensor) -> Tensor:
        """Return v times dt/dg = 2√3 φ(g), coordinate by coordinate.

        For whole numbers dt/dg is that of the smooth map through the cells' centres. It is 0 for
        whole numbers of a narrow range, and for categories.
        """
        if self._is_linear:
            return v * (2.0 * _SQRT_3 / _SQRT_2PI) * torch.exp(-0.5 * g * g)
        number_count, periodic_count = len(self._number_features), len(self._periodic_features)
        cube_gradient = torch.zeros_like(g)
        cube_gradient[:, self._number_features] = (
            2.0 * _SQRT_3 * v[:, :number_count] * self._column_scale.to(g)
        )
        angles = self._angles(g)
        cosines, sines = v[:, number_count:][:, : 2 * periodic_count].chunk(2, 1)
        angle_gradient = sines * torch.cos(angles) - cosines * torch.sin(angles)
        cube_gradient[:, self._periodic_features] = 2.0 * math.pi * _SQRT_2 * angle_gradient
        return cube_gradient * self._has_gradient.to(g) / _SQRT_2PI * torch.exp(-0.5 * g * g)

    def _angles(self, g: Tensor) -> Tensor:
        """Return the angles (n, c) of the periodic features."""
        cube = torch.special.ndtr(g[:, self._periodic_features])
        for column, j in enumerate(self._periodic_features):
            if self.sampling.integer[j]:
                cube[:, column] = self._cell_middle(cube[:, column], j)
        angles: Tensor = 2.0 * math.pi * cube
        return angles

    def _cell_middle(self, cube: Tensor, j: int) -> Tensor:
        """Return the middles (n,) of the cells of whole numbers that cube coordinates lie in."""
        s = self.sampling
        low, width = float(s.scale_low[j]), float(self._widths[j])
        z = low + cube * width
        if not s.log[j]:
            return (z.round().clamp(float(s.low[j]), float(s.high[j])) - low) / width
        k = torch.exp(z).round().clamp(float(s.low[j]), float(s.high[j]))
        return (0.5 * (torch.log(k - 0.5) + torch.log(k + 0.5)) - low) / width

    def taper(self, g: Tensor) -> Tensor:
        """Return −∞ where a constraint does not hold, else 0."""
        if not self.sampling.constraints:
            return super().taper(g)
        return torch.where(self._violates_constraints(g), -math.inf, 0.0).to(g)

    def _violates_constraints(self, g: Tensor) -> Tensor:
        x = self.from_latent(g.detach().cpu().double().numpy())
        return torch.from_numpy(~self.sampling.satisfies_constraints(x)).to(g.device)

    def log_sampling(self, g: Tensor) -> Tensor:
        if not self.sampling.constraints:
            return super().log_sampling(g)
        return super().log_sampling(g) - math.log(self.sampling.box_share) + self.taper(g)

    def log_volume(self, g: Tensor) -> Tensor:
        return super().log_sampling(g) + self._log_widths

    def log_volume_gradient(self, g: Tensor) -> Tensor:
        return -g

    def gradient_per_unit(self, g: Array, v: Array) -> Array:
        per_scale = v * math.sqrt(2.0 * math.pi) * np.exp(0.5 * g * g) / self._widths
        # On a logarithmic scale z = log x and log|dz/dx| = −log x.
        x = np.where(self.sampling.log, self.from_latent(g), 1.0)
        return np.asarray((per_scale - self.sampling.log) / x)

    def box_bounds(self, boxes: Array) -> tuple[Array, Array]:
        """Return finite bounds of g, large ones at or beyond the support's."""
        cube = self.sampling.box_to_cube(boxes)
        h = ndtri(cube.clip(CUBE_MARGIN, 1.0 - CUBE_MARGIN))
        return h[..., 0], h[..., 1]

    @property
    def root(self) -> Array:
        return np.eye(self.sampling.dimension)


class _TaperedLatent(Latent):
    """Coordinates on an unbounded space: beyond `radius` the belief is tapered."""

    def _shrink_factor(self, g: Tensor) -> Tensor:
        """Return the factors (n, 1), at most 1, that bring points back to the sphere."""
        norm: Tensor = g.norm(dim=-1, keepdim=True)
        return (self.radius / norm.clamp(min=1e-30)).clamp(max=1.0)

    def _shrunk_gradient(self, g: Tensor, v: Tensor) -> Tensor:
        """Return the gradient in g of a function of g·shrink with gradient v there.

        Beyond the sphere only the tangential part remains, shrunk.
        """
        shrink = self._shrink_factor(g)
        unit = g / g.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        tangential = shrink * (v - unit * (unit * v).sum(-1, keepdim=True))
        return torch.where(shrink < 1.0, tangential, v)

    def taper(self, g: Tensor) -> Tensor:
        """Return −(|g|² − radius²)/2 beyond the radius, else 0."""
        return -0.5 * (sum_last(g * g) - self.radius**2).clamp(min=0.0)

    def taper_gradient(self, g: Tensor) -> Tensor:
        return torch.where(g.norm(dim=-1, keepdim=True) > self.radius, -g, torch.zeros_like(g))


class AffineLatent(_TaperedLatent):
    """Latent coordinates of a `GaussianMixture` λ: g = L⁻¹(x − mean), covariance LLᵀ."""

    sampling: GaussianMixture

    def __init__(self, sampling: GaussianMixture) -> None:
        self.sampling = sampling
        self._cholesky = np.linalg.cholesky(sampling.covariance)
        self._mean = sampling.mean
        whiten = np.linalg.inv(self._cholesky)
        covariances = whiten @ sampling.covariances @ whiten.T
        values, vectors = np.linalg.eigh(covariances)
        has_weight = sampling.weights > 0
        self._log_weights = torch.from_numpy(np.log(sampling.weights[has_weight]))
        self._means = torch.from_numpy((sampling.means - self._mean)[has_weight] @ whiten.T)
        self._values = torch.from_numpy(np.maximum(values[has_weight], 1e-12))
        self._vectors = torch.from_numpy(vectors[has_weight])
        self._log_scale = float(np.log(np.diagonal(self._cholesky)).sum())

    def to_latent(self, x: Array) -> Array:
        return np.asarray(np.linalg.solve(self._cholesky, (x - self._mean).T).T)

    def from_latent(self, g: Array) -> Array:
        return np.asarray(g @ self._cholesky.T + self._mean)

    def features(self, g: Tensor) -> Tensor:
        """Return g, brought back to the sphere of `radius` from beyond it."""
        return g * self._shrink_factor(g)

    def from_features(self, t: Tensor) -> tuple[Tensor, float]:
        """Return t itself, also beyond the sphere."""
        return t, self._log_scale

    def gradient_from_features(self, g: Tensor, v: Tensor) -> Tensor:
        return self._shrunk_gradient(g, v)

    def log_volume(self, g: Tensor) -> Tensor:
        return torch.full_like(g[:, 0], self._log_scale)

    def log_volume_gradient(self, g: Tensor) -> Tensor:
        return torch.zeros_like(g)

    def gradient_per_unit(self, g: Array, v: Array) -> Array:  # noqa: ARG002 - the same everywhere
        return np.asarray(np.linalg.solve(self._cholesky.T, v.T).T)

    def box_bounds(self, boxes: Array) -> tuple[Array, Array]:
        return boxes[..., 0] - self._mean, boxes[..., 1] - self._mean

    @property
    def root(self) -> Array:
        return np.asarray(self._cholesky)

    def log_sampling(self, g: Tensor) -> Tensor:
        return torch.logsumexp(self._log_parts(g, 0.0)[0], dim=-1)

    def sampling_score(self, g: Tensor, sigma: float | Tensor) -> Tensor:
        """Return the score of the mixture with σ²I added to every covariance."""
        log_parts, scaled = self._log_parts(g, sigma)
        responsibilities = torch.softmax(log_parts, dim=-1)
        return -torch.einsum("nk,nkj,kij->ni", responsibilities, scaled, self._vectors.to(g.dtype))

    def _log_parts(self, g: Tensor, sigma: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return per component log weight + log density (n, k), and Λ⁻¹Vᵀ(g − μ) (n, k, d)."""
        means, vectors = self._means.to(g.dtype), self._vectors.to(g.dtype)
        variance = self._values.to(g.dtype) + torch.as_tensor(sigma * sigma)[..., None].to(g.dtype)
        projected = torch.einsum("nki,kij->nkj", g[:, None] - means, vectors)
        scaled = projected / variance
        logs = -0.5 * (projected * scaled + torch.log(variance) + LOG_2PI).sum(-1)
        return logs + self._log_weights.to(g.dtype), scaled


class CopulaLatent(_TaperedLatent):
    """Latent coordinates of an `Empirical` λ: h = L g and x_j = Q_j(h_j), so that λ is N(0, I).

    |dz/dg| = |L| Π_j Q_j'(h_j), since the value z_j on its scale depends only on h_j. The
    features are z, standardized by the mean and standard deviation of λ.

    The belief is tapered beyond the compared points even when the support has bounds, because data
    may fill only a corner of it. A judge without preferences thus has the uniform density on the
    image of the ball |g| <= radius, which falls off outside.

    Examples:
        >>> import numpy as np
        >>> data = np.random.default_rng(0).standard_normal((1000, 2))
        >>> latent = CopulaLatent(Empirical(data))
        >>> bool(np.allclose(latent.from_latent(latent.to_latent(data)), data))
        True
    """

    sampling: Empirical

    def __init__(self, sampling: Empirical) -> None:
        self.sampling = sampling
        self._cholesky = torch.from_numpy(sampling.cholesky)
        self._log_scale = float(np.log(np.diagonal(sampling.cholesky)).sum())
        mean, sd = sampling.marginals.moments()
        self._mean, self._sd = torch.from_numpy(mean), torch.from_numpy(sd)

    def to_latent(self, x: Array) -> Array:
        return self.sampling.to_normal(x)

    def from_latent(self, g: Array) -> Array:
        return self.sampling.from_normal(g)

    def features(self, g: Tensor) -> Tensor:
        """Return (z − mean)/sd, brought back to the sphere of `radius` from beyond it."""
        h = (g * self._shrink_factor(g)).double() @ self._cholesky.T
        return ((self.sampling.marginals.value(h) - self._mean) / self._sd).to(g.dtype)

    def from_features(self, t: Tensor) -> tuple[Tensor, float]:
        x = self.sampling.from_scale((t.double() * self._sd + self._mean).numpy())
        inside = self.sampling.contains(x)
        g = torch.full_like(t, math.nan)
        g[inside] = torch.from_numpy(self.to_latent(x[inside])).to(t)
        return g, float(self._sd.log().sum())

    def gradient_from_features(self, g: Tensor, v: Tensor) -> Tensor:
        """Return v taken back through x_j(h_j) and L, and along the sphere beyond it."""
        h = (g * self._shrink_factor(g)).double() @ self._cholesky.T
        slope = torch.exp(self.sampling.marginals.log_derivative(h)) / self._sd
        return self._shrunk_gradient(g, ((v.double() * slope) @ self._cholesky).to(g.dtype))

    def log_volume(self, g: Tensor) -> Tensor:
        h = g.double() @ self._cholesky.T
        return (self.sampling.marginals.log_derivative(h).sum(-1) + self._log_scale).to(g.dtype)

    def log_volume_gradient(self, g: Tensor) -> Tensor:
        h = g.double() @ self._cholesky.T
        return (self.sampling.marginals.log_derivative_gradient(h) @ self._cholesky).to(g.dtype)

    def gradient_per_unit(self, g: Array, v: Array) -> Array:
        h = torch.from_numpy(g) @ self._cholesky.T
        score_gradient = np.linalg.solve(self.root.T, v.T).T
        per_scale = score_gradient * np.exp(-self.sampling.marginals.log_derivative(h).numpy())
        # On a logarithmic scale z = log x and log|dz/dx| = −log x.
        log = self.sampling.log
        return np.asarray((per_scale - log) / np.where(log, self.from_latent(g), 1.0))

    def box_bounds(self, boxes: Array) -> tuple[Array, Array]:
        return self._normal_scores(boxes[..., 0]), self._normal_scores(boxes[..., 1])

    def _normal_scores(self, x: Array) -> Array:
        """Return h (G, d) of natural values, ±∞ where they are."""
        marginals = self.sampling.marginals
        clipped = np.clip(self.sampling.to_scale(x), marginals.low, marginals.high)
        is_finite = np.isfinite(clipped)
        median = marginals.value(torch.zeros(1, x.shape[1], dtype=torch.float64)).numpy()
        finite_values = np.where(is_finite, clipped, median)
        return np.where(is_finite, marginals.normal_score(finite_values), clipped)

    @property
    def root(self) -> Array:
        return np.asarray(self.sampling.cholesky, dtype=np.float64)


def reordering_matrices(
    latent: Latent, target: Latent, order: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return G (d, d), orthogonal, and the permutation M (p, p): g' = G g and t' = M t of a point.

    g and t are its latent point and features by ``latent``, and g' and t' those of ``target``, with
    the features numbered ``order``.
    """
    permutation = np.eye(len(order))[list(order)]
    rotation = torch.from_numpy(np.linalg.solve(target.root, permutation @ latent.root))
    owners = np.asarray(order)[target.feature_of_column]
    new_columns = np.argsort(owners, kind="stable")
    old_columns = np.argsort(latent.feature_of_column, kind="stable")
    column_permutation = torch.zeros(len(owners), len(owners), dtype=torch.float64)
    column_permutation[new_columns, old_columns] = 1.0
    return rotation, column_permutation


def make_latent(sampling: SamplingDensity, points: Array | None = None) -> Latent:
    """Return latent coordinates of λ, with the `radius` of the farthest of ``points`` (n, d)."""
    latent: Latent
    if isinstance(sampling, Uniform):
        latent = BoxLatent(sampling)
    elif isinstance(sampling, GaussianMixture):
        latent = AffineLatent(sampling)
    elif isinstance(sampling, Empirical):
        latent = CopulaLatent(sampling)
    else:
        raise DensityError(
            f"make_latent: no latent coordinates for a {type(sampling).__name__}; "
            "the densities known here are Uniform, GaussianMixture and Empirical; pass one of them."
        )
    if points is not None:
        latent.radius = float(np.linalg.norm(latent.to_latent(points), axis=1).max())
    return latent
