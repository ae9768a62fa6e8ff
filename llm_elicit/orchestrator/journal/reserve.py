"""Room on the disk that a run keeps for its last answers."""

from __future__ import annotations

from pathlib import Path

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
