"""The belief by de-tempering the score of the winners."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from llm_elicit.density.annealing import AnnealingSettings
from llm_elicit.density.latent import Latent
from llm_elicit.density.ratio import Utility
from llm_elicit.density.score.langevin import LangevinSettings, sample_langevin
from llm_elicit.density.score.likelihood import FlowPrior, LikelihoodSettings, flow_log_prob
from llm_elicit.density.score.network import ScoreNetwork
from llm_elicit.density.tempering import Tempering
from llm_elicit.density.utility_density import (
    anneal_from_sampling,
    utility_at,
    utility_from_tensors,
    utility_tensors,
)


@dataclass(frozen=True)
class ScoreParts:
    """What a score belief is made of.

    ``side`` is "both" (the score of the odds of winning, times ω) or "winners" (the paper's: the
    score of the winners, times τ). ``constant`` replaces the field by one number for method
    ``score-constant``; ``cap`` bounds the field, which multiplies the score's errors.
    """

    latent: Latent
    utility: Utility
    network: ScoreNetwork
    tempering: Tempering
    priors: tuple[FlowPrior, FlowPrior]
    side: str
    cap: float
    constant: float | None

    def field(self, u: Tensor) -> Tensor:
        """ω(u) or τ(u) by ``side``, capped, or the constant; (n,) -> (n,)."""
        if self.constant is not None:
            return torch.full_like(u, self.constant)
        field = self.tempering.omega(u) if self.side == "both" else self.tempering.tau(u)
        return field.clamp(max=self.cap)


@dataclass(frozen=True)
class ScoreDensity:
    """Samples by score-scaled Langevin dynamics; density by the probability flow.

    See `llm_elicit.density.density_model.DensityModel`.
    """

    parts: ScoreParts
    langevin: LangevinSettings
    likelihood: LikelihoodSettings
    annealing: AnnealingSettings
    log_normalizer: float = 0.0

    @property
    def name(self) -> str:
        """The method's name."""
        return "score" if self.parts.constant is None else "score-constant"

    def excess(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """Score (n, d) of what is tempered, zero beyond the compared points."""
        sides = self.parts.network.side_scores(g.float(), masked.float(), sigma)
        winner, loser = (score.to(g.dtype) for score in sides)
        against = loser if self.parts.side == "both" else self.parts.latent.sampling_score(g, sigma)
        inside = g.norm(dim=1, keepdim=True) <= self.parts.latent.radius
        return torch.where(inside, winner - against, torch.zeros_like(g))

    def sample_latent(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) latent points: λ carried down the noise levels by the belief's drift."""
        latent = self.parts.latent

        def drift(g: Tensor, sigma: float) -> Tensor:
            masked = sigma * torch.randn(g.shape, generator=generator)
            field = self.parts.field(utility_at(latent, self.parts.utility, g))
            force = field[:, None] * self.excess(g, masked, sigma)
            force = force + latent.log_volume_slope(g) + latent.taper_slope(g)
            return force + latent.relaxation(g, sigma)

        # The step's preconditioner is an average over particles: never let it see only a few.
        crowd = max(n, 1024)
        utility, annealing = self.parts.utility, self.annealing
        start = anneal_from_sampling(latent, utility, crowd, generator, annealing).points
        with torch.no_grad():
            points = sample_langevin(start, drift, self.langevin, generator)
        return points[torch.randperm(crowd, generator=generator)[:n]]

    def log_density(self, g: Tensor) -> Tensor:
        """Normalized log-density (n,) per scale unit, nats."""
        return self.unnormalized(g) - self.log_normalizer

    def unnormalized(self, g: Tensor) -> Tensor:
        """u(g) (n,): log p_w − log λ by the flow, then back through w, tapered as the samples."""
        parts = self.parts
        shrink = (parts.latent.radius / g.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
        inner = g * shrink
        both = parts.side == "both"
        winner = self._flow(inner, 0)
        ratio = winner - (self._flow(inner, 1) if both else parts.latent.log_sampling(inner))
        if parts.constant is not None:
            u = parts.constant * ratio
        elif both:
            u = parts.tempering.utility_of_odds(ratio)
        else:
            u = parts.tempering.utility_of_log(ratio - math.log(2.0))
        return u + parts.latent.taper(g)

    def _flow(self, g: Tensor, side: int) -> Tensor:
        """log p_w (side 0) or log p_l (side 1) by the probability flow, (n,)."""
        # One fixed draw of the mask, scaled by σ as in training: a deterministic density.
        unit = torch.randn(1, g.shape[1], generator=torch.Generator().manual_seed(0))

        def score(point: Tensor, sigma: float) -> Tensor:
            masked = (sigma * unit).expand(len(point), -1)
            sides = self.parts.network.side_scores(point.float(), masked, sigma)
            return sides[side].to(point.dtype)

        return flow_log_prob(g, score, self.parts.priors[side], self.likelihood)

    def tensors(self) -> dict[str, Tensor]:
        """Utility, network, tempering table and flow prior."""
        parts = self.parts
        named = utility_tensors(parts.utility)
        named.update({f"network.{k}": v for k, v in parts.network.state_dict().items()})
        named.update({f"tempering.{k}": getattr(parts.tempering, k) for k in _TABLES})
        for side, prior in enumerate(parts.priors):
            named[f"prior.{side}.mean"] = prior.mean
            named[f"prior.{side}.covariance"] = prior.covariance
        return named

    def config(self) -> dict[str, Any]:
        """Every number that is not an array."""
        parts = self.parts
        return {
            "width": parts.network.width,
            "sigma_data": parts.network.sigma_data,
            "side": parts.side,
            "cap": parts.cap,
            "constant": parts.constant,
            "langevin": asdict(self.langevin),
            "likelihood": asdict(self.likelihood),
            "annealing": asdict(self.annealing),
            "log_normalizer": self.log_normalizer,
        }

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> ScoreDensity:
        """Rebuild from `tensors` and `config`."""
        d = latent.sampling.dimension
        network = ScoreNetwork(d, config["width"], config["sigma_data"], torch.Generator())
        prefix = "network."
        weights = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
        network.load_state_dict(weights)
        network.requires_grad_(False)
        parts = ScoreParts(
            latent,
            utility_from_tensors(tensors),
            network,
            Tempering(*(tensors[f"tempering.{k}"] for k in _TABLES)),
            (_prior(tensors, 0), _prior(tensors, 1)),
            config["side"],
            config["cap"],
            config["constant"],
        )
        langevin = LangevinSettings(**config["langevin"])
        likelihood = LikelihoodSettings(**config["likelihood"])
        annealing = AnnealingSettings(**config["annealing"])
        return cls(parts, langevin, likelihood, annealing, config["log_normalizer"])


_TABLES = ("grid", "log_win", "log_lose", "log_slope")


def _prior(tensors: dict[str, Tensor], side: int) -> FlowPrior:
    return FlowPrior(tensors[f"prior.{side}.mean"], tensors[f"prior.{side}.covariance"])
