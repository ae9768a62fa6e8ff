"""Routes of campaigns: create, estimate, start, watch, pause, go on, retune, cancel and delete."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field, model_validator

from llm_elicit._util.settings import StrictModel, to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator import estimates
from llm_elicit.orchestrator.engine import check
from llm_elicit.pipeline.campaign_run import CampaignRun
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service import untrusted
from llm_elicit.service.catalog import CampaignName, Catalog, Runs
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.security import media_type, require
from llm_elicit.service.spaces import library_of
from llm_elicit.service.state import Service, service_of

router = APIRouter(prefix="/api/campaigns", tags=["campaigns"])

_READ, _ADMIN = [Depends(require("read"))], [Depends(require("admin"))]
_BODY = {
    "requestBody": {
        "description": "A campaign as in its YAML file.",
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}
_KINDS = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}

Patience = Annotated[
    float, Query(ge=0, le=60, description="Seconds to wait until the run has followed.")
]


class JudgeCost(BaseModel):
    """What a judge's questions would cost; see `llm_elicit.orchestrator.JudgeEstimate`."""

    judge: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    exact: bool
    cost: float | None
    most: float | None
    batch: float | None


class Turn(BaseModel):
    """A turn of a prompt."""

    role: str
    content: str


class DryRun(BaseModel):
    """What a campaign would ask: some of its prompts, and the costs. Nothing is sent."""

    name: str
    pairs: int
    judges: list[JudgeCost]
    examples: list[list[Turn]]


class Limits(StrictModel):
    """New limits of a run; those left out stay."""

    concurrency: Annotated[int, Field(ge=1)] | None = None
    max_cost: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.concurrency is None and self.max_cost is None:
            raise ValueError("nothing to change; give concurrency, max_cost, or both")
        return self


class CampaignText(BaseModel):
    """A campaign as YAML."""

    name: str
    yaml: str


@router.get("", summary="Campaigns", dependencies=_READ)
async def listed(runs: Runs) -> list[RunSnapshot]:
    """Return the snapshots of all campaigns."""
    return await runs.snapshots()


@router.post(
    "", summary="Create a campaign", status_code=201, dependencies=_ADMIN, openapi_extra=_BODY
)
async def create(
    request: Request,
    response: Response,
    runs: Runs,
    start: Annotated[bool, Query(description="Whether it starts; else it waits.")] = True,
) -> RunSnapshot:
    """Create a campaign, and start it unless it is to wait."""
    job = await begin(service_of(request), runs, await _campaign(request), paused=not start)
    response.headers["location"] = f"/api/campaigns/{job.name}"
    return job.snapshot()


@router.post(
    "/dry-run",
    summary="Show what a campaign would ask and cost",
    dependencies=_READ,
    openapi_extra=_BODY,
)
async def dry_run(request: Request) -> DryRun:
    """Return some prompts and the estimated costs of a campaign; nothing is kept or sent."""
    campaign = await _campaign(request)
    workers = service_of(request).workers
    return DryRun.model_validate(await workers.call(_estimated, campaign, examples=True))


@router.get("/{name}", summary="A campaign's state, counts and costs", dependencies=_READ)
async def read(name: CampaignName, runs: Runs) -> RunSnapshot:
    """Return a campaign's snapshot."""
    return await runs.snapshot(name)


@router.get("/{name}/campaign", summary="A campaign's settings", dependencies=_READ)
async def settings(name: CampaignName, runs: Runs) -> CampaignText:
    """Return a campaign's settings as YAML."""
    run = await runs.run(name)
    text = await asyncio.to_thread(yaml_of, run)
    return CampaignText(name=name, yaml=text)


@router.get("/{name}/estimate", summary="The cost of what is left to ask", dependencies=_READ)
async def estimate(request: Request, name: CampaignName, runs: Runs) -> DryRun:
    """Return the estimated cost of the questions without an answer."""
    run = await runs.run(name)
    found = await service_of(request).workers.call(_estimated, run.campaign, examples=False)
    return DryRun.model_validate(found)


@router.post("/{name}/start", summary="Start or go on", dependencies=_ADMIN)
async def start(
    request: Request,
    name: CampaignName,
    runs: Runs,
    retry_failed: Annotated[
        bool, Query(description="Whether to ask again what was given up or set aside.")
    ] = False,
) -> RunSnapshot:
    """Start a campaign that waits, is paused, or has ended before its report."""
    service = service_of(request)
    here = runs.here(name)
    if here is not None:
        await _check_askable(service, here.run)
        await here.resume(retry_failed=retry_failed)
        return here.snapshot()
    run = await runs.run(name)
    if await runs.at_work_elsewhere(name):
        await runs.request(name, "running")
        return await runs.snapshot(name)
    await _check_askable(service, run)
    return service.runtime.start(run, owner="service", retry_failed=retry_failed).snapshot()


@router.post("/{name}/resume", summary="Go on with a paused campaign", dependencies=_ADMIN)
async def resume(request: Request, name: CampaignName, runs: Runs) -> RunSnapshot:
    """Go on with a campaign that is paused."""
    here = runs.here(name)
    if here is None:
        await runs.request(name, "running")
    else:
        await _check_askable(service_of(request), here.run)
        await here.resume()
    return await runs.snapshot(name)


