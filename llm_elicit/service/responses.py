"""What the service answers: pages from templates, errors as pages or as problems (RFC 9457).

Everything that a template is given is escaped. The style is that of the report, whose style sheet
comes first. A campaign's page is written as one static file, too. Errors have the messages of the
command line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from llm_elicit._util.text import visible
from llm_elicit.errors import ConflictError, ElicitError, InputError
from llm_elicit.pipeline.snapshot import JudgeSnapshot, LiveInterval, LiveView, RunSnapshot

logger = logging.getLogger("llm_elicit.service")

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """An error: its kind, its HTTP status, and what to do in one line."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ProblemError(HTTPException):
    """A request is refused."""


_TITLES = {
    400: "Bad request", 401: "Not signed in", 403: "Forbidden", 404: "Not found",
    405: "Method not allowed", 408: "Request timeout", 409: "Conflict", 410: "Gone",
    413: "Content too large", 415: "Unsupported media type", 421: "Misdirected request",
    422: "Cannot be used", 429: "Too many requests", 500: "Internal error",
    503: "Service unavailable",
}  # fmt: skip


def status_of(error: Exception) -> int:
    """Return the HTTP status of a refused request, or of an error of this package.

    Examples:
        >>> status_of(InputError("no such judge")), status_of(ConflictError("the run has ended"))
        (422, 409)
    """
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, InputError) and not isinstance(error, ConflictError):
        return 422
    return 409 if isinstance(error, ElicitError) else 500


def check_parameters(request: Request) -> None:
    """Check that the API knows the parameters of a request's address; a page may have others.

    Raises:
        ProblemError: a parameter is unknown; it would have no effect.
    """
    if not request.url.path.startswith("/api/"):
        return
    dependant = request.scope["route"].dependant
    parts = (dependant, *dependant.dependencies)
    names = [field.alias for part in parts for field in part.query_params]
    for name in request.query_params:
        if name not in names:
            raise ProblemError(422, _unknown(f"query.{visible(name, 100)}", "parameter", names))


def _unknown(location: str, kind: str, names: Iterable[str]) -> str:
    return f"{location}: unknown {kind}; known: {', '.join(names) or 'none'}"


def first_error(findings: Any, request: Request) -> str:
    """Return the first broken rule of a request in one line, and how many more there are."""
    first = findings[0]
    location = visible(".".join(str(part) for part in first["loc"]), 200) or "request"
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    if first["type"] == "extra_forbidden":
        model = request.scope["route"].body_field.field_info.annotation
        return _unknown(location, "key", model.model_fields) + more
    value = first.get("input")
    suffix = f", got {visible(repr(value), 100)}" if isinstance(value, str | int | float) else ""
    return f"{location}: {first['msg'].removeprefix('Value error, ')}{suffix}{more}"


STATIC = Path(__file__).parent / "static"
"""The folder of the style sheet and the scripts."""

ROOT: ContextVar[str] = ContextVar("ROOT", default="")
"""The path below which the browser of the present request reaches the service."""

_TEMPLATES = Path(__file__).parent / "templates"
_REPORT_STYLE = Path(__file__).parents[1] / "report" / "templates" / "style.css"

_HEADINGS = {
    401: "You are not signed in",
    403: "Not allowed",
    404: "Not found",
    429: "Too many attempts",
}

_MAX_MESSAGE = 4000
"""Largest number of characters of a message."""

_API_PREFIXES = ("/api/", "/health", "/metrics")
"""Prefixes of the paths that are not pages."""


def render(template: str, **context: Any) -> str:
    """Return a page, or a part of one."""
    page = _environment().get_template(f"{template}.html.jinja")
    return page.render(root=ROOT.get(), **context)


@cache
def stylesheet() -> str:
    """Return the style sheet of all pages."""
    return "\n".join(path.read_text("utf-8") for path in (_REPORT_STYLE, STATIC / "pages.css"))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (count, usd, percent, interval, when, time_left)
    environment.filters.update({function.__name__: function for function in filters})
    return environment


def count(number: float) -> str:
    """Return a whole number with its thousands apart.

    Examples:
        >>> count(12345)
        '12,345'
    """
    return f"{number:,.0f}"


def usd(cost: float | None) -> str:
    """Return a cost in USD.

    Examples:
        >>> usd(1.5), usd(0.0), usd(0.000042), usd(None)
        ('1.50 USD', '0 USD', '0.000042 USD', 'unknown')
    """
    if cost is None:
        return "unknown"
    if not cost:
        return "0 USD"
    return f"{cost:,.2f} USD" if cost >= 0.1 else f"{Decimal(f'{cost:.2g}'):f} USD"


def percent(share: float) -> str:
    """Return a share as a percentage.

    Examples:
        >>> percent(0.126)
        '13%'
    """
    return f"{share:.0%}"


def interval(share: LiveInterval, signed: bool = False) -> str:
    """Return an estimate of a share with its interval, as percentages.

    Examples:
        >>> interval(LiveInterval(value=0.1, low=-0.05, high=0.2), signed=True)
        '+10% (−5% to +20%)'
        >>> interval(LiveInterval(value=-0.001, low=-0.05, high=0.2), signed=True)
        '+0% (−5% to +20%)'
    """
    form = "+z.0%" if signed else "z.0%"  # z: −0 is 0
    middle, low, high = (
        format(value, form).replace("-", "−") for value in (share.value, share.low, share.high)
    )
    return f"{middle} ({low} to {high})"


