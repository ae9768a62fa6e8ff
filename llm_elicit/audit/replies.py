"""Answers to direct questions as numbers: what could be read, and how much could not and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit.comparisons.row_completion import RowCompletion
from llm_elicit.questions.numbers import Unread, read_numbers, read_point, read_quantiles
from llm_elicit.spaces.features import FeatureSpace, Floats

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("quantiles", "sample", "row", "range", "ratio")
"""The kinds of direct questions."""


@dataclass(frozen=True)
class DirectEvidence:
    """A judge's answers to direct questions, read.

    Attributes:
        quantiles: `(t, d, 5)`, natural units: how each feature's were stated each time; NaN where
            they were not, or could not be read.
        points: those that were written down, `(n, d)`, natural units, wherever they lie.
        completion: the rows that are asked for; None where none are.
        rows: which of them were, and `recited`, what the judge went on with; NaN where unread.
        answers: how many answers of each kind came, and `unread`, why so many were not read.
        at_levels: quantiles of the belief at other noise levels, `llm_elicit.audit.levels`; None
            for a belief that has but one.
    """

    quantiles: Floats
    points: Floats
    completion: RowCompletion | None
    rows: tuple[int, ...]
    recited: Floats
    answers: Mapping[str, int]
    unread: Mapping[str, Mapping[Unread, int]]
    at_levels: Floats | None = None

    @classmethod
    def read(
        cls, table: pd.DataFrame | None, judge: str, space: FeatureSpace, seed: int
    ) -> DirectEvidence | None:
        """From the run's table of direct answers; None without one by this judge.

        Args:
            table: with the columns judge, kind, number, replicate, reply and finish.
            judge: the judge's name.
            space: what was asked about.
            seed: the campaign's.
        """
        if table is None or not (table["judge"] == judge).any():
            return None
        kept = table[table["judge"] == judge]
        unread: dict[str, Counter[Unread]] = {kind: Counter() for kind in KINDS}
        times = 1 + max(kept["replicate"][kept["kind"] == "quantiles"], default=-1)
        quantiles = np.full((times, space.dimension, 5), np.nan)
        points, recited = [], {}
        columns = ("kind", "number", "replicate", "reply", "finish")
        for kind, number, time, reply, finish in zip(*(kept[c] for c in columns), strict=True):
            found: list[float] | Unread
            if kind == "quantiles":
                found = read_quantiles(reply, space.features[number], finish)
            elif kind == "sample":
                found = read_point(reply, space.features, finish)
            elif kind in ("range", "ratio"):
                continue  # read with the question; see `llm_elicit.pipeline.power_sources`
            else:
                found = read_numbers(reply, 1, finish)
            if isinstance(found, str):
                unread[kind][found] += 1
            elif kind == "quantiles":
                quantiles[time, number] = found
            elif kind == "sample":
                points.append(found)
            if kind == "row":
                recited[number] = np.nan if isinstance(found, str) else found[0]
        return cls(
            quantiles=quantiles,
            points=np.array(points, dtype=np.float64).reshape(-1, space.dimension),
            completion=RowCompletion.of(space, seed) if recited else None,
            rows=tuple(recited),
            recited=np.array(list(recited.values()), dtype=np.float64),
            answers={kind: int((kept["kind"] == kind).sum()) for kind in KINDS},
            unread=unread | _without_choice(kept),
        )


def _without_choice(kept: pd.DataFrame) -> dict[str, Counter[Unread]]:
    """How many answers about ranges and ratios state no choice or number, and why."""
    found: dict[str, Counter[Unread]] = {}
    for kind in ("range", "ratio"):
        rows = kept[kept["kind"] == kind]
        # Runs that are older than these kinds have no column of verdicts.
        verdicts = rows["verdict"].tolist() if len(rows) else []
        found[kind] = Counter(said for said in verdicts if said not in ("A", "B", "tie"))
    return found
