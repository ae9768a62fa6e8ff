"""The one door: from comparisons to a belief density."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import qmc
from torch import Tensor

from llm_elicit.density.annealing import AnnealingSettings
from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.choice import Noise
from llm_elicit.density.errors import DensityError
from llm_elicit.density.judgments import Judgments, check_judgments
from llm_elicit.density.latent import Latent, make_latent
from llm_elicit.density.mixture import GaussianMixture
from llm_elicit.density.normalizer import importance_log_normalizer
from llm_elicit.density.ratio import Utility
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.score.density import ScoreDensity, ScoreParts
from llm_elicit.density.score.langevin import LangevinSettings
from llm_elicit.density.score.likelihood import FlowPrior, LikelihoodSettings
from llm_elicit.density.score.training import PairData, TrainingSettings, train_score
from llm_elicit.density.tempering import Tempering, optimal_constant
from llm_elicit.density.threads import one_thread
from llm_elicit.density.utility import ChoiceData, UtilitySettings, fit_utility
from llm_elicit.density.utility_density import (
    LogNormalizer,
    UtilityDensity,
    estimate_log_normalizer,
    utility_at,
)

SIDES = ("both", "winners")
METHODS = ("score", "score-constant", "utility")
Progress = Callable[[str, int, int], None]
_TABLE_POINTS = 12
_TABLE_LIMIT = 16_384
_REFERENCE = 2048


@dataclass(frozen=True)
class FitSettings:
    """All settings of a fit; the defaults serve every target.

    ``side`` chooses what the score methods de-temper: ``"both"``, the odds of winning, from the
    scores of winners and losers; ``"winners"``, the winners' density alone, as the paper does.
    ``smoothing`` is the noise level, in latent units, where sampling and likelihood end given
    1000 comparisons a feature or more. With fewer it grows like √(d/n): the score learned from
    n pairs has a variance of the order d/(n σ²) and would otherwise be noise.
    ``cap_quantile`` bounds the tempering field at that quantile of its values under λ.

    Raises
    ------
    DensityError : an unknown side, or a quantile outside (0, 1].
    """

    utility: UtilitySettings = field(default_factory=UtilitySettings)
    annealing: AnnealingSettings = field(default_factory=AnnealingSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    langevin: LangevinSettings = field(default_factory=LangevinSettings)
    likelihood: LikelihoodSettings = field(default_factory=LikelihoodSettings)
    side: str = "both"
    cap_quantile: float = 0.99
    smoothing: float = 0.05

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise DensityError(
                f"FitSettings: side {self.side!r} is unknown; the sides are {', '.join(SIDES)}; "
                "choose one of them."
            )
        if not 0.0 < self.cap_quantile <= 1.0:
            raise DensityError(
                f"FitSettings: cap_quantile = {self.cap_quantile}; it must lie in (0, 1]; "
                "leave it out for the default 0.99."
            )


def fit_belief(  # noqa: PLR0913 - the one public door carries every choice a caller can make
    winners: npt.ArrayLike,
    losers: npt.ArrayLike,
    *,
    sampling: SamplingDensity | None = None,
    method: str = "score",
    noise: Noise | None = None,
    weights: npt.ArrayLike | None = None,
    seed: int = 0,
    settings: FitSettings | None = None,
    progress: Progress | None = None,
) -> BeliefDensity:
    """Estimate a judge's belief density from pairwise comparisons.

    Parameters
    ----------
    winners, losers : (n, d) floats in natural units; row i says winners[i] beat losers[i].
    sampling : λ, the density the compared points were drawn from: `Uniform` or
        `GaussianMixture`. A `Uniform` may give features a logarithmic scale, and the belief that
        enters the utility is then the density per unit of that scale.
    method : ``"score"``, the score of the winners de-tempered by τ(x) (Mikkola, Acerbi and
        Klami, 2026); ``"score-constant"``, the same with the one constant τ* (Proposition 3.2);
        ``"utility"``, the Bradley–Terry utility density exp(f).
    noise : the judge's `Noise`; None is Bradley–Terry with s = √6/π.
    weights : (n,) >= 0. A soft judgment that a beats b with probability q is two rows: (a, b)
        with weight q and (b, a) with weight 1 − q.
    seed : of every random number of the fit; the same inputs and seed give the same belief.
    settings : `FitSettings`; the default serves every target.
    progress : called as progress(stage, done, total).

    Raises
    ------
    DensityError : anything unusable, named in one line with the way out.

    Examples
    --------
    >>> import numpy as np
    >>> from llm_elicit.density import Uniform
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.uniform(-3, 3, (2, 80, 1))
    >>> nearer = abs(a - 1) < abs(b - 1)              # this judge likes values near one
    >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
    ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
    >>> bool(abs(belief.sample(1000, seed=1).mean() - 1) < 0.5)
    True
    """
    if method not in METHODS:
        raise DensityError(
            f"fit_belief: method {method!r} is unknown; the methods are {', '.join(METHODS)}; "
            "choose one of them."
        )
    if sampling is None:
        raise DensityError(
            "fit_belief: sampling is missing; the estimate depends on the density λ the pairs "
            "were drawn from; pass Uniform(low, high) or GaussianMixture(weights, means, covs)."
        )
    if not isinstance(sampling, Uniform | GaussianMixture):
        raise DensityError(
            f"fit_belief: sampling is a {type(sampling).__name__}; the sampling densities known "
            "here are Uniform and GaussianMixture; pass one of them."
        )
    began = time.perf_counter()
    judgments = check_judgments(winners, losers, weights, sampling)
    fitter = _Fitter(judgments, sampling, noise or Noise(), seed, settings or FitSettings())
    with one_thread():
        return fitter.fit(method, progress, began)


class _Fitter:
    """One fit: the judgments in latent coordinates and one stream of random numbers."""

    def __init__(
        self,
        judgments: Judgments,
        sampling: SamplingDensity,
        noise: Noise,
        seed: int,
        settings: FitSettings,
    ) -> None:
        self.judgments, self.noise, self.seed, self.settings = judgments, noise, seed, settings
        points = np.concatenate([judgments.winners, judgments.losers])
        self.latent: Latent = make_latent(sampling, points)
        self.latent_winners = torch.from_numpy(self.latent.to_latent(judgments.winners))
        self.latent_losers = torch.from_numpy(self.latent.to_latent(judgments.losers))
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**62)))

    def fit(self, method: str, progress: Progress | None, began: float) -> BeliefDensity:
        utility, utility_notes = self._fit_utility(progress)
        marks = [time.perf_counter()]
        notes: dict[str, Any] = {}
        model: UtilityDensity | ScoreDensity
        if method == "utility":
            model, normalizer = self._utility_density(utility)
        else:
            model, normalizer, notes = self._score_density(utility, method, progress)
        marks.append(time.perf_counter())
        diagnostics = self._diagnostics(method, normalizer, utility_notes, notes)
        diagnostics["seconds"] = {
            "utility": round(marks[0] - began, 3),
            "density": round(marks[1] - marks[0], 3),
            "total": round(marks[1] - began, 3),
        }
        return BeliefDensity(self.latent, model, normalizer.draws[:_REFERENCE].clone(), diagnostics)

    def _diagnostics(
        self,
        method: str,
        normalizer: LogNormalizer,
        utility_notes: dict[str, Any],
        notes: dict[str, Any],
    ) -> dict[str, Any]:
        held_out = utility_notes["held_out"]
        return {
            "method": method,
            "noise": {"family": self.noise.family, "level": self.noise.level},
            "n": self.judgments.size,
            "total_weight": float(self.judgments.weights.sum()),
            "dimension": int(self.latent_winners.shape[1]),
            "seed": self.seed,
            "held_out_log_likelihood": held_out[utility_notes["form"]],
            "coin_log_likelihood": float(np.log(0.5)),
            "utility": utility_notes,
            "log_normalizer": normalizer.value,
            "log_normalizer_se": normalizer.standard_error,
            **notes,
        }

    def _features(self, g: Tensor) -> npt.NDArray[np.float64]:
        return self.latent.features(g).numpy()

    def _fit_utility(self, progress: Progress | None) -> tuple[Utility, dict[str, Any]]:
        data = ChoiceData(
            self._features(self.latent_winners),
            self._features(self.latent_losers),
            self.judgments.weights,
            self.judgments.pairs,
        )
        return fit_utility(data, self.noise, self.rng, self.settings.utility, progress)

    def _utility_density(self, utility: Utility) -> tuple[UtilityDensity, LogNormalizer]:
        annealing = self.settings.annealing
        found = estimate_log_normalizer(self.latent, utility, self.generator, annealing)
        return UtilityDensity(self.latent, utility, found.value, annealing), found

    def _score_density(
        self, utility: Utility, method: str, progress: Progress | None
    ) -> tuple[ScoreDensity, LogNormalizer, dict[str, Any]]:
        settings = self.settings
        utilities = utility_at(self.latent, utility, self._points_of_sampling())
        tempering = Tempering.tabulate(utilities.numpy(), self.noise)
        both = settings.side == "both"
        field = tempering.omega(utilities) if both else tempering.tau(utilities)
        cap = float(torch.quantile(field, settings.cap_quantile))
        star = self._optimal_constant(utility, tempering)
        constant = star[settings.side] if method == "score-constant" else None
        judgments = self.judgments
        weights = torch.from_numpy(judgments.weights)
        data = PairData(self.latent_winners, self.latent_losers, weights, judgments.pairs)
        trained = train_score(data, settings.training, int(self.rng.integers(2**62)), progress)
        parts = ScoreParts(
            self.latent,
            utility,
            trained.network,
            tempering,
            (_flow_prior(data.winners, weights), _flow_prior(data.losers, weights)),
            settings.side,
            cap,
            constant,
        )
        sigma = self._final_sigma()
        langevin = replace(settings.langevin, sigma_start=2.0 * sigma, sigma_end=sigma)
        likelihood = replace(settings.likelihood, sigma_min=sigma)
        model = ScoreDensity(parts, langevin, likelihood, settings.annealing)
        draws = model.sample_latent(_REFERENCE, self.generator)
        found = importance_log_normalizer(self.latent, model.unnormalized, draws, self.generator)
        notes = {
            "side": settings.side,
            "tau_star": star["winners"],
            "omega_star": star["both"],
            "field_cap": cap,
            "final_sigma": sigma,
            "score_held_out_loss": trained.held_out_loss,
            "score_steps": trained.steps,
        }
        return replace(model, log_normalizer=found.value), found, notes

    def _final_sigma(self) -> float:
        per_feature = self.judgments.size / self.latent_winners.shape[1]
        sigma: float = self.settings.smoothing * (1000.0 / per_feature) ** 0.5
        return min(max(sigma, self.settings.smoothing), 0.5)

    def _points_of_sampling(self) -> Tensor:
        """Draws of λ: the compared points themselves and quasi-random ones, latent."""
        compared = torch.cat([self.latent_winners, self.latent_losers])
        if len(compared) > _TABLE_LIMIT:
            kept = torch.randperm(len(compared), generator=self.generator)[:_TABLE_LIMIT]
            compared = compared[kept]
        sampling = self.latent.sampling
        sobol = qmc.Sobol(sampling.dimension, rng=self.rng).random_base2(_TABLE_POINTS)
        quasi = self.latent.to_latent(sampling.from_cube(sobol))
        return torch.cat([compared, torch.from_numpy(quasi)])

    def _optimal_constant(self, utility: Utility, tempering: Tempering) -> dict[str, float]:
        """τ* and ω* over draws of the belief, with ∇log q = ∇u/field on the feature scale."""
        annealing = self.settings.annealing
        draws = estimate_log_normalizer(self.latent, utility, self.generator, annealing, 1024).draws
        value, slope = utility.value_and_slope(self.latent.features(draws))
        u = value + self.latent.taper(draws)
        fields = {"winners": tempering.tau(u), "both": tempering.omega(u)}
        return {k: optimal_constant(v, slope / v[:, None]) for k, v in fields.items()}


def _flow_prior(winners: Tensor, weights: Tensor) -> FlowPrior:
    share = weights / weights.sum()
    mean = share @ winners
    centred = winners - mean
    return FlowPrior(mean, (centred * share[:, None]).T @ centred)
