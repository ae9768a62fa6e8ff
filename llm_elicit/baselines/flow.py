"""The preferential normalizing flow: ``method="flow"``, with the ``flow`` extra.

The belief is a mixture of flows, a member for each held-out fold.

With u = log q_φ per unit of the feature scale, the flow maximizes, per comparison,

    J(φ) = Σ_i w_i [ log F(u(x_i) − u(x'_i)) + α log q_φ(x_i) ] / Σ_i w_i

over winners x_i and losers x'_i. The first term is the choice likelihood. It sees differences
of u at compared points only, so mass may collapse onto a few winners or drift to where nothing
was asked. The second term is the functional prior of Mikkola, Acerbi and Klami (2024,
"Preferential normalizing flows"): the winners are draws of a density that resembles the belief
(the belief tempered, and tilted by λ), so the belief must itself be likely to produce them.
Their paper fixes the prior's form through that tempering; here the winners enter at temperature
one and its strength is α.

The winners are spread wider than the belief, so a fixed α > 0 biases the estimate. Each member is
fitted in three stages: the linear layer alone, with the last α of ``prior_weight``; all layers from
the moments of the winners, with the first α; and all layers from the better of these two results,
while α falls geometrically from the first to the last value over the first 70 % of the steps. So
the early steps cover every mode where winners lie, and the late ones follow the choices alone.
The likelihood of held-out choices selects the step to keep, the start of each stage included.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density import methods
from llm_elicit.density.errors import (
    Array,
    DensityError,
    Flags,
    check_fields,
    check_integer,
    check_number,
)
from llm_elicit.density.latent import BoxLatent, Latent
from llm_elicit.density.likelihood import Noise, assign_folds, choice_log_likelihood
from llm_elicit.density.methods import MethodFit, Problem
from llm_elicit.density.sampling import LOG_2PI, bisect
from llm_elicit.density.smc import Draws
from llm_elicit.density.torch_utils import Adam

__all__ = ["METHOD", "FlowSettings"]

_CHUNK = 8192  # points that are evaluated at once
_SQRT_3 = math.sqrt(3.0)
_BISECTIONS = 90
_INITIAL_SHARE = -2.0  # initial logit of κ in `BeliefFlow`


@dataclass(frozen=True)
class FlowShape:
    """Size of a flow: features, spline layers, bins, hidden units, and whether it stretches."""

    dimension: int
    transforms: int
    bins: int
    width: int
    stretched: bool


class BeliefFlow(torch.nn.Module):
    """A flow with density q(g) at latent points (n, d): g → y → t = A(y − b) → splines → N(0, I).

    * y is the stretch y_j = κ_j g_j + (1 − κ_j)·√3 erf(g_j/√2), with κ_j in (0, 1) learned. In a
      box, κ → 0 makes y the scaled feature itself, in which narrow beliefs are normal, and κ = 1
      leaves g, in which the uniform belief is normal. Without ``stretched``, y = g.
    * A is lower triangular with a positive diagonal.
    * The splines are a neural spline flow (Durkan et al., 2019), autoregressive in the features,
      of zuko (Rozet et al., 2022); they start as the identity, and stay so beyond |t_j| = 5, so
      the tails are normal whatever was learned.

    Examples:
        >>> import torch
        >>> flow = BeliefFlow(FlowShape(2, 1, 4, 8, stretched=False), seed=0)
        >>> flow.log_prob(torch.zeros(1, 2)).exp().mul(2 * torch.pi).round(decimals=6).tolist()
        [1.0]
    """

    def __init__(self, shape: FlowShape, seed: int) -> None:
        super().__init__()
        try:
            from zuko.flows import NSF  # noqa: PLC0415 - of the extra `flow`
        except ImportError as error:
            raise DensityError(
                f"method 'flow' needs zuko ({error}); run: pip install 'llm-elicit[flow]'."
            ) from error

        self.shape, d = shape, shape.dimension
        with torch.random.fork_rng(devices=[]):  # without global random state
            torch.manual_seed(seed)
            self.splines: Any = NSF(
                d,
                transforms=shape.transforms,
                bins=shape.bins,
                hidden_features=(shape.width, shape.width),
                activation=torch.nn.Tanh,
            )
        # The splines start as the identity. With one feature there is no network: the spline's own
        # parameters are all there is.
        for layer in self.splines.transform.transforms:
            last = layer.hyper[-1] if d > 1 else layer
            for parameter in last.parameters():
                torch.nn.init.zeros_(parameter)
        self.centre = torch.nn.Parameter(torch.zeros(d))
        # Entries of A; those of its diagonal are logarithms.
        self.linear = torch.nn.Parameter(torch.zeros(d, d))
        self.share = torch.nn.Parameter(torch.full((d,), _INITIAL_SHARE))
        self.with_splines = True

    def affine_parameters(self) -> list[torch.nn.Parameter]:
        """Return parameters of the stretch and of the linear layer."""
        return [self.centre, self.linear, *([self.share] if self.shape.stretched else [])]

    @torch.no_grad()
    def standardize_to(self, points: Tensor, weights: Tensor) -> None:
        """Set the linear layer so that weighted latent points (n, d) become standard."""
        y, _ = self._stretch(points.to(self.centre.dtype))
        probabilities = (weights / weights.sum()).to(y.dtype)
        mean = probabilities @ y
        centred = y - mean
        covariance = (centred * probabilities[:, None]).T @ centred
        ridge = 1e-6 * (1.0 + covariance.diagonal().mean()) * torch.eye(len(mean), dtype=y.dtype)
        whitening = torch.linalg.inv(torch.linalg.cholesky(covariance + ridge))
        self.centre.copy_(mean)
        self.linear.copy_(torch.tril(whitening, -1) + torch.diag(whitening.diagonal().log()))

    def log_prob(self, g: Tensor) -> Tensor:
        """Return log q (n,) per latent unit at latent points (n, d), nats; exactly normalized."""
        y, log_slope = self._stretch(g)
        t = (y - self.centre) @ self._matrix().T
        log_volume = log_slope + self.linear.diagonal().sum()
        if not self.with_splines:
            return log_volume - 0.5 * (t * t).sum(-1) - 0.5 * LOG_2PI * t.shape[-1]
        log_prob: Tensor = self.splines().log_prob(t)
        return log_volume + log_prob

    @torch.no_grad()
    def push(self, z: Tensor) -> Tensor:
        """Return latent points (n, d) from draws z (n, d) of N(0, I)."""
        t = self.splines().transform.inv(z)
        y: Tensor = torch.linalg.solve_triangular(self._matrix(), t.T, upper=False).T + self.centre
        if not self.shape.stretched:
            return y

        def is_below(g: Array) -> Flags:
            return np.asarray((self._stretch(torch.from_numpy(g))[0] < y).numpy())

        # |y| >= κ|g| − √3, so g lies in this bracket.
        high = ((y.abs() + 2.0) / torch.sigmoid(self.share)).numpy()
        return torch.from_numpy(bisect(is_below, -high, high, _BISECTIONS))

    def _matrix(self) -> Tensor:
        """Return A (d, d)."""
        return torch.tril(self.linear, -1) + torch.diag(self.linear.diagonal().exp())

    def _stretch(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stretched points y (n, d) and the logarithm (n,) of |dy/dg|."""
        if not self.shape.stretched:
            return g, torch.zeros_like(g[:, 0])
        share = torch.sigmoid(self.share)
        y = share * g + (1.0 - share) * _SQRT_3 * torch.erf(g / math.sqrt(2.0))
        normal = _SQRT_3 * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * g * g)
        return y, torch.log(share + (1.0 - share) * normal).sum(-1)


