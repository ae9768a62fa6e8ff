"""Fit the utility f by choice likelihood, every decision taken by held-out likelihood.

The compared points are drawn from λ independently of the belief p, so all the data say about
p is in Π F(f(winner) − f(loser)): the choice likelihood of f = log p is sufficient. The judge
is described first by a constant (a coin), then by a quadratic form with ridge (a Gaussian
belief on the feature scale), then by a residual ensemble on top; the simplest description
that is not clearly beaten on held-out comparisons is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import fmin_l_bfgs_b
from torch import Tensor

from llm_elicit.density.choice import Noise, choice_log_likelihood
from llm_elicit.density.judgments import assign_folds
from llm_elicit.density.ratio import NetworkStack, Utility, quadratic_features

Array = npt.NDArray[np.float64]
Folds = npt.NDArray[np.int64]
Progress = Callable[[str, int, int], None]
_JUDGED = 20_000


@dataclass(frozen=True)
class UtilitySettings:
    """Settings of the utility fit.

    ``folds`` is also the size of the ensemble: member k never sees fold k.
    ``ridges`` and ``decays`` are the grids that held-out likelihood chooses from; ridges are
    prior precisions of the quadratic's coefficients, decays the L2 penalty per comparison.
    """

    folds: int = 8
    ridges: tuple[float, ...] = (1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
    decays: tuple[float, ...] = (5e-4, 2e-3)
    width: int = 32
    batch: int = 512
    max_steps: int = 1200
    check_every: int = 40
    patience: int = 8
    learning_rate: float = 1e-2


@dataclass(frozen=True)
class ChoiceData:
    """Features of winners and losers (n, d), weights (n,), pair ids (n,)."""

    winners: Array
    losers: Array
    weights: Array
    pairs: npt.NDArray[np.int64]


def fit_utility(
    data: ChoiceData,
    noise: Noise,
    rng: np.random.Generator,
    settings: UtilitySettings,
    progress: Progress | None = None,
) -> tuple[Utility, dict[str, Any]]:
    """Fit f and say how: the fitted `Utility` and its diagnostics (JSON-able).

    Diagnostics: ``form`` ("constant", "quadratic" or "ensemble"), ``held_out`` (mean held-out
    log-likelihood of the three forms, nats per comparison; a coin scores −log 2), the chosen
    ``ridge``, ``decay`` and ``steps``.
    """
    d = data.winners.shape[1]
    count = max(2, min(settings.folds, int(data.pairs.max()) + 1))
    folds = assign_folds(data.pairs, count, rng)
    quadratic = _QuadraticFit(data, noise)
    ridge, betas, base = quadratic.cross_validate(folds, count, settings.ridges)
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    residual = fit_residual(data, noise, (folds, base), generator, settings, progress)
    judged, weights = residual.judged, data.weights[residual.judged]
    scores = {
        "constant": np.full(len(weights), np.log(0.5)),
        "quadratic": noise.log_cdf(torch.from_numpy(base.out_of_fold[judged])).numpy(),
        "ensemble": noise.log_cdf(torch.from_numpy(residual.out_of_fold)).numpy(),
    }
    form = _simplest(scores, weights)
    if form == "constant":
        utility = Utility(torch.zeros(d), torch.zeros(d, d))
    elif form == "quadratic":
        utility = Utility.from_coefficients(quadratic.fit(ridge, data.weights), d, None)
    else:
        utility = Utility.from_coefficients(betas.mean(axis=0), d, residual.networks)
    held_out = {k: float(np.average(v, weights=weights)) for k, v in scores.items()}
    chosen = {"ridge": ridge, "decay": residual.decay, "steps": residual.steps}
    return utility, {"form": form, "held_out": held_out, **chosen}


def _simplest(scores: dict[str, Array], weights: Array) -> str:
    """Move to a richer form only when it wins by more than one standard error."""
    best = "constant"
    for form in ("quadratic", "ensemble"):
        gain = scores[form] - scores[best]
        mean = np.average(gain, weights=weights)
        spread = np.sqrt(np.sum(weights**2 * (gain - mean) ** 2)) / weights.sum()
        if mean > spread:
            best = form
    return best


@dataclass(frozen=True)
class _Base:
    """Differences winner − loser of the quadratics: (K, n) by fold's fit, and out of fold (n,)."""

    by_member: Array
    out_of_fold: Array


