"""What a judge said of each pair, as one number: what tests of its preference are about.

Soft answers are log-odds ℓ of the option shown first. With the pair (a, b) asked in both orders

    ℓ_ab = m + g(a) − g(b) + e,      ℓ_ba = m − (g(a) − g(b)) + e',

half the difference is the response and half the sum the pair's position effect m. Of choices the
same holds with ℓ = P − 1/2. A pair asked in one order alone has ℓ less the mean position effect.

If the answers ignore the points, exchanging the points of a pair leaves the joint law of points and
answers as it was, and turns the sign of the pair's response. Multiplying all log-odds by a constant
multiplies all responses by it; nothing here goes through probabilities, which saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from llm_elicit.comparisons.fit_inputs import STATED_TO
from llm_elicit.comparisons.table import Choices, Comparisons, Judgments
from llm_elicit.spaces.features import Floats

Kind = Literal["log-odds", "choices"]
_ROUNDING = 1e-9
"""Half differences this small beside the answers they are made of are rounding, no preference."""


@dataclass(frozen=True)
class Response:
    """A judge's answers, a row a pair with an answer, by rising numbers of pairs.

    Attributes:
        kind: whether values are log-odds (nats) or choices (preference − 1/2).
        a, b: the points, `(n, d)`, natural units.
        value: for a over b, the position effect taken out, `(n,)`.
        pair: the pairs' numbers, `(n,)`.
        position: half sums of pairs asked in both orders, else NaN, `(n,)`.
        single: answers for the option shown first of pairs asked in one order, else NaN, `(n,)`.
        noise: variance of `value` by answers to the same question; NaN where no question of the
            pair was asked again, `(n,)`.
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
        """The mean position effect: of pairs asked in both orders, else of the others; 0 of none.

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
        """The first `end` pairs."""
        points = self.a[:end], self.b[:end], self.value[:end], self.pair[:end]
        parts = self.position[:end], self.single[:end], self.noise[:end]
        return Response(self.kind, *points, *parts)

    @classmethod
    def of_choices(cls, choices: Choices) -> Response:
        """Of choices alone, whatever the orders they were asked in."""
        unknown = np.full(len(choices), np.nan)
        value = choices.preference - 0.5
        # Averages of P and 1 - P leave rounding, which is not a preference.
        value = np.where(np.abs(value) <= _ROUNDING, 0.0, value)
        rest = choices.pair, unknown, unknown, unknown
        return cls("choices", choices.a, choices.b, value, *rest)


def response_of(comparisons: Comparisons, judge: str) -> Response:
    """A judge's response: of its log-odds where it gave any, else of its choices."""
    said = comparisons.judgments(judge)
    kind: Kind = "log-odds" if said.soft.any() else "choices"
    kept = said.soft if kind == "log-odds" else np.ones(len(said.soft), dtype=bool)
    shown = _log_odds(said) if kind == "log-odds" else (said.preference - 0.5) * said.sign
    rows = pd.DataFrame({"pair": said.pair, "first": said.first, "shown": shown})[kept]
    by_question = rows.groupby(["pair", "first"])["shown"].agg(["mean", "var", "count"])
    asked = pd.DataFrame(by_question.unstack())
    _, row = np.unique(said.pair[kept], return_index=True)
    return _response(kind, said.a[kept][row], said.b[kept][row], asked)


def _log_odds(said: Judgments) -> Floats:
    """Of the option shown first; a stated 0 or 100 % counts as half a step from it."""
    least = 0.5 * STATED_TO
    p = np.clip(said.first_shown, least, 1.0 - least)
    return np.where(said.format == "probability", np.log(p / (1.0 - p)), said.log_odds)


def _response(kind: Kind, a: Floats, b: Floats, asked: pd.DataFrame) -> Response:
    """From answers for the option shown first, by pair and whether a was shown first."""

    def column(what: str, first: bool) -> Floats:
        if (what, first) not in asked.columns:
            return np.full(len(asked), np.nan)
        return np.asarray(asked[(what, first)], dtype=np.float64)

    ab, ba = column("mean", True), column("mean", False)
    position = 0.5 * (ab + ba)
    both = np.isfinite(position)
    single = np.where(both, np.nan, np.where(np.isfinite(ab), ab, ba))
    # A question asked once says nothing of its own noise: the other order's has to do for both.
    variances = np.stack([column("var", side) / column("count", side) for side in (True, False)])
    known = np.isfinite(variances)
    repeats = np.where(known, variances, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    noise = np.where(known.any(0), np.where(both, 0.5, 1.0) * repeats, np.nan)
    pair = np.asarray(asked.index, dtype=np.int64)
    found = Response(kind, a, b, np.zeros(len(asked)), pair, position, single, noise)
    centre = found.mean_position
    one = np.where(np.isfinite(ab), single - centre, centre - single)
    value = np.where(both, 0.5 * (ab - ba), one)
    least = _ROUNDING * np.fmax(np.abs(ab), np.abs(ba))
    value = np.where(np.abs(value) <= least, 0.0, value)
    return Response(kind, a, b, value, pair, position, single, noise)
