"""Connections that wait for a request do not wait for ever, and there is a limit on their number.

uvicorn closes a connection that is idle after an answer, and waits for the rest of a request's
headers without a limit. Here, headers must come within seconds. Where there are too many
connections, the one that has waited longest is closed; one with a request in progress, such as a
stream of events, never is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection of uvicorn's with limits on waiting.

    Attributes:
        seconds: to wait for the headers of a request, from its first byte on.
        most: the number of connections above which those that wait are closed.
    """

    seconds = 10.0
    most = 800

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting_since = 0.0

    @property
    def waits(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait; close the connection that has waited longest if there are too many."""
        if TYPE_CHECKING:
            assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._limit()
        waiting = [other for other in self.connections if isinstance(other, Connection)]
        if len(waiting) > self.most:
            waiting = [other for other in waiting if other.waits]
            min(waiting, key=lambda other: other._waiting_since).transport.close()

    def data_received(self, data: bytes) -> None:
        """Go on with a request."""
        super().data_received(data)
        self._limit()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._limit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _limit(self) -> None:
        """Limit the wait for headers, unless a request is in progress or none has begun."""
        if not self.waits or self.timeout_keep_alive_task is not None:
            self._stop()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.seconds, self.transport.close)
        if self.waits:
            self._waiting_since = self._waiting_since or self.loop.time()
        else:
            self._waiting_since = 0.0

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
