"""Fisher scoring: the posterior mode of a mixture given choices, by damped Newton steps.

The curvature is the Fisher information of the choices, which is never negative; it is damped as
by Marquardt (1963) until the log-posterior rises. Steps are those of `Mixture`, so a bound on
their entries is a trust region.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from llm_elicit.density.likelihood import Response
from llm_elicit.density.settings import MixturePrior
from llm_elicit.density.torch_utils import ascend
from llm_elicit.density.utility.model import Mixture, log_prior, prior_derivatives

_CHUNK = 4096
_NEGLIGIBLE = 1e-4  # choices of less slope and information than this are left out
_LONGEST = 0.5
_CONVERGED = 0.02  # nats of the log-posterior
_IDENTIFIED = 1e-7


@dataclass(frozen=True)
class MixturePosterior:
    """The posterior of a mixture given m choices.

    Args:
        points: (2m, d) features of the winners, then of the losers.
        weights: (m,).
    """

    points: Tensor
    weights: Tensor
    response: Response
    prior: MixturePrior

    def subset(self, rows: Tensor) -> MixturePosterior:
        """Return the posterior given only the choices numbered ``rows``."""
        points = torch.cat([side[rows] for side in self.points.chunk(2)])
        return replace(
            self, points=points, weights=self.weights[rows], response=self.response.at(rows)
        )

    @cached_property
    def _chunks(self) -> list[tuple[Tensor, Tensor, Response]]:
        winners, losers = self.points.chunk(2)
        chunks = (slice(at, at + _CHUNK) for at in range(0, len(self.weights), _CHUNK))
        return [
            (torch.cat([winners[at], losers[at]]), self.weights[at], self.response.at(at))
            for at in chunks
        ]

    def value(self, mixture: Mixture) -> float:
        """Return the log-posterior up to a constant."""
        total = log_prior(self.prior, mixture).double()
        for points, weights, response in self._chunks:
            winners, losers = mixture(points).chunk(2)
            total = total + (response.log_cdf(winners - losers) * weights).sum().double()
        return float(total)

    def derivatives(self, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """Return the gradient (P,) and the curvature (P, P) by the mixture's own steps."""
        gradient, curvature = prior_derivatives(self.prior, mixture)
        directions = mixture.directions()
        if directions is not None:
            own = torch.block_diag(*directions)  # type: ignore[no-untyped-call]
            gradient, curvature = gradient @ own, own.T @ curvature @ own
        for points, weights, response in self._chunks:
            y = mixture.whitened(points)
            winners, losers = torch.logsumexp(mixture.forms(y), 0).chunk(2)
            slope = response.slope(winners - losers)
            information = response.information(winners - losers)
            rows = torch.nonzero(weights * torch.maximum(slope, information) > _NEGLIGIBLE)[:, 0]
            slopes = _slopes(mixture, y[..., torch.cat([rows, rows + len(weights)])])
            of_winners, of_losers = slopes.chunk(2, 1)
            change, mass = of_winners - of_losers, weights[rows]
            gradient = gradient + change @ (slope[rows] * mass)
            curvature = curvature + (change * (information[rows] * mass)) @ change.T
        return gradient, curvature

    def predict(self, mixture: Mixture, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(winner) − f(loser) (m,) and its posterior standard deviation at the mode.

        By Laplace's approximation: slopes of the difference under the inverse curvature.
        Directions that the posterior does not identify (a common height) change no difference
        and are left out.

        Args:
            points: (2m, d) features of m winners, then of their losers.
        """
        root = inverse_root(self.derivatives(mixture)[1])
        differences, spreads = [], []
        winners, losers = points.chunk(2)
        for pair in zip(torch.split(winners, _CHUNK), torch.split(losers, _CHUNK), strict=True):
            y = mixture.whitened(torch.cat(pair))
            of_winners, of_losers = torch.logsumexp(mixture.forms(y), 0).chunk(2)
            slopes = _slopes(mixture, y).chunk(2, 1)
            differences.append(of_winners - of_losers)
            spreads.append((root.T @ (slopes[0] - slopes[1])).norm(dim=0))
        return torch.cat(differences), torch.cat(spreads)


def inverse_root(curvature: Tensor) -> Tensor:
    """Return a root (P, F) of the inverse of a curvature on its F identified directions."""
    precisions, axes = torch.linalg.eigh(curvature.double())
    identified = precisions > _IDENTIFIED * precisions[-1]
    root: Tensor = axes[:, identified] / precisions[identified].sqrt()
    return root.float()


def _slopes(mixture: Mixture, y: Tensor) -> Tensor:
    """Return the derivatives (P, n) of f by the mixture's own step, at whitened features."""
    share = torch.softmax(mixture.forms(y), 0)
    return mixture.form_slopes(y).mul_(share[:, None]).flatten(0, 1)


def maximize(posterior: MixturePosterior, start: Mixture, steps: int) -> tuple[Mixture, float]:
    """Return the mixture after at most ``steps`` Newton steps, and its log-posterior."""

    def moved(mixture: Mixture, step: Tensor) -> Mixture:
        step = step.float()
        return mixture.moved(step * min(1.0, _LONGEST / max(float(step.abs().max()), 1e-12)))

    return ascend(start, posterior.value, posterior.derivatives, moved, steps, _CONVERGED)
