"""A quadratic form plus a smooth remainder: Gaussian processes by random Fourier features.

f(t) = quadratic form + Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t), all coefficients normal a priori. The
remainder is a sum of processes: of single features, of pairs of features, and of all features with
each of several length scales (Rahimi and Recht, 2007; Duvenaud, Nickisch and Rasmussen, 2011).
The posterior mode is found by Newton's method, and each process's variance maximizes Laplace's
approximation to the evidence (Rasmussen and Williams, 2006, sections 3.4 and 5.5), so that those
which the choices do not need vanish.
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
from llm_elicit.density.stacks import FourierStack, draw_frequencies, fourier_features
from llm_elicit.density.utility.cross_validation import CrossValidation, HeldOut
from llm_elicit.density.utility.quadratic import QuadraticFit, Regression, Ridges

_UPDATES = 6
_FIRST_VARIANCE = 10.0
_CONVERGED = 0.1  # nats of the log-posterior, of modes that only variances and scores need
_SETTLED = 0.1  # of the logarithms of the variances
_VARIANCES = (1e-3, 1e4)
_ROWS_EACH, _FEWEST = 20, 16  # comparisons of each frequency of a process, and fewest frequencies
_MOST_SINGLE = 12  # frequencies of each single feature
_SINGLE = (0.5, 13.0)  # lowest and highest of them
_PAIR = (0.2, 1.0)  # shortest and longest length scale of pairs, in units of √2 features
# Length scales of all features, in units of √d, with the share of frequencies that each needs; the
# shortest is for two features.
_ISOTROPIC = {0.15: 4 / 3, 0.3: 1.0, 0.6: 2 / 3}


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
    processes = process_frequencies(validation, settings)
    if not processes:
        return None
    frequencies = torch.cat(list(processes.values()), 1)
    regression = _regression(quadratic, frequencies, ridges)
    process = torch.cat([torch.full((w.shape[1],), i) for i, w in enumerate(processes.values())])
    process = process.repeat(2)  # of each column: cosines, then sines
    rows = torch.randperm(len(quadratic.rows), generator=validation.generator)
    subset = regression.subset(rows[: settings.search_rows])
    variances, start = _most_likely(subset, process)
    regression = _with_variances(regression, process, variances)
    mode, _ = regression.maximize(start)
    held_out = _cross_validate(regression, validation, mode)
    named = dict(zip(processes, variances.tolist(), strict=True))
    return SmoothFit(mode, frequencies.float(), held_out, named, regression)


def process_frequencies(validation: CrossValidation, settings: SmoothSettings) -> dict[str, Tensor]:
    """Return the frequencies (d, M) of each process.

    Columns of categories have no process of their own, since every function of a category is
    linear in them.
    """
    d, generator, category = validation.dimension, validation.generator, validation.data.category
    most = min(settings.frequencies, max(_FEWEST, validation.size // _ROWS_EACH))
    if not most:
        return {}
    numbers = range(d) if category is None else np.flatnonzero(category < 0).tolist()
    processes = {}
    if d > 2 and len(numbers) > 0:
        radii = torch.from_numpy(np.geomspace(*_SINGLE, max(4, min(_MOST_SINGLE, most // d))))
        single = [_in_columns(radii[None], [j], d) for j in numbers]
        processes["single features"] = torch.cat(single, 1)
    if d > settings.most_features:
        return processes
    if d > 2 and len(numbers) > 1:
        pairs = list(combinations(numbers, 2))
        lengths = torch.from_numpy(np.geomspace(*_PAIR, max(2, most // len(pairs))))
        of_pairs = [_process(lengths, 2, generator) for _ in pairs]
        columns = [_in_columns(w, pair, d) for w, pair in zip(of_pairs, pairs, strict=True)]
        processes["pairs of features"] = torch.cat(columns, 1)
    for length, share in _ISOTROPIC.items():
        if d <= 2 or length > min(_ISOTROPIC):
            lengths = torch.full((round(share * most),), length)
            processes[f"length scale {length}"] = _process(lengths, d, generator)
    return processes


def _process(lengths: Tensor, d: int, generator: torch.Generator) -> Tensor:
    """Return frequencies (d, M) for length scales (M,) in units of √d features."""
    return draw_frequencies(len(lengths), d, generator) / (math.sqrt(d) * lengths)


def _in_columns(frequencies: Tensor, columns: Sequence[int], d: int) -> Tensor:
    """Return frequencies (k, M) of k columns as those (d, M) of all."""
    placed = torch.zeros(d, frequencies.shape[1], dtype=torch.float64)
    placed[list(columns)] = frequencies
    return placed


def _regression(quadratic: QuadraticFit, frequencies: Tensor, ridges: Ridges) -> Regression:
    """Return that of the quadratic form and of processes of variance one."""
    plain = quadratic.regression(ridges)
    points = quadratic.validation.sides(quadratic.validation.rows).double()
    winners, losers = fourier_features(points, frequencies).chunk(2)
    columns = torch.cat([plain.columns, winners - losers], 1)
    identity = torch.eye(winners.shape[1], dtype=torch.float64)
    prior: Tensor = torch.block_diag(plain.prior, identity)  # type: ignore[no-untyped-call]
    return replace(plain, columns=columns, prior=prior)


def _with_variances(regression: Regression, process: Tensor, variances: Tensor) -> Regression:
    """Return the regression with variances (G,) of the ``process`` (2M,) of each last column."""
    prior = regression.prior.clone()
    prior.diagonal()[-len(process) :] = 1.0 / variances[process]
    return replace(regression, prior=prior)


def _most_likely(regression: Regression, process: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variances (G,) that maximize the evidence (MacKay, 1992), and the mode."""
    counts = process.bincount().double()
    variances, mode = torch.full_like(counts, _FIRST_VARIANCE), None
    for _ in range(_UPDATES):
        mode, factor = _with_variances(regression, process, variances).maximize(mode, _CONVERGED)
        uncertain = torch.cholesky_inverse(factor).diagonal()[-len(process) :]
        trace = torch.zeros_like(counts).index_add(0, process, uncertain)
        size = torch.zeros_like(counts).index_add(0, process, mode[-len(process) :].square())
        determined = (counts - trace / variances).clamp(min=1e-9)
        before, variances = variances, (size / determined).clamp(*_VARIANCES)
        if float((variances / before).log().abs().max()) < _SETTLED:
            break
    assert mode is not None
    return variances, mode


def _cross_validate(regression: Regression, validation: CrossValidation, mode: Tensor) -> HeldOut:
    fold_of = validation.fold_of[validation.rows]
    difference = torch.empty(len(fold_of), dtype=torch.float64)
    spread = torch.empty_like(difference)
    for fold in range(validation.count):
        unseen = fold_of == fold
        at, factor = regression.without(unseen).maximize(mode, _CONVERGED)
        columns = regression.columns[unseen]
        difference[unseen] = columns @ at
        spread[unseen] = torch.linalg.solve_triangular(factor, columns.T, upper=False).norm(dim=0)
    return HeldOut(difference.numpy(), spread.numpy())