@dataclass(frozen=True)
class FlowDensity:
    """p(g) = (1/K) Σ_k q_k(g) in latent coordinates, with K flows of equal weight.

    See `llm_elicit.density.methods.DensityModel`. No normalizing constant is estimated: ∫ p dg = 1,
    and the density per unit of the feature scale is p(g)/|dz/dg|.
    """

    latent: Latent
    flows: tuple[BeliefFlow, ...]

    @property
    def name(self) -> str:
        """The method's name."""
        return "flow"

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Draw n latent points: base noise pushed through the flows, independent draws."""
        d = self.flows[0].shape.dimension
        member = torch.randint(len(self.flows), (n,), generator=generator)
        z = torch.randn(n, d, generator=generator, dtype=torch.float64)
        points = torch.empty_like(z)
        for k, flow in enumerate(self.flows):
            rows = member == k
            if rows.any():
                points[rows] = flow.push(z[rows])
        return Draws.independent(points)

    @torch.no_grad()
    def log_density(self, g: Tensor) -> Tensor:
        """Return the normalized log-density (n,) per scale unit, nats."""
        parts = [
            torch.stack([flow.log_prob(chunk) for flow in self.flows])
            for chunk in torch.split(g, _CHUNK)
        ]
        log_mixture = torch.logsumexp(torch.cat(parts, dim=1), 0) - math.log(len(self.flows))
        return log_mixture - self.latent.log_volume(g)

    def evaluation_error(self, g: Tensor) -> float:  # noqa: ARG002 - of the protocol
        """Return 0: the densities are exact, in double precision."""
        return 0.0

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters of every flow."""
        return {
            f"flow.{k}.{name}": parameter.detach()
            for k, flow in enumerate(self.flows)
            for name, parameter in flow.named_parameters()
        }

    def config(self) -> dict[str, Any]:
        """Return the number and size of the flows."""
        return {"members": len(self.flows), "shape": asdict(self.flows[0].shape)}

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> FlowDensity:
        """Rebuild from `tensors` and `config`."""
        shape = FlowShape(**config["shape"])
        flows = []
        for k in range(config["members"]):
            flow = BeliefFlow(shape, seed=0).double()
            with torch.no_grad():
                for name, parameter in flow.named_parameters():
                    parameter.copy_(tensors[f"flow.{k}.{name}"])
            flows.append(flow)
        return cls(latent, tuple(flows))


