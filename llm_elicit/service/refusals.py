"""Requests that are refused, as pages."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import HTMLResponse

from llm_elicit.service.problems import ProblemError, status_of
from llm_elicit.service.rendering import render

_HEADINGS = {404: "Not found", 429: "Too many attempts", 422: "This does not work"}


def failed(error: Exception, *, judging: bool = False) -> Response:
    """Return the page of a request that is refused.

    Args:
        error: why.
        judging: whether it is one of a person who judges.
    """
    status = error.status_code if isinstance(error, ProblemError) else status_of(error)
    heading = _HEADINGS.get(status, "This does not work")
    text = render("failed", heading=heading, message=sentence(error), judging=judging)
    return HTMLResponse(text, status)


def sentence(error: Exception) -> str:
    """Return an error's message as a sentence.

    Example:
        >>> sentence(ProblemError(404, "no campaign 'birds'"))
        "No campaign 'birds'."
    """
    text = error.detail if isinstance(error, ProblemError) else str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
