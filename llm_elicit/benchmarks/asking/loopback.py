"""A server for benchmarks: answers on either wire after a fixed latency, in its own process.

It does as little as a server can, so that what is measured is the client. It counts the requests
and the different bodies among them; `GET /seen` tells.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from typing import Self, cast

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


def _response(payload: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
    return head.encode() + b"\r\n\r\n" + payload


@dataclass
class Seen:
    """What reached the server: requests, and digests of their bodies."""

    requests: int
    bodies: set[int]


class _Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self, latency: float, seen: Seen) -> None:
        self._latency = latency
        self._seen = seen
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
        loop = asyncio.get_running_loop()
        if head.startswith(b"get /seen"):
            told = {"requests": self._seen.requests, "different": len(self._seen.bodies)}
            self._transport.write(_response(json.dumps(told).encode()))
            return
        self._seen.requests += 1
        self._seen.bodies.add(hash(body))
        answer = _MESSAGE if head.startswith(b"post /v1/messages") else _COMPLETION
        loop.call_later(self._latency, self._transport.write, _response(answer))


async def _serve(latency: float) -> None:
    loop = asyncio.get_running_loop()
    seen = Seen(0, set())
    server = await loop.create_server(lambda: _Connection(latency, seen), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


class Loopback:
    """The server in a process of its own, while inside `with`.

    Args:
        latency: seconds from a request to its answer.

    Example:
        >>> with Loopback(0.0) as server:
        ...     server.seen()
        (0, 0)
    """

    def __init__(self, latency: float) -> None:
        self._latency = latency

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, str(self._latency)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def seen(self) -> tuple[int, int]:
        """Requests so far, and how many different bodies were among them."""
        with urllib.request.urlopen(f"{self.url}/seen") as answer:
            told = json.load(answer)
        return int(told["requests"]), int(told["different"])

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
