"""What keeps answers when the disk is full: reserved space, and a file of unsaved answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from llm_elicit.orchestrator.journal.changes import Change
from llm_elicit.orchestrator.journal.failures import JournalError

SIZE = 8 * 2**20
"""Bytes: some thousand answers, with SQLite's overhead."""


class Reserve:
    """A file that reserves space on the disk, released when the disk is full.

    Args:
        folder: the run's folder.

    Raises:
        JournalError: the disk does not have that much space.
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
        """Release the space."""
        self._path.unlink(missing_ok=True)


class Unsaved:
    """A file of answers that the journal did not accept, written by the next run.

    Args:
        folder: the run's folder.
        journal: the journal's own id: row numbers are valid for that journal alone.
    """

    def __init__(self, folder: Path, journal: str) -> None:
        self._path = folder / "unsaved.jsonl"
        self._journal = journal

    def keep(self, changes: Sequence[Change]) -> int:
        """Save the answers among changes; return how many could not be saved either."""
        rows = [change.answer for change in changes if change.answer is not None]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                if file.tell():
                    file.write("\n")  # the disk may have been full within the line before
                for row in rows:
                    file.write(json.dumps({"journal": self._journal, "answer": row}) + "\n")
        except OSError:
            return len(rows)
        return 0

    def answers(self) -> list[Change]:
        """Return the saved answers of this journal; incomplete lines are skipped."""
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
        """Delete the file, once its answers are in the journal."""
        self._path.unlink(missing_ok=True)
