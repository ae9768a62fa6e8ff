"""Fixed limits hold for all workers of a campaign together: each keeps to its part.

How many workers live is read from the journal every other second. One that joins others sends
nothing until they had time to see it, so that a limit is kept from the first request on; one that
died keeps its part until its lease is over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from llm_elicit.orchestrator.turnstile import Turnstiles
from llm_elicit.orchestrator.writer import Writer

LOOK = 2.0
"""Seconds between looks at who else is there."""


@contextlib.asynccontextmanager
async def in_company(writer: Writer, turnstiles: Turnstiles) -> AsyncIterator[None]:
    """Keep the turnstiles to this worker's part of every fixed limit while inside."""
    if not writer.shared:
        yield
        return
    workers = await writer.workers()
    turnstiles.share(workers)
    if workers > 1:
        turnstiles.hold(2.0 * LOOK)
    look = asyncio.create_task(_look(writer, turnstiles))
    try:
        yield
    finally:
        look.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await look


async def _look(writer: Writer, turnstiles: Turnstiles) -> None:
    while True:
        await asyncio.sleep(LOOK)
        turnstiles.share(await writer.workers())
