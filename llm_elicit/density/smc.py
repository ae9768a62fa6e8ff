"""Draws, normalizing constants and quasi-random points of unnormalized densities.

`anneal` gives draws and normalizing constants by annealed sequential Monte Carlo,
`sample_shared_points` and `sample_evenly` give quasi-random points.

*Annealing* (Del Moral, Doucet and Jasra, 2006). Exact draws of a start q are moved along
q^(1−β) π^β, where π is the target. Each step of β is as large as keeps the effective sample size at
a set share. Particles are then resampled systematically and moved by the Metropolis-adjusted
Langevin algorithm, preconditioned by their own covariance. Weights carry mass between far-apart
modes, so the modes keep their shares, and the increments give log Z = log ∫ π.

*The start* is λ, or a mixture fitted to earlier draws. From λ to a sharp belief each temperature
costs moves, and few initial particles have descendants at the end. A fit therefore anneals from λ
once, fits a Gaussian mixture to the particles, and starts every later run from
q = 0.1 λ + 0.9 mixture (a defensive mixture; Hesterberg, 1995). Importance weights π/q correct
the errors of the mixture, including the weights of its modes. Since a tenth of q is λ, no weight is
more than ten times the weight π/λ of a start from λ, even where the first run found no mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from llm_elicit.density.errors import Array, DensityError, Flags
from llm_elicit.density.latent import Latent, sobol_cube
from llm_elicit.density.sampling import bisect
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.torch_utils import sum_last

LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Log-densities (n,) and their gradients (n, d) at latent points (n, d)."""

_SAMPLING_SHARE = 0.1  # of λ in the start q
_MAX_COMPONENTS = 16
_MAX_FITTED_DRAWS = 4096  # draws that a mixture is fitted to, at most
_ITERATIONS = 15  # of expectation maximization
_WIDENING = 1.2  # factor of the mixture's covariances, so that its tails are not too light
_CHUNK = 2048  # points at which a mixture is evaluated at once, to limit memory
_FIRST_POINTS, _POINTS = 4096, 16_384  # quasi-random points of the first and the fitted mixture
_STEP = 0.5
_BISECTIONS, _MIN_INCREMENT = 40, 1e-9  # of the steps of annealing
_MIN_SHARE = 0.2  # least effective share of the points from which `sample_evenly` resamples


@dataclass(frozen=True)
class Draws:
    """Latent points (n, d), double precision, and their genealogies (n,), integers from 0.

    Draws of one genealogy descend from the same particle and are dependent; draws of different
    genealogies are independent.

    Examples:
        >>> import torch
        >>> Draws.independent(torch.zeros(3, 2)).genealogies.tolist()
        [0, 1, 2]
    """

    points: Tensor
    genealogies: Tensor

    @classmethod
    def independent(cls, points: Tensor) -> Draws:
        """Return independent draws: each has a genealogy of its own."""
        return cls(points, torch.arange(len(points)))

    def take(self, index: Tensor) -> Draws:
        """Return the draws numbered ``index`` (m,)."""
        return Draws(self.points[index], self.genealogies[index])


@dataclass(frozen=True)
class AnnealingResult:
    """Draws of the target, log Z in nats, the number of temperatures, and the adapted step."""

    draws: Draws
    log_normalizer: float
    temperatures: int
    step: float


@dataclass(frozen=True)
class _Particles:
    """Points (n, d), with log-densities (2, n) of start and target and their slopes (2, n, d)."""

    points: Tensor
    values: Tensor
    slopes: Tensor

    @classmethod
    def evaluate(cls, points: Tensor, *densities: LogDensity) -> _Particles:
        values, slopes = zip(*(density(points) for density in densities), strict=True)
        return cls(points, torch.stack(values), torch.stack(slopes))

    def take(self, index: Tensor) -> _Particles:
        return _Particles(self.points[index], self.values[:, index], self.slopes[:, index])

    def replace_where(self, others: _Particles, mask: Tensor) -> _Particles:
        """Return these particles, replaced by those of ``others`` where the mask (n,) is set."""
        values, row = torch.where(mask, others.values, self.values), mask[:, None]
        points = torch.where(row, others.points, self.points)
        return _Particles(points, values, torch.where(row, others.slopes, self.slopes))

    def bridge(self, beta: float) -> tuple[Tensor, Tensor]:
        """Return log q^(1−β) π^β (n,) and its gradient (n, d)."""
        value = (1.0 - beta) * self.values[0] + beta * self.values[1]
        return value, (1.0 - beta) * self.slopes[0] + beta * self.slopes[1]


