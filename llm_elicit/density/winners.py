"""The marginal winner density of a belief, and the tempering field that leads back from it.

Of the pairs that a judge with utility u = log p compares, drawn from λ, the preferred points have
the density p_w(x) = 2 λ(x) w(u(x)), with w(u) = E_{x′~λ} F(u − u(x′)), and

    ∇log p = τ (∇log p_w − ∇log λ),    τ = w/w′,

per unit of the features' scales: the paper's equation for a uniform λ (Mikkola, Acerbi and Klami,
2026, Theorem 3.1 and its figure 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.errors import Array, DensityError
from llm_elicit.density.methods import UtilityDensity, utility_and_slope, utility_at
from llm_elicit.density.score.density import ScoreDensity, Tempering
from llm_elicit.density.torch_utils import generator_of, one_thread
from llm_elicit.density.utility_function import Potential


@dataclass(frozen=True)
class WinnerDensity:
    """p_w and τ of a belief, at points (n, d) of the support in natural units.

    Attributes:
        belief: the belief.
        potential: its utility.
        tempering: w and w′ on a grid of utilities, by quadrature over λ.
    """

    belief: BeliefDensity
    potential: Potential
    tempering: Tempering

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log p_w (n,) per natural unit, nats."""
        u = utility_at(self.belief._latent, self.potential, self._latent_points("log_prob", x))
        log_win = self.tempering.log_win_at(u).numpy()
        return np.asarray(math.log(2.0) + log_win + self.belief.sampling.log_prob(np.asarray(x)))

    def tempering_field(self, x: npt.ArrayLike) -> Array:
        """Return τ (n,), nats of log p per nat of log p_w."""
        g = self._latent_points("tempering_field", x)
        return np.asarray(self.tempering.tau(utility_at(self.belief._latent, self.potential, g)))

    def scores(self, x: npt.ArrayLike) -> tuple[Array, Array]:
        """Return ∇log p and ∇log p_w (n, d), per natural unit."""
        latent, g = self.belief._latent, self._latent_points("scores", x)
        with one_thread():
            u, slope = utility_and_slope(latent, self.potential, g)
        of_sampling = latent.sampling_score(g, 0.0) - latent.log_volume_slope(g)
        of_winners = slope / self.tempering.tau(u)[:, None] + of_sampling
        at = g.numpy()
        return latent.natural_slope(at, slope.numpy()), latent.natural_slope(at, of_winners.numpy())

    def _latent_points(self, label: str, x: npt.ArrayLike) -> Tensor:
        return torch.from_numpy(self.belief._latent.to_latent(self.belief.inside(f"{label}: x", x)))


def winner_density(belief: BeliefDensity, *, points: int = 8192, seed: int = 0) -> WinnerDensity:
    """Return the marginal winner density of a belief and its tempering field.

    Args:
        belief: by "score", "score-constant", "utility" or "auto".
        points: of λ, in the quadrature.

    Raises:
        DensityError: a belief by another method, which has no gradient.

    Examples:
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 100, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]))
        >>> winners = winner_density(belief)
        >>> of_belief, of_winners = winners.scores([[0.5]])
        >>> bool(np.allclose(of_belief, winners.tempering_field([[0.5]]) * of_winners))
        True
    """
    model, latent = belief._model, belief._latent
    if not isinstance(model, UtilityDensity | ScoreDensity):
        raise DensityError(
            f"winner_density: a belief by {model.name!r} has no gradient; fit by score or auto."
        )
    potential = model.utility if isinstance(model, UtilityDensity) else model.potential
    with one_thread():
        u = utility_at(latent, potential, latent.draw_evenly(points, generator_of(seed)))
    return WinnerDensity(belief, potential, Tempering.tabulate(u.numpy(), belief.noise))
