"""Small SQLite files of a service's own folder, which several services may share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def opened(path: Path, table: str) -> Iterator[sqlite3.Connection]:
    """Open a file for one transaction.

    Args:
        path: the file; its folder is made if necessary, for its owner alone.
        table: the statement that makes its table, if it does not exist.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=10.0)
    try:
        with db:
            db.execute(table)
            yield db
    finally:
        db.close()
