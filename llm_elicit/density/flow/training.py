"""Train one flow on comparisons: function-space maximum a posteriori.

With u = log q_φ per unit of the feature scale, the flow maximizes, per comparison,

    J(φ) = Σ_i w_i [ log F(u(x_i) − u(x'_i)) + α log q_φ(x_i) ] / Σ_i w_i

over winners x_i and losers x'_i. The first term is the choice likelihood. It sees differences
of u at compared points only, so mass may collapse onto a few winners or drift to where nothing
was asked. The second term is the functional prior of Mikkola, Acerbi and Klami (2024,
"Preferential normalizing flows"): the winners are draws of a density that resembles the belief
(the belief tempered, and tilted by λ), so the belief must itself be likely to produce them.
Their paper fixes the prior's form through that tempering; here the winners enter at temperature
one and its strength is α.

The winners are spread wider than the belief, so a fixed α > 0 biases the estimate: α therefore
falls geometrically over the fit, from the first to the last of ``prior_weight``. The early fit
covers every mode where winners lie; the late one follows the choices alone. Held-out choice
likelihood picks the point on that path, step 0 included.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from llm_elicit.density.flow.network import BeliefFlow
from llm_elicit.density.flow.settings import FlowSettings
from llm_elicit.density.likelihood import Noise, choice_log_likelihood
from llm_elicit.density.torch_utils import Adam

_LAST_RATE = 0.02
_PRIOR_FALLS_FOR = 0.7
_CLIP = 5.0
# Parameters and the rate they learn at.
Groups = list[tuple[list[torch.nn.Parameter], float]]


@dataclass(frozen=True)
class FlowData:
    """Latent winners and losers (n, d), log|dz/dg| at each (n,), weights (n,) of mean one."""

    winners: Tensor
    losers: Tensor
    winner_volume: Tensor
    loser_volume: Tensor
    weights: Tensor

    def take(self, rows: Tensor) -> FlowData:
        """The comparisons numbered ``rows``."""
        return FlowData(
            self.winners[rows],
            self.losers[rows],
            self.winner_volume[rows],
            self.loser_volume[rows],
            self.weights[rows],
        )

    @property
    def size(self) -> int:
        """Number of comparisons."""
        return len(self.weights)


@dataclass
class _Best:
    score: float = -math.inf
    steps: int = 0
    state: dict[str, Tensor] = field(default_factory=dict)


class FlowTrainer:
    """Fits one flow to ``train``; ``held_out`` chooses where on the path to stop."""

    def __init__(
        self,
        flow: BeliefFlow,
        train: FlowData,
        held_out: FlowData,
        noise: Noise,
        settings: FlowSettings,
        generator: torch.Generator,
    ) -> None:
        self.flow, self.noise, self.settings = flow, noise, settings
        self.train, self.held_out, self.generator = train, held_out, generator
        self.best, self.steps = _Best(), 0

    def fit(self, progress: Callable[[int], None]) -> _Best:
        """Fit from the better of two starts; the flow ends in the best state held out.

        One start is the linear layer fitted alone, right for a single bump. A linear layer can
        settle on one of several modes, though, and leave the others where the splines no longer
        act; so the other start is the winners' moments and a short fit of all layers.
        ``progress`` is called with the number of steps done.
        """
        settings, flow = self.settings, self.flow
        first, last = settings.prior_weight
        flow.start_at(self.train.winners, self.train.weights)
        moments = copy.deepcopy(flow.state_dict())
        flow.with_splines = False
        groups: Groups = [(flow.affine_parameters(), settings.affine_rate)]
        self._path(groups, settings.affine_steps, (last, last), progress)
        flow.with_splines = True
        flow.load_state_dict(moments)
        done = settings.affine_steps
        short = self._all_layers(), settings.short_steps, (first, first)
        self._path(*short, lambda k: progress(done + k))
        flow.load_state_dict(self.best.state)
        done += settings.short_steps
        long = self._all_layers(), settings.steps, settings.prior_weight
        self._path(*long, lambda k: progress(done + k))
        flow.load_state_dict(self.best.state)
        return self.best

    def _all_layers(self) -> Groups:
        return [
            (self.flow.affine_parameters(), 0.2 * self.settings.affine_rate),
            (list(self.flow.splines.parameters()), self.settings.learning_rate),
        ]

    def _path(
        self,
        groups: Groups,
        steps: int,
        prior_weight: tuple[float, float],
        progress: Callable[[int], None],
    ) -> None:
        """Adam over ``steps`` steps while the prior's weight falls; keep what scores best."""
        optimizers = [(Adam(group), rate) for group, rate in groups]
        parameters = [p for group, _ in groups for p in group]
        average = [p.detach().clone() for p in parameters]
        before, first, last = self.steps, *prior_weight
        self.steps += steps
        self._keep_if_best(before)
        for step in range(1, steps + 1):
            fall = min(step / (_PRIOR_FALLS_FOR * steps), 1.0)
            loss = -self._objective(self._batch(), first * (last / first) ** fall)
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
            cosine = 0.5 * (1.0 + math.cos(math.pi * step / steps))
            for adam, rate in optimizers:
                clipped = [p.grad for p in adam.parameters if p.grad is not None]
                adam.step(clipped, rate * max(cosine, _LAST_RATE))
            self._follow(average, parameters, step)
            if step % self.settings.check_every == 0:
                self._check(average, parameters, before + step)
                progress(step)

    def _follow(
        self, average: list[Tensor], parameters: list[torch.nn.Parameter], step: int
    ) -> None:
        """Moving average of the parameters, quick at first."""
        keep = min(self.settings.averaging, step / (step + 10.0))
        for mean, parameter in zip(average, parameters, strict=True):
            mean.lerp_(parameter.detach(), 1.0 - keep)

    def _batch(self) -> FlowData:
        n, size = self.train.size, self.settings.batch
        if n <= size:
            return self.train
        return self.train.take(torch.randint(n, (size,), generator=self.generator))

    def _utilities(self, data: FlowData) -> tuple[Tensor, Tensor]:
        log_prob = self.flow.log_prob(torch.cat([data.winners, data.losers]))
        n = data.size
        return log_prob[:n] - data.winner_volume, log_prob[n:] - data.loser_volume

    def _objective(self, data: FlowData, prior_weight: float) -> Tensor:
        winner, loser = self._utilities(data)
        choice = self.noise.log_cdf(winner - loser)
        return (data.weights * (choice + prior_weight * winner)).mean()

    @torch.no_grad()
    def _check(
        self, average: list[Tensor], parameters: list[torch.nn.Parameter], steps: int
    ) -> None:
        """Score the averaged parameters, then go on with the current ones."""
        current = [p.detach().clone() for p in parameters]
        for parameter, mean in zip(parameters, average, strict=True):
            parameter.copy_(mean)
        self._keep_if_best(steps)
        for parameter, value in zip(parameters, current, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def _keep_if_best(self, steps: int) -> None:
        winner, loser = self._utilities(self.held_out)
        score = float(choice_log_likelihood(winner - loser, self.held_out.weights, self.noise))
        if score > self.best.score + 1e-4:
            self.best = _Best(score, steps, copy.deepcopy(self.flow.state_dict()))
