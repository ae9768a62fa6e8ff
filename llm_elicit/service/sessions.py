"""Sessions of browsers: a signed cookie, and the token that forms must repeat.

The cookie is `HttpOnly` and `SameSite=Strict`. It holds the session's random id and its scope; both
are signed, by a key that depends on the tokens, so that a new token ends all sessions. The rate of
wrong tokens is limited.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from llm_elicit.errors import InputError
from llm_elicit.service.keys import Keys, Scope
from llm_elicit.service.problems import ProblemError

_STATE = "llm_elicit.session"
_CHANGED = "llm_elicit.session_changed"


@dataclass(frozen=True)
class Session:
    """A browser's session.

    Attributes:
        id: random.
        scope: what it may do; None before it has signed in.
    """

    id: str
    scope: Scope | None = None


class Sessions:
    """Reads and writes the cookies of sessions."""

    def __init__(self, keys: Keys, seconds: float, *, https: bool) -> None:
        tokens = "\n".join(keys.tokens.values())
        bound = hashlib.sha256(f"{keys.secret}\n{tokens}".encode()).hexdigest()
        self._secret = bound.encode()
        self._seconds, self._https = int(seconds), https
        self._signer = URLSafeTimedSerializer(bound, salt="session")
        # Cookies are shared by all ports of a host, and so by all services of a machine.
        self.cookie = "llm_elicit_" + hashlib.sha256(bound.encode()).hexdigest()[:8]

    def read(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if it is forged or has expired."""
        try:
            found = self._signer.loads(cookie, max_age=self._seconds)
            return Session(str(found["id"]), found["scope"])
        except (BadData, KeyError, TypeError):
            return None

    def header(self, session: Session | None) -> str:
        """Return the `Set-Cookie` header of a session; None removes it."""
        value = "" if session is None else self._signer.dumps(vars(session))
        age = 0 if session is None else self._seconds
        secure = "; Secure" if self._https else ""
        return f"{self.cookie}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"

    def csrf(self, session: Session) -> str:
        """Return the token that a session's forms repeat."""
        said = f"csrf {session.id}".encode()
        return hmac.new(self._secret, said, hashlib.sha256).hexdigest()

    def csrf_is(self, session: Session, token: str) -> bool:
        """Whether a form's token is that of its session, compared in constant time."""
        return hmac.compare_digest(self.csrf(session).encode(), token.encode())


class SessionCookies:
    """Middleware that reads a request's session and sets the cookie of one that changed."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app, self._sessions = app, sessions

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_STATE] = self._read(Headers(scope=scope).get("cookie", ""))

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and scope.get(_CHANGED):
                header = self._sessions.header(scope[_STATE])
                MutableHeaders(scope=message).append("set-cookie", header)
            await send(message)

        await self._app(scope, receive, answer)

    def _read(self, cookies: str) -> Session | None:
        cookie = cookie_parser(cookies).get(self._sessions.cookie)
        return None if cookie is None else self._sessions.read(cookie)


def session_of(request: Request) -> Session | None:
    """Return the session of a request; None without one."""
    found: Session | None = request.scope.get(_STATE)
    return found


def started(request: Request) -> Session:
    """Return the session of a request; one that has not signed in is begun if necessary."""
    found = session_of(request)
    return _begun(request, None) if found is None else found


def sign_in(request: Request, scope: Scope) -> Session:
    """Begin a session of a scope, with a new id, and set its cookie with the response."""
    return _begun(request, scope)


def sign_out(request: Request) -> None:
    """Remove the session's cookie with the response."""
    request.scope[_STATE], request.scope[_CHANGED] = None, True


def _begun(request: Request, scope: Scope | None) -> Session:
    session = Session(secrets.token_urlsafe(16), scope)
    request.scope[_STATE], request.scope[_CHANGED] = session, True
    return session


_MOST_ADDRESSES = 10_000


class Attempts:
    """The wrong tokens of the last minute, by address.

    Args:
        most: how many an address may send in that time.
        seconds: the time.
        clock: returns the time in seconds.

    Example:
        >>> attempts = Attempts(most=1)
        >>> for _ in range(2):
        ...     try:
        ...         with attempts.of("192.0.2.1"):
        ...             raise ProblemError(401, "the token is wrong")
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

    @contextmanager
    def of(self, address: str) -> Iterator[None]:
        """Count an attempt inside if it fails.

        Raises:
            ProblemError: too many failed; the caller has to wait.
        """
        now = self._clock()
        wrong = self._wrong.get(address, deque())
        while wrong and wrong[0] <= now - self._seconds:
            wrong.popleft()
        if len(wrong) >= self._most:
            wait = int(wrong[0] + self._seconds - now) + 1
            raise ProblemError(
                429, f"too many wrong tokens; try again in {wait} s", {"retry-after": str(wait)}
            )
        try:
            yield
        except (ProblemError, InputError):
            self._wrong.setdefault(address, deque()).append(now)  # others may fail meanwhile
            self._wrong.move_to_end(address)
            if len(self._wrong) > _MOST_ADDRESSES:
                self._wrong.popitem(last=False)
            raise
