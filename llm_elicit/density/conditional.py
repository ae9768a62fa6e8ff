"""Conditional utilities: values of some features are substituted, and the others stay free.

Features of λ's coordinates have columns of their own, so that a utility with some columns held at
t_c is again a utility of the free columns t_f, in closed form: a quadratic form stays one, a
mixture of forms stays one, and Fourier terms shift their phase. The conditional belief
p(x_f | x_c) ∝ exp(f(t_f, t_c)) is thus a belief like any other, with the posterior's draws
conditioned in the same way. Constants that depend only on t_c cancel in its normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.errors import DensityError
from llm_elicit.density.latent import Latent
from llm_elicit.density.stacks import ComponentStack, FourierStack
from llm_elicit.density.transforms import BoxLatent
from llm_elicit.density.uniform import Uniform
from llm_elicit.density.utility_function import Utility, UtilityDraws

Form = TypeVar("Form", Utility, UtilityDraws)


@dataclass(frozen=True)
class Substitution:
    """Columns ``fixed`` (c,) of the features are held at ``values`` (c,); ``free`` (f,) are not."""

    free: Tensor
    fixed: Tensor
    values: Tensor

    def __call__(self, f: Form) -> Form:
        """Return the utility, or every draw of it, of the free columns, up to a constant."""
        if f.warp is not None:
            # Columns are warped one by one.
            plain = replace(self, values=f.warp.select(self.fixed)(self.values[None])[0])
            return replace(plain(replace(f, warp=None)), warp=f.warp.select(self.free))
        linear, curvature = self._quadratic(f.linear, f.curvature)
        components = tuple(self._components(stack) for stack in f.components)
        fourier = None if f.fourier is None else self._fourier(f.fourier)
        return replace(
            f, linear=linear, curvature=curvature, components=components, fourier=fourier
        )

    def _quadratic(self, linear: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Condition b·t + tᵀA t, (..., d) and (..., d, d)."""
        rows = curvature[..., self.free, :]
        crossed = rows[..., self.fixed] @ self.values.to(curvature)
        return linear[..., self.free] + 2.0 * crossed, rows[..., self.free]

    def _components(self, stack: ComponentStack) -> ComponentStack:
        """Condition forms −½|t W − o|²; with W_fᵀ = QR they are −½|t_f Rᵀ − oQ|² − constant."""
        whiten, offset, height = (p.double() for p in stack.parameters)
        offset = offset - self.values.double() @ whiten[..., self.fixed, :]
        q, r = torch.linalg.qr(whiten[..., self.free, :].transpose(-1, -2))
        kept = (offset[..., None, :] @ q).squeeze(-2)
        height = height - 0.5 * (offset.square().sum(-1) - kept.square().sum(-1))
        parts = (r.transpose(-1, -2), kept, height)
        whiten, offset, height = (p.to(stack.height) for p in parts)
        return ComponentStack(whiten, offset, height, stack.share)

    def _fourier(self, stack: FourierStack) -> FourierStack:
        """Condition a cos θ + b sin θ: the held columns add φ = t_c·ω_c to every angle."""
        phase = self.values.to(stack.frequencies) @ stack.frequencies[self.fixed]
        of_cos, of_sin = stack.weights.chunk(2, dim=1)
        cos, sin = torch.cos(phase), torch.sin(phase)
        turned = torch.cat([of_cos * cos + of_sin * sin, of_sin * cos - of_cos * sin], 1)
        return replace(stack, frequencies=stack.frequencies[self.free], weights=turned)


def condition(latent: Latent, given: Mapping[int, float]) -> tuple[BoxLatent, Substitution]:
    """Return the coordinates of the free features, and what is substituted for the others.

    Parameters
    ----------
    given : values of features by their numbers, natural units, as `FeatureNames.values` checked
        them.
    """
    sampling = latent.sampling
    if not isinstance(latent, BoxLatent) or not isinstance(sampling, Uniform):
        raise DensityError(
            f"given: λ is a {type(sampling).__name__}; only under a Uniform has each feature an "
            "axis of its own; fit with sampling=Uniform(low, high)."
        )
    if len(given) == sampling.dimension:
        raise DensityError("given: every feature is given; leave at least one free.")
    point = sampling.from_cube(np.full((1, sampling.dimension), 0.5))
    point[0, list(given)] = list(given.values())
    if not sampling.in_box(point)[0]:
        raise DensityError(
            f"given: {dict(given)} lies outside the support of {sampling!r}; give values inside it."
        )
    t = latent.features(torch.from_numpy(latent.to_latent(point)))[0]
    held = np.isin(latent.owners, list(given))
    free, fixed = (torch.from_numpy(np.flatnonzero(which)) for which in (~held, held))
    return BoxLatent(sampling.conditional(given)), Substitution(free, fixed, t[fixed])
