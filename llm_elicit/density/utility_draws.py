"""Draws of the posterior over utilities, evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_elicit.density.fourier import FourierStack
from llm_elicit.density.torch_utils import one_thread
from llm_elicit.density.utility_function import ComponentStack, Utility, share_tensor

_CHUNK = 1024


@dataclass(frozen=True)
class UtilityDraws:
    """S draws of the posterior over utilities: quadratic forms, then mixtures.

    Parameters
    ----------
    linear, curvature : (Q, d) and (Q, d, d) coefficients of the quadratic forms.
    stacks : mixtures; each stack has those with one number of components.
    fourier : Q functions that are added to the quadratic forms, or None.

    Examples
    --------
    >>> import torch
    >>> draws = UtilityDraws(torch.zeros(3, 2), -0.5 * torch.eye(2).expand(3, 2, 2))
    >>> draws(torch.ones(5, 2)).shape, len(draws), len(list(draws))
    (torch.Size([3, 5]), 3, 3)
    """

    linear: Tensor
    curvature: Tensor
    stacks: tuple[ComponentStack, ...] = ()
    fourier: FourierStack | None = None

    def __len__(self) -> int:
        return len(self.linear) + sum(stack.count for stack in self.stacks)

    def __iter__(self) -> Iterator[Utility]:
        for at, (linear, curvature) in enumerate(zip(self.linear, self.curvature, strict=True)):
            fourier = None if self.fourier is None else self.fourier.select([at])
            yield Utility(linear, curvature, fourier=fourier)
        flat = Utility.flat(self.linear.shape[1])
        for stack in self.stacks:
            for at in range(stack.count):
                yield Utility(flat.linear, flat.curvature, None, (stack.select([at]),))

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        parts = [self._values(chunk) for chunk in torch.split(t.to(self.linear), _CHUNK)]
        return torch.cat(parts, 1).to(t)

    def _values(self, t: Tensor) -> Tensor:
        quadratic = self.linear @ t.T + torch.einsum("ni,sij,nj->sn", t, self.curvature, t)
        if self.fourier is not None:
            quadratic = quadratic + self.fourier(t)
        return torch.cat([quadratic, *(stack(t) for stack in self.stacks)])

    def scaled(self, factor: float) -> UtilityDraws:
        """Return the utilities times ``factor``."""
        stacks = tuple(stack.scaled(factor) for stack in self.stacks)
        fourier = None if self.fourier is None else self.fourier.scaled(factor)
        return UtilityDraws(factor * self.linear, factor * self.curvature, stacks, fourier)

    def tensors(self) -> dict[str, Tensor]:
        """Return every array by name."""
        named = {"draws.linear": self.linear, "draws.curvature": self.curvature}
        if self.fourier is not None:
            named |= {"draws.frequencies": self.fourier.frequencies}
            named |= {"draws.weights": self.fourier.weights}
        for at, stack in enumerate(self.stacks):
            whiten, offset, height = stack.parameters
            named |= {f"draws.{at}.whiten": whiten, f"draws.{at}.offset": offset}
            named |= {f"draws.{at}.height": height, f"draws.{at}.share": share_tensor(stack)}
        return named

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> UtilityDraws:
        """Return the inverse of `tensors`; other names are ignored."""
        count = sum(name.startswith("draws.") and name.endswith(".height") for name in tensors)
        stacks = (
            ComponentStack(
                tensors[f"draws.{at}.whiten"],
                tensors[f"draws.{at}.offset"],
                tensors[f"draws.{at}.height"],
                float(tensors[f"draws.{at}.share"]),
            )
            for at in range(count)
        )
        fourier = None
        if "draws.weights" in tensors:
            fourier = FourierStack(tensors["draws.frequencies"], tensors["draws.weights"])
        return cls(tensors["draws.linear"], tensors["draws.curvature"], tuple(stacks), fourier)


class DeferredDraws:
    """Draws that are made when they are first asked for.

    Parameters
    ----------
    make : returns the draws, the same ones every time it is called.
    count : their number.

    Examples
    --------
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

    def scaled(self, factor: float) -> DeferredDraws:
        """Return the same utilities times ``factor``, made when they are asked for."""
        return DeferredDraws(lambda: self.get().scaled(factor), self._count)

    def __reduce__(self) -> tuple[Callable[[UtilityDraws], DeferredDraws], tuple[UtilityDraws]]:
        """Pickle the draws, not the comparisons that they are made from."""
        return _made, (self.get(),)


def _made(draws: UtilityDraws) -> DeferredDraws:
    return DeferredDraws(lambda: draws, len(draws))
