"""Sessions of browsers: two signed cookies, and the token that forms must repeat.

One cookie is of a browser that signed in; it holds the session's random id and its scope. The other
is of forms that are sent by nobody who signed in, such as the form to sign in itself. Showing such
a form therefore ends no session. Both are signed by a key that depends on the tokens, so that a new
token ends all sessions. Signing out ends a session on the server, too: a copy of its cookie is
worth nothing then.

The cookies are `HttpOnly` and `SameSite=Lax`: a link in a mail opens a page for whom is signed in,
and a form of another site sends no cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from llm_elicit.service.keys import Keys, Scope
from llm_elicit.service.own_files import opened
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.rendering import ROOT

FILE = "sessions.sqlite"

_TABLE = "CREATE TABLE IF NOT EXISTS ended (id TEXT PRIMARY KEY, until REAL NOT NULL)"
_SIGNED_IN, _FORMS, _CHANGED = "llm_elicit.session", "llm_elicit.forms", "llm_elicit.cookies"


@dataclass(frozen=True)
class Session:
    """A browser's session.

    Attributes:
        id: random.
        scope: what it may do; None for that of forms, which has not signed in.
    """

    id: str
    scope: Scope | None = None


class Sessions:
    """Reads and writes the cookies of sessions, and remembers which were ended.

    Several processes may use the same folder.

    Example:
        >>> import tempfile
        >>> keys = Keys("a secret of the service", {"admin": "a token of the service"})
        >>> sessions = Sessions(keys, Path(tempfile.mkdtemp()), seconds=60.0)
        >>> session = Session("some id", "admin")
        >>> sessions.end(session)
        >>> sessions.has_ended(session)
        True
    """

    def __init__(self, keys: Keys, folder: Path, seconds: float) -> None:
        tokens = "\n".join(keys.tokens.values())
        bound = hashlib.sha256(f"{keys.secret}\n{tokens}".encode()).hexdigest()
        self._secret = bound.encode()
        self._path = folder / FILE
        self._seconds = int(seconds)
        self._signer = URLSafeTimedSerializer(bound, salt="session")
        # Cookies are shared by all ports of a host, and so by all services of a machine.
        service = hashlib.sha256(bound.encode()).hexdigest()[:8]
        self._cookies = {
            _SIGNED_IN: f"llm_elicit_{service}",
            _FORMS: f"llm_elicit_forms_{service}",
        }

    def read(self, cookies: str) -> dict[str, Session]:
        """Return the sessions in a `Cookie` header, without those that are forged or expired."""
        values = cookie_parser(cookies)
        sessions = {}
        for kind, name in self._cookies.items():
            session = self._session(values.get(name, ""))
            if session is not None and (session.scope is None) == (kind == _FORMS):
                sessions[kind] = session
        return sessions

    def _session(self, cookie: str) -> Session | None:
        try:
            data = self._signer.loads(cookie, max_age=self._seconds)
            return Session(str(data["id"]), data["scope"])
        except (BadData, KeyError, TypeError):
            return None

    def header(self, kind: str, session: Session | None, *, secure: bool) -> str:
        """Return the `Set-Cookie` header of a kind of session; None removes it."""
        value = "" if session is None else self._signer.dumps(vars(session))
        age = 0 if session is None else self._seconds
        place = f"{self._cookies[kind]}={value}; Path={ROOT.get() or '/'}; Max-Age={age}"
        return f"{place}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"

    def end(self, session: Session) -> None:
        """End a session for good, for every copy of its cookie."""
        now = time.time()
        with opened(self._path, _TABLE) as db:
            db.execute("DELETE FROM ended WHERE until < ?", (now,))
            values = (session.id, now + self._seconds)
            db.execute("INSERT OR IGNORE INTO ended (id, until) VALUES (?, ?)", values)

    def has_ended(self, session: Session) -> bool:
        """Return whether a session was ended, here or by another service of the folder."""
        if not self._path.exists():
            return False
        with opened(self._path, _TABLE) as db:
            query = "SELECT 1 FROM ended WHERE id = ?"
            return db.execute(query, (session.id,)).fetchone() is not None

    def csrf(self, session: Session) -> str:
        """Return the token that a session's forms repeat."""
        message = f"csrf {session.id}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    def csrf_is(self, session: Session, token: str) -> bool:
        """Whether a form's token is that of its session, compared in constant time."""
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

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers, secure = MutableHeaders(scope=message), scope["scheme"] == "https"
                for kind in sorted(scope.get(_CHANGED, ())):
                    header = self._sessions.header(kind, scope[kind], secure=secure)
                    headers.append("set-cookie", header)
            await send(message)

        await self._app(scope, receive, answer)