class _QuadraticFit:
    """Weighted choice likelihood with ridge, L-BFGS on [t_i, t_i t_j]."""

    def __init__(self, data: ChoiceData, noise: Noise) -> None:
        self.design = quadratic_features(data.winners) - quadratic_features(data.losers)
        self.weights = data.weights
        self.noise = noise

    def fit(self, ridge: float, weights: Array, start: Array | None = None) -> Array:
        """Coefficients (P,) maximizing Σ w log F(design·β) − ridge·|β|²/2."""
        design, mass = torch.from_numpy(self.design), torch.from_numpy(weights)

        def objective(beta: Array) -> tuple[float, Array]:
            difference = design @ torch.from_numpy(beta)
            log_cdf = self.noise.log_cdf(difference)
            # d log F = F'/F: the hazard, from logs so that neither tail overflows.
            slope = -mass * torch.exp(self.noise.log_pdf(difference) - log_cdf)
            gradient = np.asarray((design.T @ slope).numpy()) + ridge * beta
            return -float(log_cdf @ mass) + 0.5 * ridge * float(beta @ beta), gradient

        first = np.zeros(self.design.shape[1]) if start is None else start
        found, _, _ = fmin_l_bfgs_b(objective, first, maxiter=200, factr=1e6)
        return np.asarray(found)

    def cross_validate(
        self, folds: Folds, count: int, ridges: tuple[float, ...]
    ) -> tuple[float, Array, _Base]:
        """Best ridge, each fold's coefficients (K, P) at it, and what they predict."""
        best: tuple[float, float, Array, Array] | None = None
        betas: list[Array | None] = [None] * count
        # With many comparisons the ridge hardly matters: a coarser grid saves most of the time.
        coarse = 3 if len(folds) > _JUDGED else 1
        for ridge in sorted(ridges, reverse=True)[::coarse]:
            fits = [
                self.fit(ridge, self.weights * (folds != k), start=betas[k]) for k in range(count)
            ]
            betas = list(fits)
            predicted = np.stack(fits) @ self.design.T
            held_out = torch.from_numpy(predicted[folds, np.arange(len(folds))])
            mass = torch.from_numpy(self.weights)
            score = float(choice_log_likelihood(held_out, mass, self.noise))
            if best is None or score > best[0]:
                best = (score, ridge, np.stack(fits), predicted)
        assert best is not None
        _, ridge, chosen, predicted = best
        return ridge, chosen, _Base(predicted, predicted[folds, np.arange(len(folds))])


@dataclass(frozen=True)
class ResidualFit:
    """The chosen ensemble and how: out-of-fold differences (m,) at the rows ``judged`` (m,)."""

    networks: NetworkStack
    out_of_fold: Array
    judged: npt.NDArray[np.int64]
    decay: float
    steps: int


def fit_residual(
    data: ChoiceData,
    noise: Noise,
    base: tuple[Folds, _Base],
    generator: torch.Generator,
    settings: UtilitySettings,
    progress: Progress | None = None,
) -> ResidualFit:
    """Train every (fold, decay) network at once; keep the best decay and stopping step."""
    trainer = _ResidualTrainer(data, noise, base, generator, settings)
    since_best = 0
    for step in range(1, settings.max_steps + 1):
        trainer.step(step)
        if step % settings.check_every == 0:
            since_best = 0 if trainer.check(step) else since_best + 1
            if progress is not None:
                progress("utility", step, settings.max_steps)
            if since_best > settings.patience:
                break
    return trainer.best


