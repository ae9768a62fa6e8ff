"""Targets: belief densities with exact draws, and their sampling densities λ.

Where λ is uniform the judge's belief is the density restricted to λ's box, and so are the draws.

*The paper's eight targets* (its appendix E.1). Where its text and its published numbers disagree,
this is used:

- Twomoons2D has radius 2 and |x₁| in both of its terms, as in Stimper, Schölkopf and
  Hernández-Lobato (2022), where it is from; the text prints radius 1 and x₁.
- Ring2D is the one the published numbers were computed on: the radius is N(2, 0.25²) and the
  density in the plane has a factor 1/r. The text prints another, with standard deviation 0.125
  and no such factor: it is here as Ring2D-printed, outside the paper's eight.
- Stargaussian6D is computed by logsumexp: in single precision the plain sum is zero at a sixth
  of λ's points.
- Gaussian λ (d > 4) is diagonal with three times the target's **variances**, as the text says; for
  Mixturegaussians10D a mixture, the same for each component.

*Tuning targets*, on which settings are chosen, so that the paper's eight stay unseen. None is in a
printed table. They bend (banana, sinusoid, arcs, pinwheel), narrow (funnel), cross, are skewed in
natural units (log-normal), gather at the edges (beta), have several scales, heavy tails (Student t,
Laplace), unequal weights (mixtures) or strong correlations, in 2 to 8 dimensions, under uniform and
under Gaussian λ. Settings are chosen on seeds from 11; the printed tables have seeds 1 to 10:

    python -m benchmarks ablation --targets tuning --seeds 11-13
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from llm_elicit.density import GaussianMixture, SamplingDensity, Uniform
from llm_elicit.errors import ElicitError, InputError

Array = npt.NDArray[np.float64]
LogDensity = Callable[[Array], Array]
Draw = Callable[[int, np.random.Generator], Array]
_ROUNDS = 10_000


@dataclass(frozen=True)
class Target:
    """A belief density with everything known about it.

    Attributes:
        name: the paper's name, or ours.
        sampling: λ, what the compared points are drawn from; natural units, (n, d).
        log_density: log p at points (n, d) up to a constant, nats, shape (n,).
        draw: exact draws (n, d) of the density before it is restricted to λ's support.
        law: the density before that restriction, where it is a mixture of Gaussians.

    Examples:
        >>> law = GaussianMixture([1.0], [[0.0, 0.0]], [np.eye(2)])
        >>> target = mixture("Gaussian", law, cube(1.0, 2))
        >>> bool(abs(target.sample(1000, np.random.default_rng(0))).max() <= 1.0)
        True
    """

    name: str
    sampling: SamplingDensity
    log_density: LogDensity
    draw: Draw
    law: GaussianMixture | None = None

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.sampling.dimension

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Exact draws (n, d) of the density restricted to λ's support."""
        return _accepted(n, lambda size: self.draw(size, rng), self.sampling.contains)


def rejection(log_density: LogDensity, top: float, box: Uniform) -> Draw:
    """Exact draws of a density on a box; `top` bounds its logarithm from above.

    Raises:
        ElicitError: when drawing, if the density exceeds the bound.
    """

    def draw(n: int, rng: np.random.Generator) -> Array:
        def accept(points: Array) -> npt.NDArray[np.bool_]:
            logs = log_density(points)
            if logs.max() > top + 1e-9:
                raise ElicitError(f"a log-density of {logs.max()} exceeds its bound {top}")
            return np.asarray(np.log(rng.random(len(points))) < logs - top)

        return _accepted(n, lambda size: box.sample(size, rng), accept)

    return draw


def _accepted(
    n: int, propose: Callable[[int], Array], accept: Callable[[Array], npt.NDArray[np.bool_]]
) -> Array:
    """Keep proposing until n points are accepted.

    Raises:
        ElicitError: hardly any point is ever accepted.
    """
    kept: list[Array] = []
    count, proposed = 0, 0
    for _ in range(_ROUNDS):
        rate = max(count, 1) / max(proposed, 1)
        size = int(np.clip(1.1 * (n - count) / rate + 100, 100, 1_000_000))
        points = propose(size)
        points = points[accept(points)]
        kept.append(points)
        count, proposed = count + len(points), proposed + size
        if count >= n:
            return np.concatenate(kept)[:n]
    raise ElicitError(f"{count} of {proposed} proposals were accepted; {n} points were wanted")


def mixture(name: str, law: GaussianMixture, sampling: SamplingDensity) -> Target:
    """Return a target that is a Gaussian or a mixture of Gaussians."""
    return Target(name, sampling, law.log_prob, law.sample, law)


