"""Group commits: all that waits to be written goes into one transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING
from typing import Self, TypeVar

from llm_elicit.errors import CapError, ElicitError
from llm_elicit.orchestrator.journal import Change, Journal, JournalError, Question
from llm_elicit.orchestrator.journal.changes import Refusal
from llm_elicit.orchestrator.log import event
from llm_elicit.orchestrator.request_builder import Prepared

T = TypeVar("T")

Serve = Callable[[list[Question]], Awaitable[list[Prepared]]]
"""Answers what it can of some questions without asking, and returns the others."""

_PAGE = 256
"""Questions claimed at once by the only worker."""

_SHARED_PAGE = 32
"""Fewer where workers share: what one holds, another cannot take."""

_CROWD, _LINGER = 8, 0.004
"""After a commit of so many changes the next waits for so many seconds: where many slots are busy,
fewer and larger commits leave the processor to them."""

_LOOK_AGAIN = 1.0
"""Seconds between looks at what other workers hold."""


class Writer:
    """Writes to a journal from one thread, many callers' changes to a commit.

    `await write(change)` returns when it is on the disk; while one commit runs, the changes
    that arrive wait together for the next.

    Args:
        journal: where to write.
        after: called in the same thread after each commit.
    """

    def __init__(self, journal: Journal, after: Callable[[], None] | None = None) -> None:
        self._journal = journal
        self._after = after
        self._waiting: list[tuple[Change, asyncio.Future[Refusal | None]]] = []
        self._workers = 1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._task: asyncio.Task[None] | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def write(self, change: Change) -> bool:
        """Make a change durable; an intent waits while the cap is taken by requests in flight.

        Returns:
            False where another worker has settled the question, or holds it: nothing may be sent
            for it, and nothing given up.

        Raises:
            InputError: the journal cannot be written any more.
            CapError: the campaign's cap leaves no room for this intent.
        """
        idle = False
        while (refusal := await self._written(change)) is not None:
            if refusal == "settled elsewhere":
                return False
            if self._journal.failure is not None:
                raise self._journal.failure
            # What was in flight when it was refused may have landed since: look once more.
            was_idle, idle = idle, not any(await self._call(self._journal.held))
            if was_idle and idle:
                raise CapError(
                    "limits: what all workers spent leaves no room for the next request, which "
                    f"may cost {change.values['reserved']:.4f} USD and take "
                    f"{change.values['tokens']:,} tokens; raise the cap and run again"
                )
            if not idle:
                await asyncio.sleep(0.1)
        return True

    async def write_all(self, changes: Sequence[Change]) -> None:
        """Make changes durable of which none is an intent, all in one commit.

        Raises:
            InputError: the journal cannot be written any more.
        """
        await asyncio.gather(*map(self._written, changes))

    def _written(self, change: Change) -> asyncio.Future[Refusal | None]:
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        # What waits is written even if its caller is cancelled meanwhile.
        return done

    async def _drain(self) -> None:
        group: list[tuple[Change, asyncio.Future[Refusal | None]]] = []
        while self._waiting:
            if len(group) >= _CROWD:
                await asyncio.sleep(_LINGER)
            group, self._waiting = self._waiting, []
            try:
                refused = await self._call(self._commit, [change for change, _ in group])
            except Exception as error:
                for _, done in group:
                    if not done.done():
                        done.set_exception(error)
            else:
                for change, done in group:
                    if not done.done():
                        done.set_result(refused.get(change))

    def _commit(self, changes: list[Change]) -> dict[Change, Refusal]:
        refused = self._journal.commit(changes)
        # The room that a full disk's reserve gave back is for answers.
        if self._after is not None and self._journal.failure is None:
            self._after()
        return refused

    async def claim(self, judge: str) -> list[Question]:
        """The judge's next open questions; empty when nobody is left who might leave one."""
        page = _SHARED_PAGE if self.shared else _PAGE
        return await self._call(self._journal.claim, judge, page)

    @property
    def shared(self) -> bool:
        """Whether other workers may be there too."""
        return self._journal.location.shared

    async def workers(self) -> int:
        """How many workers live, this one among them, as far as the journal could be asked."""
        try:
            self._workers = await self._call(self._journal.workers)
        except JournalError as error:
            # Whoever writes next meets it too, or finds that it has passed.
            event("workers not counted", WARNING, reason=str(error))
        return self._workers

    async def worst(self, judge: str) -> tuple[int, int]:
        """What earlier runs found that a judge's requests must reserve at least."""
        return await self._call(self._journal.worst, judge)

    async def raise_worst(self, judge: str, prompt: int, completion: int) -> None:
        """Keep for later runs that a judge's requests take more than they ask for."""
        await self._call(self._journal.raise_worst, judge, prompt, completion)

    async def held_elsewhere(self, judge: str) -> int:
        """How many open questions of the judge other workers hold."""
        return await self._call(self._journal.held_elsewhere, judge)

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *arguments)

    async def _beat(self) -> None:
        """Keep the lease while nothing is written, however long answers take."""
        while True:
            await asyncio.sleep(self._journal.lease / 4)
            try:
                await self._call(self._journal.commit, [])
            except ElicitError as error:
                # Whoever writes next meets it too, or finds that it has passed.
                event("heartbeat failed", WARNING, reason=str(error))

    async def __aenter__(self) -> Self:
        self._pulse = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self._journal.give_up()  # whoever stops this does not wait for a server
        if self._pulse is not None:
            self._pulse.cancel()
            with contextlib.suppress(BaseException):
                await self._pulse
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown(wait=True)


class Claims:
    """A judge's open questions, taken from the journal a page at a time.

    `await claims.next()` may be called by many at once. It is None when all are settled, or the
    run is asked to stop. Questions whose answers are known already are served page by page, and
    never come to one who asks.
    """

    def __init__(self, writer: Writer, judge: str, serve: Serve, stopping: asyncio.Event) -> None:
        self._writer = writer
        self._judge = judge
        self._serve = serve
        self._stopping = stopping
        self._page: deque[Prepared] = deque()
        self._turn = asyncio.Lock()
        self._ended = False

    def at_hand(self) -> Prepared | None:
        """The next question, if no page need be turned for it."""
        return self._page.popleft() if self._page else None

    async def next(self) -> Prepared | None:
        """The next question."""
        if not self._page:
            async with self._turn:
                if not self._page and not self._ended:
                    await self._turn_over()
        return self._page.popleft() if self._page else None

    async def _turn_over(self) -> None:
        while not self._stopping.is_set():
            claimed = await self._writer.claim(self._judge)
            self._page.extend(await self._serve(claimed))
            if self._page:
                return
            if claimed:
                continue
            # Another worker may die with questions in hand: they are ours then.
            if not await self._writer.held_elsewhere(self._judge):
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LOOK_AGAIN)
        self._ended = True
