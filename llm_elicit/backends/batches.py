"""Batch endpoints: many requests submitted at once, answered within a day, at half the price.

The providers' clients are in the modules of their backends, `openai` and `anthropic`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

from llm_elicit.backends import wire
from llm_elicit.backends.base import Reply, scrub_secrets, secrets_of
from llm_elicit.backends.failures import (
    MalformedReplyError,
    UpstreamError,
    one_line,
    read_failure,
    refuses_prompt,
    shorten,
)
from llm_elicit.backends.sdk import Headers, SDKJudge, open_client, opening_client

TAG = "llm_elicit"
"""The metadata key under which a batch carries its tag, where the provider keeps metadata."""

MIN_TIMEOUT = 600.0
"""The shortest timeout of a call, in seconds: uploading 200 MB takes a while."""

Options = Callable[[str], tuple[str, str]]
"""Return the letters of a request's options, given its custom id."""


@dataclass(frozen=True)
class BatchLimits:
    """The largest batch that a provider takes: number of requests, and their size in bytes."""

    count: int
    size: int


@dataclass(frozen=True)
class BatchRequest:
    """One request of a batch: its custom id and its body."""

    custom_id: str
    body: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes that the request takes in a batch; a slight overestimate."""
        return len(json.dumps(self.body).encode()) + len(self.custom_id) + 128


@dataclass(frozen=True)
class BatchState:
    """The state of a batch at the provider.

    Attributes:
        id: the provider's id.
        ended: whether results can be collected.
        status: the provider's own word for the state.
        total, done: requests in the batch, and those with an answer or an error.
        created: seconds since 1970, by the provider's clock.
        tag: the tag it was submitted with; None where the provider keeps no metadata.
        error: why the provider rejected the whole batch; None if it did not.
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
class BatchResult:
    """The result of one request of a batch.

    Attributes:
        custom_id: the request's id; empty if the result could not be parsed.
        reply: the answer; None if there is none.
        reason: why there is no answer.
        refused: whether the same request would be refused again.
        billed: whether the request may have been billed although there is no answer.
        prompt_refused: whether the prompt was refused for its content, which is a refusal to
            answer.
    """

    custom_id: str
    reply: Reply | None = None
    reason: str = ""
    refused: bool = False
    billed: bool = False
    prompt_refused: bool = False


@dataclass(frozen=True)
class BatchFailure:
    """A failed call of a batch endpoint.

    Attributes:
        message: the error message on one line, without the key.
        nothing_sent: whether the provider certainly accepted nothing.
    """

    message: str
    nothing_sent: bool


class BatchClient(ABC):
    """A provider's batch endpoints, through its SDK's client.

    Args:
        judge: the judge.
        sdk: its provider's SDK.
        headers: further headers of every request. The API key is removed from every message.

    Attributes:
        limits: the largest batch that the provider takes.
        tagged: whether the provider stores a batch's tag and lists it.

    Raises:
        InputError: the key, the address or the environment does not allow a client.
    """

    limits: BatchLimits
    tagged: bool
    _client: Any
    _row: type[wire.Row]

    def __init__(self, judge: SDKJudge, sdk: ModuleType, headers: Headers = None) -> None:
        with opening_client(judge):
            http = sdk.DefaultAsyncHttpxClient(follow_redirects=False)
            timeout = max(judge.timeout, MIN_TIMEOUT)
            self._client = open_client(judge, sdk, http, timeout, headers)
        self._path = judge.wire_format.batch
        self._secrets = secrets_of(judge)

    @abstractmethod
    async def submit(self, requests: Sequence[BatchRequest], tag: str) -> str:
        """Submit a batch, once, and return its id."""

    @abstractmethod
    def results(self, batch: str, options: Options) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that ended, in any order."""

    @property
    @abstractmethod
    def _batches(self) -> Any:
        """The SDK's methods of batches."""

    @abstractmethod
    def _state(self, raw: object) -> BatchState:
        """Return the state of a batch, given the SDK's object."""

    @abstractmethod
    def _outcome(self, row: Any, options: Options) -> BatchResult:
        """Return the result of a request, given its row of a batch's results."""

    async def state(self, batch: str) -> BatchState:
        """Return the state of a batch."""
        return self._state(await self._batches.retrieve(batch))

    async def recent(self) -> AsyncIterator[BatchState]:
        """Yield the account's batches, the newest first; the SDKs do not validate pages.

        Raises:
            MalformedReplyError: an answer is not a page, or a batch is listed twice.
        """
        names = set()
        try:
            async for batch in self._batches.list(limit=100):
                name = wire.validate_answer(wire.Created, batch).id
                if name in names:
                    raise MalformedReplyError(f"batch {name} is listed twice")
                names.add(name)
                yield self._state(batch)
        except (AttributeError, TypeError):
            raise MalformedReplyError("no list of batches") from None

    async def _results(
        self, stream: AbstractAsyncContextManager[Any], options: Options
    ) -> AsyncIterator[BatchResult]:
        """Yield the results in the lines of a stream; malformed lines are skipped."""
        async with stream as content:
            async for text in content.iter_lines():
                if not text.strip():
                    continue
                name = ""
                try:
                    row = wire.validate_answer(self._row, wire.parse_json(text))
                    name = row.custom_id
                    yield self._outcome(row, options)
                except MalformedReplyError:
                    yield BatchResult(name, reason="malformed answer", billed=True)
                except UpstreamError as error:
                    status, reason = error.failure.status or 0, one_line(error)
                    yield BatchResult(
                        name, reason=reason, refused=due_to_request(status), billed=True,
                        prompt_refused=refuses_prompt(status, error.failure.code, reason),
                    )  # fmt: skip

    def failure(self, error: Exception) -> BatchFailure | None:
        """Return what an exception of a call means; None for a bug in this program."""
        failure = read_failure(error)
        if failure is None:
            return None
        if failure.status is None:
            nothing_sent = failure.kind in ("refused", "unusable")
        else:
            # A proxy may send other statuses after the provider has accepted the batch.
            nothing_sent = 300 <= failure.status < 500 and failure.status != 408
        return BatchFailure(self._clean(failure.message), nothing_sent)

    def _clean(self, text: str) -> str:
        """Return a provider's message on one line of readable length, without the key."""
        return shorten(scrub_secrets(one_line(text), *self._secrets))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()


def due_to_request(status: int) -> bool:
    """Return whether an error is due to the request itself."""
    return 400 <= status < 500 and status not in (408, 409, 425, 429)
