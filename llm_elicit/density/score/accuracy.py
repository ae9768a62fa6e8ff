"""How accurate a score belief's log-density is, measured at draws of the belief itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from llm_elicit.density.density_model import EvaluationError
from llm_elicit.density.score.likelihood import FIXED, LikelihoodSettings
from llm_elicit.density.score.parts import NODES, ScoreParts, path_integral

_FINER = 4
_TIGHTER = 0.1


def finer(settings: LikelihoodSettings) -> LikelihoodSettings:
    """Settings whose error is small beside that of ``settings``, and no tighter.

    Single-precision networks are noisy at the scale of 1e-6, which stops an adaptive solver.

    Examples
    --------
    >>> finer(LikelihoodSettings(divergence="hutchinson")).divergence
    'exact'
    """
    if settings.solver in FIXED:
        return replace(settings, solver="dopri5", divergence="exact", rtol=1e-5, atol=1e-5)
    tight = max(settings.rtol * _TIGHTER, 1e-6), max(settings.atol * _TIGHTER, 1e-6)
    return replace(settings, divergence="exact", rtol=tight[0], atol=tight[1])


def ray_error(parts: ScoreParts, g: Tensor) -> float:
    """Root mean square change (nats) of the log-density with four times the quadrature nodes."""
    return spread(parts.along_rays(g) - parts.along_rays(g, nodes=_FINER * NODES))


def path_error(parts: ScoreParts, potential: Callable[[Tensor], Tensor], g: Tensor) -> float:
    """Root mean square (nats) of what ``potential`` (n,) and the sampler's force disagree by.

    ``potential`` gives the utility at latent points (n, d). Its difference between two draws is
    compared with the force's integral on the line between them; draws beyond the compared points
    are left out, since the utility is tapered there.
    """
    inside = g[g.norm(dim=1) <= parts.latent.radius]
    half = len(inside) // 2
    if half == 0:
        return 0.0
    start, end = inside[:half], inside[half : 2 * half]
    mode = parts.mode
    share = mode.share if mode.controlled else 1.0
    expected = torch.zeros_like(start[:, 0])
    if share > 0.0:
        expected = share * path_integral(parts.still(mode.sigma), start, end, _FINER * NODES)
    if mode.controlled:
        features = parts.latent.features
        expected = expected + parts.base(features(end)) - parts.base(features(start))
    gap = potential(end) - potential(start) - expected
    return float(gap.square().mean().sqrt())


def spread(gap: Tensor) -> float:
    """Root mean square of differences (n,) about their mean, which log Z takes up."""
    return float(gap.std(correction=0))


def combined(numerical: float, path: float) -> EvaluationError:
    """An `EvaluationError`; where the solver failed, it is infinite and not NaN."""
    values = torch.tensor([numerical, path]).nan_to_num(torch.inf)
    return EvaluationError(float(values[0]), float(values[1]))
