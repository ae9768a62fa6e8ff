"""Utility functions f, and draws of the posterior over them.

exp(f) is the Bradley–Terry utility density up to a constant, and exp(f(x) − f(x')) the ratio of
densities. A `Utility` is evaluated on the features of `llm_elicit.density.latent`, in the
precision and on the device of its coefficients; values come back where the features were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from llm_elicit.density.stacks import ComponentStack, FourierStack
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.warp import Warp

# Chunks that fit in the cache: larger ones took up to three times as long.
_CHUNK, _CHUNK_GPU = 1024, 65_536


class Potential(Protocol):
    """A log-density up to a constant, as a function of features, such as a `Utility`."""

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, p)."""
        ...

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, p) at features (n, p)."""
        ...


@dataclass(frozen=True)
class _Sum:
    """A quadratic form, or many, with what is added to it: what a utility and draws of it share.

    ``prefix`` begins the names of its tensors.
    """

    prefix: ClassVar[str]

    linear: Tensor
    curvature: Tensor
    components: tuple[ComponentStack, ...] = ()
    fourier: FourierStack | None = None
    warp: Warp | None = None

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """Return the inverse of `tensors`; other names are ignored."""
        prefix = f"{cls.prefix}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        count = sum(name.endswith(".height") for name in own)
        stacks = (
            ComponentStack(
                own[f"{at}.whiten"],
                own[f"{at}.offset"],
                own[f"{at}.height"],
                float(own[f"{at}.share"]),
            )
            for at in range(count)
        )
        fourier = FourierStack(own["frequencies"], own["weights"]) if "weights" in own else None
        warp = Warp(own["warp"]) if "warp" in own else None
        return cls(own["linear"], own["curvature"], tuple(stacks), fourier, warp)

    def tensors(self) -> dict[str, Tensor]:
        """Return every array by name."""
        named = {"linear": self.linear, "curvature": self.curvature}
        for at, stack in enumerate(self.components):
            parts = zip(("whiten", "offset", "height"), stack.parameters, strict=True)
            named |= {f"{at}.{part}": tensor for part, tensor in parts}
            # In double precision, so that it is saved exactly.
            named[f"{at}.share"] = torch.tensor(stack.share, dtype=torch.float64)
        if self.fourier is not None:
            named |= {"frequencies": self.fourier.frequencies, "weights": self.fourier.weights}
        if self.warp is not None:
            named["warp"] = self.warp.parameters
        return {f"{self.prefix}.{name}": tensor.cpu() for name, tensor in named.items()}

    def turned(self, matrix: Tensor) -> Self:
        """Return f(M t), for a permutation M (d, d)."""
        m = matrix.to(self.linear)
        return replace(
            self,
            linear=self.linear @ m,
            curvature=m.T @ self.curvature @ m,
            components=tuple(stack.turned(m) for stack in self.components),
            fourier=None if self.fourier is None else self.fourier.turned(m),
            warp=None if self.warp is None else self.warp.select(m.argmax(0)),
        )

    def scaled(self, factor: float) -> Self:
        """Return f times ``factor``."""
        return replace(
            self,
            linear=factor * self.linear,
            curvature=factor * self.curvature,
            components=tuple(stack.scaled(factor) for stack in self.components),
            fourier=None if self.fourier is None else self.fourier.scaled(factor),
        )


@dataclass(frozen=True)
class Utility(_Sum):
    """f(t) = b·t + tᵀA t + means of mixtures and Fourier terms, up to a constant.

    Args:
        linear, curvature: b (d,) and A (d, d), symmetric.
        components: stacks of mixtures, each of which adds its mean.
        fourier: None if there are none.
        warp: what is applied to the features first; None for nothing.

    Examples:
        >>> import torch
        >>> f = Utility(torch.zeros(1), -0.5 * torch.eye(1))
        >>> f(torch.tensor([[2.0]])).tolist()
        [-2.0]
    """

    prefix = "utility"

    @classmethod
    def flat(cls, dimension: int) -> Utility:
        """Return f = 0, the utility of a judge without preferences."""
        return cls(torch.zeros(dimension), torch.zeros(dimension, dimension))

    def to(self, like: Tensor) -> Utility:
        """Return the utility on the device and in the precision of ``like``."""
        components = tuple(
            ComponentStack(c.whiten.to(like), c.offset.to(like), c.height.to(like), c.share)
            for c in self.components
        )
        fourier = None if self.fourier is None else self.fourier.to(like)
        warp = None if self.warp is None else Warp(self.warp.parameters.to(like.device))
        return Utility(self.linear.to(like), self.curvature.to(like), components, fourier, warp)

    def _chunks(self, t: Tensor) -> tuple[Tensor, ...]:
        """Return features in chunks, on the device and in the precision of the coefficients."""
        moved = t.to(self.linear)
        return torch.split(moved, _CHUNK_GPU if moved.is_cuda else _CHUNK)

    def _stacks(self) -> list[ComponentStack | FourierStack]:
        return [*self.components, *([] if self.fourier is None else [self.fourier])]

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, d)."""
        with torch.no_grad():
            parts = [self._value(chunk) for chunk in self._chunks(t)]
        return torch.cat(parts).to(t)

    def _value(self, t: Tensor) -> Tensor:
        t = t if self.warp is None else self.warp(t)
        value = t @ self.linear + ((t @ self.curvature) * t).sum(-1)
        for stack in self._stacks():
            value = value + stack(t).mean(0)
        return value

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, d) at features (n, d)."""
        with torch.no_grad():
            parts = [self._value_and_slope(chunk) for chunk in self._chunks(t)]
        values, slopes = zip(*parts, strict=True)
        return torch.cat(values).to(t), torch.cat(slopes).to(t)

    def _value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        at = t
        t = t if self.warp is None else self.warp(t)
        half = t @ self.curvature
        value, slope = t @ self.linear + (half * t).sum(-1), self.linear + 2.0 * half
        for stack in self._stacks():
            extra, extra_slope = stack.mean_and_slope(t)
            value, slope = value + extra, slope + extra_slope
        return value, slope if self.warp is None else slope * self.warp.slope(at)


@dataclass(frozen=True)
class UtilityDraws(_Sum):
    """S draws of the posterior over utilities: quadratic forms, then mixtures.

    Args:
        linear, curvature: (Q, d) and (Q, d, d) coefficients of the quadratic forms.
        components: mixtures; each stack has those with one number of components.
        fourier: Q functions that are added to the quadratic forms, or None.
        warp: what is applied to the features first; None for nothing.

    Examples:
        >>> import torch
        >>> draws = UtilityDraws(torch.zeros(3, 2), -0.5 * torch.eye(2).expand(3, 2, 2))
        >>> draws(torch.ones(5, 2)).shape, len(draws), len(list(draws))
        (torch.Size([3, 5]), 3, 3)
    """

    prefix = "draws"

    def __len__(self) -> int:
        return len(self.linear) + sum(stack.count for stack in self.components)

    def __iter__(self) -> Iterator[Utility]:
        for at, (linear, curvature) in enumerate(zip(self.linear, self.curvature, strict=True)):
            fourier = None if self.fourier is None else self.fourier.select([at])
            yield Utility(linear, curvature, fourier=fourier, warp=self.warp)
        flat = Utility.flat(self.linear.shape[1])
        for stack in self.components:
            for at in range(stack.count):
                yield replace(flat, components=(stack.select([at]),), warp=self.warp)

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        parts = [self._values(chunk) for chunk in torch.split(t.to(self.linear), _CHUNK)]
        return torch.cat(parts, 1).to(t)

    def _values(self, t: Tensor) -> Tensor:
        t = t if self.warp is None else self.warp(t)
        quadratic = self.linear @ t.T + torch.einsum("ni,sij,nj->sn", t, self.curvature, t)
        if self.fourier is not None:
            quadratic = quadratic + self.fourier(t)
        return torch.cat([quadratic, *(stack(t) for stack in self.components)])

    def thinned(self, most: int) -> UtilityDraws:
        """Return about ``most`` of the draws, evenly from those of each form."""
        step = max(1, len(self) // most)
        stacks = (stack.select(range(0, stack.count, step)) for stack in self.components)
        fourier = self.fourier
        if fourier is not None:
            fourier = fourier.select(range(0, fourier.count, step))
        linear, curvature = self.linear[::step], self.curvature[::step]
        return UtilityDraws(linear, curvature, tuple(stacks), fourier, self.warp)


class DeferredDraws:
    """Draws that are made when they are first asked for.

    Args:
        make: returns the draws, the same ones every time it is called.
        count: their number.

    Examples:
        >>> import torch
        >>> flat = UtilityDraws(torch.zeros(3, 2), torch.zeros(3, 2, 2))
        >>> draws = DeferredDraws(lambda: flat, 3)
        >>> len(draws), draws.get() is flat
        (3, True)
    """

    def __init__(self, make: Callable[[], UtilityDraws], count: int) -> None:
        self._make: Callable[[], UtilityDraws] | None = make
        self._count = count
        self._draws: UtilityDraws | None = None

    def __len__(self) -> int:
        return self._count

    def get(self) -> UtilityDraws:
        """Return the draws."""
        make = self._make
        if self._draws is None and make is not None:
            with one_thread():
                self._draws = make()
            self._make = None  # and with it the comparisons
        assert self._draws is not None
        return self._draws

    def then(self, change: Callable[[UtilityDraws], UtilityDraws]) -> DeferredDraws:
        """Return what ``change`` makes of the draws, made when it is asked for."""
        return DeferredDraws(lambda: change(self.get()), self._count)

    @classmethod
    def made(cls, tensors: dict[str, Tensor]) -> DeferredDraws:
        """Return the draws that their `UtilityDraws.tensors` describe."""
        draws = UtilityDraws.from_tensors(tensors)
        return cls(lambda: draws, len(draws))

    def __reduce__(self) -> tuple[Callable[..., DeferredDraws], tuple[dict[str, Tensor]]]:
        """Pickle the draws, not the comparisons that they are made from."""
        return DeferredDraws.made, (self.get().tensors(),)
