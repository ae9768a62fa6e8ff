"""Estimation methods: each turns a `Problem` into a `MethodFit`, a density with a report.

A package adds a method by an entry point of the group `ENTRY_POINT_GROUP`, whose name is the
method's and whose object is an `ExternalMethod`. `llm_elicit.baselines` adds ``"flow"`` and
``"protocol"`` in this way.

The density of a utility, p ∝ exp(f), is sampled and normalized by annealed sequential Monte Carlo.
Every fit reports its sampler, its mass at bounds, and the error of its log-density.

*Effective sample size.* Annealed particles that descend from the same initial draw share a
genealogy. Moves make relatives independent as far as they mix, but relatives keep in common what
moves cannot change, such as the mode they are in. The variance of a mean over particles is
therefore estimated with genealogies as the unit,

    V = F/(F − 1) · Σ_f S_f²/n²,   S_f = Σ_{i in genealogy f} (φ(x_i) − mean φ),

the estimator of Lee and Whiteley (2018, "Variance estimation in the particle filter") for a
normalized mean, with n²/Σ n_f² for the F of the small-sample factor. The effective sample size
is the number of independent draws that would have this variance: Var φ/V. The smallest over the
mean and the mean square of every feature is reported. It does not measure whether a mode was
missed by all particles. Systematic resampling is less noisy than the multinomial resampling
that the estimator assumes, so the size is conservative.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density import errors
from llm_elicit.density.errors import Array, DensityError
from llm_elicit.density.latent import Coordinates, Latent, make_latent, reordering_matrices
from llm_elicit.density.likelihood import Judgments, Noise
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.settings import AnnealingSettings, FitSettings, Progress
from llm_elicit.density.smc import AnnealingResult, Draws, Proposal, anneal, sample_evenly
from llm_elicit.density.torch_utils import prefix_tensors, select_tensors
from llm_elicit.density.unbounded import Empirical
from llm_elicit.density.utility_function import DeferredDraws, Utility

ENTRY_POINT_GROUP = "llm_elicit.density_methods"
CORE_METHODS = ("auto", "score", "score-constant", "utility")
"""The core's own methods."""

Settings = TypeVar("Settings")


class Problem:
    """The input of one fit.

    Attributes:
        judgments, noise, settings, progress: as given to `llm_elicit.density.fit_belief`, checked.
        latent: the latent coordinates.
        winners, losers: (n, d) latent points.
        weights: (n,) of the comparisons.
        rng, generator: the random numbers of the fit, from one seed.
    """

    def __init__(
        self,
        judgments: Judgments,
        sampling: SamplingDensity,
        noise: Noise,
        seed: int,
        settings: FitSettings,
        progress: Progress | None = None,
    ) -> None:
        self.judgments, self.noise, self.settings = judgments, noise, settings
        self.progress = progress
        self.latent: Latent = make_latent(sampling, judgments.points)
        self.winners = torch.from_numpy(self.latent.to_latent(judgments.winners))
        self.losers = torch.from_numpy(self.latent.to_latent(judgments.losers))
        self.weights = torch.from_numpy(judgments.weights)
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**62)))

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.latent.sampling.dimension


