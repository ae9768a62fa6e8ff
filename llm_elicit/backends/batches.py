"""Batch endpoints: many questions handed in at once, answered within a day, at half the price."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.anthropic import SAMPLING_VERSION, read_message
from llm_elicit.backends.anthropic import open_client as open_anthropic
from llm_elicit.backends.base import Reply, scrubbed
from llm_elicit.backends.failures import (
    MalformedReplyError,
    complaint,
    one_line,
    read_failure,
    shortened,
)
from llm_elicit.backends.openai import open_client as open_openai
from llm_elicit.backends.openai import read_completion
from llm_elicit.backends.sdk import opening
from llm_elicit.config.judges import AnthropicJudge, Judge, OpenAIJudge
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = LazyModule("anthropic"), LazyModule("openai")

TAG = "llm_elicit"
"""The metadata key under which a batch carries its tag, where the provider keeps metadata."""

_PATIENCE = 600.0
"""Seconds for a call, at least: a batch of 200 MB takes its time."""

_OVER = frozenset({"completed", "failed", "expired", "cancelled"})


Options = Callable[[str], tuple[str, str]]
"""The letters of the options of a request, by the id that its result comes back under."""


@dataclass(frozen=True)
class Room:
    """What one batch may hold: requests, and bytes of all of them."""

    count: int
    size: int


@dataclass(frozen=True)
class BatchRequest:
    """One request of a batch: the id that its result comes back under, and its body."""

    custom_id: str
    body: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes that it takes in a batch, a little more than exactly."""
        return len(json.dumps(self.body).encode()) + len(self.custom_id) + 128


@dataclass(frozen=True)
class BatchState:
    """A batch as the provider tells of it.

    Attributes:
        id: the provider's.
        ended: whether its results can be collected.
        status: the provider's word.
        total, done: requests in it, and those with an answer or an error.
        created: seconds since 1970, by the provider's clock.
        tag: what it was tagged with; None where the provider keeps no metadata.
        error: why the provider did not take it up at all.
    """

    id: str
    ended: bool
    status: str
    total: int
    done: int
    created: float
    tag: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Result:
    """What became of one request of a batch.

    Attributes:
        custom_id: which one; empty where the line cannot be read.
        reply: the answer; None where there is none.
        reason: why there is none.
        refused: whether the same request would be refused again.
        billed: whether it may have been billed all the same.
    """

    custom_id: str
    reply: Reply | None = None
    reason: str = ""
    refused: bool = False
    billed: bool = False


@dataclass(frozen=True)
class Trouble:
    """What went wrong with a call of a batch endpoint.

    Attributes:
        said: in one line, without the key.
        nothing_sent: whether it is certain that the provider took nothing up.
    """

    said: str
    nothing_sent: bool