def wide_sampling(law: GaussianMixture, factor: float = 3.0) -> GaussianMixture:
    """Return λ for d > 4: at the components' means, diagonal, with `factor` times their variances.

    Examples:
        >>> law = GaussianMixture([1.0], [[0.0, 0.0]], [[[1.0, 0.9], [0.9, 1.0]]])
        >>> wide_sampling(law).covariances.tolist()
        [[[3.0, 0.0], [0.0, 3.0]]]
    """
    variances = np.diagonal(law.covariances, axis1=1, axis2=2)
    return GaussianMixture(law.weights, law.means, [np.diag(factor * v) for v in variances])


def cube(side: float, dimension: int) -> Uniform:
    """Return the box [-side, side]^dimension."""
    return Uniform(np.full(dimension, -side), np.full(dimension, side))


def _onemoon(x: Array) -> Array:
    r = np.linalg.norm(x, axis=1)
    return np.asarray(-0.5 * ((r - 2) / 0.2) ** 2 - 0.5 * ((x[:, 0] + 2) / 0.3) ** 2)


def _twomoons(x: Array) -> Array:
    r, side = np.linalg.norm(x, axis=1), np.abs(x[:, 0])
    moons = -((r - 2) ** 2) / 0.08 - (side - 2) ** 2 / 0.18
    return np.asarray(moons + np.log1p(np.exp(-4 * side / 0.09)))


def _ring(x: Array) -> Array:
    r = np.maximum(np.linalg.norm(x, axis=1), 1e-12)
    return np.asarray(-0.5 * ((r - 2) / 0.25) ** 2 - np.log(r))


def _draw_ring(n: int, rng: np.random.Generator) -> Array:
    # The radius is 8 standard deviations from zero: a negative one is never drawn.
    r, angle = np.abs(rng.normal(2.0, 0.25, n)), rng.uniform(0.0, 2 * np.pi, n)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


def _printed_ring(x: Array) -> Array:
    return np.asarray(-32.0 * (np.linalg.norm(x, axis=1) - 2) ** 2)


def _alternating(d: int) -> Array:
    """Return (−1)^j for j = 1 … d."""
    return np.where(np.arange(1, d + 1) % 2 == 1, -1.0, 1.0)


def _gaussian(d: int) -> GaussianMixture:
    covariance = np.full((d, d), d / 15) + np.diag(np.full(d, d / 10 - d / 15))
    return GaussianMixture([1.0], [2 * _alternating(d)], [covariance])


def _four_gaussians(d: int) -> GaussianMixture:
    """Return components at distance 3, stretched towards the origin (variances 1 and 0.1)."""
    ones, signs = np.ones(d), _alternating(d)
    units = np.stack([ones, -ones, signs, -signs]) / np.sqrt(d)
    covariances = 0.1 * np.eye(d) + 0.9 * units[:, :, None] * units[:, None, :]
    return GaussianMixture(np.full(4, 0.25), 3 * units, covariances)


def _star(d: int = 6, rho: float = 0.9) -> GaussianMixture:
    signs = _alternating(d)
    covariances = [
        (1 - rho) * np.eye(d) + rho * np.outer(side, side) for side in (np.ones(d), signs)
    ]
    return GaussianMixture([0.5, 0.5], np.full((2, d), 3.0), covariances)


_SQUARE = cube(3.0, 2)
_AROUND_STAR = wide_sampling(GaussianMixture([1.0], np.full((1, 6), 3.0), [np.eye(6)]))
RING_PRINTED = Target(
    "Ring2D-printed", _SQUARE, _printed_ring, rejection(_printed_ring, 0.0, _SQUARE)
)
NORMAL = mixture("Normal1D", GaussianMixture([1.0], [[0.7]], [[[0.64]]]), cube(3.0, 1))
PAPER_TARGETS = (
    Target("Onemoon2D", _SQUARE, _onemoon, rejection(_onemoon, 0.0, _SQUARE)),
    Target("Twomoons2D", _SQUARE, _twomoons, rejection(_twomoons, 0.0, _SQUARE)),
    Target("Ring2D", _SQUARE, _ring, _draw_ring),
    mixture("Gaussian4D", _gaussian(4), cube(5.0, 4)),
    mixture("Mixturegaussians4D", _four_gaussians(4), cube(4.0, 4)),
    mixture("Stargaussian6D", _star(), _AROUND_STAR),
    mixture("Mixturegaussians10D", _four_gaussians(10), wide_sampling(_four_gaussians(10))),
    mixture("Gaussian16D", _gaussian(16), wide_sampling(_gaussian(16))),
)

