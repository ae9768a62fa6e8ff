"""Judgments of all kinds in one table: comparisons with their circumstances, and log-odds.

*Rankings* become comparisons, weighted as in `llm_elicit.density.utility.judges`. *Ties* are two
comparisons of weight ½; see `llm_elicit.density.likelihood`. *Replicates* are repeated rows.
*Positions* let a position effect be estimated with the utility, and names give each of several
*judges* a noise level of its own with one common belief.

*Log-odds* and stated probabilities are measurements. `Evidence.log_odds` and
`Evidence.probabilities` keep them apart from the comparisons, as `LogOdds`, one row per question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_elicit.density import errors
from llm_elicit.density.errors import Array, DensityError, Flags, Index
from llm_elicit.density.feature_names import FeatureNames, match_frames, stack_frames

UNKNOWN = -1
_SIDES = ("Evidence: first", "Evidence: second")  # the two points of a question, in messages


@dataclass(frozen=True)
class LogOdds:
    """m measured log-odds, one row per question: log P(first shown) / P(second shown).

    Attributes:
        first: (m, d) points in natural units.
        second: (m, d) points in natural units.
        value: (m,) nats.
        rounding_sd: (m,) standard deviation due to rounding, nats.
        censored: (m,) 1 if the log-odds are known only to be at least ``value``, −1 if at most,
            else 0.
        judge: (m,) numbers of the evidence's judges.
        presentation: (m,) numbers of the evidence's presentations.
    """

    first: Array
    second: Array
    value: Array
    rounding_sd: Array
    censored: Index
    judge: Index
    presentation: Index

    def __len__(self) -> int:
        return len(self.value)

    @classmethod
    def exact(cls, first: Array, second: Array, value: Array) -> LogOdds:
        """Return exact log-odds by one judge."""
        n = len(value)
        censored, judge, presentation = np.zeros((3, n), dtype=np.int64)
        return cls(first, second, value, np.zeros(n), censored, judge, presentation)

    @classmethod
    def from_bounds(cls, first: Array, second: Array, lower: Array, upper: Array) -> LogOdds:
        """Return log-odds with bounds (m,), which are equal where the value is known.

        A finite interval counts as its middle, uniform within it.
        """
        no_upper, no_lower = np.isinf(upper), np.isinf(lower)
        is_interval = ~(no_upper | no_lower)
        value = np.where(no_upper, lower, upper)
        value[is_interval] = 0.5 * (lower[is_interval] + upper[is_interval])
        rounding_sd = np.zeros(len(value))
        rounding_sd[is_interval] = (upper[is_interval] - lower[is_interval]) / np.sqrt(12.0)
        censored = no_upper.astype(np.int64) - no_lower
        return replace(cls.exact(first, second, value), rounding_sd=rounding_sd, censored=censored)

    @classmethod
    def from_probabilities(
        cls, first: Array, second: Array, probability: Array, rounding: float
    ) -> LogOdds:
        """Return the log-odds of stated probabilities (m,), known up to ``rounding``."""
        half = 0.5 * rounding
        clipped = np.clip(probability, half, 1.0 - half)
        censored = (probability >= 1.0 - half).astype(np.int64) - (probability <= half)
        rounding_sd = rounding / np.sqrt(12.0) / (clipped * (1.0 - clipped))
        rounding_sd[censored != 0] = 0.0
        value = np.log(clipped / (1.0 - clipped))
        return replace(cls.exact(first, second, value), rounding_sd=rounding_sd, censored=censored)


@dataclass(frozen=True)
class Evidence:
    """n comparisons with their circumstances, and m measured log-odds; + joins two of them.

    It is made by `comparisons`, `rankings`, `log_odds` and `probabilities`.

    Attributes:
        winners: (n, d) points in natural units.
        losers: (n, d) points in natural units.
        weights: (n,) >= 0.
        judge: (n,) numbers of ``judges``.
        positions: (n, 2) positions, from 0, at which winner and loser were shown; −1 if unknown.
        shown_count: (n,) number of points shown in the question.
        tie: (n,) whether the row is half of a tie.
        pick: (n,) number of the pick of a ranking; −1 for none.
        question: (n,) number of a question with several alternatives; −1 for a pair.
        presentation: (n,) numbers of ``presentations``; −1 for none.
        judges: names of the judges.
        measurements: the log-odds.
        features: names of the features, if the points were data frames.
        presentations: names of the presentations, such as wordings.

    Points are arrays (n, d), or data frames, whose columns are matched by name.

    Examples:
        >>> import numpy as np
        >>> pairs = Evidence.comparisons([[0.0], [1.0]], [[2.0], [3.0]], [1.0, 0.2], judge="one")
        >>> ranks = Evidence.rankings([[[0.0], [1.0], [2.0]]], [[2, 0, 1]], judge="two")
        >>> both = pairs + ranks
        >>> len(both), both.judges
        (6, ('one', 'two'))
    """

    winners: Array
    losers: Array
    weights: Array
    judge: Index
    positions: Index
    shown_count: Index
    tie: Flags
    pick: Index
    question: Index
    presentation: Index
    judges: tuple[str, ...]
    measurements: LogOdds
    features: FeatureNames | None = None
    presentations: tuple[str, ...] = ("",)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.judges))
        text = f"Evidence({len(self)} rows on {self.dimension} features, by {names})"
        return errors.abbreviate(text)

    def __len__(self) -> int:
        return len(self.weights) + len(self.measurements)

    @property
    def pairs(self) -> int:
        """Number of distinct pairs of points that were judged, in any order."""
        sides = [(self.winners, self.losers), (self.measurements.first, self.measurements.second)]
        rows = [np.concatenate(order_points(*side), axis=1) for side in sides]
        return len(np.unique(np.concatenate(rows), axis=0))

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.winners.shape[1])

    def reorder_features(self, order: Sequence[int]) -> Evidence:
        """Return the same judgments of points with the features of these numbers, in this order."""
        columns, first, second = list(order), self.measurements.first, self.measurements.second
        measurements = replace(
            self.measurements, first=first[:, columns], second=second[:, columns]
        )
        winners, losers = self.winners[:, columns], self.losers[:, columns]
        return replace(self, winners=winners, losers=losers, measurements=measurements)

    def without_presentations(self) -> Evidence:
        """Return the same judgments as if all were made in one presentation."""
        zeros, rows = np.zeros_like(self.presentation), self.measurements
        measurements = replace(rows, presentation=np.zeros_like(rows.presentation))
        return replace(self, presentation=zeros, presentations=("",), measurements=measurements)

    @classmethod
    def log_odds(
        cls,
        first: npt.ArrayLike,
        second: npt.ArrayLike,
        log_odds: npt.ArrayLike | None = None,
        *,
        lower: npt.ArrayLike | None = None,
        upper: npt.ArrayLike | None = None,
        presentation: Sequence[str] | npt.NDArray[Any] | None = None,
        judge: str = "judge",
    ) -> Evidence:
        """Return answers with measured log-odds, such as of the log-probabilities of two letters.

        One row per question: the same pair in the other order, or asked again, is another row. The
        fit estimates the position effect and the noise of a measurement from the rows.

        A provider that lists the likeliest tokens alone may omit one of the letters, whose
        probability is then known only to be at most that of the last token listed. Such a
        log-odds is censored: give ``lower`` and ``upper`` bounds in place of ``log_odds``.

        If the pairs were spread over several presentations (wordings, worked examples, units, ...),
        the belief is what they have in common, and its band says how far that is known: see
        `llm_elicit.density.utility.gaussian_process`.

        Args:
            first: (n, d) the points shown first, natural units.
            second: (n, d) the points shown second, natural units.
            log_odds: (n,) log P(first) / P(second), nats, finite.
            lower: (n,) lower bounds of the log-odds, nats; −∞ (the default) where there is none. A
                known value has equal bounds.
            upper: (n,) upper bounds of the log-odds, nats; ∞ (the default) where there is none.
            presentation: (n,) names of the presentations of the questions; None for one.
            judge: the judge's name.

        Raises:
            DensityError: shapes that do not fit, a log-odds that is not finite, values beside
                bounds, a lower bound above the upper one, or a row without either.

        Examples:
            >>> import numpy as np
            >>> from llm_elicit.density import Uniform, fit_evidence
            >>> rng = np.random.default_rng(0)
            >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
            >>> log_odds = (0.1 * (abs(b - 1) - abs(a - 1))[:, 0]
            ...             + 0.3)    # prefers 1, and what is first
            >>> belief = fit_evidence(Evidence.log_odds(a, b, log_odds),
            ...                       sampling=Uniform([-3], [3]))
            >>> round(belief.diagnostics["response"]["position"]["mean"], 1)
            0.3
            >>> at_least_4 = Evidence.log_odds([[0.0], [0.0]], [[1.0], [2.0]], lower=[1.5, 4.0],
            ...                                upper=[1.5, np.inf])
            >>> at_least_4.measurements.value.tolist(), at_least_4.measurements.censored.tolist()
            ([1.5, 4.0], [0, 1])
        """
        x_first, x_second, names = _check_sides(_SIDES, first, second)
        n = len(x_first)
        if lower is None and upper is None:
            if log_odds is None or np.ndim(log_odds) == 0:
                what = "None" if log_odds is None else "one number"
                raise DensityError(
                    f"Evidence: log_odds is {what}; one per row is needed, shape ({n},); or give "
                    "lower and upper."
                )
            lower = upper = errors.check_column("Evidence: log_odds", log_odds, n)
        elif log_odds is not None:
            raise DensityError(
                "Evidence: log_odds was given together with its bounds; give lower and upper "
                "alone, equal where the log-odds is known."
            )
        bounds = []
        for name, values, open_end in (("lower", lower, -np.inf), ("upper", upper, np.inf)):
            label = f"Evidence: {name}"
            bound = open_end if values is None else values
            bounds.append(errors.check_column(label, bound, n, finite=False))
            # An open end (−∞ below, ∞ above) is allowed.
            errors.check_finite(label, np.where(bounds[-1] == open_end, 0.0, bounds[-1]))
        low, high = bounds
        for i in np.flatnonzero((low > high) | (np.isinf(low) & np.isinf(high))):
            raise DensityError(
                f"Evidence: lower[{i}] is {low[i]} and upper[{i}] {high[i]}; lower must be at most "
                "upper, and one of them finite; leave out answers without either bound."
            )
        rows = LogOdds.from_bounds(x_first, x_second, low, high)
        return cls._from_log_odds(rows, presentation, judge, names)

    @classmethod
    def probabilities(
        cls,
        first: npt.ArrayLike,
        second: npt.ArrayLike,
        probability: npt.ArrayLike,
        *,
        rounding: float = 0.01,
        presentation: Sequence[str] | npt.NDArray[Any] | None = None,
        judge: str = "judge",
    ) -> Evidence:
        """Return answers that state the probability that the point shown first is preferred.

        They are log-odds known up to ``rounding``, the step between values that can be stated.
        One within half a step of 0 or 1 is censored. ``presentation`` is as in `log_odds`.

        Raises:
            DensityError: shapes that do not fit, a probability outside [0, 1], or a rounding
                outside (0, 0.5].

        Examples:
            >>> stated = Evidence.probabilities([[0.0], [0.0]], [[1.0], [2.0]], [0.73, 1.0])
            >>> stated.measurements.value.round(2).tolist(), stated.measurements.censored.tolist()
            ([0.99, 5.29], [0, 1])
        """
        x_first, x_second, names = _check_sides(_SIDES, first, second)
        p = errors.check_column("Evidence: probability", probability, len(x_first))
        _check_probabilities("probability", p)
        errors.check_number("Evidence: rounding", rounding, 0.0, 0.5)
        rows = LogOdds.from_probabilities(x_first, x_second, p, rounding)
        return cls._from_log_odds(rows, presentation, judge, names)

    @classmethod
    def _from_log_odds(
        cls, rows: LogOdds, presentation: Any, judge: str, names: FeatureNames | None
    ) -> Evidence:
        """Return log-odds without comparisons, asked in these presentations."""
        labels, numbers = _number_presentations(presentation, len(rows))
        rows, no_points = replace(rows, presentation=numbers), rows.first[:0]
        columns = {"measurements": rows, "features": names, "presentations": labels}
        return cls.from_rows(no_points, no_points, judge, **columns)

    @classmethod
    def from_rows(cls, winners: Array, losers: Array, judge: str, **columns: Any) -> Evidence:
        """Return rows by one judge; fields that are not in ``columns`` are those of plain pairs."""
        if not isinstance(judge, str) or not judge:
            raise DensityError(f"Evidence: judge = {judge!r}; it must be the judge's name.")
        n, no_points = len(winners), np.empty((0, winners.shape[1]))
        rows: dict[str, Any] = {
            "weights": np.ones(n),
            "judge": np.zeros(n, dtype=np.int64),
            "positions": np.full((n, 2), UNKNOWN),
            "shown_count": np.full(n, 2),
            "tie": np.zeros(n, dtype=bool),
            "pick": np.full(n, UNKNOWN),
            "question": np.full(n, UNKNOWN),
            "presentation": np.zeros(n, dtype=np.int64),
            "measurements": LogOdds.exact(no_points, no_points, np.empty(0)),
        }
        return cls(winners, losers, judges=(judge,), **rows | columns)

    @classmethod
    def choices(
        cls, winners: npt.ArrayLike, losers: npt.ArrayLike, weights: npt.ArrayLike | None = None
    ) -> Evidence:
        """Return plain comparisons by one judge, as `fit_belief` takes them.

        Raises:
            DensityError: shapes that differ, or not one weight for each row.
        """
        w, loser, names = _check_sides(("winners", "losers"), winners, losers)
        n = len(w)
        if weights is None:
            weights = 1.0
        elif np.shape(weights) != (n,):
            raise DensityError(
                f"weights has shape {np.shape(weights)}; one weight per comparison is needed, shape"
                f" ({n},); pass one number for each row of winners."
            )
        columns = {"weights": errors.check_column("weights", weights, n), "features": names}
        return cls.from_rows(w, loser, "judge", **columns)

    @classmethod
    def comparisons(  # noqa: PLR0913 - what there is to say of a judgment
        cls,
        a: npt.ArrayLike,
        b: npt.ArrayLike,
        preference: npt.ArrayLike = 1.0,
        *,
        tie: npt.ArrayLike = False,
        first: npt.ArrayLike | None = None,
        weights: npt.ArrayLike = 1.0,
        presentation: Sequence[str] | npt.NDArray[Any] | None = None,
        judge: str = "judge",
    ) -> Evidence:
        """Return judgments of pairs.

        Args:
            a: (n, d) the one point of each pair.
            b: (n, d) the other point.
            preference: (n,) probability in 0..1 that a is preferred: 1 and 0 are hard judgments.
            tie: (n,) whether the judge called the two equal; ``preference`` is then ignored.
            first: (n,) whether a was shown first; None if the order is unknown or irrelevant.
            weights: (n,) how many judgments each row stands for.
            presentation: as in `log_odds`.
            judge: the judge's name.

        Raises:
            DensityError: shapes that differ, a preference that is not a probability, or a negative
                weight.
        """
        x_a, x_b, names = _check_sides(("Evidence: a", "Evidence: b"), a, b)
        n = len(x_a)
        is_tie = errors.check_flags("Evidence: tie", tie, n)
        # Ties may have no preference.
        q = errors.check_column("Evidence: preference", preference, n, finite=False)
        q = np.where(is_tie, 0.5, q)
        weight_column = errors.check_column("Evidence: weights", weights, n)
        if (weight_column < 0).any():
            row = weight_column.argmin()
            raise DensityError(
                f"Evidence: weights[{row}] is {weight_column[row]}; a weight is >= 0; give an "
                "unwanted judgment weight 0."
            )
        _check_probabilities("preference", q)
        position = np.full((n, 2), UNKNOWN)
        if first is not None:
            a_first = errors.check_flags("Evidence: first", first, n)
            position = np.stack([~a_first, a_first], axis=1).astype(np.int64)
        labels, numbers = _number_presentations(presentation, n)
        evidence = cls.from_rows(
            np.concatenate([x_a, x_b]),
            np.concatenate([x_b, x_a]),
            judge,
            weights=np.concatenate([q, 1.0 - q]) * np.tile(weight_column, 2),
            positions=np.concatenate([position, position[:, ::-1]]),
            tie=np.tile(is_tie, 2),
            presentation=np.tile(numbers, 2),
            presentations=labels,
            features=names,
        )
        counts = evidence.weights != 0
        return replace(evidence, **{name: getattr(evidence, name)[counts] for name in _ROW_FIELDS})

    @classmethod
    def rankings(
        cls,
        points: npt.ArrayLike,
        ranking: npt.ArrayLike,
        *,
        positions: bool = True,
        judge: str = "judge",
    ) -> Evidence:
        """Return rankings of k points each, by the Plackett–Luce model.

        Args:
            points: (n, k, d) the points of each question in the order they were shown, or a list of
                k data frames, of those shown first, second, ...
            ranking: (n, r) their numbers, best first; r < k ranks the best r above the others.
            positions: whether a position effect is to be estimated.
            judge: the judge's name.

        Raises:
            DensityError: a ranking that does not consist of different numbers of 0..k−1.
        """
        if not isinstance(positions, bool | np.bool_):
            raise DensityError(f"Evidence: positions = {positions!r}; it must be True or False.")
        points, names = stack_frames("Evidence: points", points)
        sets = errors.check_table("Evidence: points", points, 3)
        n, k = sets.shape[:2]
        if k == 1:
            raise DensityError("Evidence: points has one point per question; a ranking needs two.")
        if np.asarray(ranking).dtype.kind not in "iu":
            raise DensityError(
                "Evidence: ranking must be whole numbers, those of a question's points; convert it "
                "to integers first."
            )
        ranked = errors.check_numbers("Evidence: ranking", ranking).astype(np.int64)
        if ranked.ndim != 2 or len(ranked) != n or not 1 <= ranked.shape[1] <= k:
            raise DensityError(
                f"Evidence: ranking has shape {ranked.shape}, expected ({n}, r) with r in 1..{k}: "
                "the numbers of the points of a question, best first; pass one row per question."
            )
        for i, row in enumerate(ranked.tolist()):
            if len(set(row)) < len(row) or not set(row) <= set(range(k)):
                raise DensityError(
                    f"Evidence: ranking[{i}] is {row}; it must be different numbers of "
                    f"0..{k - 1}, best first; drop answers that are not rankings."
                )
        # The points that are not ranked come last, in the order shown.
        is_ranked = np.zeros((n, k), dtype=bool)
        np.put_along_axis(is_ranked, ranked, True, axis=1)
        unranked = np.argsort(is_ranked, axis=1, kind="stable")[:, : k - ranked.shape[1]]
        order = np.concatenate([ranked, unranked], axis=1)
        # The first is picked above all others, the second above the rest, and so on.
        picks = min(ranked.shape[1], k - 1)
        winner_rank, loser_rank = np.array(
            [(p, j) for p in range(picks) for j in range(p + 1, k)]
        ).T
        question = np.repeat(np.arange(n), len(winner_rank))
        winner, loser = order[:, winner_rank].ravel(), order[:, loser_rank].ravel()
        columns: dict[str, Any] = {"shown_count": np.full(len(question), k), "features": names}
        if positions:
            columns["positions"] = np.stack([winner, loser], axis=1)
        if k > 2:
            columns |= {"pick": question * picks + np.tile(winner_rank, n), "question": question}
        return cls.from_rows(sets[question, winner], sets[question, loser], judge, **columns)

    def __add__(self, other: Evidence) -> Evidence:
        """Return the judgments of both; judges of one name are one judge."""
        errors.check_instance("Evidence + other: other", other, Evidence, "add only Evidence")
        if self.dimension != other.dimension:
            raise DensityError(
                f"Evidence: points of {self.dimension} features cannot be joined with points of "
                f"{other.dimension}; all evidence of one belief is about the same features."
            )
        if self.features and other.features and self.features != other.features:
            raise DensityError(
                f"Evidence: points of {self.features} cannot be joined with points of "
                f"{other.features}; use the same order of columns and the same categories."
            )
        judges = tuple(dict.fromkeys(self.judges + other.judges))
        used = (
            e.presentations if len(e.measurements) else tuple(filter(None, e.presentations))
            for e in (self, other)
        )  # fmt: skip
        presentations = tuple(dict.fromkeys(sum(used, ()))) or ("",)
        picks, questions = (int(ids.max(initial=-1)) + 1 for ids in (self.pick, self.question))
        parts = (
            self._renumber(judges, presentations, 0, 0),
            other._renumber(judges, presentations, picks, questions),
        )
        rows = [part.measurements for part in parts]
        return replace(
            parts[0],
            **_concatenate(parts, _ROW_FIELDS),
            measurements=LogOdds(**_concatenate(rows, _LOG_ODDS_FIELDS)),
            features=self.features or other.features,
        )

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Yield every array of the evidence: equal evidence has equal arrays."""
        yield from (getattr(self, name) for name in _ROW_FIELDS)
        if len(self.measurements):
            yield from (getattr(self.measurements, name) for name in _LOG_ODDS_FIELDS)

    def _renumber(
        self, judges: tuple[str, ...], presentations: tuple[str, ...], picks: int, questions: int
    ) -> Evidence:
        """Return the evidence with numbers of these names, and later picks and questions."""
        judge_numbers = np.array([judges.index(name) for name in self.judges])
        numbers = [
            presentations.index(p) if p in presentations else UNKNOWN for p in self.presentations
        ]
        # The last number is that of rows without a presentation.
        presentation_numbers = np.array([*numbers, UNKNOWN])
        rows = self.measurements
        measurements = replace(
            rows,
            judge=judge_numbers[rows.judge],
            presentation=presentation_numbers[rows.presentation],
        )
        return replace(
            self,
            judge=judge_numbers[self.judge],
            presentation=presentation_numbers[self.presentation],
            judges=judges,
            measurements=measurements,
            presentations=presentations,
            pick=np.where(self.pick == UNKNOWN, UNKNOWN, self.pick + picks),
            question=np.where(self.question == UNKNOWN, UNKNOWN, self.question + questions),
        )


