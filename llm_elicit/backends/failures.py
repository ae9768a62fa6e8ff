"""Failures of requests, independent of the SDK that raised them.

A backend converts exceptions of its SDK to a `Failure`, and the orchestrator decides what to do.
No SDK is imported here: an exception can only come from an SDK that is already loaded.
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

FailureKind = Literal["status", "timeout", "refused", "connection", "malformed", "unusable"]


class MalformedReplyError(Exception):
    """The provider's answer does not have the format that its API documents."""


_SDKS = ("anthropic", "openai")
_HTTP_CLIENTS = ("httpx2", "httpx")
_FailureTable = tuple[tuple[FailureKind, tuple[str, ...]], ...]
"""Kinds of failures, each with its classes of exceptions; the first match applies."""

_AIOHTTP_ERRORS: _FailureTable = (
    ("refused", ("aiohttp.ClientConnectorError", "aiohttp.ConnectionTimeoutError")),
    ("timeout", ("aiohttp.ServerTimeoutError",)),
    ("unusable", ("aiohttp.InvalidURL",)),
    ("connection", ("aiohttp.ClientError", "aiohttp.http_exceptions.HttpProcessingError")),
)
_SYSTEM_ERRORS: _FailureTable = (
    ("timeout", ("builtins.TimeoutError",)),
    ("refused", ("builtins.ConnectionRefusedError", "socket.gaierror")),
    ("connection", ("builtins.ConnectionError", "ssl.SSLError", "asyncio.IncompleteReadError")),
)
_HTTPX_ERRORS: _FailureTable = (
    ("refused", ("httpx2.ConnectError", "httpx2.ConnectTimeout")),
    ("timeout", ("httpx2.TimeoutException",)),
    ("malformed", ("httpx2.DecodingError",)),
    ("unusable", ("httpx2.InvalidURL", "httpx2.UnsupportedProtocol", "httpx2.LocalProtocolError")),
    ("connection", ("httpx2.HTTPError",)),
)
"""Exceptions of httpx2; httpx has the same names."""

_TIMEOUT_MESSAGE = "no answer within the timeout"
_MAX_CHARACTERS = 300
_PARSING_ERRORS = (
    MalformedReplyError, json.JSONDecodeError, UnicodeDecodeError, ValidationError, RecursionError
)  # fmt: skip

_BAD_GATEWAY, _UNAVAILABLE = 502, 503
_OVERLOAD = re.compile("insufficient|overload|unavailable|throttl|capacity|preempt")
_STATUSES = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402,
    "permission_error": 403, "not_found_error": 404, "request_too_large": 413,
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 429,
    "api_error": 500, "server_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
"""HTTP statuses of the providers' error names."""

_NO_REFUSAL_STATUSES = frozenset({401, 402, 404, 407, 429})
"""Statuses about the key, the credit, the model, the proxy or the rate, whatever the message."""

_REFUSAL_STATUSES = frozenset({400, 403, 422, 424, 451})
"""Statuses with which providers refuse prompts; with others, the code has to say so."""

_REFUSAL_CODE = re.compile(
    "contentfilter|contentpolicy|contentmoderation|contentblocked|responsibleai|moderation|"
    "promptblocked|invalidprompt|prohibitedcontent|sensitivecontent|datainspection|guardrail|safety"
)
"""Parts of the codes of refused prompts, reduced to lower-case letters and digits."""

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
_ACCOUNT_WORDS = re.compile(
    r"\b(?:account|organi[sz]ation|api key|ip address|subscription)\b", re.I
)


