"""Interval estimates and p-values that several parts of the audit share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import brentq, minimize
from scipy.special import log_ndtr, ndtri

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.density.utility.cross_validation import explained_share
from llm_elicit.spaces.features import Floats

Band = tuple[float, float]
"""The ends of a credible interval."""

# Smallest z-score at which values count as autocorrelated, and largest autocorrelation assumed.
_MIN_AUTOCORRELATION_Z, _MAX_AUTOCORRELATION = 2.0, 0.99
# Power of the test with the estimated number of pairs.
_POWER = 0.8
_MIN_EXCESS = 1e-9


class Interval(StrictModel):
    """An estimate with its interval, of 95 % unless stated otherwise."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Return the value with its ends in brackets."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def interval_columns(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return an estimate and the ends of its interval as cells of a table; None where unknown."""
    value, low, high = (getattr(interval, end, None) for end in ("value", "low", "high"))
    return {name: value, f"{name}_low": low, f"{name}_high": high}


class Worth(Interval):
    """The number of rows from which a kernel density predicts as well as a belief; 95 % interval.

    Attributes:
        least, most: the smallest and the largest number of rows tried; an estimate equal to one of
            them is only a bound.
    """

    least: int
    most: int

    def bounded(self, rows: float) -> str:
        """Return a number of rows as text: a bound if it is the smallest or largest one tried."""
        if rows >= self.most:
            return f"≥ {self.most:,}"
        return f"< {self.least}" if rows <= self.least else f"{rows:,.0f}"

    def text(self, digits: int = 0) -> str:  # noqa: ARG002 - rows are whole
        """Return the number with its interval.

        Examples:
            >>> Worth(value=20.2, low=2.0, high=500.0, least=2, most=500).text()
            '20 [< 2, ≥ 500]'
        """
        value, low, high = map(self.bounded, (self.value, self.low, self.high))
        return value if low == high else f"{value} [{low}, {high}]"


def wilson_interval(share: float, n: float) -> Interval:
    """Return Wilson's (1927) 95 % score interval of a share out of `n`.

    Examples:
        >>> interval = wilson_interval(0.5, 100)
        >>> round(interval.low, 3), round(interval.high, 3)
        (0.404, 0.596)
    """
    z = float(stats.norm.ppf(0.975))
    scale = 1.0 + z**2 / n
    centre = (share + z**2 / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / scale
    # The ends are the roots of a quadratic, here by their products, which are exact at 0 and 1.
    low = share**2 / scale / (centre + half)
    high = 1.0 - (1.0 - share) ** 2 / scale / (1.0 - centre + half)
    return Interval(value=share, low=low, high=high)


def share_interval(values: npt.NDArray[Any]) -> Interval | None:
    """Return the mean of shares `(n,)` with Wilson's interval; None without any."""
    return wilson_interval(float(values.mean()), len(values)) if len(values) else None


def t_interval(values: Floats, inflation: float = 1.0) -> Interval:
    """Return the mean of at least two values `(n,)` with Student's 95 % interval.

    `inflation` multiplies the standard error; it is above 1 if the values are autocorrelated.
    """
    mean, error, freedom = _mean_and_error(values, inflation)
    half = float(stats.t.ppf(0.975, freedom)) * error
    return Interval(value=mean, low=mean - half, high=mean + half)


def t_test(values: Floats, inflation: float = 1.0) -> float:
    """Return the p-value of the mean being 0, from at least two values `(n,)`; see `t_interval`."""
    mean, error, freedom = _mean_and_error(values, inflation)
    return float(2.0 * stats.t.sf(abs(mean) / error, freedom))


def _mean_and_error(values: Floats, inflation: float) -> tuple[float, float, float]:
    """Return the mean, its standard error and degrees of freedom."""
    error = inflation * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()), error, max(len(values) / inflation**2 - 1.0, 1.0)


def estimate_inflation(values: Floats) -> float:
    """Return the factor by which autocorrelation of values `(n,)` inflates their mean's error.

    It is 1 unless the autocorrelation of successive values is significant. The values are taken as
    a first-order autoregression, whose coefficient is corrected for its bias (Kendall 1954).
    """
    centred, n = values - values.mean(), len(values)
    total = float(centred @ centred)
    coefficient = float(centred[1:] @ centred[:-1]) / total if total > 0.0 else 0.0
    if coefficient * math.sqrt(n) <= _MIN_AUTOCORRELATION_Z:
        return 1.0
    coefficient = min(coefficient + (1.0 + 4.0 * coefficient) / n, _MAX_AUTOCORRELATION)
    return math.sqrt((1.0 + coefficient) / (1.0 - coefficient))


