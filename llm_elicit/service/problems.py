"""Errors as `application/problem+json` (RFC 9457), with the messages of the command line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from llm_elicit._util.sanitize import visible
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.service.keys import Keys

logger = logging.getLogger("llm_elicit.service")

MEDIA_TYPE = "application/problem+json"
_LONGEST = 4000

SIGN_IN = "/login"
"""The page of the form to sign in."""


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


def problem(
    status: int, detail: str, keys: Keys, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response of an error, without secrets and control characters."""
    said = visible(keys.scrub(detail), _LONGEST)
    body = Problem(title=_TITLES.get(status, "Error"), status=status, detail=said)
    return JSONResponse(body.model_dump(), status, dict(headers or {}), MEDIA_TYPE)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error of this package.

    Example:
        >>> status_of(InputError("no such judge")), status_of(ElicitError("the key is refused"))
        (422, 409)
    """
    if isinstance(error, InputError):
        return 422
    return 409 if isinstance(error, ElicitError) else 500


def internal(error: BaseException, keys: Keys) -> Response:
    """Log an error that nobody expected, and return a response that says nothing about it."""
    logger.error("a request failed", exc_info=error)
    return problem(500, "the service failed; its log says why", keys)


def add_handlers(app: FastAPI, keys: Keys) -> None:
    """Have an application answer errors with problems."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)
        if error.status_code == 401 and _is_page(request):
            return RedirectResponse(SIGN_IN, 303)
        return problem(error.status_code, error.detail, keys, error.headers)

    async def known(request: Request, error: Exception) -> Response:
        del request
        return problem(status_of(error), str(error), keys)

    async def http(request: Request, error: Exception) -> Response:
        del request
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), keys, error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(422, _first(error.errors(), request), keys)

    app.add_exception_handler(ProblemError, refused)
    app.add_exception_handler(ElicitError, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)


def _is_page(request: Request) -> bool:
    """Whether a browser asks for a page, which is better answered by the form to sign in."""
    page = "text/html" in request.headers.get("accept", "")
    return page and request.method == "GET" and request.url.path != SIGN_IN


def check_parameters(request: Request) -> None:
    """Check that the API knows the parameters of a request's address; a page may have others.

    Raises:
        ProblemError: it does not know one, which would do nothing.
    """
    if not request.url.path.startswith("/api/"):
        return
    known = [field.alias for field in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise ProblemError(422, _unknown(f"query.{visible(name, 100)}", "parameter", known))


def _unknown(where: str, kind: str, known: Iterable[str]) -> str:
    return f"{where}: unknown {kind}; known: {', '.join(known) or 'none'}"


def _first(findings: Any, request: Request) -> str:
    """Return the first broken rule of a request in one line, and how many more there are."""
    first = findings[0]
    where = visible(".".join(str(part) for part in first["loc"]), 200) or "request"
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    if first["type"] == "extra_forbidden":
        model = request.scope["route"].body_field.field_info.annotation
        return _unknown(where, "key", model.model_fields) + more
    given = first.get("input")
    shown = f", got {visible(repr(given), 100)}" if isinstance(given, str | int | float) else ""
    return f"{where}: {first['msg'].removeprefix('Value error, ')}{shown}{more}"
