"""Event streams: many watchers, slow readers, and an event loop that is never held up."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.service.serving import Served, serving, settled
from tests.service.test_campaigns import campaign, slow, wait_for

WATCHERS = 200


async def watch(client: httpx.AsyncClient, name: str, seen: list[int]) -> None:
    """Read the events of a campaign to its end."""
    async with client.stream("GET", f"/api/campaigns/{name}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                seen.append(int(line[4:]))


async def probe(client: httpx.AsyncClient, until: asyncio.Event) -> list[float]:
    """Return the milliseconds that the shortest request took, again and again."""
    found = []
    while not until.is_set():
        began = time.perf_counter()
        (await client.get("/health")).raise_for_status()
        found.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.02)
    return found


def test_200_watchers_and_a_reader_that_reads_nothing(tmp_path: Path) -> None:
    """All see every event once; the one that reads nothing holds nobody up."""

    async def together(served: Served) -> tuple[list[list[int]], list[float]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=served.address, timeout=120.0, limits=limits
        ) as client:
            await client.post("/api/campaigns/many/resume")
            seen: list[list[int]] = [[] for _ in range(WATCHERS)]
            done = asyncio.Event()
            probing = asyncio.create_task(probe(client, done))
            watching = [asyncio.create_task(watch(client, "many", one)) for one in seen]
            await asyncio.sleep(4.0)
            await client.post("/api/campaigns/many/cancel")
            await asyncio.gather(*watching)
            done.set()
            return seen, await probing

    with serving(tmp_path) as served, served.client() as client:
        client.post("/api/campaigns?start=false", json=slow("many"))
        idle = stalled(served, "many")
        seen, milliseconds = asyncio.run(together(served))
        idle.close()
        state = client.get("/api/campaigns/many").json()
        assert state["state"] == "cancelled"
        assert state["seq"] > 10
        for one in seen:
            assert one == list(range(1, state["seq"] + 1))
        assert statistics.median(milliseconds) < 200.0
        until = time.monotonic() + 10.0
        while "llm_elicit_watchers 0.0" not in client.get("/metrics").text:
            assert time.monotonic() < until
            time.sleep(0.1)


def stalled(served: Served, name: str) -> socket.socket:
    """Open a stream with a tiny buffer and read nothing of it."""
    place = urlsplit(served.address)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    reader.connect((place.hostname, place.port))
    reader.sendall(f"GET /api/campaigns/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader


def test_watchers_are_bounded(tmp_path: Path) -> None:
    settings = {"bounds": {"watchers": 2}}
    with serving(tmp_path, settings=settings) as served, served.client() as client:
        client.post("/api/campaigns?start=false", json=campaign("few"))
        path = "/api/campaigns/few/events"
        with client.stream("GET", path) as one, client.stream("GET", path) as two:
            assert one.status_code == two.status_code == 200
            assert client.get(path).status_code == 503
        wait_until(lambda: open_stream(client, path) == 200)


def open_stream(client: httpx.Client, path: str) -> int:
    with client.stream("GET", path) as stream:
        return stream.status_code


def wait_until(true: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_connection_that_drops_misses_nothing(served: Served) -> None:
    with served.client() as client:
        client.post("/api/campaigns", json=slow("drops", 300))
        seen: list[dict[str, Any]] = []
        for _ in range(5):
            last = {"last-event-id": str(seen[-1]["seq"])} if seen else {}
            with client.stream("GET", "/api/campaigns/drops/events", headers=last) as stream:
                fresh = 0
                for line in stream.iter_lines():
                    if line.startswith("data: "):
                        seen.append(json.loads(line[6:]))
                        fresh += 1
                    if fresh == 2:
                        break
        assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
        client.post("/api/campaigns/drops/cancel")


def test_heavy_requests_hold_nobody_up(served: Served) -> None:
    """Drafts, dry runs and samples are computed elsewhere, and the shortest request stays short."""
    with served.client() as client:
        client.post("/api/campaigns", json=campaign("heavy", design={"pairs": 10}))
        settled(client, "heavy")

    async def together() -> list[float]:
        async with httpx.AsyncClient(base_url=served.address, timeout=120.0) as client:
            done = asyncio.Event()
            probing = asyncio.create_task(probe(client, done))
            path = "/api/campaigns/heavy/beliefs/expert/samples"
            table = "a,b\n" + "".join(f"{n},{n % 97}\n" for n in range(100_000))
            answers = await asyncio.gather(
                client.get(path, params={"n": 50_000}),
                client.post(
                    "/api/spaces?name=large", content=table, headers={"content-type": "text/csv"}
                ),
                client.post("/api/campaigns/dry-run", json=campaign("d", design={"pairs": 5_000})),
                client.get("/api/campaigns/heavy/comparisons?format=parquet"),
            )
            assert [one.status_code for one in answers] == [200, 201, 200, 200]
            done.set()
            return await probing

    milliseconds = asyncio.run(together())
    assert statistics.median(milliseconds) < 200.0
    wait_for(served.client(), "heavy", lambda now: now["state"] == "done")
