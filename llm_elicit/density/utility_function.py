"""Utility functions f: quadratic forms, mixtures of forms, networks, and sums of them.

exp(f) is the Bradley–Terry utility density up to a constant, and exp(f(x) − f(x')) the ratio of
densities. A `Utility` is evaluated on the features of `llm_elicit.density.transforms`, in the
precision and on the device of its coefficients; values come back where the features were.

A mixture is f(t) = a log Σ_k exp(h_k − ½|t W_k − o_k|²). Far from the data the widest form
dominates, so exp(f) is integrable whatever was fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_elicit.density.fourier import FourierStack

Array = npt.NDArray[np.float64]
# Chunks that fit in the cache: larger ones took up to three times as long.
_CHUNK, _CHUNK_GPU = 1024, 65_536


@dataclass(frozen=True)
class ComponentStack:
    """S mixtures of K components, evaluated together, times ``share``.

    Component k has its centre where t W = o, precision W Wᵀ, and log-mass h − log|det W| up to a
    constant.

    Parameters
    ----------
    whiten, offset, height : W (S, K, d, d), o (S, K, d) and h (S, K).
    share : the factor a of the logarithm.

    Examples
    --------
    >>> import torch
    >>> one = ComponentStack(torch.eye(2)[None, None], torch.zeros(1, 1, 2), torch.zeros(1, 1))
    >>> one(torch.tensor([[2.0, 0.0]])).tolist()
    [[-2.0]]
    """

    whiten: Tensor
    offset: Tensor
    height: Tensor
    share: float = 1.0

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.offset.shape[-1])

    @property
    def count(self) -> int:
        """Number of mixtures S."""
        return int(self.height.shape[0])

    @property
    def parameters(self) -> list[Tensor]:
        """The three tensors."""
        return [self.whiten, self.offset, self.height]

    def select(self, which: Sequence[int]) -> ComponentStack:
        """Return copies of the mixtures numbered ``which``."""
        whiten, offset, height = (p.detach()[list(which)].clone() for p in self.parameters)
        return ComponentStack(whiten, offset, height, self.share)

    def scaled(self, factor: float) -> ComponentStack:
        """Return the mixtures times ``factor``."""
        return replace(self, share=factor * self.share)

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        return self.share * torch.logsumexp(self._forms(t), -1)

    def _forms(self, t: Tensor) -> Tensor:
        """Return the components' values (S, n, K), by one product with `products` of features."""
        s, k, _ = self.offset.shape
        return (products(t) @ self._columns).reshape(-1, s, k).transpose(0, 1)

    def rows(self) -> Tensor:
        """Return the components' coefficients (S, K, P) of `products`."""
        d = self.dimension
        i, j = torch.triu_indices(d, d, device=self.whiten.device)
        twice = torch.where(i == j, 0.5, 1.0)
        constant = self.height - 0.5 * self.offset.square().sum(-1)
        squares = -twice * self._precision[:, :, i, j]
        return torch.cat([self._linear, squares, constant[..., None]], -1)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return features (n, d), double, of the first mixture as if its ``share`` were 1."""
        masses = torch.softmax(self._log_masses[0], 0)
        which = torch.multinomial(masses, n, replacement=True, generator=generator)
        white = torch.randn(n, self.dimension, generator=generator, dtype=torch.float64)
        inverse = torch.linalg.inv(self.whiten[0].double())
        t: Tensor = ((white + self.offset[0, which])[:, None] @ inverse[which]).squeeze(1)
        return t

    @property
    def log_mass(self) -> Tensor:
        """log ∫ exp(f) dt (S,), nats, as if ``share`` were 1."""
        masses: Tensor = torch.logsumexp(self._log_masses, 1)
        return masses + 0.5 * self.dimension * math.log(2.0 * math.pi)

    @property
    def _log_masses(self) -> Tensor:
        """Log-masses (S, K) of the components, up to a constant."""
        masses: Tensor = self.height - torch.linalg.slogdet(self.whiten).logabsdet
        return masses

    # Samplers evaluate a stack thousands of times.
    @cached_property
    def _columns(self) -> Tensor:
        """`rows`, one component per column (P, S·K)."""
        return self.rows().flatten(0, 1).T

    @cached_property
    def _precision(self) -> Tensor:
        """W Wᵀ (S, K, d, d)."""
        return self.whiten @ self.whiten.transpose(2, 3)

    @cached_property
    def _linear(self) -> Tensor:
        """W o (S, K, d): each component's slope at 0."""
        return (self.whiten @ self.offset[..., None]).squeeze(-1)

    def mean_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the stack (n,) and its gradient (n, d)."""
        s, k, d = self.offset.shape
        forms = self._forms(t)
        share = torch.softmax(forms, -1) * (self.share / s)
        flat = share.transpose(0, 1).reshape(-1, s * k)
        pull = (flat @ self._precision.reshape(s * k, d * d)).reshape(-1, d, d)
        slope = flat @ self._linear.reshape(s * k, d) - (pull @ t[..., None]).squeeze(-1)
        return self.share * torch.logsumexp(forms, -1).mean(0), slope


def products(t: Tensor) -> Tensor:
    """Return [t_i, t_i t_j, 1] (n, P) of features (n, d), i <= j."""
    i, j = torch.triu_indices(t.shape[1], t.shape[1], device=t.device)
    return torch.cat([t, t[:, i] * t[:, j], torch.ones_like(t[:, :1])], 1)


class NetworkStack:
    """S networks d -> h -> h -> h -> 1 with SiLU, evaluated together by batched products.

    ``parameters`` are [W1 (S,d,h), b1 (S,1,h), W2, b2, W3, b3, W4 (S,h,1)]. There is no output
    bias, because only differences of f are observed.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)

    @classmethod
    def create(
        cls, count: int, dimension: int, width: int, generator: torch.Generator
    ) -> NetworkStack:
        """Return new networks: He-scaled hidden layers, and an output of zero."""
        parameters: list[Tensor] = []
        fan_in = dimension
        for _ in range(3):
            weight = torch.randn(count, fan_in, width, generator=generator)
            parameters.append(weight * (1.6 / math.sqrt(fan_in)))
            parameters.append(0.5 * torch.randn(count, 1, width, generator=generator))
            fan_in = width
        parameters.append(torch.zeros(count, width, 1))
        return cls(parameters)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.parameters[0].shape[1])

    @property
    def count(self) -> int:
        """Number of networks S."""
        return int(self.parameters[0].shape[0])

    def select(self, which: Sequence[int]) -> NetworkStack:
        """Return copies of the networks numbered ``which``."""
        return NetworkStack([p.detach()[list(which)].clone() for p in self.parameters])

    def scaled(self, factor: float) -> NetworkStack:
        """Return the networks times ``factor``."""
        return NetworkStack([*self.parameters[:-1], factor * self.parameters[-1]])

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        hidden = t.expand(self.count, *t.shape)
        for i in range(3):
            weight, bias = self.parameters[2 * i], self.parameters[2 * i + 1]
            hidden = torch.nn.functional.silu(torch.baddbmm(bias, hidden, weight))
        return torch.bmm(hidden, self.parameters[6]).squeeze(-1)

    def mean_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the stack (n,) and its gradient (n, d), without autograd."""
        hidden, slopes = t.expand(self.count, *t.shape), []
        for i in range(3):
            weight, bias = self.parameters[2 * i], self.parameters[2 * i + 1]
            pre = torch.baddbmm(bias, hidden, weight)
            gate = torch.sigmoid(pre)
            hidden = pre * gate
            slopes.append(pre.sub_(hidden).mul_(gate).add_(gate))
        value = torch.bmm(hidden, self.parameters[6]).squeeze(-1).mean(0)
        back = slopes[2].mul_(self.parameters[6].transpose(1, 2) / self.count)
        for i in (2, 1):
            back = torch.bmm(back, self.parameters[2 * i].transpose(1, 2)).mul_(slopes[i - 1])
        return value, torch.bmm(back, self.parameters[0].transpose(1, 2)).sum(0)


def quadratic_features(t: Array) -> Array:
    """Return [t_i, t_i t_j for i <= j] (n, d + d(d+1)/2) of features (n, d).

    Examples
    --------
    >>> import numpy as np
    >>> quadratic_features(np.array([[2.0, 3.0]])).tolist()
    [[2.0, 3.0, 4.0, 6.0, 9.0]]
    """
    i, j = np.triu_indices(t.shape[1])
    return np.concatenate([t, t[:, i] * t[:, j]], axis=1)


class Potential(Protocol):
    """A log-density up to a constant, as a function of features, such as a `Utility`."""

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, p)."""
        ...

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, p) at features (n, p)."""
        ...


@dataclass(frozen=True)
class Utility:
    """f(t) = b·t + tᵀA t + means of mixtures, networks and Fourier terms, up to a constant.

    Parameters
    ----------
    linear, curvature : b (d,) and A (d, d), symmetric.
    networks, fourier : None if there are none.
    components : stacks of mixtures, each of which adds its mean.

    Examples
    --------
    >>> import torch
    >>> f = Utility(torch.zeros(1), -0.5 * torch.eye(1))
    >>> f(torch.tensor([[2.0]])).tolist()
    [-2.0]
    """

    linear: Tensor
    curvature: Tensor
    networks: NetworkStack | None = field(default=None)
    components: tuple[ComponentStack, ...] = ()
    fourier: FourierStack | None = None

    @classmethod
    def flat(cls, dimension: int) -> Utility:
        """Return f = 0, the utility of a judge without preferences."""
        return cls(torch.zeros(dimension), torch.zeros(dimension, dimension))

    @classmethod
    def from_coefficients(cls, beta: Array, dimension: int) -> Utility:
        """Return the quadratic form with these coefficients of `quadratic_features`."""
        i, j = np.triu_indices(dimension)
        matrix = np.zeros((dimension, dimension))
        matrix[i, j] = beta[dimension:]
        symmetric = 0.5 * (matrix + matrix.T)
        linear = torch.from_numpy(beta[:dimension].copy()).float()
        return cls(linear, torch.from_numpy(symmetric).float())

    def scaled(self, factor: float) -> Utility:
        """Return the utility times ``factor``."""
        networks = None if self.networks is None else self.networks.scaled(factor)
        components = tuple(stack.scaled(factor) for stack in self.components)
        fourier = None if self.fourier is None else self.fourier.scaled(factor)
        return Utility(factor * self.linear, factor * self.curvature, networks, components, fourier)

    def to(self, like: Tensor) -> Utility:
        """Return the utility on the device and in the precision of ``like``."""
        networks = self.networks
        if networks is not None:
            networks = NetworkStack([p.to(like) for p in networks.parameters])
        components = tuple(
            ComponentStack(c.whiten.to(like), c.offset.to(like), c.height.to(like), c.share)
            for c in self.components
        )
        fourier = None if self.fourier is None else self.fourier.to(like)
        return Utility(self.linear.to(like), self.curvature.to(like), networks, components, fourier)

    def tensors(self) -> dict[str, Tensor]:
        """Return every array by name."""
        named = {"utility.linear": self.linear, "utility.curvature": self.curvature}
        parts = [] if self.networks is None else self.networks.parameters
        named |= {f"utility.networks.{i}": tensor for i, tensor in enumerate(parts)}
        parts = [p for c in self.components for p in (*c.parameters, share_tensor(c))]
        named |= {f"utility.components.{i}": tensor for i, tensor in enumerate(parts)}
        if self.fourier is not None:
            named["utility.frequencies"] = self.fourier.frequencies
            named["utility.weights"] = self.fourier.weights
        return {name: tensor.cpu() for name, tensor in named.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Utility:
        """Return the inverse of `tensors`; other names are ignored."""
        networks = _numbered(tensors, "utility.networks.")
        parts = _numbered(tensors, "utility.components.")
        components = [
            ComponentStack(whiten, offset, height, float(share))
            for whiten, offset, height, share in zip(*(parts[i::4] for i in range(4)), strict=True)
        ]
        fourier = None
        if "utility.weights" in tensors:
            fourier = FourierStack(tensors["utility.frequencies"], tensors["utility.weights"])
        return cls(
            tensors["utility.linear"],
            tensors["utility.curvature"],
            NetworkStack(networks) if networks else None,
            tuple(components),
            fourier,
        )

    def _chunks(self, t: Tensor) -> tuple[Tensor, ...]:
        """Return features in chunks, on the device and in the precision of the coefficients."""
        moved = t.to(self.linear)
        return torch.split(moved, _CHUNK_GPU if moved.is_cuda else _CHUNK)

    def _stacks(self) -> list[ComponentStack | NetworkStack | FourierStack]:
        rest = (self.networks, self.fourier)
        return [*self.components, *(stack for stack in rest if stack is not None)]

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, d)."""
        with torch.no_grad():
            parts = [self._value(chunk) for chunk in self._chunks(t)]
        return torch.cat(parts).to(t)

    def _value(self, t: Tensor) -> Tensor:
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
        half = t @ self.curvature
        value, slope = t @ self.linear + (half * t).sum(-1), self.linear + 2.0 * half
        for stack in self._stacks():
            extra, extra_slope = stack.mean_and_slope(t)
            value, slope = value + extra, slope + extra_slope
        return value, slope


def rounding(utility: Utility, t: Tensor) -> float:
    """Return the root mean square error of single precision at features (n, d), nats.

    A constant error is left out, because it cancels against log Z.
    """
    exact = t.double()
    gap = utility(t) - utility.to(exact)(exact)
    return float(gap.std(correction=0))


def share_tensor(stack: ComponentStack) -> Tensor:
    """Return the share () of a stack in double precision, so that it is saved exactly."""
    return torch.tensor(stack.share, dtype=torch.float64)


def _numbered(tensors: dict[str, Tensor], prefix: str) -> list[Tensor]:
    count = sum(name.startswith(prefix) for name in tensors)
    return [tensors[f"{prefix}{i}"] for i in range(count)]
