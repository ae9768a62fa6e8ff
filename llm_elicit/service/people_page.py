"""The page of a campaign's people: how far each is, and their personal links."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.people import PeopleProgress
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.service import invitations
from llm_elicit.service.catalog import CampaignName, Catalog, Runs
from llm_elicit.service.invitations import Invitation
from llm_elicit.service.links import LONGEST_DAYS, Link
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.rendering import failed, render, sentence
from llm_elicit.service.security import Admin, csrf_token
from llm_elicit.service.state import service_of

router = APIRouter(prefix="/campaigns/{name}/people", include_in_schema=False)


@dataclass(frozen=True)
class _Person:
    """An expert, how far they are (None before the run asks), and their links."""

    judge: str
    expert: str
    progress: PeopleProgress | None
    links: list[Link]


@router.get("")
async def people(request: Request, name: CampaignName, runs: Runs, caller: Admin) -> Response:
    """Return the experts of a campaign."""
    del caller
    return await _page(request, name, runs)


@router.post("")
async def issue(
    request: Request,
    name: CampaignName,
    runs: Runs,
    caller: Admin,
    who: Annotated[str, Form()] = "",
    days: Annotated[str, Form()] = "30",
) -> Response:
    """Issue a link, and show it this once."""
    del caller
    judge, _, expert = who.partition("\n")
    try:
        lasts = float(days)
        if not 0 < lasts <= LONGEST_DAYS:
            raise ValueError
    except ValueError:
        return await _page(request, name, runs, message="Give 1 to 366 days.")
    try:
        given = Invitation(judge=judge[:80], expert=expert.strip()[:80], days=lasts)
        issued = await invitations.issue(request, name, runs, given)
    except (ElicitError, ProblemError) as error:
        return await _page(request, name, runs, message=sentence(error))
    return await _page(request, name, runs, issued=issued)


@router.post("/{link}/revoke")
async def revoke(
    request: Request, name: CampaignName, link: str, runs: Runs, caller: Admin
) -> Response:
    """Revoke a link."""
    del caller
    try:
        await invitations.revoke(request, name, link, runs)
    except (ElicitError, ProblemError) as error:
        return await _page(request, name, runs, message=sentence(error))
    return RedirectResponse(f"/campaigns/{name}/people", 303)


async def _page(
    request: Request,
    name: str,
    runs: Catalog,
    *,
    issued: invitations.Issued | None = None,
    message: str | None = None,
) -> Response:
    service = service_of(request)
    try:
        run = await runs.run(name)
        links = await asyncio.to_thread(service.links.list, name)
        found = await asyncio.to_thread(_people, request, run, links)
    except (ElicitError, ProblemError) as error:
        return failed(error)
    text = render(
        "people",
        name=name,
        people=found,
        issued=issued,
        message=message,
        csrf=csrf_token(request),
    )
    return HTMLResponse(text, 422 if message else 200)


def _people(request: Request, run: Run, links: list[Link]) -> list[_Person]:
    """Return the experts of a run; it reads the journal."""
    judges = list(run.campaign.people.values())
    open_run = service_of(request).experts.of(run) if judges and run.started else None
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
