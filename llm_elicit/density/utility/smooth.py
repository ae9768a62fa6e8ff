"""A quadratic form plus a smooth remainder: Gaussian processes by Fourier terms.

f(t) = quadratic form + Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t), all coefficients normal a priori. The
remainder is a sum of processes: of single features, of pairs of features, and, of at most three,
of all features with each of several length scales (Duvenaud, Nickisch and Rasmussen, 2011). A
process has a lattice of frequencies: it is periodic, with a period beyond the range of the
features, and the variances of its terms are its spectral density (Hensman, Durrande and Solin,
2018). Random frequencies of a few dozen are a kernel of their own, and made the belief depend on
which they were. The posterior mode is found by Newton's method, and each process's variance
maximizes Laplace's approximation to the evidence (Rasmussen and Williams, 2006, sections 3.4 and
5.5), so that those which the choices do not need vanish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.settings import SmoothSettings
from llm_elicit.density.stacks import FourierStack, fourier_features
from llm_elicit.density.utility.cross_validation import CrossValidation, HeldOut
from llm_elicit.density.utility.quadratic import QuadraticFit, Regression, Ridges

_UPDATES = 20
_FIRST_VARIANCE = 10.0
_CONVERGED = 0.1  # nats of the log-posterior, of modes that only variances and scores need
_SETTLED = 0.03  # of the logarithms of the variances
_VARIANCES = (1e-3, 1e4)
_MARGIN = 1.0  # of a period beyond the range of the features
_HIGHEST = 2.5  # frequency over that of the shortest length scale
_ROWS_EACH, _FEWEST = 10, 16  # comparisons of each frequency of a process, and fewest frequencies
# Length scales in units of √k for processes of k features: several in one process, or one in each.
_SINGLE = tuple(np.geomspace(0.15, 2.0, 8).tolist())
_PAIR = tuple(np.geomspace(0.2, 1.0, 8).tolist())
_ALL = (0.15, 0.3, 0.6)  # the shortest is for two features
_MOST_OF_ALL = 3


@dataclass(frozen=True)
class SmoothFit:
    """The posterior mode of all coefficients (P + 2M,), and how well it predicts.

    ``held_out`` is as in `MixtureFit`; ``variances`` are those of the processes by their names.
    """

    mode: Tensor
    frequencies: Tensor
    held_out: HeldOut
    variances: Mapping[str, float]
    regression: Regression

    def split(self, coefficients: Tensor) -> tuple[Tensor, FourierStack]:
        """Split coefficients (S, P + 2M) into those of the quadratic form (S, P) and processes."""
        count = 2 * self.frequencies.shape[1]
        weights = coefficients[:, -count:].float()
        return coefficients[:, :-count], FourierStack(self.frequencies, weights)


def fit_smooth(
    quadratic: QuadraticFit, ridges: Ridges, settings: SmoothSettings
) -> SmoothFit | None:
    """Return the form that makes the choices most likely; None where it is left out."""
    validation = quadratic.validation
    frequencies, spectra = processes(validation, settings)
    if not spectra:
        return None
    regression = _regression(quadratic, frequencies, ridges)
    # The features are divided by the root of their number; cosines, then sines.
    spectrum = frequencies.shape[1] * torch.stack(list(spectra.values())).repeat(1, 2)
    rows = torch.randperm(len(quadratic.rows), generator=validation.generator)
    variances, start = _most_likely(regression.subset(rows[: settings.search_rows]), spectrum)
    regression = _with_variances(regression, variances @ spectrum)
    mode, _ = regression.maximize(start)
    held_out = regression.leave_out(mode, validation)
    named = dict(zip(spectra, variances.tolist(), strict=True))
    return SmoothFit(mode, frequencies.float(), held_out, named, regression)


def processes(
    validation: CrossValidation, settings: SmoothSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return frequencies (d, M), and each process's spectrum (M,), which sums to one in a block.

    Every function of a category is linear in its columns, so that they have processes only together
    with numbers.
    """
    d, category = validation.dimension, validation.data.category
    numbers = set(range(d) if category is None else np.flatnonzero(category < 0).tolist())
    most = min(settings.frequencies, max(_FEWEST, validation.size // _ROWS_EACH)) * bool(numbers)
    blocks: list[tuple[Tensor, dict[str, Tensor]]] = []

    def add(groups: Sequence[Sequence[int]], lengths: Mapping[str, Sequence[float]]) -> None:
        for columns in groups:
            shortest = math.sqrt(len(columns)) * min(min(scales) for scales in lengths.values())
            lattice = _lattice(validation.points, columns, shortest, most // len(groups))
            blocks.append((lattice, {name: _spectrum(lattice, s) for name, s in lengths.items()}))

    if most and d > 2:
        add([[j] for j in numbers], {"single features": _SINGLE})
    if most and 2 < d <= settings.most_features:
        pairs = [pair for pair in combinations(range(d), 2) if numbers & set(pair)]
        add(pairs, {"pairs of features": _PAIR})
    if most and d <= _MOST_OF_ALL:
        lengths = _ALL if d <= 2 else _ALL[1:]
        add([range(d)], {f"length scale {length}": [length] for length in lengths})
    frequencies = torch.cat([lattice for lattice, _ in blocks], 1) if blocks else torch.empty(d, 0)
    names = dict.fromkeys(name for _, spectra in blocks for name in spectra)
    return frequencies, {
        name: torch.cat([spectra.get(name, torch.zeros(w.shape[1])) for w, spectra in blocks])
        for name in names
    }


def _lattice(points: Tensor, columns: Sequence[int], shortest: float, most: int) -> Tensor:
    """Return frequencies (d, M) of some columns, at most the lowest ``most`` ones.

    Of two opposite ones, which have the same terms, there is one, and none is zero.
    """
    those = points[:, list(columns)].double()
    step = 2.0 * math.pi / (those.amax(0) - those.amin(0) + _MARGIN)
    highest = _HIGHEST / shortest
    # An outlier makes a fine lattice, of which only the lowest part is used.
    farthest = 2 * math.ceil(most ** (1.0 / len(step)))
    reach = [max(1, min(int(highest / s), farthest)) for s in step.tolist()]
    every = torch.cartesian_prod(*(torch.arange(-r, r + 1) for r in reach)).reshape(-1, len(reach))
    half = every[len(every) // 2 + 1 :] * step
    lowest = half[half.norm(dim=1).argsort(stable=True)[: max(most, 1)]]
    lowest = lowest[lowest.norm(dim=1) <= highest]
    lattice = torch.zeros(points.shape[1], len(lowest), dtype=torch.float64)
    lattice[list(columns)] = lowest.T
    return lattice


def _spectrum(lattice: Tensor, lengths: Sequence[float]) -> Tensor:
    """Return the mean spectrum (M,) of squared exponential kernels, each summing to one."""
    k = int((lattice != 0).any(1).sum())
    scales = math.sqrt(k) * torch.tensor(lengths, dtype=torch.float64)[:, None]
    return torch.softmax(-0.5 * (scales * lattice.norm(dim=0)).square(), 1).mean(0)


def _regression(quadratic: QuadraticFit, frequencies: Tensor, ridges: Ridges) -> Regression:
    """Return that of the quadratic form and of processes of variance one."""
    plain = quadratic.regression(ridges)
    points = quadratic.validation.sides(quadratic.validation.rows).double()
    winners, losers = fourier_features(points, frequencies).chunk(2)
    columns = torch.cat([plain.columns, winners - losers], 1)
    identity = torch.eye(winners.shape[1], dtype=torch.float64)
    prior: Tensor = torch.block_diag(plain.prior, identity)  # type: ignore[no-untyped-call]
    return replace(plain, columns=columns, prior=prior)


def _with_variances(regression: Regression, variances: Tensor) -> Regression:
    """Return the regression with variances (2M,) of the last coefficients."""
    prior = regression.prior.clone()
    prior.diagonal()[-len(variances) :] = 1.0 / variances
    return replace(regression, prior=prior)


def _most_likely(regression: Regression, spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """Return the processes' variances (G,) that maximize the evidence (MacKay, 1992), and the mode.

    The variance of a coefficient is the sum of what the processes, of ``spectrum`` (G, 2M), give.
    """
    count = spectrum.shape[1]
    variances, mode = torch.full_like(spectrum[:, 0], _FIRST_VARIANCE), None
    for _ in range(_UPDATES):
        prior = variances @ spectrum
        mode, factor = _with_variances(regression, prior).maximize(mode, _CONVERGED)
        uncertain = torch.cholesky_inverse(factor).diagonal()[-count:]
        share = spectrum / prior.square()
        determined = (share @ (prior - uncertain)).clamp(min=1e-9)
        before, variances = variances, variances * (share @ mode[-count:].square()) / determined
        variances = variances.clamp(*_VARIANCES)
        if float((variances / before).log().abs().max()) < _SETTLED:
            break
    assert mode is not None
    return variances, mode
