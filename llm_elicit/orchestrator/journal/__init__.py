"""The journal: one database a run, behind one small door, written by SQLAlchemy Core."""

from llm_elicit.orchestrator.journal.batches import BatchFate, BatchRow, batch_rows
from llm_elicit.orchestrator.journal.changes import (
    Answer,
    Change,
    Question,
    Totals,
    answered,
    failed,
    intent,
    missed,
    now,
    quarantined,
    submitted,
)
from llm_elicit.orchestrator.journal.digests import check_digests, digest_of
from llm_elicit.orchestrator.journal.failures import JournalError
from llm_elicit.orchestrator.journal.interface import FILE, LEASE, JournalLocation
from llm_elicit.orchestrator.journal.reading import (
    answered_by_kind,
    committed,
    open_questions,
    reading,
    totals,
)
from llm_elicit.orchestrator.journal.store import Journal

__all__ = [
    "FILE",
    "LEASE",
    "Answer",
    "BatchFate",
    "BatchRow",
    "Change",
    "Journal",
    "JournalError",
    "JournalLocation",
    "Question",
    "Totals",
    "answered",
    "answered_by_kind",
    "batch_rows",
    "check_digests",
    "committed",
    "digest_of",
    "failed",
    "intent",
    "missed",
    "now",
    "open_questions",
    "quarantined",
    "reading",
    "submitted",
    "totals",
]
