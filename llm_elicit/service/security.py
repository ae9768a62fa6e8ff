"""Authorization of requests: scopes, CSRF tokens, form fields, and answers to refused requests.

A route names the scope that it needs: ``Depends(require("read"))``. A caller gets a scope from a
token (`Authorization: Bearer ...`), from the session of a browser that signed in or, if the service
requires no token, without either. Routes under a personal link get theirs from `judging_link`.

If a request changes something and is authenticated by a cookie, which a browser sends without being
asked, it must repeat the session's CSRF token in the header `X-CSRF-Token` or the form field
`csrf`. Forms under a personal link repeat a token of the link, since their sender has no session.

Browsers end the lines of a field with CR LF, and pasted text may begin with a byte order mark and
end in blanks. Fields of the type `Text` are therefore normalized.

A refused request is answered with a page in a browser, and with a problem (RFC 9457) elsewhere. If
a form is refused because its session has ended, it is shown again with its fields.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, FastAPI, Form, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyCookie, HTTPBearer
from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from llm_elicit.errors import ElicitError
from llm_elicit.service import auth
from llm_elicit.service.auth import Action, ActionLog, ForgedLinkError, Scope, Session
from llm_elicit.service.guard import SAFE
from llm_elicit.service.responses import (
    ProblemError,
    check_parameters,
    first_error,
    refusal,
    render,
    status_of,
)
from llm_elicit.service.schemas import Link
from llm_elicit.service.state import READER, service_of

CSRF_FIELD, CSRF_HEADER = "csrf", "X-CSRF-Token"

SIGN_IN = "/login"
"""The path of the sign-in form."""

_SECRET_FIELDS = (CSRF_FIELD, "token")
"""Fields that are not shown again after a refused form."""

_ACTING, _DONE = "llm_elicit.acting", "llm_elicit.done"
"""Keys of a request's scope: the administrator who sent it, and what it has done."""

_FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Media types of requests that a page of any site can make a browser send."""


def normalized(text: str) -> str:
    r"""Return a form's text with LF line ends and without blanks at the ends of lines.

    Examples:
        >>> normalized("panel\r\nada \r")
        'panel\nada'
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


Text = Annotated[str, Form(), AfterValidator(normalized)]
"""The type of a form's field: ``name: Text = ""``."""


@dataclass(frozen=True)
class Caller:
    """Who sent a request.

    Attributes:
        scope: what they may do.
        by: the source of the scope: "token", "session", or "machine" if no token is required.
        name: an administrator's name; empty without one.
    """

    scope: Scope
    by: str
    name: str = ""


class OtherSessionError(ProblemError):
    """A form does not repeat the CSRF token of the current session."""

    def __init__(self) -> None:
        super().__init__(403, "the form is not of this session; load the page again")


_Token = Annotated[
    object,
    Security(
        HTTPBearer(
            scheme_name="token",
            auto_error=False,
            description="The admin token, or the read token, which may only look.",
        )
    ),
]
_Cookie = Annotated[
    object,
    Security(
        APIKeyCookie(
            name="llm_elicit",
            scheme_name="session",
            auto_error=False,
            description=f"The session of a browser; a change repeats `csrf` as {CSRF_HEADER}.",
        )
    ),
]
"""What the documentation of a route says; `require` checks both."""


