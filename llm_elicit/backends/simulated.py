"""A simulated judge: a random-utility model with a known belief, at no cost.

The belief may be the density of a table: Gaussian kernels for numbers, smoothed shares for
categories.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends.base import Capabilities, Reply, Request
from llm_elicit.backends.sdk import WithoutKey
from llm_elicit.config.judges import LogOddsResponse, SimulatedJudge
from llm_elicit.errors import InputError
from llm_elicit.questions.numbers import LEVELS, RowLikelihood
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

if TYPE_CHECKING:
    from scipy import special, stats
else:
    special, stats = LazyModule("scipy.special"), LazyModule("scipy.stats")

GUMBEL_LEVEL = math.sqrt(6.0) / math.pi
"""The scale of Gumbel noise of variance one: the usual level of the Bradley–Terry model."""

_NODES = 64
"""Nodes of the Gauss–Legendre quadrature over a number."""

_MAX_TERMS = 20_000
"""Largest sum for an exact mass: rows of the table times combinations of categories."""

_MAX_ROWS = 20_000
"""Largest number of rows for a kernel density; more would only cost time."""

_MAX_VALUES = 24
"""Integer features with at most this many values have a probability for each value."""

_DRAWS = 20_000
"""Draws of the belief for stated quantiles and comparisons of ranges."""

_MIN_LOG_MASS = -700.0
"""The log mass of boxes whose mass underflows."""


class KernelDensity:
    """A kernel density over numbers and categories together.

    Each of the n rows of the table is a kernel. Over the numbers it is Gaussian. Over a feature of
    K categories it has a mass of n/(n + K) on the row's own category and spreads the remaining
    K/(n + K) evenly over all K. A category thus has the probability (count + 1)/(n + K), Laplace's
    rule, and no combination is impossible. Given the categories, the density of the numbers is
    SciPy's weighted kernel density: each row is weighted by its mass on these categories, and
    covariance and Scott's rule follow from the weighted rows.

    Args:
        points: the table, `(n, d)`.
        counts: number of categories of each feature, `(d,)`; 0 for a number.
        bandwidth: bandwidth of the Gaussian kernels, in standard deviations; None for Scott's rule.
        periodic: which numbers lie on a circle from 0 to 1, `(d,)` bools; none by default.

    Examples:
        >>> rows = np.array([[0.0, 1.0], [0.0, 1.2], [1.0, 5.0], [0.0, 0.9], [1.0, 5.5]])
        >>> kernels = KernelDensity(rows, np.array([2, 0]))
        >>> line = np.linspace(-20.0, 30.0, 20_001)
        >>> of_first = np.exp(kernels.logpdf(np.column_stack([0.0 * line, line])))
        >>> round(float(of_first.sum() * 0.0025), 4)   # (3 + 1) / (5 + 2)
        0.5714
    """

    def __init__(
        self,
        points: Floats,
        counts: NDArray[np.int64],
        bandwidth: float | None = None,
        periodic: NDArray[np.bool_] | None = None,
    ) -> None:
        self._is_category = counts > 0
        self._counts = counts[self._is_category]
        self._codes = points[:, self._is_category].astype(int)
        self._numbers = points[:, ~self._is_category].T
        on_circle = np.zeros(len(counts), dtype=bool) if periodic is None else periodic
        self._circles = np.flatnonzero(on_circle[~self._is_category])
        self._cut_positions = np.zeros(len(self._numbers))
        for j in self._circles.tolist():
            turn = np.exp(2j * np.pi * self._numbers[j]).mean()
            # opposite the mean direction
            self._cut_positions[j] = np.angle(turn) / (2.0 * np.pi) - 0.5
        self._numbers = self._cut_circles(self._numbers)
        self._smoothing = self._counts / (len(points) + self._counts)
        self._bandwidth = bandwidth
        self._density_given: dict[tuple[int, ...], _NumberDensity] = {}

    def logpdf(self, points: Floats) -> Floats:
        """Return the log density `(m,)` at points `(m, d)`, per unit and per category."""
        log_pdf = np.empty(len(points))
        for codes, rows in self._by_codes(points[:, self._is_category].astype(int)):
            log_pdf[rows] = np.log(self._weights(codes).mean())
            if len(self._numbers):
                log_pdf[rows] += self._log_number_density(
                    codes, points[np.ix_(rows, ~self._is_category)].T
                )
        return log_pdf

    def sample(self, count: int, rng: np.random.Generator) -> Floats:
        """Return draws `(count, d)`."""
        draws = np.empty((count, len(self._is_category)))
        codes = self._codes[rng.integers(len(self._codes), size=count)]
        is_smoothed = rng.random(codes.shape) < self._smoothing
        codes = np.where(is_smoothed, rng.integers(self._counts, size=codes.shape), codes)
        draws[:, self._is_category] = codes
        if len(self._numbers):
            for combination, rows in self._by_codes(codes):
                numbers = self._number_density(combination).resample(len(rows), seed=rng)
                numbers[self._circles] %= 1.0
                draws[np.ix_(rows, ~self._is_category)] = numbers.T
        return draws

    def log_mass(self, low: Floats, high: Floats) -> float | None:
        """Return the log mass of a box that bounds at most two numeric features.

        The mass is exact over one number and computed by quadrature over two, so that it is as
        precise for narrow boxes as for wide ones.

        Args:
            low, high: bounds `(d,)` of numbers and of categories' codes; infinite for an unbounded
                feature.

        Returns:
            Nats; None for other boxes, if a feature is periodic, or if the sum over rows and
            combinations of categories has too many terms.
        """
        bounded = np.isfinite(low) & np.isfinite(high)
        numbers = bounded & ~self._is_category
        allowed = [
            range(math.ceil(low[j]), math.floor(high[j]) + 1) if bounded[j] else range(count)
            for j, count in zip(np.flatnonzero(self._is_category), self._counts, strict=True)
        ]
        terms = len(self._codes) * math.prod(map(len, allowed))
        too_many = self._is_category.any() and terms > _MAX_TERMS
        if len(self._circles) or not bounded.any() or numbers.sum() > 2 or too_many:
            return None
        number_indices = np.flatnonzero(numbers[~self._is_category]).tolist()
        total = 0.0
        for codes in itertools.product(*allowed):
            share = float(self._weights(codes).mean()) if codes else 1.0
            total += share * self._mass_of_numbers(
                codes, number_indices, low[numbers], high[numbers]
            )
        return math.log(total) if total > 0.0 else -math.inf

    def _mass_of_numbers(
        self, codes: tuple[int, ...], number_indices: list[int], low: Floats, high: Floats
    ) -> float:
        """Return the mass of a box that bounds up to two numbers, given the categories."""
        if not number_indices:
            return 1.0
        kernels = self._number_density(codes)
        first, *others = number_indices
        centre, sd = self._numbers[first][:, None], np.sqrt(kernels.covariance[first, first])
        if not others:
            masses = _normal_mass((low[0] - centre) / sd, (high[0] - centre) / sd)
            return float(kernels.weights @ masses[:, 0])
        second = others[0]
        nodes, weights = _gauss_legendre(_NODES)
        half = 0.5 * (high[0] - low[0])
        values = low[0] + half * (nodes + 1.0)
        slope = kernels.covariance[first, second] / sd**2
        conditional_sd = np.sqrt(kernels.covariance[second, second] - slope**2 * sd**2)
        middle = self._numbers[second][:, None] + slope * (values - centre)
        masses = _normal_mass(
            (low[1] - middle) / conditional_sd, (high[1] - middle) / conditional_sd
        )
        heights = np.exp(-0.5 * ((values - centre) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
        return float(half * kernels.weights @ (heights * masses) @ weights)

    @staticmethod
    def _by_codes(codes: NDArray[np.int64]) -> list[tuple[tuple[int, ...], NDArray[np.int64]]]:
        """Return the combinations of categories among `codes`, and the rows of each."""
        unique, inverse = np.unique(codes, axis=0, return_inverse=True)
        return [(tuple(row), np.flatnonzero(inverse == i)) for i, row in enumerate(unique.tolist())]

    def _weights(self, codes: tuple[int, ...]) -> Floats:
        """Return the mass of each row's kernel `(n,)` on a combination of categories."""
        evenly = self._smoothing / self._counts
        observed = np.where(self._codes == np.array(codes, int), 1.0 - self._smoothing, 0.0)
        return np.asarray((observed + evenly).prod(axis=1))

    def _cut_circles(self, numbers: Floats) -> Floats:
        """Return numbers `(d, m)` with each periodic one cut opposite its mean direction."""
        cut, start = numbers.copy(), self._cut_positions[self._circles, None]
        cut[self._circles] = start + (numbers[self._circles] - start) % 1.0
        return cut

    def _log_number_density(self, codes: tuple[int, ...], numbers: Floats) -> Floats:
        """Return the log density of numbers `(d, m)`; periodic ones are summed over their turns."""
        kernels, cut = self._number_density(codes), self._cut_circles(numbers)
        logs = []
        for turns in itertools.product((-1.0, 0.0, 1.0), repeat=len(self._circles)):
            turned = cut.copy()
            turned[self._circles] += np.array(turns)[:, None]
            logs.append(kernels.logpdf(turned))
        return np.asarray(np.logaddexp.reduce(logs, axis=0))

    def _number_density(self, codes: tuple[int, ...]) -> _NumberDensity:
        """Return the density of the numeric features given the categories."""
        if codes not in self._density_given:
            weights = None if not codes else self._weights(codes)
            self._density_given[codes] = _NumberDensity(self._numbers, self._bandwidth, weights)
        return self._density_given[codes]