def percentile_interval(value: float, draws: Floats | Sequence[float]) -> Interval:
    """Return an estimate with the central 95 % of its bootstrap draws `(B,)`, without NaN."""
    low, high = np.nanquantile(draws, [0.025, 0.975]).tolist()
    return Interval(value=value, low=low, high=high)


def normal_interval(mean: float, se: float) -> Interval:
    """Return a mean with its normal 95 % interval."""
    half = 1.96 * se
    return Interval(value=mean, low=mean - half, high=mean + half)


def fisher_interval(r: float, n: int) -> Interval:
    """Return a correlation within (−1, 1) of n > 3 points with Fisher's (1921) 95 % interval."""
    half = float(stats.norm.ppf(0.975)) / math.sqrt(n - 3)
    low, high = (math.tanh(math.atanh(r) + end) for end in (-half, half))
    return Interval(value=r, low=low, high=high)


def estimate_explained_share(unexplained: Floats, squares: Floats) -> Interval:
    """Return 1 − Σ unexplained / Σ squares `(n,)`, with a 95 % interval over pairs.

    See `explained_share`.
    """
    value, low, high = explained_share(unexplained, squares)
    return Interval(value=value, low=low, high=high)


def posterior_interval(draws: Floats, level: float) -> Interval:
    """Return the median of draws `(S,)` with their central interval of this level."""
    low, high = credible_band(draws, level)
    return Interval(value=float(np.median(draws)), low=low, high=high)


def credible_band(draws: Floats, level: float = 0.9) -> Band:
    """Return the ends of the central interval of draws `(S,)`."""
    low, high = density.band(draws, level)
    return float(low), float(high)


class AdjustedTest(StrictModel):
    """A test that is one of several.

    Attributes:
        p_value: the p-value of this test alone.
        p_holm: the p-value Holm-adjusted over all tests of the family.
        p_is_bound: whether the p-value is only an upper bound: the smallest that this number of
            randomizations can give.
    """

    p_value: float
    p_holm: float = 1.0
    p_is_bound: bool = False

    @classmethod
    def unadjusted(cls, p_value: float, smallest: float, **fields: Any) -> Self:
        """Return a test that is not adjusted yet.

        Args:
            p_value: the p-value.
            smallest: the smallest p-value that this number of randomizations can give.
            fields: the other fields.

        Examples:
            >>> AdjustedTest.unadjusted(0.001, 0.001).p_is_bound
            True
        """
        is_bound = p_value <= smallest * (1.0 + 1e-12)
        return cls(p_value=p_value, p_holm=p_value, p_is_bound=is_bound, **fields)

    @property
    def p_text(self) -> str:
        """The adjusted p-value as text."""
        return format_p_value(self.p_holm, self.p_is_bound)


AnyTest = TypeVar("AnyTest", bound=AdjustedTest)
AnyModel = TypeVar("AnyModel", bound=StrictModel)


def adjust_tests(
    tests: Sequence[AnyTest | None], in_family: Sequence[bool] | None = None
) -> list[AnyTest | None]:
    """Return the tests with Holm-adjusted p-values; a test that is None counts as p = 1."""
    p_values = holm_adjust(
        np.array([1.0 if test is None else test.p_value for test in tests]), in_family
    )
    return [
        None if test is None else test.model_copy(update={"p_holm": p})
        for test, p in zip(tests, p_values.tolist(), strict=True)
    ]


def adjust_fields(
    models: Sequence[AnyModel | None], names: Sequence[str], in_family: Sequence[bool]
) -> list[AnyModel | None]:
    """Return models whose tests in these fields have p-values adjusted over the family."""
    tests = [
        adjust_tests([getattr(model, name, None) for model in models], in_family) for name in names
    ]
    updates = (dict(zip(names, of_model, strict=True)) for of_model in zip(*tests, strict=True))
    return [
        None if model is None else model.model_copy(update=update)
        for model, update in zip(models, updates, strict=True)
    ]


