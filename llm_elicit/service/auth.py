"""Secrets, browser sessions and personal links of a service, and the record of who did what.

The signing key and the tokens are read from environment variables. Without these, they are created
once and stored in the service's folder with mode 0600, so that links and sessions survive a
restart. Ended sessions, links and actions are stored in small SQLite files there, which several
services may share.

A session is a signed cookie with a random id and a scope. A browser that has signed in has one.
Forms that are sent without signing in, such as the sign-in form itself, use a second cookie without
a scope, so that showing such a form does not end a session. Both are signed with a key that depends
on the tokens, so a new token ends all sessions. Signing out also ends the session on the server, so
that copies of its cookie become useless. Cookies are `HttpOnly` and `SameSite=Lax`: links in a mail
work in a browser that is signed in, but a form on another site sends no cookie.

The token of a personal link is the signed id of a row of `links.sqlite`, which holds the person and
the expiry. The token itself is not stored, so reading the file gives no access.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from itsdangerous import BadData, URLSafeSerializer, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from llm_elicit._util.files import unfinished
from llm_elicit.backends.base import scrub_secrets
from llm_elicit.errors import InputError
from llm_elicit.service.responses import ROOT, ProblemError
from llm_elicit.service.schemas import Link

Scope = Literal["admin", "read"]
"""What a caller may do: everything, or only read."""

_VARIABLES = {
    "secret": "LLM_ELICIT_SECRET",
    "token": "LLM_ELICIT_TOKEN",
    "read-token": "LLM_ELICIT_READ_TOKEN",
}
_MIN_LENGTH = 16
"""Smallest number of characters of a secret."""

SESSIONS_FILE = "sessions.sqlite"
_ENDED_TABLE = "CREATE TABLE IF NOT EXISTS ended (id TEXT PRIMARY KEY, until REAL NOT NULL)"

_SIGNED_IN, FORMS, _CHANGED = "llm_elicit.session", "llm_elicit.forms", "llm_elicit.cookies"
"""Keys of a request's scope: its two sessions, and the set of those whose cookie has changed."""

_MAX_ADDRESSES = 10_000
"""Number of addresses whose wrong tokens are counted."""

LINKS_FILE = "links.sqlite"

_MINUTE, _DAY = 60.0, 86_400.0

_LINKS_TABLE = """
CREATE TABLE IF NOT EXISTS links (
    id TEXT PRIMARY KEY,
    campaign TEXT NOT NULL,
    judge TEXT NOT NULL,
    expert TEXT NOT NULL,
    issued REAL NOT NULL,
    expires REAL NOT NULL,
    revoked REAL
)
"""


@dataclass(frozen=True)
class Keys:
    """The secrets of a service.

    Attributes:
        secret: signs links and sessions.
        tokens: the token of each scope; empty if none is required.
        admins: the tokens of named administrators, by name.
        token_file: the file of the admin's token; None if the token is not from a file.
        others: further secrets that must not be disclosed, such as providers' keys.
    """

    secret: str
    tokens: dict[Scope, str]
    admins: dict[str, str] = field(default_factory=dict)
    token_file: Path | None = None
    others: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        needs_token: bool,
        admins: Iterable[str] = (),
        variables: Iterable[str] = (),
    ) -> Keys:
        """Read the secrets, and create those that do not exist.

        Args:
            folder: the folder of the secrets.
            needs_token: whether requests need a token.
            admins: the names of administrators who have tokens of their own.
            variables: names of environment variables that hold other secrets.

        Raises:
            InputError: one is too short to be safe, or others can read its file.
        """
        value = os.environ.get(_VARIABLES["token"])
        tokens: dict[Scope, str] = {}
        if needs_token or value:
            tokens = {
                "admin": _read_secret(folder, "token"),
                "read": _read_secret(folder, "read-token"),
            }
        named = {*variables, "PGPASSWORD", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
        others = [os.environ[name].strip() for name in sorted(named) if os.environ.get(name)]
        token_file = folder / "token" if tokens and not value else None
        named_tokens = {name: _secret_in(folder / f"token-{name}") for name in admins}
        secret = _read_secret(folder, "secret")
        return cls(secret, tokens, named_tokens, token_file, tuple(others))

    def holder_of(self, token: str) -> tuple[Scope, str] | None:
        """Return the scope and the name of a token's holder; None for a wrong token.

        The name is that of an administrator, or empty. Tokens are compared in constant time.
        """
        holder: tuple[Scope, str] | None = None
        holders = [(scope, "", valid) for scope, valid in self.tokens.items()]
        holders += [("admin", name, valid) for name, valid in self.admins.items()]
        for scope, name, valid in holders:
            if hmac.compare_digest(valid.encode(), token.encode()):
                holder = scope, name
        return holder

    def scrub(self, text: str) -> str:
        """Return a text without the secrets, whether they are encoded or not."""
        for secret in (self.secret, *self.tokens.values(), *self.admins.values(), *self.others):
            text = scrub_secrets(text, secret)
        return text


def _read_secret(folder: Path, name: str) -> str:
    """Return a secret from its environment variable or its file, created if necessary."""
    variable = _VARIABLES[name]
    value = os.environ.get(variable)
    if value is None:
        return _secret_in(folder / name)
    if len(value) < _MIN_LENGTH or not value.isascii() or not value.isprintable():
        raise InputError(
            f"the environment variable {variable} holds {len(value)} characters; a secret needs "
            f"at least {_MIN_LENGTH} printable ASCII characters; create one: openssl rand -hex 32"
        )
    return value


def _secret_in(path: Path) -> str:
    """Return the secret in a file, which is created if it does not exist.

    Raises:
        InputError: it cannot be written, is empty, or others can read it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():  # unless another process writes one at the same time
            temporary = unfinished(path)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(file, secrets.token_urlsafe(32).encode() + b"\n")
                os.fsync(file)
                with suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                os.close(file)
                temporary.unlink()
        if path.stat().st_mode & 0o077:
            raise InputError(f"{path}: others can read this secret; run: chmod 600 {path}")
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be used ({error}); check it") from None
    if len(secret) < _MIN_LENGTH:
        raise InputError(f"{path}: holds no secret; delete it, and a new one is created")
    return secret


@contextmanager
def open_table(path: Path, table: str) -> Iterator[sqlite3.Connection]:
    """Open an SQLite file for one transaction.

    Args:
        path: the file; its folder is created if necessary, readable by its owner only.
        table: the statement that creates its table if it does not exist.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=10.0)
    try:
        with db:
            db.execute(table)
            yield db
    finally:
        db.close()


