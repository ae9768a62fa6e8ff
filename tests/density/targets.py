"""Beliefs with known densities, judges who hold them, and exact draws from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from llm_elicit.density import (
    AnnealingSettings,
    Evidence,
    FitSettings,
    MixtureSettings,
    Noise,
    PosteriorSettings,
    SamplingDensity,
    SmoothSettings,
    UtilitySettings,
    simulate_choices,
)
from llm_elicit.density.fit import check_rows
from llm_elicit.density.likelihood import Judgments, merge
from llm_elicit.density.settings import GaussianProcessSettings
from llm_elicit.density.smc import AnnealingResult, anneal
from llm_elicit.density.utility_function import FourierStack

Array = npt.NDArray[np.float64]

# For beliefs that are nearly normal: two components at most, and no networks.
QUICK = FitSettings(
    utility=UtilitySettings(
        mixture=MixtureSettings(counts=(2,), starts=4), smooth=SmoothSettings(frequencies=0)
    )
)

# Of log-odds, a fourth of the draws: the time that a power takes is proportional to their number.
FEW_DRAWS = FitSettings(
    utility=UtilitySettings(process=GaussianProcessSettings(frequencies=128, draws=64))
)

# For beliefs that only have to be there, with draws: those of mixtures take seconds.
QUADRATIC = FitSettings(
    utility=UtilitySettings(
        mixture=MixtureSettings(counts=()),
        smooth=SmoothSettings(frequencies=0),
        posterior=PosteriorSettings(draws=64),
    )
)


def onemoon(x: Array) -> Array:
    """Log-density of Onemoon2D up to a constant (appendix E.1 of the paper)."""
    r = np.linalg.norm(x, axis=1)
    return -0.5 * ((r - 2) / 0.2) ** 2 - 0.5 * ((x[:, 0] + 2) / 0.3) ** 2


def ask(
    log_density: Callable[[Array], Array],
    sampling: SamplingDensity,
    n: int,
    seed: int,
    noise: Noise | None = None,
) -> tuple[Array, Array]:
    """Winners and losers of n pairs drawn from λ by a judge with this log-density."""
    rng = np.random.default_rng(seed)
    a, b = sampling.sample(n, rng), sampling.sample(n, rng)
    wins = simulate_choices(log_density(a), log_density(b), noise or Noise(), rng)[:, None]
    return np.where(wins, a, b), np.where(wins, b, a)


def draw_on_grid(
    log_density: Callable[[Array], Array], n: int, rng: np.random.Generator, side: float = 3.0
) -> Array:
    """Exact (to a fine grid) draws (n, 2) of a 2-D density on [−side, side]²."""
    edges = np.linspace(-side, side, 1001)
    middle = 0.5 * (edges[1:] + edges[:-1])
    grid = np.stack(np.meshgrid(middle, middle, indexing="ij"), -1).reshape(-1, 2)
    logs = log_density(grid)
    mass = np.exp(logs - logs.max())
    chosen = rng.choice(len(grid), size=n, p=mass / mass.sum())
    return grid[chosen] + (rng.random((n, 2)) - 0.5) * (edges[1] - edges[0])


def anneal_two_modes(n: int, seed: int, rise: float = 0.0) -> AnnealingResult:
    """n particles from N(0, 9I) to 0.8 N(−4, 0.3²) + 0.2 N(4, 0.3²) in 2-D, raised by ``rise``."""
    centres = torch.tensor([[-4.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    logs = torch.log(torch.tensor([0.8, 0.2], dtype=torch.float64))

    def start(g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -g.square().sum(1) / 18 - np.log(2 * np.pi * 9), -g / 9

    def target(g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gap = g[:, None] - centres
        parts = logs - gap.square().sum(2) / (2 * 0.09)
        share = torch.softmax(parts, 1)
        return torch.logsumexp(parts, 1) + rise, -(share[..., None] * gap).sum(1) / 0.09

    generator = torch.Generator().manual_seed(seed)
    points = 3 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return anneal(points, start, target, generator, AnnealingSettings())


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, rtol: float | None = None, atol: float = 0.0
) -> None:
    """Compare as torch.testing does, which first imports PyTorch's distributed tensors: seconds."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if rtol is None:
        rtol, atol = (1e-7, 1e-7) if actual.dtype == torch.float64 else (1.3e-6, 1e-5)
    np.testing.assert_allclose(actual.detach(), expected.detach(), rtol=rtol, atol=atol)


def wasserstein(x: Array, y: Array) -> float:
    """Wasserstein-1 distance between two samples, Euclidean cost."""
    import ot

    return float(ot.emd2([], [], ot.dist(x, y, metric="euclidean"), numItermax=5_000_000))


def random_process(count: int, dimension: int, generator: torch.Generator) -> FourierStack:
    """Functions of eight random frequencies, with random coefficients."""
    frequencies = torch.randn(dimension, 8, generator=generator)
    return FourierStack(frequencies, torch.randn(count, 16, generator=generator))


def check_judgments(
    winners: object, losers: object, weights: object, sampling: SamplingDensity
) -> Judgments:
    """Return plain comparisons as `Judgments`."""
    return check_evidence(Evidence.choices(winners, losers, weights), sampling)  # type: ignore[arg-type]


def check_evidence(evidence: Evidence, sampling: SamplingDensity) -> Judgments:
    """Return evidence of any kind as `Judgments`."""
    check_rows(evidence, sampling)
    return merge(evidence)
