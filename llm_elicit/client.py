"""A client of the service, blocking and asynchronous, with the nouns of `llm_elicit.Runtime`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any, Self

import httpx2

from llm_elicit.errors import CancelledRunError, ElicitError
from llm_elicit.orchestrator.journal.control import ENDED, RunEvent
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service.calls import (
    Asynchronous,
    BeliefCalls,
    Blocking,
    Call,
    RunCalls,
    ServiceCalls,
    ServiceConflictError,
    ServiceError,
    Stated,
    body_of,
    quoted,
    read_nothing,
)

__all__ = [
    "AsyncClient", "AsyncServiceBelief", "AsyncServiceRun", "Client", "ServiceBelief",
    "ServiceConflictError", "ServiceError", "ServiceRun",
]  # fmt: skip

TOKEN = "LLM_ELICIT_TOKEN"  # noqa: S105 - the name of a variable
"""The environment variable of the token, which the service reads, too."""

_TIMEOUT = httpx2.Timeout(120.0, connect=10.0)
_SILENCE = 30.0
"""Seconds without a signal after which a stream of events is read again; it has one every five."""

_BREAK = 0.5
"""Seconds until a stream that broke off is read again."""


def _connection(address: str, token: str | None) -> dict[str, Any]:
    """Return the settings of an HTTP client; the token comes from the environment by default."""
    token = os.environ.get(TOKEN) if token is None else token
    headers = {"authorization": f"Bearer {token.strip()}"} if token else {}
    return {"base_url": address, "headers": headers, "timeout": _TIMEOUT}


def _stream(http: httpx2.Client | httpx2.AsyncClient, path: str, since: int) -> httpx2.Request:
    """Return the request of a stream of events."""
    call = Call("GET", f"{path}/events", read_nothing, headers={"Last-Event-ID": str(since)})
    request = call.request(http)
    request.extensions["timeout"] = httpx2.Timeout(10.0, read=_SILENCE).as_dict()
    return request


def _pause_after(error: httpx2.TransportError | ServiceError) -> float:
    """Return the seconds until a stream is read again after an error; raise one that would stay."""
    if not isinstance(error, ServiceError):
        return _BREAK
    if error.retry_after is None:
        raise error
    return error.retry_after


def _raise_end(snapshot: RunSnapshot) -> None:
    """Raise the error with which a run ended.

    Raises:
        CancelledRunError: it was cancelled.
        ElicitError: it failed.
    """
    if snapshot.state == "cancelled":
        raise CancelledRunError(f"{snapshot.name}: the run was cancelled; its answers are kept")
    if snapshot.state == "failed":
        raise ElicitError("; ".join(snapshot.problems) or f"{snapshot.name}: the run failed")


class ServiceBelief(Blocking, BeliefCalls):
    """The belief of a judge of a run on the service."""


class AsyncServiceBelief(Asynchronous, BeliefCalls):
    """The belief of a judge of a run on the service; its methods are awaited."""


class ServiceRun(Blocking, RunCalls):
    """A run on the service.

    Attributes:
        name: the campaign's name.
    """

    def __init__(self, http: httpx2.Client, name: str) -> None:
        super().__init__(http, f"campaigns/{quoted(name)}")
        self.name = name

    def belief(self, judge: str) -> ServiceBelief:
        """Return the belief of a judge."""
        return ServiceBelief(self._http, f"{self._path}/beliefs/{quoted(judge)}")

    def repeat(self, name: str | None = None) -> ServiceRun:
        """Ask the same questions again, in a new run."""
        return ServiceRun(self._http, self._send(self._repeat(name)).name)

    def events(self, since: int = 0) -> Iterator[RunEvent]:
        """Yield all events after number `since`, and those to come until the run ends.

        A lost connection is opened again, and the stream continues after the last event.
        """
        while True:
            try:
                request = _stream(self._http, self._path, since)
                with closing(self._http.send(request, stream=True)) as response:
                    if response.status_code == 204:
                        return
                    if not response.is_success:
                        response.read()
                        body_of(response)
                    for event in httpx2.EventSource(response):
                        yield RunEvent.model_validate_json(event.data, extra="ignore")
                        since = int(event.id)
            except (httpx2.TransportError, ServiceError) as error:
                time.sleep(_pause_after(error))
            snapshot = self.snapshot()
            if snapshot.state in ENDED and snapshot.seq <= since:
                return

    def wait(self) -> RunSnapshot:
        """Wait for the end of the run, and return its state.

        Raises:
            CancelledRunError: it was cancelled.
            ElicitError: it failed.
        """
        for _ in self.events(self.snapshot().seq):
            pass
        snapshot = self.snapshot()
        _raise_end(snapshot)
        return snapshot


class AsyncServiceRun(Asynchronous, RunCalls):
    """A run on the service; its methods are awaited.

    Attributes:
        name: the campaign's name.
    """

    def __init__(self, http: httpx2.AsyncClient, name: str) -> None:
        super().__init__(http, f"campaigns/{quoted(name)}")
        self.name = name

    def belief(self, judge: str) -> AsyncServiceBelief:
        """Return the belief of a judge."""
        return AsyncServiceBelief(self._http, f"{self._path}/beliefs/{quoted(judge)}")

    async def repeat(self, name: str | None = None) -> AsyncServiceRun:
        """Ask the same questions again, in a new run."""
        return AsyncServiceRun(self._http, (await self._send(self._repeat(name))).name)

    async def events(self, since: int = 0) -> AsyncIterator[RunEvent]:
        """Yield events as `ServiceRun.events` does."""
        while True:
            try:
                request = _stream(self._http, self._path, since)
                async with aclosing(await self._http.send(request, stream=True)) as response:
                    if response.status_code == 204:
                        return
                    if not response.is_success:
                        await response.aread()
                        body_of(response)
                    async for event in httpx2.EventSource(response):
                        yield RunEvent.model_validate_json(event.data, extra="ignore")
                        since = int(event.id)
            except (httpx2.TransportError, ServiceError) as error:
                await asyncio.sleep(_pause_after(error))
            snapshot = await self.snapshot()
            if snapshot.state in ENDED and snapshot.seq <= since:
                return

    async def wait(self) -> RunSnapshot:
        """Wait for the end of the run as `ServiceRun.wait` does."""
        async for _ in self.events((await self.snapshot()).seq):
            pass
        snapshot = await self.snapshot()
        _raise_end(snapshot)
        return snapshot


class Client(Blocking, ServiceCalls):
    """A client of a service.

    Args:
        address: the service's address.
        token: the token; that in the environment variable `LLM_ELICIT_TOKEN` by default.

    Raises:
        ServiceError: from each method, if the service refuses a request or cannot be reached.

    Example::

        with Client("http://127.0.0.1:8642") as client:
            run = client.start("examples/simulated.yaml")
            for event in run.events():
                print(event.kind)
            run.belief("expert").sample(100)
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        super().__init__(httpx2.Client(**_connection(address, token)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def start(self, campaign: Stated, *, paused: bool = False) -> ServiceRun:
        """Create a run of a campaign and start it; if `paused`, it waits for `start`."""
        return self.run(self._send(self._create(campaign, paused)).name)

    def run(self, name: str) -> ServiceRun:
        """Return the run of a name, which need not exist."""
        return ServiceRun(self._http, name)


class AsyncClient(Asynchronous, ServiceCalls):
    """A client of a service whose methods are awaited; see `Client`."""

    def __init__(self, address: str, token: str | None = None) -> None:
        super().__init__(httpx2.AsyncClient(**_connection(address, token)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def start(self, campaign: Stated, *, paused: bool = False) -> AsyncServiceRun:
        """Create a run of a campaign and start it; if `paused`, it waits for `start`."""
        return self.run((await self._send(self._create(campaign, paused))).name)

    def run(self, name: str) -> AsyncServiceRun:
        """Return the run of a name, which need not exist."""
        return AsyncServiceRun(self._http, name)
