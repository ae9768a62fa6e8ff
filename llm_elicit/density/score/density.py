"""Fit the score method; sample and evaluate its belief.

The networks' u_σ is flatter than u: smoothed, and trained for a limited time. So u = m(u_σ), with
m increasing, piecewise linear, and fitted to the choices that the networks were not trained on. It
is a utility like any other: with its gradient the Metropolis-adjusted Langevin algorithm of
`llm_elicit.density.smc` anneals draws of λ to the belief exp(u), gives their normalizing constant,
and keeps the weights of modes. No part is shared with the methods ``utility`` and
``auto``.

The marginal winner density and the tempering field of Theorem 3.1 of Mikkola, Acerbi and Klami
(2026) follow from u by quadrature over λ (`llm_elicit.density.score.tempering`). They are not
needed to sample; ``score-constant`` is the belief that one constant in place of the field implies
(Proposition 3.2).
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.judgments import assign_folds
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise, choice_log_likelihood
from llm_elicit.density.methods import EvaluationError, Fitted, Problem
from llm_elicit.density.score.network import PairData, ScoreNetworks, train_networks
from llm_elicit.density.score.tempering import ConstantTempered, Tempering, optimal_constant
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.torch_utils import minimize
from llm_elicit.density.utility_density import (
    draw_belief,
    estimate_log_normalizer,
    utility_and_slope,
    utility_at,
)
from llm_elicit.density.utility_function import Potential

Array = npt.NDArray[np.float64]
_QUADRATURE = 4096
_ROUGHNESS = 1.0
_TABLES = fields(Tempering)


@dataclass(frozen=True)
class Calibration:
    """u = m(u_σ): ``utilities`` (G,) at the ``grid`` (G,), increasing, linear between and beyond.

    Example:
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
