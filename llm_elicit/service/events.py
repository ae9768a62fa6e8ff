"""The route of a campaign's events, as server-sent events.

Every event has its number as `id`, so that a browser which reconnects says with `Last-Event-ID`
what it has seen; nothing is lost and nothing comes twice. A reader that is slow holds its place in
the journal and no events; one that reads nothing for a minute is disconnected.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.types import Receive, Scope, Send

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.journal.control import ENDED, RunEvent
from llm_elicit.pipeline.run_progress import EventLog
from llm_elicit.service.catalog import CampaignName, Runs
from llm_elicit.service.problems import ProblemError, logger
from llm_elicit.service.security import require
from llm_elicit.service.sessions import Session, session_of
from llm_elicit.service.state import Service, service_of

router = APIRouter(prefix="/api/campaigns", tags=["campaigns"])

HEARTBEAT = 5.0
"""Seconds after which a sign of life is sent if nothing happened."""

_ALIVE = format_sse_event(data_str="{}", event="alive")
"""A sign of life that a page can see, which it cannot of a comment; it has no number."""

_LAST = 10**15
"""A number that no event reaches."""

_STALLED = 60.0
"""Seconds that a reader may take to read a part."""


@router.get(
    "/{name}/events",
    summary="Events as they happen (server-sent events)",
    dependencies=[Depends(require("read"))],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    request: Request,
    name: CampaignName,
    runs: Runs,
    since: Annotated[int, Query(ge=0, le=_LAST, description="The last event that is known.")] = 0,
    alive: Annotated[
        bool, Query(description="Whether signs of life are events `alive` and not comments.")
    ] = False,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Return all events after a number, and those to come until the run ends."""
    service = service_of(request)
    known = int(last_event_id) if re.fullmatch(r"[0-9]{1,15}", last_event_id) else since
    here = runs.here(name)
    if here is not None and here.state in ENDED and 0 < here.snapshot().seq <= known:
        return Response(status_code=204)  # a browser does not connect again then
    run = await runs.run(name)
    log = here if here is not None else EventLog(run.location, here=False)
    source = log.events(known)
    if service.watching >= service.settings.bounds.watchers:
        raise ProblemError(503, "too many event streams are open", {"retry-after": "10"})
    sign = _ALIVE if alive else KEEPALIVE_COMMENT
    return _EventStream(service, _parts(service, source, session_of(request), sign))


class _EventStream(StreamingResponse):
    """A stream of events, whose reader must read, and not sign out."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, parts: AsyncGenerator[bytes]) -> None:
        self._service, self._parts = service, parts
        # A proxy that gathered parts would show a page nothing.
        super().__init__(self._parts, headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts until the source ends, the reader leaves, or it reads no more."""

        async def patient(message: Any) -> None:
            async with asyncio.timeout(_STALLED):
                await send(message)

        self._service.watching += 1
        try:
            async with aclosing(self._parts):
                await super().__call__(scope, receive, patient)
        except TimeoutError:
            pass  # a reader that reads nothing is disconnected
        finally:
            self._service.watching -= 1


async def _parts(
    service: Service, source: AsyncIterator[RunEvent], session: Session | None, sign: bytes
) -> AsyncGenerator[bytes]:
    """Yield events as text, with signs of life while nothing happens, until the service stops.

    That the session was ended is seen within `HEARTBEAT` as well.
    """
    clock = asyncio.get_running_loop().time
    closing = asyncio.ensure_future(service.closing.wait())
    coming: asyncio.Future[RunEvent | None] | None = None
    try:
        yield sign
        checked = clock()
        while not closing.done():
            if session is not None and clock() - checked >= HEARTBEAT:
                if await asyncio.to_thread(service.sessions.has_ended, session):
                    return
                checked = clock()
            coming = coming or asyncio.ensure_future(_next(source))
            done, _ = await asyncio.wait(
                (coming, closing), timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED
            )
            if coming in done:
                event, coming = coming.result(), None
                if event is None:
                    return
                yield _text(event)
            elif not done:
                yield sign
    finally:
        closing.cancel()
        if coming is not None:
            coming.cancel()


async def _next(source: AsyncIterator[RunEvent]) -> RunEvent | None:
    """Return the next event; None after the last. `StopAsyncIteration` cannot leave a task.

    A journal that cannot be read ends the stream, and the browser connects again.
    """
    try:
        return await anext(source, None)
    except ElicitError as error:
        logger.warning("an event stream ended: %s", error)
        return None


def _text(event: RunEvent) -> bytes:
    return format_sse_event(data_str=event.model_dump_json(), event=event.kind, id=str(event.seq))
