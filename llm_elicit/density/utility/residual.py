"""What a simple form leaves over: an ensemble of small networks, one a fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.likelihood import choice_log_likelihood
from llm_elicit.density.torch_utils import Adam
from llm_elicit.density.utility.data import Array, CrossValidation, HeldOut
from llm_elicit.density.utility_function import NetworkStack

Step = Callable[[int], None]


@dataclass(frozen=True)
class ResidualSettings:
    """Settings of the residual ensemble.

    ``decays`` is the grid of L2 penalties per comparison that held-out likelihood chooses from.
    """

    decays: tuple[float, ...] = (1e-3,)
    width: int = 32
    batch: int = 512
    max_steps: int = 1200
    check_every: int = 40
    patience: int = 8
    learning_rate: float = 1e-2


@dataclass(frozen=True)
class ResidualFit:
    """The chosen ensemble, what it foretells of the judged rows, and how it was chosen."""

    networks: NetworkStack
    held_out: HeldOut
    decay: float
    steps: int


def fit_residual(
    validation: CrossValidation,
    base: Array,
    settings: ResidualSettings,
    on_step: Step | None = None,
) -> ResidualFit:
    """Train every (fold, decay) network at once; keep the best decay and stopping step.

    ``base`` (K, n) is f(winner) − f(loser) by the form the networks stand on, one a fold.
    """
    trainer = _Trainer(validation, base, settings)
    since_best = 0
    for step in range(1, settings.max_steps + 1):
        trainer.step(step)
        if step % settings.check_every == 0:
            since_best = 0 if trainer.check(step) else since_best + 1
            if on_step is not None:
                on_step(step)
            if since_best > settings.patience:
                break
    return trainer.best


class _Trainer:
    """A stack of networks ordered (fold, decay), trained by Adam with L2 on shared batches."""

    def __init__(
        self, validation: CrossValidation, base: Array, settings: ResidualSettings
    ) -> None:
        self.validation, self.settings = validation, settings
        count, decays = validation.count, settings.decays
        # Every decay of one fold starts from the same weights: the grid compares like with like.
        first = NetworkStack.create(
            count, validation.dimension, settings.width, validation.generator
        )
        stack = [p.repeat_interleave(len(decays), 0).requires_grad_() for p in first.parameters]
        self.networks = NetworkStack(stack)
        self.decay = torch.tensor(decays).repeat(count)[:, None, None]
        self.adam = Adam(stack)
        self.base = torch.from_numpy(base).float()
        self.member = torch.arange(count).repeat_interleave(len(decays))
        rows = validation.judged
        first_guess = self.base[:, rows]
        # No step at all, the bare form, is the first candidate.
        self.best = self._snapshot(0, 0, first_guess)
        held_out = first_guess[validation.fold_of[rows], torch.arange(len(rows))]
        self.best_score = float(
            choice_log_likelihood(held_out, validation.weights[rows], validation.response.at(rows))
        )

    def _snapshot(self, decay: int, step: int, by_member: Tensor) -> ResidualFit:
        width = len(self.settings.decays)
        which = [k * width + decay for k in range(self.validation.count)]
        held_out = _held_out(by_member.double(), self.validation.fold_of[self.validation.judged])
        networks = self.networks.select(which)
        return ResidualFit(networks, held_out, self.settings.decays[decay], step)

    def _difference(self, rows: Tensor) -> Tensor:
        values = self.networks(self.validation.sides(rows))
        difference: Tensor = values[:, : len(rows)] - values[:, len(rows) :]
        return difference + self.base[self.member][:, rows]

    def step(self, step: int) -> None:
        """One step of Adam; the learning rate decays as the square root after 200 steps."""
        validation, settings = self.validation, self.settings
        rows = validation.batch(settings.batch)
        mass = validation.weights[rows] * (validation.fold_of[rows] != self.member[:, None])
        log_cdf = validation.response.at(rows).log_cdf(self._difference(rows))
        loss = -(log_cdf * mass).sum() / len(rows)
        gradients = torch.autograd.grad(loss, self.networks.parameters)
        with torch.no_grad():
            pulls = [self.decay * parameter for parameter in self.networks.parameters]
        rate = self.settings.learning_rate / max(step / 200.0, 1.0) ** 0.5
        self.adam.step([g + p for g, p in zip(gradients, pulls, strict=True)], rate)

    @torch.no_grad()
    def check(self, step: int) -> bool:
        """Score each decay on held-out folds; keep a copy of the best so far."""
        validation = self.validation
        rows = validation.judged
        parts = [self._difference(chunk) for chunk in torch.split(rows, 8192)]
        every = torch.cat(parts, dim=1).reshape(
            validation.count, len(self.settings.decays), len(rows)
        )
        held_out = every[validation.fold_of[rows], :, torch.arange(len(rows))]
        response = validation.response.at(rows)
        scores = choice_log_likelihood(held_out.T, validation.weights[rows], response)
        best = int(scores.argmax())
        if float(scores[best]) <= self.best_score + 1e-4:
            return False
        self.best_score = float(scores[best])
        self.best = self._snapshot(best, step, every[:, best])
        return True


def _held_out(by_member: Tensor, fold_of: Tensor) -> HeldOut:
    """From differences (K, m) by every member, at rows of these folds (m,).

    The spread is the standard deviation over the members that did see the row: the one that did
    not differs from them by what the row itself says.
    """
    count, at = len(by_member), torch.arange(by_member.shape[1])
    seen = by_member.clone()
    seen[fold_of, at] = 0.0
    mean = seen.sum(0) / (count - 1)
    apart = (by_member - mean).square()
    apart[fold_of, at] = 0.0
    return HeldOut(by_member[fold_of, at].numpy(), (apart.sum(0) / (count - 1)).sqrt().numpy())