class _NumberDensity:
    """SciPy's weighted kernel density of numbers `(d, n)`, evaluated without its overhead.

    SciPy whitens all rows at every evaluation, with threads that wait for each other.
    """

    def __init__(self, numbers: Floats, bandwidth: float | None, weights: Floats | None) -> None:
        kernels = stats.gaussian_kde(numbers, bw_method=bandwidth, weights=weights)
        self.weights, self.covariance = kernels.weights, kernels.covariance
        self.resample = kernels.resample
        root = np.linalg.cholesky(self.covariance)
        self._whitening = np.linalg.inv(root)
        self._rows = self._whitening @ numbers
        log_height = -np.log(np.sqrt(2.0 * np.pi) * np.diag(root)).sum()
        self._log_heights = np.log(self.weights) + log_height

    def logpdf(self, numbers: Floats) -> Floats:
        """Return the log density `(m,)` at numbers `(d, m)`."""
        log_pdf = np.empty(numbers.shape[1])
        for number, point in enumerate((self._whitening @ numbers).T):
            offsets = self._rows - point[:, None]
            logs = self._log_heights - 0.5 * np.einsum("dn,dn->n", offsets, offsets)
            log_pdf[number] = logs.max() + np.log(np.exp(logs - logs.max()).sum())
        return log_pdf


