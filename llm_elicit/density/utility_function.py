"""Utility functions f, and draws of the posterior over them.

exp(f) is the Bradley–Terry utility density up to a constant, and exp(f(x) − f(x')) the ratio of
densities. A `Utility` is evaluated on the features of `llm_elicit.density.latent`, in the
precision and on the device of its coefficients; values come back where the features were.

*Mixtures* f(t) = a log Σ_k exp(h_k − ½|t W_k − o_k|²). Far from the data the widest form
dominates, so that exp(f) is integrable.

*Fourier features* f(t) = Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t). With ω ~ N(0, I/ℓ²) and independent
normal coefficients of variance v/M these are draws of a Gaussian process with covariance
v exp(−|t − t'|²/2ℓ²), up to the Monte Carlo error of M frequencies (Rahimi and Recht, 2007); with ω
on a lattice and variances that follow the spectral density, up to the lattice's period.

*Warps* are monotone functions of single features on which a utility is a simpler function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.errors import Array
from llm_elicit.density.torch_utils import one_thread, select_tensors, sum_last


@dataclass(frozen=True)
class Warp:
    """Each feature t becomes log(1 + a u) − log(1 + b (1 − u)), with u from 0 to 1 over its range.

    With a > 0 = b this is nearly the logarithm of the distance from the lower end, with b > 0 = a
    from the upper end, with both nearly the log-odds of u. Features with a = b = 0 stay as they
    are, and others are standardized. A utility of warped features is still a function of t, so that
    no Jacobian enters.

    Attributes:
        parameters: (6, p) lower end, range, a, b, mean and standard deviation of each feature.

    Examples:
        >>> import numpy as np
        >>> grid = np.linspace(0.0, 1.0, 1001)[:, None]
        >>> warp = Warp.of(grid, np.array([1e3]), np.array([0.0]))
        >>> t = torch.tensor([[0.01], [0.1], [1.0]], dtype=torch.float64)
        >>> steps = warp(t).diff(dim=0)[:, 0]                # of a logarithm: nearly equal
        >>> round(float(steps[0] / steps[1]), 2)
        0.94
    """

    parameters: Tensor

    @classmethod
    def of(cls, points: Array, a: Array, b: Array) -> Warp:
        """Return the warp of strengths a and b (p,) over the range of compared points (n, p)."""
        low, high = points.min(0), points.max(0)
        margin = (high - low) / len(points)  # by which the range exceeds that of uniform points
        width = np.maximum(high - low + 2 * margin, 1e-12)
        plain = np.zeros_like(a), np.ones_like(a)
        rows = np.stack([low - margin, width, a, b, *plain])
        values = cls(torch.from_numpy(rows))(torch.from_numpy(points).double()).numpy()
        warped = a + b > 0
        rows[4:, warped] = values.mean(0)[warped], values.std(0)[warped]
        return cls(torch.from_numpy(rows))

    def select(self, columns: Tensor) -> Warp:
        """Return the warp of some columns."""
        return Warp(self.parameters[:, columns])

    def __call__(self, t: Tensor) -> Tensor:
        """Return warped features (n, p)."""
        low, width, a, b, mean, sd = self.parameters.to(t)
        u = ((t - low) / width).clamp(0.0, 1.0)
        warped = (torch.log1p(a * u) - torch.log1p(b * (1.0 - u)) - mean) / sd
        return torch.where(a + b > 0.0, warped, t)

    def slope(self, t: Tensor) -> Tensor:
        """Return the derivative of each warped feature by its own feature, (n, p)."""
        low, width, a, b, _, sd = self.parameters.to(t)
        u = (t - low) / width
        inside = (u > 0.0) & (u < 1.0)
        u = u.clamp(0.0, 1.0)
        slope = (a / (1.0 + a * u) + b / (1.0 + b * (1.0 - u))) / (width * sd)
        return torch.where(a + b > 0.0, slope * inside, 1.0)


@dataclass(frozen=True)
class Tail:
    """A component falls by ½ρ(q) at squared distance q: ρ(q) = (b/γ) ((1 + q/b)^γ − 1).

    With γ = 1 it is Gaussian, with γ = ½ it falls as exp(−c√q), and with γ = 0, where ρ is
    b log(1 + q/b), as a Student t with b − d degrees of freedom.

    Attributes:
        size: b, squared standard deviations within which it falls as a Gaussian does.
        power: γ from 0 to 1.
    """

    size: float = 1.0
    power: float = 1.0

    def rho(self, q: Tensor) -> Tensor:
        """Return ρ."""
        if self.power == 1.0:
            return q
        logs = torch.log1p(q.clamp(min=0.0) / self.size)
        return self.size * (torch.expm1(self.power * logs) / self.power if self.power else logs)

    def slope(self, q: Tensor) -> Tensor:
        """Return the derivative of ρ."""
        return (1.0 + q.clamp(min=0.0) / self.size) ** (self.power - 1.0)


class ArrayGradients(NamedTuple):
    """Derivatives by the arrays of S mixtures: W (S, K, d, d), o (S, K, d) and h (S, K)."""

    whiten: Tensor
    offset: Tensor
    height: Tensor


@dataclass(frozen=True)
class ComponentStack:
    """S mixtures of K components, evaluated together, times ``share``.

    Component k has its centre where t W = o, precision W Wᵀ, and log-mass h − log|det W| up to a
    constant.

    Attributes:
        whiten, offset, height: W (S, K, d, d), o (S, K, d) and h (S, K).
        share: the factor a of the logarithm.
        tail: of all components.
    """

    whiten: Tensor
    offset: Tensor
    height: Tensor
    share: float = 1.0
    tail: Tail = Tail()

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.whiten.shape[-2])

    @property
    def count(self) -> int:
        """Number of mixtures S."""
        return int(self.height.shape[0])

    @property
    def parameters(self) -> list[Tensor]:
        """The three tensors."""
        return [self.whiten, self.offset, self.height]

    def select(self, indices: Sequence[int]) -> ComponentStack:
        """Return copies of the mixtures numbered ``indices``."""
        rows = list(indices)
        whiten, offset, height = (arrays.detach()[rows].clone() for arrays in self.parameters)
        return replace(self, whiten=whiten, offset=offset, height=height)

    def permute_features(self, matrix: Tensor) -> ComponentStack:
        """Return the mixtures of M t, for M (d, d)."""
        return replace(self, whiten=matrix.to(self.whiten).T @ self.whiten)

    def scaled(self, factor: float) -> ComponentStack:
        """Return the mixtures times ``factor``."""
        return replace(self, share=factor * self.share)

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        return self.share * torch.logsumexp(self._log_terms(self._distances(t)), -1)

    def _distances(self, t: Tensor) -> Tensor:
        """Return |t W − o|² (S, n, K), by one product with `quadratic_features` of features."""
        distances = -2.0 * (quadratic_features(t) @ self._columns[:-1])
        return distances.reshape(-1, *self.height.shape).transpose(0, 1)

    def _log_terms(self, distances: Tensor) -> Tensor:
        """Return the components' values (S, n, K)."""
        return self.height[:, None] - 0.5 * self.tail.rho(distances)

    def coefficients(self) -> Tensor:
        """Return coefficients (S, K, P + 1) of `quadratic_features`, and heights, of components."""
        d = self.dimension
        i, j = torch.triu_indices(d, d, device=self.whiten.device)
        squares = -torch.where(i == j, 0.5, 1.0) * self._precision[:, :, i, j]
        constant = -0.5 * self.offset.square().sum(-1)
        return torch.cat([self._linear, squares, constant[..., None], self.height[..., None]], -1)

    def array_gradients(self, by_coefficients: Tensor) -> ArrayGradients:
        """Return derivatives by W, o and h from those by `coefficients`."""
        d = self.dimension
        linear, squares = by_coefficients[..., :d], by_coefficients[..., d:-2]
        of_whiten = linear[..., None] * self.offset[..., None, :]
        of_whiten = of_whiten - symmetric(squares, d) @ self.whiten
        of_offset = (linear[..., None, :] @ self.whiten).squeeze(-2)
        of_offset = of_offset - by_coefficients[..., -2:-1] * self.offset
        return ArrayGradients(of_whiten, of_offset, by_coefficients[..., -1])

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Return features (n, d), double, of the first mixture as if its ``share`` were 1."""
        masses = torch.softmax(self._log_masses[0], 0)
        components = torch.multinomial(masses, n, replacement=True, generator=generator)
        white = torch.randn(n, self.dimension, generator=generator, dtype=torch.float64)
        inverse = torch.linalg.inv(self.whiten[0].double())
        t: Tensor = ((white + self.offset[0, components])[:, None] @ inverse[components]).squeeze(1)
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
        """`coefficients`, one component per column (P + 1, S·K)."""
        return self.coefficients().flatten(0, 1).T

    @cached_property
    def _precision(self) -> Tensor:
        """W Wᵀ (S, K, d, d)."""
        return self.whiten @ self.whiten.transpose(2, 3)

    @cached_property
    def _linear(self) -> Tensor:
        """W o (S, K, d): each component's slope at 0."""
        return (self.whiten @ self.offset[..., None]).squeeze(-1)

    def mean_and_gradient(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the stack (n,) and its gradient (n, d)."""
        s, k, d = *self.height.shape, self.dimension
        distances = self._distances(t)
        forms = self._log_terms(distances)
        slope = 1.0 if self.tail.power == 1.0 else self.tail.slope(distances)
        responsibilities = torch.softmax(forms, -1) * (self.share / s) * slope
        flat_weights = responsibilities.transpose(0, 1).reshape(-1, s * k)
        precision_sum = (flat_weights @ self._precision.reshape(s * k, d * d)).reshape(-1, d, d)
        gradient = flat_weights @ self._linear.reshape(s * k, d)
        gradient = gradient - (precision_sum @ t[..., None]).squeeze(-1)
        return self.share * torch.logsumexp(forms, -1).mean(0), gradient


def quadratic_features(t: Tensor) -> Tensor:
    """Return [t_i, t_i t_j, 1] (n, P) of features (n, d), i <= j."""
    i, j = torch.triu_indices(t.shape[1], t.shape[1], device=t.device)
    return torch.cat([t, t[:, i] * t[:, j], torch.ones_like(t[:, :1])], 1)


@cache
def _places(d: int, dtype: torch.dtype) -> Tensor:
    """Return where each entry i <= j of a symmetric matrix is: (d(d + 1)/2, d·d), of 0 and 1."""
    i, j = torch.triu_indices(d, d)
    matrix, entries = torch.zeros(len(i), d, d, dtype=dtype), torch.arange(len(i))
    matrix[entries, i, j] = matrix[entries, j, i] = 1.0
    return matrix.flatten(1)


def symmetric(triangle: Tensor, d: int) -> Tensor:
    """Return symmetric matrices (..., d, d) of their entries i <= j (..., d(d + 1)/2).

    Examples:
        >>> symmetric(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
        [[1.0, 2.0], [2.0, 3.0]]
    """
    return (triangle @ _places(d, triangle.dtype)).reshape(*triangle.shape[:-1], d, d)


def symmetric_gradient(of_matrix: Tensor) -> Tensor:
    """Return derivatives (..., d(d + 1)/2) by the entries, from those by the matrices."""
    return of_matrix.flatten(-2) @ _places(of_matrix.shape[-1], of_matrix.dtype).T


def draw_frequencies(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return frequencies (d, M) of a process of length scale one.

    Examples:
        >>> draw_frequencies(8, 2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 8])
    """
    # Orthogonal directions spread better than independent ones (Yu and others, 2016).
    blocks = []
    for _ in range(math.ceil(count / dimension)):
        normal = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        directions = torch.linalg.qr(normal)[0]
        radii = torch.randn(dimension, dimension, generator=generator, dtype=torch.float64)
        blocks.append(directions * radii.norm(dim=0))
    return torch.cat(blocks, 1)[:, :count]


def fourier_features(t: Tensor, frequencies: Tensor) -> Tensor:
    """Return [cos, sin] of t·ω divided by √M, (n, 2M), at features (n, d)."""
    angle = t @ frequencies
    return torch.cat([torch.cos(angle), torch.sin(angle)], 1) / math.sqrt(frequencies.shape[1])


@dataclass(frozen=True)
class FourierStack:
    """S functions of the same frequencies.

    ``frequencies`` (d, M), ``weights`` (S, 2M) of `fourier_features`.
    """

    frequencies: Tensor
    weights: Tensor

    @property
    def count(self) -> int:
        """Number of functions S."""
        return len(self.weights)

    def select(self, indices: Sequence[int]) -> FourierStack:
        """Return the functions numbered ``indices``."""
        return replace(self, weights=self.weights[list(indices)])

    def permute_features(self, matrix: Tensor) -> FourierStack:
        """Return the functions of M t, for M (d, d)."""
        return replace(self, frequencies=matrix.to(self.frequencies).T @ self.frequencies)

    def scaled(self, factor: float) -> FourierStack:
        """Return the same functions times ``factor``."""
        return replace(self, weights=factor * self.weights)

    def to(self, like: Tensor) -> FourierStack:
        """Return the same functions on the device and in the precision of ``like``."""
        return FourierStack(self.frequencies.to(like), self.weights.to(like))

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        return self.weights @ fourier_features(t, self.frequencies).T

    def mean_and_gradient(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean over the stack (n,) and its gradient (n, d)."""
        cos_weights, sin_weights = self.weights.mean(0).chunk(2)
        root = math.sqrt(self.frequencies.shape[1])
        angle = t @ self.frequencies
        cos, sin = torch.cos(angle) / root, torch.sin(angle) / root
        gradient = (sin_weights * cos - cos_weights * sin) @ self.frequencies.T
        return cos @ cos_weights + sin @ sin_weights, gradient


# Chunks that fit in the cache: larger ones took up to three times as long.
_CHUNK, _CHUNK_GPU = 1024, 65_536


@dataclass(frozen=True)
class _UtilityTerms:
    """A quadratic form, or many, with further terms: the common part of a utility and its draws.

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
        arrays = select_tensors(cls.prefix, tensors)
        stacks = []
        for index in range(sum(name.endswith(".height") for name in arrays)):
            stack = select_tensors(str(index), arrays)
            share, tail = float(stack.pop("share")), Tail(*stack.pop("tail").tolist())
            stacks.append(ComponentStack(**stack, share=share, tail=tail))
        fourier = None
        if "weights" in arrays:
            fourier = FourierStack(arrays["frequencies"], arrays["weights"])
        warp = Warp(arrays["warp"]) if "warp" in arrays else None
        return cls(arrays["linear"], arrays["curvature"], tuple(stacks), fourier, warp)

    def tensors(self) -> dict[str, Tensor]:
        """Return every array by name."""
        tensors = {"linear": self.linear, "curvature": self.curvature}
        for index, stack in enumerate(self.components):
            parts = zip(("whiten", "offset", "height"), stack.parameters, strict=True)
            tensors |= {f"{index}.{part}": tensor for part, tensor in parts}
            # In double precision, so that it is saved exactly.
            tensors[f"{index}.share"] = torch.tensor(stack.share, dtype=torch.float64)
            tail = [stack.tail.size, stack.tail.power]
            tensors[f"{index}.tail"] = torch.tensor(tail, dtype=torch.float64)
        if self.fourier is not None:
            tensors |= {"frequencies": self.fourier.frequencies, "weights": self.fourier.weights}
        if self.warp is not None:
            tensors["warp"] = self.warp.parameters
        return {f"{self.prefix}.{name}": tensor.cpu() for name, tensor in tensors.items()}

    def permute_features(self, matrix: Tensor) -> Self:
        """Return f(M t), for a permutation M (d, d)."""
        m = matrix.to(self.linear)
        return replace(
            self,
            linear=self.linear @ m,
            curvature=m.T @ self.curvature @ m,
            components=tuple(stack.permute_features(m) for stack in self.components),
            fourier=None if self.fourier is None else self.fourier.permute_features(m),
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
class Utility(_UtilityTerms):
    """f(t) = b·t + tᵀA t + means of mixtures and Fourier terms, up to a constant.

    Attributes:
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
            replace(c, whiten=c.whiten.to(like), offset=c.offset.to(like), height=c.height.to(like))
            for c in self.components
        )
        fourier = None if self.fourier is None else self.fourier.to(like)
        warp = None if self.warp is None else Warp(self.warp.parameters.to(like.device))
        return Utility(self.linear.to(like), self.curvature.to(like), components, fourier, warp)

    def _chunks(self, t: Tensor) -> tuple[Tensor, ...]:
        """Return features in chunks, on the device and in the precision of the coefficients."""
        features = t.to(self.linear)
        return torch.split(features, _CHUNK_GPU if features.is_cuda else _CHUNK)

    def _stacks(self) -> list[ComponentStack | FourierStack]:
        return [*self.components, *([] if self.fourier is None else [self.fourier])]

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (n,) at features (n, d)."""
        with torch.no_grad():
            parts = [self._value(chunk) for chunk in self._chunks(t)]
        return torch.cat(parts).to(t)

    def _value(self, t: Tensor) -> Tensor:
        t = t if self.warp is None else self.warp(t)
        value = t @ self.linear + sum_last((t @ self.curvature) * t)
        for stack in self._stacks():
            value = value + stack(t).mean(0)
        return value

    def value_and_gradient(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (n,) and gradients (n, d) at features (n, d)."""
        with torch.no_grad():
            parts = [self._value_and_slope(chunk) for chunk in self._chunks(t)]
        values, gradients = zip(*parts, strict=True)
        return torch.cat(values).to(t), torch.cat(gradients).to(t)

    def _value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        at = t
        t = t if self.warp is None else self.warp(t)
        half = t @ self.curvature
        value, slope = t @ self.linear + sum_last(half * t), self.linear + 2.0 * half
        for stack in self._stacks():
            extra, extra_slope = stack.mean_and_gradient(t)
            value, slope = value + extra, slope + extra_slope
        return value, slope if self.warp is None else slope * self.warp.slope(at)


@dataclass(frozen=True)
class UtilityDraws(_UtilityTerms):
    """S draws of the posterior over utilities: those without mixtures, then those with one.

    Attributes:
        linear, curvature: (S, d) and (S, d, d) coefficients of the quadratic forms; those of the
            last draws are added to their mixtures.
        components: mixtures; each stack has those with one number of components.
        fourier: functions that are added to the draws without mixtures, or None.
        warp: what is applied to the features first; None for nothing.

    Examples:
        >>> import torch
        >>> draws = UtilityDraws(torch.zeros(3, 2), -0.5 * torch.eye(2).expand(3, 2, 2))
        >>> draws(torch.ones(5, 2)).shape, len(draws), len(list(draws))
        (torch.Size([3, 5]), 3, 3)
    """

    prefix = "draws"

    def __len__(self) -> int:
        return len(self.linear)

    @property
    def _plain(self) -> int:
        """The number of draws without a mixture."""
        return len(self) - sum(stack.count for stack in self.components)

    def __iter__(self) -> Iterator[Utility]:
        forms = zip(self.linear, self.curvature, strict=True)
        for index, (linear, curvature) in zip(range(self._plain), forms, strict=False):
            fourier = None if self.fourier is None else self.fourier.select([index])
            yield Utility(linear, curvature, fourier=fourier, warp=self.warp)
        mixtures = (s.select([index]) for s in self.components for index in range(s.count))
        quadratic = zip(self.linear[self._plain :], self.curvature[self._plain :], strict=True)
        for mixture, (linear, curvature) in zip(mixtures, quadratic, strict=True):
            yield Utility(linear, curvature, (mixture,), warp=self.warp)

    def __call__(self, t: Tensor) -> Tensor:
        """Return values (S, n) at features (n, d)."""
        parts = [self._values(chunk) for chunk in torch.split(t.to(self.linear), _CHUNK)]
        return torch.cat(parts, 1).to(t)

    def _values(self, t: Tensor) -> Tensor:
        t = t if self.warp is None else self.warp(t)
        # One product takes a fourth of the time of contracting one feature after another.
        squares = (t[:, :, None] * t[:, None, :]).flatten(1)
        forms_of_mixtures = self.linear[self._plain :], self.curvature[self._plain :]
        count = len(self) if any(bool(form.any()) for form in forms_of_mixtures) else self._plain
        quadratic = self.linear[:count] @ t.T + self.curvature[:count].flatten(1) @ squares.T
        others = [stack(t) for stack in self.components]
        if self.fourier is not None:
            others.insert(0, self.fourier(t))
        elif self._plain:
            others.insert(0, torch.zeros(self._plain, len(t)).to(t))
        values = torch.cat(others)
        values[:count] += quadratic
        return values

    def thin(self, max_count: int) -> UtilityDraws:
        """Return about ``max_count`` of the draws, evenly from those of each form."""
        step, fourier = max(1, len(self) // max_count), self.fourier
        stacks = (stack.select(range(0, stack.count, step)) for stack in self.components)
        if fourier is not None:
            fourier = fourier.select(range(0, fourier.count, step))
        ends = np.cumsum([0, self._plain, *(stack.count for stack in self.components)]).tolist()
        rows = [row for start, end in pairwise(ends) for row in range(start, end, step)]
        return UtilityDraws(
            self.linear[rows], self.curvature[rows], tuple(stacks), fourier, self.warp
        )


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

    def __len__(self) -> int:
        return self._count

    def get(self) -> UtilityDraws:
        """Return the draws."""
        make = self._make
        if make is not None:
            with one_thread():
                self._draws = make()
            self._make = None  # and with it the comparisons
        return self._draws

    def map(self, change: Callable[[UtilityDraws], UtilityDraws]) -> DeferredDraws:
        """Return what ``change`` makes of the draws, made when it is asked for."""
        return DeferredDraws(lambda: change(self.get()), self._count)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> DeferredDraws:
        """Return the draws that their `UtilityDraws.tensors` describe."""
        draws = UtilityDraws.from_tensors(tensors)
        return cls(lambda: draws, len(draws))

    def __reduce__(self) -> tuple[Callable[..., DeferredDraws], tuple[dict[str, Tensor]]]:
        """Pickle the draws, not the comparisons that they are made from."""
        return DeferredDraws.from_tensors, (self.get().tensors(),)