@dataclass(frozen=True)
class Session:
    """A browser's session.

    Attributes:
        id: a random id.
        scope: what the browser may do; None for a session of forms, without signing in.
        name: the administrator's name; empty without one.
    """

    id: str
    scope: Scope | None = None
    name: str = ""


class Sessions:
    """Reads and writes the cookies of sessions, and remembers which were ended.

    Several processes may use the same folder.

    Examples:
        >>> import tempfile
        >>> keys = Keys("a secret of the service", {"admin": "a token of the service"})
        >>> sessions = Sessions(keys, Path(tempfile.mkdtemp()), seconds=60.0)
        >>> session = Session("some id", "admin")
        >>> sessions.end(session)
        >>> sessions.has_ended(session)
        True
    """

    def __init__(self, keys: Keys, folder: Path, seconds: float) -> None:
        tokens = "\n".join([*keys.tokens.values(), *keys.admins.values()])
        key = hashlib.sha256(f"{keys.secret}\n{tokens}".encode()).hexdigest()
        self._secret = key.encode()
        self._path = folder / SESSIONS_FILE
        self._seconds = int(seconds)
        self._signer = URLSafeTimedSerializer(key, salt="session")
        # Cookies are shared by all ports of a host, and so by all services of a machine.
        service = hashlib.sha256(key.encode()).hexdigest()[:8]
        self._cookies = {_SIGNED_IN: f"llm_elicit_{service}", FORMS: f"llm_elicit_forms_{service}"}
        self.cookie = self._cookies[_SIGNED_IN]

    def read(self, cookies: str) -> dict[str, Session]:
        """Return the valid sessions of a `Cookie` header; forged and expired ones are left out."""
        values = cookie_parser(cookies)
        sessions = {}
        for kind, name in self._cookies.items():
            with suppress(BadData, TypeError):
                data = self._signer.loads(values.get(name, ""), max_age=self._seconds)
                session = Session(**data)  # as `header` signed it
                if (session.scope is None) == (kind == FORMS):
                    sessions[kind] = session
        return sessions

    def header(self, kind: str, session: Session | None, *, secure: bool) -> str:
        """Return the `Set-Cookie` header of a kind of session; None removes it."""
        value = "" if session is None else self._signer.dumps(vars(session))
        age = 0 if session is None else self._seconds
        cookie = f"{self._cookies[kind]}={value}; Path={ROOT.get() or '/'}; Max-Age={age}"
        return f"{cookie}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"

    def end(self, session: Session) -> None:
        """End a session for good, for every copy of its cookie."""
        ended_at = time.time()
        with open_table(self._path, _ENDED_TABLE) as db:
            db.execute("DELETE FROM ended WHERE until < ?", (ended_at,))
            values = (session.id, ended_at + self._seconds)
            db.execute("INSERT OR IGNORE INTO ended (id, until) VALUES (?, ?)", values)

    def has_ended(self, session: Session) -> bool:
        """Return whether a session was ended, by this or another service of the folder."""
        if not self._path.exists():
            return False
        with open_table(self._path, _ENDED_TABLE) as db:
            query = "SELECT 1 FROM ended WHERE id = ?"
            return db.execute(query, (session.id,)).fetchone() is not None

    def csrf(self, session: Session) -> str:
        """Return the CSRF token of a session, which its forms repeat."""
        message = f"csrf {session.id}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    def csrf_is(self, session: Session, token: str) -> bool:
        """Return whether a token is the CSRF token of a session, compared in constant time."""
        return hmac.compare_digest(self.csrf(session).encode(), token.encode())


