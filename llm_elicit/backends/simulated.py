"""A simulated judge: a random-utility model with a known belief, at no cost."""

from __future__ import annotations

import asyncio
import hashlib
import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_elicit.backends.base import Capabilities, Reply, Request
from llm_elicit.backends.kernel_density import KernelDensity
from llm_elicit.backends.sdk import Keyless
from llm_elicit.config.judges import SimulatedJudge, SoftAnswers
from llm_elicit.errors import InputError
from llm_elicit.questions.numbers import LEVELS
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

_MOST_ROWS = 20_000
"""Rows of the table that a kernel density is made of; more would only cost time."""

_FEW = 24
"""The most values of a whole feature of which a belief has a share each."""

_DRAWS = 20_000
"""Draws of the belief for stated quantiles and comparisons of ranges."""

_LEAST_LOG_MASS = -700.0
"""The log mass of boxes whose mass underflows."""

GUMBEL_LEVEL = math.sqrt(6.0) / math.pi
"""The scale of Gumbel noise of variance one: the usual level of the Bradley–Terry model."""


class SimulatedBackend(Keyless):
    """An expert whose utility is the log density of its belief, plus noise.

    The belief is a density per unit of the features' scales, and per category, on the range asked
    about: `table` a kernel density of the reference table, `uniform` a constant.

    An answer is a pure function of the judge's seed, the rendered question and the replicate, so
    that it depends neither on the order of asking nor on interruptions. `level` is the Gumbel
    scale, the exponential rate, or the standard deviation of normal noise on each utility. With
    `log_odds` it answers as a model whose letters have log-probabilities: the likelier letter, and
    P(first shown). Asked for a probability it states that of its answer, in whole per cent; asked
    for a ratio, that of its densities, with noise.

    A direct question is answered from the belief: its quantiles, or a draw from it. A row of the
    table is completed with the feature's value in a draw, independent of the row. Ranges are
    compared by their mass in the same way as points by their density.

    Raises:
        InputError: `belief: table` in a feature space that has no table, or too few rows.

    Example:
        >>> space = FeatureSpace.load("penguins")
        >>> judge = SimulatedJudge(name="expert", backend="simulated")
        >>> expert = SimulatedBackend(judge, space)
        >>> expert.log_belief(expert.sample(5, np.random.default_rng(0))).shape
        (5,)
    """

    capabilities = Capabilities(seed=True, logprobs=True, text=True)
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
        if len(rows) > _MOST_ROWS:
            rows = rows[np.random.default_rng(0).choice(len(rows), _MOST_ROWS, replace=False)]
        points = self._unit(rows)
        if len(points) <= self._space.dimension:
            raise InputError(
                f"judge {self._judge.name!r}: the table of {self._space.name!r} has only "
                f"{len(points)} rows in the range; use belief: uniform, or widen the range"
            )
        counts = np.where(self._counted, self._space.high - self._space.low + 1.0, 0.0)
        around = self._space.periodic & ~self._counted
        return KernelDensity(points, counts.astype(int), self._judge.bandwidth, around)

    @cached_property
    def _counted(self) -> NDArray[np.bool_]:
        """Which features have so few values, `(d,)` bools, that the belief is of shares."""
        few = self._space.high - self._space.low < _FEW
        return np.asarray(self._space.categorical | (self._space.integer & few))

    def _unit(self, points: Floats) -> Floats:
        """Return points with the ranges scaled to [0, 1]; numbers from 0 for counted features."""
        unit = (self._space.to_scale(points) - self._low) / (self._high - self._low)
        return np.where(self._counted, points - self._space.low, unit)

    def _natural(self, unit: Floats) -> Floats:
        """Inverse of `_unit`, on the support: whole numbers are rounded."""
        natural = self._space.from_scale(self._low + unit * (self._high - self._low))
        natural = np.where(self._counted, self._space.low + unit, natural)
        return self._space.to_support(natural)

    def log_belief(self, points: Floats) -> Floats:
        """Return the log density of the belief per unit of the features' scales and per category.

        Args:
            points: `(n, d)`, natural units.

        Returns:
            `(n,)` nats, normalized over all space; nearly all mass is in the feature space. For
            whole numbers on a logarithmic scale, the cell of each is as wide as on that scale.
        """
        inside = np.atleast_2d(np.asarray(points, dtype=np.float64))
        if self._kernels is None:
            return np.full(len(inside), -float(np.log(self._high - self._low).sum()))
        found = self._kernels.logpdf(self._unit(inside))
        # A share is that of a cell, whose width on a logarithmic scale depends on the number.
        narrow = self._counted & self._space.log
        ends = [self._space.to_scale(inside + side) for side in (-0.5, 0.5)]
        widths = np.where(narrow, ends[1] - ends[0], 1.0)
        volume = float(np.log(np.where(self._counted, 1.0, self._high - self._low)).sum())
        return np.asarray(found - volume - np.log(widths).sum(axis=1))

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """Return `n` draws from the belief in the feature space, `(n, d)`, natural units."""
        kept: list[Floats] = []
        count = 0
        while count < n:
            points = self._natural(self._drawn(2 * n, rng))
            kept.append(points[self._space.contains(points)])
            count += len(kept[-1])
        return np.concatenate(kept)[:n]

    def _drawn(self, n: int, rng: np.random.Generator) -> Floats:
        """Return draws `(n, d)` in the coordinates of `_unit`, some outside the range."""
        if self._kernels is not None:
            return self._kernels.sample(n, rng)
        unit = rng.random((n, self._space.dimension))
        count = self._space.high - self._space.low + 1.0
        return np.where(self._counted, np.floor(unit * count), unit)

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
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            body=self.body(request),
        )

    def _answer(self, request: Request) -> tuple[str, float | None]:
        """Return the text of the answer, and P(first shown) if it has log-probabilities."""
        if request.answer == "text":
            return self._words(request), None
        first, second = self._utilities(request)
        difference = float(first - second)
        if request.answer == "ratio":
            ratio = self._ratio(difference, request)
            return np.format_float_positional(ratio, 4, fractional=False, trim="-"), None
        if request.answer == "probability":
            return f"{100.0 * self._probability(difference, request):.0f} %", None
        if self._judge.log_odds is None:
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

        Where `KernelDensity.log_mass` gives none it is estimated from a fixed set of draws, so that
        masses below a thousandth are inexact.

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
            return max(exact, _LEAST_LOG_MASS)
        held = ((self._draws >= box[:, 0]) & (self._draws <= box[:, 1])).all(axis=1).sum()
        return float(np.log((held + 0.5) / (len(self._draws) + 1.0)))

    @cached_property
    def _draws(self) -> Floats:
        """Draws of the belief for quantiles and masses."""
        return self.sample(_DRAWS, np.random.default_rng(self._judge.seed))

    def _log_widths(self, boxes: Floats) -> Floats:
        """Return the log volume of boxes relative to the feature space, on the features' scales.

        Unbounded features, and all categorical ones, have the whole range.
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
        noise = settings.noise * self._own(request).standard_normal()
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

    def _ratio(self, difference: float, request: Request) -> float:
        """Return the ratio of the first density to the second, with noise."""
        settings = self._judge.log_odds
        if settings is None:
            return math.exp(difference + self._noise(request))
        known = difference if settings.gain else 0.0
        return math.exp(known + settings.ratio_noise * self._own(request).standard_normal())

    def _noise(self, request: Request) -> float:
        """Return the difference between the noise on the first utility and on the second."""
        rng = self._own(request)
        if self._judge.noise == "gumbel":
            noise = rng.gumbel(0.0, self._level, 2)
        elif self._judge.noise == "normal":
            noise = rng.normal(0.0, self._level, 2)
        else:
            noise = rng.exponential(1.0 / self._level, 2)
        return float(noise[0] - noise[1])

    def _position(self, request: Request, settings: SoftAnswers) -> float:
        """Return the position effect, a function of the pair but not of its order."""
        shown = request.points or (request.direct.ranges if request.direct else ())
        first, second = sorted(one.tobytes() for one in shown)
        rng = self._random(b"position", first, second)
        return settings.position_mean + settings.position_sd * float(rng.standard_normal())

    def _words(self, request: Request) -> str:
        """Return the answer to a direct question: numbers in its units, or words."""
        asked, space = request.direct, self._space
        assert asked is not None
        if asked.kind == "quantiles":
            assert asked.feature is not None
            found = np.quantile(self._draws[:, asked.feature], np.array(LEVELS) / 100)
            numbers = [(space.features[asked.feature], value) for value in found]
        else:
            point = self.sample(1, self._own(request))[0]
            numbers = list(zip(space.features, point, strict=True))
            numbers = numbers if asked.feature is None else [numbers[asked.feature]]
        return "; ".join(_said(feature, float(value)) for feature, value in numbers)

    def _own(self, request: Request) -> np.random.Generator:
        """Return the random generator of a question."""
        return self._random(f"{request.prompt.hash}/{request.replicate}".encode())

    def _random(self, *parts: bytes) -> np.random.Generator:
        """Return a random generator seeded by the judge's seed and by `parts`."""
        identity = b"/".join([str(self._judge.seed).encode(), *parts])
        digest = hashlib.sha256(identity).digest()
        return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _logistic(log_odds: float) -> float:
    """Return the probability of log-odds, without overflow."""
    tail = math.exp(-abs(log_odds))
    return (1.0 if log_odds >= 0.0 else tail) / (1.0 + tail)


def _said(feature: Feature, value: float) -> str:
    """Return a value as text without its unit."""
    if feature.categories or feature.kind == "date":
        return feature.word(value)
    return f"{float(feature.round(np.asarray(value)) * feature.factor):.10g}"
