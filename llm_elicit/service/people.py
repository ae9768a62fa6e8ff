"""The people of a campaign: their personal links, their progress, and the pages where they judge.

All state is on the server: a person may stop at any time and continue on another device. The pages
show one question at a time and work without JavaScript; with it, single keys answer as well.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import Field, ValidationError

from llm_elicit._util.settings import StrictModel
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.people import Choice, People, PeopleProgress
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service import security
from llm_elicit.service.auth import MAX_DAYS, Link
from llm_elicit.service.guard import host_name, is_address
from llm_elicit.service.responses import ROOT, ProblemError, render, sentence, status_of
from llm_elicit.service.security import Text, csrf_token, require
from llm_elicit.service.state import NamedRun, Shared, service_of

_ADMIN = [Depends(require("admin"))]

router = APIRouter(prefix="/api/v1/campaigns/{name}/links", tags=["people"], dependencies=_ADMIN)


class Invitation(StrictModel):
    """The expert who gets a link, and the days that it is valid."""

    judge: Annotated[str, Field(max_length=80)]
    expert: Annotated[str, Field(max_length=80)] = ""
    days: Annotated[float, Field(gt=0, le=MAX_DAYS)] = 30.0


@dataclass(frozen=True)
class Issued:
    """A new link, with its address, which cannot be shown again."""

    link: Link
    url: str


@router.get("", summary="The links of a campaign")
async def list_links(service: Shared, run: NamedRun) -> list[Link]:
    """Return the links that were issued, without their addresses."""
    return await asyncio.to_thread(service.links.list, run.campaign.name)


@router.post("", summary="Issue a link for an expert", status_code=201)
async def issue(request: Request, run: NamedRun, invitation: Invitation) -> Issued:
    """Issue a personal link; its holder answers in the name of the expert."""
    service = service_of(request)
    expert = invitation.expert or invitation.judge
    check_expert(run, invitation.judge, expert)
    link, token = await asyncio.to_thread(
        service.links.issue, run.campaign.name, invitation.judge, expert, invitation.days
    )
    host, scheme = request.headers["host"], request.scope["scheme"]
    if scheme == "https" and service.settings.hosts and is_address(host_name(host) or ""):
        host = service.settings.hosts[0]  # a proxy called it by its address
    return Issued(link, f"{scheme}://{host}{ROOT.get()}/judge/{token}")


@router.delete("/{link}", summary="Revoke a link", status_code=204)
async def revoke(service: Shared, run: NamedRun, link: str) -> Response:
    """Revoke a link at once and for good; answers given by it stay."""
    await asyncio.to_thread(service.links.revoke, run.campaign.name, link)
    return Response(status_code=204)


def check_expert(run: Run, judge: str, expert: str) -> None:
    """Check that a campaign has a judge with backend human and that it lists the expert.

    Raises:
        InputError: the campaign has no such judge, or the judge no such expert.
    """
    people = run.campaign.people
    if judge not in people:
        names = ", ".join(people) or "none; add one with backend: human"
        raise InputError(
            f"{run.campaign.name}: {judge!r} is no judge with experts; such judges: {names}"
        )
    if expert not in people[judge].experts:
        names = ", ".join(people[judge].experts)
        raise InputError(
            f"{run.campaign.name}: {expert!r} is not an expert of {judge!r}; experts: {names}"
        )


pages = APIRouter(prefix="/campaigns/{name}/people", include_in_schema=False)


@dataclass(frozen=True)
class _Person:
    """An expert, their progress (None before the run asks), and their links."""

    judge: str
    expert: str
    progress: PeopleProgress | None
    links: list[Link]


@pages.get("", dependencies=_ADMIN)
async def people(request: Request, run: NamedRun) -> Response:
    """Return the experts of a campaign."""
    return await _page(request, run)


@pages.post("", dependencies=_ADMIN)
async def issue_by_form(
    request: Request, run: NamedRun, who: Text = "", days: Text = "30"
) -> Response:
    """Issue a link, and show its address, which is not shown again."""
    judge, _, expert = who.partition("\n")
    form = {"who": who, "days": days}
    try:
        invitation = Invitation.model_validate({"judge": judge, "expert": expert, "days": days})
        issued = await issue(request, run, invitation)
    except ValidationError as error:
        field = error.errors()[0]["loc"][0]
        message = "Give 1 to 366 days." if field == "days" else "Choose an expert."
        return await _page(request, run, message=message, form=form)
    except (ElicitError, ProblemError) as error:
        return await _page(request, run, message=sentence(error), form=form)
    return await _page(request, run, issued=issued)


@pages.post("/{link}/revoke", dependencies=_ADMIN)
async def revoke_by_form(request: Request, service: Shared, run: NamedRun, link: str) -> Response:
    """Revoke a link."""
    try:
        await revoke(service, run, link)
    except (ElicitError, ProblemError) as error:
        return await _page(request, run, message=sentence(error))
    return RedirectResponse(f"/campaigns/{run.campaign.name}/people", 303)


async def _page(request: Request, run: Run, **more: Any) -> Response:
    """Return the page of a campaign's experts, with a new link or the message of a refused form."""
    service, name = service_of(request), run.campaign.name
    links = await asyncio.to_thread(service.links.list, name)

    def people() -> list[_Person]:
        judges = list(run.campaign.people.values())
        open_run = service.experts.of(run) if judges and run.started else None
        return [
            _Person(
                judge.name,
                expert,
                None if open_run is None else open_run.progress(judge.name, expert),
                [link for link in links if (link.judge, link.expert) == (judge.name, expert)],
            )
            for judge in judges
            for expert in judge.experts
        ]

    context = {"issued": None, "message": None, "form": {"who": "", "days": "30"}, **more}
    text = render(
        "people",
        name=name,
        people=await asyncio.to_thread(people),
        csrf=csrf_token(request),
        **context,
    )
    return HTMLResponse(text, 422 if context["message"] else 200)


