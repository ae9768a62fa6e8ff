"""Fit the flow method: one flow for each held-out fold, mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from llm_elicit.density.density_model import Fitted, LogNormalizer
from llm_elicit.density.flow.density import FlowDensity
from llm_elicit.density.flow.network import BeliefFlow, FlowShape
from llm_elicit.density.flow.training import FlowData, FlowTrainer
from llm_elicit.density.judgments import assign_folds
from llm_elicit.density.problem import Problem
from llm_elicit.density.transforms import BoxLatent

_REFERENCE = 2048


@dataclass(frozen=True)
class _Member:
    flow: BeliefFlow
    held_out: float
    weight: float
    steps: int


def fit_flow(problem: Problem) -> Fitted:
    """The preferential normalizing flow (Mikkola, Acerbi and Klami, 2024).

    Each member is fitted without one fold of the pairs, which chooses where its fit stops; the
    belief is their mixture. See `llm_elicit.density.flow.training` for the equation. The
    density is normalized exactly: log Z = 0 with standard error 0.

    Notes: ``held_out_log_likelihood``, the mean log-likelihood of held-out comparisons under
    the member that never saw them (nats per comparison; a coin scores −log 2);
    ``flow_steps``, where each member stopped.
    """
    settings, pairs = problem.settings.flow, problem.judgments.pairs
    count = max(2, min(settings.folds, int(pairs.max()) + 1))
    folds = torch.from_numpy(assign_folds(pairs, count, problem.rng))
    data = _data(problem)
    members = [_fit_member(problem, data, folds, k) for k in range(min(settings.members, count))]
    model = FlowDensity(problem.latent, tuple(member.flow for member in members))
    draws = model.sample_latent(_REFERENCE, problem.generator)
    held_out = np.average([m.held_out for m in members], weights=[m.weight for m in members])
    notes = {
        "held_out_log_likelihood": float(held_out),
        "flow_steps": [member.steps for member in members],
    }
    return Fitted(model, LogNormalizer(0.0, 0.0, draws), notes)


def _data(problem: Problem) -> FlowData:
    volume = problem.latent.log_volume
    return FlowData(
        problem.winners.float(),
        problem.losers.float(),
        volume(problem.winners).float(),
        volume(problem.losers).float(),
        (problem.weights / problem.weights.mean()).float(),
    )


def _fit_member(problem: Problem, data: FlowData, folds: torch.Tensor, k: int) -> _Member:
    settings = problem.settings.flow
    seed = int(problem.rng.integers(2**62))
    shape = FlowShape(
        problem.dimension,
        settings.transforms,
        settings.bins,
        settings.width,
        isinstance(problem.latent, BoxLatent),
    )
    train, held_out = ((folds != k).nonzero()[:, 0], (folds == k).nonzero()[:, 0])
    flow, generator = BeliefFlow(shape, seed), torch.Generator().manual_seed(seed)
    each = settings.affine_steps + settings.short_steps + settings.steps

    def progress(done: int) -> None:
        if problem.progress is not None:
            problem.progress("flow", k * each + done, settings.members * each)

    trainer = FlowTrainer(
        flow, data.take(train), data.take(held_out), problem.noise, settings, generator
    )
    best = trainer.fit(progress)
    weight = float(data.weights[held_out].sum())
    return _Member(flow.double(), best.score, weight, best.steps)
