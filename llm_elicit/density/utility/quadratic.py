"""Utilities that are linear in their coefficients: penalized maximum likelihood.

`Regression` is the posterior of such coefficients given choices. The quadratic form is a Gaussian
belief on the feature scale.

*Smooth remainder.* f(t) = quadratic form + Σ_m a_m cos(ω_m·t) + b_m sin(ω_m·t), all coefficients
normal a priori. The remainder is a sum of processes: of single features, of pairs of features, of
all features with a long length scale, and, of at most three, of all features with each of several
shorter ones (Duvenaud, Nickisch and Rasmussen, 2011). A process has a lattice of frequencies: it is
periodic, with a period beyond the range of the features, and the variances of its terms are its
spectral density (Hensman, Durrande and Solin, 2018). With a few dozen random frequencies instead,
the belief depended on which ones were drawn. The long process is nearly a polynomial of fourth
degree, as bent and skewed ridges are; with a period not much longer than the range it would be
nearly equal at opposite ends. The posterior mode is found by Newton's method, and each process's
variance maximizes Laplace's approximation to the evidence (Rasmussen and Williams, 2006, sections
3.4 and 5.5), so that those which the choices do not need vanish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density.errors import Array, Flags, Index
from llm_elicit.density.likelihood import Response
from llm_elicit.density.settings import SmoothSettings
from llm_elicit.density.utility.cross_validation import CrossValidation, HeldOutPredictions
from llm_elicit.density.utility_function import FourierStack, Utility, fourier_features

_ISOTROPIC_PRECISION = 1e-4
_MAX_RIDGE_UPDATES = 12
_RIDGE_TOLERANCE = 0.05  # of the logarithms of the ridges
_MIN_RIDGE = 1e-6
_MIN_DETERMINED = 1e-6
_SD_SCALE = 10.0  # scale of the prior of a kind's standard deviation, nats
_RIDGE_FACTORS = tuple(10.0 ** (half / 2) for half in range(-6, 7))  # whole decades are too coarse
_MAX_STEPS, _MAX_HALVINGS = 50, 12  # of Newton's method
_TOLERANCE = 1e-3  # nats of the log-posterior
_ROUGH_TOLERANCE = 0.1  # nats, for modes that serve only predictions or estimates of variances
_NEGLIGIBLE = 1e-6  # information of choices that are left out of the precision


@dataclass(frozen=True)
class QuadraticTerms:
    """Linear terms of p columns, and products of the columns ``first`` (m,) and ``second`` (m,).

    Examples:
        >>> terms = QuadraticTerms.of(np.array([-1, 2, 2]))     # a number, and three categories
        >>> terms.columns(np.array([[3.0, 1.0, 5.0]])).tolist()
        [[3.0, 1.0, 5.0, 9.0, 3.0, 15.0]]
    """

    dimension: int
    first: Index
    second: Index

    @classmethod
    def of(cls, category: Index) -> QuadraticTerms:
        """Return all products but those within one feature's categories.

        Any function of a category is linear in the corners of its simplex, so that such products
        add nothing, and K categories would have K(K − 1)/2 of them.

        Args:
            category: (p,) the categorical feature that each column belongs to; −1 of others.
        """
        i, j = np.triu_indices(len(category))
        distinct = (category[i] != category[j]) | (category[i] < 0)
        return cls(len(category), i[distinct], j[distinct])

    def __len__(self) -> int:
        return self.dimension + len(self.first)

    @property
    def squares(self) -> Flags:
        """Which of the products (m,) are squares."""
        return np.asarray(self.first == self.second)

    @property
    def projections(self) -> tuple[Tensor, ...]:
        """On linear terms, shared curvature, its differences and cross terms: (P, P) each."""
        d, square = self.dimension, torch.from_numpy(self.squares)
        linear = torch.cat([torch.ones(d), torch.zeros(len(square))]).double()
        squares = torch.cat([torch.zeros(d), square]).double()
        crossed = torch.cat([torch.zeros(d), ~square]).double()
        common = torch.outer(squares, squares) / max(float(squares.sum()), 1.0)
        return torch.diag(linear), common, torch.diag(squares) - common, torch.diag(crossed)

    def columns(self, t: Array) -> Array:
        """Return [t_i, t_i t_j] (n, P) at columns (n, p)."""
        return np.concatenate([t, t[:, self.first] * t[:, self.second]], axis=1)

    def products(self, direction: Tensor) -> Tensor:
        """Return the coefficients (P, p) of (u·t) t_i, at u (p,)."""
        p, index = self.dimension, np.arange(len(self.first))
        products = torch.zeros(len(self), p, dtype=torch.float64)
        products[p + index, self.first] += direction[self.second]
        products[p + index, self.second] += direction[self.first] * torch.from_numpy(~self.squares)
        return products

    def linear_and_curvature(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return linear terms (S, p) and symmetric curvatures (S, p, p) of coefficients (S, P)."""
        d = self.dimension
        curvature = torch.zeros(len(beta), d, d)
        curvature[:, self.first, self.second] = beta[:, d:].float()
        return beta[:, :d].float(), 0.5 * (curvature + curvature.mT)

    def utility(self, beta: Array) -> Utility:
        """Return the form of coefficients (P,)."""
        linear, curvature = self.linear_and_curvature(torch.from_numpy(beta)[None])
        return Utility(linear[0], curvature[0])


