"""Where commands print."""

from __future__ import annotations

import sys

from rich.console import Console

_UNBOUNDED = 100_000


def console() -> Console:
    """Standard output for what a command says: text as it is, and tables that lose nothing.

    A terminal says how wide it is. Where there is none (a pipe, a file, CI), tables take the width
    they need: no name in them is cut or wrapped.

    Example:
        >>> console().width >= 200 or sys.stdout.isatty()
        True
    """
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)