@dataclass(frozen=True)
class Failure:
    """One request that failed.

    Attributes:
        kind: an error response (`status`), no answer in time (`timeout`), no connection
            (`refused`), a broken connection (`connection`), an answer that cannot be parsed
            (`malformed`), or a client that cannot send requests (`unusable`).
        message: the provider's message on one line. The backend's `failure` shortens it and removes
            the API key.
        status: the response's HTTP status.
        code: the provider's name for the error, if it has one.
        headers: the response's headers, their names in lower case.
        in_answer: whether an answer with status 200, which may have been charged, reports the
            failure.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    in_answer: bool = False


class UpstreamError(Exception):
    """A request without an answer, or an answer with status 200 that reports an error.

    Attributes:
        failure: the failure; of an answer, with the HTTP status that fits its error.
        fields: the error's fields.
    """

    def __init__(self, failure: Failure, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(failure.message)
        self.failure, self.fields = failure, fields or {}

    @property
    def kind(self) -> str:
        """The kind of failure, with the HTTP status if there is one, such as "status 500"."""
        return f"{self.failure.kind} {self.failure.status or ''}".rstrip()

    @classmethod
    def of(cls, error: object) -> UpstreamError:
        """Return the error for the field `error` of an answer or of its choice."""
        fields = error_fields({"error": error})
        message = one_line(fields.get("message") or error)
        codes = [str(fields[name]) for name in ("code", "type", "status") if fields.get(name)]
        numeric = (int(code) for code in codes if re.fullmatch(r"[45]\d\d", code))
        statuses = (_STATUSES[code] for code in codes if code in _STATUSES)
        code = " ".join(codes)
        default = _BAD_GATEWAY
        if refuses_prompt(400, code, one_line(error)):  # the message alone may not show it
            code, default = f"{code} content_filter", 400
        status = next(numeric, None) or next(statuses, default)
        message = f"an error in place of an answer: {message}"
        return cls(Failure("status", message, status, code, in_answer=True), fields)

    @classmethod
    def stopped(cls, reason: str) -> UpstreamError:
        """Return the error for an answer that the server interrupted."""
        message = f"the answer was interrupted (finish reason {reason or 'missing'!r})"
        status = _UNAVAILABLE if _OVERLOAD.search(reason.lower()) else _BAD_GATEWAY
        return cls(Failure("status", message, status, reason, in_answer=True))


def read_failure(error: Exception) -> Failure | None:
    """Return the failure that an exception of an SDK, HTTP client, asyncio or parser stands for.

    None for any other exception, which is a bug.

    Examples:
        >>> read_failure(TimeoutError()).kind, read_failure(KeyError("a bug"))
        ('timeout', None)
    """
    if isinstance(error, UpstreamError):
        return error.failure
    if isinstance(error, _PARSING_ERRORS):
        return Failure("malformed", one_line(error) or type(error).__name__)
    failure = _look_up(error, _AIOHTTP_ERRORS) or _look_up(error, _SYSTEM_ERRORS)
    if failure is not None:
        return failure
    for sdk in _loaded_modules(_SDKS):
        failure = _sdk_failure(error, sdk)
        if failure is not None:
            return failure
    return _client_failure(error)


def _loaded_modules(names: tuple[str, ...]) -> Iterator[ModuleType]:
    return (sys.modules[name] for name in names if name in sys.modules)


def _sdk_failure(error: Exception, sdk: ModuleType) -> Failure | None:
    """Return the failure of an SDK's exception.

    Both SDKs are made by one code generator: their exceptions have the same names and fields.
    """
    if isinstance(error, sdk.APIStatusError):
        return response_failure(error, error.body, error.response)
    if isinstance(error, sdk.APIConnectionError):
        cause = error.__cause__
        failure = _client_failure(cause) if isinstance(cause, Exception) else None
        if failure is None and isinstance(error, sdk.APITimeoutError):
            return Failure("timeout", _TIMEOUT_MESSAGE)
        return failure or Failure("connection", describe(cause) if cause else "no detail")
    if isinstance(error, sdk.APIResponseValidationError):
        return Failure("malformed", one_line(error))
    base = getattr(sdk, "OpenAIError", None) or sdk.AnthropicError
    if isinstance(error, base):
        return Failure("unusable", describe(error))
    return None


def error_fields(body: object) -> Mapping[str, Any]:
    """Return the fields of an error response, such as `code`, `type`, `param` and `message`.

    Examples:
        >>> error_fields({"error": {"code": "insufficient_quota"}}) == error_fields(
        ...     {"code": "insufficient_quota"})
        True
    """
    if isinstance(body, list) and body:  # Gemini sends a list of one
        body = body[0]
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if isinstance(inner, str):
        return {"message": inner}
    return inner if isinstance(inner, Mapping) else {}


def response_failure(message: object, body: object, response: Any) -> Failure:
    """Return the failure that an error response stands for, given its parsed body."""
    fields = error_fields(body)
    codes = (fields.get("code"), fields.get("type"))
    return Failure(
        "status",
        one_line(message),
        status=response.status_code,
        code=" ".join(code for code in codes if isinstance(code, str)),
        headers={name.lower(): value for name, value in response.headers.items()},
    )


def _client_failure(error: Exception) -> Failure | None:
    """Return the failure of an HTTP client, alone or as the cause of an SDK's exception."""
    for client in _loaded_modules(_HTTP_CLIENTS):
        if isinstance(error, client.HTTPStatusError):
            text, body = "", None
            # The body may be unread.
            with contextlib.suppress(RuntimeError, ValueError, RecursionError):
                text = error.response.text
                body = json.loads(text)
            return response_failure(f"{error.response.status_code} {text}", body, error.response)
    # The SDKs' aiohttp transport reports a broken connection as a refused one; the cause has the
    # right class.
    by_aiohttp = _look_up(error, _AIOHTTP_ERRORS) or _look_up(error.__cause__, _AIOHTTP_ERRORS)
    return by_aiohttp or _look_up(error, _HTTPX_ERRORS) or _look_up(error, _HTTPX_ERRORS, "httpx")


def _look_up(error: BaseException | None, rows: _FailureTable, module: str = "") -> Failure | None:
    """Return the failure by a table; `module` replaces the module of the table's classes."""
    for kind, names in rows:
        for name in names:
            package, _, path = name.partition(".")
            library = sys.modules.get(module or package)
            if library is not None and isinstance(error, attrgetter(path)(library)):
                return Failure(kind, _TIMEOUT_MESSAGE if kind == "timeout" else describe(error))
    return None


def describe(error: BaseException | None) -> str:
    """Return an exception's name and message."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(error: object) -> str:
    """Return a message on one line."""
    return " ".join(str(error).split())


def shorten(text: str) -> str:
    """Return a message cut to readable length; remove keys first, since a cut may leave a part."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


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
    if status in _NO_REFUSAL_STATUSES:
        return False
    if _REFUSAL_CODE.search(re.sub(r"[^a-z0-9 ]", "", code.lower())):
        return True
    has_refusal_words = (
        _REFUSAL_WORDS.search(message) is not None and _ACCOUNT_WORDS.search(message) is None
    )
    return status in _REFUSAL_STATUSES and has_refusal_words