_ARC_CENTRES, _ARC_WEIGHTS = np.array([0.0, np.pi]), np.array([0.4, 0.6])
_ARMS = 2.0 * np.pi / 3.0 * np.arange(3)
_LOGS = stats.multivariate_normal([0.0, 0.5, 1.0], 0.5 * (0.5 * np.eye(3) + 0.5 * np.ones((3, 3))))
_BETA = stats.beta([0.4, 0.5, 0.7, 1.0], [0.4, 0.8, 0.7, 4.0])
_CORRELATED = 0.3 * np.eye(4) + 0.7 * np.ones((4, 4))
_STUDENT = stats.multivariate_t(np.zeros(4), 0.5 * _CORRELATED, df=5)


def _log_normal(x: Array, mean: Array | float, sd: Array | float) -> Array:
    return np.asarray(-0.5 * ((x - mean) / sd) ** 2 - np.log(sd))


def _banana(x: Array) -> Array:
    return _log_normal(x[:, 0], 0.0, 1.0) + _log_normal(x[:, 1], 0.5 * x[:, 0] ** 2 - 1, 0.4)


def _draw_banana(n: int, rng: np.random.Generator) -> Array:
    first = rng.normal(size=n)
    return np.stack([first, rng.normal(0.5 * first**2 - 1, 0.4)], axis=1)


def _funnel(x: Array) -> Array:
    return _log_normal(x[:, 0], 0.0, 1.0) + _log_normal(x[:, 1], 0.0, np.exp(0.5 * x[:, 0]))


def _draw_funnel(n: int, rng: np.random.Generator) -> Array:
    first = rng.normal(size=n)
    return np.stack([first, rng.normal(0.0, np.exp(0.5 * first))], axis=1)


def _sinusoid(x: Array) -> Array:
    wave = 1.5 * np.sin(1.5 * x[:, 0])
    return _log_normal(x[:, 0], 0.0, 1.5) + _log_normal(x[:, 1], wave, 0.3)


def _draw_sinusoid(n: int, rng: np.random.Generator) -> Array:
    first = rng.normal(0.0, 1.5, n)
    return np.stack([first, rng.normal(1.5 * np.sin(1.5 * first), 0.3)], axis=1)


def _student(x: Array) -> Array:
    return np.asarray(_STUDENT.logpdf(x)).reshape(len(x))


def _draw_student(n: int, rng: np.random.Generator) -> Array:
    return np.asarray(_STUDENT.rvs(n, random_state=rng)).reshape(n, 4)


def _arcs(x: Array) -> Array:
    """Return two arcs of one ring, 0.6 of the mass on the left one."""
    r, angle = np.maximum(np.linalg.norm(x, axis=1), 1e-12), np.arctan2(x[:, 1], x[:, 0])
    arcs = np.log(_ARC_WEIGHTS) + 5.0 * np.cos(angle[:, None] - _ARC_CENTRES)
    along = np.logaddexp.reduce(arcs, axis=1)
    return np.asarray(-0.5 * ((r - 2.0) / 0.2) ** 2 - np.log(r) + along)


def _draw_arcs(n: int, rng: np.random.Generator) -> Array:
    # The radius is 10 standard deviations from zero: a negative one is never drawn.
    r, centre = np.abs(rng.normal(2.0, 0.2, n)), rng.choice(_ARC_CENTRES, n, p=_ARC_WEIGHTS)
    angle = rng.vonmises(centre, 5.0)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


def _cross(d: int = 5, rho: float = 0.9) -> GaussianMixture:
    """Return two ridges that cross, along (1, …, 1) and along (1, 1, −1, −1, …), 0.6 and 0.4."""
    sides = np.ones(d), np.where(np.arange(d) < d // 2, 1.0, -1.0)
    covariances = [(1 - rho) * np.eye(d) + rho * np.outer(side, side) for side in sides]
    return GaussianMixture([0.6, 0.4], np.zeros((2, d)), covariances)


def _unequal(d: int) -> GaussianMixture:
    """Return components of weight 3/4 and 1/4 and different shape, 3 apart in two features."""
    means = np.zeros((2, d))
    means[0, :2], means[1, :2] = (-1.0, -1.0), (1.5, 1.0)
    narrow, wide = 0.15 * np.eye(d), 0.35 * np.eye(d)
    wide[0, 1] = wide[1, 0] = -0.25
    return GaussianMixture([0.75, 0.25], means, [narrow, wide])


def _chain(d: int = 8, rho: float = 0.8) -> GaussianMixture:
    """Neighbours correlate: entry (i, j) of the covariance is ρ^|i−j|."""
    order = np.arange(d)
    covariance = rho ** np.abs(order[:, None] - order[None, :])
    return GaussianMixture([1.0], [np.linspace(-1.0, 1.0, d)], [covariance])


def _pinwheel(x: Array) -> Array:
    """Return three arms that wind around the origin, of equal width along their length."""
    r, angle = np.maximum(np.linalg.norm(x, axis=1), 1e-12), np.arctan2(x[:, 1], x[:, 0])
    sharp = (r / 0.25) ** 2
    arms = sharp[:, None] * (np.cos(angle[:, None] - _ARMS - r[:, None]) - 1.0)
    along = np.logaddexp.reduce(arms, axis=1) - np.log(special.i0e(sharp))
    return np.asarray(-0.5 * ((r - 2.0) / 0.6) ** 2 - np.log(r) + along)


def _draw_pinwheel(n: int, rng: np.random.Generator) -> Array:
    # The radius is more than three standard deviations from zero.
    r = np.abs(rng.normal(2.0, 0.6, n))
    angle = rng.vonmises(rng.choice(_ARMS, n) + r, (r / 0.25) ** 2)
    return np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)


