"""Failures of requests, independent of the SDK that raised them.

A backend converts exceptions of its SDK to a `Failure`, and the orchestrator decides what to do.
No SDK is imported here: if an exception is an SDK's, the SDK is loaded already.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from types import ModuleType
from typing import Any, Literal

from pydantic import ValidationError

What = Literal["status", "timeout", "refused", "connection", "malformed", "unusable"]


class MalformedReplyError(Exception):
    """The provider answered with something that is not an answer of its own format."""


_SDKS = ("anthropic", "openai")
_HTTPX = ("httpx2", "httpx")
_Rows = tuple[tuple[What, tuple[str, ...]], ...]
"""Meanings, with the classes of exceptions that have them; the first one applies."""

_OF_AIOHTTP: _Rows = (
    ("refused", ("aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError")),
    ("timeout", ("aiohttp.ServerTimeoutError",)),
    ("unusable", ("aiohttp.InvalidURL",)),
    ("connection", ("aiohttp.ClientError", "aiohttp.http_exceptions.HttpProcessingError")),
)
_OF_SYSTEM: _Rows = (
    ("timeout", ("builtins.TimeoutError",)),
    ("refused", ("builtins.ConnectionRefusedError", "socket.gaierror")),
    ("connection", ("builtins.ConnectionError", "ssl.SSLError", "asyncio.IncompleteReadError")),
)
_OF_HTTPX: _Rows = (
    ("refused", ("httpx2.ConnectError", "httpx2.ConnectTimeout")),
    ("timeout", ("httpx2.TimeoutException",)),
    ("malformed", ("httpx2.DecodingError",)),
    ("unusable", ("httpx2.InvalidURL", "httpx2.UnsupportedProtocol", "httpx2.LocalProtocolError")),
    ("connection", ("httpx2.HTTPError",)),
)
"""Exceptions of httpx2, which httpx has, too."""

_LATE = "no answer within the timeout"
_LONGEST = 300
_UNREADABLE = (
    MalformedReplyError, json.JSONDecodeError, UnicodeDecodeError, ValidationError, RecursionError
)  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """One request that failed.

    Attributes:
        what: an error response (`status`), no answer in time (`timeout`), no connection
            (`refused`), a broken connection (`connection`), an answer that cannot be parsed
            (`malformed`), or a client that cannot send requests (`unusable`).
        said: the provider's message on one line. The backend's `failure` shortens it and removes
            the API key.
        status: the response's HTTP status.
        code: the provider's name for the error, if it has one.
        headers: the response's headers, their names in lower case.
        in_answer: whether an answer with status 200 reports it, which may have been charged.
    """

    what: What
    said: str
    status: int | None = None
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    in_answer: bool = False


class UpstreamError(Exception):
    """An answer with status 200 that reports a failure of the server behind its sender.

    Attributes:
        failure: what the same failure with a status of its own would be.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.said)
        self.failure = failure

    @classmethod
    def of(cls, error: object) -> UpstreamError:
        """Return the failure in the field `error` of an answer, or of its choice."""
        named = complaint({"error": error})
        message = one_line(named.get("message") or error)
        codes = [str(named[name]) for name in ("code", "type", "status") if named.get(name)]
        stated = (int(code) for code in codes if re.fullmatch(r"[45]\d\d", code))
        statuses = (_STATUSES[code] for code in codes if code in _STATUSES)
        code = " ".join(codes)
        default = _BAD_GATEWAY
        if refuses_prompt(400, code, one_line(error)):  # its message may say nothing
            code, default = f"{code} content_filter", 400
        status = next(stated, None) or next(statuses, default)
        message = f"an error in place of an answer: {message}"
        return cls(Failure("status", message, status, code, in_answer=True))

    @classmethod
    def stopped(cls, reason: str) -> UpstreamError:
        """Return the failure of an answer that was interrupted for a reason of the server's."""
        message = f"the answer was interrupted (finish reason {reason or 'missing'!r})"
        status = _UNAVAILABLE if _OVERLOAD.search(reason.lower()) else _BAD_GATEWAY
        return cls(Failure("status", message, status, reason, in_answer=True))


_BAD_GATEWAY, _UNAVAILABLE = 502, 503
_OVERLOAD = re.compile("insufficient|overload|unavailable|throttl|capacity|preempt")
_STATUSES = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402,
    "permission_error": 403, "not_found_error": 404, "request_too_large": 413,
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 429,
    "api_error": 500, "server_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
"""The statuses that go with the providers' names of errors."""


def read_failure(error: Exception) -> Failure | None:
    """Return the failure that an exception of an SDK, HTTP client, asyncio or parser stands for.

    None for any other exception, which is a bug.

    Examples:
        >>> read_failure(TimeoutError()).what, read_failure(KeyError("a bug"))
        ('timeout', None)
    """
    if isinstance(error, UpstreamError):
        return error.failure
    if isinstance(error, _UNREADABLE):
        return Failure("malformed", one_line(error) or type(error).__name__)
    failure = _of_rows(error, _OF_AIOHTTP) or _of_rows(error, _OF_SYSTEM)
    if failure is not None:
        return failure
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
        return _response(error, error.body, error.response)
    if isinstance(error, sdk.APIConnectionError):
        cause = error.__cause__
        failure = _of_client(cause) if isinstance(cause, Exception) else None
        if failure is None and isinstance(error, sdk.APITimeoutError):
            return Failure("timeout", _LATE)
        return failure or Failure("connection", _named(cause) if cause else "no detail")
    if isinstance(error, sdk.APIResponseValidationError):
        return Failure("malformed", one_line(error))
    base = getattr(sdk, "OpenAIError", None) or sdk.AnthropicError
    if isinstance(error, base):
        return Failure("unusable", _named(error))
    return None


