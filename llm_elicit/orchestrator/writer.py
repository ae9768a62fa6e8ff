"""Group commits of changes to the journal, and the queue of each judge's requests."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging import WARNING
from typing import Concatenate, ParamSpec, Self, TypeVar

import sqlalchemy as sa

from llm_elicit.errors import CapError, ElicitError
from llm_elicit.orchestrator.journal.connection import JournalError
from llm_elicit.orchestrator.journal.questions import IN_FLIGHT_AMOUNTS, amounts
from llm_elicit.orchestrator.journal.schema import Change, Question, Refusal
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.progress import log_event
from llm_elicit.orchestrator.request_builder import PreparedQuestion

T = TypeVar("T")
P = ParamSpec("P")

Serve = Callable[[list[Question]], Awaitable[list[PreparedQuestion]]]
"""Answer some questions without asking, and return the others."""

_PAGE_SIZE = 256
"""Questions claimed at a time by a single worker."""

_SHARED_PAGE_SIZE = 32
"""Questions claimed at a time by workers that share a journal: none can take another's."""

_LARGE_COMMIT, _PAUSE = 8, 0.004
"""After a commit of `_LARGE_COMMIT` changes the next waits `_PAUSE` seconds: fewer and larger
commits leave more processor time to requests."""

_CHECK_INTERVAL = 1.0
"""Seconds between two checks of what other workers hold."""


class Writer:
    """Writes the changes of many callers to a journal, from one thread.

    `await write(change)` returns when the change is on the disk. Changes that arrive during a
    commit are written together in the next.

    Args:
        journal: the journal.
        on_commit: called in the same thread after each commit.
    """

    def __init__(self, journal: Journal, on_commit: Callable[[], None] | None = None) -> None:
        self.journal = journal
        self._on_commit = on_commit
        self._waiting: list[tuple[Change, asyncio.Future[Refusal | None]]] = []
        self._workers = 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._task: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    async def write(self, change: Change) -> bool:
        """Write a change; an intent waits while requests in flight take up the cap.

        Returns:
            False if another worker has settled or holds the question: it must be neither sent
            nor given up.

        Raises:
            InputError: the journal cannot be written.
            CapError: the campaign's cap leaves no room for this intent.
        """
        idle = False
        while (refusal := await self._enqueue(change)) is not None:
            if refusal == "settled elsewhere":
                return False
            if self.journal.failure is not None:
                raise self.journal.failure
            # Requests in flight at the refusal may have ended since: check once more.
            was_idle, idle = idle, not any(await self.read(amounts, IN_FLIGHT_AMOUNTS))
            if was_idle and idle:
                raise CapError(
                    "limits: the spending of all workers leaves no room for the next request, "
                    f"which may cost {change.values['reserved']:.4f} USD and take "
                    f"{change.values['tokens']:,} tokens; raise the cap and run again"
                )
            if not idle:
                await asyncio.sleep(0.1)
        return True

    async def write_all(self, changes: Sequence[Change]) -> None:
        """Write changes, none of them an intent, in one commit.

        Raises:
            InputError: the journal cannot be written.
        """
        await asyncio.gather(*map(self._enqueue, changes))

    def _enqueue(self, change: Change) -> asyncio.Future[Refusal | None]:
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        # Changes are written even if their caller is cancelled meanwhile.
        return done

    async def _drain(self) -> None:
        group: list[tuple[Change, asyncio.Future[Refusal | None]]] = []
        while self._waiting:
            if len(group) >= _LARGE_COMMIT:
                await asyncio.sleep(_PAUSE)
            group, self._waiting = self._waiting, []
            try:
                refused = await self.call(self._commit, [change for change, _ in group])
            except Exception as error:
                for _, done in group:
                    if not done.done():
                        done.set_exception(error)
            else:
                for change, done in group:
                    if not done.done():
                        done.set_result(refused.get(change))

    def _commit(self, changes: list[Change]) -> dict[Change, Refusal]:
        refused = self.journal.commit(changes)
        # On a full disk the space of the reserve is for answers.
        if self._on_commit is not None and self.journal.failure is None:
            self._on_commit()
        return refused

    @property
    def shared(self) -> bool:
        """Whether other workers may share the journal."""
        return self.journal.location.shared

    async def workers(self) -> int:
        """Return the number of live workers, this one included; the last known if unknown."""
        try:
            self._workers = await self.call(self.journal.workers)
        except JournalError as error:
            # The next write fails too, or the trouble has passed.
            log_event("workers not counted", WARNING, reason=str(error))
        return self._workers

    async def read(
        self, query: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return the result of a query of the journal, called in its thread."""
        return await self.call(partial(self.journal.read, query, *args, **kwargs))

    async def call(self, work: Callable[..., T], *arguments: object) -> T:
        """Return the result of a method of the journal, called in its thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)

    async def __aenter__(self) -> Self:

        async def renew_lease() -> None:
            """Renew the lease while nothing is written."""
            while True:
                await asyncio.sleep(self.journal.lease / 4)
                try:
                    await self.call(self.journal.commit, [])
                except ElicitError as error:
                    # The next write fails too, or the trouble has passed.
                    log_event("heartbeat failed", WARNING, reason=str(error))

        self._heartbeat = asyncio.create_task(renew_lease())
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.journal.give_up()  # do not wait for an unreachable server
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            with contextlib.suppress(BaseException):
                await self._heartbeat
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown(wait=True)