_NOT_ROWS = ("judges", "measurements", "features", "presentations")
_ROW_FIELDS = tuple(f.name for f in fields(Evidence) if f.name not in _NOT_ROWS)
_LOG_ODDS_FIELDS = tuple(f.name for f in fields(LogOdds))


def _concatenate(parts: Sequence[Evidence | LogOdds], names: Sequence[str]) -> dict[str, Any]:
    """Return the parts' arrays of these names, concatenated."""
    return {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}


def _number_presentations(names: Any, count: int) -> tuple[tuple[str, ...], Index]:
    """Return the different names of presentations, and the number (n,) of each row's."""
    if names is None:
        return ("",), np.zeros(count, dtype=np.int64)
    names_of_rows = np.asarray(names)
    if names_of_rows.shape != (count,) or not all(
        isinstance(p, str) for p in names_of_rows.tolist()
    ):
        raise DensityError(
            f"Evidence: presentation must be {count} names, one per row; convert numbers to text."
        )
    labels = tuple(dict.fromkeys(names_of_rows.tolist())) or ("",)
    return labels, np.array([labels.index(p) for p in names_of_rows], dtype=np.int64)


def _check_sides(
    sides: tuple[str, str], first: Any, second: Any
) -> tuple[Array, Array, FeatureNames | None]:
    """Return two sides (n, d) of n questions, with the names of the features if they have any.

    Raises:
        DensityError: as `match_frames`, or sides that do not match.
    """
    first, second, names = errors.as_frame(first), errors.as_frame(second), None
    if hasattr(first, "columns") or hasattr(second, "columns"):
        first, second, names = match_frames(sides, first, second)
    a, b = errors.check_table(sides[0], first), errors.check_table(sides[1], second)
    if a.shape != b.shape:
        raise DensityError(
            f"{sides[0]} has shape {a.shape} and {sides[1]} {b.shape}; row i of each is one "
            "question, so the shapes must be equal; pass matching arrays."
        )
    return a, b, names


def _check_probabilities(name: str, values: Array) -> None:
    for i in np.flatnonzero(~((values >= 0) & (values <= 1))):
        raise DensityError(
            f"Evidence: {name}[{i}] is {values[i]}; a probability lies between 0 and 1; "
            "divide percentages by 100, and leave out answers without one."
        )


def order_points(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the lexically lesser and greater of both points (n, d) of each pair."""
    is_swap = is_swapped(first, second)[:, None]
    return np.where(is_swap, second, first), np.where(is_swap, first, second)


def is_swapped(first: Array, second: Array) -> Flags:
    """Return whether the first point comes after the second in lexical order (n,)."""
    first_difference = (first != second).argmax(1)[:, None]
    a, b = (np.take_along_axis(x, first_difference, 1)[:, 0] for x in (first, second))
    return np.asarray(a > b)