def anneal(
    points: Tensor,
    start: LogDensity,
    target: LogDensity,
    generator: torch.Generator,
    settings: AnnealingSettings,
    step: float = 0.5,
) -> AnnealingResult:
    """Move exact draws ``points`` (n, d) of ``start``, a normalized density, to ``target``.

    ``step`` is the first Langevin step, in units of the particles' covariance.

    Raises:
        DensityError: a log-density is NaN or +∞ at a point, or −∞ at all of them.
    """
    particles = _Particles.evaluate(points, start, target)
    values = particles.values[1] - particles.values[0]
    invalid_count = int((values.isnan() | (values == math.inf)).sum())
    if invalid_count or not values.isfinite().any():
        raise DensityError(
            f"anneal: the log-density is NaN or +∞ at {invalid_count} of {len(values)} points and "
            f"finite at {int(values.isfinite().sum())}; every value must be finite or −∞, and "
            "at least one finite; fit again, or check the density."
        )
    beta, log_normalizer, temperatures = 0.0, 0.0, 0
    genealogies = torch.arange(len(points))
    while beta < 1.0:
        ratio = particles.values[1] - particles.values[0]
        remaining = torch.tensor([1.0 - beta], dtype=torch.float64)
        increment = float(next_increments(ratio[None], remaining, settings.ess))
        log_weights = increment * ratio
        log_normalizer += float(torch.logsumexp(log_weights, 0)) - math.log(len(ratio))
        beta = 1.0 if increment >= 1.0 - beta else beta + increment
        parents = systematic_resample(log_weights, generator)
        particles, genealogies = particles.take(parents), genealogies[parents]
        temperatures += 1
        moves, distance = settings.moves, None
        if beta == 1.0:
            # The start no longer counts, so it need not be evaluated.
            start = lambda g: (torch.zeros_like(g[:, 0]), torch.zeros_like(g))  # noqa: E731
            moves, distance = settings.final_moves, _Distance(particles.points)
        for _ in range(moves):
            particles, rate = _langevin_move(particles, (start, target), beta, step, generator)
            step *= math.exp(0.5 * (rate - settings.acceptance))
            if distance is not None and distance.growth(particles.points) < settings.settled:
                break
    return AnnealingResult(Draws(particles.points, genealogies), log_normalizer, temperatures, step)


class _Distance:
    """Mean squared distance of particles from where they were resampled, by their covariance."""

    def __init__(self, points: Tensor) -> None:
        self.origin, self.factor = points, _covariance_factor(points)
        self.squared = torch.zeros_like(points[0])

    def growth(self, points: Tensor) -> float:
        """Return the relative growth since the last call, in the direction where it is largest."""
        displacement = (points - self.origin).T
        white = torch.linalg.solve_triangular(self.factor, displacement, upper=False)
        squared = white.square().mean(1)
        growth = 1.0 - self.squared / squared.clamp(min=1e-30)
        self.squared = squared
        return float(growth.max())


def next_increments(ratio: Tensor, remaining: Tensor, share: float) -> Tensor:
    """Return for each density (G,) the largest step in β of which weights keep a share effective.

    Args:
        ratio: (G, n) log-ratios of the target and the start at the particles of each density.
        remaining: (G,) the largest step.
        share: of the n particles.
    """
    shifted, whole = ratio - ratio.amax(1, keepdim=True), remaining.numpy()

    def keeps_share(increment: Array) -> Flags:
        weights = torch.exp(torch.from_numpy(increment)[:, None] * shifted)
        shares = weights.mean(1).square() / weights.square().mean(1)
        return np.asarray((shares >= share).numpy())

    keeps_whole = keeps_share(whole)
    if keeps_whole.all():
        return remaining
    increment = bisect(keeps_share, np.zeros_like(whole), whole, _BISECTIONS)
    # If too many ratios are −∞, no step keeps the share, and the smallest one is taken.
    return torch.from_numpy(np.where(keeps_whole, whole, increment.clip(_MIN_INCREMENT)))


