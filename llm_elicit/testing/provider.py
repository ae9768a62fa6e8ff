"""A loopback provider with the wire formats of Anthropic and OpenAI, and of servers like them.

It runs in a thread of the test's process and answers real sockets; what it does with a request
is decided by a function of (number of the request, its body), so that faults can be placed, and
by the limits of a `Gate`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self


class Gate(Protocol):
    """A provider's limits."""

    def admit(self, now: float, tokens: float) -> tuple[bool, dict[str, str]]:
        """Return whether a request is admitted, and the headers of the response."""
        ...


@dataclass(frozen=True)
class Answer:
    """A complete answer.

    `before` are tokens before the one whose log-probabilities are given. `thinking` is a separate
    block for Anthropic; otherwise the field `thinking_in`, or between "tags", or a part of the
    content ("parts"). `parts` sends the content as a list of parts, `columns` the log-probabilities
    as lists of tokens and of values. `usage` replaces the true usage; None omits it.
    """

    text: str = "A"
    stop: str = "stop"
    logprobs: dict[str, float] | None = None
    refusal: str | None = None
    delay: float = 0.0
    cached: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int = 2
    before: tuple[str, ...] = ()
    thinking: str = ""
    thinking_in: str = "reasoning_content"
    parts: bool = False
    columns: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    usage: Any = ...


@dataclass(frozen=True)
class Error:
    """An error response in the provider's own form."""

    status: int
    message: str = "something went wrong"
    code: str | None = None
    param: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Sends:
    """Any bytes. `length` is the content length in the header, if it is to be wrong."""

    payload: bytes
    content_type: str = "application/json"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None


@dataclass(frozen=True)
class Raw:
    """The bytes of a complete response with its head; then the connection is closed."""

    response: bytes


@dataclass(frozen=True)
class Hangs:
    """No answer for some seconds."""

    seconds: float = 30.0


@dataclass(frozen=True)
class Resets:
    """The connection is reset."""


@dataclass(frozen=True)
class Trickles:
    """One byte at a time, so that no single read times out."""

    every: float = 0.1
    seconds: float = 30.0


Action = Answer | Error | Sends | Raw | Hangs | Resets | Trickles
Behaviour = Callable[[int, dict[str, Any]], Action]

ANTHROPIC_STOPS = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}


@dataclass
class ReceivedRequest:
    """A received request, and whether its answer was sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answered: bool = False

    @property
    def question(self) -> str:
        """The last turn, which identifies the question."""
        return str(self.body["messages"][-1]["content"])

    @property
    def of_messages(self) -> bool:
        """Whether it is of the Messages API, at Anthropic, Amazon or Google."""
        return self.path.endswith(("/messages", "/invoke", ":rawPredict"))


@dataclass
class Provider:
    """The server. `with Provider(behave) as provider: provider.url`.

    Attributes:
        behave: returns the action for a request.
        gate: limits that it enforces and sends in headers; None for none.
        error: returns the body of an error response; None for that of OpenAI or Anthropic.
        seen: the requests so far.
        url: its address.

    Examples:
        >>> with Provider() as provider:
        ...     provider.url.startswith("http://127.0.0.1:")
        True
    """

    behave: Behaviour = lambda _number, _body: Answer()
    gate: Gate | None = None
    error: Callable[[Error], Any] | None = None
    seen: list[ReceivedRequest] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the loopback provider did not start")
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                self.seen.append(request)
                action = self.behave(len(self.seen), request.body)
                limits: dict[str, str] = {}
                if self.gate is not None:
                    used = 0
                    if isinstance(action, Answer):
                        used = action.completion_tokens + _tokens(action, request.body)
                    now = time.monotonic() - self._began
                    admitted, limits = self.gate.admit(now, used)
                    action = action if admitted else Error(429, "slow down")
                if not await self._act(action, limits, request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled when the server stops
        finally:
            writer.close()

    async def _act(
        self,
        action: Action,
        limits: dict[str, str],
        request: ReceivedRequest,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer; returns whether the connection lives on."""
        if isinstance(action, Resets):
            return False
        if isinstance(action, Hangs):
            await asyncio.wait([asyncio.create_task(self._stop.wait())], timeout=action.seconds)
            return False
        if isinstance(action, Raw):
            writer.write(action.response)
            await writer.drain()
            return False
        if isinstance(action, Trickles):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            for _ in range(int(action.seconds / action.every)):
                writer.write(b" ")
                await writer.drain()
                await asyncio.wait([asyncio.create_task(self._stop.wait())], timeout=action.every)
                if self._stop.is_set():
                    break
            return False
        anthropic = request.of_messages
        if isinstance(action, Sends):
            response = action
        elif isinstance(action, Error):
            form = self.error or partial(error_body, anthropic=anthropic)
            payload = json.dumps(form(action)).encode()
            response = Sends(payload, status=action.status, headers=action.headers)
        else:
            if action.delay:
                await asyncio.sleep(action.delay)
            body = message(action, request.body) if anthropic else completion(action, request.body)
            response = Sends(json.dumps(body).encode(), headers=action.headers)
        length = len(response.payload) if response.length is None else response.length
        lines = [f"HTTP/1.1 {response.status} Status", f"content-type: {response.content_type}"]
        lines += [f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in (*limits.items(), *response.headers)]
        request.answered = isinstance(action, Answer)
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + response.payload)
        await writer.drain()
        return True


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    form = headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    return ReceivedRequest(first.split()[1], headers, {} if form else json.loads(raw or b"{}"))