class _ResidualTrainer:
    """A stack of networks ordered (fold, decay), trained by Adam with L2 on shared batches."""

    def __init__(
        self,
        data: ChoiceData,
        noise: Noise,
        base: tuple[Folds, _Base],
        generator: torch.Generator,
        settings: UtilitySettings,
    ) -> None:
        folds, quadratics = base
        self.noise, self.settings, self.generator = noise, settings, generator
        self.count, decays = quadratics.by_member.shape[0], settings.decays
        d = data.winners.shape[1]
        # Every decay of one fold starts from the same weights: the grid compares like with like.
        first = NetworkStack.create(self.count, d, settings.width, generator)
        stack = [p.repeat_interleave(len(decays), 0).requires_grad_() for p in first.parameters]
        self.networks = NetworkStack(stack)
        self.decay = torch.tensor(decays).repeat(self.count)[:, None, None]
        self.adam = torch.optim.Adam(stack, lr=settings.learning_rate, betas=(0.9, 0.99))
        self.points = torch.from_numpy(np.concatenate([data.winners, data.losers])).float()
        self.weights = torch.from_numpy(data.weights / data.weights.mean()).float()
        self.folds = torch.from_numpy(folds)
        self.base = torch.from_numpy(quadratics.by_member).float()
        self.member = torch.arange(self.count).repeat_interleave(len(decays))
        # Held-out likelihood needs no more rows than this to rank the candidates.
        every = torch.randperm(len(folds), generator=generator)
        self.judged = every[:_JUDGED].sort().values
        first_guess = torch.from_numpy(quadratics.out_of_fold)[self.judged]
        # No step at all, the bare quadratics, is the first candidate.
        self.best = self._snapshot(0, 0, first_guess)
        self.best_score = float(
            choice_log_likelihood(first_guess.float(), self.weights[self.judged], noise)
        )

    def _snapshot(self, decay: int, step: int, out_of_fold: Tensor) -> ResidualFit:
        width = len(self.settings.decays)
        which = [k * width + decay for k in range(self.count)]
        difference = out_of_fold.double().numpy()
        return ResidualFit(
            self.networks.select(which),
            difference,
            self.judged.numpy(),
            self.settings.decays[decay],
            step,
        )

    def _difference(self, rows: Tensor) -> Tensor:
        n = len(self.weights)
        values = self.networks(torch.cat([self.points[rows], self.points[rows + n]]))
        difference: Tensor = values[:, : len(rows)] - values[:, len(rows) :]
        return difference + self.base[self.member][:, rows]

    def step(self, step: int) -> None:
        """One step of Adam; the learning rate decays as the square root after 200 steps."""
        n, settings = len(self.weights), self.settings
        if n <= settings.batch:
            rows = torch.arange(n)
        else:
            rows = torch.randint(n, (settings.batch,), generator=self.generator)
        mass = self.weights[rows] * (self.folds[rows] != self.member[:, None])
        loss = -(self.noise.log_cdf(self._difference(rows)) * mass).sum() / len(rows)
        gradients = torch.autograd.grad(loss, self.networks.parameters)
        for parameter, gradient in zip(self.networks.parameters, gradients, strict=True):
            parameter.grad = gradient + self.decay * parameter.detach()
        for group in self.adam.param_groups:
            group["lr"] = settings.learning_rate / max(step / 200.0, 1.0) ** 0.5
        self.adam.step()

    @torch.no_grad()
    def check(self, step: int) -> bool:
        """Score each decay on held-out folds; keep a copy of the best so far."""
        rows = self.judged
        parts = [self._difference(chunk) for chunk in torch.split(rows, 8192)]
        every = torch.cat(parts, dim=1).reshape(self.count, len(self.settings.decays), -1)
        held_out = every[self.folds[rows], :, torch.arange(len(rows))]
        scores = choice_log_likelihood(held_out.T, self.weights[rows], self.noise)
        best = int(scores.argmax())
        if float(scores[best]) <= self.best_score + 1e-4:
            return False
        self.best_score = float(scores[best])
        self.best = self._snapshot(best, step, held_out[:, best])
        return True