def systematic_resample(
    log_weights: Tensor, generator: torch.Generator, n: int | None = None
) -> Tensor:
    """Return the indices (..., n) of systematic resampling: each particle about n·weight times.

    ``n`` is the number of particles, the last axis of ``log_weights``, unless given.
    """
    size = log_weights.shape[-1]
    n = size if n is None else n
    edges = torch.softmax(log_weights.double(), -1).cumsum(-1)
    offset = torch.rand((), generator=generator, dtype=torch.float64)
    positions = (torch.arange(n, dtype=torch.float64) + offset) / n
    positions = positions.expand(*edges.shape[:-1], n).contiguous()
    return torch.searchsorted(edges, positions).clamp(max=size - 1)


def _langevin_move(
    particles: _Particles,
    densities: tuple[LogDensity, LogDensity],
    beta: float,
    step: float,
    generator: torch.Generator,
) -> tuple[_Particles, float]:
    """Return particles after one Metropolis-adjusted Langevin move, and the acceptance rate."""
    x = particles.points
    factor = _covariance_factor(x)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    value, slope = particles.bridge(beta)
    drift = 0.5 * step * (slope @ factor)
    proposal = x + math.sqrt(step) * (noise + drift / math.sqrt(step)) @ factor.T
    proposed = _Particles.evaluate(proposal, *densities)
    new_value, new_slope = proposed.bridge(beta)
    back_drift = 0.5 * step * (new_slope @ factor)
    # In whitened coordinates the move is √step·noise + drift, and the reverse move undoes it.
    back_noise = -noise - (drift + back_drift) / math.sqrt(step)
    log_accept = new_value - value + 0.5 * sum_last(noise.square() - back_noise.square())
    uniform = torch.rand(len(x), generator=generator, dtype=x.dtype)
    rate = float(log_accept.clamp(max=0.0).exp().nan_to_num(0.0).mean())
    return particles.replace_where(proposed, torch.log(uniform) < log_accept), rate


def _covariance_factor(x: Tensor) -> Tensor:
    """Return a Cholesky factor of the particles' covariance, with a floor on its eigenvalues."""
    centred = x - x.mean(0)
    covariance = centred.T @ centred / len(x)
    floor = 1e-6 * torch.eye(x.shape[1], dtype=x.dtype) * (covariance.diagonal().mean() + 1e-6)
    factor: Tensor = torch.linalg.cholesky(covariance + floor)
    return factor