def holm_adjust(p_values: Floats, in_family: Sequence[bool] | None = None) -> Floats:
    """Return p-values `(m,)` adjusted for multiple testing by Holm's (1979) step-down method.

    p-values outside the family are neither adjusted nor counted; by default all are in it.

    Examples:
        >>> holm_adjust(np.array([0.01, 0.04, 0.03])).tolist()
        [0.03, 0.06, 0.06]
        >>> holm_adjust(np.array([0.01, 0.04, 0.03]), [True, False, True]).tolist()
        [0.02, 0.04, 0.03]
    """
    if in_family is not None:
        is_member = np.array(in_family, dtype=bool)
        p_adjusted = p_values.copy()
        p_adjusted[is_member] = holm_adjust(p_values[is_member])
        return p_adjusted
    order = np.argsort(p_values)
    multiplied = (len(p_values) - np.arange(len(p_values))) * p_values[order]
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(multiplied), 1.0)
    return adjusted


def format_p_value(p_value: float, is_bound: bool) -> str:
    """Return a p-value as text; an upper bound where it is the smallest a simulation can give.

    Examples:
        >>> format_p_value(0.0005, True), format_p_value(0.0312, False), format_p_value(1e-9, False)
        ('p ≤ 0.0005', 'p = 0.031', 'p < 0.0001')
        >>> format_p_value(0.0496, False)  # not rounded to the level that it is below
        'p = 0.0496'
    """
    if p_value < 1e-4:
        return "p < 0.0001"
    digits = 3 if f"{p_value:.2g}" in ("0.05", "0.01") else 2
    return f"p {'≤' if is_bound else '='} {p_value:.{digits}g}"


