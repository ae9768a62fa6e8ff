"""Whether choices bound the sharpness of a belief from above: (quasi-)complete separation.

Where no choice contradicts a rule u, and some agree with it, choices are the likelier the larger
c is in c u: there is no most likely c (Albert and Anderson, 1984). They bound it from below only,
and that of the fit is due to its prior. The rules looked at are linear and quadratic ones, by a
linear program (Konis, 2007), and the fitted utility. No choice of a judge without noise contradicts
its rule, and of a noisy judge none may where answers are few.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import linprog

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]

_ROWS = 1000  # of the first program; later ones have the rows that its rule contradicts, too
_MORE = 500
_MOST_TERMS = 200
_TOLERANCE = 1e-6
_BY_CHANCE = 0.05
_RULES = {
    "linear": "a linear rule",
    "quadratic": "a quadratic rule",
    "fitted": "the fitted utility",
}


def separated_rows(columns: Array) -> Flags:
    """Return which rows x (n, P) have x·β > 0, for the β with the most of them and x·β >= 0 of all.

    Example:
        >>> separated_rows(np.array([[1.0], [2.0], [0.0]])).tolist()
        [True, True, False]
        >>> bool(separated_rows(np.array([[1.0], [-2.0]])).any())
        False
    """
    sizes = np.abs(columns).max(axis=0, initial=0.0)
    scaled = columns[:, sizes > 0.0] / sizes[sizes > 0.0]
    count, terms = scaled.shape
    mixed = np.random.default_rng(0).permutation(count)
    rows = np.sort(mixed[: max(_ROWS, 8 * terms)])
    while terms:
        some = scaled[rows]
        # The most of Σ s with x·β >= s and 0 <= s <= 1.
        rules = np.hstack([-some, np.eye(len(rows))])
        solution = linprog(
            np.concatenate([np.zeros(terms), -np.ones(len(rows))]),
            A_ub=rules,
            b_ub=np.zeros(len(rows)),
            bounds=[(None, None)] * terms + [(0.0, 1.0)] * len(rows),
        )
        if solution.x is None or float(np.sum(solution.x[terms:])) < 0.5:
            break
        sides = scaled @ solution.x[:terms]
        worst = np.argsort(sides)[:_MORE]
        against = np.setdiff1d(worst[sides[worst] < -_TOLERANCE], rows)
        if not len(against):
            return np.asarray(sides > _TOLERANCE)
        rows = np.union1d(rows, against)
    return np.zeros(count, dtype=bool)


def find_separation(
    design: Array, linear: int, order: Array, pairs: Index
) -> dict[str, Any] | None:
    """Return the linear or quadratic rule that no choice contradicts; None if there is none.

    Args:
        design: (n, P) terms of the winners less those of the losers, the first ``linear`` of them
            linear.
        order: (n, B) columns of position effects, which may explain choices, too.
        pairs: (n,) their numbers; rows of one pair are one answer.

    Returns what is JSON-able: ``rule`` is "linear", "quadratic" or "fitted"; ``pairs`` are those in
    which it has a preference, and ``complete`` says whether that is all of them; ``chance`` is the
    probability that as many random choices agree with some rule of its kind (Cover, 1965), and
    ``by_chance`` whether it is at least 5 %; ``message`` says so in one line.
    """
    by_position = separated_rows(order).sum()

    def separated(terms: int) -> Flags:
        decided = separated_rows(np.concatenate([design[:, :terms], order], axis=1))
        return decided if decided.sum() > by_position else np.zeros(len(decided), dtype=bool)

    terms = design.shape[1] if design.shape[1] <= _MOST_TERMS else linear
    decided = separated(terms)
    if not decided.any():
        return None
    if terms > linear and separated(linear).sum() == decided.sum():
        terms = linear
    rule = "linear" if terms == linear else "quadratic"
    differ = (design != 0.0).any(axis=1)
    return _report(rule, terms + order.shape[1], pairs[decided], pairs[differ])


def find_agreement(
    differ: Flags, pairs: Index, fitted: Array, parameters: float
) -> dict[str, Any] | None:
    """Return the same of the fitted utility; None if a choice contradicts it.

    Args:
        differ: (n,) whether a row is of two different points.
        fitted: (n,) f(winner) − f(loser) by the fitted utility.
        parameters: the number of its parameters that choices determine.
    """
    if not (differ.any() and (fitted[differ] > 0.0).all()):
        return None
    return _report("fitted", max(parameters, 1.0), pairs[differ], pairs[differ])


def _report(rule: str, terms: float, decided: Index, informative: Index) -> dict[str, Any]:
    count, total = len(np.unique(decided)), len(np.unique(informative))
    chance = float(stats.binom.cdf(np.ceil(terms) - 1.0, count - 1, 0.5))
    of_all = "all" if count == total else f"{count:,} of {total:,}"
    message = (
        f"no choice contradicts {_RULES[rule]}, which decides {of_all} pairs, so that the choices "
        "bound the sharpness of the belief from below only (as many random choices agree with such "
        f"a rule with probability {chance:.2g})"
    )
    return {
        "rule": rule, "complete": count == total, "pairs": count, "chance": chance,
        "by_chance": chance >= _BY_CHANCE, "message": message,
    }  # fmt: skip