class RequestQueue:
    """A judge's requests: retries as they fall due, then open questions of the journal.

    Questions are claimed a page at a time, in the plan's order; those that the cache answers are
    served page by page and never handed out. A question that waits for its retry takes no slot.

    Args:
        writer: claims the questions.
        judge: the judge's name.
        serve: answers questions from the cache.
        stopping: once it is set, nothing more is claimed.
        clock: monotonic seconds.

    Attributes:
        paused, retries_paused: whether new questions, and those to be asked again, wait for the
            outcome of requests in flight; `wake` after changing it.
    """

    def __init__(
        self,
        writer: Writer,
        judge: str,
        serve: Serve,
        stopping: asyncio.Event,
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._judge = judge
        self._serve = serve
        self._stopping = stopping
        self._clock = clock
        self._page: deque[PreparedQuestion] = deque()
        self._claiming: asyncio.Task[None] | None = None
        self._exhausted = False
        self._retries: list[tuple[float, int, PreparedQuestion]] = []
        self._count = 0
        self._taken = 0
        self._closed = False
        self.paused = self.retries_paused = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    async def next_request(self) -> PreparedQuestion | None:
        """Return the next request that is due; None when all are done or the queue is closed.

        Raises:
            Exception: claiming more questions failed.
        """
        while not self._closed:
            if self._error is not None:
                raise self._error
            queued = self._next()
            if queued is not None:
                self._taken += 1
                return queued
            if self._exhausted and not self._retries and not self._taken:
                break
            # Wait until the next request falls due or something changes.
            waiting = self._retries and not self.retries_paused
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                timeout = self._retries[0][0] - self._clock() if waiting else None
                await asyncio.wait_for(self._changed.wait(), timeout)
        return None

    def _next(self) -> PreparedQuestion | None:
        if self._retries and not self.retries_paused and self._retries[0][0] <= self._clock():
            return heapq.heappop(self._retries)[2]
        if self.paused:
            return None
        if self._page:
            return self._page.popleft()
        if self._claiming is None and not self._exhausted:
            self._claiming = asyncio.create_task(self._claim())
        return None

    async def _claim(self) -> None:
        """Claim a page of questions while retries wait; no questions if all are settled."""
        writer, judge = self._writer, self._judge
        page = _SHARED_PAGE_SIZE if writer.shared else _PAGE_SIZE
        try:
            while not self._page and not self._stopping.is_set():
                claimed = await writer.call(writer.journal.claim, judge, page)
                self._page.extend(await self._serve(claimed))
                if self._page or claimed:
                    continue
                # If another worker dies, its questions become claimable.
                if not await writer.call(writer.journal.held_elsewhere, judge):
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), _CHECK_INTERVAL)
            self._exhausted = not self._page
        except Exception as error:  # passed on to the callers of `next_request`
            self._error, self._exhausted = error, True
        self._claiming = None
        self._changed.set()

    @property
    def idle(self) -> bool:
        """Whether no request is taken or waits for its retry, unless retries are paused."""
        return not self._taken and (self.retries_paused or not self._retries)

    def wake(self) -> None:
        """Let those that wait in `next_request` look again."""
        self._changed.set()

    def put_back(self, queued: PreparedQuestion, due: float) -> None:
        """Hand the request out again when the clock reads `due`."""
        self._count += 1
        heapq.heappush(self._retries, (due, self._count, queued))
        self.finish()

    def finish(self) -> None:
        """Count a request that was taken as done."""
        self._taken -= 1
        self._changed.set()

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True
        if self._claiming is not None:
            self._claiming.cancel()
        self._changed.set()
