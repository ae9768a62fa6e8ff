"""The loopback provider in a process of its own, for benchmarks of the client.

Every request has the same answer, encoded in advance and sent after a fixed latency, so that the
client's own costs are measured. Faults can be injected by their share or their number, and a rate
limit enforced. The server counts requests and billed answers for each question (a request body);
`GET /seen` returns the counts.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import subprocess
import sys
import urllib.request
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Literal, Self, cast, get_args

from llm_elicit.testing.provider import Answer, completion, message


def _answers(usage: Usage) -> tuple[bytes, bytes]:
    """Return the answer "A" as a chat completion and as a message, encoded once for all."""
    tokens, request, says = (
        usage.stated(),
        {"model": "bench-1"},
        Answer("A", prompt_tokens=0, usage=None),
    )
    whole, parts = completion(says, request), message(says, request)
    if tokens is not None:
        prompt, answer = tokens
        usage_of_completion = {"prompt_tokens": prompt, "completion_tokens": answer}
        whole["usage"] = usage_of_completion | {"total_tokens": prompt + answer}
        parts["usage"] = {"input_tokens": prompt, "output_tokens": answer}
    return json.dumps(whole).encode(), json.dumps(parts).encode()


_ERROR = json.dumps({"error": {"message": "injected", "type": "injected"}}).encode()
_OK, _LIMITED = "200 OK", "429 Too Many Requests"


def _response(payload: bytes, status: str = _OK, *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", "content-type: application/json", *more)
    return "\r\n".join((*lines, f"content-length: {len(payload)}", "", "")).encode() + payload


Fault = Literal["limited", "error", "hang", "reset", "malformed", "redirect"]


@dataclass(frozen=True)
class Faults:
    """The requests that go wrong: shares of them, every so many-th, or some by their number.

    Attributes:
        limited: answered 429 with a Retry-After of one second.
        error: answered 500.
        hang: never answered.
        reset: the connection is reset.
        malformed: answered 200 with half an answer.
        redirect: answered 302, to an address that answers whatever is asked.
        limited_every, error_every: every so many-th request is answered so; 0 for none.
        hangs: numbers of the requests that are never answered, from 1.
        down_from, down_for: from that request on, for so many seconds, all are answered 503.
    """

    limited: float = 0.0
    error: float = 0.0
    hang: float = 0.0
    reset: float = 0.0
    malformed: float = 0.0
    redirect: float = 0.0
    limited_every: int = 0
    error_every: int = 0
    hangs: tuple[int, ...] = ()
    down_from: int = 0
    down_for: float = 0.0

    def of(self, number: int, rng: random.Random) -> Fault | None:
        """Return the fault of a request, if any."""
        if number in self.hangs:
            return "hang"
        if self.limited_every and number % self.limited_every == 0:
            return "limited"
        if self.error_every and number % self.error_every == 0:
            return "error"
        at = rng.random()
        for kind in get_args(Fault):
            at -= getattr(self, kind)
            if at < 0.0:
                return cast("Fault", kind)
        return None


NO_FAULTS = Faults()


Style = Literal["bucket", "window", "sliding"]
Dialect = Literal["openai", "anthropic", "none"]


@dataclass(frozen=True)
class Limit:
    """A limit of one thing.

    Attributes:
        amount: the amount per period.
        period: seconds.
        style: a "bucket" refills steadily, a "window" resets each period, or is "sliding".
        burst: capacity of the bucket; the amount by default.
    """

    amount: float
    period: float = 60.0
    style: Style = "bucket"
    burst: float | None = None


class Meter:
    """Counts one thing against one limit.

    Examples:
        >>> meter = Meter(Limit(2, period=60.0))
        >>> [meter.take(now) for now in (0.0, 0.0, 0.0, 30.0)]
        [True, True, False, True]
    """

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._size = limit.burst or limit.amount
        self._left = self._size
        self._at = 0.0
        self._past: deque[tuple[float, float]] = deque()

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` if there is enough."""
        self._move(now)
        if self._left < cost - 1e-9:
            return False
        self._left -= cost
        self._past.append((now, cost))
        return True

    def remaining(self, now: float) -> float:
        """Return the amount left."""
        self._move(now)
        return self._left

    def full_in(self, now: float) -> float:
        """Return the seconds until the whole amount is available."""
        self._move(now)
        limit = self._limit
        if limit.style == "bucket":
            return (self._size - self._left) * limit.period / limit.amount
        if limit.style == "window":
            return limit.period - now % limit.period
        return self._past[-1][0] + limit.period - now if self._past else 0.0

    def enough_in(self, now: float, cost: float = 1.0) -> float:
        """Return the seconds until `cost` is available."""
        self._move(now)
        limit = self._limit
        if limit.style == "bucket":
            return max(cost - self._left, 0.0) * limit.period / limit.amount
        if limit.style == "window":
            return self.full_in(now)
        available = self._left
        for at, some in self._past:
            available += some
            if available >= cost:
                return at + limit.period - now
        return limit.period

    def _move(self, now: float) -> None:
        limit = self._limit
        if limit.style == "bucket":
            refilled = (now - self._at) * limit.amount / limit.period
            self._left = min(self._left + refilled, self._size)
            self._past.clear()
        elif limit.style == "window":
            if now // limit.period > self._at // limit.period:
                self._left = self._size
            self._past.clear()
        else:
            while self._past and self._past[0][0] <= now - limit.period:
                self._left += self._past.popleft()[1]
        self._at = now


