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
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.errors import Array
from llm_elicit.density.judgments import assign_folds
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise, choice_log_likelihood
from llm_elicit.density.methods import (
    EvaluationError,
    Fitted,
    Problem,
    draw_belief,
    estimate_log_normalizer,
    utility_and_slope,
    utility_at,
)
from llm_elicit.density.score.network import PairData, ScoreNetworks, train_networks
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.torch_utils import minimize
from llm_elicit.density.utility_function import Potential

_GRID = 2048
_MARGIN = 8.0
_CACHED = 65_536  # numbers that stay in the cache


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
        columns: list[list[Tensor]] = [[], [], []]
        for part in torch.split(grid, max(_CACHED // len(u), 1)):
            gap = part[:, None] - u
            logs = (noise.log_cdf(gap), noise.log_cdf(-gap), noise.log_pdf(gap))
            for column, log in zip(columns, logs, strict=True):
                column.append(torch.logsumexp(log + log_mass, dim=1))
        return cls(grid, *(torch.cat(column) for column in columns))

    def tau(self, u: Tensor) -> Tensor:
        """Return τ = w/w' at utilities of any shape."""
        return torch.exp(self._interpolate(u, self.log_win - self.log_slope))

    def omega(self, u: Tensor) -> Tensor:
        """Return ω = w(1 − w)/w' at utilities of any shape."""
        return torch.exp(self._interpolate(u, self.log_win + self.log_lose - self.log_slope))

    def field(self, u: Tensor, side: str) -> Tensor:
        """Return ω for side "both", τ for side "winners"."""
        return self.omega(u) if side == "both" else self.tau(u)

    def log_win_at(self, u: Tensor) -> Tensor:
        """Return log w."""
        return self._interpolate(u, self.log_win)

    def log_odds(self, u: Tensor) -> Tensor:
        """log(w/(1 − w))."""
        return self._interpolate(u, self.log_win - self.log_lose)

    def utility_of_log(self, log_win: Tensor) -> Tensor:
        """Inverse of log w; values beyond the table go to its ends."""
        return self._invert(log_win, self.log_win)

    def utility_of_odds(self, log_odds: Tensor) -> Tensor:
        """Inverse of log(w/(1 − w)), well conditioned in both tails."""
        return self._invert(log_odds, self.log_win - self.log_lose)

    def _invert(self, value: Tensor, table: Tensor) -> Tensor:
        right = torch.searchsorted(table, value.double().contiguous())
        right = right.clamp(1, len(self.grid) - 1)
        low, high = table[right - 1], table[right]
        share = ((value.double() - low) / (high - low).clamp(min=1e-300)).clamp(0.0, 1.0)
        u = self.grid[right - 1] + share * (self.grid[right] - self.grid[right - 1])
        return u.to(value.dtype)

    def _interpolate(self, u: Tensor, table: Tensor) -> Tensor:
        spacing = (self.grid[-1] - self.grid[0]) / (len(self.grid) - 1)
        place = ((u.double() - self.grid[0]) / spacing).clamp(0.0, len(self.grid) - 1.001)
        index = place.floor().long()
        share = place - index
        return (table[index] * (1.0 - share) + table[index + 1] * share).to(u.dtype)


@dataclass(frozen=True)
class ConstantTempered:
    """``constant`` times the log-odds (side "both") or the log-chance (side "winners") of winning.

    Examples:
        >>> import numpy as np, torch
        >>> from llm_elicit.density.likelihood import Noise
        >>> class Segment:
        ...     def __call__(self, t): return t[:, 0]
        ...     def value_and_slope(self, t): return t[:, 0], torch.ones_like(t)
        >>> field = Tempering.tabulate(np.zeros(3), Noise(level=1.0))  # every rival has utility 0
        >>> tempered = ConstantTempered(Segment(), field, "both", 2.0)
        >>> round(float(tempered(torch.tensor([[0.7]]).double()).item()), 3)
        1.4
    """

    utility: Potential
    tempering: Tempering
    side: str
    constant: float

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, d)."""
        return self._value(self.utility(t))

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, d) at features (n, d)."""
        u, slope = self.utility.value_and_slope(t)
        field = self.tempering.field(u, self.side)
        return self._value(u), self.constant * slope / field[:, None]

    def _value(self, u: Tensor) -> Tensor:
        two_sided = self.side == "both"
        log = self.tempering.log_odds(u) if two_sided else self.tempering.log_win_at(u)
        return self.constant * log


def optimal_constant(tau: Tensor, score: Tensor) -> float:
    """Return τ* = E[τ |∇log q|²] / E[|∇log q|²], which minimizes the Fisher divergence (Prop. 3.2).

    Shapes: the field τ (n,) and ∇log q (n, d) at draws of the belief; q is the density being
    tempered (the winners' relative to λ, or the odds of winning). Where ∇log q vanishes
    everywhere every constant is optimal: the mean of τ.
    """
    weight = score.square().sum(-1)
    total = weight.sum()
    if float(total) == 0.0:
        return float(tau.mean())
    return float((tau * weight).sum() / total)


_QUADRATURE = 4096
_ROUGHNESS = 1.0
_TABLES = fields(Tempering)


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
        pieces = torch.from_numpy(_pieces(sides[0].numpy(), grid))
        pieces = pieces - torch.from_numpy(_pieces(sides[1].numpy(), grid))

        def loss(log_slope: Tensor) -> Tensor:
            rough = _ROUGHNESS * (log_slope[1:] - log_slope[:-1]).square().sum()
            return rough - (weights * noise.log_cdf(pieces @ log_slope.exp())).sum()

        start = np.full(len(grid) - 1, math.log(noise.scale))
        bounds = [(math.log(noise.scale) - 7.0, math.log(noise.scale) + 7.0)] * len(start)
        best = minimize(loss, start, bounds)
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


def _pieces(values: Array, grid: Array) -> Array:
    """How much of each interval of the grid lies below each value: (n, G − 1)."""
    low, high = grid[:-1].copy(), grid[1:].copy()
    start = low.copy()
    low[0], high[-1] = -np.inf, np.inf
    return np.asarray(np.clip(values[:, None], low, high) - start)


@dataclass(frozen=True)
class ScoreUtility:
    """u = m(u_σ) on features, nats: a `Potential`."""

    networks: ScoreNetworks
    calibration: Calibration
    sigma: float

    def __call__(self, t: Tensor) -> Tensor:
        """Values (n,) at features (n, p)."""
        return self.value_and_slope(t)[0]

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n,) and gradients (n, p) at features (n, p)."""
        value, slope = self.networks.mean(t, self.sigma)
        return self.calibration.utility(value), self.calibration.slope(value)[:, None] * slope


@dataclass(frozen=True)
class ScoreDensity:
    """p ∝ exp(u) per scale unit; see `llm_elicit.density.methods.DensityModel`.

    Args:
        latent, utility: the coordinates, and the networks' u.
        tempering: the field at u.
        constant: ω* of ``score-constant``, whose belief has ω* log(w/(1 − w)) in place of u.
    """

    latent: Latent
    utility: ScoreUtility
    tempering: Tempering
    annealing: AnnealingSettings
    constant: float | None = None
    log_normalizer: float = 0.0
    start: Proposal | None = None

    @property
    def name(self) -> str:
        """The method's name."""
        return "score" if self.constant is None else "score-constant"

    @property
    def potential(self) -> Potential:
        """The log-density in features, up to a constant."""
        if self.constant is None:
            return self.utility
        return ConstantTempered(self.utility, self.tempering, "both", self.constant)

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points by annealing."""
        settings, start = self.annealing, self.start
        return draw_belief(self.latent, self.potential, n, generator, settings, start)

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        return utility_at(self.latent, self.potential, g) - self.log_normalizer

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """Return the error of single precision; the force is the gradient of the log-density."""
        t, networks = self.latent.features(g), copy.deepcopy(self.utility.networks).double()
        exact = replace(self, utility=replace(self.utility, networks=networks))
        return EvaluationError(float((self.potential(t) - exact.potential(t)).std(correction=0)))

    def tensors(self) -> dict[str, Tensor]:
        """The networks, the tempering field and the start."""
        networks = self.utility.networks.state_dict().items()
        return {
            **{f"score.{name}": value.cpu() for name, value in networks},
            **{f"tempering.{f.name}": getattr(self.tempering, f.name) for f in _TABLES},
            "calibration.grid": self.utility.calibration.grid,
            "calibration.utilities": self.utility.calibration.utilities,
            **({} if self.start is None else self.start.tensors()),
        }

    def config(self) -> dict[str, Any]:
        """Every number that is not an array."""
        utility = self.utility
        return {
            "networks": utility.networks.count,
            "width": utility.networks.width,
            "sigma": utility.sigma,
            "constant": self.constant,
            "log_normalizer": self.log_normalizer,
            "annealing": asdict(self.annealing),
        }

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> ScoreDensity:
        """Rebuild from `tensors` and `config`."""
        state = {k.removeprefix("score."): v for k, v in tensors.items() if k.startswith("score.")}
        count, features = state["linear"].shape[:2]
        networks = ScoreNetworks(count, features, config["width"], torch.Generator())
        networks.load_state_dict(state)
        calibration = Calibration(tensors["calibration.grid"], tensors["calibration.utilities"])
        return cls(
            latent,
            ScoreUtility(networks.requires_grad_(False), calibration, config["sigma"]),
            Tempering(*(tensors[f"tempering.{f.name}"] for f in _TABLES)),
            AnnealingSettings(**config["annealing"]),
            config["constant"],
            config["log_normalizer"],
            Proposal.from_tensors(tensors),
        )


def fit_score(problem: Problem, *, constant: bool) -> Fitted:
    """Fit the score method, with the tempering field or with one constant in its place.

    Diagnostics: ``held_out_log_likelihood``, nats per comparison, by networks not trained on the
    pair; ``score_start``, the form that training started from; ``score_steps``, where it stopped;
    ``score_sigma``; and ``tempering_constant``, ω* (None for the field).
    """
    settings, latent, generator = problem.settings.score, problem.latent, problem.generator
    folds = assign_folds(problem.judgments.pairs, settings.networks, problem.rng)
    data = PairData(problem.winners, problem.losers, problem.weights, folds)

    def progress(step: int) -> None:
        if problem.progress is not None:
            problem.progress("score", step, settings.steps_for(problem.judgments.size))

    device = problem.settings.device
    trained = train_networks(data, latent, problem.noise, settings, generator, progress, device)
    compared = trained.winners, trained.losers
    calibration = Calibration.fit(compared, problem.weights, problem.noise, settings.knots)
    utility = ScoreUtility(trained.networks, calibration, trained.sigma)
    of_sampling = utility_at(latent, utility, latent.draw_evenly(_QUADRATURE, generator))
    tempering = Tempering.tabulate(of_sampling.numpy(), problem.noise)
    model = ScoreDensity(latent, utility, tempering, problem.settings.annealing)
    winners, losers = (calibration.utility(side) for side in compared)
    normalizer = estimate_log_normalizer(latent, utility, generator, model.annealing)
    if constant:
        u, slope = utility_and_slope(latent, utility, normalizer.draws.points)
        omega = tempering.omega(u)
        star = optimal_constant(omega, slope / omega[:, None])
        winners, losers = (star * tempering.log_odds(side) for side in (winners, losers))
        model = replace(model, constant=star)
        normalizer = estimate_log_normalizer(latent, model.potential, generator, model.annealing)
    model = replace(model, log_normalizer=normalizer.value, start=normalizer.start)
    held_out = choice_log_likelihood(winners - losers, problem.weights, problem.noise)
    notes = {
        "held_out_log_likelihood": float(held_out),
        "score_start": trained.start,
        "score_steps": trained.step,
        "score_sigma": trained.sigma,
        "tempering_constant": model.constant,
    }
    return Fitted(model, normalizer, notes)