class SessionCookies:
    """Middleware that reads a request's sessions and sets the cookies of those that changed."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app, self._sessions = app, sessions

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.update(self._sessions.read(Headers(scope=scope).get("cookie", "")))

        async def send_with_cookies(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers, secure = MutableHeaders(scope=message), scope["scheme"] == "https"
                for kind in sorted(scope.get(_CHANGED, ())):
                    header = self._sessions.header(kind, scope[kind], secure=secure)
                    headers.append("set-cookie", header)
            await send(message)

        await self._app(scope, receive, send_with_cookies)


def session_of(request: Request, kind: str = _SIGNED_IN) -> Session | None:
    """Return the session of a browser that signed in, or of its forms; None without one.

    It may have ended since; see `Sessions.has_ended`.
    """
    session: Session | None = request.scope.get(kind)
    return session


def begin_session(request: Request, scope: Scope | None, name: str = "") -> Session:
    """Return a new session, one of forms without a scope; the response sets its cookie."""
    session = Session(secrets.token_urlsafe(16), scope, name)
    _set_session(request, FORMS if scope is None else _SIGNED_IN, session)
    return session


def forget(request: Request) -> None:
    """Have the response remove the cookie of a browser that signed in."""
    _set_session(request, _SIGNED_IN, None)


def _set_session(request: Request, kind: str, session: Session | None) -> None:
    request.scope[kind] = session
    request.scope.setdefault(_CHANGED, set()).add(kind)


class LoginThrottle:
    """Limits the wrong tokens that an address may send within a minute.

    A right token is always accepted, even from an address that has reached the limit, such as that
    of a shared proxy. Tokens are too long to be guessed at any rate; the limit keeps attempts from
    filling the log.

    Args:
        max_attempts: the number of wrong tokens that an address may send within a minute.

    Examples:
        >>> attempts = LoginThrottle(max_attempts=1)
        >>> for _ in range(2):
        ...     try:
        ...         attempts.raise_after_count("192.0.2.1", ProblemError(401, "the token is wrong"))
        ...     except ProblemError as error:
        ...         print(error.status_code)
        401
        429
    """

    def __init__(self, max_attempts: int = 10) -> None:
        self._max_attempts = max_attempts
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def raise_after_count(self, address: str, error: Exception) -> NoReturn:
        """Count a wrong token and raise its error.

        Raises:
            ProblemError: the address has sent too many, and has to wait.
        """
        moment, network = time.monotonic(), _network(address)
        attempts = self._wrong.setdefault(network, deque())
        while attempts and attempts[0] <= moment - _MINUTE:
            attempts.popleft()
        if len(attempts) >= self._max_attempts:
            wait = int(attempts[0] + _MINUTE - moment) + 1
            raise ProblemError(
                429, f"too many wrong tokens; try again in {wait} s", {"retry-after": str(wait)}
            )
        attempts.append(moment)
        self._wrong.move_to_end(network)
        if len(self._wrong) > _MAX_ADDRESSES:
            self._wrong.popitem(last=False)
        raise error


def _network(address: str) -> str:
    """Return an address; of IPv6 only the network, since its owner chooses the second half.

    Examples:
        >>> _network("192.0.2.1"), _network("::ffff:192.0.2.1"), _network("2001:db8::5:1")
        ('192.0.2.1', '192.0.2.1', '2001:db8::/64')
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))


class LinkError(InputError):
    """A link cannot be used: it has expired or was revoked."""


class ForgedLinkError(LinkError):
    """A link is not one of this service."""


