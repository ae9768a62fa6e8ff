"""The queue of a judge's requests: retries as they fall due, then new questions."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from llm_elicit.orchestrator.journal.schema import Question
from llm_elicit.orchestrator.request_builder import Prepared
from llm_elicit.orchestrator.retries import History
from llm_elicit.orchestrator.writer import Claims


@dataclass(eq=False)
class QueuedRequest:
    """A question that waits to be asked.

    Attributes:
        prepared: the question and its request.
        history: its failures so far; None before the first request.
    """

    prepared: Prepared
    history: History | None = None

    @property
    def question(self) -> Question:
        """The question."""
        return self.prepared.question


class RetryQueue:
    """Hands out questions; one that waits for its retry takes no slot meanwhile.

    Args:
        claims: new questions, in the plan's order.
        clock: monotonic seconds.

    Attributes:
        held, retries_held: whether new questions, and those to be asked again, wait for the
            outcome of requests in flight; `wake` after changing it.
    """

    def __init__(self, claims: Claims, clock: Callable[[], float]) -> None:
        self._claims = claims
        self._claiming: asyncio.Task[None] | None = None
        self._fresh: deque[Prepared] = deque()
        self._exhausted = False
        self._clock = clock
        self._later: list[tuple[float, int, QueuedRequest]] = []
        self._count = 0
        self._out = 0
        self._closed = False
        self.held = self.retries_held = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    async def take(self) -> QueuedRequest | None:
        """Return the next request that is due; None when all are done or the queue is closed.

        Raises:
            Exception: claiming more questions failed.
        """
        while not self._closed:
            if self._error is not None:
                raise self._error
            queued = self._next()
            if queued is not None:
                self._out += 1
                return queued
            if self._exhausted and not self._later and not self._out:
                break
            await self._wait()
        return None

    def _next(self) -> QueuedRequest | None:
        if self._later and not self.retries_held and self._later[0][0] <= self._clock():
            return heapq.heappop(self._later)[2]
        if self.held:
            return None
        if self._fresh:
            return QueuedRequest(self._fresh.popleft())
        prepared = self._claims.at_hand()
        if prepared is not None:
            return QueuedRequest(prepared)
        if self._claiming is None and not self._exhausted:
            self._claiming = asyncio.create_task(self._claim())
        return None

    async def _claim(self) -> None:
        """Claim new questions while retries wait."""
        try:
            prepared = await self._claims.next()
        except Exception as error:  # passed on to the callers of `take`
            self._error, prepared = error, None
        if prepared is None:
            self._exhausted = True
        else:
            self._fresh.append(prepared)
        self._claiming = None
        self._changed.set()

    async def _wait(self) -> None:
        """Wait until the next request falls due or something changes."""
        waiting = self._later and not self.retries_held
        left = self._later[0][0] - self._clock() if waiting else None
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), left)
        except TimeoutError:
            return

    @property
    def idle(self) -> bool:
        """Whether no request is taken or waits for its retry, unless retries are held."""
        return not self._out and (self.retries_held or not self._later)

    def wake(self) -> None:
        """Let those that wait in `take` look again."""
        self._changed.set()

    def put_back(self, queued: QueuedRequest, due: float) -> None:
        """Hand the request out again when the clock reads `due`."""
        self._count += 1
        heapq.heappush(self._later, (due, self._count, queued))
        self.finish()

    def finish(self) -> None:
        """Count a request that was taken as done."""
        self._out -= 1
        self._changed.set()

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True
        if self._claiming is not None:
            self._claiming.cancel()
        self._changed.set()
