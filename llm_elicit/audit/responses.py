"""The response to each pair: a judge's answers as one number, which tests of preference use.

Soft answers are log-odds ℓ of the option shown first. With the pair (a, b) asked in both orders

    ℓ_ab = m + g(a) − g(b) + e,      ℓ_ba = m − (g(a) − g(b)) + e',

half the difference is the response and half the sum is the pair's position effect m. For choices,
ℓ = P − 1/2. A pair asked in one order only has ℓ minus the mean position effect.

Questions may be put in several presentations, each with a position effect of its own. What it adds
to the mean effect is subtracted first: half sums do not change when a pair's points are exchanged.

A log-odds of which only a bound is known counts as the bound. Exchanging the points exchanges the
bounds, too, so tests stay exact; the true response is at least as large as the one used.

If the answers ignore the points, exchanging the points of a pair leaves the joint distribution of
points and answers unchanged and flips the sign of the pair's response. Multiplying all log-odds by
a constant multiplies all responses by it; nothing here goes through probabilities, which saturate.

*Agreement.* Answers that ignore the points may depend on the answers before them: they drift, or
alternate. Both orders of a pair are asked next to each other, so their product depends on that as
much as on the points. Hence a pair's agreement is the product of its two answers less the product
of two answers about different pairs that were asked equally far apart: without content its mean is
0, however answers depend on time, as long as they do so in the same way throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logit

from llm_elicit.comparisons.table import PROBABILITY_ROUNDING, Choices, Comparisons
from llm_elicit.spaces.features import Floats

Index = npt.NDArray[np.int64]
ResponseKind = Literal["log-odds", "choices"]
_ROUNDING = 1e-9
"""Half differences this small relative to the answers are rounding error, not a preference."""

# Standard deviation of the kernel of robust responses, in median absolute log-odds.
_ROBUST_WIDTH = 2.0


@dataclass(frozen=True)
class Response:
    """A judge's answers, one row per answered pair, in the order of the pairs' numbers.

    Attributes:
        kind: whether values are log-odds (nats) or choices (preference − 1/2).
        a, b: the points, `(n, d)`, natural units.
        value: preference for a over b without the position effect, `(n,)`.
        pair: the pairs' numbers, `(n,)`.
        position: half sums of pairs asked in both orders, else NaN, `(n,)`.
        single_order: the answer for the option shown first, of pairs asked in one order; NaN for
            other pairs, `(n,)`.
        noise: variance of `value` from repeated questions; NaN if no question of the pair was
            repeated, `(n,)`.
        robust_value: as `value`, with outlying log-odds downweighted; 0 for choices, `(n,)`.
        is_censored: whether a log-odds of the pair is known only as a bound, `(n,)`.
        side: 1 if a was shown first and −1 if b was, of pairs asked in one order; 0 for other
            pairs, `(n,)`.
        agreement: agreement of the answers in the two orders about the preferred point, or of
            repeated answers if all pairs were asked in one order; NaN for a pair without two such
            answers, `(n,)`.
        agreement_control: the products of answers about different pairs that were subtracted in
            `agreement`, `(n,)`.
    """

    kind: ResponseKind
    a: Floats
    b: Floats
    value: Floats
    pair: Index
    position: Floats
    single_order: Floats
    noise: Floats
    robust_value: Floats
    is_censored: npt.NDArray[np.bool_]
    side: Floats
    agreement: Floats
    agreement_control: Floats

    def __len__(self) -> int:
        return len(self.value)

    @property
    def mean_position(self) -> float:
        """The mean position effect: over pairs asked in both orders, or else over all pairs.

        Examples:
            >>> points = np.zeros((2, 1))
            >>> choices = Choices(points, points, np.ones(2), np.arange(2))
            >>> Response.from_choices(choices).mean_position
            0.0
        """
        for effects in (self.position, self.single_order):
            if np.isfinite(effects).any():
                return float(np.nanmean(effects))
        return 0.0

    @property
    def variants(self) -> list[Floats]:
        """`value`, and `robust_value` if known; tests use the larger of their statistics."""
        return [self.value, self.robust_value] if self.robust_value.any() else [self.value]

    @property
    def estimated_side(self) -> Floats:
        """The coefficient in `value` of the position effect estimated from the values, `(n,)`.

        0 if pairs asked in both orders determine it.
        """
        return np.where(np.isfinite(self.position).any(), 0.0, self.side)

    @property
    def squares(self) -> Floats:
        """Squares of `value` less the position effect estimated from the other pairs, `(n,)`."""
        side = self.estimated_side
        count = float(side @ side)
        return np.square(self.value * np.where(side == 0.0, 1.0, count / max(count - 1.0, 1.0)))

    def head(self, end: int) -> Response:
        """Return the first `end` pairs."""
        return self.rows(slice(end))

    def rows(self, rows: slice | Index | npt.NDArray[np.bool_]) -> Response:
        """Return these rows."""
        _, *columns = fields(self)
        return Response(self.kind, *(getattr(self, column.name)[rows] for column in columns))

    @classmethod
    def from_choices(cls, choices: Choices) -> Response:
        """Return the response from choices, whatever orders they were asked in."""
        nan, zeros = np.full(len(choices), np.nan), np.zeros(len(choices))
        value = choices.preference - 0.5
        # Averages of P and 1 - P leave rounding error, which is not a preference.
        value = np.where(np.abs(value) <= _ROUNDING, 0.0, value)
        columns = choices.pair, nan, nan, nan, zeros, zeros > 0.0, zeros, nan, nan
        return cls("choices", choices.a, choices.b, value, *columns)


def build_response(
    comparisons: Comparisons, judge: str, presentation: str | None = None
) -> Response:
    """Return a judge's response: from its log-odds if most answers have them, else its choices.

    With a `presentation`, it is that of the questions that were put in this way alone.
    """
    judgments = comparisons.judgments(judge)
    kind: ResponseKind = "log-odds" if judgments.measured else "choices"
    is_asked = np.ones(len(judgments.soft), dtype=bool)
    if presentation is not None:
        is_asked = judgments.presentation == presentation
    is_used = is_asked
    answers = (judgments.preference - 0.5) * judgments.sign
    if kind == "log-odds":  # a stated 0 or 100 % counts half a step inside
        half_step = 0.5 * PROBABILITY_ROUNDING
        p = np.clip(judgments.first_preference, half_step, 1.0 - half_step)
        is_stated = judgments.format == "probability"
        is_used = is_asked & judgments.soft
        answers = np.where(is_stated, logit(p), judgments.log_odds)
    pair, row, number = np.unique(judgments.pair[is_used], return_index=True, return_inverse=True)
    first, answers = judgments.first[is_used], answers[is_used]
    answers = answers - _of_presentations(judgments.presentation[is_used], number, first, answers)
    # Answers with the same time, as in a table without times, were asked in the planned order.
    in_time = np.lexsort(
        (~first, judgments.replicate[is_used], number, judgments.asked_at[is_used])
    )
    agreement = _measure_agreement(number[in_time], first[in_time], answers[in_time])
    bound = np.bincount(number, judgments.censored[is_used] != 0) > 0
    points = judgments.a[is_used][row], judgments.b[is_used][row]
    question, questions = 2 * number + ~first, 2 * len(pair)
    count = np.bincount(question, minlength=questions)
    with np.errstate(invalid="ignore"):  # NaN for questions without an answer
        mean = np.bincount(question, answers, questions) / count
        squares = np.bincount(question, np.square(answers - mean[question]), questions)
        variances = (squares / (count - 1.0) / count).reshape(-1, 2).T
    ab, ba = mean.reshape(-1, 2).T
    position = 0.5 * (ab + ba)
    in_both_orders = np.isfinite(position)
    single = np.where(in_both_orders, np.nan, np.where(np.isfinite(ab), ab, ba))
    # A question asked once has no variance estimate; the estimate of the other order is used.
    has_repeats = np.isfinite(variances)
    repeats = np.where(has_repeats, variances, 0.0).sum(0) / np.maximum(has_repeats.sum(0), 1)
    noise = np.where(has_repeats.any(0), np.where(in_both_orders, 0.5, 1.0) * repeats, np.nan)
    side = np.where(in_both_orders, 0.0, np.where(np.isfinite(ab), 1.0, -1.0))
    zeros = np.zeros(len(pair))
    robust = _robust_differences(np.stack([ab, ba])) if kind == "log-odds" and len(pair) else zeros
    response = Response(
        kind, *points, zeros, pair, position, single, noise, robust, bound, side, *agreement
    )
    value = np.where(in_both_orders, 0.5 * (ab - ba), side * (single - response.mean_position))
    rounding = _ROUNDING * np.fmax(np.abs(ab), np.abs(ba))
    return replace(response, value=np.where(np.abs(value) <= rounding, 0.0, value))


def _of_presentations(
    presentation: npt.NDArray[np.str_], pair: Index, first: npt.NDArray[np.bool_], answers: Floats
) -> Floats:
    """Return the position effect of each answer's presentation less their mean `(n,)`.

    It is the mean half sum of the presentation's pairs, or answer where none has both orders.
    """
    if not (presentation != presentation[:1]).any():
        return np.zeros(len(answers))
    rows = pd.DataFrame({"presentation": presentation, "pair": pair, "first": first})
    by_question = pd.Series(answers).groupby([rows[name] for name in rows]).mean().unstack()
    means = by_question.mean(axis=1)
    in_both_orders = by_question.notna().all(axis=1) & (by_question.shape[1] == 2)
    effects = means.where(in_both_orders).groupby("presentation").mean()
    effects = effects.fillna(means.groupby("presentation").mean())
    of_rows = rows["presentation"].map(effects).to_numpy(np.float64)
    return np.asarray(of_rows - of_rows.mean())


def _robust_differences(answers: Floats) -> Floats:
    """Return half differences `(n,)` of log-odds `(2, n)`, with outliers downweighted.

    The log-odds less their median are multiplied by a normal kernel (Holland and Welsch 1977), so
    that a few outliers do not hide the preference of the other answers.
    """
    centred = (answers - np.nanmedian(answers)) * np.array([[1.0], [-1.0]])
    width = _ROBUST_WIDTH * float(np.nanmedian(np.abs(centred)))
    if width == 0.0:
        return np.zeros(answers.shape[1])
    return np.asarray(np.nanmean(centred * np.exp(-0.5 * np.square(centred / width)), axis=0))


def _measure_agreement(
    pair: Index, first: npt.NDArray[np.bool_], answers: Floats
) -> tuple[Floats, Floats]:
    """Return `Response.agreement` and `agreement_control`, each by pair `(n,)`.

    Args:
        pair: the pair of each answer, numbered from 0, in the order in which answers were asked.
        first: whether point a was shown first.
        answers: answers for the preferred point.
    """
    count = len(answers)
    answers = answers - answers.sum() / max(count, 1)
    by_pair = np.argsort(pair, kind="stable")
    max_answers = int(np.bincount(pair).max(initial=0))
    answer_pairs = np.concatenate([
        np.stack([by_pair[:-lag], by_pair[lag:]]) for lag in range(1, max_answers)
    ] or [np.zeros((2, 0), dtype=np.int64)], axis=1)  # fmt: skip
    answer_pairs = answer_pairs[:, pair[answer_pairs[0]] == pair[answer_pairs[1]]]
    opposite = first[answer_pairs[0]] != first[answer_pairs[1]]
    sign = -1.0 if opposite.any() else 1.0
    answer_pairs = answer_pairs[:, opposite == opposite.any()]
    control = np.full(answer_pairs.shape[1], np.nan)
    shifts = [*range(1, max_answers + 1), *range(-1, -max_answers - 1, -1)]
    # If all pairs were asked once and then all again, no two answers about different pairs are
    # equally far apart; then answers one step further apart are used.
    for shift in [*((step, step) for step in shifts), *((0, step) for step in shifts)]:
        shifted = answer_pairs + np.array(shift)[:, None]
        is_asked = (shifted >= 0).all(axis=0) & (shifted < count).all(axis=0)
        shifted = shifted % max(count, 1)
        is_usable = np.isnan(control) & is_asked & (pair[shifted[0]] != pair[shifted[1]])
        control[is_usable] = answers[shifted].prod(axis=0)[is_usable]
    agreement = sign * (answers[answer_pairs].prod(axis=0) - control)
    has_control, pairs = np.isfinite(control), int(pair.max(initial=-1)) + 1
    pair_with_control = pair[answer_pairs[0]][has_control]
    with np.errstate(invalid="ignore"):  # NaN for pairs without two answers
        rows = np.bincount(pair_with_control, minlength=pairs)
        means = [
            np.bincount(pair_with_control, x[has_control], pairs) / rows
            for x in (agreement, control)
        ]
    return means[0], means[1]