class Links:
    """The links of a service; several processes may use the same folder.

    Examples:
        >>> import tempfile
        >>> links = Links(Path(tempfile.mkdtemp()), "a secret of the service")
        >>> link, token = links.issue("birds", "panel", "ada")
        >>> links.verify(token).expert
        'ada'
        >>> links.revoke("birds", link.id)
        'ada'
        >>> links.verify(token)
        Traceback (most recent call last):
        ...
        llm_elicit.service.auth.LinkError: this link was withdrawn; ask for another
    """

    def __init__(self, folder: Path, secret: str) -> None:
        self._open = partial(open_table, folder / LINKS_FILE, _LINKS_TABLE)
        self._secret = secret.encode()
        self._signer = URLSafeSerializer(secret, salt="judge-link")

    def issue(self, campaign: str, judge: str, expert: str, days: float = 30.0) -> tuple[Link, str]:
        """Return a new link and its token, which cannot be shown again."""
        issued = time.time()
        link_id, expires = secrets.token_urlsafe(12), issued + days * _DAY
        link = Link(link_id, campaign, judge, expert, issued, expires)
        with self._open() as db:
            db.execute("INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(link))
        return link, str(self._signer.dumps(link.id))

    def verify(self, token: str) -> Link:
        """Return the link of a token.

        Raises:
            ForgedLinkError: the token is not one of this service.
            LinkError: the link has expired or was revoked.
        """
        try:
            link_id = str(self._signer.loads(token))
        except BadData:
            link_id = ""  # that of no link
        with self._open() as db:
            row = db.execute("SELECT * FROM links WHERE id = ?", (link_id,)).fetchone()
        if row is None:
            raise ForgedLinkError("this link does not belong to this service; ask for another")
        link = Link(*row)
        if link.revoked is not None:
            raise LinkError("this link was withdrawn; ask for another")
        if link.expires <= time.time():
            raise LinkError("this link has expired; ask for another")
        return link

    def csrf(self, link: Link) -> str:
        """Return the CSRF token of the forms under a link, which works without a cookie."""
        return hmac.new(self._secret, f"link {link.id}".encode(), hashlib.sha256).hexdigest()

    def list(self, campaign: str) -> list[Link]:
        """Return the links of a campaign in the order in which they were issued."""
        query = "SELECT * FROM links WHERE campaign = ? ORDER BY issued"
        with self._open() as db:
            return [Link(*row) for row in db.execute(query, (campaign,))]

    def revoke(self, campaign: str, link: str) -> str:
        """Revoke a link of a campaign, at once and for good, and return its expert.

        Raises:
            ProblemError: no link has that id.
        """
        revoke = "UPDATE links SET revoked = coalesce(revoked, ?) WHERE id = ? AND campaign = ?"
        with self._open() as db:
            row = db.execute(f"{revoke} RETURNING expert", (time.time(), link, campaign)).fetchone()
        if row is None:
            raise ProblemError(404, f"no link {link!r}; list the campaign's links")
        return str(row[0])

    def revoke_all(self, campaign: str, judge: str, expert: str) -> None:
        """Revoke all links of an expert who is removed."""
        own = "campaign = ? AND judge = ? AND expert = ? AND revoked IS NULL"
        values = (time.time(), campaign, judge, expert)
        with self._open() as db:
            db.execute(f"UPDATE links SET revoked = ? WHERE {own}", values)

    def forget(self, campaign: str) -> None:
        """Remove the links of a campaign that is deleted."""
        with self._open() as db:
            db.execute("DELETE FROM links WHERE campaign = ?", (campaign,))


@dataclass(frozen=True)
class Action:
    """What someone has done.

    Attributes:
        at: seconds since 1970.
        who: an administrator's name, "administrator" for the service's own token, or "this
            machine" if no token is required.
        campaign: the campaign; empty without one.
        what: what was done, such as "pause".
    """

    at: float
    who: str
    campaign: str
    what: str


_ACTIONS_TABLE = """
CREATE TABLE IF NOT EXISTS actions (
    at REAL NOT NULL, who TEXT NOT NULL, campaign TEXT NOT NULL, what TEXT NOT NULL
)
"""


class ActionLog:
    """The record of who did what; several processes may use the same folder.

    Examples:
        >>> import tempfile
        >>> log = ActionLog(Path(tempfile.mkdtemp()))
        >>> log.add(Action(0.0, "anna", "birds", "pause"))
        >>> log.read("birds")[0].who
        'anna'
    """

    def __init__(self, folder: Path) -> None:
        self._open = partial(open_table, folder / "actions.sqlite", _ACTIONS_TABLE)

    def add(self, action: Action) -> None:
        """Record what someone has done."""
        with self._open() as db:
            db.execute("INSERT INTO actions VALUES (?, ?, ?, ?)", astuple(action))

    def read(self, campaign: str = "", limit: int = 100, offset: int = 0) -> list[Action]:
        """Return what was done last, to a campaign or to any, the last first."""
        chosen, values = ("WHERE campaign = ?", [campaign]) if campaign else ("", [])
        query = f"SELECT * FROM actions {chosen} ORDER BY rowid DESC LIMIT ? OFFSET ?"
        with self._open() as db:
            return [Action(*row) for row in db.execute(query, [*values, limit, offset])]
