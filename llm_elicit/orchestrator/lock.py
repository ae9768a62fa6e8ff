"""One process a run folder: a lock that dies with its holder."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Self

from llm_elicit.errors import InputError


class RunLock:
    """Holds a run folder while inside `with`.

    It is the operating system's lock on a file, taken by SQLite, so that it works alike on
    every system and is gone when the process is, however it ended.

    Args:
        folder: the run's folder; made if it is not there.
        shared: the journal is elsewhere and several processes may work at once, so that they
            hold the folder together.

    Raises:
        InputError: another process is at work on the folder, or it cannot be written.
    """

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self._folder = folder
        self._shared = shared
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # SQLite would open a file that it may not write for reading, and "lock" that.
            (self._folder / ".lock").open("ab").close()
            self._db = sqlite3.connect(self._folder / ".lock", timeout=0.0, isolation_level=None)
            if self._shared:
                # A reader's lock: many hold it, and none while one works alone.
                self._db.execute("BEGIN").execute("SELECT COUNT(*) FROM sqlite_schema").fetchall()
            else:
                self._db.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if self._db is not None:
                self._db.close()
            if "locked" in str(error):
                raise InputError(
                    f"{self._folder}: another process is at work on this run; wait for it to end, "
                    "or stop it"
                ) from None
            raise self._unwritable(str(error)) from None
        except OSError as error:
            raise self._unwritable(error.strerror or str(error)) from None
        return self

    def _unwritable(self, reason: str) -> InputError:
        return InputError(f"{self._folder}: cannot be written ({reason}); check its permissions")

    def __exit__(self, *error: object) -> None:
        if self._db is not None:
            self._db.close()