@dataclass(frozen=True)
class Proposal:
    """q = 0.1 λ + 0.9 Σ_k w_k N(m_k, L_k L_kᵀ) in latent coordinates.

    Attributes:
        weights, means, factors: w (k,), m (k, d) and L (k, d, d), double precision.
        step: () the adapted Langevin step of the draws that the mixture was fitted to.
    """

    weights: Tensor
    means: Tensor
    factors: Tensor
    step: Tensor

    @classmethod
    def fit(cls, points: Tensor, step: float, generator: torch.Generator) -> Proposal:
        """Return the mixture fitted to latent draws (n, d) by expectation maximization.

        It starts from k-means clusters, and its covariances are widened by a fifth at the end.
        """
        points = points[torch.randperm(len(points), generator=generator)[:_MAX_FITTED_DRAWS]]
        n, d = points.shape
        count = max(1, min(_MAX_COMPONENTS, n // (20 * d)))
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        labels = kmeans2(points.numpy(), count, minit="++", rng=rng)[1]
        fit = _maximize(points, torch.from_numpy(np.eye(count)[labels]), step)
        for _ in range(_ITERATIONS):
            fit = _maximize(points, torch.softmax(fit._log_parts(points)[0], 1), step)
        return Proposal(fit.weights, fit.means, math.sqrt(_WIDENING) * fit.factors, fit.step)

    def rotate(self, matrix: Tensor) -> Proposal:
        """Return the density of g M, for g from this mixture and an orthogonal M (d, d)."""
        roots = matrix.T @ self.factors
        factors = torch.linalg.cholesky(roots @ roots.mT)
        return Proposal(self.weights, self.means @ matrix, factors, self.step)

    def draw(self, latent: Latent, n: int, generator: torch.Generator) -> Tensor:
        """Return n draws (n, d) of q, a fixed number of them from λ."""
        sampling_count = round(_SAMPLING_SHARE * n)
        count = n - sampling_count
        index = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        white = torch.randn(count, self.means.shape[1], generator=generator, dtype=torch.float64)
        return torch.cat([latent.draw(sampling_count, generator), self._to_gaussians(index, white)])

    def draw_sobol(self, latent: Latent, n: int, generator: torch.Generator) -> Tensor:
        """Return n points (n, d) of q by a Sobol sequence, more even than those of `draw`."""
        sampling_count = round(_SAMPLING_SHARE * n)
        cube = sobol_cube(n - sampling_count, 1 + self.means.shape[1], generator)
        edges = self.weights.cumsum(0)
        index = torch.searchsorted(edges, cube[:, 0].contiguous()).clamp(max=len(edges) - 1)
        white = torch.special.ndtri(cube[:, 1:])
        sampling_points = latent.draw_sobol(sampling_count, generator)
        return torch.cat([sampling_points, self._to_gaussians(index, white)])

    def _to_gaussians(self, index: Tensor, white: Tensor) -> Tensor:
        """Return points (n, d) of the Gaussians ``index`` (n,) from standard normal ones (n, d)."""
        return self.means[index] + torch.einsum("nij,nj->ni", self.factors[index], white)

    def log_density(self, latent: Latent, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return log q (n,) and its gradient (n, d) at latent points (n, d)."""
        parts = [self._value_and_slope(chunk) for chunk in torch.split(g, _CHUNK)]
        value, slope = (torch.cat(part) for part in zip(*parts, strict=True))
        log_mixture = value + math.log(1.0 - _SAMPLING_SHARE)
        log_sampling = latent.log_sampling(g) + math.log(_SAMPLING_SHARE)
        total = torch.logaddexp(log_mixture, log_sampling)
        mixture_share = torch.exp(log_mixture - total)[:, None]
        return total, mixture_share * slope + (1.0 - mixture_share) * latent.sampling_score(g, 0.0)

    def _value_and_slope(self, g: Tensor) -> tuple[Tensor, Tensor]:
        logs, white, inverse = self._log_parts(g)
        responsibilities = torch.softmax(logs, 1)
        weighted = (responsibilities[..., None] * white).reshape(len(g), -1)
        return torch.logsumexp(logs, 1), -(weighted @ inverse.reshape(-1, g.shape[1]))

    def _log_parts(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log weight + log density (n, k), L⁻¹(g − m) (n, k, d), and L⁻¹ (k, d, d)."""
        k, d = self.means.shape
        identity = torch.eye(d, dtype=g.dtype).expand(k, d, d)
        inverse = torch.linalg.solve_triangular(self.factors, identity, upper=False)
        centre = (inverse @ self.means[..., None]).reshape(-1)
        white = (g @ inverse.reshape(k * d, d).T - centre).reshape(len(g), k, d)
        scale = self.factors.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = torch.log(self.weights) - scale - 0.5 * d * math.log(2.0 * math.pi)
        return constant - 0.5 * sum_last(white.square()), white, inverse


def _maximize(points: Tensor, responsibilities: Tensor, step: float) -> Proposal:
    """Return the mixture for responsibilities (n, k), with covariances shrunk to their mean."""
    n, d = points.shape
    mass = responsibilities.sum(0) + 1e-9
    means = (responsibilities.T @ points) / mass[:, None]
    centred = (points - mean for mean in means)
    moments = [
        offsets.T @ (offsets * column[:, None])
        for offsets, column in zip(centred, responsibilities.T, strict=True)
    ]
    scatter = torch.stack(moments)
    pooled = scatter.sum(0) / n + 1e-9 * torch.eye(d, dtype=points.dtype)
    covariances = (scatter + 2.0 * d * pooled) / (mass + 2.0 * d)[:, None, None]
    factors = torch.linalg.cholesky(covariances)
    return Proposal(mass / mass.sum(), means, factors, torch.tensor(step, dtype=torch.float64))


@dataclass(frozen=True)
class SharedPoints:
    """Latent points (m, d) that S densities share, with the weights (S, m) of each density.

    The weights of a density sum to one. ``effective_size`` (S,) is its effective number of points,
    and ``log_normalizers`` (S,) its log Z.
    """

    points: Tensor
    weights: Tensor
    effective_size: Tensor
    log_normalizers: Tensor


def sample_shared_points(
    latent: Latent,
    log_densities: Callable[[Tensor], Tensor],
    start: Proposal | None,
    generator: torch.Generator,
) -> SharedPoints:
    """Return quasi-random points that the densities of all draws share.

    The points follow a defensive mixture q = 0.1 λ + 0.9 Σ_k w_k N(m_k, L_k L_kᵀ), and each density
    weights them by its ratio to q. They are a scrambled Sobol sequence in q's own coordinates
    (Owen, 1998), which hardly depends on the seed. The Gaussians are fitted to the mean of the
    draws' densities, estimated from points of an earlier mixture: adaptive importance sampling
    (Cappé, Douc, Guillin, Marin and Robert, 2008). All draws share the error of the points.

    Args:
        latent: the latent coordinates.
        log_densities: (S, m) at latent points (m, d), per unit of the scales; each unnormalized.
        start: the first mixture; None for λ alone.
        generator: scrambles the sequences.
    """
    first_points = weight_points(latent, log_densities, start, _FIRST_POINTS, generator)
    parents = systematic_resample(first_points.weights.mean(0).log(), generator)
    proposal = Proposal.fit(first_points.points[parents], _STEP, generator)
    return weight_points(latent, log_densities, proposal, _POINTS, generator)


def sample_evenly(
    latent: Latent,
    log_density: Callable[[Tensor], Tensor],
    proposal: Proposal | None,
    n: int,
    generator: torch.Generator,
) -> Tensor | None:
    """Return n latent points (n, d) of one density, in random order.

    They are resampled systematically along a space-filling curve (Gerber, Chopin and Whiteley,
    2019), which keeps them even: their mean varies less than that of independent draws. Returns
    None if the effective number of points is too small.
    """
    sample = weight_points(latent, lambda g: log_density(g)[None], proposal, _POINTS, generator)
    if float(sample.effective_size[0]) < max(_MIN_SHARE * _POINTS, n):
        return None
    order = torch.from_numpy(np.argsort(_morton_order(sample.points.numpy())))
    rows = order[systematic_resample(sample.weights[0][order].log(), generator, n)]
    return sample.points[rows[torch.randperm(n, generator=generator)]]


def _morton_order(points: Array) -> npt.NDArray[np.uint64]:
    """Return the place (n,) of points (n, d) along the Morton curve through their ranks."""
    n, d = points.shape
    bits = max(1, min(10, 60 // d))
    cells = (points.argsort(axis=0).argsort(axis=0) * 2**bits // n).astype(np.uint64)
    position = np.zeros(n, dtype=np.uint64)
    for bit in reversed(range(bits)):
        for column in cells.T[: 60 // bits]:
            position = 2 * position + (column >> np.uint64(bit)) % 2
    return position


def weight_points(
    latent: Latent,
    log_densities: Callable[[Tensor], Tensor],
    proposal: Proposal | None,
    n: int,
    generator: torch.Generator,
) -> SharedPoints:
    """Return n points of ``proposal``, or of λ, with the weights of each density.

    Points outside the support have no weight and are left out.
    """
    if proposal is None:
        g = latent.draw_sobol(n, generator)
        log_q = latent.log_sampling(g)
    else:
        g = proposal.draw_sobol(latent, n, generator)
        log_q = proposal.log_density(latent, g)[0]
    ratio = log_densities(g) + latent.log_volume(g) - log_q
    weights = torch.softmax(ratio, 1)
    logs = torch.logsumexp(ratio, 1) - math.log(len(g))
    inside = torch.isfinite(latent.taper(g))
    return SharedPoints(g[inside], weights[:, inside], 1.0 / weights.square().sum(1), logs)
