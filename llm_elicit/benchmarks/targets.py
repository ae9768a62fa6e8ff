"""What a benchmark's target is: a belief density with exact draws and its sampling density λ.

Where λ is uniform the judge's belief is the density restricted to λ's box, and so are the draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_elicit.density import GaussianMixture, SamplingDensity, Uniform
from llm_elicit.errors import ElicitError

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

    Example:
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
    """A target that is a Gaussian or a mixture of Gaussians."""
    return Target(name, sampling, law.log_prob, law.sample, law)


def wide_sampling(law: GaussianMixture, factor: float = 3.0) -> GaussianMixture:
    """λ for d > 4: at the components' means, diagonal, with `factor` times their variances.

    Example:
        >>> law = GaussianMixture([1.0], [[0.0, 0.0]], [[[1.0, 0.9], [0.9, 1.0]]])
        >>> wide_sampling(law).covariances.tolist()
        [[[3.0, 0.0], [0.0, 3.0]]]
    """
    variances = np.diagonal(law.covariances, axis1=1, axis2=2)
    return GaussianMixture(law.weights, law.means, [np.diag(factor * v) for v in variances])


def cube(side: float, dimension: int) -> Uniform:
    """The box [-side, side]^dimension."""
    return Uniform(np.full(dimension, -side), np.full(dimension, side))
