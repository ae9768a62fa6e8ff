"""The questions and answers shown on the page, a systematic sample with filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from llm_elicit.comparisons.table import points_of
from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.report.formatting import number_text
from llm_elicit.spaces.features import FeatureSpace

EXPANDED_ANSWERS = 6
"""Number of a judge's answers that are expanded initially."""
MAX_ANSWERS = 200
"""Largest number of a judge's answers on the page."""

OrderConsistency = Literal["agree", "differ", "unknown"]
ORDERS: tuple[OrderConsistency, ...] = ("agree", "differ", "unknown")


@dataclass(frozen=True)
class Answer:
    """One question and its reply, as shown.

    Attributes:
        pair: the pair's number.
        rows: a feature's label, and its value in option A and in option B, as worded.
        reply: the text of the reply.
        verdict: how it was parsed.
        probability: probability of option A, if the answer is soft.
        bound: 1 if the probability is only a lower bound, −1 if it is an upper bound, else 0.
        orders: whether the judge chose the same point in both orders of the pair.
    """

    pair: int
    rows: list[tuple[str, str, str]]
    reply: str
    verdict: str
    probability: float | None
    bound: int
    orders: OrderConsistency

    @property
    def probability_text(self) -> str:
        """The probability of option A as text; a bound is rounded away from the bounded value."""
        p = self.probability
        if p is None:
            return ""
        if not self.bound:
            return f"= {number_text(p, 2)}"
        is_lower_bound = self.bound > 0
        rounded = (math.floor if is_lower_bound else math.ceil)(1000 * p) / 1000
        return f"{'at least' if is_lower_bound else 'at most'} {rounded:.3f}"


@dataclass(frozen=True)
class AnswerSample:
    """The answers of one judge that are on the page.

    Attributes:
        expanded: answers that are expanded initially, at least one of every verdict.
        collapsed: further answers, which a reader can expand.
        total: number of all answers of the judge.
    """

    expanded: list[Answer]
    collapsed: list[Answer]
    total: int

    @property
    def answers(self) -> list[Answer]:
        """All answers on the page."""
        return [*self.expanded, *self.collapsed]


@dataclass(frozen=True)
class FilterOption:
    """One option of a filter: its index, its label, and the number of answers that it selects."""

    index: int
    label: str
    count: int


def sample_answers(
    rows: pd.DataFrame, space: FeatureSpace, max_answers: int = MAX_ANSWERS
) -> AnswerSample:
    """Choose the answers of one judge to show, by `select_rows`."""
    agreement = orders_agree(rows).to_dict()
    expanded = select_rows(rows, min(EXPANDED_ANSWERS, max_answers))
    collapsed = select_rows(rows.drop(expanded.index), max_answers - len(expanded))

    def answers_of(some: pd.DataFrame) -> list[Answer]:
        answers = []
        points_of_rows = zip(*points_of(some, space.names), strict=True)
        for row, points in zip(some.to_dict("records"), points_of_rows, strict=True):
            # The options as shown: in order "ba" point b was option A.
            is_ab, pair = row["order"] == "ab", int(row["pair"])
            first, second = map(space.word, points if is_ab else points[::-1])
            options = [(label, a, b) for (label, a), (_, b) in zip(first, second, strict=True)]
            probability, bound = None, 0
            if row["soft"] and pd.notna(row["probability"]):
                p, bound = float(row["probability"]), int(row.get("censored", 0))
                probability, bound = (p, bound) if is_ab else (1.0 - p, -bound)
            orders: OrderConsistency = "unknown"
            if pair in agreement:
                orders = "agree" if agreement[pair] else "differ"
            reply, verdict = str(row["reply"]), str(row["verdict"])
            answers.append(Answer(pair, options, reply, verdict, probability, bound, orders))
        return answers

    return AnswerSample(answers_of(expanded), answers_of(collapsed), len(rows))


def select_rows(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return `count` answers, evenly spaced over the run, with at least 5 % of every verdict."""
    min_per_verdict = max(1, count // 20)
    selected = [
        index
        for _, verdict_rows in rows.groupby("verdict")
        for index in _space_evenly(verdict_rows.index, min_per_verdict)
    ]
    selected = selected[:count]
    other_rows = rows.index.difference(selected)
    return rows.loc[sorted([*selected, *_space_evenly(other_rows, count - len(selected))])]


def _space_evenly(index: pd.Index[Any], count: int) -> list[Any]:
    """Return `count` entries, or all, evenly spaced from the first to the last."""
    size = max(min(count, len(index)), 0)
    return list(index[np.linspace(0, len(index) - 1, size).round().astype(int)])


def orders_agree(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return by pair whether all choices, A or B, pick the same point; pairs with both orders only.

    Examples:
        >>> rows = pd.DataFrame({
        ...     "pair": [0, 0, 1, 1, 2], "order": ["ab", "ba", "ab", "ba", "ab"],
        ...     "verdict": ["A", "B", "A", "A", "A"]})
        >>> orders_agree(rows).to_dict()
        {0: True, 1: False}
    """
    choices = rows[rows["verdict"].isin(["A", "B"])]
    picked_a = (choices["verdict"] == "A") == (choices["order"] == "ab")
    by_pair = choices.assign(picked_a=picked_a).groupby("pair")
    in_both_orders = by_pair["order"].nunique() == 2
    return (by_pair["picked_a"].nunique() == 1)[in_both_orders]


def build_filters(samples: Sequence[tuple[str, AnswerSample]]) -> dict[str, list[FilterOption]]:
    """Return the choices of the filters: judge, verdict and orders.

    An index is the judge's in `samples`, or the label's in `VERDICTS` or `ORDERS`, so that no
    external text is part of a style sheet.
    """
    answers = [answer for _, sample in samples for answer in sample.answers]
    judges = [
        FilterOption(index, name, len(sample.answers))
        for index, (name, sample) in enumerate(samples)
    ]
    return {
        "judge": judges,
        "verdict": _filter_options(VERDICTS, [answer.verdict for answer in answers]),
        "orders": _filter_options(ORDERS, [answer.orders for answer in answers]),
    }


def _filter_options(labels: Sequence[str], values: Sequence[str]) -> list[FilterOption]:
    return [
        FilterOption(index, label, values.count(label))
        for index, label in enumerate(labels)
        if label in values
    ]