@cache
def _gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """Return nodes in (−1, 1) and their weights; NumPy solves an eigenvalue problem for them."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return nodes, weights


def _normal_mass(low: Floats, high: Floats) -> Floats:
    """Return Φ(high) − Φ(low), computed in the nearer tail to keep its precision."""
    upper = low > 0.0
    first, last = np.where(upper, -high, low), np.where(upper, -low, high)
    return np.asarray(special.ndtr(last) - special.ndtr(first))


class SimulatedBackend(WithoutKey):
    """An expert whose utility is the log density of its belief, plus noise.

    The belief is a density per unit of the features' scales, and per category, on the range of the
    feature space. With `belief: table` it is a kernel density of the reference table, with
    `belief: uniform` a constant.

    An answer is a pure function of the judge's seed, the rendered question and the replicate, so
    that it depends neither on the order of asking nor on interruptions. The noise level is the
    Gumbel scale, the exponential rate, or the standard deviation of normal noise on each utility.
    With `log_odds` the judge answers as a model whose letters have log-probabilities: the likelier
    letter, and P(first shown). A question about a probability is answered in whole per cent, and
    one about a ratio with the ratio of the two densities, with noise.

    A direct question is answered from the belief: its quantiles, or a draw from it. A row of the
    table is completed with the feature's value in a draw, independent of the row. The likelihood of
    a row is the belief's density times the volume of the points that are worded alike. Ranges are
    compared by their mass in the same way as points by their density.

    Raises:
        InputError: `belief: table` in a feature space that has no table, or too few rows.

    Examples:
        >>> space = FeatureSpace.load("penguins")
        >>> judge = SimulatedJudge(name="expert", backend="simulated")
        >>> expert = SimulatedBackend(judge, space)
        >>> expert.log_belief(expert.sample(5, np.random.default_rng(0))).shape
        (5,)
    """

    capabilities = Capabilities(seed=True, logprobs=True, text=True, likelihood=True)
    endpoint = "simulated"
    cacheable = False

    def __init__(self, judge: SimulatedJudge, space: FeatureSpace) -> None:
        self._judge = judge = judge.seeded()
        self._space = space
        self.model = f"simulated/{judge.belief}/{judge.noise}"
        self._level = judge.noise_level or (GUMBEL_LEVEL if judge.noise == "gumbel" else 1.0)
        self._low, self._high = space.scale_ends
        self._kernels = self._density() if judge.belief == "table" else None
        # SciPy is loaded now, in the thread that opens the backend, and not by the first question
        # in the event loop.
        self.log_belief(np.atleast_2d(space.low))

    def _density(self) -> KernelDensity:
        rows = self._space.table_points()
        if len(rows) > _MAX_ROWS:
            rows = rows[np.random.default_rng(0).choice(len(rows), _MAX_ROWS, replace=False)]
        points = self._unit(rows)
        if len(points) <= self._space.dimension:
            raise InputError(
                f"judge {self._judge.name!r}: the table of {self._space.name!r} has only "
                f"{len(points)} rows within the ranges; use belief: uniform, or widen them"
            )
        counts = np.where(self._has_shares, self._space.high - self._space.low + 1.0, 0.0)
        periodic = self._space.periodic & ~self._has_shares
        return KernelDensity(points, counts.astype(int), self._judge.bandwidth, periodic)

    @cached_property
    def _has_shares(self) -> NDArray[np.bool_]:
        """Which features `(d,)` have a probability for each value: categories and short ranges."""
        has_few_values = self._space.high - self._space.low < _MAX_VALUES
        return np.asarray(self._space.categorical | (self._space.integer & has_few_values))

    def _unit(self, points: Floats) -> Floats:
        """Return points scaled to [0, 1]; integers from 0 for features with a share per value."""
        unit = (self._space.to_scale(points) - self._low) / (self._high - self._low)
        return np.where(self._has_shares, points - self._space.low, unit)

    def log_belief(self, points: Floats) -> Floats:
        """Return the log density of the belief per unit of the features' scales and per category.

        Args:
            points: `(n, d)`, natural units.

        Returns:
            `(n,)` nats. The density is normalized over unbounded space, but nearly all of its mass
            is in the feature space. An integer on a logarithmic scale has a cell of the width that
            it has on that scale.
        """
        points = np.atleast_2d(np.asarray(points, dtype=np.float64))
        if self._kernels is None:
            return np.full(len(points), -float(np.log(self._high - self._low).sum()))
        log_density = self._kernels.logpdf(self._unit(points))
        # A share belongs to a cell, whose width on a logarithmic scale depends on the number.
        varies = self._has_shares & self._space.log
        ends = [self._space.to_scale(points + side) for side in (-0.5, 0.5)]
        widths = np.where(varies, ends[1] - ends[0], 1.0)
        volume = float(np.log(np.where(self._has_shares, 1.0, self._high - self._low)).sum())
        return np.asarray(log_density - volume - np.log(widths).sum(axis=1))

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """Return `n` draws from the belief in the feature space, `(n, d)`, natural units."""
        accepted: list[Floats] = []
        count = 0
        while count < n:
            if self._kernels is None:
                unit = rng.random((2 * n, self._space.dimension))
                cells = self._space.high - self._space.low + 1.0
                unit = np.where(self._has_shares, np.floor(unit * cells), unit)
            else:
                unit = self._kernels.sample(2 * n, rng)
            natural = self._space.from_scale(self._low + unit * (self._high - self._low))
            natural = np.where(self._has_shares, self._space.low + unit, natural)
            points = self._space.to_support(natural)
            accepted.append(points[self._space.contains(points)])
            count += len(accepted[-1])
        return np.concatenate(accepted)[:n]

    def body(self, request: Request) -> dict[str, Any]:
        """Return everything that determines the answer."""
        return {
            **self._judge.identity(),
            "prompt": request.prompt.hash,
            "replicate": request.replicate,
        }

    async def ask(self, request: Request) -> Reply:
        """Answer one question."""
        if self._judge.latency:
            await asyncio.sleep(self._judge.latency)
        text, first = self._answer(request)
        return Reply(
            text=text,
            finish="stop",
            model=self.model,
            first=first,
            letter_mass=None if first is None else 1.0,
            body=self.body(request),
        )

    def _answer(self, request: Request) -> tuple[str, float | None]:
        """Return the text of the answer, and P(first shown) if it has log-probabilities."""
        if request.answer == "text":
            return self._direct_answer(request), None
        first, second = self._utilities(request)
        difference = float(first - second)
        settings = self._judge.log_odds
        if request.answer == "ratio":
            if settings is None:
                log_ratio = difference + self._noise(request)
            else:
                noise = settings.ratio_noise * self._question_rng(request).standard_normal()
                log_ratio = (difference if settings.gain else 0.0) + noise
            ratio = math.exp(log_ratio)
            return np.format_float_positional(ratio, 4, fractional=False, trim="-"), None
        if request.answer == "probability":
            return f"{100.0 * self._probability(difference, request):.0f} %", None
        if settings is None:
            return request.options[int(difference + self._noise(request) < 0.0)], None
        log_odds = self._log_odds(difference, request)
        return request.options[int(log_odds < 0.0)], _logistic(log_odds)

    def _utilities(self, request: Request) -> Floats:
        """Return the log density of both points, or the log mass of both ranges, `(2,)`."""
        if request.direct is None or not request.direct.ranges:
            return self.log_belief(np.stack(request.points))
        boxes = np.stack(request.direct.ranges)
        settings = self._judge.log_odds
        ignored = settings is not None and settings.ignores_width
        return self.log_mass(boxes) - (self._log_widths(boxes) if ignored else 0.0)

    def log_mass(self, boxes: Floats) -> Floats:
        """Return the log mass of the belief in boxes.

        If `KernelDensity.log_mass` returns None, the mass is estimated from a fixed set of draws,
        which is imprecise below a thousandth.

        Args:
            boxes: `(n, d, 2)`, natural units; (−inf, inf) for an unbounded feature.

        Returns:
            `(n,)` nats.
        """
        if self._kernels is None:
            return self._log_widths(boxes)
        return np.array([self._log_mass(self._kernels, box) for box in boxes])

    def _log_mass(self, kernels: KernelDensity, box: Floats) -> float:
        bounded = np.asarray(np.isfinite(box).all(axis=1))
        cells = np.stack([-self._space.cells, self._space.cells], axis=1)
        inner = np.where(bounded[:, None], box + cells, self._space.low[:, None])
        ends = [np.where(bounded, self._unit(inner[:, side]), np.inf) for side in (0, 1)]
        exact = kernels.log_mass(*ends)
        if exact is not None:
            return max(exact, _MIN_LOG_MASS)
        count_inside = ((self._draws >= box[:, 0]) & (self._draws <= box[:, 1])).all(axis=1).sum()
        return float(np.log((count_inside + 0.5) / (len(self._draws) + 1.0)))

    @cached_property
    def _draws(self) -> Floats:
        """Draws of the belief for quantiles and masses."""
        return self.sample(_DRAWS, np.random.default_rng(self._judge.seed))

    def _log_widths(self, boxes: Floats) -> Floats:
        """Return the log volume of boxes relative to the feature space, on the features' scales.

        Unbounded features and all categorical ones count with their whole range.
        """
        free = np.isinf(boxes).any(axis=2) | self._space.categorical
        low, high, cells = self._space.low, self._space.high, self._space.cells
        inner = np.where(free[..., None], np.stack([low, high], axis=-1), boxes)
        inner = inner + np.stack([-cells, cells], axis=-1)
        ends = [self._space.to_scale(inner[..., side]) for side in (0, 1)]
        share = (ends[1] - ends[0]) / (self._high - self._low)
        return np.asarray(np.log(np.where(free, 1.0, share)).sum(axis=1))

    def _log_odds(self, difference: float, request: Request) -> float:
        """Return log P(first shown) / P(second shown), for a difference of log-densities."""
        settings = self._judge.log_odds
        assert settings is not None
        noise = settings.noise * self._question_rng(request).standard_normal()
        return settings.gain * difference + self._position(request, settings) + float(noise)

    def _probability(self, difference: float, request: Request) -> float:
        """Return P(first shown), from the log-odds or from the noise of choices."""
        if self._judge.log_odds is not None:
            return _logistic(self._log_odds(difference, request))
        if self._judge.noise == "gumbel":
            return _logistic(difference / self._level)
        if self._judge.noise == "normal":
            return 0.5 * math.erfc(-0.5 * difference / self._level)
        tail = 0.5 * math.exp(-self._level * abs(difference))
        return 1.0 - tail if difference >= 0.0 else tail

    def _noise(self, request: Request) -> float:
        """Return the difference between the noise on the first utility and on the second."""
        rng = self._question_rng(request)
        if self._judge.noise == "gumbel":
            noise = rng.gumbel(0.0, self._level, 2)
        elif self._judge.noise == "normal":
            noise = rng.normal(0.0, self._level, 2)
        else:
            noise = rng.exponential(1.0 / self._level, 2)
        return float(noise[0] - noise[1])

    def _position(self, request: Request, settings: LogOddsResponse) -> float:
        """Return the position effect, a function of the pair but not of its order."""
        options = request.points or (request.direct.ranges if request.direct else ())
        first, second = sorted(option.tobytes() for option in options)
        rng = self._seeded_rng(b"position", first, second)
        return settings.position_mean + settings.position_sd * float(rng.standard_normal())

    def _direct_answer(self, request: Request) -> str:
        """Return the answer to a direct question: numbers in its units, or words."""
        direct, space = request.direct, self._space
        assert direct is not None
        if direct.row:
            log_mass = self.log_belief(direct.points[0]) + space.log_cells(direct.points[0])
            return RowLikelihood(log_probs=(float(log_mass[0]),)).model_dump_json()
        if direct.kind == "quantiles":
            assert direct.feature is not None
            quantiles = np.quantile(self._draws[:, direct.feature], np.array(LEVELS) / 100)
            numbers = [(space.features[direct.feature], value) for value in quantiles]
        else:
            point = self.sample(1, self._question_rng(request))[0]
            numbers = list(zip(space.features, point, strict=True))
            numbers = numbers if direct.feature is None else [numbers[direct.feature]]
        return "; ".join(_value_text(feature, float(value)) for feature, value in numbers)

    def _question_rng(self, request: Request) -> np.random.Generator:
        """Return the random generator of a question and its replicate."""
        return self._seeded_rng(f"{request.prompt.hash}/{request.replicate}".encode())

    def _seeded_rng(self, *parts: bytes) -> np.random.Generator:
        """Return a random generator seeded by the judge's seed and by `parts`."""
        identity = b"/".join([str(self._judge.seed).encode(), *parts])
        digest = hashlib.sha256(identity).digest()
        return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _logistic(log_odds: float) -> float:
    """Return the probability of log-odds, without overflow."""
    tail = math.exp(-abs(log_odds))
    return (1.0 if log_odds >= 0.0 else tail) / (1.0 + tail)


def _value_text(feature: Feature, value: float) -> str:
    """Return a value as text without its unit."""
    if feature.categories or feature.kind == "date":
        return feature.word(value)
    return f"{float(feature.round(np.asarray(value)) * feature.factor):.10g}"