def _tokens(answer: Answer, body: dict[str, Any]) -> int:
    if answer.prompt_tokens is not None:
        return answer.prompt_tokens
    texts = [str(turn["content"]) for turn in body["messages"]] + [str(body.get("system", ""))]
    return sum(len(text) for text in texts) // 4


def message(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer in the form of the Messages API."""
    thought = {"type": "thinking", "thinking": answer.thinking, "signature": "x"}
    thoughts = [thought] if answer.thinking else []
    response = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{body.get('model', 'claude')}-20260101",
        "content": [*thoughts, *([{"type": "text", "text": answer.text}] if answer.text else [])],
        "stop_reason": ANTHROPIC_STOPS.get(answer.stop, answer.stop),
        "stop_sequence": None,
        "usage": {
            "input_tokens": _tokens(answer, body) - answer.cached,
            "output_tokens": answer.completion_tokens,
            "cache_read_input_tokens": answer.cached,
            "cache_creation_input_tokens": 0,
        },
    }
    return _with_usage(response, answer.usage)


def completion(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    """Return an answer in the form of chat completions."""
    logprobs: dict[str, Any] | None = None
    if answer.logprobs is not None and body.get("logprobs"):
        top = [{"token": t, "logprob": p, "bytes": None} for t, p in answer.logprobs.items()]
        ahead = [{"token": t, "logprob": 0.0, "bytes": None} for t in answer.before]
        tokens = [{**token, "top_logprobs": [token]} for token in ahead]
        logprobs = {"content": [*tokens, {**top[0], "top_logprobs": top}], "refusal": None}
        if answer.columns:
            token, value = next(iter(answer.logprobs.items()))
            logprobs = {
                "tokens": [*answer.before, token],
                "token_logprobs": [*(0.0 for _ in answer.before), value],
                "top_logprobs": [*({name: 0.0} for name in answer.before), answer.logprobs],
            }
    response = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": f"{body['model']}-2026-01-01",
        "choices": [
            {
                "index": 0,
                "finish_reason": answer.stop,
                "logprobs": logprobs,
                "message": {"role": "assistant", "refusal": answer.refusal, **_content(answer)},
            }
        ],
        "usage": {
            "prompt_tokens": _tokens(answer, body),
            "completion_tokens": answer.completion_tokens,
            "total_tokens": _tokens(answer, body) + answer.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.cached},
        },
    }
    return _with_usage(response, answer.usage)


def _content(answer: Answer) -> dict[str, Any]:
    """Return the fields of a message with its answer and its thinking."""
    text = {"type": "text", "text": answer.text}
    if answer.thinking and answer.thinking_in == "parts":
        thought = [{"type": "text", "text": answer.thinking}]
        return {"content": [{"type": "thinking", "thinking": thought}, text]}
    if answer.thinking and answer.thinking_in == "tags":
        return {"content": f"<think>{answer.thinking}</think>{answer.text}"}
    field = {answer.thinking_in: answer.thinking} if answer.thinking else {}
    return {"content": [text] if answer.parts else answer.text, **field}


def _with_usage(response: dict[str, Any], usage: Any) -> dict[str, Any]:
    if usage is ...:
        return response
    fields = {name: value for name, value in response.items() if name != "usage"}
    return fields if usage is None else {**fields, "usage": usage}


def error_body(error: Error, anthropic: bool) -> dict[str, Any]:
    """Return the body of an error response in either form."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    kind = kinds.get(error.status, "api_error")
    if anthropic:
        content = {"type": kind, "message": error.message}
        return {"type": "error", "error": content, "request_id": "req_1"}
    return {
        "error": {
            "message": error.message,
            "type": error.code or kind,
            "param": error.param,
            "code": error.code,
        }
    }
