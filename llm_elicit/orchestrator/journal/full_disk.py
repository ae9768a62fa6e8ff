"""What keeps answers when the disk is full: reserved space, and a file of unsaved answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_elicit.orchestrator.journal.changes import Change
from llm_elicit.orchestrator.journal.failures import JournalError

SIZE = 8 * 2**20
"""Bytes: some thousand answers, with what SQLite writes besides."""


class Reserve:
    """A file that takes up room, to be given back when the disk is full.

    Args:
        folder: the run's.

    Raises:
        JournalError: there is not even so much room.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.reserve"
        try:
            self._path.write_bytes(bytes(SIZE))
        except OSError as error:
            self.release()
            raise JournalError(
                f"{folder}: cannot be written ({error.strerror or error}): a run keeps "
                f"{SIZE // 2**20} MB in reserve for the answers in flight; make room, check its "
                "permissions, and run again"
            ) from None

    def release(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)


class Unsaved:
    """A file of answers in the run's folder, a line each.

    Args:
        folder: the run's.
        journal: the name that the journal was given when it was made: to another one, the
            numbers of the questions mean nothing.
    """

    def __init__(self, folder: Path, journal: str) -> None:
        self._path = folder / "unsaved.jsonl"
        self._journal = journal

    def keep(self, changes: Sequence[Change]) -> int:
        """Keep the answers among changes; how many could not be kept here either."""
        rows = [change.answer for change in changes if change.answer is not None]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps({"journal": self._journal, "answer": row}) + "\n")
        except OSError:
            return len(rows)
        return 0

    def answers(self) -> list[Change]:
        """What is kept of this journal's answers; a line cut short is left out."""
        if not self._path.is_file():
            return []
        found = []
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                kept = json.loads(line)
                row = kept["answer"]
                tokens = 0 if row["cached"] else row["prompt_tokens"] + row["completion_tokens"]
                change = Change("answered", row["question"], {}, row, row["cost"] or 0.0, tokens)
            except (ValueError, KeyError, TypeError):
                continue
            if kept.get("journal") == self._journal:
                found.append(change)
        return found

    def clear(self) -> None:
        """Forget them: they are in the journal."""
        self._path.unlink(missing_ok=True)