class DensityModel(Protocol):
    """The interface of a belief in latent coordinates: its draws, and its density."""

    @property
    def name(self) -> str:
        """The method's name."""
        ...

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Return n latent draws (n, d) with their genealogies."""
        ...

    def log_density(self, g: Tensor) -> Tensor:
        """Return normalized log-densities (n,) at latent points (n, d), nats per scale unit."""
        ...

    def evaluation_error(self, g: Tensor) -> float:
        """Return the root mean square error of `log_density` at draws g (n, d), nats.

        It is that of arithmetic and solvers; that of log Z is left out.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return every array of the model by name."""
        ...

    def config(self) -> dict[str, Any]:
        """Return every other number of the model, JSON-able."""
        ...


@dataclass(frozen=True)
class LogNormalizer:
    """log ∫ exp(u) dz in nats, its standard error, and draws of the belief.

    ``even_points`` are latent points that represent the belief better than as many draws, if there
    are any.
    """

    value: float
    standard_error: float
    draws: Draws
    even_points: Tensor | None = None

    def points(self, n: int) -> Tensor:
        """Return n latent points (n, d) of the belief that its summaries are made of."""
        points = self.draws.points if self.even_points is None else self.even_points
        return points[:n].clone()


@dataclass(frozen=True)
class MethodFit:
    """What a method returns.

    Attributes:
        model, normalizer: the density, and its log Z with draws.
        diagnostics: JSON-able.
        draws: draws of the posterior over utilities; None for a method without.
        utility_seconds: seconds that the fit of the utility took.
    """

    model: DensityModel
    normalizer: LogNormalizer
    diagnostics: dict[str, Any]
    draws: DeferredDraws | None = None
    utility_seconds: float = 0.0


@dataclass(frozen=True)
class ExternalMethod:
    """How to fit a method, and how to rebuild its model from what `BeliefDensity.save` wrote."""

    fit: Callable[[Problem], MethodFit]
    restore: Callable[[Latent, dict[str, Tensor], dict[str, Any]], DensityModel]


def available_methods() -> tuple[str, ...]:
    """Return the names of the core's own methods and of the external ones installed.

    Examples:
        >>> available_methods()[:2]
        ('auto', 'score')
    """
    return (*CORE_METHODS, *sorted(entry_points(group=ENTRY_POINT_GROUP).names))


def external_method(name: str) -> ExternalMethod:
    """Return the external method of this name."""
    entries = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not entries:
        raise DensityError(
            f"method {name!r} is not installed; the methods are {', '.join(available_methods())}; "
            f"install the package that adds it by an entry point of {ENTRY_POINT_GROUP}."
        )
    try:
        method = next(iter(entries)).load()
    except (ImportError, AttributeError) as error:
        raise DensityError(
            f"method {name!r} cannot be imported ({error}); install its package again."
        ) from error
    way_out = "its entry point must be an ExternalMethod of llm_elicit.density.methods"
    return errors.check_instance(f"method {name!r}", method, ExternalMethod, way_out)


def external_settings(problem: Problem, default: Settings, method: str) -> Settings:
    """Return the settings that `FitSettings.external` gives a method, or that method's default.

    Raises:
        DensityError: they are settings of another kind.
    """
    settings, kind = problem.settings.external, type(default)
    if settings is None:
        return default
    way_out = f"the {method} takes {kind.__name__}"
    return errors.check_instance("FitSettings: external", settings, kind, way_out)


_RUNS, _RUN_PARTICLES = 8, 1024  # annealing runs for log Z, and the particles of each
_FIRST_PARTICLES = 4096  # particles of the run that the proposal is fitted to
_EVEN_POINTS = 2048
_MIN_PARTICLES = 1024  # of any run; fewer cannot estimate their own covariance


class Potential(Protocol):
    """A log-density up to a constant, as a function of features, such as a `Utility`."""

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, p)."""
        ...

    def value_and_gradient(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, p) at features (n, p)."""
        ...


def evaluate_utility(latent: Coordinates, utility: Potential, g: Tensor) -> Tensor:
    """Return u (n,) at latent points (n, d): the utility with the taper of `Latent.taper`."""
    return utility(latent.features(g)) + latent.taper(g)


def evaluate_utility_and_gradient(
    latent: Coordinates, utility: Potential, g: Tensor
) -> tuple[Tensor, Tensor]:
    """Return u (n,) and its gradient (n, d) at latent points (n, d); see `evaluate_utility`."""
    value, slope = utility.value_and_gradient(latent.features(g))
    return value + latent.taper(g), latent.gradient_from_features(g, slope) + latent.taper_gradient(
        g
    )


@dataclass(frozen=True)
class PotentialDensity:
    """The density p ∝ exp(u) per scale unit, u being a potential with the taper of `Latent.taper`.

    Attributes:
        latent, utility: the coordinates, and the potential in their features.
        annealing: settings of the sampler.
        log_normalizer: log ∫ exp(u) dz, nats.
        start: where annealing starts; None for λ.
    """

    latent: Latent
    utility: Potential
    annealing: AnnealingSettings
    log_normalizer: float = 0.0
    start: Proposal | None = None

    def anneal(self, n: int, generator: torch.Generator) -> AnnealingResult:
        """Return n latent draws (n, d), annealed from draws of the start, and log ∫ exp(u) dz."""
        latent, start = self.latent, self.start

        def from_sampling(g: Tensor) -> tuple[Tensor, Tensor]:
            return latent.log_sampling(g), latent.sampling_score(g, 0.0)

        def target(g: Tensor) -> tuple[Tensor, Tensor]:
            value, slope = evaluate_utility_and_gradient(latent, self.utility, g)
            return value + latent.log_volume(g), slope + latent.log_volume_gradient(g)

        if start is None:
            points = latent.draw(n, generator)
            return anneal(points, from_sampling, target, generator, self.annealing)
        points, density = start.draw(latent, n, generator), partial(start.log_density, latent)
        return anneal(points, density, target, generator, self.annealing, float(start.step))

    def sample_latent(self, n: int, generator: torch.Generator) -> Draws:
        """Return any number n of latent draws (n, d), in random order."""
        count = max(n, _MIN_PARTICLES)
        draws = self.anneal(count, generator).draws
        return draws.take(torch.randperm(count, generator=generator)[:n])

    def log_density(self, g: Tensor) -> Tensor:
        """Return normalized log-densities (n,) at latent points (n, d), nats per scale unit."""
        return evaluate_utility(self.latent, self.utility, g) - self.log_normalizer

    def normalize(self, generator: torch.Generator) -> tuple[Self, LogNormalizer]:
        """Return the density with its start and log ∫ exp(u) dz.

        log Z is estimated by independent annealing runs, and its standard error by their spread. A
        first run goes from λ to the belief. The others start from a `Proposal` fitted to its draws,
        or from λ if that took one temperature.
        """
        first_run = replace(self, start=None).anneal(_FIRST_PARTICLES, generator)
        start = None
        if first_run.temperatures > 1:
            start = Proposal.fit(first_run.draws.points, first_run.step, generator)
        model = replace(self, start=start)
        runs = [model.anneal(_RUN_PARTICLES, generator) for _ in range(_RUNS)]
        log_normalizers = torch.tensor([run.log_normalizer for run in runs], dtype=torch.float64)
        value = float(torch.logsumexp(log_normalizers, 0)) - math.log(_RUNS)
        # Relative spread of Z across runs, by the delta method.
        error = float(torch.exp(log_normalizers - value).std()) / math.sqrt(_RUNS)
        # No two runs have a genealogy in common.
        genealogies = [run.draws.genealogies + i * _RUN_PARTICLES for i, run in enumerate(runs)]
        draws = Draws(torch.cat([run.draws.points for run in runs]), torch.cat(genealogies))
        return replace(model, log_normalizer=value), LogNormalizer(value, error, draws)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the start."""
        return {} if self.start is None else prefix_tensors("start", self.start)

    def config(self) -> dict[str, Any]:
        """Return log Z and the sampler's settings."""
        return {"log_normalizer": self.log_normalizer, "annealing": asdict(self.annealing)}

    @classmethod
    def from_parts(
        cls, latent: Latent, utility: Potential, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> Self:
        """Return the density of a utility whose other parts `tensors` and `config` describe."""
        start = select_tensors("start", tensors)
        return cls(
            latent,
            utility,
            AnnealingSettings(**config["annealing"]),
            config["log_normalizer"],
            Proposal(**start) if start else None,
        )


@dataclass(frozen=True)
class UtilityDensity(PotentialDensity):
    """The belief p ∝ exp(f) per scale unit, a `llm_elicit.density.methods.DensityModel`."""

    utility: Utility

    @property
    def name(self) -> str:
        """The method's name."""
        return "utility"

    def normalize(self, generator: torch.Generator) -> tuple[Self, LogNormalizer]:
        """Return the density with its start and log ∫ exp(u) dz, and even points of it."""
        model, normalizer = super().normalize(generator)
        even = sample_evenly(model.latent, model.log_density, model.start, _EVEN_POINTS, generator)
        return model, replace(normalizer, even_points=even)

    def log_prob_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return log densities (n,) and gradients (n, d) per natural unit at points inside."""
        latent = self.latent
        g = latent.to_latent(x)
        value, slope = evaluate_utility_and_gradient(latent, self.utility, torch.from_numpy(g))
        shift = latent.sampling.log_scale_derivative(x) - self.log_normalizer
        return value.numpy() + shift, latent.gradient_per_unit(g, slope.numpy())

    def evaluation_error(self, g: Tensor) -> float:
        """Return the error of single precision."""
        t = self.latent.features(g)
        # A constant error is left out, because it cancels against log Z.
        difference = self.utility(t) - self.utility.to(t.double())(t.double())
        return float(difference.std(correction=0))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the utility and of the start."""
        return {**super().tensors(), **self.utility.tensors()}

    @classmethod
    def restore(
        cls, latent: Latent, tensors: dict[str, Tensor], config: dict[str, Any]
    ) -> UtilityDensity:
        """Return the density that `tensors` and `config` describe."""
        return cls.from_parts(latent, Utility.from_tensors(tensors), tensors, config)


def change_coordinates(fit: MethodFit, latent: Latent, order: Sequence[int]) -> MethodFit:
    """Return a utility density in other coordinates, which have its features ``order``."""
    model, normalizer = fit.model, fit.normalizer
    assert isinstance(model, UtilityDensity)
    rotation, column_permutation = reordering_matrices(latent, model.latent, order)
    start = None if model.start is None else model.start.rotate(rotation)
    even_points = None if normalizer.even_points is None else normalizer.even_points @ rotation
    draws = replace(normalizer.draws, points=normalizer.draws.points @ rotation)
    utility = model.utility.permute_features(column_permutation)
    return replace(
        fit,
        model=replace(model, latent=latent, utility=utility, start=start),
        normalizer=replace(normalizer, draws=draws, even_points=even_points),
        draws=fit.draws and fit.draws.map(lambda draws: draws.permute_features(column_permutation)),
    )


BOUND_MARGIN = 0.01
_ERROR_POINTS = 512


def effective_size(genealogies: Tensor, values: Tensor) -> float:
    """Return the effective number of draws for the means of values (n, k), the smallest of k."""
    n = len(values)
    centred = (values - values.mean(0)).double()
    labels = torch.from_numpy(np.unique(genealogies.numpy(), return_inverse=True)[1])
    count = int(labels.max()) + 1
    if count == n:
        return float(n)
    sizes = torch.bincount(labels, minlength=count).double()
    genealogy_size = n**2 / float(sizes.square().sum())
    if genealogy_size <= 1.0:
        return 1.0
    genealogy_sums = torch.zeros(count, centred.shape[1], dtype=torch.float64)
    genealogy_sums.index_add_(0, labels, centred)
    between, within = genealogy_sums.square().sum(0), centred.square().sum(0)
    varies = within > 1e-12 * n
    if not varies.any():
        return float(genealogy_size)
    ratio = float((within[varies] / between[varies].clamp(min=1e-300)).min())
    return max(1.0, min(n * ratio, float(n)) * (1.0 - 1.0 / genealogy_size))


def near_bounds(sampling: SamplingDensity, x: Array) -> Array:
    """Return 1 where a feature of x (n, d) lies within 1 % of its range from a bound, else 0.

    NaN if the feature has no bound, is periodic, has categories, or has whole numbers of
    which one is more than 1 % of the range. The range of a feature with one bound is that of the
    central 99.9 % of λ.
    """
    if isinstance(sampling, Uniform):
        cube = sampling.to_cube(x)
        is_near = np.minimum(cube, 1.0 - cube) < BOUND_MARGIN
        bounds = np.stack([sampling.low, sampling.high])[..., None].repeat(2, -1)
        has_coarse_cells = (np.diff(sampling.box_to_cube(bounds))[..., 0] > BOUND_MARGIN).any(0)
        unbounded = sampling.categorical | sampling.periodic | has_coarse_cells
        return np.where(unbounded, np.nan, is_near.astype(np.float64))
    if not isinstance(sampling, Empirical):
        return np.full(x.shape, np.nan)
    low, high = sampling.marginals.low, sampling.marginals.high
    tails = torch.tensor([[-3.29], [3.29]], dtype=torch.float64).expand(2, sampling.dimension)
    first, last = sampling.marginals.value(tails).numpy()
    width = np.where(np.isfinite(high), high, last) - np.where(np.isfinite(low), low, first)
    z = sampling.to_scale(x)
    is_near = np.minimum(z - low, high - z) < BOUND_MARGIN * width
    bounded = np.isfinite(low) | np.isfinite(high)
    return np.where(bounded, is_near.astype(np.float64), np.nan)


def common_diagnostics(
    latent: Latent, model: DensityModel, normalizer: LogNormalizer
) -> dict[str, Any]:
    """Return the part of ``diagnostics`` that is common to all methods; JSON-able.

    * ``log_prob_error`` (nats): the standard error of log Z, the root mean square error of
      evaluation (see `DensityModel`), and the root of the sum of their squares; None where a solver
      failed.
    * ``sampler``: the numbers of draws and of genealogies, and the effective sample size.
    * ``bounds``: ``each`` (d,) is the share of draws within 1 % of a feature's range, on its scale,
      from either bound; None if the feature has none. A flat belief has 0.02 of its mass there.
      ``any`` is the share with at least one feature there. ``beyond_comparisons`` is the share
      farther out than every compared point, where the belief is tapered and no answer is
      informative; 0 in a box.
    """
    draws, n = normalizer.draws, len(normalizer.draws.points)
    error = model.evaluation_error(draws.points[torch.linspace(0, n - 1, _ERROR_POINTS).long()])
    error_parts = {
        "log_normalizer": normalizer.standard_error,
        "evaluation": error,
        "total": math.hypot(normalizer.standard_error, error),
    }
    t = latent.features(draws.points)
    size = effective_size(draws.genealogies, torch.cat([t, t.square()], 1))
    bound_shares = near_bounds(latent.sampling, latent.from_latent(draws.points.numpy()))
    beyond = draws.points.norm(dim=1) > latent.radius
    in_box = isinstance(latent.sampling, Uniform)
    return {
        "log_normalizer": normalizer.value,
        "log_normalizer_se": normalizer.standard_error,
        "log_prob_error": {k: v if math.isfinite(v) else None for k, v in error_parts.items()},
        "sampler": {
            "draws": n,
            "genealogies": len(np.unique(draws.genealogies.numpy())),
            "effective": round(size, 1),
            "effective_share": round(size / n, 4),
        },
        "bounds": {
            "each": [None if math.isnan(s) else s for s in bound_shares.mean(0).tolist()],
            "any": None
            if np.isnan(bound_shares).all()
            else float((bound_shares == 1.0).any(1).mean()),
            "beyond_comparisons": 0.0 if in_box else float(beyond.double().mean()),
        },
    }


def bounded_below(diagnostics: Mapping[str, Any]) -> bool:
    """Return whether choices bound a belief's sharpness from below only, and not by chance.

    Examples:
        >>> bounded_below({"separation": {"rule": "linear", "by_chance": False}}), bounded_below({})
        (True, False)
    """
    separation = diagnostics.get("separation")
    return separation is not None and not separation["by_chance"]


_MIN_POSITION_GAIN = 1e-3  # nats per comparison by which a position effect is no better than none


def fit_warnings(belief: Any, *, quality: bool = True) -> list[str]:
    """Return one line about each uncertainty of a belief that its bands do not show.

    Args:
        belief: the belief, or its diagnostics.
        quality: whether to include that the sharpness is open, or that predictions are no better
            than chance; the report of a run states these elsewhere.

    Examples:
        >>> fit_warnings({"separation": None, "extent": {"factor": 2.0, "message": "it is long"}})
        ['it is long']
    """
    diagnostics = getattr(belief, "diagnostics", belief)
    if not isinstance(diagnostics, Mapping):
        raise DensityError(
            f"fit_warnings: takes a belief, got {type(belief).__name__}; pass the result of "
            "fit_belief."
        )
    reports = (diagnostics.get(name) for name in ("separation", "extent", "presentations"))
    warnings = [str(r["message"]) for r in reports if isinstance(r, Mapping) and "message" in r]
    if quality and leaves_sharpness_open(diagnostics):
        warnings.append(
            "log-odds do not determine the sharpness: this density may be too wide or too narrow, "
            "and its bands do not show that; estimate the power with fit_power, and pass it to "
            "tempered"
        )
    if not quality:
        return warnings
    score = diagnostics.get("held_out_log_likelihood")
    explained = (diagnostics.get("response") or {}).get("held_out_r2")
    consequence = "so the belief may show noise alone"
    if score is not None:
        # Choices are compared with the better of random choices and the position alone.
        null_models = {"random choices": math.log(0.5)}
        position = (diagnostics.get("null_models") or {}).get("position")
        if position is not None and position > null_models["random choices"] + _MIN_POSITION_GAIN:
            null_models["the position alone"] = position
        best_null = max(null_models, key=lambda name: null_models[name])
        if score <= null_models[best_null]:
            warnings.append(
                f"held-out choices are predicted no better than by {best_null} ({score:.3f} "
                f"against {null_models[best_null]:.3f} nats per comparison), {consequence}"
            )
    elif explained is not None and explained <= 0.0:
        warnings.append(f"none of the variation of held-out log-odds is predicted, {consequence}")
    return warnings


def leaves_sharpness_open(diagnostics: Mapping[str, Any]) -> bool:
    """Return whether a belief was fitted to log-odds alone, and its power is not determined.

    Examples:
        >>> leaves_sharpness_open({"response": {"scale": "log-odds"}})
        True
        >>> leaves_sharpness_open({"response": {"scale": "log-odds"}, "power": {"value": 2.0}})
        False
    """
    response = diagnostics.get("response") or {}
    return response.get("scale") == "log-odds" and "power" not in diagnostics


def rescale_level(diagnostics: dict[str, Any], noise: Noise, old_noise: Noise) -> dict[str, Any]:
    """Return the report of a fit at another noise level: levels and position effects rescaled.

    Held-out likelihoods are those of the same choices and do not change, but for that of λ as the
    belief, which would need the comparisons and is left out.
    """
    report = {**copy.deepcopy(diagnostics), "noise": asdict(noise)}
    report.get("null_models", {}).pop("sampling density", None)
    ratio = noise.scale / old_noise.scale
    for judge in (report.get("presentations") or {}).get("judges", {}).values():
        for presentation in judge["presentations"].values():
            if presentation["position"] is not None:
                presentation["position"] *= ratio
    judging = report.get("utility", {}).get("judging", {})
    for judge in judging.get("judges", {}).values():
        judge["level"] *= noise.level / old_noise.level
        for effects in judge["order_bias"].values():
            for effect in effects:
                effect["nats"] *= ratio
                effect["se"] *= ratio
    return report
