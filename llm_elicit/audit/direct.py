"""A judge's answers to direct questions, set beside its belief and the data.

Comparisons ask a judge nothing but which of two it finds likelier. Here it speaks for itself: it
states quantiles (`stated`), writes points down (`generated`), and is asked to go on with rows of
the table that it may have by heart (`recited`). What cannot be read is counted, never guessed.
"""

from __future__ import annotations

import numpy as np

from llm_elicit.audit.evidence import AuditSettings, Reference
from llm_elicit.audit.generated import Generated, measure_generated
from llm_elicit.audit.recited import Recited, measure_recited
from llm_elicit.audit.replies import KINDS, DirectEvidence
from llm_elicit.audit.stated import Stated, measure_stated
from llm_elicit.config.base_model import StrictModel
from llm_elicit.questions.numbers import UNREAD
from llm_elicit.spaces.features import Floats


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
