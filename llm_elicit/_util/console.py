"""The console that commands print to."""

from __future__ import annotations

import sys

from rich.console import Console

_UNBOUNDED = 100_000


def console() -> Console:
    """Return a console on standard output that prints text without markup.

    Without a terminal (a pipe, a file, CI), tables get the width that they need, so that nothing
    in them is cut or wrapped.

    Example:
        >>> console().width >= 200 or sys.stdout.isatty()
        True
    """
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)
