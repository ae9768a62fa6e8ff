"""What one caller may take of the service: connections, time, processes."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from llm_elicit.service import guard
from llm_elicit.service.auth import Keys
from llm_elicit.service.guard import Connection, Guard
from llm_elicit.service.responses import ProblemError
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.state import READER, Workers
from tests.service.serving import BEARER, LOOK, TOKEN, Served, refused, until

ROOT = Path(__file__).parents[2]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the body and answer; at /stream, go on until the caller leaves."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    more = scope["path"] == "/stream"
    await send({"type": "http.response.body", "body": b"first", "more_body": more})
    while more:
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b".", "more_body": True})


class Quick(Connection):
    seconds, most = 0.5, 6


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server with the service's connections and its guard, which wait for half a second."""
    mended = pytest.MonkeyPatch()
    mended.setattr(guard, "_BODY_SECONDS", 0.5)
    guarded = Guard(app, ServerSettings(), Keys("a secret", {}), lambda *_: None)
    config = uvicorn.Config(guarded, http=Quick, lifespan="off", log_config=None, port=0)
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join(10)
    mended.undo()


def connected(port: int, text: bytes = b"") -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=20)
    one.sendall(text)
    return one


def is_closed(one: socket.socket, seconds: float) -> bool:
    """Read until the other end closes; False if it does not in time."""
    one.settimeout(seconds)
    try:
        while one.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        # The headers of a second request, and a body that goes on after its refusal.
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: ",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000\r\n\r\nabc",
    ],
    ids=["nothing", "headers", "next-headers", "body", "chunks", "refused"],
)
def test_a_request_that_comes_byte_by_byte_is_given_up(port: int, said: bytes) -> None:
    with connected(port, said) as slow:
        began = time.monotonic()
        dripping = threading.Event()

        def drip() -> None:
            try:
                while not dripping.wait(0.05):
                    slow.sendall(b"x")
            except OSError:
                pass

        if said:
            threading.Thread(target=drip, daemon=True).start()
        assert is_closed(slow, 20.0)
        dripping.set()
        assert time.monotonic() - began < 15.0


def test_too_many_connections_close_those_that_wait_and_no_stream(port: int) -> None:
    whole = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(port, whole) as stream:
        assert b"first" in stream.recv(1000) + stream.recv(1000)
        waiting = [connected(port) for _ in range(6)]
        assert is_closed(waiting[0], 20.0)
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "first"
        assert stream.recv(1000)
        for one in waiting:
            one.close()


def test_a_slow_stream_outlives_the_limit_on_headers(port: int) -> None:
    with connected(port, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n") as stream:
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            assert stream.recv(1000)


def test_a_request_of_two_lengths_is_refused(port: int) -> None:
    said = (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n")  # fmt: skip
    with connected(port, said) as caller:
        assert b" 400 " in caller.recv(4000)
        assert is_closed(caller, 20.0)


def test_the_services_own_limits() -> None:
    assert Connection.seconds <= 10
    assert guard._BODY_SECONDS <= 30


def test_readers_leave_a_process_to_others() -> None:
    async def work() -> None:
        workers = Workers(2, 60.0)
        token = READER.set("192.0.2.1")
        mine = [asyncio.create_task(workers.call(time.sleep, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await workers.call(time.sleep, 0)
        assert refused.value.status_code == 429
        READER.set("192.0.2.2")
        other = asyncio.create_task(workers.call(time.sleep, 0))
        READER.reset(token)
        await workers.call(time.sleep, 0)
        assert not any(call.done() for call in (*mine, other))
        for call in (*mine, other):
            call.cancel()
        await asyncio.gather(*mine, other, return_exceptions=True)

    asyncio.run(work())


def test_many_readers_are_told_that_it_is_busy() -> None:
    async def work() -> None:
        workers = Workers(1, 60.0)
        calls = []
        for number in range(16):
            READER.set(f"192.0.2.{number}")
            calls.append(asyncio.create_task(workers.call(time.sleep, 60)))
        await asyncio.sleep(0)
        READER.set("192.0.2.99")
        with pytest.raises(ProblemError) as refused:
            await workers.call(time.sleep, 0)
        assert refused.value.status_code == 503
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(work())


# The statuses that docs/service.md names, each with a raw request that gets it.
REFUSED = [
    (401, "GET", "/api/v1/campaigns", None),
    (403, "POST", "/api/v1/campaigns", LOOK),
    (404, "GET", "/api/v1/campaigns/none", BEARER),
    (404, "GET", "/api/v1/campaigns/not%20a%20name", BEARER),
    (404, "GET", "/api/v1/spaces/none", BEARER),
    (404, "PUT", "/api/v1/spaces/none", BEARER),
    (404, "DELETE", "/api/v1/spaces/none", BEARER),
    (404, "DELETE", "/api/v1/spaces/penguins", BEARER),
    (404, "GET", "/api/v1/none", BEARER),
    (404, "GET", "/api/v1/campaigns/codes/beliefs/none", BEARER),
    (404, "GET", "/api/v1/campaigns/codes/beliefs/none/samples", BEARER),
    (404, "GET", "/api/v1/campaigns/codes/audit", BEARER),
    (404, "GET", "/api/v1/campaigns/codes/report", BEARER),
    (404, "DELETE", "/api/v1/campaigns/codes/links/none", BEARER),
    (404, "DELETE", "/api/v1/campaigns/none/links/none", BEARER),
    (409, "POST", "/api/v1/campaigns/codes/pause", BEARER),
    (415, "POST", "/api/v1/campaigns", BEARER),
    (415, "POST", "/api/v1/spaces?name=x", BEARER),
    (422, "GET", "/api/v1/campaigns/codes/comparisons?limit=-1&format=json", BEARER),
    (422, "POST", "/api/v1/campaigns/codes/retune?x=1", BEARER),
]


@pytest.fixture(scope="module")
def ended(strict: Served) -> Iterator[httpx.Client]:
    campaign = {"name": "codes", "space": "penguins", "design": {"pairs": 4},
                "judges": [{"name": "ada", "backend": "human"}]}  # fmt: skip
    with strict.api(TOKEN) as client, strict.client() as raw:
        run = client.start(campaign)
        refused(409, client.start, campaign)
        until(run, lambda snapshot: snapshot.stage == "ask")
        run.cancel()
        yield raw


@pytest.mark.parametrize(("status", "method", "path", "who"), REFUSED)
def test_statuses_are_those_of_the_documentation(
    ended: httpx.Client, status: int, method: str, path: str, who: Any
) -> None:
    headers = {"authorization": f"Bearer {who}"} if isinstance(who, str) else who
    answer = ended.request(method, path, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == status
    page = " ".join((ROOT / "docs" / "service.md").read_text().split())
    stated = re.search(r"the command line prints as `detail`.*?413 and 415", page)
    assert stated
    assert str(status) in stated[0]


def test_the_installation_names_every_extra() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())
    page = (ROOT / "docs" / "installation.md").read_text()
    extras = set(stated["project"]["optional-dependencies"]) - {"dev"}
    assert extras <= set(re.findall(r"`(\w+)`", page))
