"""Judgments of every kind as one thing: comparisons, each with who made it and how.

*Rankings* are broken into comparisons exactly. By Plackett–Luce a judge picks the best of m, then
the best of the rest; the score (the gradient of the log-likelihood) of one pick w among S is

    ∇f_w − Σ_j π_j ∇f_j  =  Σ_{j ≠ w} v_wj · (1 − F(f_w − f_j)) (∇f_w − ∇f_j),   v_wj = π_w + π_j,

π the chances of S, F logistic: that of Bradley–Terry comparisons of w with each of the others,
weighted by the chance that the pick falls on the two. v is symmetric, so that these comparisons
are unbiased whatever utility the weights are taken at; at its own they have Plackett–Luce's
score and its expected information, Σ_{j<k} v² (π_j π_k/v²) (∇f_j − ∇f_k)² being the variance of
∇f under π. With equal utilities v = 2/m, and one for a pick of two.

*Ties* are two comparisons of half a weight; see `llm_elicit.density.choice`. *Replicates* are
given as often as they were asked. *Positions* let an order bias be estimated with the utility,
and names let several *judges* have noise levels of their own and one belief.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_elicit.density.errors import DensityError

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
UNKNOWN = -1


@dataclass(frozen=True)
class Evidence:
    """n comparisons with their circumstances. Made by `comparisons` and `rankings`, joined by +.

    ``winners``, ``losers`` (n, d) in natural units, ``weights`` (n,) >= 0; ``judge`` (n,) numbers
    of ``judges``; ``positions`` (n, 2) where winner and loser were shown, from 0, of ``shown`` (n,)
    places, −1 where not known; ``tie`` (n,) whether the row is half of a tie; ``pick`` (n,) which
    pick of a ranking the row belongs to, −1 for none; ``asked`` (n,) which question of several
    alternatives, −1 for a pair.

    Examples
    --------
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
    shown: Index
    tie: npt.NDArray[np.bool_]
    pick: Index
    asked: Index
    judges: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.weights)

    @classmethod
    def comparisons(
        cls,
        a: npt.ArrayLike,
        b: npt.ArrayLike,
        preference: npt.ArrayLike = 1.0,
        *,
        tie: npt.ArrayLike = False,
        first: npt.ArrayLike | None = None,
        weights: npt.ArrayLike = 1.0,
        judge: str = "judge",
    ) -> Evidence:
        """Judgments of pairs.

        Parameters
        ----------
        a, b : (n, d) the two points.
        preference : (n,) probability in 0..1 that a is preferred: 1 and 0 are hard judgments.
        tie : (n,) whether the judge called the two equal; ``preference`` is not read there.
        first : (n,) whether a was shown first; None where the order is not known or not to be
            modelled.
        weights : (n,) how many judgments each row stands for.
        judge : the judge's name.

        Raises
        ------
        DensityError : shapes that differ, or a preference that is no probability.
        """
        one, other = _points(a, "a", 2), _points(b, "b", 2)
        n = len(one)
        if one.shape != other.shape:
            raise DensityError(
                f"Evidence: a has shape {one.shape} and b {other.shape}; row i of each is one "
                "comparison, so the shapes must be equal; pass matching arrays."
            )
        q, mass = _column(preference, n, "preference"), _column(weights, n, "weights")
        even = np.broadcast_to(np.asarray(tie, dtype=bool), n)
        q = np.where(even, 0.5, q)
        bad = np.flatnonzero(~((q >= 0) & (q <= 1)))
        if bad.size:
            raise DensityError(
                f"Evidence: preference[{bad[0]}] is {q[bad[0]]}; it is the probability that a is "
                "preferred, between 0 and 1; leave out judgments without one."
            )
        position = np.full((n, 2), UNKNOWN)
        if first is not None:
            a_first = np.broadcast_to(np.asarray(first, dtype=bool), n)
            position = np.stack([~a_first, a_first], axis=1).astype(np.int64)
        none = np.full(2 * n, UNKNOWN)
        found = cls(
            np.concatenate([one, other]),
            np.concatenate([other, one]),
            np.concatenate([q, 1.0 - q]) * np.tile(mass, 2),
            np.zeros(2 * n, dtype=np.int64),
            np.concatenate([position, position[:, ::-1]]),
            np.full(2 * n, 2),
            np.tile(even, 2),
            none,
            none,
            (judge,),
        )
        return found._rows(found.weights != 0)

    @classmethod
    def rankings(
        cls,
        points: npt.ArrayLike,
        ranking: npt.ArrayLike,
        *,
        positions: bool = True,
        judge: str = "judge",
    ) -> Evidence:
        """Rankings of k points each, as Plackett–Luce understands them.

        Parameters
        ----------
        points : (n, k, d) the points of each question in the order they were shown.
        ranking : (n, r) their numbers, best first; r < k ranks the best r and leaves the others
            behind them.
        positions : whether a preference for places is to be estimated.
        judge : the judge's name.

        Raises
        ------
        DensityError : a ranking that is not of different numbers of 0..k−1.
        """
        sets = _points(points, "points", 3)
        n, k = sets.shape[:2]
        order = np.asarray(ranking)
        if order.ndim != 2 or len(order) != n or not 1 <= order.shape[1] <= k:
            raise DensityError(
                f"Evidence: ranking has shape {order.shape}, expected ({n}, r) with r in 1..{k}: "
                "the numbers of the points of a question, best first; pass a row a question."
            )
        for i, row in enumerate(order):
            if len(set(row.tolist())) < len(row) or not set(row.tolist()) <= set(range(k)):
                raise DensityError(
                    f"Evidence: ranking[{i}] is {row.tolist()}; it must be different numbers of "
                    f"0..{k - 1}, best first; drop answers that are not rankings."
                )
        rest = [sorted(set(range(k)) - set(row.tolist())) for row in order]
        whole = np.array([[*row, *left] for row, left in zip(order.tolist(), rest, strict=True)])
        picks = min(order.shape[1], k - 1)
        rows = [(p, j) for p in range(picks) for j in range(p + 1, k)]
        best, worse = (np.array(side) for side in zip(*rows, strict=True))
        question = np.repeat(np.arange(n), len(rows))
        winner, loser = whole[:, best].ravel(), whole[:, worse].ravel()
        place = np.stack([winner, loser], axis=1)
        pick = question * picks + np.tile(best, n)
        none = np.full(len(question), UNKNOWN)
        return cls(
            sets[question, winner],
            sets[question, loser],
            np.ones(len(question)),
            np.zeros(len(question), dtype=np.int64),
            place if positions else np.full_like(place, UNKNOWN),
            np.full(len(question), k),
            np.zeros(len(question), dtype=bool),
            pick if k > 2 else none,
            question if k > 2 else none,
            (judge,),
        )

    def __add__(self, other: Evidence) -> Evidence:
        """All comparisons of both; judges of one name are one judge."""
        judges = tuple(dict.fromkeys(self.judges + other.judges))
        parts = (self._renamed(judges, 0, 0), other._renamed(judges, *self._used()))
        named = [field.name for field in fields(self) if field.name != "judges"]
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in named
        }  # fmt: skip
        return Evidence(**joined, judges=judges)

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Every array of the evidence: equal evidence has equal arrays."""
        for field in fields(self):
            if field.name != "judges":
                yield getattr(self, field.name)

    def _used(self) -> tuple[int, int]:
        """How many numbers of picks and of questions are taken."""
        return int(self.pick.max(initial=-1)) + 1, int(self.asked.max(initial=-1)) + 1

    def _renamed(self, judges: tuple[str, ...], picks: int, asked: int) -> Evidence:
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        number = np.array([judges.index(name) for name in self.judges])
        known |= {"judge": number[self.judge], "judges": judges}
        known["pick"] = np.where(self.pick == UNKNOWN, UNKNOWN, self.pick + picks)
        known["asked"] = np.where(self.asked == UNKNOWN, UNKNOWN, self.asked + asked)
        return Evidence(**known)

    def _rows(self, kept: npt.NDArray[np.bool_]) -> Evidence:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return Evidence(**{k: v if k == "judges" else v[kept] for k, v in named.items()})


def _points(values: npt.ArrayLike, name: str, axes: int) -> Array:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DensityError(f"Evidence: {name} cannot be read as numbers ({error}).") from error
    if array.ndim != axes or 0 in array.shape:
        shape = "(n, d)" if axes == 2 else "(n, k, d)"
        raise DensityError(
            f"Evidence: {name} has shape {array.shape}; it must be {shape}; "
            "reshape a single feature to a last axis of one."
        )
    return array


def _column(values: npt.ArrayLike, n: int, name: str) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"Evidence: {name} has shape {array.shape}; one number a comparison is needed, "
            f"shape ({n},); pass one for each row of a."
        )
    return np.broadcast_to(array, n).copy()
