"""Digests of answers, which reveal rows that were changed by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from math import isnan
from typing import Any

import sqlalchemy as sa

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.changes import Answer, Question, storable
from llm_elicit.orchestrator.journal.schema import answers, questions

_KEY = ("judge", "pair", "presentation", "replicate")
_TEXTS = (
    "template", "prompt_hash", "endpoint", "settings", "model_asked", "model_answered", "reply",
    "finish", "verdict", "asked_at", "thinking", "format",
)  # fmt: skip
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cached", "censored")
_NUMBERS = ("first", "letter_mass", "probability", "cost", "latency")
_FIRST_NUMBER = len(_KEY) + len(_TEXTS) + len(_COUNTS)
_AT_ONCE = 5_000

_encode = json.JSONEncoder(separators=(",", ":")).encode


def digest_of(question: Question, answer: Answer) -> str:
    """Return SHA-256 over an answer as stored, and over its question and judge.

    Row numbers are not included, since they differ between databases.
    """
    asked = [question.judge, question.pair, question.order, question.replicate]
    said = vars(answer)
    texts = [storable(said[name]) for name in _TEXTS]
    counts = [int(said[name]) for name in _COUNTS]
    return _digest([*asked, *texts, *counts, *(said[name] for name in _NUMBERS)])


def check_digests(db: sa.Connection, where: str, *, pairs: bool | None = None) -> None:
    """Check that answers are as they were written.

    Args:
        db: an open journal.
        where: the name of the journal in messages.
        pairs: whether to check only the answers about pairs, or only those to direct questions;
            None for all in one pass.

    Raises:
        InputError: an answer or its question was changed.
    """
    key = [questions.c[name] for name in _KEY]
    said = [answers.c[name] for name in (*_TEXTS, *_COUNTS, *_NUMBERS)]
    of_pairs = questions.c.presentation.in_(("ab", "ba"))
    wanted = [] if pairs is None else [of_pairs if pairs else ~of_pairs]
    # Ordered by row and with a column that no index has, so that the rows are read, as for the
    # table of comparisons, and not an index, which may differ in a damaged file.
    rows = db.execute(
        sa.select(questions.c.attempts, answers.c.digest, *key, *said)
        .outerjoin_from(questions, answers, questions.c.id == answers.c.question)
        .where(sa.or_(answers.c.question.is_not(None), questions.c.state == "done"), *wanted)
        .order_by(questions.c.id),
        execution_options={"yield_per": _AT_ONCE},
    )
    changed = [row[2:6] for row in rows if not _is_as_written(row[1], row[2:])]
    if changed:
        judge, pair, order, replicate = changed[0]
        more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        raise InputError(
            f"{where}: the answer of {judge!r} to question {pair} {order}, replicate {replicate}, "
            f"is not as it was received{more}; put a copy of the journal back, or move the run's "
            "folder away and run again: the cache answers what has not changed"
        )


def _is_as_written(digest: str | None, row: Sequence[Any]) -> bool:
    """Return whether an answer exists and matches its digest."""
    try:
        return digest is not None and _digest(row) == digest
    except (TypeError, ValueError, OverflowError):
        return False  # text in place of a number, in a damaged file


def _digest(row: Sequence[Any]) -> str:
    """Return SHA-256 over the values of a row, with numbers as either database returns them."""
    values = list(row)
    for index in range(_FIRST_NUMBER, len(values)):
        value = values[index]
        if value is not None:
            # Not a number is NULL in SQLite, and −0 is 0.
            values[index] = None if isnan(value) else float(value) + 0.0
    return hashlib.sha256(_encode(values).encode()).hexdigest()