@dataclass(frozen=True)
class Regression:
    """The posterior of coefficients β (P,) given choices with utility differences Xβ.

    Attributes:
        columns: X (m, P), features of the winners less those of the losers, float64.
        weights: (m,).
        prior: precision (P, P) of the normal prior of β, whose mean is 0.
    """

    columns: Tensor
    weights: Tensor
    response: Response
    prior: Tensor

    def subset(self, rows: Tensor) -> Regression:
        """Return the regression on these rows."""
        columns, weights = self.columns[rows], self.weights[rows]
        return Regression(columns, weights, self.response.select(rows), self.prior)

    def with_zero_weight(self, rows: Tensor) -> Regression:
        """Return the regression with weight zero for the rows (m,) that are True."""
        return replace(self, weights=self.weights * ~rows)

    def precision(self, at: Tensor) -> Tensor:
        """Return Laplace's posterior precision (P, P): Fisher information and prior."""
        mass = self.response.information(self.columns @ at) * self.weights
        uncertain = mass > _NEGLIGIBLE
        columns = self.columns[uncertain]
        return columns.T @ (columns * mass[uncertain, None]) + self.prior

    def values(self, beta: Tensor) -> Tensor:
        """Return the log-posterior (...) of coefficients (..., P), up to a constant."""
        fit = self.response.log_cdf(beta @ self.columns.T) @ self.weights
        return fit - 0.5 * ((beta @ self.prior) * beta).sum(-1)

    def gradients(self, beta: Tensor) -> Tensor:
        """Return the gradient (..., P) of `values`, in half the time of differentiation."""
        mass = self.response.slope(beta @ self.columns.T) * self.weights
        return mass @ self.columns - beta @ self.prior

    def value(self, at: Tensor) -> float:
        """Return the log-posterior of one vector, up to a constant."""
        return float(self.values(at))

    def maximize(
        self,
        start: Tensor | None = None,
        tolerance: float = _TOLERANCE,
        fixed_factor: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the posterior mode (P,) and the Cholesky factor of its precision (P, P).

        Newton's method stops after a step that gains less than ``tolerance``, nats. With a
        ``fixed_factor`` of the precision near the mode all steps are by it.
        """
        at = torch.zeros(len(self.prior), dtype=torch.float64) if start is None else start
        value = self.value(at)
        for _ in range(_MAX_STEPS):
            root = (
                torch.linalg.cholesky(self.precision(at)) if fixed_factor is None else fixed_factor
            )
            step = torch.cholesky_solve(self.gradients(at)[:, None], root)[:, 0]
            gain = 0.0
            for halving in range(_MAX_HALVINGS):
                candidate = at + 0.5**halving * step
                gain = self.value(candidate) - value
                if gain > 0.0:
                    at, value = candidate, value + gain
                    break
            if gain < tolerance:
                break
        return at, root

    def predict_left_out(self, mode: Tensor, validation: CrossValidation) -> HeldOutPredictions:
        """Return predictions of the validation rows, which are those of X, without their folds.

        Each fold's precision is that at ``mode``, the mode given all rows.
        """
        precision = self.precision(mode)
        difference, sd = torch.empty(2, len(validation.rows), dtype=torch.float64)
        for fold in range(validation.folds):
            test = validation.row_folds == fold
            training_precision = precision - self.subset(test).precision(mode) + self.prior
            factor, columns = torch.linalg.cholesky(training_precision), self.columns[test]
            difference[test] = (
                columns @ self.with_zero_weight(test).maximize(mode, _ROUGH_TOLERANCE, factor)[0]
            )
            solved = torch.linalg.solve_triangular(factor, columns.T, upper=False)
            sd[test] = solved.norm(dim=0)
        return HeldOutPredictions(difference.numpy(), sd.numpy())


class Ridges(NamedTuple):
    """Prior precisions of linear terms, of the curvatures' differences, and of cross terms.

    Each kind has its own: under a single ridge, the many cross terms of independent features, all
    near zero, would also shrink the linear terms, and so the belief's centre.
    """

    linear: float
    apart: float
    crossed: float

    def times(self, factor: float) -> Ridges:
        """Return all precisions times one factor."""
        return Ridges(*(factor * ridge for ridge in self))


@dataclass(frozen=True)
class RidgeFit:
    """The coefficients (P,) under ridges, and log-densities up to a constant.

    ``evidence`` is that of the choices, ``prior`` that of the logarithms of the ridges.
    """

    ridges: Ridges
    coefficients: Array
    evidence: float
    prior: float

    @property
    def posterior(self) -> float:
        """The log-density of the ridges given the choices."""
        return self.evidence + self.prior


class QuadraticFit:
    """The choice likelihood of a utility that is linear in [t_i, t_i t_j], with ridges.

    The prior is centred at an isotropic belief: the mean curvature of the features is hardly
    penalized, so that the choices determine the belief's width, and `Ridges` penalize the
    rest. (With a penalty on it, a belief fitted to few choices can be improper.) A priori, cross
    terms have correlation ½: each is the sum of a common and an own term of equal variance. Only
    the validation rows are used.
    """

    def __init__(self, validation: CrossValidation) -> None:
        self.validation, data, rows = validation, validation.data, validation.rows.numpy()
        self.terms = QuadraticTerms.of(data.categories)
        winners, losers = (self.terms.columns(side[rows]) for side in (data.winners, data.losers))
        self.design = winners - losers
        linear, _, _, crossed = (projection.numpy() for projection in self.terms.projections)
        is_linear, is_cross = linear.diagonal(), crossed.diagonal()
        is_square = 1.0 - is_linear - is_cross
        square_count, cross_count = int(is_square.sum()), int(is_cross.sum())
        shared_direction = is_square / np.sqrt(max(square_count, 1))
        self.shared_curvature = np.outer(shared_direction, shared_direction)
        # Prior precisions (P, P) under ridges of one, and their ranks, in the order of `Ridges`.
        self.precisions = (
            linear,
            np.diag(is_square) - self.shared_curvature,
            crossed - np.outer(is_cross, is_cross) / (cross_count + 1),
        )
        self.ranks = (self.terms.dimension, max(square_count - 1, 0), cross_count)

    def regression(self, ridges: Ridges) -> Regression:
        """Return the posterior of the coefficients under ridges."""
        design, weights = (
            torch.from_numpy(values) for values in (self.design, self.validation.row_weights)
        )
        prior = torch.from_numpy(self.prior(ridges))
        return Regression(design, weights, self.validation.row_response, prior)

    def fit_multiples(self, factors: Sequence[float] = _RIDGE_FACTORS) -> list[RidgeFit]:
        """Return the fit under each multiple of the estimated ridges, the likeliest first.

        Evidence is the likelihood of the choices with β integrated out, by Laplace's approximation
        (MacKay, 1992). Held-out likelihood would select ridges that are too large, because a mode
        that is too flat predicts best.
        """
        ridges, fits = self.estimate_ridges(), list[RidgeFit]()
        for factor in sorted(factors, reverse=True):
            fits.append(self.fit(ridges.times(factor), fits[-1] if fits else None))
        return sorted(fits, key=lambda fit: -fit.posterior)

    def fit(self, ridges: Ridges, start: RidgeFit | None = None) -> RidgeFit:
        """Return the posterior mode under ridges; ``start`` is a fit that it starts from."""
        regression = self.regression(ridges)
        beta, root = regression.maximize(
            None if start is None else torch.tensor(start.coefficients)
        )
        prior_term = 0.5 * np.linalg.slogdet(regression.prior.numpy())[1]
        evidence = regression.value(beta) + prior_term - float(root.diagonal().log().sum())
        penalties = np.array(ridges)[np.array(self.ranks) > 0]
        prior = -(0.5 * np.log(penalties) + np.log1p(1.0 / (penalties * _SD_SCALE**2))).sum()
        return RidgeFit(ridges, beta.numpy(), float(evidence), float(prior))

    def estimate_ridges(self) -> Ridges:
        """Return the ridges that maximize evidence times prior, by iterating `update_ridge`."""
        ridges, beta = Ridges(1.0, 1.0, 1.0), None
        for _ in range(_MAX_RIDGE_UPDATES):
            beta, root = self.regression(ridges).maximize(beta)
            covariance, mode, previous = torch.cholesky_inverse(root).numpy(), beta.numpy(), ridges
            traces = [float((covariance * precision).sum()) for precision in self.precisions]
            norms = [float(mode @ precision @ mode) for precision in self.precisions]
            ridges = Ridges(*map(update_ridge, ridges, self.ranks, traces, norms))
            if np.allclose(np.log(previous), np.log(ridges), atol=_RIDGE_TOLERANCE):
                break
        return ridges

    def cross_validate(self, ridges: Ridges) -> HeldOutPredictions:
        """Return predictions of the validation rows by fits without their fold.

        The standard deviation is set to 0: Laplace's is far too large where choices hardly bound
        the scale.
        """
        regression = self.regression(ridges)
        predictions = regression.predict_left_out(regression.maximize()[0], self.validation)
        return replace(predictions, sd=np.zeros(len(predictions.sd)))

    def prior(self, ridges: Ridges) -> Array:
        """Return R (P, P), the prior precision of the coefficients."""
        penalized = sum(ridge * k for ridge, k in zip(ridges, self.precisions, strict=True))
        return np.asarray(penalized + _ISOTROPIC_PRECISION * self.shared_curvature)


def update_ridge(ridge: float, rank: int, trace: float, squared_norm: float) -> float:
    """Return the next ridge of coefficients that share one (MacKay, 1992).

    The present one stays if there are no such terms, or the choices determine none. Without the
    prior it is γ / βᵀKβ, with γ the effective number of coefficients that the choices determine.
    Evidence is flat beyond some ridge where they are near 0, so that it may have no maximum. The
    standard deviation, the root of one over the ridge, therefore has a half-Cauchy prior
    (Gelman, 2006), under which none is so small that the choices could not tell.

    Args:
        ridge: the present value.
        rank, trace, squared_norm: the rank of K, tr ΣK with Σ the posterior covariance, and βᵀKβ
            at the mode.

    Examples:
        >>> ridge = 1.0                 # of three coefficients at 0 that choices measure to 1 ± 0.1
        >>> for _ in range(50):
        ...     ridge = update_ridge(ridge, 3, 3 / (100 + ridge), 0.0)
        >>> 100 < ridge < 300
        True
    """
    determined_count = rank - ridge * trace
    if determined_count < _MIN_DETERMINED:
        return ridge
    maximum = (determined_count + 1.0) / (squared_norm + 2.0 / (ridge + _SD_SCALE**-2))
    return max(maximum, _MIN_RIDGE)


_MAX_VARIANCE_UPDATES = 20
_START_VARIANCE = 10.0
_VARIANCE_TOLERANCE = 0.03  # of the logarithms of the variances
_VARIANCE_BOUNDS = (1e-3, 1e4)
_PERIOD_MARGIN = 1.0  # of a period beyond the range of the features
_MAX_FREQUENCY = 2.5  # frequency over that of the shortest length scale
_LONG_MARGIN, _LONG_MAX_FREQUENCY = 2.5, 4.0  # the same of the long process, by its length scale
_ROWS_PER_FREQUENCY = 10  # comparisons that each frequency of a process needs
_MIN_FREQUENCIES = 16
# Length scales in units of √k for processes of k features: several in one process, or one in each.
_SINGLE_LENGTHS = tuple(np.geomspace(0.15, 2.0, 8).tolist())
_PAIR_LENGTHS = tuple(np.geomspace(0.2, 1.0, 8).tolist())
_JOINT_LENGTHS = (0.15, 0.3, 0.6)  # the shortest is for two features
_LONG_LENGTH = 1.0
_MAX_JOINT_FEATURES = 3


@dataclass(frozen=True)
class SmoothFit:
    """The posterior mode of all coefficients (P + 2M,), and how well it predicts.

    ``held_out`` is as in `MixtureFit`; ``variances`` are those of the processes by their names.
    """

    mode: Tensor
    frequencies: Tensor
    held_out: HeldOutPredictions
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
    frequencies, spectra = process_spectra(validation, settings)
    if not spectra:
        return None
    quadratic_regression = quadratic.regression(ridges)
    points = validation.winners_and_losers(validation.rows).double()
    winners, losers = fourier_features(points, frequencies).chunk(2)
    columns = torch.cat([quadratic_regression.columns, winners - losers], 1)
    identity = torch.eye(winners.shape[1], dtype=torch.float64)
    prior: Tensor = torch.block_diag(quadratic_regression.prior, identity)  # type: ignore[no-untyped-call]
    regression = replace(quadratic_regression, columns=columns, prior=prior)
    # The features are divided by the root of their number; cosines, then sines.
    spectrum = frequencies.shape[1] * torch.stack(list(spectra.values())).repeat(1, 2)
    rows = torch.randperm(len(validation.rows), generator=validation.generator)
    search_regression = regression.subset(rows[: settings.search_rows])
    variances, start = _estimate_variances(search_regression, spectrum)
    regression = _with_variances(regression, variances @ spectrum)
    mode, _ = regression.maximize(start)
    held_out = regression.predict_left_out(mode, validation)
    named_variances = dict(zip(spectra, variances.tolist(), strict=True))
    return SmoothFit(mode, frequencies.float(), held_out, named_variances, regression)


def process_spectra(
    validation: CrossValidation, settings: SmoothSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return frequencies (d, M), and each process's spectrum (M,), which sums to one in a block.

    Every function of a category is linear in its columns, so that they have processes only together
    with numbers.
    """
    d, numbers = validation.dimension, set(validation.data.numbers)
    if not (numbers and settings.frequencies):
        return torch.empty(d, 0), {}
    max_count = max(_MIN_FREQUENCIES, validation.size // _ROWS_PER_FREQUENCY)
    max_count = min(settings.frequencies, max_count)
    # Groups of columns with the lengths of their processes, the margin of their period, and their
    # reach: the largest frequency over that of the shortest length.
    short = _PERIOD_MARGIN, _MAX_FREQUENCY
    kinds: list[tuple[Sequence[Sequence[int]], Mapping[str, Sequence[float]], float, float]] = []
    if d > 2:
        kinds.append(([[j] for j in numbers], {"single features": _SINGLE_LENGTHS}, *short))
    if 2 < d <= settings.max_features:
        pairs = [pair for pair in combinations(range(d), 2) if numbers & set(pair)]
        kinds.append((pairs, {"pairs of features": _PAIR_LENGTHS}, *short))
    if d <= _MAX_JOINT_FEATURES:
        lengths = _JOINT_LENGTHS if d <= 2 else _JOINT_LENGTHS[1:]
        joint = {f"length scale {length}": [length] for length in lengths}
        kinds.append(([range(d)], joint, *short))
    if 1 < d <= settings.max_features:
        margin = _LONG_MARGIN * _LONG_LENGTH * math.sqrt(d)
        long = {f"length scale {_LONG_LENGTH}": [_LONG_LENGTH]}
        kinds.append(([range(d)], long, margin, _LONG_MAX_FREQUENCY))
    blocks: list[tuple[Tensor, dict[str, Tensor]]] = []
    for groups, scales_of, margin, reach in kinds:
        shortest = min(map(min, scales_of.values()))
        for columns in groups:
            max_frequency = reach / (math.sqrt(len(columns)) * shortest)
            count = max_count // len(groups)
            lattice = frequency_lattice(validation.points, columns, count, max_frequency, margin)
            unit, spectra = math.sqrt(int((lattice != 0).any(1).sum())), dict[str, Tensor]()
            for name, scales in scales_of.items():
                # The mean of the spectra of squared exponential kernels, each summing to one.
                column = unit * torch.tensor(scales, dtype=torch.float64)[:, None]
                logs = -0.5 * (column * lattice.norm(dim=0)).square()
                spectra[name] = torch.softmax(logs, 1).mean(0)
            blocks.append((lattice, spectra))
    frequencies = torch.cat([lattice for lattice, _ in blocks], 1)
    names = dict.fromkeys(name for _, spectra in blocks for name in spectra)
    return frequencies, {
        name: torch.cat([spectra.get(name, torch.zeros(w.shape[1])) for w, spectra in blocks])
        for name in names
    }


def frequency_lattice(
    points: Tensor, columns: Sequence[int], max_count: int, max_frequency: float, margin: float
) -> Tensor:
    """Return the lowest frequencies (d, M) of some columns: at most ``max_count``.

    Only one of two opposite frequencies is included, since they have the same terms, and none is
    zero. Their period is the range of the points (n, d) plus ``margin``.
    """
    coordinates = points[:, list(columns)].double()
    step = 2.0 * math.pi / (coordinates.amax(0) - coordinates.amin(0) + margin)
    # An outlier makes a fine lattice, of which only the lowest part is used.
    max_reach = 2 * math.ceil(max_count ** (1.0 / len(step)))
    reach = [max(1, min(int(max_frequency / s), max_reach)) for s in step.tolist()]
    grid = torch.cartesian_prod(*(torch.arange(-r, r + 1) for r in reach)).reshape(-1, len(reach))
    half_grid = grid[len(grid) // 2 + 1 :] * step
    lowest = half_grid[half_grid.norm(dim=1).argsort(stable=True)[: max(max_count, 1)]]
    lowest = lowest[lowest.norm(dim=1) <= max_frequency]
    frequencies = torch.zeros(points.shape[1], len(lowest), dtype=torch.float64)
    frequencies[list(columns)] = lowest.T
    return frequencies


def _with_variances(regression: Regression, variances: Tensor) -> Regression:
    """Return the regression with variances (2M,) of the last coefficients."""
    prior = regression.prior.clone()
    prior.diagonal()[-len(variances) :] = 1.0 / variances
    return replace(regression, prior=prior)


def _estimate_variances(regression: Regression, spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """Return the processes' variances (G,) that maximize the evidence (MacKay, 1992), and the mode.

    The variance of a coefficient is the sum of what the processes, of ``spectrum`` (G, 2M), give.
    """
    count = spectrum.shape[1]
    variances, mode = torch.full_like(spectrum[:, 0], _START_VARIANCE), None
    for _ in range(_MAX_VARIANCE_UPDATES):
        prior = variances @ spectrum
        mode, factor = _with_variances(regression, prior).maximize(mode, _ROUGH_TOLERANCE)
        posterior_variances = torch.cholesky_inverse(factor).diagonal()[-count:]
        sensitivity = spectrum / prior.square()
        determined = (sensitivity @ (prior - posterior_variances)).clamp(min=1e-9)
        previous = variances
        variances = variances * (sensitivity @ mode[-count:].square()) / determined
        variances = variances.clamp(*_VARIANCE_BOUNDS)
        if float((variances / previous).log().abs().max()) < _VARIANCE_TOLERANCE:
            break
    assert mode is not None
    return variances, mode
