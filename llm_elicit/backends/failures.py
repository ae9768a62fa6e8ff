"""What went wrong with a request, in words that no SDK owns.

A backend reads its SDK's exceptions into a `Failure`; what follows from one is the
orchestrator's to decide. No SDK is imported here: an exception of one proves that it is loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal

What = Literal["status", "timeout", "refused", "connection", "malformed", "unusable"]

_SDKS = ("anthropic", "openai")
_CLIENTS = ("httpx2", "httpx")
_LONGEST = 300


@dataclass(frozen=True)
class Failure:
    """One request that failed.

    Attributes:
        what: an error response (`status`), no answer in time (`timeout`), nobody there
            (`refused`), a connection that broke (`connection`), an answer that is none
            (`malformed`), or a client that cannot send at all (`unusable`).
        said: the provider's words, on one line.
        status: the response's HTTP status.
        code: the provider's own name for the error, where it has one.
        headers: the response's headers, their names in lower case.
    """

    what: What
    said: str
    status: int | None = None
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class MalformedReplyError(Exception):
    """The provider answered with something that is not an answer of its own format."""


def read_failure(error: Exception) -> Failure | None:
    """What an exception of the anthropic or openai SDK, httpx or asyncio says of a request.

    Returns None for any other exception: it is a defect, not a failure.

    Example:
        >>> read_failure(TimeoutError()).what, read_failure(KeyError("a bug"))
        ('timeout', None)
    """
    if isinstance(error, MalformedReplyError | json.JSONDecodeError | UnicodeDecodeError):
        return Failure("malformed", line(error))
    found = _of_transport(error)
    if found is not None:
        return found
    if isinstance(error, TimeoutError):
        return Failure("timeout", "no answer within the timeout")
    for sdk in _loaded(_SDKS):
        failure = _of_sdk(error, sdk)
        if failure is not None:
            return failure
    return _of_client(error)


def _loaded(names: tuple[str, ...]) -> Iterator[ModuleType]:
    return (sys.modules[name] for name in names if name in sys.modules)


def _of_sdk(error: Exception, sdk: ModuleType) -> Failure | None:
    """Both SDKs come from one generator: their exceptions have the same names and shape."""
    if isinstance(error, sdk.APIStatusError):
        return _response(error, error.response)
    if isinstance(error, sdk.APIConnectionError):
        cause = error.__cause__
        found = _of_client(cause) if isinstance(cause, Exception) else None
        if found is None and isinstance(error, sdk.APITimeoutError):
            return Failure("timeout", "no answer within the timeout")
        return found or Failure("connection", type(cause).__name__ if cause else "no detail")
    if isinstance(error, sdk.APIResponseValidationError):
        return Failure("malformed", line(error))
    base = getattr(sdk, "OpenAIError", None) or sdk.AnthropicError
    if isinstance(error, base):
        return Failure("unusable", f"{type(error).__name__}: {line(error)}")
    return None


def _response(error: Any, response: Any) -> Failure:
    # OpenAI's SDK unwraps the body of an error itself, Anthropic's reads the whole.
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    named = inner if isinstance(inner, dict) else {}
    code = getattr(error, "code", None) or named.get("code")
    kind = getattr(error, "type", None) or named.get("type")
    return Failure(
        "status",
        line(error),
        status=response.status_code,
        code=" ".join(str(part) for part in (code, kind) if part),
        headers={name.lower(): value for name, value in response.headers.items()},
    )


def _of_client(error: Exception) -> Failure | None:
    """The HTTP clients' exceptions, by themselves or as the cause of an SDK's."""
    # The SDKs' transport over aiohttp translates its exceptions, and not all of them rightly:
    # a connection that broke comes out as one that could not be made.
    return _of_transport(error) or _of_transport(error.__cause__) or _of_httpx(error)


def _of_httpx(error: Exception) -> Failure | None:
    """httpx's exceptions, and those of its second edition."""
    for client in _loaded(_CLIENTS):
        if isinstance(error, client.HTTPStatusError):
            said = f"{error.response.status_code} {error.response.text or error}"
            return replace(_response(error, error.response), said=line(said))
        if isinstance(error, client.ConnectError | client.ConnectTimeout):
            return Failure("refused", type(error).__name__)
        if isinstance(error, client.TimeoutException):
            return Failure("timeout", "no answer within the timeout")
        if isinstance(error, client.TransportError):
            return Failure("connection", type(error).__name__)
        if isinstance(error, client.DecodingError):
            return Failure("malformed", line(error))
    return None


def _of_transport(error: BaseException | None) -> Failure | None:
    """aiohttp's exceptions."""
    for aiohttp in _loaded(("aiohttp",)):
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return Failure("refused", type(error).__name__)
        if isinstance(error, aiohttp.ServerTimeoutError):
            return Failure("timeout", "no answer within the timeout")
        if isinstance(error, aiohttp.ClientError):
            return Failure("connection", type(error).__name__)
    return None


def line(error: object) -> str:
    """A message on one line of readable length."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
