"""The secrets of a service: its signing key and its tokens, in files that only its user can read.

Each is read from its environment variable, or else made once and kept in the service's folder with
mode 0600, so that links and sessions outlive a restart.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_elicit._util.write_files import unfinished
from llm_elicit.backends.base import scrubbed
from llm_elicit.errors import InputError

Scope = Literal["admin", "read"]
"""What a caller may do: everything, or only look."""

_VARIABLES = {
    "secret": "LLM_ELICIT_SECRET",
    "token": "LLM_ELICIT_TOKEN",
    "read-token": "LLM_ELICIT_READ_TOKEN",
}
_SHORTEST = 16


@dataclass(frozen=True)
class Keys:
    """The secrets of a service.

    Attributes:
        secret: signs links and sessions.
        tokens: the token of each scope; empty if none is required.
        kept: the file of the admin's token; None if it was not made here.
        others: secrets of the environment that must not leave either, such as providers' keys.
    """

    secret: str
    tokens: dict[Scope, str]
    kept: Path | None = None
    others: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path, *, needs_token: bool, variables: Iterable[str] = ()) -> Keys:
        """Read the secrets, or make those that do not exist.

        Args:
            folder: where they are kept.
            needs_token: whether requests need a token.
            variables: names of environment variables that hold other secrets.

        Raises:
            InputError: one is too short to be safe, or others can read its file.
        """
        stated = os.environ.get(_VARIABLES["token"])
        tokens: dict[Scope, str] = {}
        if needs_token or stated:
            tokens = {"admin": _read(folder, "token"), "read": _read(folder, "read-token")}
        named = {*variables, "PGPASSWORD", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
        others = [os.environ[name].strip() for name in sorted(named) if os.environ.get(name)]
        kept = folder / "token" if tokens and not stated else None
        return cls(_read(folder, "secret"), tokens, kept, tuple(others))

    def scope_of(self, token: str) -> Scope | None:
        """Return the scope of a token, compared in constant time; None if it is not one."""
        found: Scope | None = None
        for scope, own in self.tokens.items():
            if hmac.compare_digest(own.encode(), token.encode()):
                found = scope
        return found

    def scrub(self, text: str) -> str:
        """Return a text without any of the secrets, also if they are encoded."""
        for secret in (self.secret, *self.tokens.values(), *self.others):
            text = scrubbed(text, secret)
        return text


def _read(folder: Path, name: str) -> str:
    """Return a secret from its environment variable or its file, which is made if necessary."""
    variable = _VARIABLES[name]
    stated = os.environ.get(variable)
    if stated is None:
        return _kept(folder / name)
    if len(stated) < _SHORTEST or not stated.isascii() or not stated.isprintable():
        raise InputError(
            f"the environment variable {variable} holds {len(stated)} characters, where a secret "
            f"has at least {_SHORTEST} printable ones of ASCII; make one: openssl rand -hex 32"
        )
    return stated


def _kept(path: Path) -> str:
    """Return the secret in a file, which is made if it does not exist.

    Raises:
        InputError: it cannot be written, is empty, or others can read it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        if path.stat().st_mode & 0o077:
            raise InputError(f"{path}: others can read this secret; run: chmod 600 {path}")
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be used ({error}); check it") from None
    if len(secret) < _SHORTEST:
        raise InputError(f"{path}: holds no secret; remove it, and another is made")
    return secret


def _make(path: Path) -> None:
    """Write a new secret; if another process does so at the same time, theirs is kept."""
    beside = unfinished(path)
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, secrets.token_urlsafe(32).encode() + b"\n")
        os.fsync(file)
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        os.close(file)
        beside.unlink()
