"""Runs of one process: one at a time in a folder, and threads that end before their call does.

Other processes are kept out by the locks of the run's folder while questions are asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from llm_elicit.orchestrator.progress import Progress, Tally

T = TypeVar("T")

_LOOK = 0.05
"""Seconds between two looks at a folder in which another call is at work."""

_locks: dict[Path, threading.Lock] = {}


def lock_of(folder: Path) -> threading.Lock:
    """Return the lock of a run's folder, which the threads of this process take in turn."""
    return _locks.setdefault(folder.resolve(), threading.Lock())


@asynccontextmanager
async def alone_in(folder: Path) -> AsyncIterator[None]:
    """Wait, without blocking the event loop, until no other call of this process is at work."""
    lock = lock_of(folder)
    while not lock.acquire(blocking=False):
        await asyncio.sleep(_LOOK)
    try:
        yield
    finally:
        lock.release()


class _StoppedError(BaseException):
    """The call was cancelled; as a KeyboardInterrupt, it is no error to recover from."""


class _StoppingProgress:
    """Passes reports on, and ends the thread that reports once its call is cancelled."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stopped = False

    def tally(self, judge: str, tally: Tally) -> None:
        """Report a judge's counts."""
        self._check()
        self._progress.tally(judge, tally)

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Report other work."""
        self._check()
        self._progress.stage(label, step, done, total)

    def note(self, judge: str, line: str) -> None:
        """Report one line."""
        self._check()
        self._progress.note(judge, line)

    def _check(self) -> None:
        if self.stopped:
            raise _StoppedError


async def to_its_end(work: Callable[[Progress], T], progress: Progress) -> T:
    """Call `work` in a thread and return its result.

    Cancelled, it ends with the thread, which stops at its next report of progress.

    Args:
        work: is called with a progress that it should report to.
        progress: receives its reports.
    """
    stopping = _StoppingProgress(progress)

    def stoppable() -> T | None:
        try:
            return work(stopping)
        except _StoppedError:
            return None

    thread = asyncio.ensure_future(asyncio.to_thread(stoppable))
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError:
            stopping.stopped = True
    result = await thread
    if stopping.stopped:
        raise asyncio.CancelledError
    return result  # type: ignore[return-value]  # None only if it was stopped
