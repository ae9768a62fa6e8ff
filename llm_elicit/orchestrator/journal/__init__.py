"""The journal: one database a run, with every question, request and answer."""

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
from llm_elicit.orchestrator.journal.interface import FILE, LEASE, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.plan import planned_rounds, record_rounds
from llm_elicit.orchestrator.journal.reading import (
    answered_by_kind,
    committed,
    kept_answers,
    kept_identity,
    open_questions,
    reading,
    settled,
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
    "RunLock",
    "Totals",
    "answered",
    "answered_by_kind",
    "batch_rows",
    "check_digests",
    "committed",
    "digest_of",
    "failed",
    "intent",
    "kept_answers",
    "kept_identity",
    "missed",
    "now",
    "open_questions",
    "planned_rounds",
    "quarantined",
    "reading",
    "record_rounds",
    "settled",
    "submitted",
    "totals",
]
