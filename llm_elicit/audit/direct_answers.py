"""A judge's answers to direct questions, compared with its belief and the data.

Besides comparisons, a judge may state quantiles (`stated_quantiles`), generate points
(`generated_points`), and complete rows of the reference table (`row_completion`). Answers that
cannot be parsed are counted and not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from llm_elicit import density
from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.generated import (
    GeneratedPoints,
    RowCompletionTest,
    measure_generated,
    measure_row_completion,
)
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.stated_quantiles import StatedQuantiles, measure_stated, quantiles_by_noise
from llm_elicit.comparisons.row_completion import RowCompletion
from llm_elicit.questions.numbers import UNREAD, Unread, read_numbers, read_point, read_quantiles
from llm_elicit.spaces.features import FeatureSpace, Floats

KINDS = ("quantiles", "sample", "row", "range", "ratio")
"""The kinds of direct questions."""


@dataclass(frozen=True)
class DirectEvidence:
    """A judge's parsed answers to direct questions.

    Attributes:
        quantiles: `(t, d, 5)`, natural units: each feature's statements; NaN if there was none, or
            it could not be parsed.
        points: generated points, `(n, d)`, natural units, inside the range or not.
        completion: the rows to complete; None if none were asked.
        rows: which of them were asked, and `completed`, the values given; NaN if unparsed.
        answers: number of answers by kind, and `unparsed`, how many could not be parsed, by reason.
        quantiles_by_level: of the belief at other noise levels, from `quantiles_by_noise`; None for
            a belief with a single level.
    """

    quantiles: Floats
    points: Floats
    completion: RowCompletion | None
    rows: tuple[int, ...]
    completed: Floats
    answers: Mapping[str, int]
    unparsed: Mapping[str, Mapping[Unread, int]]
    quantiles_by_level: Floats | None = None

    @classmethod
    def read(
        cls, table: pd.DataFrame | None, judge: str, space: FeatureSpace, seed: int
    ) -> DirectEvidence | None:
        """Parse a run's table of direct answers; None if it has none by this judge.

        Args:
            table: with the columns judge, kind, number, replicate, reply and finish.
            judge: the judge's name.
            space: the space that was asked about.
            seed: the campaign's.
        """
        if table is None or not (table["judge"] == judge).any():
            return None
        rows = table[table["judge"] == judge]
        unparsed: dict[str, Counter[Unread]] = {kind: Counter() for kind in KINDS}
        for kind in ("range", "ratio"):  # their verdicts are in the table
            if (of_kind := rows[rows["kind"] == kind]).size:
                unparsed[kind].update(v for v in of_kind["verdict"] if v not in ("A", "B", "tie"))
        times = 1 + max(rows["replicate"][rows["kind"] == "quantiles"], default=-1)
        quantiles = np.full((times, space.dimension, 5), np.nan)
        points, completed = [], {}
        columns = ("kind", "number", "replicate", "reply", "finish")
        for kind, number, time, reply, finish in zip(*(rows[c] for c in columns), strict=True):
            reading: list[float] | Unread
            if kind == "quantiles":
                reading = read_quantiles(reply, space.features[number], finish)
                quantiles[time, number] = np.nan if isinstance(reading, str) else reading
            elif kind == "sample":
                reading = read_point(reply, space.features, finish)
                points += [] if isinstance(reading, str) else [reading]
            elif kind == "row":
                reading = read_numbers(reply, 1, finish)
                completed[number] = np.nan if isinstance(reading, str) else reading[0]
            else:
                continue
            if isinstance(reading, str):
                unparsed[kind][reading] += 1
        return cls(
            quantiles=quantiles,
            points=np.array(points, dtype=np.float64).reshape(-1, space.dimension),
            completion=RowCompletion.of(space, seed) if completed else None,
            rows=tuple(completed),
            completed=np.array(list(completed.values()), dtype=np.float64),
            answers={kind: int((rows["kind"] == kind).sum()) for kind in KINDS},
            unparsed=unparsed,
        )

    def with_noise_levels(
        self, belief: density.BeliefDensity, space: FeatureSpace, points: Floats, seed: int
    ) -> DirectEvidence:
        """Return the evidence with the belief's quantiles at other levels, if any were stated.

        Args:
            belief: a belief that has other noise levels.
            space: the features.
            points: the belief's own draws, `(m, d)`, natural units.
            seed: of the posterior draws.
        """
        if not np.isfinite(self.quantiles).any():
            return self
        by_level = quantiles_by_noise(belief, space, points, seed)
        return replace(self, quantiles_by_level=by_level)


class AnswerCounts(StrictModel):
    """How many answers of one kind could be used.

    Attributes:
        kind: "quantiles", "sample", "row", "range" or "ratio".
        answers: their number.
        unparsed: how many of these could not be parsed, by reason.
    """

    kind: str
    answers: int
    unparsed: dict[str, int]

    @property
    def parsed(self) -> int:
        """How many were parsed."""
        return self.answers - sum(self.unparsed.values())


class DirectAudit(StrictModel):
    """A judge's answers to direct questions.

    Attributes:
        answers: how many could be used, by kind, of the kinds that were asked.
        stated: its quantiles; None if none could be parsed.
        generated: its points; None if fewer than two could be used.
        row_completion: the rows it completed; None if none were asked.
    """

    answers: list[AnswerCounts]
    stated: StatedQuantiles | None
    generated: GeneratedPoints | None
    row_completion: RowCompletionTest | None


def measure_direct(
    evidence: DirectEvidence,
    reference: Reference,
    belief: Floats | None,
    settings: AuditSettings,
    rng: np.random.Generator,
) -> DirectAudit:
    """Compare a judge's answers with its belief and the data.

    Args:
        evidence: the answers.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None if none was fitted.
        settings: of the audit.
        rng: for floors and tests.
    """
    row_completion = None
    if evidence.completion is not None:
        row_completion = measure_row_completion(
            evidence.completion, evidence.rows, evidence.completed, settings.flips, rng
        )
    by_level = evidence.quantiles_by_level
    return DirectAudit(
        answers=[
            AnswerCounts(
                kind=kind,
                answers=evidence.answers[kind],
                unparsed={reason: evidence.unparsed[kind].get(reason, 0) for reason in UNREAD},
            )
            for kind in KINDS
            if evidence.answers.get(kind)
        ],
        stated=measure_stated(evidence.quantiles, reference, belief, by_level, rng),
        generated=measure_generated(evidence.points, reference, belief, settings, rng),
        row_completion=row_completion,
    )