def when(stated: float | str) -> str:
    """Return a time, in seconds since 1970 or as ISO 8601, in words.

    Examples:
        >>> when(0.0), when("2026-11-25T13:05:07+00:00")
        ('1 January 1970, 00:00 UTC', '25 November 2026, 13:05 UTC')
    """
    if isinstance(stated, str):
        at = datetime.fromisoformat(stated)
    else:
        at = datetime.fromtimestamp(stated, UTC)
    return f"{at.day} {at:%B %Y, %H:%M} UTC"


def time_left(snapshot: RunSnapshot | JudgeSnapshot) -> str:
    """Return how long the rest of the questions will take at the present pace; empty if unknown.

    Examples:
        >>> time_left(JudgeSnapshot(backend="simulated", model="", total=400, done=40, rate=2.0))
        'about 3 min left'
    """
    judges = snapshot.judges.values() if isinstance(snapshot, RunSnapshot) else [snapshot]
    counts = [(judge.total - judge.done - judge.failed, judge.rate) for judge in judges]
    waiting = [(remaining, rate) for remaining, rate in counts if remaining > 0]
    if not waiting or any(rate <= 0 for _, rate in waiting):
        return ""
    seconds = max(remaining / rate for remaining, rate in waiting)
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} s left"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.0f} h left"


def refusal(
    headers: Headers, path: str, error: HTTPException, scrub: Callable[[str], str], **context: Any
) -> Response:
    """Return the response to a refused request: a page for browsers, a problem for programs.

    Args:
        headers, path: headers and path of the request.
        error: the HTTP status, the reason, and headers of the answer.
        scrub: removes secrets from the text.
        context: further values for the page.
    """
    status, detail = error.status_code, visible(scrub(error.detail), _MAX_MESSAGE)
    if path.startswith(_API_PREFIXES) and "text/html" not in headers.get("accept", ""):
        body = Problem(title=_TITLES.get(status, "Error"), status=status, detail=detail)
        return JSONResponse(body.model_dump(), status, error.headers, MEDIA_TYPE)
    context |= {"heading": _HEADINGS.get(status, "The request failed")}
    context |= {"message": _sentence(detail), "judging": path.startswith("/judge/")}
    return HTMLResponse(render("failed", **context), status, error.headers)


def sentence(error: Exception) -> str:
    """Return an error's message as a sentence.

    Examples:
        >>> sentence(ProblemError(404, "no campaign 'birds'"))
        "No campaign 'birds'."
        >>> sentence(InputError("birds: the run is done"))  # which begins with a name
        'birds: the run is done.'
    """
    return _sentence(error.detail if isinstance(error, ProblemError) else str(error))


def _sentence(text: str) -> str:
    is_name = text.partition(" ")[0].endswith(":")
    return (text if is_name else text[:1].upper() + text[1:]) + ("" if text.endswith(".") else ".")


_ACTIONS: dict[str, tuple[str, ...]] = {
    "planned": ("pause", "cancel"),
    "running": ("pause", "cancel"),
    "pausing": ("resume", "cancel"),
    "paused": ("resume", "cancel"),
    "cancelling": (),
    "interrupted": ("start",),
    "cancelled": ("start",),
    "failed": ("start",),
    "done": (),
    "unreadable": (),
}
"""The actions that are possible with a run, by its state."""

STATE_WORDS = {
    "planned": "waiting for its turn",
    "running": "running",
    "pausing": "pausing: waiting for answers in flight",
    "paused": "paused",
    "cancelling": "stopping: waiting for answers in flight",
    "interrupted": "interrupted: its process has ended",
    "cancelled": "cancelled",
    "done": "done",
    "failed": "failed",
    "unreadable": "cannot be read",
}
"""The states of runs in words."""

VERDICT_WORDS = {
    "A": "A",
    "B": "B",
    "tie": "tie",
    "refusal": "refused",
    "truncated": "truncated",
    "unparsable": "unparsable",
    "text": "answer in words or numbers",
}
"""The verdicts on answers in words."""

_STAGES = {
    "plan": "planning the questions",
    "ask": "asking",
    "fit": "estimating beliefs",
    "audit": "comparing beliefs with the data",
    "report": "writing the report",
    "live": "drawing the beliefs",
}


def state_words(snapshot: RunSnapshot) -> str:
    """Return the state of a run in a few words."""
    if snapshot.state == "paused" and not snapshot.done:
        return "not started"
    if snapshot.state == "running":
        return _STAGES.get(snapshot.stage, snapshot.stage)
    return STATE_WORDS[snapshot.state]


def render_run(template: str, snapshot: RunSnapshot, live: LiveView | None, **more: Any) -> str:
    """Return a campaign's page, or one of its parts: "status", "controls" or "belief"."""
    state = {"words": state_words(snapshot), "actions": _ACTIONS[snapshot.state]}
    counts = {"done": snapshot.done, "total": snapshot.total}
    return render(template, run=snapshot, live=live, **state, **counts, **more)


def write_bundle(
    snapshot: RunSnapshot, live: LiveView | None, path: Path, title: str, about: str
) -> None:
    """Write a campaign's page as one file, which needs no server and no network.

    Args:
        snapshot: the state of the run.
        live: its beliefs.
        path: the file.
        title: title of the feature space.
        about: the campaign as YAML.
    """
    context = {"style": stylesheet(), "title": title, "about": about}
    text = render_run("bundle", snapshot, live, bundle=True, **context)
    path.write_text(text, encoding="utf-8")