class Gate:
    """A provider's limits on requests and tokens, with the headers it sends.

    Args:
        requests, tokens: the limits; None for none.
        dialect: the provider whose headers are sent.
        says_wait: whether a refusal has a Retry-After.
        started: the wall time at time 0, for headers with times.
    """

    def __init__(
        self,
        requests: Limit | None = None,
        tokens: Limit | None = None,
        dialect: Dialect = "openai",
        says_wait: bool = True,
        started: datetime | None = None,
    ) -> None:
        self._meters = {
            kind: (Meter(limit), limit)
            for kind, limit in (("requests", requests), ("tokens", tokens))
            if limit is not None
        }
        self._dialect = dialect
        self._says_wait = says_wait
        self._started = (started or datetime.now(UTC)).timestamp()
        self.admitted = 0
        self.refused = 0

    def admit(self, now: float, tokens: float = 0.0) -> tuple[bool, dict[str, str]]:
        """Return whether a request is admitted, and the headers of the response."""
        costs = {"requests": 1.0, "tokens": tokens}
        short = [
            meter.enough_in(now, costs[kind])
            for kind, (meter, _) in self._meters.items()
            if meter.remaining(now) < costs[kind] - 1e-9
        ]
        for kind, (meter, _) in self._meters.items():
            if not short:
                meter.take(now, costs[kind])
        self.admitted += not short
        self.refused += bool(short)
        headers = self.headers(now)
        if short and self._says_wait:
            headers["retry-after"] = f"{max(math.ceil(max(short)), 1)}"
        return not short, headers

    def headers(self, now: float) -> dict[str, str]:
        """Return the headers on limits, in the provider's form."""
        headers: dict[str, str] = {}
        for kind, (meter, limit) in self._meters.items():
            remaining, full = math.floor(meter.remaining(now)), meter.full_in(now)
            if self._dialect == "openai":
                headers[f"x-ratelimit-limit-{kind}"] = f"{limit.amount:.0f}"
                headers[f"x-ratelimit-remaining-{kind}"] = f"{remaining}"
                headers[f"x-ratelimit-reset-{kind}"] = _duration(full)
            elif self._dialect == "anthropic":
                moment = datetime.fromtimestamp(self._started + now + full, UTC)
                headers[f"anthropic-ratelimit-{kind}-limit"] = f"{limit.amount:.0f}"
                headers[f"anthropic-ratelimit-{kind}-remaining"] = f"{remaining}"
                headers[f"anthropic-ratelimit-{kind}-reset"] = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
        return headers


