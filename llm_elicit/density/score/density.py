"""Fit the score method; sample and evaluate its belief.

u = m(L_σ), with σ the smallest noise level, is a utility like any other: its gradient ω ∇L_σ drives
the Metropolis-adjusted Langevin algorithm of `llm_elicit.density.smc`, which anneals draws of λ to
the belief exp(u), gives their normalizing constant, and keeps the weights of modes. No part is
shared with the methods ``utility`` and ``auto``.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from llm_elicit.density.judgments import assign_folds
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import choice_log_likelihood
from llm_elicit.density.methods import EvaluationError, Fitted, Problem
from llm_elicit.density.score.field import TemperingField
from llm_elicit.density.score.network import PairData, ScoreNetworks, train_networks
from llm_elicit.density.settings import AnnealingSettings
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.utility_density import (
    draw_belief,
    estimate_log_normalizer,
    utility_at,
)


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

    Diagnostics: ``held_out_log_likelihood``, nats per comparison, by networks that never saw the
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
