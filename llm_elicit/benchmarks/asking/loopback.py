"""A server for benchmarks: answers on either wire after a fixed latency, in its own process.

It does as little as a server can, so that what is measured is the client. It may go wrong on
purpose, or enforce a limit. It counts the requests, the different bodies among them and the
faults; `GET /seen` tells.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import urllib.request
from dataclasses import asdict, dataclass, field
from typing import Literal, Self, cast

from llm_elicit.testing.meters import Dialect, Gate, Limit

_COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench-1",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "logprobs": None,
                "message": {"role": "assistant", "content": "A", "refusal": None},
            }
        ],
        "usage": {"prompt_tokens": 200, "completion_tokens": 1, "total_tokens": 201},
    }
).encode()
_MESSAGE = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "bench-1",
        "content": [{"type": "text", "text": "A"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 200, "output_tokens": 1},
    }
).encode()


_ERROR = json.dumps({"error": {"message": "injected", "type": "injected"}}).encode()


_OK, _LIMITED = "200 OK", "429 Too Many Requests"


def _response(payload: bytes, status: str = _OK, *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", "content-type: application/json", *more)
    return "\r\n".join((*lines, f"content-length: {len(payload)}", "", "")).encode() + payload


Fault = Literal["limited", "error", "hang", "reset", "malformed"]


@dataclass(frozen=True)
class Faults:
    """The shares of requests that go wrong.

    Attributes:
        limited: answered 429 with a Retry-After of one second.
        error: answered 500.
        hang: never answered.
        reset: the connection is reset.
        malformed: answered 200 with half an answer.
    """

    limited: float = 0.0
    error: float = 0.0
    hang: float = 0.0
    reset: float = 0.0
    malformed: float = 0.0

    def draw(self, rng: random.Random) -> Fault | None:
        """What goes wrong with the next request, if anything."""
        at = rng.random()
        for kind, share in asdict(self).items():
            at -= share
            if at < 0.0:
                return cast("Fault", kind)
        return None


NO_FAULTS = Faults()


@dataclass(frozen=True)
class Rate:
    """A limit that the server enforces.

    Attributes:
        per_minute: requests; a bucket of as many, full at first. 0 for no limit.
        dialect: whose headers say what is left.
    """

    per_minute: float = 0.0
    dialect: Dialect = "none"

    def gate(self) -> Gate:
        """The limit at work."""
        limit = Limit(self.per_minute) if self.per_minute else None
        return Gate(limit, dialect=self.dialect)


NO_RATE = Rate()


@dataclass
class Seen:
    """What reached the server: requests, digests of their bodies, and what was done wrong."""

    requests: int = 0
    bodies: set[int] = field(default_factory=set)
    faults: int = 0


@dataclass
class _Server:
    latency: float
    faults: Faults
    gate: Gate
    seen: Seen = field(default_factory=Seen)
    rng: random.Random = field(default_factory=lambda: random.Random(0))


class _Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            start = head.find(b"content-length:")
            length = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._take(head, body)

    def _take(self, head: bytes, body: bytes) -> None:
        seen = self._server.seen
        if head.startswith(b"get /seen"):
            told = [seen.requests, len(seen.bodies), seen.faults]
            self._transport.write(_response(json.dumps(told).encode()))
            return
        seen.requests += 1
        seen.bodies.add(hash(body))
        answer = _MESSAGE if head.startswith(b"post /v1/messages") else _COMPLETION
        loop = asyncio.get_running_loop()
        later = loop.call_later
        admitted, headers = self._server.gate.admit(loop.time())
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if not admitted:
            seen.faults += 1
            later(self._server.latency, self._transport.write, _response(_ERROR, _LIMITED, *lines))
            return
        fault = self._server.faults.draw(self._server.rng)
        seen.faults += fault is not None
        if fault is None and lines:
            later(self._server.latency, self._transport.write, _response(answer, _OK, *lines))
        elif fault is None:
            later(self._server.latency, self._transport.write, _response(answer))
        else:
            later(self._server.latency, self._go_wrong, fault, answer)

    def _go_wrong(self, fault: Fault, answer: bytes) -> None:
        match fault:
            case "limited":
                refusal = _response(_ERROR, _LIMITED, "retry-after: 1")
                self._transport.write(refusal)
            case "error":
                self._transport.write(_response(_ERROR, "500 Internal Server Error"))
            case "malformed":
                self._transport.write(_response(answer[: len(answer) // 2]))
            case "reset":
                self._transport.abort()
            case "hang":
                pass


async def _serve(latency: float, faults: Faults, rate: Rate) -> None:
    loop = asyncio.get_running_loop()
    state = _Server(latency, faults, rate.gate())
    server = await loop.create_server(lambda: _Connection(state), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


class Loopback:
    """The server in a process of its own, while inside `with`.

    Args:
        latency: seconds from a request to its answer.
        faults: what goes wrong.
        rate: a limit to keep.

    Example:
        >>> with Loopback(0.0) as server:
        ...     server.seen()
        (0, 0)
    """

    def __init__(self, latency: float, faults: Faults = NO_FAULTS, rate: Rate = NO_RATE) -> None:
        self._settings = json.dumps([latency, asdict(faults), asdict(rate)])

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, self._settings]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if hasattr(os, "sched_setaffinity"):
            # The client has another core, where there is one.
            os.sched_setaffinity(self._process.pid, {max(os.sched_getaffinity(0))})
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def seen(self) -> tuple[int, int]:
        """Requests so far, and how many different bodies were among them."""
        requests, different, _ = self._told()
        return requests, different

    def gone_wrong(self) -> int:
        """Requests so far that went wrong on purpose, or were refused for a limit."""
        return self._told()[2]

    def _told(self) -> tuple[int, int, int]:
        with urllib.request.urlopen(f"{self.url}/seen") as answer:
            requests, different, faults = json.load(answer)
        return int(requests), int(different), int(faults)

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    seconds, shares, limit = json.loads(sys.argv[1])
    asyncio.run(_serve(seconds, Faults(**shares), Rate(**limit)))