def complaint(body: object) -> Mapping[str, Any]:
    """Return the fields of an error response, such as `code`, `type`, `param` and `message`.

    Examples:
        >>> complaint({"error": {"code": "insufficient_quota"}}) == complaint(
        ...     {"code": "insufficient_quota"})
        True
    """
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if isinstance(inner, str):
        return {"message": inner}
    return inner if isinstance(inner, Mapping) else {}


def _response(message: object, body: object, response: Any) -> Failure:
    named = complaint(body)
    codes = (named.get("code"), named.get("type"))
    return Failure(
        "status",
        one_line(message),
        status=response.status_code,
        code=" ".join(code for code in codes if isinstance(code, str)),
        headers={name.lower(): value for name, value in response.headers.items()},
    )


def _of_client(error: Exception) -> Failure | None:
    """Return the failure of an HTTP client, alone or as the cause of an SDK's exception."""
    for client in _loaded(_HTTPX):
        if isinstance(error, client.HTTPStatusError):
            text, body = "", None
            # The body may be unread.
            with contextlib.suppress(RuntimeError, ValueError, RecursionError):
                text = error.response.text
                body = json.loads(text)
            return _response(f"{error.response.status_code} {text}", body, error.response)
    # The SDKs' aiohttp transport reports a broken connection as one that could not be made.
    by_aiohttp = _of_rows(error, _OF_AIOHTTP) or _of_rows(error.__cause__, _OF_AIOHTTP)
    return by_aiohttp or _of_rows(error, _OF_HTTPX) or _of_rows(error, _OF_HTTPX, "httpx")


def _of_rows(error: BaseException | None, rows: _Rows, module: str = "") -> Failure | None:
    """Return the failure by the first class of a table; of `module` in place of its own."""
    for what, names in rows:
        for name in names:
            own, _, path = name.partition(".")
            library = sys.modules.get(module or own)
            if library is not None and isinstance(error, attrgetter(path)(library)):
                return Failure(what, _LATE if what == "timeout" else _named(error))
    return None


def _named(error: BaseException | None) -> str:
    """Return an exception's name and message."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(error: object) -> str:
    """Return a message on one line."""
    return " ".join(str(error).split())


def shortened(text: str) -> str:
    """Return a message of readable length; remove keys first, or part of one may remain."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


_NO_REFUSAL = frozenset({401, 402, 404, 407, 429})
"""Statuses about the key, the credit, the model, the proxy or the rate, whatever is said."""

_REFUSAL_STATUSES = frozenset({400, 403, 422, 424, 451})
"""Statuses with which providers refuse prompts; other statuses need a code that says so."""

_REFUSAL_CODE = re.compile(
    "contentfilter|contentpolicy|contentmoderation|contentblocked|responsibleai|moderation|"
    "promptblocked|invalidprompt|prohibitedcontent|sensitivecontent|datainspection|guardrail|safety"
)
"""Parts of the codes of refused prompts, in small letters and digits alone."""

_POLICY = r"(?:usage|content|safety|acceptable use|community|responsible ai)"
_REFUSAL_WORDS = re.compile(
    rf"content[ _-]?(?:filter|management|moderation|polic)|responsible ?ai ?polic|guardrail|"
    rf"violat[^.]{{0,40}}\b{_POLICY}\b[^.]{{0,20}}(?:polic|guideline|standard|rule)|"
    r"(?:prompt|input|output|content|message|text)s? (?:(?:was|were|is|are|has been|have been) )?"
    r"(?:blocked|filtered|flagged|rejected by)|requires moderation|prohibited[ _]content|"
    r"content exists risk|considered high risk|(?:inappropriate|sensitive|unsafe|harmful) content|"
    r"safety (?:system|filter|setting|check)|data_?inspection",
    re.IGNORECASE,
)
_OF_ACCOUNT = re.compile(r"\b(?:account|organi[sz]ation|api key|ip address|subscription)\b", re.I)


def refuses_prompt(status: int, code: str, message: str) -> bool:
    """Return whether an error refuses one prompt for its content, as filters of providers do.

    It says nothing about other prompts: for the judge, it is a refusal to answer.

    Args:
        status: the HTTP status.
        code: the provider's names of the error.
        message: its message.

    Examples:
        >>> refuses_prompt(400, "content_filter", ""), refuses_prompt(400, "", "no such setting")
        (True, False)
    """
    if status in _NO_REFUSAL:
        return False
    if _REFUSAL_CODE.search(re.sub(r"[^a-z0-9 ]", "", code.lower())):
        return True
    worded = _REFUSAL_WORDS.search(message) is not None and _OF_ACCOUNT.search(message) is None
    return status in _REFUSAL_STATUSES and worded