def _duration(seconds: float) -> str:
    """Return seconds in OpenAI's form: 12ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{seconds * 1000:.0f}ms"
    minutes, seconds = divmod(seconds, 60.0)
    return f"{minutes:.0f}m{seconds:.3f}s" if minutes else f"{seconds:.3f}s"


@dataclass(frozen=True)
class Rate:
    """A limit that the server enforces.

    Attributes:
        per_minute: requests; a bucket of as many, full at first. 0 for no limit.
        dialect: whose headers say what is left.
        burst: the bucket's size, where it is another.
        at_once: requests that may be under way together; 0 for no limit.
    """

    per_minute: float = 0.0
    dialect: Dialect = "none"
    burst: float | None = None
    at_once: int = 0

    def gate(self) -> Gate:
        """Return the limits in effect."""
        limit = Limit(self.per_minute, burst=self.burst) if self.per_minute else None
        return Gate(limit, dialect=self.dialect)


NO_RATE = Rate()


@dataclass(frozen=True)
class Usage:
    """The tokens of every answer, and what it says of them.

    Attributes:
        prompt, completion: the tokens that are billed.
        states: the usage in the answer: these, none, minus these, or 10^19.
    """

    prompt: int = 200
    completion: int = 1
    states: Literal["truth", "nothing", "negative", "huge"] = "truth"

    def stated(self) -> tuple[int, int] | None:
        """Return the tokens of prompt and answer that the response states; None for none."""
        true = self.prompt, self.completion
        negative, huge = (-self.prompt, -self.completion), (10**19, 10**19)
        return {"truth": true, "nothing": None, "negative": negative, "huge": huge}[self.states]


TRUE_USAGE = Usage()


@dataclass(frozen=True)
class ServerCounts:
    """Counts of a server.

    Attributes:
        requests, questions: numbers of requests and of different questions.
        faults: requests with an injected fault, or refused by a limit.
        answered: questions with an answer that was billed.
        twice: questions with more than one.
        answers: answers billed.
        followed: requests that followed a redirect.
        seconds: from the first request to the last answer.
    """

    requests: int
    questions: int
    faults: int
    answered: int
    twice: int
    answers: int
    followed: int
    seconds: float


@dataclass
class _Server:
    latency: float
    faults: Faults
    rate: Rate
    gate: Gate
    completion: bytes
    message: bytes
    requests: Counter[bytes] = field(default_factory=Counter)
    answers: Counter[bytes] = field(default_factory=Counter)
    number: int = 0
    wrong: int = 0
    followed: int = 0
    under_way: int = 0
    first: float = 0.0
    last: float = 0.0
    down_until: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def counts(self) -> ServerCounts:
        """Return the counts so far."""
        twice = sum(count > 1 for count in self.answers.values())
        answers = sum(self.answers.values())
        seconds = max(self.last - self.first, 0.0)
        return ServerCounts(self.number, len(self.requests), self.wrong, len(self.answers), twice,
                     answers, self.followed, seconds)  # fmt: skip

    def fault(self, moment: float) -> Fault | Literal["down", "crowded"] | None:
        """Return the fault of the request just received, if any."""
        if self.faults.down_from and self.number == self.faults.down_from:
            self.down_until = moment + self.faults.down_for
        if moment < self.down_until:
            return "down"
        if self.rate.at_once and self.under_way > self.rate.at_once:
            return "crowded"
        return self.faults.of(self.number, self.rng)


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
        server, loop = self._server, asyncio.get_running_loop()
        if head.startswith(b"get /seen"):
            self._transport.write(_response(json.dumps(asdict(server.counts())).encode()))
            return
        if head.startswith(b"get /elsewhere"):
            server.followed += 1
            self._transport.write(_response(server.completion))
            return
        arrival = loop.time()
        server.number += 1
        server.first = server.first or arrival
        server.under_way += 1
        # A digest, since the bodies of a million questions would fill the memory.
        question = blake2b(body, digest_size=8).digest()
        server.requests[question] += 1
        admitted, headers = server.gate.admit(arrival)
        lines = tuple(f"{name}: {value}" for name, value in headers.items())
        fault = server.fault(arrival) if admitted else "limit"
        if fault is None:
            anthropic = head.startswith(b"post /v1/messages")
            answer = server.message if anthropic else server.completion
            loop.call_later(server.latency, self._answer, question, answer, lines)
            return
        server.wrong += 1
        loop.call_later(server.latency, self._go_wrong, fault, lines)

    def _answer(self, question: bytes, answer: bytes, lines: tuple[str, ...]) -> None:
        """Answer and bill it, even if the client is gone."""
        server = self._server
        server.under_way -= 1
        server.answers[question] += 1
        server.last = asyncio.get_running_loop().time()
        self._transport.write(_response(answer, _OK, *lines))

    def _go_wrong(self, fault: str, lines: tuple[str, ...]) -> None:
        server, write = self._server, self._transport.write
        server.under_way -= 1
        match fault:
            case "limit":
                write(_response(_ERROR, _LIMITED, *lines))
            case "limited":
                write(_response(_ERROR, _LIMITED, "retry-after: 1"))
            case "crowded":
                write(_response(_ERROR, _LIMITED))
            case "down":
                write(_response(_ERROR, "503 Service Unavailable"))
            case "error":
                write(_response(_ERROR, "500 Internal Server Error"))
            case "redirect":
                write(_response(b"", "302 Found", "location: /elsewhere"))
            case "malformed":
                write(_response(server.completion[: len(server.completion) // 2]))
            case "reset":
                self._transport.abort()
            case "hang":
                pass


async def _serve(latency: float, faults: Faults, rate: Rate, usage: Usage) -> None:
    loop = asyncio.get_running_loop()
    state = _Server(latency, faults, rate, rate.gate(), *_answers(usage))
    server = await loop.create_server(lambda: _Connection(state), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


class ProviderProcess:
    """The server in a separate process, within a `with` block.

    Args:
        latency: seconds from a request to its answer.
        faults: the faults to inject.
        rate: a limit on requests.
        usage: the tokens of answers, and the usage that they state.

    Examples:
        >>> with ProviderProcess(0.0) as server:
        ...     server.seen()
        (0, 0)
    """

    def __init__(
        self,
        latency: float,
        faults: Faults = NO_FAULTS,
        rate: Rate = NO_RATE,
        usage: Usage = TRUE_USAGE,
    ) -> None:
        parts = [asdict(part) for part in (faults, rate, usage)]
        self._settings = json.dumps([latency, *parts])

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", __file__, self._settings]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if hasattr(os, "sched_setaffinity"):
            # The client uses another core, if there is one.
            os.sched_setaffinity(self._process.pid, {max(os.sched_getaffinity(0))})
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def seen(self) -> tuple[int, int]:
        """Return the numbers of requests and of different questions so far."""
        counts = self.counts()
        return counts.requests, counts.questions

    def gone_wrong(self) -> int:
        """Return the number of requests with a fault, or refused by a limit, so far."""
        return self.counts().faults

    def counts(self) -> ServerCounts:
        """Return the counts so far."""
        with urllib.request.urlopen(f"{self.url}/seen") as answer:
            return ServerCounts(**json.load(answer))

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    seconds, shares, limit, used = json.loads(sys.argv[1])
    asyncio.run(_serve(seconds, Faults(**shares), Rate(**limit), Usage(**used)))