def session_of(request: Request) -> Session | None:
    """Return the session of a browser that signed in; None without one.

    Whether it was ended meanwhile is known to `Sessions.has_ended`.
    """
    session: Session | None = request.scope.get(_SIGNED_IN)
    return session


def form_session_of(request: Request) -> Session | None:
    """Return the session of forms of who has not signed in; None without one."""
    session: Session | None = request.scope.get(_FORMS)
    return session


def form_session(request: Request) -> Session:
    """Return the session of forms of who has not signed in, which is begun if necessary."""
    return form_session_of(request) or _begun(request, _FORMS, None)


def sign_in(request: Request, scope: Scope) -> Session:
    """Begin a session of a scope, with a new id, and set its cookie with the response."""
    return _begun(request, _SIGNED_IN, scope)


def forget(request: Request) -> None:
    """Remove the cookie of a browser that signed in with the response."""
    _changed(request, _SIGNED_IN, None)


def _begun(request: Request, kind: str, scope: Scope | None) -> Session:
    session = Session(secrets.token_urlsafe(16), scope)
    _changed(request, kind, session)
    return session


def _changed(request: Request, kind: str, session: Session | None) -> None:
    request.scope[kind] = session
    request.scope.setdefault(_CHANGED, set()).add(kind)


_MOST_ADDRESSES = 10_000


class Attempts:
    """The wrong tokens of the last minute, by address.

    They slow down who sends them, and nobody else: who sends a right token from the same address,
    such as through the same proxy, is not asked for it. Tokens are too long to be guessed at any
    pace; the limit keeps those who try from filling the log.

    Args:
        most: how many an address may send in that time.
        seconds: the time.
        clock: returns the time in seconds.

    Example:
        >>> attempts = Attempts(most=1)
        >>> for _ in range(2):
        ...     try:
        ...         attempts.refuse("192.0.2.1", ProblemError(401, "the token is wrong"))
        ...     except ProblemError as error:
        ...         print(error.status_code)
        401
        429
    """

    def __init__(
        self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def refuse(self, address: str, error: Exception) -> NoReturn:
        """Count a wrong token and raise its error.

        Raises:
            ProblemError: too many were sent from there; the caller has to wait.
        """
        now, place = self._clock(), _network(address)
        wrong = self._wrong.setdefault(place, deque())
        while wrong and wrong[0] <= now - self._seconds:
            wrong.popleft()
        if len(wrong) >= self._most:
            wait = int(wrong[0] + self._seconds - now) + 1
            raise ProblemError(
                429, f"too many wrong tokens; try again in {wait} s", {"retry-after": str(wait)}
            )
        wrong.append(now)
        self._wrong.move_to_end(place)
        if len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)
        raise error


def _network(address: str) -> str:
    """Return an address without the part that its owner chooses: the last half of IPv6.

    Example:
        >>> _network("192.0.2.1"), _network("::ffff:192.0.2.1"), _network("2001:db8::5:1")
        ('192.0.2.1', '192.0.2.1', '2001:db8::/64')
    """
    try:
        place = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(place, ipaddress.IPv4Address):
        return address
    if place.ipv4_mapped is not None:
        return str(place.ipv4_mapped)
    return str(ipaddress.ip_network((place, 64), strict=False))
