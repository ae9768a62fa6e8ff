"""Work that would block the event loop, in processes of its own with a limit on its time.

Drafting a space, planning a campaign and evaluating a belief import PyTorch and pandas and compute
for seconds, in part without releasing Python's lock, so threads would not do. A process that takes
too long is killed.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import ParamSpec, TypeVar

import anyio
from anyio import BrokenWorkerProcess, to_process

from llm_elicit.errors import InputError
from llm_elicit.service.problems import ProblemError

P = ParamSpec("P")
T = TypeVar("T")

_NICENESS = 5
_WAITING, _WAITING_READERS = 32, 16
_MOST_OF_A_READER = 3
_SPARE_SECONDS = 120.0
_MODULES = ("llm_elicit.service.campaigns", "llm_elicit.service.results")
"""What a process imports before it can work, which takes a second or more."""

READER: ContextVar[str | None] = ContextVar("READER", default=None)
"""The address of who sent the present request, if they may only look."""


class Workers:
    """Processes that work for requests.

    One of several is never taken by those who may only look, and is kept ready while they call, so
    that they keep nobody else waiting.

    Args:
        count: how many there are.
        seconds: the limit on the time of a call.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._slots, self._seconds = asyncio.Semaphore(count), seconds
        self._limiter: anyio.CapacityLimiter | None = None
        self._of_readers = asyncio.Semaphore(max(count - 1, 1))
        self._count, self._waiting = count, 0
        self._readers: Counter[str] = Counter()
        self._spared, self._sparing = -math.inf, set[asyncio.Task[None]]()

    async def call(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Return the result of a function of a module, called in another process.

        Raises:
            ProblemError: too many calls wait, or the call took too long or too much memory.
            Exception: the function's own.
        """
        call, reader = partial(work, *args, **named), READER.get()
        if reader is not None:
            return await self._called_by_reader(reader, call)
        if self._waiting >= _WAITING:
            raise _busy()
        self._waiting += 1
        try:
            async with self._slots:
                return await self._called(call)
        finally:
            self._waiting -= 1

    async def _called_by_reader(self, reader: str, work: Callable[[], T]) -> T:
        if self._readers[reader] >= _MOST_OF_A_READER:
            raise ProblemError(
                429,
                f"{_MOST_OF_A_READER} of your requests are at work; wait for one of them",
                {"retry-after": "5"},
            )
        if self._readers.total() >= _WAITING_READERS:
            raise _busy()
        self._readers[reader] += 1
        self._keep_spare()
        try:
            async with self._of_readers, self._slots:
                return await self._called(work)
        finally:
            self._readers[reader] -= 1
            if not self._readers[reader]:
                del self._readers[reader]

    def _keep_spare(self) -> None:
        """Have another process begin, or stay, unless one did a short time ago."""
        if self._count < 2 or time.monotonic() - self._spared < _SPARE_SECONDS:
            return
        self._spared = time.monotonic()
        task = asyncio.create_task(self._spare())
        self._sparing.add(task)
        task.add_done_callback(self._sparing.discard)

    async def _spare(self) -> None:
        with suppress(ProblemError):
            async with self._slots:
                await self._called(_begin)

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


def _begin() -> None:
    """Import what other calls need."""
    for name in _MODULES:
        import_module(name)


def _busy() -> ProblemError:
    return ProblemError(503, "the service is busy; try again", {"retry-after": "5"})


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