class Batches(Protocol):
    """A provider's batch endpoints.

    Attributes:
        room: what one batch may hold.
        tagged: whether the provider keeps a batch's tag and shows it in its list.
    """

    room: Room
    tagged: bool

    async def submit(self, lines: Sequence[BatchRequest], tag: str) -> str:
        """Hand a batch in, once; its id."""
        ...

    async def state(self, batch: str) -> BatchState:
        """How far a batch is."""
        ...

    def recent(self) -> AsyncIterator[BatchState]:
        """The account's batches, the newest first."""
        ...

    def results(self, batch: str, options: Options) -> AsyncIterator[Result]:
        """The results of a batch that ended, in any order."""
        ...

    def trouble(self, error: Exception) -> Trouble | None:
        """What an exception of a call means; None for a defect of the program."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


class _Client:
    """What both have in common.

    Args:
        client: the SDK's.
        key: blotted out of what is said.
    """

    def __init__(self, client: openai.AsyncOpenAI | anthropic.AsyncAnthropic, key: str | None):
        self._sdk = client
        self._secret = key

    def trouble(self, error: Exception) -> Trouble | None:
        """What an exception of a call means; None for a defect of the program."""
        failure = read_failure(error)
        if failure is None:
            return None
        if failure.status is None:
            never = failure.what in ("refused", "unusable")
        else:
            # Others may come from a machine on the way, after the batch was taken up.
            never = 300 <= failure.status < 500 and failure.status != 408
        return Trouble(self._words(failure.said), never)

    def _words(self, said: str) -> str:
        """What a provider says, fit to be shown and kept: a line of readable length, no key."""
        return shortened(scrubbed(one_line(said), self._secret))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._sdk.close()


async def _listed(pages: AsyncIterable[object]) -> AsyncIterator[object]:
    """What a list endpoint lists, page by page; the SDKs do not check what a page is.

    Raises:
        MalformedReplyError: an answer is no page, or a page comes twice.
    """
    seen = set()
    try:
        async for batch in pages:
            name = wire.read(wire.Created, batch).id
            if name in seen:
                raise MalformedReplyError(f"batch {name} is listed twice")
            seen.add(name)
            yield batch
    except (AttributeError, TypeError):
        raise MalformedReplyError("no list of batches") from None


def open_batches(judge: Judge) -> Batches:
    """A judge's batch endpoints.

    Raises:
        InputError: its backend has none, or its key is not set.
    """
    if isinstance(judge, AnthropicJudge):
        return AnthropicBatches(judge)
    if isinstance(judge, OpenAIJudge):
        return OpenAIBatches(judge)
    raise InputError(
        f"judge {judge.name!r}: the backend {judge.backend!r} has no batch mode; ask it without "
        "--batch, or leave it out of the campaign"
    )


class OpenAIBatches(_Client):
    """OpenAI's Batch API: a file of requests, and files of answers and errors."""

    room = Room(count=50_000, size=200_000_000)
    tagged = True

    def __init__(self, judge: OpenAIJudge) -> None:
        with opening(judge.name):
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
            self._client, key = open_openai(judge, http, max(judge.timeout, _PATIENCE))
        super().__init__(self._client, key)

    async def submit(self, lines: Sequence[BatchRequest], tag: str) -> str:
        """Upload the requests, then create the batch. Only the second step costs anything."""
        url: Literal["/v1/chat/completions"] = "/v1/chat/completions"
        rows = (
            {"custom_id": line.custom_id, "method": "POST", "url": url, "body": line.body}
            for line in lines
        )
        content = io.BytesIO("\n".join(json.dumps(row) for row in rows).encode())
        file = wire.read(
            wire.Created,
            await self._client.files.create(file=(f"{tag}.jsonl", content), purpose="batch"),
        )
        batch = await self._client.batches.create(
            input_file_id=file.id, endpoint=url, completion_window="24h", metadata={TAG: tag}
        )
        return wire.read(wire.Created, batch).id

    async def state(self, batch: str) -> BatchState:
        """How far a batch is."""
        return self._state(await self._client.batches.retrieve(batch))

    async def recent(self) -> AsyncIterator[BatchState]:
        """The account's batches, the newest first."""
        async for batch in _listed(self._client.batches.list(limit=100)):
            yield self._state(batch)

    async def results(self, batch: str, options: Options) -> AsyncIterator[Result]:
        """The results of a batch that ended; those that were not done in time are among them."""
        found = wire.read(wire.OpenAIBatch, await self._client.batches.retrieve(batch))
        for file in (found.output_file_id, found.error_file_id):
            if file is None:
                continue
            async with self._client.files.with_streaming_response.content(file) as content:
                async for text in content.iter_lines():
                    if text.strip():
                        yield _openai_result(text, options)

    def _state(self, said: object) -> BatchState:
        batch = wire.read(wire.OpenAIBatch, said)
        counts = batch.request_counts or wire.OpenAICounts()
        problems = (batch.errors and batch.errors.data) or []
        return BatchState(
            id=batch.id,
            ended=batch.status in _OVER,
            status=self._words(batch.status),
            total=counts.total,
            done=counts.completed + counts.failed,
            created=batch.created_at,
            tag=(batch.metadata or {}).get(TAG),
            error=self._words("; ".join(str(p.message) for p in problems[:3])) or None,
        )