@router.post("/{name}/pause", summary="Pause: send nothing more", dependencies=_ADMIN)
async def pause(
    request: Request, response: Response, name: CampaignName, runs: Runs, wait: Patience = 5.0
) -> RunSnapshot:
    """Pause a campaign; 202 if answers in flight have not arrived yet."""
    here = runs.here(name)
    followed = False
    if here is None:
        await runs.request(name, "paused")
    else:
        followed = await service_of(request).within(wait, here.pause())
    response.status_code = 200 if followed else 202
    return await runs.snapshot(name)


@router.post("/{name}/cancel", summary="Cancel: end, and keep all answers", dependencies=_ADMIN)
async def cancel(
    request: Request,
    response: Response,
    name: CampaignName,
    runs: Runs,
    drain: Annotated[bool, Query(description="Whether to wait for answers in flight.")] = True,
    wait: Patience = 5.0,
) -> RunSnapshot:
    """Cancel a campaign; 202 if it has not ended yet."""
    here = runs.here(name)
    followed = False
    if here is None:
        await runs.request(name, "cancelled")
    else:
        followed = await service_of(request).within(wait, here.cancel(drain))
    response.status_code = 200 if followed else 202
    return await runs.snapshot(name)


@router.post("/{name}/retune", summary="Change limits while it asks", dependencies=_ADMIN)
async def retune(request: Request, name: CampaignName, runs: Runs, limits: Limits) -> RunSnapshot:
    """Change the number of concurrent requests or the cap on the cost."""
    bounds = service_of(request).settings.bounds
    untrusted.check_limits(limits.max_cost, limits.concurrency, bounds)
    here = runs.here(name)
    if here is None:
        await runs.request(name, **limits.model_dump())
    else:
        await here.retune(**limits.model_dump())
    return await runs.snapshot(name)


@router.delete("/{name}", summary="Delete a campaign with all it wrote", dependencies=_ADMIN)
async def delete(
    request: Request, name: CampaignName, runs: Runs, wait: Patience = 30.0
) -> Response:
    """Cancel a campaign and remove its answers, beliefs, report and links."""
    service = service_of(request)
    done = await service.within(wait, _delete(service, runs, name))
    return Response(status_code=204 if done else 202)


async def _delete(service: Service, runs: Catalog, name: str) -> None:
    """Delete a run, then its links; if it is refused, everything stays."""
    await asyncio.to_thread(service.experts.forget, name)
    await runs.delete(name)
    await asyncio.to_thread(service.links.forget, name)
    # An expert may have come meanwhile. A campaign of that name must not get the old journal.
    await asyncio.to_thread(service.experts.forget, name)


async def begin(
    service: Service, runs: Catalog, campaign: Campaign, *, paused: bool
) -> CampaignRun:
    """Begin a new campaign.

    Raises:
        ProblemError: its name is taken.
        InputError: it is to start, and a key is missing, or a cap cannot be held.
    """
    run = await asyncio.to_thread(Run.open, campaign)
    if not (paused or runs.taken(campaign.name)):
        await _check_askable(service, run)
    if runs.taken(campaign.name):
        raise ProblemError(409, f"there is a campaign {campaign.name!r}; choose another name")
    return service.runtime.start(run, paused=paused, owner="service")


async def _campaign(request: Request) -> Campaign:
    """Return the campaign in the body of a request.

    Raises:
        ProblemError: it is neither JSON nor YAML.
        InputError: it breaks a rule, or names what the server does not allow.
    """
    kind = _KINDS.get(media_type(request))
    if kind is None:
        raise ProblemError(415, "send the campaign as application/json or application/yaml")
    return await understood(service_of(request), await request.body(), kind)


async def understood(service: Service, body: bytes, kind: str) -> Campaign:
    """Return the campaign of a text, "json" or "yaml".

    Raises:
        InputError: it breaks a rule, or names what the server does not allow.
    """
    return await service.workers.call(
        untrusted.read, body, kind, service.settings, library_of(service)
    )


async def _check_askable(service: Service, run: Run) -> None:
    """Check before a run starts or goes on that its judges can be asked; nothing is sent.

    Raises:
        InputError: a key is missing, or a cap cannot be held.
    """
    await service.workers.call(_asked, run.campaign)


def _asked(campaign: Campaign) -> None:
    check(Run.open(campaign).study)


def yaml_of(run: Run) -> str:
    """Return a campaign's settings as YAML, without folders of the server."""
    return to_yaml(run.campaign.shareable())


def _estimated(campaign: Campaign, *, examples: bool) -> dict[str, Any]:
    """Return a dry run's parts; it is called in the process of a worker."""
    run = Run.open(campaign)
    lines = estimates.estimate(campaign, run.space, run.plan, run.answered)
    shown = estimates.examples(campaign, run.space, run.plan) if examples else []
    return {
        "name": campaign.name,
        "pairs": len(run.plan.a),
        "judges": [asdict(line) for line in lines],
        "examples": [[vars(message) for message in prompt.messages] for prompt in shown],
    }
