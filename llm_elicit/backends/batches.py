"""Batch endpoints: many requests submitted at once, answered within a day, at half the price.

The providers' clients are in the modules of their backends, `openai` and `anthropic`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Protocol, Self, TypeVar

from llm_elicit.backends import wire
from llm_elicit.backends.base import Reply, scrubbed
from llm_elicit.backends.failures import (
    MalformedReplyError,
    UpstreamError,
    one_line,
    read_failure,
    refuses_prompt,
    shortened,
)
from llm_elicit.backends.sdk import Client, opening
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge

TAG = "llm_elicit"
"""The metadata key under which a batch carries its tag, where the provider keeps metadata."""

LEAST_TIMEOUT = 600.0
"""The shortest timeout of a call, in seconds: uploading 200 MB takes a while."""

Options = Callable[[str], tuple[str, str]]
"""Return the letters of a request's options, given its custom id."""


J = TypeVar("J", AnthropicJudge, OpenAIJudge)
C = TypeVar("C", bound=Client)
OpenClient = Callable[[J, Any, float], tuple[C, str | None]]


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
        said: the error message on one line, without the key.
        nothing_sent: whether the provider certainly accepted nothing.
    """

    said: str
    nothing_sent: bool


class BatchClient(Protocol):
    """A provider's batch endpoints.

    Attributes:
        limits: the largest batch that the provider takes.
        tagged: whether the provider stores a batch's tag and lists it.
    """

    limits: BatchLimits
    tagged: bool

    async def submit(self, requests: Sequence[BatchRequest], tag: str) -> str:
        """Submit a batch, once, and return its id."""
        ...

    async def state(self, batch: str) -> BatchState:
        """Return the state of a batch."""
        ...

    def recent(self) -> AsyncIterator[BatchState]:
        """Yield the account's batches, the newest first."""
        ...

    def results(self, batch: str, options: Options) -> AsyncIterator[BatchResult]:
        """Yield the results of a batch that ended, in any order."""
        ...

    def failure(self, error: Exception) -> BatchFailure | None:
        """Return what an exception of a call means; None for a bug in this program."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


class SDKBatchClient(Generic[J, C]):
    """Common base of the batch clients: opens and closes the SDK's client, explains its exceptions.

    Args:
        judge: the judge.
        sdk: its provider's SDK.
        open_client: returns the SDK's client for a judge, an HTTP client and a timeout, and the
            API key, which is removed from every message.

    Raises:
        InputError: the key, the address or the environment does not allow a client.
    """

    def __init__(self, judge: J, sdk: ModuleType, open_client: OpenClient[J, C]) -> None:
        with opening(judge.name):
            http = sdk.DefaultAsyncHttpxClient(follow_redirects=False)
            timeout = max(judge.timeout, LEAST_TIMEOUT)
            self._client, self._secret = open_client(judge, http, timeout)

    def failure(self, error: Exception) -> BatchFailure | None:
        """Return what an exception of a call means; None for a bug in this program."""
        failure = read_failure(error)
        if failure is None:
            return None
        if failure.status is None:
            nothing_sent = failure.what in ("refused", "unusable")
        else:
            # A proxy may send other statuses after the provider has accepted the batch.
            nothing_sent = 300 <= failure.status < 500 and failure.status != 408
        return BatchFailure(self._clean(failure.said), nothing_sent)

    def _clean(self, text: str) -> str:
        """Return a provider's message on one line of readable length, without the key."""
        return shortened(scrubbed(one_line(text), self._secret))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()


async def each_listed(pages: AsyncIterable[object]) -> AsyncIterator[object]:
    """Yield the items of a list endpoint, page by page; the SDKs do not validate pages.

    Raises:
        MalformedReplyError: an answer is not a page, or a batch is listed twice.
    """
    names = set()
    try:
        async for batch in pages:
            name = wire.read(wire.Created, batch).id
            if name in names:
                raise MalformedReplyError(f"batch {name} is listed twice")
            names.add(name)
            yield batch
    except (AttributeError, TypeError):
        raise MalformedReplyError("no list of batches") from None


def malformed(custom_id: str) -> BatchResult:
    """Return the result for one that cannot be parsed; the batch's others are still collected."""
    return BatchResult(custom_id, reason="malformed answer", billed=True)


def interrupted(custom_id: str, error: UpstreamError) -> BatchResult:
    """Return the result for an answer that reports a failure of the provider's own."""
    failure, reason = error.failure, one_line(error)
    status = failure.status or 0
    return BatchResult(
        custom_id, reason=reason, refused=due_to_request(status), billed=True,
        prompt_refused=refuses_prompt(status, failure.code, reason),
    )  # fmt: skip


def due_to_request(status: int) -> bool:
    """Return whether an error is due to the request itself."""
    return 400 <= status < 500 and status not in (408, 409, 425, 429)