def _openai_result(text: str, options: Options) -> Result:
    name = ""
    try:
        row = wire.read(wire.OpenAIRow, wire.parsed(text))
        name, response = row.custom_id, row.response
        if response is None:
            error = complaint(row.error)
            reason = str(error.get("message") or error.get("code") or "no answer")
            return Result(name, reason=one_line(reason))
        if response.status_code == 200:
            return Result(name, reply=read_completion(response.body, {}, options(name)))
    except MalformedReplyError:
        return _malformed(name)
    status, said = response.status_code, complaint(response.body).get("message", "no message")
    return Result(name, reason=one_line(f"error {status}: {said}"), refused=_refused(status))


def _malformed(name: str) -> Result:
    """One bad line must not keep the others of its batch from being collected."""
    return Result(name, reason="malformed answer", billed=True)


def _refused(status: int) -> bool:
    """Whether an error is the request's own fault."""
    return 400 <= status < 500 and status not in (408, 409, 425, 429)


class AnthropicBatches(_Client):
    """Anthropic's Message Batches. They carry no metadata: a lost one is known by its results."""

    room = Room(count=100_000, size=256_000_000)
    tagged = False

    def __init__(self, judge: AnthropicJudge) -> None:
        with opening(judge.name):
            http = anthropic.DefaultAsyncHttpxClient(follow_redirects=False)
            self._client, key = open_anthropic(judge, http, max(judge.timeout, _PATIENCE))
        super().__init__(self._client, key)

    async def submit(self, lines: Sequence[BatchRequest], tag: str) -> str:
        """Create the batch."""
        del tag  # the custom ids begin with it
        rows: list[Any] = [{"custom_id": line.custom_id, "params": line.body} for line in lines]
        extra: dict[str, Any] = {}
        if any("temperature" in line.body for line in lines):
            extra["extra_headers"] = {"anthropic-version": SAMPLING_VERSION}
        batch = await self._client.messages.batches.create(requests=rows, **extra)
        return wire.read(wire.Created, batch).id

    async def state(self, batch: str) -> BatchState:
        """How far a batch is."""
        return self._state(await self._client.messages.batches.retrieve(batch))

    async def recent(self) -> AsyncIterator[BatchState]:
        """The account's batches, the newest first."""
        async for batch in _listed(self._client.messages.batches.list(limit=100)):
            yield self._state(batch)

    async def results(self, batch: str, options: Options) -> AsyncIterator[Result]:
        """The results of a batch that ended."""
        del options
        streamed = self._client.messages.batches.with_streaming_response
        async with streamed.results(batch) as content:
            async for text in content.iter_lines():
                if text.strip():
                    yield _anthropic_result(text)

    def _state(self, said: object) -> BatchState:
        batch = wire.read(wire.AnthropicBatch, said)
        counts = batch.request_counts
        done = counts.succeeded + counts.errored + counts.canceled + counts.expired
        return BatchState(
            id=batch.id,
            ended=batch.processing_status == "ended",
            status=self._words(batch.processing_status),
            total=done + counts.processing,
            done=done,
            created=batch.created_at.timestamp(),
        )


def _anthropic_result(text: str) -> Result:
    name = ""
    try:
        row = wire.read(wire.AnthropicRow, wire.parsed(text))
        name, result = row.custom_id, row.result
        if result.type == "succeeded":
            return Result(name, reply=read_message(result.message, {}))
    except MalformedReplyError:
        return _malformed(name)
    if result.type == "errored":
        error = complaint(result.error)
        return Result(
            name,
            reason=one_line(f"{error.get('type')}: {error.get('message')}"),
            refused=error.get("type") in ("invalid_request_error", "not_found_error"),
        )
    return Result(name, reason=result.type)