def _positive(x: Array) -> Array:
    return np.asarray(_LOGS.logpdf(np.log(x)) - np.log(x).sum(1))


def _draw_positive(n: int, rng: np.random.Generator) -> Array:
    return np.exp(np.asarray(_LOGS.rvs(n, random_state=rng)).reshape(n, 3))


def _edges(x: Array) -> Array:
    return np.asarray(_BETA.logpdf(x).sum(1))


def _draw_edges(n: int, rng: np.random.Generator) -> Array:
    return np.asarray(_BETA.rvs((n, 4), random_state=rng))


def _scales() -> GaussianMixture:
    """Return components of widths .12, .4 and 1.2, of equal weight."""
    means = [[1.0, 1.0, 0.0], [-1.0, 0.5, 1.0], [0.0, -0.5, -0.5]]
    return GaussianMixture(np.full(3, 1 / 3), means, [s**2 * np.eye(3) for s in (0.12, 0.4, 1.2)])


def _laplace(x: Array) -> Array:
    return np.asarray(-np.abs(x - _alternating(8)).sum(1) / 0.7)


def _draw_laplace(n: int, rng: np.random.Generator) -> Array:
    return _alternating(8) + rng.laplace(0.0, 0.7, (n, 8))


def _around(law: GaussianMixture) -> GaussianMixture:
    """One diagonal Gaussian with three times the variances of the whole mixture."""
    return GaussianMixture([1.0], [law.mean], [np.diag(3 * np.diag(law.covariance))])


TUNING_TARGETS = (
    Target("Banana2D", Uniform([-3.0, -2.5], [3.0, 4.5]), _banana, _draw_banana),
    Target("Funnel2D", Uniform([-4.0, -6.0], [4.0, 6.0]), _funnel, _draw_funnel),
    Target("Sinusoid2D", cube(4.0, 2), _sinusoid, _draw_sinusoid),
    Target("Arcs2D", cube(3.0, 2), _arcs, _draw_arcs),
    Target("Pinwheel2D", cube(4.0, 2), _pinwheel, _draw_pinwheel),
    mixture("UnequalMixture2D", _unequal(2), cube(4.0, 2)),
    mixture("Cross2D", _cross(2), cube(4.0, 2)),
    Target("LogNormal3D", Uniform(np.full(3, 0.01), np.full(3, 12.0)), _positive, _draw_positive),
    mixture("Scales3D", _scales(), cube(4.0, 3)),
    Target("Edges4D", Uniform(np.zeros(4), np.ones(4)), _edges, _draw_edges),
    Target("StudentT4D", cube(5.0, 4), _student, _draw_student),
    mixture("UnequalMixture5D", _unequal(5), _around(_unequal(5))),
    mixture("Cross5D", _cross(), _around(_cross())),
    mixture("Gaussian8D", _chain(), wide_sampling(_chain())),
    Target("Laplace8D", cube(5.0, 8), _laplace, _draw_laplace),
)
GROUPS = {"paper": PAPER_TARGETS, "tuning": TUNING_TARGETS}


def find(names: Iterable[str]) -> list[Target]:
    """Return targets by their names or their group's, in the order given; case does not matter.

    Raises:
        InputError: a name is unknown.

    Examples:
        >>> [target.dimension for target in find(["gaussian4d", "Ring2D"])]
        [4, 2]
        >>> len(find(["paper"]))
        8
    """
    every = (*PAPER_TARGETS, RING_PRINTED, NORMAL, *TUNING_TARGETS)
    known = {**GROUPS, **{target.name.lower(): (target,) for target in every}}
    found: list[Target] = []
    for name in names:
        if name.lower() not in known:
            choices = ", ".join([*GROUPS, *(target.name for target in every)])
            raise InputError(f"target {name!r} is unknown; choose from {choices}")
        found.extend(known[name.lower()])
    return found