def require(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency that refuses callers without a scope.

    Example::

        @router.post("/campaigns", dependencies=[Depends(require("admin"))])
    """

    async def check(request: Request, _token: _Token = None, _cookie: _Cookie = None) -> Caller:
        caller = await _identify(request)
        if caller.scope not in (scope, "admin"):
            raise ProblemError(
                403, "this needs an administrator's token, and yours may only read; use another"
            )
        # A page of another site could cause the request, but not repeat the session's token.
        if request.method not in SAFE and caller.by == "session":
            await check_csrf(request, auth.session_of(request))
        elif request.method not in SAFE and caller.by == "machine" and _is_form(request):
            await check_csrf(request, auth.session_of(request, auth.FORMS))
        READER.set(_address(request) if caller.scope == "read" else None)
        check_parameters(request)
        if scope == "admin" and request.method not in SAFE:
            request.scope[_ACTING] = caller
        return caller

    return check


class Recording:
    """Middleware that records what administrators have done, unless it was refused."""

    def __init__(self, app: ASGIApp, actions: ActionLog) -> None:
        self._app, self._actions = app, actions

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Pass a request on, and record it before its answer is sent."""

        async def send_recorded(message: Message) -> None:
            caller: Caller | None = scope.get(_ACTING)
            if caller is not None and message["type"] == "http.response.start":
                who = caller.name or ("this machine" if caller.by == "machine" else "administrator")
                of = scope["path_params"].get("name", "") if "/campaigns/" in scope["path"] else ""
                words = _words_of(scope)
                by_path = [(words, of)] if words and message["status"] < 400 else []
                for what, campaign in scope.get(_DONE, by_path):
                    action = Action(time.time(), who, campaign, what)
                    await asyncio.to_thread(self._actions.add, action)
            await send(message)

        await self._app(scope, receive, send_recorded)


def describe_action(request: Request, what: str, campaign: str) -> None:
    """State what a request has done to a campaign, for the record of actions."""
    request.scope.setdefault(_DONE, []).append((what, campaign))


_WORDS = {"new": "", "spaces": "upload a table", "table": "upload a table", "put labels": "label"}
"""What some requests do; a dry run in the form of a new campaign does nothing."""


def _words_of(scope: Connection) -> str:
    """Return what a request does by its method and the end of its path; empty for nothing.

    Examples:
        >>> _words_of({"method": "POST", "path": "/campaigns/birds/pause"})
        'pause'
        >>> _words_of({"method": "DELETE", "path": "/api/v1/campaigns/birds"})
        'delete birds'
    """
    end = str(scope["path"]).rstrip("/").rpartition("/")[2]
    words = end if scope["method"] == "POST" else f"{scope['method'].lower()} {end}"
    return _WORDS.get(words, words)


READ, ADMIN = [Depends(require("read"))], [Depends(require("admin"))]
"""The dependencies of routes that use nothing of the caller."""

Admin = Annotated[Caller, Depends(require("admin"))]
Reader = Annotated[Caller, Depends(require("read"))]


async def judging_link(token: str, request: Request) -> Link:
    """Return the link in a path `/judge/{token}...`.

    Raises:
        ProblemError: it is forged, and the address has sent too many forged ones.
        LinkError: it is forged, expired or revoked.
    """
    service = service_of(request)
    try:
        return await asyncio.to_thread(service.links.verify, token)
    except ForgedLinkError as error:
        service.attempts.raise_after_count(_address(request), error)


async def check_judge(request: Request, link: Link) -> None:
    """Check that a form under a link repeats the link's token.

    Raises:
        OtherSessionError: the form has another token.
    """
    expected = service_of(request).links.csrf(link)
    if not hmac.compare_digest(expected.encode(), (await _submitted_token(request)).encode()):
        raise OtherSessionError


async def sign_in(request: Request, token: str) -> Scope:
    """Sign a browser in by a token, and end its former session; the response sets the cookie.

    Raises:
        ProblemError: the token is wrong, or the address has sent too many wrong ones.
    """
    scope, name = _holder_of(request, token)
    await sign_out(request)
    auth.begin_session(request, scope, name)
    return scope


async def sign_out(request: Request) -> None:
    """End the session of a browser that signed in, for every copy of its cookie."""
    session = auth.session_of(request)
    if session is not None:
        await asyncio.to_thread(service_of(request).sessions.end, session)
        auth.forget(request)


def csrf_token(request: Request) -> str:
    """Return the token that forms of this page must repeat, in the field `csrf`."""
    session = auth.session_of(request) or auth.session_of(request, auth.FORMS)
    return service_of(request).sessions.csrf(session or auth.begin_session(request, None))


def page(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """Return a page with what its forms need, and the button to sign out."""
    signed_in = auth.session_of(request) is not None
    text = render(template, csrf=csrf_token(request), signed_in=signed_in, **context)
    return HTMLResponse(text, status)


async def check_csrf(request: Request, *candidates: Session | None) -> None:
    """Check that a form repeats the CSRF token of one of these sessions.

    Raises:
        OtherSessionError: the form has another token.
    """
    repeated, sessions = await _submitted_token(request), service_of(request).sessions
    if not any(session and sessions.csrf_is(session, repeated) for session in candidates):
        raise OtherSessionError


async def _submitted_token(request: Request) -> str:
    """Return the CSRF token in a request; empty without one."""
    header = request.headers.get(CSRF_HEADER)
    if header is None and _is_form(request):
        return str((await request.form()).get(CSRF_FIELD, ""))
    return header or ""


async def _identify(request: Request) -> Caller:
    """Return who sent a request.

    Raises:
        ProblemError: the request has no token and no session, and one is required.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        scope, name = _holder_of(request, token.strip())
        return Caller(scope, "token", name)
    service, session = service_of(request), auth.session_of(request)
    if session is not None and await asyncio.to_thread(service.sessions.has_ended, session):
        auth.forget(request)
        session = None
    if session is not None and session.scope is not None:
        return Caller(session.scope, "session", session.name)
    if not service.keys.tokens:
        return Caller("admin", "machine")
    raise ProblemError(
        401, "sign in, or send the header `Authorization: Bearer TOKEN`",
        {"www-authenticate": "Bearer"},
    )  # fmt: skip


def _holder_of(request: Request, token: str) -> tuple[Scope, str]:
    """Return the scope of a token, and the name of the administrator who has it.

    Raises:
        ProblemError: it is wrong, or the address has sent too many wrong ones.
    """
    service = service_of(request)
    holder = service.keys.holder_of(token)
    if holder is None:
        error = ProblemError(401, "the token is wrong", {"www-authenticate": "Bearer"})
        service.attempts.raise_after_count(_address(request), error)
    return holder


def _is_form(request: Request) -> bool:
    return media_type(request) in _FORM_TYPES


def media_type(request: Request) -> str:
    """Return the media type of a request's body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def add_handlers(app: FastAPI) -> None:
    """Make an application answer errors with pages or problems."""

    for kind in (HTTPException, ElicitError, RequestValidationError):
        app.add_exception_handler(kind, _error_response)


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        problem = error
    elif isinstance(error, RequestValidationError):
        # An invalid name in a path means that there is no such page.
        status = 404 if error.errors()[0]["loc"][0] == "path" else 422
        problem = ProblemError(status, first_error(error.errors(), request))
    else:
        problem = ProblemError(status_of(error), str(error))
    path = request.url.path
    context: dict[str, Any] = {}
    if "text/html" in request.headers.get("accept", "") and path != SIGN_IN:
        signed_out = problem.status_code == 401
        fields: list[tuple[str, str]] = []  # of the form that was submitted, without secrets
        shows_form = signed_out or isinstance(error, OtherSessionError)
        is_upload = media_type(request) == "multipart/form-data"  # which may be large
        if shows_form and request.method not in SAFE and not is_upload:
            with suppress(HTTPException):  # the request is no form
                fields = [
                    (name, normalized(text))
                    for name, text in (await request.form()).multi_items()
                    if isinstance(text, str) and name not in _SECRET_FIELDS
                ]
        if signed_out and not fields:
            # After signing in, the form redirects to the page that was requested.
            query = f"?{request.url.query}" if request.url.query else ""
            leads_back = request.method in SAFE and path != "/"
            target = f"{SIGN_IN}?next={quote(path + query, safe='/')}" if leads_back else SIGN_IN
            return RedirectResponse(target, 303)
        if fields:
            form = {"action": path, "fields": fields, "signed_out": signed_out}
            context["form"] = {**form, "csrf": csrf_token(request)}
    return refusal(request.headers, path, problem, service_of(request).keys.scrub, **context)
