"""Targets on which settings are chosen, so that the paper's eight stay unseen until the end.

None of them is in a printed table. They bend (banana, sinusoid, arcs), narrow (funnel), cross,
have heavy tails (Student t), unequal weights (mixtures) or strong correlations, in 2 to 8
dimensions, under uniform and under Gaussian λ. The seeds to choose on are 11 and above, where
the printed tables have 1 to 10:

    llm-elicit bench ablation --targets tuning --seeds 11-13
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from llm_elicit.benchmarks.targets import Array, Target, cube, mixture, wide_sampling
from llm_elicit.density import GaussianMixture, Uniform

_ARC_CENTRES, _ARC_WEIGHTS = np.array([0.0, np.pi]), np.array([0.4, 0.6])
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
    """Two arcs of one ring, 0.6 of the mass on the left one."""
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
    """Two ridges that cross, along (1, …, 1) and along (1, 1, −1, −1, …), 0.6 and 0.4."""
    sides = np.ones(d), np.where(np.arange(d) < d // 2, 1.0, -1.0)
    covariances = [(1 - rho) * np.eye(d) + rho * np.outer(side, side) for side in sides]
    return GaussianMixture([0.6, 0.4], np.zeros((2, d)), covariances)


def _unequal(d: int) -> GaussianMixture:
    """Weights 3/4 and 1/4, three units apart along each of two features, of unlike shapes."""
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


def _around(law: GaussianMixture) -> GaussianMixture:
    """One diagonal Gaussian with three times the variances of the whole mixture."""
    return GaussianMixture([1.0], [law.mean], [np.diag(3 * np.diag(law.covariance))])


TUNING_TARGETS = (
    Target("Banana2D", Uniform([-3.0, -2.5], [3.0, 4.5]), _banana, _draw_banana),
    Target("Funnel2D", Uniform([-4.0, -6.0], [4.0, 6.0]), _funnel, _draw_funnel),
    Target("Sinusoid2D", cube(4.0, 2), _sinusoid, _draw_sinusoid),
    Target("Arcs2D", cube(3.0, 2), _arcs, _draw_arcs),
    mixture("UnequalMixture2D", _unequal(2), cube(4.0, 2)),
    Target("StudentT4D", cube(5.0, 4), _student, _draw_student),
    mixture("UnequalMixture5D", _unequal(5), _around(_unequal(5))),
    mixture("Cross5D", _cross(), _around(_cross())),
    mixture("Gaussian8D", _chain(), wide_sampling(_chain())),
)
