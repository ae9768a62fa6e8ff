"""The eight targets of the paper, one more (its appendix E.1), and a normal one of one feature.

Where the paper's text and what its numbers can have come from differ, this is what is used:

- Twomoons2D has radius 2 and |x₁| in both of its terms, as in Stimper, Schölkopf and
  Hernández-Lobato (2022), where it is from; the text prints radius 1 and x₁.
- Ring2D is the one the published numbers were computed on: the radius is N(2, 0.25²) and the
  density in the plane has a factor 1/r. The text prints another, with standard deviation 0.125
  and no such factor: it is here as Ring2D-printed, outside the paper's eight.
- Stargaussian6D is computed by logsumexp: in single precision the plain sum is zero at a sixth
  of λ's points.
- Gaussian λ (d > 4) is diagonal with three times the target's **variances**, as the text says; for
  Mixturegaussians10D a mixture, the same for each component.
"""

from __future__ import annotations

import numpy as np

from llm_elicit.benchmarks.targets import Array, Target, cube, mixture, rejection, wide_sampling
from llm_elicit.density import GaussianMixture


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
    """(−1)^j for j = 1 … d."""
    return np.where(np.arange(1, d + 1) % 2 == 1, -1.0, 1.0)


def _gaussian(d: int) -> GaussianMixture:
    covariance = np.full((d, d), d / 15) + np.diag(np.full(d, d / 10 - d / 15))
    return GaussianMixture([1.0], [2 * _alternating(d)], [covariance])


def _four_gaussians(d: int) -> GaussianMixture:
    """Components at distance 3, each stretched along the line to the origin (variance 1, 0.1)."""
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