judging = APIRouter(prefix="/judge/{token}", include_in_schema=False)

P = ParamSpec("P")
T = TypeVar("T")

_CHOICES: dict[str, Choice] = {"a": "a", "b": "b", "equal": "equal", "cannot-say": "cannot say"}
_NUMBER = r"[0-9]{1,18}"
"""A number that a database can hold."""

_CONFIDENCE = {"guess": 0.0, "fairly": 0.5, "certain": 1.0}
_MAX_SECONDS = 24 * 3600.0
"""Largest time for an answer that a page may report, in seconds."""

_NOTES = {
    "undone": "Your last answer is undone; answer this question again.",
    "kept": "There is no answer that can be undone now.",
    "late": "That question had been given to someone else meanwhile; here is another.",
}


@dataclass(frozen=True)
class _Visit:
    """One expert at one run.

    Attributes:
        token: the token of the link.
        csrf: the token that forms must repeat.
        link: the link, which names the expert.
        people: the run's questions and answers.
        run: the state of the run.
        title: the title of the feature space.
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
        """Call a method of `People` for this expert, in a thread."""
        call = partial(work, self.link.judge, self.link.expert, *args, **named)
        return await asyncio.to_thread(call)

    @property
    def takes_answers(self) -> bool:
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

    def redirect(self, note: str = "") -> Response:
        """Redirect to the next question."""
        query = f"?note={note}" if note else ""
        return RedirectResponse(f"/judge/{self.token}/question{query}", 303)


@judging.get("")
async def welcome(request: Request, token: str) -> Response:
    """Return the first page, with the subject, instructions and the expert's progress."""
    visit = await _visit(request, token)
    return await visit.page("judge_welcome", ended=visit.ended)


@judging.get("/question")
async def question(request: Request, token: str, note: Annotated[str, Query()] = "") -> Response:
    """Return the next question."""
    return await _question(await _visit(request, token), _NOTES.get(note))


@judging.post("/answer")
async def answer(
    request: Request,
    token: str,
    card: Text = "",
    choice: Text = "",
    confidence: Text = "",
    seconds: Text = "",
) -> Response:
    """Record an answer and redirect to the next question; show the same question on an error."""
    visit = await _visit(request, token)
    try:
        await security.check_judge(request, visit.link)
        if choice not in _CHOICES or not re.fullmatch(_NUMBER, card):
            raise ProblemError(422, "choose A, B, equal or cannot say")
        if visit.takes_answers:
            await visit.call(
                visit.people.answer,
                int(card),
                _CHOICES[choice],
                confidence=_CONFIDENCE.get(confidence),
                seconds=_seconds(seconds),
            )
    except (ElicitError, ProblemError) as error:
        return await _question(visit, sentence(error), status_of(error))
    return visit.redirect()


@judging.post("/undo")
async def undo(request: Request, token: str) -> Response:
    """Undo the last answer, and redirect to its question."""
    visit = await _visit(request, token)
    try:
        await security.check_judge(request, visit.link)
        card = await visit.call(visit.people.undo) if visit.takes_answers else None
    except (ElicitError, ProblemError) as error:
        return await _question(visit, sentence(error), status_of(error))
    return visit.redirect("kept" if card is None else "undone")


async def _question(visit: _Visit, note: str | None, status: int = 200) -> Response:
    """Return the next question, or the reason why there is none."""
    if visit.ended:
        return await visit.page("judge_end", status, message=note)
    card = await visit.call(visit.people.next) if visit.takes_answers else None
    if card is None:
        reason = "paused" if not visit.takes_answers else "nothing"
        return await visit.page("judge_wait", status, reason=reason, message=note)
    return await visit.page("judge_question", status, card=card, message=note)


async def _visit(request: Request, token: str) -> _Visit:
    """Return the visit of the expert with this link.

    Raises:
        ProblemError, LinkError: the link cannot be used, or its campaign is gone.
    """
    link = await security.judging_link(token, request)
    service = service_of(request)
    run, snapshot = await service.run(link.campaign), await service.snapshot(link.campaign)
    people = await asyncio.to_thread(service.experts.of, run)
    return _Visit(token, service.links.csrf(link), link, people, snapshot, run.space.title)


def _seconds(text: str) -> float | None:
    """Return the time that a page reports; None if it is not a possible time."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0.0 <= seconds <= _MAX_SECONDS else None