_DRAWS = 2048  # of a fitted belief, which are stored with its normalizing constant
_MIN_RATE_FACTOR = 0.02  # smallest factor of the learning rates, at the end of their cosine decay
_PRIOR_DECAY_SHARE = 0.7  # share of the steps over which the weight of the prior falls
_MAX_GRADIENT_NORM = 5.0  # norm of the gradient above which it is scaled down

Groups = list[tuple[list[torch.nn.Parameter], float]]
"""Parameters and their learning rates."""


@dataclass(frozen=True)
class FlowSettings:
    """Settings of the preferential normalizing flow; the defaults serve every target.

    Attributes:
        members: flows in the mixture; each holds out its own fold of the pairs, of ``folds``.
        transforms, bins, width: spline layers, bins of each spline, hidden units of each network.
        batch: comparisons per step.
        affine_steps, short_steps, steps: steps of the three stages: the linear layer alone, all
            layers from the winners' moments, and all layers from the better of these two results.
        affine_rate, learning_rate: Adam's rates for the linear layer and for the splines.
        prior_weight: first and last weight α of the functional prior (see the module's docstring).
        averaging: weight of earlier parameters in the moving average that is evaluated and stored.
        check_every: steps between evaluations on the held-out comparisons.

    Raises:
        DensityError: a count below one, a rate or a prior weight that is not positive, fewer
            than two folds, or more members than folds.

    Examples:
        >>> FlowSettings(members=1).folds
        5
    """

    members: int = 3
    folds: int = 5
    transforms: int = 2
    bins: int = 5
    width: int = 32
    batch: int = 256
    affine_steps: int = 800
    short_steps: int = 150
    steps: int = 600
    affine_rate: float = 5e-2
    learning_rate: float = 4e-3
    prior_weight: tuple[float, float] = (0.05, 1e-4)
    averaging: float = 0.98
    check_every: int = 25

    def __post_init__(self) -> None:
        counts = ("members", "transforms", "bins", "width", "batch", "check_every")
        check_fields(self, check_integer, *counts, minimum=1)
        if not 2 <= self.folds >= self.members:
            raise DensityError(
                f"FlowSettings: folds = {self.folds} and members = {self.members}; folds must be "
                "at least 2 and at least the number of members; raise folds."
            )
        check_fields(self, check_number, "affine_rate", "learning_rate", above=0.0)
        for weight in self.prior_weight:
            check_number("FlowSettings: prior_weight", weight, above=0.0)


