"""Fit the score method; sample and evaluate its belief.

The networks' u_σ is flatter than u: smoothed, and trained for a limited time. So u = m(u_σ), with
m increasing, piecewise linear, and fitted to the choices that the networks were not trained on. It
is a utility like any other: with its gradient the Metropolis-adjusted Langevin algorithm of
`llm_elicit.density.smc` anneals draws of λ to the belief exp(u), gives their normalizing constant,
and keeps the weights of modes. No part is shared with the methods ``utility`` and
``auto``.

The marginal winner density and the tempering field of Theorem 3.1 of Mikkola, Acerbi and Klami
(2026) follow from u by quadrature over λ. They are not needed to sample; ``score-constant`` is the
belief that one constant in place of the field implies (Proposition 3.2).

*The tempering field* leads from the scores of winners and losers to that of the belief. With w(u) =
E_{x'~λ} F(u − u(x')) the marginal winner density is p_w(x) = 2 λ(x) w(u(x)), so in *any*
coordinates

    ∇u = τ(u) · (∇log p_w − ∇log λ),    τ(u) = w(u)/w'(u).

For uniform λ this is Theorem 3.1 (Gumbel) and Theorem A.1 (exponential) of Mikkola, Acerbi
and Klami (2026); the same formula covers normal noise. τ depends on x through u alone, so it
is tabulated once on a grid of utilities, with the expectation taken directly over λ.

**Losers count too.** Their marginal density is p_l(x) = 2 λ(x) (1 − w(u(x))), so also
∇u = −(1 − w)/w' · (∇log p_l − ∇log λ). Near the belief's mode w is close to 1: the winners'
score is nearly λ's, τ is large and multiplies its errors, while losers are rare there and
their score is informative; far from the mode the reverse holds. A score estimated from
m points near x has variance ∝ 1/m, so the two estimates of ∇u have variances in the ratio
w : (1 − w), and weighting them inversely gives the least-variance combination

    ∇u = ω(u) · (∇log p_w − ∇log p_l),    ω(u) = w(1 − w)/w',

in which λ cancels. For Gumbel noise τ >= ω >= s, and ω stays of the order of s where τ grows
like 1/(1 − w); ω = s when every competitor has the same utility.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density import methods, torch_utils
from llm_elicit.density.distribution import Distribution
from llm_elicit.density.errors import Array, DensityError
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise, assign_folds, choice_log_likelihood
from llm_elicit.density.methods import Potential, PotentialDensity
from llm_elicit.density.score_network import ScoreNetworks, train_networks

_GRID = 2048
_MARGIN = 8.0
_CACHE_SIZE = 65_536  # numbers that stay in the cache


@dataclass(frozen=True)
class Tempering:
    """log w, log(1 − w) and log w' on an even grid of utilities (nats), (G,) each.

    Between grid points both are interpolated linearly; beyond the ends they are held constant.

    Examples:
        >>> import numpy as np, torch
        >>> field = Tempering.tabulate(np.zeros(3), Noise())   # every competitor has utility 0
        >>> round(float(field.log_win_at(torch.zeros(1)).exp().item()), 4)
        0.5
    """

    grid: Tensor
    log_win: Tensor
    log_lose: Tensor
    log_slope: Tensor

    @classmethod
    def tabulate(cls, utilities: Array, noise: Noise, weights: Array | None = None) -> Tempering:
        """Build the table from utilities (m,) of draws from λ, optionally weighted."""
        u = torch.as_tensor(utilities, dtype=torch.float64)
        mass = torch.ones_like(u) if weights is None else torch.as_tensor(weights).double()
        log_mass = torch.log(mass / mass.sum())
        low = float(u.min()) - _MARGIN * noise.scale
        high = float(u.max()) + _MARGIN * noise.scale
        grid = torch.linspace(low, high, _GRID, dtype=torch.float64)
        columns = []
        for part in torch.split(grid, max(_CACHE_SIZE // len(u), 1)):
            differences = part[:, None] - u
            win, lose = noise.log_cdf(differences), noise.log_cdf(-differences)
            logs = win, lose, noise.log_pdf(differences)
            columns.append(torch.stack([torch.logsumexp(log + log_mass, dim=1) for log in logs]))
        return cls(grid, *torch.cat(columns, 1))

    def tau(self, u: Tensor) -> Tensor:
        """Return τ = w/w' at utilities of any shape."""
        return torch.exp(_interpolate(u, self.grid, self.log_win - self.log_slope))

    def omega(self, u: Tensor) -> Tensor:
        """Return ω = w(1 − w)/w' at utilities of any shape."""
        return torch.exp(_interpolate(u, self.grid, self.log_win + self.log_lose - self.log_slope))

    def log_win_at(self, u: Tensor) -> Tensor:
        """Return log w at utilities of any shape."""
        return _interpolate(u, self.grid, self.log_win)

    def log_odds(self, u: Tensor) -> Tensor:
        """Return log(w/(1 − w)) at utilities of any shape."""
        return _interpolate(u, self.grid, self.log_win - self.log_lose)

    def utility_from_log_win(self, log_win: Tensor) -> Tensor:
        """Return the utilities at which log w has these values, within the ends of the table."""
        return _interpolate(log_win, self.log_win, self.grid)


