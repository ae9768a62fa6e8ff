"""The people of a campaign: their personal links, and the page that shows how far each is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field, ValidationError

from llm_elicit._util.settings import StrictModel
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.people import PeopleProgress
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.service.catalog import CampaignName, Catalog, Runs
from llm_elicit.service.forms import Text
from llm_elicit.service.guard import host_name, is_address
from llm_elicit.service.links import LONGEST_DAYS, Link
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.rendering import ROOT, render, sentence
from llm_elicit.service.security import Admin, csrf_token, require
from llm_elicit.service.state import service_of

router = APIRouter(
    prefix="/api/campaigns/{name}/links", tags=["people"], dependencies=[Depends(require("admin"))]
)


class LinkLine(BaseModel):
    """A personal link; times are seconds since 1970."""

    id: str
    campaign: str
    judge: str
    expert: str
    issued: float
    expires: float
    revoked: float | None

    @classmethod
    def of(cls, link: Link) -> LinkLine:
        """Return a link as it is shown."""
        return cls(**vars(link))


class Invitation(StrictModel):
    """For whom a link is, and for how long."""

    judge: Annotated[str, Field(max_length=80)]
    expert: Annotated[str, Field(max_length=80)] = ""
    days: Annotated[float, Field(gt=0, le=LONGEST_DAYS)] = 30.0


class Issued(BaseModel):
    """A new link, with its address, which cannot be shown again."""

    link: LinkLine
    url: str


@router.get("", summary="The links of a campaign")
async def listed(request: Request, name: CampaignName, runs: Runs) -> list[LinkLine]:
    """Return the links that were issued, without their addresses."""
    await runs.run(name)
    found = await asyncio.to_thread(service_of(request).links.list, name)
    return [LinkLine.of(link) for link in found]


@router.post("", summary="Issue a link for an expert", status_code=201)
async def issue(request: Request, name: CampaignName, runs: Runs, given: Invitation) -> Issued:
    """Issue a personal link; its holder answers in the name of the expert."""
    service = service_of(request)
    expert = given.expert or given.judge
    check_expert(await runs.run(name), given.judge, expert)
    link, token = await asyncio.to_thread(
        service.links.issue, name, given.judge, expert, given.days
    )
    return Issued(link=LinkLine.of(link), url=f"{_address(request)}/judge/{token}")


def _address(request: Request) -> str:
    """Return the address by which others reach the service, as far as it is known."""
    host, hosts = request.headers["host"], service_of(request).settings.hosts
    scheme = request.scope["scheme"]
    if scheme == "https" and hosts and is_address(host_name(host) or ""):
        host = hosts[0]  # a proxy called it by its address
    return f"{scheme}://{host}{ROOT.get()}"


@router.delete("/{link}", summary="Revoke a link", status_code=204)
async def revoke(request: Request, name: CampaignName, link: str, runs: Runs) -> Response:
    """Revoke a link at once and for good; answers given by it stay."""
    await runs.run(name)
    await asyncio.to_thread(service_of(request).links.revoke, name, link)
    return Response(status_code=204)


def check_expert(run: Run, judge: str, expert: str) -> None:
    """Check that a person answers for a judge of a campaign.

    Raises:
        InputError: there is no such judge, it is no person, or the expert is not named.
    """
    people = run.campaign.people
    if judge not in people:
        known = ", ".join(people) or "none; give it one with backend: human"
        raise InputError(f"{run.campaign.name}: no person judges as {judge!r}; it has {known}")
    if expert not in people[judge].experts:
        known = ", ".join(people[judge].experts)
        raise InputError(f"{run.campaign.name}: {expert!r} is no expert of {judge!r}: {known}")


pages = APIRouter(prefix="/campaigns/{name}/people", include_in_schema=False)


@dataclass(frozen=True)
class _Person:
    """An expert, how far they are (None before the run asks), and their links."""

    judge: str
    expert: str
    progress: PeopleProgress | None
    links: list[Link]


@pages.get("")
async def people(request: Request, name: CampaignName, runs: Runs, caller: Admin) -> Response:
    """Return the experts of a campaign."""
    del caller
    return await _page(request, name, runs)


@pages.post("")
async def issue_by_form(
    request: Request,
    name: CampaignName,
    runs: Runs,
    caller: Admin,
    who: Text = "",
    days: Text = "30",
) -> Response:
    """Issue a link, and show it this once."""
    del caller
    judge, _, expert = who.partition("\n")
    stated = {"who": who, "days": days}
    try:
        given = Invitation.model_validate({"judge": judge, "expert": expert, "days": days})
        issued = await issue(request, name, runs, given)
    except ValidationError as error:
        wrong = error.errors()[0]["loc"][0]
        message = "Give 1 to 366 days." if wrong == "days" else "Choose an expert."
        return await _page(request, name, runs, message=message, stated=stated)
    except (ElicitError, ProblemError) as error:
        return await _page(request, name, runs, message=sentence(error), stated=stated)
    return await _page(request, name, runs, issued=issued)


@pages.post("/{link}/revoke")
async def revoke_by_form(
    request: Request, name: CampaignName, link: str, runs: Runs, caller: Admin
) -> Response:
    """Revoke a link."""
    del caller
    try:
        await revoke(request, name, link, runs)
    except (ElicitError, ProblemError) as error:
        return await _page(request, name, runs, message=sentence(error))
    return RedirectResponse(f"/campaigns/{name}/people", 303)


async def _page(
    request: Request,
    name: str,
    runs: Catalog,
    *,
    issued: Issued | None = None,
    message: str | None = None,
    stated: dict[str, str] | None = None,
) -> Response:
    run = await runs.run(name)
    links = await asyncio.to_thread(service_of(request).links.list, name)
    text = render(
        "people",
        name=name,
        people=await asyncio.to_thread(_people, request, run, links),
        issued=issued,
        message=message,
        stated=stated or {"who": "", "days": "30"},
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
