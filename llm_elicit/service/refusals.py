"""What becomes of requests that are refused: a page for browsers, a problem for all others.

A form that is refused because its session is not the present one is shown with what was filled in,
to be sent again.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from llm_elicit.errors import ElicitError
from llm_elicit.service.forms import normalized
from llm_elicit.service.guard import SAFE
from llm_elicit.service.problems import first_error, status_of
from llm_elicit.service.rendering import refusal
from llm_elicit.service.security import CSRF_FIELD, OtherSessionError, csrf_token
from llm_elicit.service.state import service_of

SIGN_IN = "/login"
"""The page of the form to sign in."""

_SECRETS = (CSRF_FIELD, "token")


def add_handlers(app: FastAPI) -> None:
    """Have an application answer errors with pages and problems."""

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await _refused(request, error, error.status_code, str(error.detail), error.headers)

    async def known(request: Request, error: Exception) -> Response:
        return await _refused(request, error, status_of(error), str(error))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # A name that cannot be one names nothing.
        status = 404 if error.errors()[0]["loc"][0] == "path" else 422
        return await _refused(request, error, status, first_error(error.errors(), request))

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ElicitError, known)
    app.add_exception_handler(RequestValidationError, invalid)


async def _refused(
    request: Request, error: Exception, status: int, detail: str, headers: Any = None
) -> Response:
    path = request.url.path
    context: dict[str, Any] = {}
    if "text/html" in request.headers.get("accept", "") and path != SIGN_IN:
        signed_out = status == 401
        again = signed_out or isinstance(error, OtherSessionError)
        fields = await _fields(request) if again else {}
        if signed_out and not fields:
            return RedirectResponse(_to_sign_in(request), 303)
        if fields:
            context["form"] = {
                "action": path,
                "fields": fields,
                "csrf": csrf_token(request),
                "signed_out": signed_out,
            }
    keys = service_of(request).keys
    return refusal(request.headers, path, status, detail, keys, headers, **context)


def _to_sign_in(request: Request) -> str:
    """Return the form to sign in, which leads back to a page that was asked for."""
    if request.method not in SAFE or request.url.path == "/":
        return SIGN_IN
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"{SIGN_IN}?next={quote(wanted, safe='/')}"


async def _fields(request: Request) -> dict[str, str]:
    """Return what was filled in, without secrets; nothing of a request that is no form."""
    if request.method in SAFE:
        return {}
    try:
        form = await request.form()
    except HTTPException:
        return {}
    return {
        name: normalized(text)
        for name, text in form.items()
        if isinstance(text, str) and name not in _SECRETS
    }