def _interpolate(x: Tensor, points: Tensor, values: Tensor) -> Tensor:
    """Return values at x, linear between increasing points and constant beyond them."""
    interpolated = np.interp(x.detach().numpy(), points.numpy(), values.numpy())
    return torch.as_tensor(interpolated).to(x)


def optimal_constant(tau: Tensor, score: Tensor) -> float:
    """Return τ* = E[τ |∇log q|²] / E[|∇log q|²], which minimizes the Fisher divergence (Prop. 3.2).

    Shapes: the field τ (n,) and ∇log q (n, d) at draws of the belief; q is the density being
    tempered (the winners' relative to λ, or the odds of winning). Where ∇log q vanishes
    everywhere every constant is optimal: the mean of τ.
    """
    weight = score.square().sum(-1)
    total = weight.sum()
    return float((tau * weight).sum() / total if total > 0.0 else tau.mean())


_QUADRATURE = 4096
_ROUGHNESS = 1.0


@dataclass(frozen=True)
class Calibration:
    """u = m(u_σ): ``utilities`` (G,) at the ``grid`` (G,), increasing, linear between and beyond.

    Examples:
        >>> import torch
        >>> calibration = Calibration(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 2.0, 3.0]))
        >>> calibration.utility(torch.tensor([0.5, 3.0])).tolist()
        [1.0, 4.0]
        >>> calibration.slope(torch.tensor([0.5, 3.0])).tolist()
        [2.0, 1.0]
    """

    grid: Tensor
    utilities: Tensor

    @classmethod
    def fit(
        cls, sides: tuple[Tensor, Tensor], weights: Tensor, noise: Noise, knots: int
    ) -> Calibration:
        """Fit m by maximum penalized likelihood to u_σ (n,) of winners and of losers.

        The grid has ``knots`` points, at quantiles of u_σ; the logarithm of the slope is smoothed
        by a penalty on its differences, a random walk with standard deviation 1/√2 a piece.
        """
        pooled = torch.cat(sides).numpy()
        grid = np.unique(np.quantile(pooled, np.linspace(0.0, 1.0, knots)))
        if len(grid) < 2:  # every point has the same utility
            return cls(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.0, 0.0]).double())
        pieces = torch.from_numpy(_interval_lengths(sides[0].numpy(), grid))
        pieces = pieces - torch.from_numpy(_interval_lengths(sides[1].numpy(), grid))

        def loss(log_slope: Tensor) -> Tensor:
            penalty = _ROUGHNESS * (log_slope[1:] - log_slope[:-1]).square().sum()
            return penalty - (weights * noise.log_cdf(pieces @ log_slope.exp())).sum()

        start = np.full(len(grid) - 1, math.log(noise.scale))
        bounds = [(math.log(noise.scale) - 7.0, math.log(noise.scale) + 7.0)] * len(start)
        best = torch_utils.minimize(loss, start, bounds)
        steps = np.exp(best) * np.diff(grid)
        utilities = np.concatenate([[0.0], np.cumsum(steps)])
        return cls(torch.from_numpy(grid), torch.from_numpy(utilities))

    def utility(self, value: Tensor) -> Tensor:
        """Return u (n,) at u_σ (n,), nats."""
        right, slope = self._piece(value)
        return self.utilities[right - 1] + slope * (value - self.grid[right - 1])

    def slope(self, value: Tensor) -> Tensor:
        """Return m′ (n,) at u_σ (n,)."""
        return self._piece(value)[1]

    def _piece(self, value: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.searchsorted(self.grid, value.contiguous()).clamp(1, len(self.grid) - 1)
        slopes = self.utilities.diff() / self.grid.diff()
        return right, slopes[right - 1]


def _interval_lengths(values: Array, grid: Array) -> Array:
    """Return the length of each interval of the grid that lies below each value, (n, G − 1)."""
    low, high = grid[:-1].copy(), grid[1:].copy()
    start = low.copy()
    low[0], high[-1] = -np.inf, np.inf
    return np.asarray(np.clip(values[:, None], low, high) - start)


@dataclass(frozen=True)
class ScoreUtility:
    """u = m(u_σ) on features, nats, or ω* log(w/(1 − w)) in its place: a `Potential`.

    Attributes:
        networks, calibration, sigma: u_σ, m and σ.
        tempering: the field at u.
        constant: ω* of ``score-constant``; None for u itself.
    """

    networks: ScoreNetworks
    calibration: Calibration
    sigma: float
    tempering: Tempering
    constant: float | None = None

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, p)."""
        return self.value_and_gradient(t)[0]

    def value_and_gradient(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, p) at features (n, p)."""
        value, slope = self.networks.mean(t, self.sigma)
        u, slope = self.calibration.utility(value), self.calibration.slope(value)[:, None] * slope
        if self.constant is None:
            return u, slope
        tempered = self.constant * self.tempering.log_odds(u)
        return tempered, self.constant * slope / self.tempering.omega(u)[:, None]


