"""Middleware of every request: allowed hosts and origins, sizes, proxies, and idle connections.

A page of another site can make a browser send requests to a service on the same machine and, with a
name that resolves to 127.0.0.1 (DNS rebinding), even read the answers. So the `Host` must be an
address or a known name, and a request that changes something and comes from a page must come from a
page of the service.

Behind a proxy, a request is seen as the browser sent it. Only proxies that the operator names are
trusted, since anyone can send their headers. `X-Forwarded-For`, `-Proto`, `-Host` and `-Prefix` are
read, or else `Forwarded` (RFC 7239).

uvicorn closes connections that are idle after an answer, but waits without a limit for the rest of
a request's headers. Here headers must arrive within seconds. If there are too many connections, the
one that has waited longest is closed, but never one with a request in progress, such as a stream of
events.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from llm_elicit.service.auth import Keys
from llm_elicit.service.responses import ROOT, ProblemError, logger, refusal
from llm_elicit.service.settings import PATH, ServerSettings

_access = logging.getLogger("llm_elicit.service.access")

SAFE = ("GET", "HEAD", "OPTIONS")
"""The methods that change nothing."""

UPLOADS = ("/api/v1/spaces", "/new/table")
"""The paths of requests that may be as large as a table."""

_BODY_SECONDS = 30.0
"""Seconds that a request's body may take, beside those for its size."""

_BODY_PACE = 2_000
"""Bytes in each further second."""

_CLOSE = {"connection": "close"}
"""The header after which a connection is closed: the rest of the request is not read."""

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
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if scope["scheme"] == "https":
                    headers.setdefault("strict-transport-security", "max-age=31536000")
                if headers.get("location", "").startswith("/"):  # of a redirect, behind a proxy
                    headers["location"] = ROOT.get() + headers["location"]
            await send(message)

        sends: Send = answer
        if method == "HEAD":
            scope["method"], (receive, sends) = "GET", _for_headers_only(receive, answer)
        try:
            response = await self._pass_on(scope, receive, sends)
            if response is not None and not status:
                await response(scope, receive, sends)
        finally:
            # By its route, since paths may hold the tokens of links.
            route = getattr(scope.get("route"), "path", None) or "(no route)"
            method, seconds = method if method.isalpha() else "?", time.perf_counter() - began
            self._observe(method, route, status, seconds)
            _access.info("%s %s %d %.1f ms", method[:16], route, status, 1000 * seconds)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Pass a request on; return the response of one that is refused or fails."""
        headers, path = Headers(scope=scope), scope["path"]
        try:
            self._check_host(headers)
            if scope["method"] not in SAFE:
                origin, site = headers.get("origin"), headers.get("sec-fetch-site")
                # A browser that says "same-origin" has compared both itself, before any proxy.
                called = _place(f"http://{headers.get('host', '')}")
                same = origin is None or _place(origin) == called
                if site in ("cross-site", "same-site") or not (same or site == "same-origin"):
                    why = "a page of another site sent this request; it is refused"
                    raise ProblemError(403, why)
            bounds = self._settings.bounds
            largest = bounds.upload if path.rstrip("/") in UPLOADS else bounds.body
            await self._app(scope, _Body(receive, headers, largest).receive, send)
            return None
        except ProblemError as error:
            return refusal(headers, path, error, self._keys.scrub)
        except Exception as error:
            logger.error("a request failed", exc_info=error)
            defect = ProblemError(500, "the service failed; its log says why")
            return refusal(headers, path, defect, self._keys.scrub)

    def _check_host(self, headers: Headers) -> None:
        """Check the name by which the service was called.

        Raises:
            ProblemError: the name is neither an address nor a known name.
        """
        stated = headers.get("host", "")
        name = host_name(stated)
        hosts = {"localhost", self._settings.host, *self._settings.hosts}
        if name is None or not (is_address(name) or name in {host.lower() for host in hosts}):
            raise ProblemError(
                421,
                f"host {stated[:100]!r} is not allowed; use the service's address, or add the "
                "name to `hosts` in the server's configuration",
            )


def _for_headers_only(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Wrap the ends of a HEAD request: the caller seems to leave once it has the headers."""
    complete = False

    async def receive_or_leave() -> Message:
        return {"type": "http.disconnect"} if complete else await receive()

    async def head(message: Message) -> None:
        nonlocal complete
        if message["type"] == "http.response.start":
            complete = True
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return receive_or_leave, head


class _Body:
    """The body of a request, within its limits of size and time."""

    def __init__(self, receive: Receive, headers: Headers, largest: int) -> None:
        self._receive, self._largest = receive, largest
        self._size, self._whole, self._began = 0, False, time.monotonic()
        if "transfer-encoding" in headers and "content-length" in headers:
            two = "the request has both Content-Length and Transfer-Encoding; send one of them"
            raise ProblemError(400, two, _CLOSE)
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
        remaining = self._began + _BODY_SECONDS + self._size / _BODY_PACE - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), remaining)
        except TimeoutError:
            late = "the rest of the request did not arrive in time; send it again"
            raise ProblemError(408, late, _CLOSE) from None
        self._size += len(message.get("body", b""))
        if self._size > self._largest:
            raise self._too_large()
        self._whole = not message.get("more_body", False)
        return message

    def _too_large(self) -> ProblemError:
        more = f"the request has more than {self._largest:,} bytes, this server's limit; send less"
        return ProblemError(413, more, _CLOSE)


