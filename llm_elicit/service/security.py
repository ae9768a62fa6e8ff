"""Authorization of requests: scopes, CSRF tokens, form fields, and answers to refused requests.

A route names the scope that it needs: ``Depends(require("read"))``. A caller has a scope by a token
(`Authorization: Bearer ...`), by the session of a browser that signed in or, if no token is
required, by being on this machine. `judge` is the dependency of routes under a personal link.

A request that changes something and was authenticated by what a browser sends automatically must
repeat the session's token, in the header `X-CSRF-Token` or the form field `csrf`. Forms under a
personal link repeat a token of the link, since their sender has no session.

Browsers end the lines of a field with CR LF, and pasted text may begin with a byte order mark and
end in blanks. Fields of the type `Text` are normalized.

A refused request gets a page in a browser, and a problem (RFC 9457) elsewhere. If a form is refused
because its session has ended, it is shown again with its fields, ready to be sent again.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Form, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from llm_elicit.errors import ElicitError
from llm_elicit.service import auth
from llm_elicit.service.auth import ForgedLinkError, Link, Scope, Session
from llm_elicit.service.guard import SAFE
from llm_elicit.service.responses import (
    ProblemError,
    check_parameters,
    first_error,
    refusal,
    status_of,
)
from llm_elicit.service.state import READER, service_of


def normalized(text: str) -> str:
    r"""Return a form's text with LF at the end of each line, and without blanks before it.

    Examples:
        >>> normalized("panel\r\nada \r")
        'panel\nada'
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


Text = Annotated[str, Form(), AfterValidator(normalized)]
"""The type of a form's field: ``name: Text = ""``."""


CSRF_FIELD, CSRF_HEADER = "csrf", "X-CSRF-Token"

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""The types of requests that a page of any site can have a browser send."""

_ALLOWS: dict[Scope, tuple[Scope, ...]] = {"admin": ("admin", "read"), "read": ("read",)}


@dataclass(frozen=True)
class Caller:
    """Who sent a request.

    Attributes:
        scope: what they may do.
        by: how that is known: by a token, a session's cookie, or because none is required.
    """

    scope: Scope
    by: str


class OtherSessionError(ProblemError):
    """A form does not repeat the token of the present session."""

    def __init__(self) -> None:
        super().__init__(403, "the form is not of this session; load the page again")


def require(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency that refuses callers without a scope.

    Example::

        @router.post("/campaigns", dependencies=[Depends(require("admin"))])
    """

    async def check(request: Request) -> Caller:
        caller = await _caller(request)
        if scope not in _ALLOWS[caller.scope]:
            raise ProblemError(
                403, f"this needs the scope {scope!r}, and you have {caller.scope!r}"
            )
        # A page of another site could cause the request, but not repeat the session's token.
        if request.method not in SAFE and caller.by == "session":
            await _check_csrf(request, auth.session_of(request))
        elif request.method not in SAFE and caller.by == "machine" and _is_form(request):
            await _check_csrf(request, auth.form_session_of(request))
        READER.set(_address(request) if caller.scope == "read" else None)
        check_parameters(request)
        return caller

    return check


Admin = Annotated[Caller, Depends(require("admin"))]
Reader = Annotated[Caller, Depends(require("read"))]


async def judge(token: str, request: Request) -> Link:
    """Return the link in a path `/judge/{token}...`.

    Raises:
        ProblemError: it is forged, and too many such were tried from there.
        LinkError: it is forged, expired or revoked.
    """
    service = service_of(request)
    try:
        return await asyncio.to_thread(service.links.verify, token)
    except ForgedLinkError as error:
        service.attempts.refuse(_address(request), error)


async def check_judge(request: Request, link: Link) -> None:
    """Check that a form under a link repeats the link's token.

    Raises:
        ProblemError: it does not.
    """
    expected = service_of(request).links.csrf(link)
    if not hmac.compare_digest(expected.encode(), (await _repeated(request)).encode()):
        raise OtherSessionError


async def sign_in(request: Request, token: str) -> Scope:
    """Sign a browser in by a token; the session's cookie is set with the response.

    Its former session is ended.

    Raises:
        ProblemError: the token is wrong, or too many wrong ones were sent from there.
    """
    scope = _scope_of(request, token)
    await sign_out(request)
    auth.sign_in(request, scope)
    return scope


async def sign_out(request: Request) -> None:
    """End the session of a browser that signed in, for every copy of its cookie."""
    session = auth.session_of(request)
    if session is not None:
        await asyncio.to_thread(service_of(request).sessions.end, session)
        auth.forget(request)


def csrf_token(request: Request) -> str:
    """Return the token that forms of this page must repeat, in the field `csrf`."""
    session = auth.session_of(request) or auth.form_session(request)
    return service_of(request).sessions.csrf(session)


async def check_csrf(request: Request) -> None:
    """Check that a form repeats its session's token; for forms without a scope, as to sign in.

    Raises:
        ProblemError: it does not.
    """
    await _check_csrf(request, auth.session_of(request), auth.form_session_of(request))


async def _check_csrf(request: Request, *candidates: Session | None) -> None:
    """Check that a form repeats the token of one of these sessions."""
    repeated, sessions = await _repeated(request), service_of(request).sessions
    if not any(session and sessions.csrf_is(session, repeated) for session in candidates):
        raise OtherSessionError


async def _repeated(request: Request) -> str:
    """Return the token that a request repeats; empty without one."""
    header = request.headers.get(CSRF_HEADER)
    if header is None and _is_form(request):
        return str((await request.form()).get(CSRF_FIELD, ""))
    return header or ""


async def _caller(request: Request) -> Caller:
    """Return who sent a request.

    Raises:
        ProblemError: it is unknown.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return Caller(_scope_of(request, token.strip()), "token")
    service, session = service_of(request), auth.session_of(request)
    if session is not None and await asyncio.to_thread(service.sessions.has_ended, session):
        auth.forget(request)
        session = None
    if session is not None and session.scope is not None:
        return Caller(session.scope, "session")
    if not service.keys.tokens:
        return Caller("admin", "machine")
    raise ProblemError(
        401, "sign in, or send the header `Authorization: Bearer TOKEN`",
        {"www-authenticate": "Bearer"},
    )  # fmt: skip


def _scope_of(request: Request, token: str) -> Scope:
    """Return the scope of a token.

    Raises:
        ProblemError: it is wrong, or too many wrong ones were sent from there.
    """
    service = service_of(request)
    scope = service.keys.scope_of(token)
    if scope is None:
        error = ProblemError(401, "the token is wrong", {"www-authenticate": "Bearer"})
        service.attempts.refuse(_address(request), error)
    return scope


def _is_form(request: Request) -> bool:
    return media_type(request) in _FORMS


def media_type(request: Request) -> str:
    """Return the media type of a request's body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


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
            # Which leads back to a page that was asked for.
            query = f"?{request.url.query}" if request.url.query else ""
            leads_back = request.method in SAFE and path != "/"
            target = f"{SIGN_IN}?next={quote(path + query, safe='/')}" if leads_back else SIGN_IN
            return RedirectResponse(target, 303)
        if fields:
            context["form"] = {
                "action": path,
                "fields": fields,
                "csrf": csrf_token(request),
                "signed_out": signed_out,
            }
    scrub = service_of(request).keys.scrub
    return refusal(request.headers, path, status, detail, scrub, headers, **context)


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
