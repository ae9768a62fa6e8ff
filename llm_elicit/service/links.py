"""Personal links by which people judge: signed, expiring, and revocable.

A link's token names a row of `links.sqlite` in the service's folder, which says for whom it is and
until when. The token itself is kept nowhere, so that reading the file gives no access.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from itsdangerous import BadData, URLSafeSerializer

from llm_elicit.errors import InputError
from llm_elicit.service.own_files import opened
from llm_elicit.service.problems import ProblemError

FILE = "links.sqlite"

_DAY = 86_400.0
LONGEST_DAYS = 366.0
_TABLE = """
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
_COLUMNS = "id, campaign, judge, expert, issued, expires, revoked"


class LinkError(InputError):
    """A link cannot be used: it has expired or was revoked."""


class ForgedLinkError(LinkError):
    """A link is not one of this service."""


@dataclass(frozen=True)
class Link:
    """A personal link.

    Attributes:
        id: its number, by which it is revoked.
        campaign, judge, expert: whose answers it lets its holder give.
        issued, expires: seconds since 1970.
        revoked: when it was revoked; None if it was not.
    """

    id: str
    campaign: str
    judge: str
    expert: str
    issued: float
    expires: float
    revoked: float | None = None


class Links:
    """The links of a service; several processes may use the same folder.

    Example:
        >>> import tempfile
        >>> links = Links(Path(tempfile.mkdtemp()), "a secret of the service")
        >>> link, token = links.issue("birds", "panel", "ada")
        >>> links.verify(token).expert
        'ada'
        >>> links.revoke("birds", link.id)
        >>> links.verify(token)
        Traceback (most recent call last):
        ...
        llm_elicit.service.links.LinkError: this link was withdrawn; ask for another
    """

    def __init__(self, folder: Path, secret: str) -> None:
        self._path = folder / FILE
        self._secret = secret.encode()
        self._signer = URLSafeSerializer(secret, salt="judge-link")

    def issue(self, campaign: str, judge: str, expert: str, days: float = 30.0) -> tuple[Link, str]:
        """Return a new link and its token, which cannot be shown again.

        Raises:
            InputError: it would expire at once, or after more than a year.
        """
        if not 0.0 < days <= LONGEST_DAYS:
            raise InputError(f"days: {days:g} is not above 0 and at most {LONGEST_DAYS:g}")
        issued = time.time()
        link = Link(
            secrets.token_urlsafe(12), campaign, judge, expert, issued, issued + days * _DAY
        )
        with self._open() as db:
            row = (link.id, campaign, judge, expert, issued, link.expires, None)
            db.execute(f"INSERT INTO links ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return link, str(self._signer.dumps(link.id))

    def verify(self, token: str) -> Link:
        """Return the link of a token.

        Raises:
            ForgedLinkError: the token is not one of this service.
            LinkError: the link has expired or was revoked.
        """
        link = self._named(token)
        if link is None:
            raise ForgedLinkError("this link is not one of this service; ask for another")
        if link.revoked is not None:
            raise LinkError("this link was withdrawn; ask for another")
        if link.expires <= time.time():
            raise LinkError("this link has expired; ask for another")
        return link

    def csrf(self, link: Link) -> str:
        """Return the token that the forms under a link repeat; it needs no cookie."""
        return hmac.new(self._secret, f"link {link.id}".encode(), hashlib.sha256).hexdigest()

    def list(self, campaign: str | None = None) -> list[Link]:
        """Return the links of a campaign, or all, in the order in which they were issued."""
        chosen, values = ("", ()) if campaign is None else ("WHERE campaign = ?", (campaign,))
        with self._open() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM links {chosen} ORDER BY issued", values)
            return [Link(*row) for row in rows]

    def revoke(self, campaign: str, link: str) -> None:
        """Revoke a link of a campaign, at once and for good.

        Raises:
            ProblemError: there is none with that id.
        """
        revoke = "UPDATE links SET revoked = coalesce(revoked, ?) WHERE id = ? AND campaign = ?"
        with self._open() as db:
            found = db.execute(revoke, (time.time(), link, campaign))
            if not found.rowcount:
                raise ProblemError(404, f"no link {link!r}; list the campaign's links")

    def forget(self, campaign: str) -> None:
        """Remove the links of a campaign that is deleted."""
        with self._open() as db:
            db.execute("DELETE FROM links WHERE campaign = ?", (campaign,))

    def _named(self, token: str) -> Link | None:
        """Return the link that a token names; None if its signature is not the service's."""
        try:
            known = str(self._signer.loads(token))
        except BadData:
            return None
        with self._open() as db:
            query = f"SELECT {_COLUMNS} FROM links WHERE id = ?"
            row = db.execute(query, (known,)).fetchone()
        return None if row is None else Link(*row)

    def _open(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self._path, _TABLE)
