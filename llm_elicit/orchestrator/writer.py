"""Group commits: all that waits to be written goes into one transaction."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from llm_elicit.orchestrator.journal import Journal, Op


class Writer:
    """Writes to a journal from one thread, many callers' operations to a commit.

    `await write(ops)` returns when they are on the disk; while one commit runs, the operations
    that arrive wait together for the next.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[tuple[list[Op], asyncio.Future[None]]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._task: asyncio.Task[None] | None = None

    async def write(self, ops: list[Op]) -> None:
        """Make `ops` durable.

        Raises:
            InputError: the journal cannot be written any more.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ops, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        # An answer that came is written even if the caller is cancelled while it waits.
        await asyncio.shield(done)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            ops = [op for some, _ in group for op in some]
            try:
                await loop.run_in_executor(self._thread, self._journal.commit, ops)
            except Exception as error:
                for _, done in group:
                    if not done.done():
                        done.set_exception(error)
            else:
                for _, done in group:
                    if not done.done():
                        done.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown(wait=True)
