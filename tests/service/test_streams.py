"""Event streams: many watchers, slow readers, and an event loop that is never held up.

What is sent at once is raw HTTP: the client would repeat what is refused for now.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest

from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.stages import ask, fit, plan
from tests.service.serving import Served, serving
from tests.service.test_campaigns import campaign, slow

WATCHERS = 200
PATIENCE = 280.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service for so many watchers and one more."""
    settings = {"bounds": {"watchers": WATCHERS + 1}}
    with serving(tmp_path_factory.mktemp("service"), settings=settings) as one:
        yield one


async def watch(client: httpx.AsyncClient, name: str, seen: list[int]) -> None:
    """Read the events of a campaign to its end."""
    async with client.stream("GET", f"/api/v1/campaigns/{name}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                seen.append(int(line[4:]))


def probe(served: Served, until: threading.Event) -> list[float]:
    """Return the milliseconds that the shortest request took, again and again.

    In a thread of its own: in the event loop of the watchers it would wait for their turns, too.
    Without the time in which the service, or this thread, was ready to go on and others had the
    cores: workers have them for what they compute.
    """
    found = []

    place = urlsplit(served.address)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=60.0)
    while not until.wait(0.02):
        began = served.clock()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        found.append(1000 * (served.clock() - began))
    connection.close()
    return found


@contextmanager
def probed(served: Served) -> Iterator[list[float]]:
    """Milliseconds of the shortest request while the code inside runs, complete after it."""
    found: list[float] = []
    done = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        probing = threads.submit(probe, served, done)
        try:
            yield found
        finally:
            done.set()
        found += probing.result()


def test_200_watchers_and_a_reader_that_reads_nothing(served: Served) -> None:
    """All see every event once; the one that reads nothing holds nobody up; no more may come."""
    path = "/api/v1/campaigns/many/events"

    async def together(idle: socket.socket) -> list[list[int]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=served.address, timeout=PATIENCE, limits=limits
        ) as client:
            await client.post("/api/v1/campaigns/many/resume")
            seen: list[list[int]] = [[] for _ in range(WATCHERS)]
            watching = [asyncio.create_task(watch(client, "many", one)) for one in seen]
            # The watchers and the reader that reads nothing.
            await until(client, "/metrics", lambda now: f"watchers {WATCHERS + 1}.0" in now.text)
            assert (await client.get(path)).status_code == 503
            parts = (await client.get("/campaigns/many/parts")).json()
            assert parts["pause"] == (WATCHERS + 1) / 10.0  # so many pages together are not slow
            await until(client, "/api/v1/campaigns/many", lambda now: now.json()["seq"] > 10)
            await client.post("/api/v1/campaigns/many/cancel?wait=60")
            await asyncio.gather(*watching)
            idle.close()
            await until(client, "/metrics", lambda now: "watchers 0.0" in now.text)
            return seen

    with served.client() as client, served.api() as api:
        run = api.start(slow("many"), paused=True)
        idle = stalled(served, "many")
        with probed(served) as milliseconds:
            seen = asyncio.run(together(idle))
        snapshot = run.snapshot()
        assert snapshot.state == "cancelled"
        assert snapshot.seq > 10
        for one in seen:
            assert one == list(range(1, snapshot.seq + 1))
        assert statistics.median(milliseconds) < 200.0
        assert client.get(path).status_code == 200


async def until(
    client: httpx.AsyncClient, path: str, wanted: Callable[[httpx.Response], bool]
) -> None:
    """Wait until an answer is the one that is wanted."""
    async with asyncio.timeout(PATIENCE):
        while not wanted(await client.get(path)):
            await asyncio.sleep(0.1)


def stalled(served: Served, name: str) -> socket.socket:
    """Open a stream with a tiny buffer and read nothing of it."""
    place = urlsplit(served.address)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    reader.connect((place.hostname, place.port))
    reader.sendall(
        f"GET /api/v1/campaigns/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    return reader


def test_a_connection_that_drops_misses_nothing(served: Served) -> None:
    with served.api() as client:
        run = client.start(slow("drops", 300))
        seen: list[int] = []
        for _ in range(5):
            with closing(run.events(seen[-1] if seen else 0)) as events:
                seen += [event.seq for event in itertools.islice(events, 2)]
        assert seen == list(range(1, 11))
        run.cancel()


def test_a_connection_that_was_kept_is_not_closed_under_a_request(served: Served) -> None:
    """As when uvicorn's five seconds pass while the service has no processor."""
    place = urlsplit(served.address)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
    connection.request("GET", "/health")
    connection.getresponse().read()
    time.sleep(1.0)
    served.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(3.0)  # it stops in a moment
        connection.request("GET", "/health")
        time.sleep(2.0)
    finally:
        served.process.send_signal(signal.SIGCONT)
    assert connection.getresponse().status == 200
    connection.close()


def fitted(served: Served, name: str) -> None:
    """Have a campaign among the runs of a service that was asked and fitted elsewhere."""
    settings = campaign(name, design={"pairs": 10}, space="penguins", runs=served.runs)
    run = plan(Campaign.model_validate(settings))
    fit(asyncio.run(ask(run)))


def test_heavy_requests_hold_nobody_up(served: Served) -> None:
    """Drafts, dry runs and samples are computed elsewhere, and the shortest request stays short."""
    fitted(served, "heavy")

    async def together() -> None:
        async with httpx.AsyncClient(base_url=served.address, timeout=PATIENCE) as client:
            path = "/api/v1/campaigns/heavy/beliefs/expert/samples"
            table = "a,b\n" + "".join(f"{n},{n % 97}\n" for n in range(40_000))
            answers = await asyncio.gather(
                client.get(path, params={"n": 20_000}),
                client.post(
                    "/api/v1/spaces?name=large", content=table, headers={"content-type": "text/csv"}
                ),
                client.post(
                    "/api/v1/campaigns/dry-run", json=campaign("d", design={"pairs": 2_000})
                ),
                client.get("/api/v1/campaigns/heavy/comparisons?format=parquet"),
            )
            assert [one.status_code for one in answers] == [200, 201, 200, 200]

    with probed(served) as milliseconds:
        asyncio.run(together())
    assert statistics.median(milliseconds) < 200.0