def is_outside_band(band: Band | None, data: Interval | None) -> bool | None:
    """Return whether the data's value lies outside a belief's band; None if one is missing."""
    return None if band is None or data is None else not band[0] <= data.value <= band[1]


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON: None instead of infinity or not-a-number."""
    return float(value) if math.isfinite(value) else None


class SampleSize(StrictModel):
    """The number of pairs needed to detect a preference that the test did not detect.

    Attributes:
        excess: the leave-one-out gain minus its expectation under the null hypothesis.
        se: standard deviation of the gain under the null hypothesis.
        pairs: number of pairs with which the test finds a dependence of this size with a power of
            80 %; None if the excess is within its standard error, so that it cannot be estimated.
    """

    excess: float
    se: float
    pairs: int | None


def estimate_sample_size(
    loo_r2: float, null: Floats, pairs: int, level: float = 0.05
) -> SampleSize:
    """Return how many pairs the test needs to detect a dependence as strong as the measured one.

    With N pairs the gain is about normal around excess + μ n/N with variance
    σ² (n/N)² + 4 excess/N, and the test's critical value is q n/N: μ, σ and q are mean, standard
    deviation and 1 − `level` quantile of the gain under the null hypothesis with n pairs, and
    4 excess/N is the variance of a squared correlation. The columns of the prediction are assumed
    to stay the same.

    Args:
        loo_r2: leave-one-out R² of n answered pairs.
        null: this R² after random exchanges of winners and losers, `(flips,)`.
        pairs: the number n of answered pairs.
        level: significance level of the test.

    Examples:
        >>> null = (np.random.default_rng(0).chisquare(1, 2000) - 1) / 100
        >>> estimate_sample_size(0.03, null, 100).pairs
        241
        >>> estimate_sample_size(0.005, null, 100).pairs is None
        True
    """
    mean, se = float(null.mean()), float(null.std())
    excess, critical = loo_r2 - mean, float(np.quantile(null, 1.0 - level)) - mean
    if excess <= max(se, _MIN_EXCESS):
        return SampleSize(excess=excess, se=se, pairs=None)
    quantile = float(stats.norm.ppf(_POWER))

    def margin(share: float) -> float:
        """Return the distance from the critical value at n/N = share, with a power of 80 %."""
        scatter = math.sqrt((se * share) ** 2 + 4.0 * excess * share / pairs)
        return excess - critical * share - quantile * scatter

    share = 1.0 if margin(1.0) >= 0 else float(brentq(margin, 0.0, 1.0))
    return SampleSize(excess=excess, se=se, pairs=math.ceil(pairs / share))


Outcomes = Mapping[int, Sequence[float]]
"""Outcomes of simulations by sample size; those above 0 are successes."""


def _kernel(sizes: Floats, near: float) -> Floats:
    """Return normal weights `(k,)` in log₂ size around `near`, whose sd is half an octave."""
    return np.asarray(np.exp(-2.0 * np.square(np.log2(sizes / near))))


def size_by_probit(outcomes: Outcomes, target: float, near: float) -> Interval:
    """Return the sample size at which a test has the power `target`, by a probit regression on √n.

    A test whose statistic is about χ² with p degrees of freedom and noncentrality θn has a power of
    about Φ(√(θn + p) − c), which bends upwards in log n, and hardly in √n. Sizes of half and twice
    `near`, a first guess, have an eighth of its weight, so that the remaining bend matters little.

    Examples:
        >>> outcomes = {n: [1.0] * share + [0.0] * (100 - share)
        ...             for n, share in [(25, 31), (50, 50), (100, 69), (200, 84)]}
        >>> size = size_by_probit(outcomes, 0.69, 100.0)
        >>> 90 < size.value < 110 and size.low < size.value < size.high
        True
    """
    sizes = np.array(sorted(outcomes), dtype=np.float64)
    total = np.array([len(outcomes[int(n)]) for n in sizes])
    successes = np.array([np.sum(np.array(outcomes[int(n)]) > 0.0) for n in sizes])
    count, share = total * _kernel(sizes, near), (successes + 0.5) / (total + 1.0)
    quantile = float(ndtri(target))

    def predictor(log_size: float, slope: float) -> Floats:
        """Return the probit `(k,)` of the power by size, of this slope in log n at `log_size`."""
        return np.asarray(quantile + 2.0 * slope * (np.sqrt(sizes / math.exp(log_size)) - 1.0))

    def loss(parameters: Floats) -> float:
        eta = predictor(float(parameters[0]), math.exp(parameters[1]))
        return -float(count @ (share * log_ndtr(eta) + (1.0 - share) * log_ndtr(-eta)))

    ends = math.log(sizes[0]) - 3.0, math.log(sizes[-1]) + 3.0
    bounds = [ends, (math.log(0.3), math.log(10.0))]
    start = np.array([math.log(near), 0.3])
    solution = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    log_size, slope = float(solution[0]), math.exp(solution[1])
    eta, ratio = predictor(log_size, slope), np.sqrt(sizes / math.exp(log_size))
    information = count * np.exp(-np.square(eta) - log_ndtr(eta) - log_ndtr(-eta)) / (2.0 * math.pi)
    columns = np.column_stack([-slope * ratio, 2.0 * (ratio - 1.0)])
    covariance = np.linalg.pinv(columns.T @ (information[:, None] * columns))
    return _log_interval(log_size, math.sqrt(max(float(covariance[0, 0]), 0.0)))


def size_by_margins(outcomes: Outcomes, target: float, near: float) -> Interval:
    """Return the sample size at which the share `target` of normal outcomes is above 0.

    Sizes far from `near`, a first guess, have little weight, as in `size_by_probit`.

    Examples:
        >>> outcomes = {n: [0.5 * np.log(n / 100) + e for e in (-0.1, 0.0, 0.1)]
        ...             for n in (50, 100, 200)}
        >>> round(size_by_margins(outcomes, 0.5, 100.0).value)
        100
    """
    sizes = np.repeat(np.array(list(outcomes)), [len(values) for values in outcomes.values()])
    values = np.concatenate([np.asarray(margins) for margins in outcomes.values()])
    weights, x = _kernel(sizes.astype(np.float64), near), np.log(sizes)
    centre, mean = np.average(x, weights=weights), np.average(values, weights=weights)
    squares = float(weights @ np.square(x - centre))
    slope = max(float(weights @ ((x - centre) * values)) / max(squares, 1e-12), 0.02)
    residual = values - mean - slope * (x - centre)
    sd = math.sqrt(float(np.average(np.square(residual), weights=weights)))
    quantile, total = float(ndtri(target)), float(weights.sum())
    log_size = centre + (quantile * sd - mean) / slope
    # At the smallest slope the size is hardly known: the interval spans a factor of e^±6.
    error = sd / slope
    error *= math.sqrt(
        (1.0 + 0.5 * quantile**2) / total + (log_size - centre) ** 2 / max(squares, 1e-12)
    )
    return _log_interval(float(log_size), error * (slope > 0.02) + 3.0 * (slope <= 0.02))


def _log_interval(log_size: float, error: float) -> Interval:
    """Return a size with its 95 % interval, by the logarithm and its standard error."""
    ends = (np.clip(log_size + z * error, 0.0, 20.0) for z in (0.0, -1.96, 1.96))
    value, low, high = (math.exp(end) for end in ends)
    return Interval(value=value, low=low, high=high)


class PredictionPowered(StrictModel):
    """An estimate from few answers, and from a model's many answers as well; 90 % intervals.

    Attributes:
        own: from the few answers.
        model: the same number for the model, from all its answers.
        corrected: from both.
        weight: λ, the weight of the model's difference; 0 if its answers say nothing.
    """

    own: Interval
    model: Interval
    corrected: Interval
    weight: float

    @property
    def width_ratio(self) -> float:
        """The width of the corrected interval over that of the few answers' own."""
        return (self.corrected.high - self.corrected.low) / (self.own.high - self.own.low)