@dataclass(frozen=True)
class FlowData:
    """Latent winners and losers (n, d), log|dz/dg| at each (n,), weights (n,) of mean one."""

    winners: Tensor
    losers: Tensor
    winner_volume: Tensor
    loser_volume: Tensor
    weights: Tensor

    def take(self, rows: Tensor) -> FlowData:
        """Return the comparisons numbered ``rows``."""
        return FlowData(*(getattr(self, column.name)[rows] for column in fields(self)))

    @property
    def size(self) -> int:
        """Number of comparisons."""
        return len(self.weights)


@dataclass
class _Best:
    """The parameters with the highest held-out log-likelihood so far, its value and their step."""

    score: float = -math.inf
    steps: int = 0
    state: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class FlowTrainer:
    """Fits one flow to ``train``; the likelihood of ``held_out`` selects the step to keep."""

    flow: BeliefFlow
    train: FlowData
    held_out: FlowData
    noise: Noise
    settings: FlowSettings
    generator: torch.Generator
    best: _Best = field(default_factory=_Best)
    steps: int = 0

    def fit(self, progress: Callable[[int], None]) -> _Best:
        """Fit the flow from the better of two starts, and return its best state on ``held_out``.

        One start is the linear layer fitted alone, which suits one component. With several modes
        a linear layer may converge to one of them and leave the others beyond the splines' range;
        so the other start is the winners' moments and a short fit of all layers.
        ``progress`` is called with the number of steps done.
        """
        settings, flow = self.settings, self.flow
        first, last = settings.prior_weight
        flow.standardize_to(self.train.winners, self.train.weights)
        moments = copy.deepcopy(flow.state_dict())
        flow.with_splines = False
        groups: Groups = [(flow.affine_parameters(), settings.affine_rate)]
        self._optimize(groups, settings.affine_steps, (last, last), progress)
        flow.with_splines = True
        flow.load_state_dict(moments)
        done = settings.affine_steps
        from_moments = self._all_layers(), settings.short_steps, (first, first)
        self._optimize(*from_moments, lambda k: progress(done + k))
        flow.load_state_dict(self.best.state)
        done += settings.short_steps
        from_best = self._all_layers(), settings.steps, settings.prior_weight
        self._optimize(*from_best, lambda k: progress(done + k))
        flow.load_state_dict(self.best.state)
        return self.best

    def _all_layers(self) -> Groups:
        return [
            (self.flow.affine_parameters(), 0.2 * self.settings.affine_rate),
            (list(self.flow.splines.parameters()), self.settings.learning_rate),
        ]

    def _optimize(
        self,
        groups: Groups,
        steps: int,
        prior_weight: tuple[float, float],
        progress: Callable[[int], None],
    ) -> None:
        """Take steps of Adam while the weight of the prior falls; store the best parameters."""
        optimizers = [(Adam(group), rate) for group, rate in groups]
        parameters = [p for group, _ in groups for p in group]
        average = copy.deepcopy(self.flow).requires_grad_(False)
        first_step, first, last = self.steps, *prior_weight
        self.steps += steps
        self._keep_if_best(self.flow, first_step)
        for step in range(1, steps + 1):
            fall = min(step / (_PRIOR_DECAY_SHARE * steps), 1.0)
            data, n, size = self.train, self.train.size, self.settings.batch
            if n > size:
                data = data.take(torch.randint(n, (size,), generator=self.generator))
            winner, loser = self._utilities(self.flow, data)
            prior = first * (last / first) ** fall * winner
            loss = -(data.weights * (self.noise.log_cdf(winner - loser) + prior)).mean()
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            torch.nn.utils.clip_grad_norm_(parameters, _MAX_GRADIENT_NORM)
            cosine = 0.5 * (1.0 + math.cos(math.pi * step / steps))
            for adam, rate in optimizers:
                clipped = [p.grad for p in adam.parameters if p.grad is not None]
                adam.step(clipped, rate * max(cosine, _MIN_RATE_FACTOR))
            # A moving average of the parameters, quick at first.
            decay = min(self.settings.averaging, step / (step + 10.0))
            for mean, parameter in zip(average.parameters(), self.flow.parameters(), strict=True):
                mean.lerp_(parameter.detach(), 1.0 - decay)
            if step % self.settings.check_every == 0:
                self._keep_if_best(average, first_step + step)
                progress(step)

    def _utilities(self, flow: BeliefFlow, data: FlowData) -> tuple[Tensor, Tensor]:
        """Return the utilities of winners and of losers (n,)."""
        winner, loser = flow.log_prob(torch.cat([data.winners, data.losers])).chunk(2)
        return winner - data.winner_volume, loser - data.loser_volume

    @torch.no_grad()
    def _keep_if_best(self, flow: BeliefFlow, steps: int) -> None:
        winner, loser = self._utilities(flow, self.held_out)
        score = float(choice_log_likelihood(winner - loser, self.held_out.weights, self.noise))
        if score > self.best.score + 1e-4:
            self.best = _Best(score, steps, copy.deepcopy(flow.state_dict()))


