"""Errors as `application/problem+json` (RFC 9457), with the messages of the command line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from llm_elicit._util.text import visible
from llm_elicit.errors import ConflictError, ElicitError, InputError

logger = logging.getLogger("llm_elicit.service")

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """An error: its kind, its HTTP status, and what to do in one line."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ProblemError(HTTPException):
    """A request is refused."""


_TITLES = {
    400: "Bad request", 401: "Not signed in", 403: "Forbidden", 404: "Not found",
    405: "Method not allowed", 408: "Request timeout", 409: "Conflict", 410: "Gone",
    413: "Content too large", 415: "Unsupported media type", 421: "Misdirected request",
    422: "Cannot be used", 429: "Too many requests", 500: "Internal error",
    503: "Service unavailable",
}  # fmt: skip


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response of an error."""
    body = Problem(title=_TITLES.get(status, "Error"), status=status, detail=detail)
    return JSONResponse(body.model_dump(), status, dict(headers or {}), MEDIA_TYPE)


def status_of(error: Exception) -> int:
    """Return the HTTP status of a refused request, or of an error of this package.

    Examples:
        >>> status_of(InputError("no such judge")), status_of(ConflictError("the run has ended"))
        (422, 409)
    """
    if isinstance(error, ProblemError):
        return error.status_code
    if isinstance(error, InputError) and not isinstance(error, ConflictError):
        return 422
    return 409 if isinstance(error, ElicitError) else 500


def check_parameters(request: Request) -> None:
    """Check that the API knows the parameters of a request's address; a page may have others.

    Raises:
        ProblemError: it does not know one, which would do nothing.
    """
    if not request.url.path.startswith("/api/"):
        return
    names = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in names:
            raise ProblemError(422, _unknown(f"query.{visible(name, 100)}", "parameter", names))


def _unknown(location: str, kind: str, names: Iterable[str]) -> str:
    return f"{location}: unknown {kind}; known: {', '.join(names) or 'none'}"


def first_error(findings: Any, request: Request) -> str:
    """Return the first broken rule of a request in one line, and how many more there are."""
    first = findings[0]
    location = visible(".".join(str(part) for part in first["loc"]), 200) or "request"
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    if first["type"] == "extra_forbidden":
        model = request.scope["route"].body_field.field_info.annotation
        return _unknown(location, "key", model.model_fields) + more
    value = first.get("input")
    suffix = f", got {visible(repr(value), 100)}" if isinstance(value, str | int | float) else ""
    return f"{location}: {first['msg'].removeprefix('Value error, ')}{suffix}{more}"
