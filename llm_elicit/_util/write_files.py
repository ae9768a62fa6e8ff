"""Writing files beside those that they replace."""

from __future__ import annotations

import uuid
from pathlib import Path


def unfinished(path: Path) -> Path:
    """Return a hidden path beside a file, another one at each call.

    Threads of one process, and work that goes on after its caller was cancelled, write theirs.

    Example:
        >>> unfinished(Path("a.txt")) == unfinished(Path("a.txt"))
        False
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