def prediction_powered(
    x: Floats,
    y: Floats,
    f: Floats,
    is_common: npt.NDArray[np.bool_],
    *,
    centre: float = 0.0,
) -> list[PredictionPowered]:
    """Return the coefficients of a linear regression of few answers, corrected by a model's many.

    With θ̂ and γ̂ the coefficients of the answers and of the model's predictions,

        θ̂ + λ (γ̂(all) − γ̂(common)),

    where the difference is the error that the common rows make for the model, and λ has the least
    variance, summed over the coefficients in units of those of θ̂. The mean is θ whatever the model
    predicts, on any scale, if the common rows are a random part (Angelopoulos, Duchi and Zrnic
    2023, "PPI++"; for regressions Chen and Chen 2000). Since λ is estimated from n rows, it is
    shrunk by its adjusted R² over its R², and is 0 for most useless models. Variances are robust
    (MacKinnon and White's 1985 HC3), count both samples, and have Student's quantiles.

    Args:
        x: columns of all N rows, `(N, p)`.
        y: the few answers, `(n,)`.
        f: the model's predictions, `(N,)`.
        is_common: which rows have an answer, `(N,)`.
        centre: added to all estimates.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, (400, 2))
        >>> f = x @ [0.3, 0.0] + 0.3 * rng.standard_normal(400)
        >>> is_common = np.arange(400) < 40
        >>> estimates = prediction_powered(x, f[is_common], f, is_common)   # a perfect model
        >>> [round(estimate.width_ratio, 1) for estimate in estimates]
        [0.3, 0.4]
    """
    n, total = len(y), len(x)
    theta, of_answers = _influences(x[is_common], y)
    gamma, of_common = _influences(x[is_common], f[is_common])
    gamma_all, of_all = _influences(x, f)
    variances = np.square(of_answers).sum(axis=0)
    shared = ((of_answers * of_common).sum(axis=0) / variances).sum()
    squares = max(float((np.square(of_common).sum(axis=0) / variances).sum()), 1e-300)
    r2 = float(shared**2 / (x.shape[1] * squares))
    weight = shared / squares * max(1.0 - (1.0 - r2) * (n - 1) / (n - 2), 0.0) / max(r2, 1e-300)
    corrected = theta + weight * (gamma_all - gamma)
    # A common row counts in both means of the model: its part is (1 − n/N)/n, of the others 1/N.
    open_share = 1.0 - n / total
    of_both = (of_answers - weight * open_share * of_common) / n
    variance = np.square(of_both).sum(axis=0)
    variance += open_share * np.square(weight * of_all).sum(axis=0) / total**2

    def interval(j: int, values: Floats, variances: Floats, freedom: int) -> Interval:
        value = float(values[j]) + centre
        half = float(stats.t.ppf(0.95, freedom) * np.sqrt(variances[j]))
        return Interval(value=value, low=value - half, high=value + half)

    freedom, columns = n - x.shape[1], range(x.shape[1])
    of_model = np.square(of_all).sum(axis=0) / total**2
    return [
        PredictionPowered(
            own=interval(j, theta, variances / n**2, freedom),
            model=interval(j, gamma_all, of_model, total - x.shape[1]),
            corrected=interval(j, corrected, variance, freedom),
            weight=float(weight),
        )
        for j in columns
    ]


def _influences(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the coefficients of least squares `(p,)`, and each row's influence on them `(n, p)`.

    Residuals are divided by one less their leverage.
    """
    inverse = np.linalg.pinv(x.T @ x / len(x))
    coefficients = inverse @ (x.T @ y) / len(x)
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x) / len(x)
    residuals = (y - x @ coefficients) / np.maximum(1.0 - leverage, 1e-3)
    return np.asarray(coefficients), np.asarray(residuals[:, None] * (x @ inverse))
