"""Middleware about every request: its host, its origin, its size, and the headers of the answer.

A page of another site can have a browser send requests to a service on the same machine, and by a
name that it makes resolve to 127.0.0.1 (DNS rebinding) even read the answers. Hence the `Host` must
be an address or a known name, and requests that change something must come from a page of the
service, if they come from a page at all.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_elicit.service.keys import Keys
from llm_elicit.service.problems import ProblemError, logger
from llm_elicit.service.rendering import ROOT, refusal
from llm_elicit.service.settings import ServerSettings

_access = logging.getLogger("llm_elicit.service.access")

SAFE = ("GET", "HEAD", "OPTIONS")
"""The methods that change nothing."""

UPLOADS = "/api/spaces"
"""The path of requests that may be as large as a table."""

_BODY_SECONDS = 30.0
"""Seconds that a request's body may take, beside those for its size."""

_BODY_PACE = 2_000
"""Bytes in each further second."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With "no-referrer", browsers would send `Origin: null` with the service's own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}

Observer = Callable[[str, str, int, float], None]
"""Called with the method, the route, the status and the seconds of every request."""


class Guard:
    """Refuses what no page of the service sends, and answers unexpected errors.

    Args:
        app: the application.
        settings: the service's settings.
        keys: its secrets, which no answer holds.
        observe: called once a request is answered.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, keys: Keys, observe: Observer
    ) -> None:
        self._app, self._settings, self._keys, self._observe = app, settings, keys, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, method = time.perf_counter(), 0, scope["method"]

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._complete(MutableHeaders(scope=message), scope["scheme"])
            await send(message)

        sends: Send = answer
        if method == "HEAD":
            scope["method"], (receive, sends) = "GET", _headed(receive, answer)
        try:
            response = await self._passed(scope, receive, sends)
            if response is not None and not status:
                await response(scope, receive, sends)
        finally:
            self._log(scope, method, status, time.perf_counter() - began)

    async def _passed(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Pass a request on; return the response of one that is refused or fails."""
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            if scope["method"] not in SAFE:
                self._check_origin(headers)
            body = _Body(receive, headers, self._largest(scope["path"]))
            await self._app(scope, body.receive, send)
        except ProblemError as error:
            return self._refused(scope, error.status_code, error.detail, error.headers)
        except Exception as error:
            logger.error("a request failed", exc_info=error)
            return self._refused(scope, 500, "the service failed; its log says why")
        return None

    def _refused(
        self, scope: Scope, status: int, detail: str, more: Mapping[str, str] | None = None
    ) -> Response:
        return refusal(Headers(scope=scope), scope["path"], status, detail, self._keys, more)

    def _largest(self, path: str) -> int:
        bounds = self._settings.bounds
        return bounds.upload if path.rstrip("/") == UPLOADS else bounds.body

    def _complete(self, headers: MutableHeaders, scheme: str) -> None:
        """Add the headers of every answer, and the proxy's path to the place of a redirect."""
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if scheme == "https":
            headers.setdefault("strict-transport-security", "max-age=31536000")
        if headers.get("location", "").startswith("/"):
            headers["location"] = ROOT.get() + headers["location"]

    def _check_host(self, headers: Headers) -> None:
        """Check the name by which the service was called.

        Raises:
            ProblemError: it is neither an address nor a known name.
        """
        stated = headers.get("host", "")
        name = host_name(stated)
        known = {"localhost", self._settings.host, *self._settings.hosts}
        if name is None or not (is_address(name) or name in {one.lower() for one in known}):
            raise ProblemError(
                421,
                f"the service is not called {stated[:100]!r}; call it by its address, or add the "
                "name to `hosts` in the server's file",
            )

    def _check_origin(self, headers: Headers) -> None:
        """Check that a request that changes something comes from no other site.

        Raises:
            ProblemError: it does.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        # A browser that says "same-origin" has compared both itself, before any proxy.
        same = origin is None or _place(origin) == _place(f"http://{headers.get('host', '')}")
        if site in ("cross-site", "same-site") or not (same or site == "same-origin"):
            raise ProblemError(403, "a page of another site sent this request; it is refused")

    def _log(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """Log a request by its route: paths may hold the tokens of links."""
        route = getattr(scope.get("route"), "path", None) or "(no route)"
        method = method if method.isalpha() else "?"
        self._observe(method, route, status, seconds)
        _access.info("%s %s %d %.1f ms", method[:16], route, status, 1000 * seconds)


def _headed(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Return the ends of a request for headers alone: the caller leaves once it has them."""
    complete = False

    async def left() -> Message:
        return {"type": "http.disconnect"} if complete else await receive()

    async def head(message: Message) -> None:
        nonlocal complete
        if message["type"] == "http.response.start":
            complete = True
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return left, head


class _Body:
    """The body of a request, within its limits of size and time."""

    def __init__(self, receive: Receive, headers: Headers, largest: int) -> None:
        self._receive, self._largest = receive, largest
        self._size, self._whole, self._began = 0, False, time.monotonic()
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ProblemError(400, "the request states two lengths", {"connection": "close"})
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(
                415, "the request is compressed; send it as it is", {"accept-encoding": "identity"}
            )
        stated = headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > largest:
            raise self._too_large()

    async def receive(self) -> Message:
        """Return the next part of the body, or that the caller is gone.

        Raises:
            ProblemError: the body is too large, or its next part does not come.
        """
        if self._whole:
            return await self._receive()
        left = self._began + _BODY_SECONDS + self._size / _BODY_PACE - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), left)
        except TimeoutError:
            closed = {"connection": "close"}
            raise ProblemError(408, "the rest of the request did not come", closed) from None
        self._size += len(message.get("body", b""))
        if self._size > self._largest:
            raise self._too_large()
        self._whole = not message.get("more_body", False)
        return message

    def _too_large(self) -> ProblemError:
        return ProblemError(
            413, f"more than {self._largest:,} bytes; send less", {"connection": "close"}
        )


def host_name(stated: str) -> str | None:
    """Return the name or address in a `Host` header, in lower case; None if it is invalid.

    Example:
        >>> host_name("Localhost:80"), host_name("[::1]:80"), host_name("a/b")
        ('localhost', '::1', None)
    """
    try:
        parts = urlsplit(f"//{stated}")
        _ = parts.port  # raises for one that is no number
        valid = parts.netloc == stated and "@" not in stated
        return parts.hostname if valid else None
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Whether a name is an IP address, which no DNS server can make resolve to another."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _place(url: str) -> tuple[str | None, int] | None:
    """Return the host and the port of an origin; 0 for its scheme's, which a proxy may change."""
    try:
        parts = urlsplit(url)
        if parts.hostname is None:
            return None
        return parts.hostname, 0 if parts.port in (None, 80, 443) else parts.port
    except ValueError:
        return None
