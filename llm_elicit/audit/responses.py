"""A judge's answers to each pair as one number, the response that tests of its preference use.

Soft answers are log-odds ℓ of the option shown first. With the pair (a, b) asked in both orders

    ℓ_ab = m + g(a) − g(b) + e,      ℓ_ba = m − (g(a) − g(b)) + e',

half the difference is the response and half the sum is the pair's position effect m. For choices,
ℓ = P − 1/2. A pair asked in one order only has ℓ minus the mean position effect.

A log-odds that is a bound counts as the bound: exchanging the points keeps that, so that tests stay
exact, and a response is at least as large as it is taken.

If the answers ignore the points, exchanging the points of a pair leaves the joint distribution of
points and answers unchanged and flips the sign of the pair's response. Multiplying all log-odds by
a constant multiplies all responses by it; nothing here goes through probabilities, which saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logit

from llm_elicit.comparisons.fit_inputs import STATED_TO
from llm_elicit.comparisons.table import Choices, Comparisons, Judgments
from llm_elicit.spaces.features import Floats

Kind = Literal["log-odds", "choices"]
_ROUNDING = 1e-9
"""Half differences this small relative to the answers are rounding error, not a preference."""


@dataclass(frozen=True)
class Response:
    """A judge's answers, one row per answered pair, in the order of the pairs' numbers.

    Attributes:
        kind: whether values are log-odds (nats) or choices (preference − 1/2).
        a, b: the points, `(n, d)`, natural units.
        value: preference for a over b without the position effect, `(n,)`.
        pair: the pairs' numbers, `(n,)`.
        position: half sums of pairs asked in both orders, else NaN, `(n,)`.
        single: answers for the option shown first of pairs asked in one order, else NaN, `(n,)`.
        noise: variance of `value` from repeated questions; NaN if no question of the pair was
            repeated, `(n,)`.
    """

    kind: Kind
    a: Floats
    b: Floats
    value: Floats
    pair: npt.NDArray[np.int64]
    position: Floats
    single: Floats
    noise: Floats

    def __len__(self) -> int:
        return len(self.value)

    @property
    def mean_position(self) -> float:
        """The mean position effect: of pairs asked in both orders if any, else of the others.

        Example:
            >>> points = np.zeros((2, 1))
            >>> Response.of_choices(Choices(points, points, np.ones(2), np.arange(2))).mean_position
            0.0
        """
        for known in (self.position, self.single):
            if np.isfinite(known).any():
                return float(np.nanmean(known))
        return 0.0

    def head(self, end: int) -> Response:
        """Return the first `end` pairs."""
        points = self.a[:end], self.b[:end], self.value[:end], self.pair[:end]
        parts = self.position[:end], self.single[:end], self.noise[:end]
        return Response(self.kind, *points, *parts)

    @classmethod
    def of_choices(cls, choices: Choices) -> Response:
        """Return the response from choices, whatever orders they were asked in."""
        unknown = np.full(len(choices), np.nan)
        value = choices.preference - 0.5
        # Averages of P and 1 - P leave rounding error, which is not a preference.
        value = np.where(np.abs(value) <= _ROUNDING, 0.0, value)
        rest = choices.pair, unknown, unknown, unknown
        return cls("choices", choices.a, choices.b, value, *rest)


def response_of(comparisons: Comparisons, judge: str) -> Response:
    """Return a judge's response: from its log-odds if most answers have them, else its choices."""
    judgments = comparisons.judgments(judge)
    kind: Kind = "log-odds" if judgments.measured else "choices"
    if kind == "log-odds":
        kept, shown = judgments.soft, _log_odds(judgments)
    else:
        kept = np.ones(len(judgments.soft), dtype=bool)
        shown = (judgments.preference - 0.5) * judgments.sign
    rows = pd.DataFrame({"pair": judgments.pair, "first": judgments.first, "shown": shown})[kept]
    by_question = rows.groupby(["pair", "first"])["shown"].agg(["mean", "var", "count"])
    answers = pd.DataFrame(by_question.unstack())
    _, row = np.unique(judgments.pair[kept], return_index=True)
    return _response(kind, judgments.a[kept][row], judgments.b[kept][row], answers)


def _log_odds(judgments: Judgments) -> Floats:
    """Return log-odds of the option shown first; a stated 0 or 100 % counts half a step inside."""
    least = 0.5 * STATED_TO
    p = np.clip(judgments.first_shown, least, 1.0 - least)
    return np.where(judgments.format == "probability", logit(p), judgments.log_odds)


def _response(kind: Kind, a: Floats, b: Floats, answers: pd.DataFrame) -> Response:
    """Return the response from answers for the option shown first, by pair and order."""

    def column(statistic: str, first: bool) -> Floats:
        if (statistic, first) not in answers.columns:
            return np.full(len(answers), np.nan)
        return np.asarray(answers[(statistic, first)], dtype=np.float64)

    ab, ba = column("mean", True), column("mean", False)
    position = 0.5 * (ab + ba)
    both = np.isfinite(position)
    single = np.where(both, np.nan, np.where(np.isfinite(ab), ab, ba))
    # A question asked once has no variance estimate, so that of the other order is used for both.
    variances = np.stack([column("var", side) / column("count", side) for side in (True, False)])
    known = np.isfinite(variances)
    repeats = np.where(known, variances, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    noise = np.where(known.any(0), np.where(both, 0.5, 1.0) * repeats, np.nan)
    pair = np.asarray(answers.index, dtype=np.int64)
    found = Response(kind, a, b, np.zeros(len(answers)), pair, position, single, noise)
    centre = found.mean_position
    one = np.where(np.isfinite(ab), single - centre, centre - single)
    value = np.where(both, 0.5 * (ab - ba), one)
    least = _ROUNDING * np.fmax(np.abs(ab), np.abs(ba))
    value = np.where(np.abs(value) <= least, 0.0, value)
    return Response(kind, a, b, value, pair, position, single, noise)