@dataclass(frozen=True)
class ScoreDensity(PotentialDensity):
    """p ∝ exp(u) per scale unit; see `llm_elicit.density.methods.DensityModel`."""

    utility: ScoreUtility

    @property
    def name(self) -> str:
        """The method's name."""
        return "score" if self.utility.constant is None else "score-constant"

    def evaluation_error(self, g: Tensor) -> float:
        """Return the error of single precision."""
        t, networks = self.latent.features(g), copy.deepcopy(self.utility.networks).double()
        gap = self.utility(t) - replace(self.utility, networks=networks)(t)
        return float(gap.std(correction=0))

    def tensors(self) -> dict[str, Tensor]:
        """Return the networks, the tempering field and the start."""
        utility = self.utility
        return {
            **super().tensors(),
            **torch_utils.prefix_tensors("score", utility.networks),
            **torch_utils.prefix_tensors("tempering", utility.tempering),
            **torch_utils.prefix_tensors("calibration", utility.calibration),
        }

    def config(self) -> dict[str, Any]:
        """Return every number that is not an array."""
        utility = self.utility
        return {
            **super().config(),
            "networks": utility.networks.count,
            "width": utility.networks.width,
            "sigma": utility.sigma,
            "constant": utility.constant,
        }

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> ScoreDensity:
        """Return the density that `tensors` and `config` describe."""
        state = torch_utils.select_tensors("score", tensors)
        count, features = state["linear"].shape[:2]
        networks = ScoreNetworks(count, features, config["width"], torch.Generator())
        networks.load_state_dict(state)
        utility = ScoreUtility(
            networks.requires_grad_(False),
            Calibration(**torch_utils.select_tensors("calibration", tensors)),
            config["sigma"],
            Tempering(**torch_utils.select_tensors("tempering", tensors)),
            config["constant"],
        )
        return cls.from_parts(latent, utility, tensors, config)


