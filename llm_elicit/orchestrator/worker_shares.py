"""Limits hold for all workers of a campaign together: each keeps to its part.

How many workers live is read from the journal every other second. One that joins others sends
nothing at a fixed limit until they had time to see it, so that it is kept from the first request
on; one that died keeps its part until its lease is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from llm_elicit.orchestrator.rate_sharing import RunLimiters
from llm_elicit.orchestrator.writer import Writer

LOOK = 2.0
"""Seconds between looks at who else is there."""


@contextlib.asynccontextmanager
async def shared(writer: Writer, limiters: RunLimiters) -> AsyncIterator[None]:
    """Keep the limiters to this worker's part of every limit while inside."""
    try:
        if writer.shared:
            async with _watched(writer, limiters):
                yield
        else:
            yield
    finally:
        limiters.close()


@contextlib.asynccontextmanager
async def _watched(writer: Writer, limiters: RunLimiters) -> AsyncIterator[None]:
    workers = await writer.workers()
    limiters.share(workers)
    if workers > 1:
        limiters.hold(2.0 * LOOK)
    look = asyncio.create_task(_look(writer, limiters))
    try:
        yield
    finally:
        look.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await look


async def _look(writer: Writer, limiters: RunLimiters) -> None:
    while True:
        await asyncio.sleep(LOOK)
        limiters.share(await writer.workers())
