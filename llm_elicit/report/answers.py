"""The questions and answers that a page shows: some of them, chosen fairly, to be filtered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from llm_elicit.comparisons.table import VERDICTS
from llm_elicit.spaces.features import FeatureSpace

FEW = 6
"""Answers of a judge that are open from the start."""
MOST = 200
"""Answers of a judge on the page, at most."""

Orders = Literal["agree", "differ", "unknown"]
ORDERS: tuple[Orders, ...] = ("agree", "differ", "unknown")


@dataclass(frozen=True)
class Answer:
    """One question and what came back, for showing.

    Attributes:
        pair: the pair's number.
        rows: a feature's label, and its value in option A and in option B, as worded.
        reply: what came back.
        verdict: how it was read.
        probability: of option A, where the answer is soft.
        orders: whether the judge chose one point in both orders of the pair.
    """

    pair: int
    rows: list[tuple[str, str, str]]
    reply: str
    verdict: str
    probability: float | None
    orders: Orders


@dataclass(frozen=True)
class Shown:
    """The answers of one judge that a page shows.

    Attributes:
        few: those that are open from the start, one of every verdict among them.
        more: the others.
        total: how many answers the judge gave in all.
    """

    few: list[Answer]
    more: list[Answer]
    total: int

    @property
    def all(self) -> list[Answer]:
        """Those that are on the page."""
        return [*self.few, *self.more]


@dataclass(frozen=True)
class Choice:
    """One way to filter: its place among those of its filter, its name, how many it leaves."""

    place: int
    label: str
    count: int


def choose_answers(rows: pd.DataFrame, space: FeatureSpace, most: int = MOST) -> Shown:
    """The answers of one judge to show: a few, then more, each of `pick_answers`."""
    agree = orders_agree(rows)
    few = pick_answers(rows, min(FEW, most))
    more = pick_answers(rows.drop(few.index), most - len(few))

    def answers(some: pd.DataFrame) -> list[Answer]:
        return [_answer(row, space, agree) for _, row in some.iterrows()]

    return Shown(answers(few), answers(more), len(rows))


def pick_answers(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """`count` answers: a twentieth of every verdict there is, one at least; then evenly.

    All are spread evenly through the run.
    """
    least = max(1, count // 20)
    sure = [index for _, some in rows.groupby("verdict") for index in _spread(some.index, least)]
    sure = sure[:count]
    others = rows.index.difference(sure)
    return rows.loc[sorted([*sure, *_spread(others, count - len(sure))])]


def _spread(index: pd.Index[Any], count: int) -> list[Any]:
    """`count` of them, or all, evenly from the first to the last."""
    kept = max(min(count, len(index)), 0)
    return list(index[np.linspace(0, len(index) - 1, kept).round().astype(int)])


def orders_agree(rows: pd.DataFrame) -> pd.Series[bool]:
    """By pair: whether all choices, A or B, pick one point; only pairs with both orders are in it.

    Example:
        >>> rows = pd.DataFrame({
        ...     "pair": [0, 0, 1, 1, 2], "order": ["ab", "ba", "ab", "ba", "ab"],
        ...     "verdict": ["A", "B", "A", "A", "A"]})
        >>> orders_agree(rows).to_dict()
        {0: True, 1: False}
    """
    chosen = rows[rows["verdict"].isin(["A", "B"])]
    picked_a = (chosen["verdict"] == "A") == (chosen["order"] == "ab")
    by_pair = chosen.assign(picked_a=picked_a).groupby("pair")
    both = by_pair["order"].nunique() == 2
    return (by_pair["picked_a"].nunique() == 1)[both]


def _answer(row: pd.Series[Any], space: FeatureSpace, agree: pd.Series[bool]) -> Answer:
    """The options as they were shown: in order "ba" point b was option A."""
    sides = ("a", "b") if row["order"] == "ab" else ("b", "a")
    first, second = (space.word([row[f"{side}_{name}"] for name in space.names]) for side in sides)
    rows = [(label, a, b) for (label, a), (_, b) in zip(first, second, strict=True)]
    probability = None
    if row["soft"] and pd.notna(row["probability"]):
        p = float(row["probability"])
        probability = p if row["order"] == "ab" else 1.0 - p
    pair = int(row["pair"])
    orders: Orders = "unknown" if pair not in agree.index else "agree" if agree[pair] else "differ"
    return Answer(pair, rows, str(row["reply"]), str(row["verdict"]), probability, orders)


def filters(shown: Sequence[tuple[str, Shown]]) -> dict[str, list[Choice]]:
    """What the answers of these judges, by name, can be filtered by: judge, verdict and orders.

    A choice's place is the judge's among `shown`, or the word's in `VERDICTS` or `ORDERS`: no
    word from outside gets into a style sheet.
    """
    answers = [answer for _, some in shown for answer in some.all]
    judges = [Choice(place, name, len(some.all)) for place, (name, some) in enumerate(shown)]
    return {
        "judge": judges,
        "verdict": _choices(VERDICTS, [answer.verdict for answer in answers]),
        "orders": _choices(ORDERS, [answer.orders for answer in answers]),
    }


def _choices(words: Sequence[str], found: Sequence[str]) -> list[Choice]:
    return [
        Choice(place, word, found.count(word)) for place, word in enumerate(words) if word in found
    ]