def fit_score(problem: methods.Problem, *, constant: bool) -> methods.MethodFit:
    """Fit the score method, with the tempering field or with one constant in its place.

    Diagnostics: ``held_out_log_likelihood``, nats per comparison, by networks not trained on the
    pair; ``score_start``, the form that training started from; ``score_steps``, where it stopped;
    ``score_sigma``; and ``tempering_constant``, ω* (None for the field).
    """
    settings, latent, generator = problem.settings.score, problem.latent, problem.generator
    folds = assign_folds(problem.judgments.pairs, settings.networks, problem.rng)
    training = train_networks(problem, folds)
    sides = training.winners, training.losers
    calibration = Calibration.fit(sides, problem.weights, problem.noise, settings.knots)
    points = latent.draw_sobol(_QUADRATURE, generator)
    u_sigma = training.networks.mean(latent.features(points), training.sigma)[0]
    sampling_utilities = calibration.utility(u_sigma) + latent.taper(points)
    tempering = Tempering.tabulate(sampling_utilities.numpy(), problem.noise)
    utility = ScoreUtility(training.networks, calibration, training.sigma, tempering)
    winners, losers = (calibration.utility(side) for side in sides)
    density = ScoreDensity(latent, utility, problem.settings.annealing)
    model, normalizer = density.normalize(generator)
    if constant:
        u, slope = methods.evaluate_utility_and_gradient(latent, utility, normalizer.draws.points)
        omega = tempering.omega(u)
        constant_omega = optimal_constant(omega, slope / omega[:, None])
        winners, losers = (constant_omega * tempering.log_odds(side) for side in (winners, losers))
        density = replace(density, utility=replace(utility, constant=constant_omega))
        model, normalizer = density.normalize(generator)
    held_out = choice_log_likelihood(winners - losers, problem.weights, problem.noise)
    diagnostics = {
        "held_out_log_likelihood": float(held_out),
        "score_start": training.start,
        "score_steps": training.step,
        "score_sigma": training.sigma,
        "tempering_constant": model.utility.constant,
    }
    return methods.MethodFit(model, normalizer, diagnostics)


@dataclass(frozen=True)
class WinnerDensity:
    """p_w and τ of a belief, at points (n, d) of the support in natural units.

    Attributes:
        belief: the belief.
        potential: its utility.
        tempering: w and w′ on a grid of utilities, by quadrature over λ.
    """

    belief: Distribution
    potential: Potential
    tempering: Tempering

    def log_prob(self, x: npt.ArrayLike) -> Array:
        """Return log p_w (n,) per natural unit, nats."""
        log_win = self.tempering.log_win_at(self._utility("log_prob", x)).numpy()
        return np.asarray(math.log(2.0) + log_win + self.belief.sampling.log_prob(np.asarray(x)))

    def tempering_field(self, x: npt.ArrayLike) -> Array:
        """Return τ (n,), nats of log p per nat of log p_w."""
        return np.asarray(self.tempering.tau(self._utility("tempering_field", x)))

    def scores(self, x: npt.ArrayLike) -> tuple[Array, Array]:
        """Return ∇log p and ∇log p_w (n, d), per natural unit."""
        latent, g = self.belief._latent, self._latent_points("scores", x)
        with torch_utils.one_thread():
            u, slope = methods.evaluate_utility_and_gradient(latent, self.potential, g)
        sampling_score = latent.sampling_score(g, 0.0) - latent.log_volume_gradient(g)
        winner_score = slope / self.tempering.tau(u)[:, None] + sampling_score
        per_unit = partial(latent.gradient_per_unit, g.numpy())
        return per_unit(slope.numpy()), per_unit(winner_score.numpy())

    def _utility(self, label: str, x: npt.ArrayLike) -> Tensor:
        g = self._latent_points(label, x)
        return methods.evaluate_utility(self.belief._latent, self.potential, g)

    def _latent_points(self, label: str, x: npt.ArrayLike) -> Tensor:
        points = self.belief.check_inside(f"{label}: x", x)
        return torch.from_numpy(self.belief._latent.to_latent(points))


def winner_density(belief: Distribution, *, points: int = 8192, seed: int = 0) -> WinnerDensity:
    """Return the marginal winner density of a belief and its tempering field.

    Args:
        belief: by "score", "score-constant", "utility" or "auto".
        points: of λ, in the quadrature.
        seed: seed of these points.

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
    if not isinstance(model, PotentialDensity):
        raise DensityError(
            f"winner_density: a belief by {model.name!r} has no gradient; fit by score or auto."
        )
    with torch_utils.one_thread():
        g = latent.draw_sobol(points, torch_utils.make_generator(seed))
        u = methods.evaluate_utility(latent, model.utility, g)
    return WinnerDensity(belief, model.utility, Tempering.tabulate(u.numpy(), belief.noise))