def host_name(stated: str) -> str | None:
    """Return the name or address in a `Host` header, in lower case; None if it is invalid.

    Examples:
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
    """Return whether a name is an IP address, which DNS cannot redirect."""
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


_PAIR = re.compile(r'\s*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*(;|,|$)')


class Proxied:
    """Passes requests on as they were before a trusted proxy; without a slash at the path's end.

    Args:
        app: the application.
        settings: the service's settings.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._settings = app, settings
        self._trusted = [ipaddress.ip_network(place, strict=False) for place in settings.proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "headers": list(scope["headers"])}
        if self._settings.https:
            scope["scheme"] = "https"
        root = self._settings.path
        peer = scope["client"][0] if scope["client"] else ""
        if self._is_trusted(peer):
            root = self._before_proxy(scope, peer) or root
        path = scope["path"]
        if root and (path == root or path.startswith(f"{root}/")):
            path = path[len(root) :]
        scope["path"] = path.rstrip("/") or "/"
        token = ROOT.set(root)
        try:
            await self._app(scope, receive, send)
        finally:
            ROOT.reset(token)

    def _before_proxy(self, scope: Scope, peer: str) -> str:
        """Put the client's address, scheme and host in place; return the path's prefix."""
        headers = MutableHeaders(scope=scope)
        names = ("for", "proto", "host", "prefix")
        stated = {name: headers.getlist(f"x-forwarded-{name}") for name in names}
        hops = {
            name: [value.strip() for value in ",".join(lines).split(",") if value.strip()]
            for name, lines in stated.items()
        }
        if "forwarded" in headers and "x-forwarded-for" not in headers:
            elements = _elements(",".join(headers.getlist("forwarded")))
            hops |= {name: [hop.get(name, "") for hop in elements] for name in names[:3]}
        address, count = peer, 0
        while self._is_trusted(address) and count < len(hops["for"]):
            count += 1
            before = _address(hops["for"][-count])
            if before is None:
                break
            address = before
        scope["client"] = (address, 0)
        # What the first of the last `count` proxies says; empty if it says nothing.
        forwarded = {
            name: values[-min(max(count, 1), len(values))] if values else ""
            for name, values in hops.items()
        }
        if forwarded["proto"] in ("http", "https") and not self._settings.https:
            scope["scheme"] = forwarded["proto"]
        if forwarded["host"]:
            headers["host"] = forwarded["host"]
        prefix = forwarded["prefix"].rstrip("/")
        return prefix if re.fullmatch(PATH, prefix) else ""

    def _is_trusted(self, address: str) -> bool:
        place = _address(address)
        return place is not None and any(
            ipaddress.ip_address(place) in network for network in self._trusted
        )


def _elements(text: str) -> list[dict[str, str]]:
    r"""Return the elements of a `Forwarded` header, up to the first that is malformed.

    Examples:
        >>> _elements('for="[2001:db8::1]:80";proto=https, for=192.0.2.1')
        [{'for': '[2001:db8::1]:80', 'proto': 'https'}, {'for': '192.0.2.1'}]
    """
    elements: list[dict[str, str]] = [{}]
    position = 0
    while position < len(text) and (pair := _PAIR.match(text, position)):
        name, value, end = pair.groups()
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        elements[-1][name.lower()] = value
        if end == ",":
            elements.append({})
        position = pair.end()
    return elements


def _address(text: str) -> str | None:
    """Return an address without its port and brackets; None if it is none.

    Examples:
        >>> _address("192.0.2.1:80"), _address("[2001:db8::1]:80"), _address("unknown")
        ('192.0.2.1', '2001:db8::1', None)
    """
    match = re.fullmatch(r"\[([^\]]*)\](?::\d+)?|([^:]*):\d+|(.*)", text)
    stated = (match[1] or match[2] or match[3]) if match else ""
    try:
        place = ipaddress.ip_address(stated)
    except ValueError:
        return None
    mapped = place.ipv4_mapped if isinstance(place, ipaddress.IPv6Address) else None
    return str(mapped or place)


class Connection(H11Protocol):
    """A connection of uvicorn's with limits on waiting.

    Attributes:
        seconds: to wait for the headers of a request, from its first byte on.
        most: the number of connections above which those that wait are closed.
    """

    seconds = 10.0
    most = 800

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting_since = 0.0

    @property
    def waits(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait; close the connection that has waited longest if there are too many."""
        if TYPE_CHECKING:
            assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._limit()
        waiting = [peer for peer in self.connections if isinstance(peer, Connection)]
        if len(waiting) > self.most:
            waiting = [peer for peer in waiting if peer.waits]
            min(waiting, key=lambda peer: peer._waiting_since).transport.close()

    def data_received(self, data: bytes) -> None:
        """Go on with a request."""
        super().data_received(data)
        self._limit()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._limit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _limit(self) -> None:
        """Limit the wait for headers, unless a request is in progress or none has begun."""
        if not self.waits or self.timeout_keep_alive_task is not None:
            self._stop()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.seconds, self.transport.close)
        if self.waits:
            self._waiting_since = self._waiting_since or self.loop.time()
        else:
            self._waiting_since = 0.0

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
