"""Middleware that knows a request as a browser sent it to the proxy in front.

Only proxies that the operator names are believed: anyone can send their headers. `X-Forwarded-For`,
`-Proto`, `-Host` and `-Prefix` are read, or else `Forwarded` (RFC 7239).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_elicit.service.rendering import ROOT
from llm_elicit.service.settings import PATH, ServerSettings

_PAIR = re.compile(r'\s*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*(;|,|$)')


@dataclass(frozen=True)
class _Hops:
    """What proxies say of a request, each in a list with the last proxy's last."""

    client: list[str]
    proto: list[str]
    host: list[str]
    prefix: list[str]


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
        hops = _hops(headers)
        address, count = peer, 0
        while self._is_trusted(address) and count < len(hops.client):
            count += 1
            stated = _address(hops.client[-count])
            if stated is None:
                break
            address = stated
        scope["client"] = (address, 0)
        if _at(hops.proto, count) in ("http", "https") and not self._settings.https:
            scope["scheme"] = _at(hops.proto, count)
        if host := _at(hops.host, count):
            headers["host"] = host
        prefix = _at(hops.prefix, count).rstrip("/")
        return prefix if re.fullmatch(PATH, prefix) else ""

    def _is_trusted(self, address: str) -> bool:
        place = _address(address)
        return place is not None and any(
            ipaddress.ip_address(place) in network for network in self._trusted
        )


def _hops(headers: Headers) -> _Hops:
    if "x-forwarded-for" in headers or "forwarded" not in headers:
        names = ("for", "proto", "host", "prefix")
        return _Hops(*(_listed(headers, f"x-forwarded-{name}") for name in names))
    elements = _elements(",".join(headers.getlist("forwarded")))
    client, proto, host = (
        [element.get(name, "") for element in elements] for name in ("for", "proto", "host")
    )
    return _Hops(client, proto, host, _listed(headers, "x-forwarded-prefix"))


def _listed(headers: Headers, name: str) -> list[str]:
    values = ",".join(headers.getlist(name)).split(",")
    return [value.strip() for value in values if value.strip()]


def _at(values: list[str], count: int) -> str:
    """Return what the first of the last `count` proxies says; empty if it says nothing."""
    return values[-min(max(count, 1), len(values))] if values else ""


def _elements(text: str) -> list[dict[str, str]]:
    r"""Return the elements of a `Forwarded` header, up to the first that is malformed.

    Example:
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

    Example:
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
