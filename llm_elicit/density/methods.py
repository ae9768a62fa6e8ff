"""The interface of estimation methods: a `Problem` in, a `Fitted` density out.

A package adds a method by an entry point of the group `GROUP`, whose name is the method's and
whose object is an `ExternalMethod`. `llm_elicit.baselines` adds ``"flow"`` and ``"protocol"`` so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.errors import DensityError
from llm_elicit.density.judgments import Judgments
from llm_elicit.density.latent import Latent
from llm_elicit.density.likelihood import Noise
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.settings import FitSettings, Progress
from llm_elicit.density.smc import Draws, Proposal
from llm_elicit.density.transforms import make_latent
from llm_elicit.density.utility_function import DeferredDraws, UtilityDraws

GROUP = "llm_elicit.density_methods"
OWN = ("auto", "score", "score-constant", "utility")
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


@dataclass(frozen=True)
class EvaluationError:
    """Root mean square errors of a log-density over draws of the belief, nats.

    Args:
        numerical: the error of arithmetic, quadrature and solvers.
        path: along the straight line between two draws, the difference of log-densities less the
            integral of the force that moves the sampler; zero where the force is a gradient.
    """

    numerical: float = 0.0
    path: float = 0.0


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

    def evaluation_error(self, g: Tensor) -> EvaluationError:
        """Return the errors of `log_density` at draws g (n, d), other than that of log Z."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return every array of the model by name."""
        ...

    def config(self) -> dict[str, Any]:
        """Return every other number of the model, JSON-able."""
        ...


@dataclass(frozen=True)
class LogNormalizer:
    """log ∫ exp(u) dz in nats, its standard error, draws of the belief, and a start for more.

    ``even`` are latent points that represent the belief better than as many draws; None for none.
    """

    value: float
    standard_error: float
    draws: Draws
    start: Proposal | None = None
    even: Tensor | None = None

    def kept(self, n: int) -> Tensor:
        """Return n latent points (n, d) of the belief that its summaries are made of."""
        points = self.draws.points if self.even is None else self.even
        return points[:n].clone()


@dataclass(frozen=True)
class Fitted:
    """What a method returns.

    Args:
        model, normalizer: the density, and its log Z with draws.
        diagnostics: JSON-able.
        draws: of the posterior over utilities; None for a method without.
        utility_seconds: of the time of the fit, what the utility took.
    """

    model: DensityModel
    normalizer: LogNormalizer
    diagnostics: dict[str, Any]
    draws: UtilityDraws | DeferredDraws | None = None
    utility_seconds: float = 0.0


@dataclass(frozen=True)
class ExternalMethod:
    """How to fit a method, and how to rebuild its model from what `BeliefDensity.save` wrote."""

    fit: Callable[[Problem], Fitted]
    restore: Callable[[Latent, dict[str, Tensor], dict[str, Any]], DensityModel]


def known_methods() -> tuple[str, ...]:
    """Return the names of the core's own methods and of the external ones installed.

    Example:
        >>> known_methods()[:2]
        ('auto', 'score')
    """
    return (*OWN, *sorted(entry_points(group=GROUP).names))


def external_method(name: str) -> ExternalMethod:
    """Return the external method of this name."""
    entries = entry_points(group=GROUP, name=name)
    if not entries:
        raise DensityError(
            f"method {name!r} is not installed; the methods are {', '.join(known_methods())}; "
            f"install the package that adds it by an entry point of {GROUP}."
        )
    try:
        method = next(iter(entries)).load()
    except (ImportError, AttributeError) as error:
        raise DensityError(
            f"method {name!r} cannot be imported ({error}); install its package again."
        ) from error
    if not isinstance(method, ExternalMethod):
        raise DensityError(
            f"method {name!r} is a {type(method).__name__}; its entry point must be an "
            "ExternalMethod of llm_elicit.density.methods."
        )
    return method


def external_settings(problem: Problem, kind: type[Settings], method: str) -> Settings:
    """Return the settings that `FitSettings.external` gives a method, or that method's defaults.

    Raises:
        DensityError: they are settings of another kind.
    """
    settings = problem.settings.external
    if settings is None:
        return kind()
    if not isinstance(settings, kind):
        raise DensityError(
            f"FitSettings: external is a {type(settings).__name__}; the {method} takes "
            f"{kind.__name__}."
        )
    return settings
