"""The pages of people who judge, under their personal links: one question at a time.

All state is on the server: an expert may stop at any time and go on with another device. The pages
work without JavaScript; with it, single keys answer, too.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.people import Choice, People
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service import security
from llm_elicit.service.catalog import Catalog, Runs
from llm_elicit.service.forms import Text
from llm_elicit.service.links import Link
from llm_elicit.service.problems import ProblemError, status_of
from llm_elicit.service.rendering import ROOT, render, sentence
from llm_elicit.service.state import service_of

router = APIRouter(prefix="/judge/{token}", include_in_schema=False)

P = ParamSpec("P")
T = TypeVar("T")

_CHOICES: dict[str, Choice] = {"a": "a", "b": "b", "equal": "equal", "cannot-say": "cannot say"}
_NUMBER = r"[0-9]{1,18}"
"""A number that a database can hold."""

_CONFIDENCE = {"guess": 0.0, "fairly": 0.5, "certain": 1.0}
_LONGEST = 24 * 3600.0
"""The most seconds that a page may state for an answer."""

_NOTES = {
    "undone": "Your last answer is undone; answer this question again.",
    "kept": "There is no answer that can be undone now.",
    "late": "That question had been given to someone else meanwhile; here is another.",
}


@dataclass(frozen=True)
class _Visit:
    """One expert at one run.

    Attributes:
        token: the link's token.
        csrf: what the forms under it repeat.
        link: says who answers.
        people: gives questions and keeps answers.
        run: what the run does.
        title: of the feature space.
    """

    token: str
    csrf: str
    link: Link
    people: People
    run: RunSnapshot
    title: str

    async def call(
        self, work: Callable[Concatenate[str, str, P], T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Return what a method of `People` returns for this expert; it runs in a thread."""
        call = partial(work, self.link.judge, self.link.expert, *args, **named)
        return await asyncio.to_thread(call)

    @property
    def asks(self) -> bool:
        """Whether the run takes answers now."""
        return self.run.state == "running" and self.run.stage in ("plan", "ask")

    @property
    def ended(self) -> bool:
        """Whether the run will ask nothing more."""
        return self.run.stage not in ("plan", "ask") or self.run.state in (
            "cancelling", "cancelled", "failed", "done",
        )  # fmt: skip

    async def page(self, template: str, status: int = 200, **more: Any) -> Response:
        """Return a page with the expert's progress."""
        progress = await self.call(self.people.progress)
        text = render(
            template,
            base=f"{ROOT.get()}/judge/{self.token}",
            expert=self.link.expert,
            title=self.title,
            progress=progress,
            csrf=self.csrf,
            **more,
        )
        return HTMLResponse(text, status)

    def to(self, note: str = "") -> Response:
        """Lead to the question that is next."""
        query = f"?note={note}" if note else ""
        return RedirectResponse(f"/judge/{self.token}/question{query}", 303)


@router.get("")
async def welcome(request: Request, token: str, runs: Runs) -> Response:
    """Return the first page: what is asked, how to answer, and how far the expert is."""
    visit = await _visit(request, token, runs)
    return await visit.page("judge_welcome", ended=visit.ended)


@router.get("/question")
async def question(
    request: Request, token: str, runs: Runs, note: Annotated[str, Query()] = ""
) -> Response:
    """Return the question that is next."""
    return await _question(await _visit(request, token, runs), _NOTES.get(note))


@router.post("/answer")
async def answer(
    request: Request,
    token: str,
    runs: Runs,
    card: Text = "",
    choice: Text = "",
    confidence: Text = "",
    seconds: Text = "",
) -> Response:
    """Keep an answer, and lead to the next question; one that is refused, to the present one."""
    visit = await _visit(request, token, runs)
    try:
        await security.check_judge(request, visit.link)
        if choice not in _CHOICES or not re.fullmatch(_NUMBER, card):
            raise ProblemError(422, "choose A, B, equal or cannot say")
        if visit.asks:
            await visit.call(
                visit.people.answer,
                int(card),
                _CHOICES[choice],
                confidence=_CONFIDENCE.get(confidence),
                seconds=_seconds(seconds),
            )
    except (ElicitError, ProblemError) as error:
        return await _question(visit, sentence(error), status_of(error))
    return visit.to()


@router.post("/undo")
async def undo(request: Request, token: str, runs: Runs) -> Response:
    """Undo the last answer, and lead to its question."""
    visit = await _visit(request, token, runs)
    try:
        await security.check_judge(request, visit.link)
        card = await visit.call(visit.people.undo) if visit.asks else None
    except (ElicitError, ProblemError) as error:
        return await _question(visit, sentence(error), status_of(error))
    return visit.to("kept" if card is None else "undone")


async def _question(visit: _Visit, note: str | None, status: int = 200) -> Response:
    """Return the question that is next, or why there is none."""
    if visit.ended:
        return await visit.page("judge_end", status, message=note)
    card = await visit.call(visit.people.next) if visit.asks else None
    if card is None:
        reason = "paused" if not visit.asks else "nothing"
        return await visit.page("judge_wait", status, reason=reason, message=note)
    return await visit.page("judge_question", status, card=card, message=note)


async def _visit(request: Request, token: str, runs: Catalog) -> _Visit:
    """Return the expert whose link it is.

    Raises:
        ProblemError, LinkError: the link cannot be used, or its campaign is gone.
    """
    link = await security.judge(token, request)
    service, run = service_of(request), await runs.run(link.campaign)
    snapshot = await runs.snapshot(link.campaign)
    people = await asyncio.to_thread(service.experts.of, run)
    return _Visit(token, service.links.csrf(link), link, people, snapshot, run.space.title)


def _seconds(stated: str) -> float | None:
    """Return the time that a page states; None if it states none that can be."""
    try:
        seconds = float(stated)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0.0 <= seconds <= _LONGEST else None
