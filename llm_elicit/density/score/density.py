"""Fit the score method; sample and evaluate its belief.

u = m(L_σ), with σ the smallest noise level, is a utility like any other: its gradient ω ∇L_σ drives
the Metropolis-adjusted Langevin algorithm of `llm_elicit.density.smc`, which anneals draws of λ to
the belief exp(u), gives their normalizing constant, and keeps the weights of modes. No part is
shared with the methods ``utility`` and ``auto``.

*The tempering field.* The log-odds L of beating a random draw of λ is an increasing function of the
utility u = log p, so u = m(L) and ∇u = ω ∇L with the field ω = m′(L) = du/dL: at a utility u,

    ω(u) = w(1 − w)/w′,    w(u) = E_{x′~λ} F(u − u(x′)),

which is the field of Theorem 3.1 of Mikkola, Acerbi and Klami (2026), τ = w/w′, for winners and
losers together. The expectation determines m poorly: where utilities under λ are many times the
noise apart, w is their rank at any scale. The outcomes of pairs determine it well, so m is
fitted to them: piecewise linear and increasing, by maximum penalized likelihood of the choices
F(m(L) − m(L′)). With one piece it is the constant ω* of the method ``score-constant``
(Proposition 3.2).
"""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass, replace
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
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.torch_utils import minimize
from llm_elicit.density.utility_density import (
    draw_belief,
    estimate_log_normalizer,
    utility_at,
)

Array = npt.NDArray[np.float64]
_ROUGHNESS = 1.0


