"""The belief by de-tempering the score of the winners."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from llm_elicit.density.latent import Latent
from llm_elicit.density.ratio import Utility
from llm_elicit.density.score.langevin import LangevinSettings, sample_langevin
from llm_elicit.density.score.likelihood import FlowPrior, LikelihoodSettings, flow_log_prob
from llm_elicit.density.score.network import ScoreNetwork
from llm_elicit.density.tempering import Tempering
from llm_elicit.density.utility_density import (
    draw_sampling,
    utility_at,
    utility_from_tensors,
    utility_tensors,
)


@dataclass(frozen=True)
class ScoreParts:
    """What a score belief is made of.

    ``constant`` is τ* for method ``score-constant`` and None for ``score``; ``tau_cap`` bounds
    τ(x), which otherwise multiplies the score's errors without limit near the mode.
    """

    latent: Latent
    utility: Utility
    network: ScoreNetwork
    tempering: Tempering
    prior: FlowPrior
    tau_cap: float
    constant: float | None


@dataclass(frozen=True)
class ScoreDensity:
    """Samples by score-scaled Langevin dynamics; density by the probability flow.

    See `llm_elicit.density.density_model.DensityModel`.
    """

    parts: ScoreParts
    langevin: LangevinSettings
    likelihood: LikelihoodSettings
    log_normalizer: float = 0.0

    @property
    def name(self) -> str:
        """The method's name."""
        return "score" if self.parts.constant is None else "score-constant"

    def tau(self, g: Tensor) -> Tensor:
        """The tempering field (n,) at latent points (n, d)."""
        if self.parts.constant is not None:
            return torch.full_like(g[:, 0], self.parts.constant)
        u = utility_at(self.parts.latent, self.parts.utility, g)
        return self.parts.tempering.tau(u).clamp(max=self.parts.tau_cap)

    def excess(self, g: Tensor, masked: Tensor, sigma: float) -> Tensor:
        """∇log p_{w,σ} − ∇log λ_σ (n, d), zero beyond the compared points."""
        score = self.parts.network.winner_score(g.float(), masked.float(), sigma).to(g.dtype)
        difference = score - self.parts.latent.sampling_score(g, sigma)
        inside = g.norm(dim=1, keepdim=True) <= self.parts.latent.radius
        return torch.where(inside, difference, torch.zeros_like(g))

    def sample_latent(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, d) latent points: λ carried down the noise levels by the belief's drift."""
        latent = self.parts.latent

        def drift(g: Tensor, sigma: float) -> Tensor:
            masked = sigma * torch.randn(g.shape, generator=generator)
            force = self.tau(g)[:, None] * self.excess(g, masked, sigma)
            force = force + latent.log_volume_slope(g) + latent.taper_slope(g)
            return force + latent.relaxation(g, sigma)

        # The step's preconditioner is an average over particles: never let it see only a few.
        crowd = max(n, 1024)
        start = draw_sampling(latent, crowd, generator)
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
        ratio = self._winner_log_prob(inner) - parts.latent.log_sampling(inner)
        if parts.constant is not None:
            return parts.constant * ratio + parts.latent.taper(g)
        u = parts.tempering.utility_of(ratio - torch.log(torch.tensor(2.0, dtype=g.dtype)))
        return u + parts.latent.taper(g)

    def _winner_log_prob(self, g: Tensor) -> Tensor:
        # One fixed draw of the mask, scaled by σ as in training: a deterministic density.
        unit = torch.randn(1, g.shape[1], generator=torch.Generator().manual_seed(0))

        def score(point: Tensor, sigma: float) -> Tensor:
            masked = (sigma * unit).expand(len(point), -1)
            return self.parts.network.winner_score(point.float(), masked, sigma).to(point.dtype)

        return flow_log_prob(g, score, self.parts.prior, self.likelihood)

    def tensors(self) -> dict[str, Tensor]:
        """Utility, network, tempering table and flow prior."""
        parts = self.parts
        named = utility_tensors(parts.utility)
        named.update({f"network.{k}": v for k, v in parts.network.state_dict().items()})
        named.update({f"tempering.{k}": getattr(parts.tempering, k) for k in _TABLES})
        named.update({"prior.mean": parts.prior.mean, "prior.covariance": parts.prior.covariance})
        return named

    def config(self) -> dict[str, Any]:
        """Every number that is not an array."""
        parts = self.parts
        return {
            "width": parts.network.width,
            "sigma_data": parts.network.sigma_data,
            "tau_cap": parts.tau_cap,
            "constant": parts.constant,
            "langevin": asdict(self.langevin),
            "likelihood": asdict(self.likelihood),
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
            FlowPrior(tensors["prior.mean"], tensors["prior.covariance"]),
            config["tau_cap"],
            config["constant"],
        )
        langevin = LangevinSettings(**config["langevin"])
        likelihood = LikelihoodSettings(**config["likelihood"])
        return cls(parts, langevin, likelihood, config["log_normalizer"])


_TABLES = ("grid", "log_win", "log_tau")
