"""Checks of server addresses from campaigns and environment variables."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qs, urlsplit

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+(%\w+)?")
_SECRETS = ("password", "sslpassword")


def served(address: str) -> str:
    """Check the address of an HTTP server, and return it.

    Raises:
        ValueError: it is not one, or may hold a secret; the message does not repeat it.

    Examples:
        >>> served("http://localhost:8000/v1")
        'http://localhost:8000/v1'
        >>> served("localhost:8000/v1")
        Traceback (most recent call last):
        ...
        ValueError: must be an address http://HOST:PORT/PATH or https://HOST/PATH
    """
    parts = _parsed(address)
    if parts is None or parts.scheme not in ("http", "https") or not _has_host(parts):
        raise ValueError("must be an address http://HOST:PORT/PATH or https://HOST/PATH")
    if "@" in parts.netloc:
        raise ValueError(
            "holds a user or a password, which runs would write down; put the key in an "
            "environment variable and name that in api_key_env"
        )
    if parts.query or parts.fragment or address.endswith(("?", "#")):
        raise ValueError(
            "holds a query or a fragment, which is not sent and which runs would write down; put "
            "a key in an environment variable and name that in api_key_env"
        )
    return address


def database(address: str) -> str:
    """Check the address of a PostgreSQL database, and return it.

    Raises:
        ValueError: it is not one, or holds a password; the message does not repeat it.

    Examples:
        >>> database("postgresql://me@host.example/elicit")
        'postgresql://me@host.example/elicit'
    """
    parts = _parsed(address)
    if parts is None:
        raise ValueError("must be an address postgresql://USER@HOST:PORT/DATABASE")
    if parts.scheme != "postgresql":
        raise ValueError("must begin with postgresql://; leave it out for a file in the run")
    if parts.password is not None or any(name in parse_qs(parts.query) for name in _SECRETS):
        raise ValueError("holds a password, which runs write down; set PGPASSWORD instead")
    return address


def _parsed(address: str) -> SplitResult | None:
    """Return the parts of an address; None if it is invalid."""
    if not address.isprintable() or " " in address:
        return None
    try:
        parts = urlsplit(address)
        return None if parts.port == 0 else parts
    except ValueError:
        return None


def _has_host(parts: SplitResult) -> bool:
    """Return whether an address names a valid host."""
    host = parts.hostname or ""
    try:
        name = host if ":" in host else host.encode("idna").decode("ascii")
    except ValueError:
        return False
    return _HOST.fullmatch(name) is not None
