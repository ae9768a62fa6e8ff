"""Routes of the personal links by which people judge: issue, list and revoke."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from llm_elicit.errors import InputError
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.service.catalog import CampaignName, Runs
from llm_elicit.service.links import LONGEST_DAYS, Link
from llm_elicit.service.security import require
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


class Invitation(BaseModel):
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
    scheme = "https" if service.settings.https else "http"
    url = f"{scheme}://{request.headers['host']}/judge/{token}"
    return Issued(link=LinkLine.of(link), url=url)


@router.delete("/{link}", summary="Revoke a link", status_code=204)
async def revoke(request: Request, name: CampaignName, link: str, runs: Runs) -> Response:
    """Revoke a link at once and for good; answers given by it stay."""
    await runs.run(name)
    await asyncio.to_thread(service_of(request).links.revoke, link)
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
