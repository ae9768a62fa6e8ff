"""Work that would block the event loop, in processes of its own with a limit on its time.

Drafting a space, planning a campaign and evaluating a belief import PyTorch and pandas and compute
for seconds, in part without releasing Python's lock, so threads would not do. A process that takes
too long is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio import BrokenWorkerProcess, to_process

from llm_elicit.errors import InputError
from llm_elicit.service.problems import ProblemError

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS = 5
_WAITING = 32


class Workers:
    """Processes that work for requests.

    Args:
        count: how many there are.
        seconds: the limit on the time of a call.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._slots, self._seconds = asyncio.Semaphore(count), seconds
        self._limiter: anyio.CapacityLimiter | None = None
        self._count, self._waiting = count, 0

    async def call(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return the result of a function of a module, called in another process.

        Raises:
            ProblemError: too many calls wait, or the call took too long or too much memory.
            Exception: the function's own.
        """
        if self._waiting >= _WAITING:
            raise ProblemError(503, "the service is busy; try again", {"retry-after": "5"})
        self._waiting += 1
        try:
            async with self._slots:
                return await self._called(partial(work, *args, **named))
        finally:
            self._waiting -= 1

    async def _called(self, work: Callable[[], T]) -> T:
        limiter = self._limiter = self._limiter or anyio.CapacityLimiter(self._count)
        try:
            with anyio.fail_after(self._seconds):
                return await to_process.run_sync(
                    _in_process, work, cancellable=True, limiter=limiter
                )
        except TimeoutError:
            raise ProblemError(
                422, f"this takes more than {self._seconds:g} s; ask for less"
            ) from None
        except BrokenWorkerProcess:
            raise ProblemError(422, "this takes too much memory; ask for less") from None


_prepared = False


def _in_process(work: Callable[[], T]) -> T:
    """Call a function in the process of a worker."""
    global _prepared  # noqa: PLW0603 - a process is prepared once
    if not _prepared:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service
        if hasattr(os, "nice"):
            os.nice(_NICENESS)
        _prepared = True
    try:
        return work()
    except ValueError as error:
        core = sys.modules.get("llm_elicit.density.errors")
        if core is None or not isinstance(error, core.DensityError):
            raise
        # The service could not read an error of the core without importing it.
        raise InputError(str(error)) from None