@dataclass(frozen=True)
class TemperingField:
    """u = m(L): ``utilities`` (G,) at the log-odds ``grid`` (G,), linear between and beyond.

    Examples
    --------
    >>> import torch
    >>> field = TemperingField(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 2.0, 3.0]))
    >>> field.utility(torch.tensor([0.5, 3.0])).tolist()
    [1.0, 4.0]
    >>> field(torch.tensor([0.5, 3.0])).tolist()
    [2.0, 1.0]
    """

    grid: Tensor
    utilities: Tensor

    @classmethod
    def fit(
        cls, log_odds: tuple[Tensor, Tensor], weights: Tensor, noise: Noise, knots: int
    ) -> TemperingField:
        """Fit the field to the log-odds (n,) of winners and of losers.

        The grid has ``knots`` points, at quantiles of the log-odds; the logarithm of the field is
        smoothed by a penalty on its differences, a random walk with standard deviation
        1/√2 a piece.
        """
        both = torch.cat(log_odds).numpy()
        grid = np.unique(np.quantile(both, np.linspace(0.0, 1.0, knots)))
        if len(grid) < 2:  # every point has the same log-odds
            return cls(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.0, 0.0]).double())
        pieces = torch.from_numpy(_pieces(log_odds[0].numpy(), grid))
        pieces = pieces - torch.from_numpy(_pieces(log_odds[1].numpy(), grid))

        def loss(log_field: Tensor) -> Tensor:
            rough = _ROUGHNESS * (log_field[1:] - log_field[:-1]).square().sum()
            return rough - (weights * noise.log_cdf(pieces @ log_field.exp())).sum()

        start = np.full(len(grid) - 1, math.log(noise.scale))
        bounds = [(math.log(noise.scale) - 7.0, math.log(noise.scale) + 7.0)] * len(start)
        found = minimize(loss, start, bounds)
        steps = np.exp(found) * np.diff(grid)
        utilities = np.concatenate([[0.0], np.cumsum(steps)])
        return cls(torch.from_numpy(grid), torch.from_numpy(utilities))

    def utility(self, log_odds: Tensor) -> Tensor:
        """Return u (n,) at log-odds (n,), nats."""
        right, slope = self._piece(log_odds)
        return self.utilities[right - 1] + slope * (log_odds - self.grid[right - 1])

    def __call__(self, log_odds: Tensor) -> Tensor:
        """Return ω (n,) at log-odds (n,)."""
        return self._piece(log_odds)[1]

    def _piece(self, log_odds: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.searchsorted(self.grid, log_odds.contiguous()).clamp(1, len(self.grid) - 1)
        slopes = self.utilities.diff() / self.grid.diff()
        return right, slopes[right - 1]


def _pieces(log_odds: Array, grid: Array) -> Array:
    """How much of each interval of the grid lies below each value: (n, G − 1)."""
    low, high = grid[:-1].copy(), grid[1:].copy()
    start = low.copy()
    low[0], high[-1] = -np.inf, np.inf
    return np.asarray(np.clip(log_odds[:, None], low, high) - start)


@dataclass(frozen=True)
class ScoreUtility:
    """u = m(L_σ) on features, a `Potential`."""

    networks: ScoreNetworks
    field: TemperingField
    sigma: float

    def __call__(self, t: Tensor) -> Tensor:
        """Values (n,) at features (n, p)."""
        return self.field.utility(self.networks.log_odds(t, self.sigma))

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n,) and gradients (n, p) at features (n, p)."""
        log_odds, slope = self.networks.mean_and_slope(t, self.sigma)
        return self.field.utility(log_odds), self.field(log_odds)[:, None] * slope


@dataclass(frozen=True)
class ScoreDensity:
    """p ∝ exp(u) per scale unit; see `llm_elicit.density.methods.DensityModel`."""

    latent: Latent
    potential: ScoreUtility
    constant: bool
    log_normalizer: float
    annealing: AnnealingSettings
    start: Proposal | None = None

    @property
    def name(self) -> str:
        """The method's name."""
        return "score-constant" if self.constant else "score"

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points by annealing."""
        settings, start = self.annealing, self.start
        return draw_belief(self.latent, self.potential, n, generator, settings, start)

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        return utility_at(self.latent, self.potential, g) - self.log_normalizer

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """Return the error of single precision; the force is the gradient of the log-density."""
        t = self.latent.features(g)
        exact = replace(self.potential, networks=copy.deepcopy(self.potential.networks).double())
        return EvaluationError(float((self.potential(t) - exact(t)).std(correction=0)))

    def tensors(self) -> dict[str, Tensor]:
        """The networks, the tempering field and the start."""
        networks, field = self.potential.networks, self.potential.field
        named = {f"score.{name}": value.cpu() for name, value in networks.state_dict().items()}
        fields = {"field.grid": field.grid, "field.utilities": field.utilities}
        return {**named, **fields, **({} if self.start is None else self.start.tensors())}

    def config(self) -> dict[str, Any]:
        """Every number that is not an array."""
        networks = self.potential.networks
        return {
            "networks": networks.count,
            "width": networks.width,
            "sigma": self.potential.sigma,
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
        field = TemperingField(tensors["field.grid"], tensors["field.utilities"])
        return cls(
            latent,
            ScoreUtility(networks.requires_grad_(False), field, config["sigma"]),
            config["constant"],
            config["log_normalizer"],
            AnnealingSettings(**config["annealing"]),
            Proposal.from_tensors(tensors),
        )


def fit_score(problem: Problem, *, constant: bool) -> Fitted:
    """Fit the score method, with the tempering field or with one constant in its place.

    Diagnostics: ``held_out_log_likelihood``, nats per comparison, by networks not trained on the
    pair; ``score_steps``, where training stopped; ``tempering_field``, ω on its grid of log-odds.
    """
    settings, judgments = problem.settings.score, problem.judgments
    folds = assign_folds(judgments.pairs, settings.networks, problem.rng)
    data = PairData(problem.winners, problem.losers, problem.weights, folds)

    def progress(step: int) -> None:
        if problem.progress is not None:
            problem.progress("score", step, settings.steps)

    device = problem.settings.device
    trained = train_networks(
        data, problem.latent, problem.noise, settings, problem.generator, progress, device
    )
    log_odds = trained.winners, trained.losers
    knots = 2 if constant else settings.knots
    field = TemperingField.fit(log_odds, problem.weights, problem.noise, knots)
    potential = ScoreUtility(trained.networks, field, trained.sigma)
    annealing = problem.settings.annealing
    found = estimate_log_normalizer(problem.latent, potential, problem.generator, annealing)
    model = ScoreDensity(problem.latent, potential, constant, found.value, annealing, found.start)
    difference = field.utility(trained.winners) - field.utility(trained.losers)
    held_out = choice_log_likelihood(difference, problem.weights, problem.noise)
    middle = 0.5 * (field.grid[1:] + field.grid[:-1])
    notes = {
        "held_out_log_likelihood": float(held_out),
        "score_steps": trained.step,
        "score_sigma": trained.sigma,
        "tempering_field": {"log_odds": middle.tolist(), "omega": field(middle).tolist()},
    }
    return Fitted(model, found, notes)
