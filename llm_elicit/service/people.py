"""The people of a campaign: their personal links, their progress, and the pages where they judge.

All state is on the server: a person may stop at any time and continue on another device. The pages
show one question at a time and work without JavaScript; with it, single keys answer as well.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import AfterValidator, ValidationError

from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal.people import Comment, ExpertCounts, comments, count_checks
from llm_elicit.orchestrator.people import Choice, People, experts_by_judge
from llm_elicit.pipeline.answers import Agreements, measure_agreement
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service import security
from llm_elicit.service.guard import host_name, is_address
from llm_elicit.service.responses import ROOT, ProblemError, render, sentence, status_of
from llm_elicit.service.schemas import Invitation, IssuedLink, Link, NewExperts, Person
from llm_elicit.service.security import ADMIN, Text, describe_action, normalized
from llm_elicit.service.state import NamedRun, Service, Shared, service_of

_MOST_COMMENTS = 100
"""Largest number of comments on the page of people."""

router = APIRouter(prefix="/api/v1/campaigns/{name}", tags=["people"], dependencies=ADMIN)


@router.get("/links", summary="The links of a campaign")
async def list_links(service: Shared, run: NamedRun) -> list[Link]:
    """Return the links that were issued, without their addresses."""
    return await asyncio.to_thread(service.links.list, run.campaign.name)


@router.post("/links", summary="Issue a link for an expert", status_code=201)
async def issue(request: Request, run: NamedRun, invitation: Invitation) -> IssuedLink:
    """Issue a personal link; its holder answers in the name of the expert."""
    service, name = service_of(request), run.campaign.name
    judge, expert = invitation.judge, invitation.expert or invitation.judge
    await asyncio.to_thread(check_expert, run, judge, expert)
    link, token = await asyncio.to_thread(service.links.issue, name, judge, expert, invitation.days)
    describe_action(request, f"issue a link to {expert}", name)
    host, scheme = request.headers["host"], request.scope["scheme"]
    if scheme == "https" and service.settings.hosts and is_address(host_name(host) or ""):
        host = service.settings.hosts[0]  # a proxy called it by its address
    return IssuedLink(link, f"{scheme}://{host}{ROOT.get()}/judge/{token}")


@router.delete("/links/{link}", summary="Revoke a link", status_code=204)
async def revoke(request: Request, service: Shared, run: NamedRun, link: str) -> Response:
    """Revoke a link at once and for good; answers given by it stay."""
    revoked = await asyncio.to_thread(service.links.revoke, run.campaign.name, link)
    describe_action(request, f"revoke a link of {revoked}", run.campaign.name)
    return Response(status_code=204)


@router.get("/experts", summary="The experts, their progress and agreement")
async def list_experts(service: Shared, run: NamedRun) -> list[Person]:
    """Return the experts of a campaign, also those removed who have answered."""

    def checked() -> dict[tuple[str, str], ExpertCounts]:
        with run.location.reading() as db:
            return {} if db is None else count_checks(db)

    checks = await asyncio.to_thread(checked)
    agreements: Agreements = {}
    if checks:  # someone has answered
        agreements = await service.workers.call(measure_agreement, run.folder)
    return await asyncio.to_thread(_people_of, service, run, checks, agreements)


@router.post("/experts", summary="Add experts, also while the campaign runs", status_code=201)
async def add(request: Request, service: Shared, run: NamedRun, new: NewExperts) -> list[str]:
    """Add experts to a judge and return all that it has; each then needs a link."""

    def change() -> list[str]:
        people, present = service.experts.of(run), experts_by_judge(run.location, run.campaign)
        added = set(new.experts) - set(present.get(new.judge, ()))
        most, count = service.settings.bounds.experts, sum(map(len, present.values())) + len(added)
        if count > most:
            raise ProblemError(422, f"{count} experts; this server allows at most {most}")
        people.change(new.judge, *new.experts)
        return people.experts(new.judge)

    names = await asyncio.to_thread(change)
    describe_action(request, f"add {', '.join(new.experts)} to {new.judge}", run.campaign.name)
    return names


@router.delete("/experts/{judge}/{expert}", summary="Remove an expert", status_code=204)
async def remove(
    request: Request, service: Shared, run: NamedRun, judge: str, expert: str
) -> Response:
    """Remove an expert and revoke their links; their answers stay, others get their questions."""

    def change() -> None:
        service.experts.of(run).change(judge, expert, removed=True)
        service.links.revoke_all(run.campaign.name, judge, expert)

    await asyncio.to_thread(change)
    describe_action(request, f"remove {expert} from {judge}", run.campaign.name)
    return Response(status_code=204)


def check_expert(run: Run, judge: str, expert: str) -> None:
    """Check that a campaign has a judge with backend human, and that it has the expert.

    Raises:
        InputError: the campaign has no such judge, or the judge no such expert.
    """
    experts = experts_by_judge(run.location, run.campaign)
    if judge not in experts:
        names = ", ".join(experts) or "none; add one with backend: human"
        raise InputError(
            f"{run.campaign.name}: {judge!r} is no judge with experts; such judges: {names}"
        )
    if expert not in experts[judge]:
        raise InputError(
            f"{run.campaign.name}: {expert!r} is not an expert of {judge!r}; experts: "
            f"{', '.join(experts[judge])}"
        )


def _people_of(
    service: Service,
    run: Run,
    checks: Mapping[tuple[str, str], ExpertCounts],
    agreements: Agreements,
) -> list[Person]:
    """Return the experts of a run."""
    links = service.links.list(run.campaign.name)
    open_run = service.experts.of(run) if run.campaign.people and run.started else None
    persons = []
    for judge, present in experts_by_judge(run.location, run.campaign).items():
        gone = [name for of, name in checks if of == judge and name not in present]
        for expert in [*present, *gone]:
            key, removed = (judge, expert), expert in gone
            progress = None
            if open_run is not None and not removed:
                progress = open_run.progress(judge, expert)
            agreement = agreements.get(key, (None, None))
            own = [link for link in links if (link.judge, link.expert) == key]
            persons.append(Person(*key, progress, checks.get(key), *agreement, own, removed))
    return persons


pages = APIRouter(prefix="/campaigns/{name}/people", include_in_schema=False)


@pages.get("", dependencies=ADMIN)
async def people(request: Request, run: NamedRun) -> Response:
    """Return the experts of a campaign."""
    return await _page(request, run)


Chosen = Annotated[list[Annotated[str, AfterValidator(normalized)]] | None, Form()]
"""The selected experts of a form: the judge, an end of line, and the expert."""


@pages.post("", dependencies=ADMIN)
async def issue_by_form(
    request: Request, run: NamedRun, who: Chosen = None, days: Text = "30"
) -> Response:
    """Issue links to the selected experts, and show their addresses, which are not shown again."""
    issued, message = [], None
    try:
        if not who:
            raise ProblemError(422, "select an expert first")
        keys = [choice.partition("\n")[::2] for choice in who]
        invitations = [
            Invitation.model_validate({"judge": judge, "expert": expert, "days": days})
            for judge, expert in keys
        ]
        for invitation in invitations:
            issued.append(await issue(request, run, invitation))
    except ValidationError as error:
        field = error.errors()[0]["loc"][0]
        message = "Give 1 to 366 days." if field == "days" else "Choose an expert."
    except (ElicitError, ProblemError) as error:
        message = sentence(error)
    form = {"who": who or [], "days": days} if message else None
    return await _page(request, run, issued=issued, message=message, form=form)


@pages.post("/add", dependencies=ADMIN)
async def add_by_form(
    request: Request, service: Shared, run: NamedRun, judge: Text = "", names: Text = ""
) -> Response:
    """Add the experts whose names are in the lines of a field."""
    try:
        stated = [name.strip() for name in re.split(r"[,;\t\n]", names) if name.strip()]
        if not stated:
            raise ProblemError(422, "write a name first")
        new = NewExperts.model_construct(judge=judge, experts=stated)
        await add(request, service, run, new)
    except (ElicitError, ProblemError) as error:
        form = {"names": names, "judge": judge}
        return await _page(request, run, message=sentence(error), form=form)
    return RedirectResponse(f"/campaigns/{run.campaign.name}/people", 303)


@pages.post("/remove", dependencies=ADMIN)
async def remove_by_form(
    request: Request, service: Shared, run: NamedRun, who: Chosen = None
) -> Response:
    """Remove the selected experts."""
    try:
        if not who:
            raise ProblemError(422, "select an expert first")
        for choice in who:
            judge, _, expert = choice.partition("\n")
            await remove(request, service, run, judge, expert)
    except (ElicitError, ProblemError) as error:
        return await _page(request, run, message=sentence(error), form={"who": who or []})
    return RedirectResponse(f"/campaigns/{run.campaign.name}/people", 303)


@pages.post("/{link}/revoke", dependencies=ADMIN)
async def revoke_by_form(request: Request, service: Shared, run: NamedRun, link: str) -> Response:
    """Revoke a link."""
    try:
        await revoke(request, service, run, link)
    except (ElicitError, ProblemError) as error:
        return await _page(request, run, message=sentence(error))
    return RedirectResponse(f"/campaigns/{run.campaign.name}/people", 303)


async def _page(
    request: Request,
    run: Run,
    *,
    issued: Sequence[IssuedLink] = (),
    message: str | None = None,
    form: Mapping[str, Any] | None = None,
) -> Response:
    """Return the page of a campaign's experts, with new links or the message of a refused form."""

    def written() -> list[Comment]:
        with run.location.reading() as db:
            return [] if db is None else comments(db, _MOST_COMMENTS)

    return security.page(
        request, "people", 422 if message else 200, name=run.campaign.name,
        people=await list_experts(service_of(request), run),
        judges=list(run.campaign.people), comments=await asyncio.to_thread(written),
        issued=issued, message=message,
        form={"who": [], "days": "30", "names": "", "judge": "", **(form or {})},
    )  # fmt: skip


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
    "noted": "Noted, thank you.",
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
        """Return a page with the expert's progress and their last answer."""
        progress = await self.call(self.people.progress)
        last = await self.call(self.people.last)
        more |= {"progress": progress, "last": last, "base": f"{ROOT.get()}/judge/{self.token}"}
        more |= {"expert": self.link.expert, "title": self.title, "csrf": self.csrf}
        return HTMLResponse(render(template, **more), status)

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
    request: Request, token: str, card: Text = "", choice: Text = "", seconds: Text = ""
) -> Response:
    """Record an answer and redirect to the next question; show the same question on an error."""
    visit = await _visit(request, token)
    try:
        await security.check_judge(request, visit.link)
        if choice not in _CHOICES or not re.fullmatch(_NUMBER, card):
            raise ProblemError(422, "choose A, B, equal or cannot say")
        if visit.takes_answers:
            await visit.call(
                visit.people.answer, int(card), _CHOICES[choice], seconds=_seconds(seconds)
            )
    except (ElicitError, ProblemError) as error:
        return await _question(visit, sentence(error), status_of(error))
    return visit.redirect()


@judging.post("/remark")
async def remark(
    request: Request, token: str, about: Text = "", confidence: Text = "", comment: Text = ""
) -> Response:
    """Record the confidence in the last answer or a comment on it, also after the study."""
    visit = await _visit(request, token)
    try:
        await security.check_judge(request, visit.link)
        if not re.fullmatch(_NUMBER, about):
            raise ProblemError(422, "answer a question first")
        stated = _CONFIDENCE.get(confidence)
        await visit.call(visit.people.remark, int(about), confidence=stated, comment=comment)
    except (ElicitError, ProblemError) as error:
        return await _question(visit, sentence(error), status_of(error))
    return visit.redirect("noted")


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