def fit_flow(problem: Problem) -> MethodFit:
    """Fit the preferential normalizing flow (Mikkola, Acerbi and Klami, 2024).

    Each member is fitted without one fold of the pairs, and that fold selects the step at which its
    fit stops. The belief is the mixture of the members.

    Returns:
        The density, which is normalized exactly (log Z = 0 with standard error 0), and notes:
        ``held_out_log_likelihood``, the mean log-likelihood of held-out comparisons under the
        member fitted without them (nats per comparison; random choices score −log 2), and
        ``flow_steps``, the step at which each member stopped.
    """
    settings = methods.external_settings(problem, FlowSettings(), "flow")
    pairs = problem.judgments.pairs
    count = max(2, min(settings.folds, int(pairs.max()) + 1))
    folds = torch.from_numpy(assign_folds(pairs, count, problem.rng))
    winners, losers, weights = problem.winners, problem.losers, problem.weights
    volumes = (problem.latent.log_volume(side) for side in (winners, losers))
    columns = winners, losers, *volumes, weights / weights.mean()
    data = FlowData(*(column.float() for column in columns))
    sizes = (settings.transforms, settings.bins, settings.width)
    shape = FlowShape(problem.dimension, *sizes, isinstance(problem.latent, BoxLatent))
    member_steps = settings.affine_steps + settings.short_steps + settings.steps
    flows, best, held_out_weights = [], list[_Best](), []
    for k in range(min(settings.members, count)):
        seed = int(problem.rng.integers(2**62))
        flow, generator = BeliefFlow(shape, seed), torch.Generator().manual_seed(seed)
        train, held_out = ((folds != k).nonzero()[:, 0], (folds == k).nonzero()[:, 0])

        def progress(done: int, first_step: int = k * member_steps) -> None:
            if problem.progress is not None:
                problem.progress("flow", first_step + done, settings.members * member_steps)

        parts = data.take(train), data.take(held_out)
        best.append(FlowTrainer(flow, *parts, problem.noise, settings, generator).fit(progress))
        flows.append(flow.double())
        held_out_weights.append(float(data.weights[held_out].sum()))
    model = FlowDensity(problem.latent, tuple(flows))
    draws = model.sample_latent(_DRAWS, problem.generator)
    scores = [b.score for b in best]
    notes = {
        "held_out_log_likelihood": float(np.average(scores, weights=held_out_weights)),
        "flow_steps": [b.steps for b in best],
    }
    return MethodFit(model, methods.LogNormalizer(0.0, 0.0, draws), notes)


METHOD = methods.ExternalMethod(fit_flow, FlowDensity.restore)
