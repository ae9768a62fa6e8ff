"""A judge's answers to direct questions, set beside its belief and the data.

Comparisons ask a judge nothing but which of two it finds likelier. Here it speaks for itself: it
states quantiles (`stated`), writes points down (`generated`), and is asked to go on with rows of
the table that it may have by heart (`recited`). What cannot be read is counted, never guessed.

Answers to direct questions as numbers: what could be read, and how much could not and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit import density
from llm_elicit.audit.generated_points import Generated, measure_generated
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.row_completion import Recited, measure_recited
from llm_elicit.audit.stated_quantiles import Stated, measure_stated, quantiles_at_levels
from llm_elicit.comparisons.row_completion import RowCompletion
from llm_elicit.config.base_model import StrictModel
from llm_elicit.questions.numbers import UNREAD, Unread, read_numbers, read_point, read_quantiles
from llm_elicit.spaces.features import FeatureSpace, Floats


class DirectAnswers(StrictModel):
    """How the answers of one kind could be used.

    Attributes:
        kind: "quantiles", "sample", "row", "range" or "ratio".
        answers: how many came.
        unread: how many of these could not be read, by the reason.
    """

    kind: str
    answers: int
    unread: dict[str, int]

    @property
    def read(self) -> int:
        """How many were read."""
        return self.answers - sum(self.unread.values())


class DirectAudit(StrictModel):
    """What a judge's answers to direct questions say.

    Attributes:
        answers: how they could be used, by kind, of the kinds that were asked.
        stated: its quantiles; None where none could be read.
        generated: its points; None where fewer than two could be used.
        recited: the rows it went on with; None where none were asked.
    """

    answers: list[DirectAnswers]
    stated: Stated | None
    generated: Generated | None
    recited: Recited | None


def measure_direct(
    evidence: DirectEvidence,
    reference: Reference,
    belief: Floats | None,
    settings: AuditSettings,
    rng: np.random.Generator,
) -> DirectAudit:
    """A judge's answers beside its belief and the data.

    Args:
        evidence: the answers.
        reference: the data and λ.
        belief: the belief's draws, `(m, d)`, natural units; None where none was fitted.
        settings: of the audit.
        rng: draws what the floors and tests need.
    """
    recited = None
    if evidence.completion is not None:
        recited = measure_recited(
            evidence.completion, evidence.rows, evidence.recited, settings.flips, rng
        )
    return DirectAudit(
        answers=[
            DirectAnswers(
                kind=kind,
                answers=evidence.answers[kind],
                unread={why: evidence.unread[kind].get(why, 0) for why in UNREAD},
            )
            for kind in KINDS
            if evidence.answers.get(kind)
        ],
        stated=measure_stated(evidence.quantiles, reference, belief, evidence.at_levels, rng),
        generated=measure_generated(evidence.points, reference, belief, settings, rng),
        recited=recited,
    )


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
        at_levels: quantiles of the belief at other noise levels, from `quantiles_at_levels`; None
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


def at_noise_levels(
    evidence: DirectEvidence | None,
    belief: density.BeliefDensity,
    space: FeatureSpace,
    points: Floats,
    seed: int,
) -> DirectEvidence | None:
    """The evidence with the belief's quantiles at other noise levels, where quantiles were stated.

    Args:
        evidence: a judge's answers, if there are any.
        belief: a belief that has other noise levels, and `points` `(m, d)`, its own draws.
        space: the features.
        seed: of the draws.
    """
    if evidence is None or not np.isfinite(evidence.quantiles).any():
        return evidence
    return replace(evidence, at_levels=quantiles_at_levels(belief, space, points, seed))
