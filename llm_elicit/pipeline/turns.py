"""How many runs of a process are at work at the same time: the others wait, in order."""

from __future__ import annotations

import asyncio


class Turns:
    """The turns of the runs of one event loop.

    Args:
        at_once: how many runs are at work at the same time; None for all.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self.at_once = at_once
        self.queue: dict[Turn, None] = {}

    def call(self) -> None:
        """Call those whose turn it is."""
        for turn in list(self.queue)[: self.at_once]:
            turn.called.set()


class Turn:
    """The turn of one run, which joins the queue, is called, and leaves.

    Attributes:
        called: whether it is its turn.

    Example:
        >>> turns = Turns(1)
        >>> first, second = Turn(turns), Turn(turns)
        >>> first.join(), second.join()
        (None, None)
        >>> first.ahead, second.ahead, second.called.is_set()
        (0, 1, False)
        >>> first.leave()
        >>> second.called.is_set()
        True
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.called = asyncio.Event()

    def join(self) -> None:
        """Join the end of the queue, or keep the place in it."""
        self._turns.queue.setdefault(self)
        self._turns.call()

    def leave(self) -> None:
        """Leave the queue, or the work, so that it is another's turn."""
        self._turns.queue.pop(self, None)
        self.called.clear()
        self._turns.call()

    @property
    def ahead(self) -> int:
        """How many runs have to end or to pause before it is its turn."""
        if self.called.is_set() or self not in self._turns.queue:
            return 0
        return list(self._turns.queue).index(self) + 1 - (self._turns.at_once or 0)
