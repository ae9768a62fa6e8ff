"""Routes of what a campaign has found: comparisons, beliefs, audit and report."""

from __future__ import annotations

import asyncio
import re
import secrets
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask

from llm_elicit.service import evaluation
from llm_elicit.service.catalog import CampaignName, Runs
from llm_elicit.service.evaluation import Format
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.security import require
from llm_elicit.service.state import service_of

router = APIRouter(
    prefix="/api/campaigns/{name}", tags=["results"], dependencies=[Depends(require("read"))]
)

_PARQUET = "application/vnd.apache.parquet"
_MEDIA = {"json": "application/json", "csv": "text/csv; charset=utf-8", "parquet": _PARQUET}
_MOST_POINTS = 50_000
_HASH = re.compile(r"script-src '(sha256-[A-Za-z0-9+/=]+)'")
_HEAD = 20_000
"""The characters of a report in which its policy stands."""


class BeliefLine(BaseModel):
    """A belief that was fitted."""

    judge: str


class Marginal(BaseModel):
    """A feature under a belief: mean, deviation and quantiles, or the shares of categories."""

    feature: str
    label: str
    unit: str
    kind: str
    mean: float | None = None
    sd: float | None = None
    quantiles: dict[str, float] | None = None
    shares: dict[str, float] | None = None


class Points(BaseModel):
    """Points to evaluate: lists in the order of the features, or values by feature."""

    points: Annotated[
        list[list[float | str] | dict[str, float | str]],
        Field(min_length=1, max_length=_MOST_POINTS),
    ]


class LogProb(BaseModel):
    """Log densities, nats per natural unit; null outside the support."""

    log_prob: list[float | None]


@router.get("/comparisons", summary="The judgments as JSON, CSV or Parquet")
async def comparisons(
    request: Request,
    name: CampaignName,
    runs: Runs,
    form: Annotated[Literal["json", "csv", "parquet"], Query(alias="format")] = "json",
    offset: Annotated[int, Query(ge=0, description="Of JSON: rows left out.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Of JSON: rows.")] = 1_000,
) -> Response:
    """Return a page of judgments as JSON, or all of them as a file."""
    run, service = await runs.run(name), service_of(request)
    if form == "json":
        content = await service.workers.call(evaluation.rows, run.folder, offset, limit)
        return Response(content, media_type=_MEDIA["json"])
    beside = service.settings.own_folder / "exports"
    await asyncio.to_thread(beside.mkdir, mode=0o700, parents=True, exist_ok=True)
    path = beside / f"{secrets.token_hex(8)}.{form}"
    await service.workers.call(evaluation.table, run.folder, path)
    remove = BackgroundTask(path.unlink, missing_ok=True)
    return FileResponse(path, media_type=_MEDIA[form], filename=f"{name}.{form}", background=remove)


@router.get("/beliefs", summary="The judges whose beliefs are fitted")
async def beliefs(name: CampaignName, runs: Runs) -> list[BeliefLine]:
    """Return the judges that have a belief."""
    run = await runs.run(name)
    found = await asyncio.to_thread(lambda: list(run.beliefs))
    return [BeliefLine(judge=judge) for judge in found]


@router.get("/beliefs/{judge}", summary="A belief's marginals")
async def marginals(request: Request, name: CampaignName, judge: str, runs: Runs) -> list[Marginal]:
    """Return the marginal of every feature, natural units."""
    run = await runs.run(name)
    found = await service_of(request).workers.call(evaluation.marginals, run.folder, judge)
    return [Marginal.model_validate(line) for line in found]


@router.get("/beliefs/{judge}/samples", summary="Points drawn from a belief")
async def samples(
    request: Request,
    name: CampaignName,
    judge: str,
    runs: Runs,
    n: Annotated[int, Query(ge=1)] = 1_000,
    seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    form: Annotated[Format, Query(alias="format")] = "json",
) -> Response:
    """Return points in natural units, equal for equal seeds; JSON has `columns` and `data`."""
    service, run = service_of(request), await runs.run(name)
    most = service.settings.bounds.samples
    if n > most:
        raise ProblemError(422, f"n: {n:,} is above this server's {most:,}")
    content = await service.workers.call(evaluation.samples, run.folder, judge, n, seed, form)
    return Response(content, media_type=_MEDIA[form])


@router.post(
    "/beliefs/{judge}/log-prob",
    summary="Log densities of points under a belief",
    responses={200: {"model": LogProb}},
)
async def log_prob(
    request: Request,
    name: CampaignName,
    judge: str,
    runs: Runs,
    given: Points,
    form: Annotated[Format, Query(alias="format")] = "json",
) -> Response:
    """Return log densities in nats; categories are given by their words."""
    run = await runs.run(name)
    content = await service_of(request).workers.call(
        evaluation.log_prob, run.folder, judge, given.points, form
    )
    return Response(content, media_type=_MEDIA[form])


@router.get("/audit", summary="The numbers of the report")
async def audit(request: Request, name: CampaignName, runs: Runs) -> Response:
    """Return the audit; docs/audit.schema.json describes it."""
    run = await runs.run(name)
    if not await asyncio.to_thread((run.folder / "audit.json").is_file):
        raise ProblemError(404, f"{name}: there is no audit yet")
    content = await service_of(request).workers.call(evaluation.audit, run.folder)
    return Response(content, media_type=_MEDIA["json"])


@router.get("/report", summary="The report as one HTML page")
async def report(name: CampaignName, runs: Runs) -> Response:
    """Return the report, in a sandbox: it can reach neither the service nor its cookies."""
    run = await runs.run(name)
    path = run.report_path
    if not await asyncio.to_thread(path.is_file):
        raise ProblemError(404, f"{name}: there is no report yet")
    script = await asyncio.to_thread(_script_of, path)
    policy = (
        f"sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
        f"img-src data:; script-src {script}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    )
    headers = {"content-security-policy": policy, "x-frame-options": "SAMEORIGIN"}
    return FileResponse(path, media_type="text/html; charset=utf-8", headers=headers)


def _script_of(path: Path) -> str:
    """Return the hash of the only script that a report may run, as its own policy states it."""
    with path.open(encoding="utf-8") as page:
        found = _HASH.search(page.read(_HEAD))
    return f"'{found[1]}'" if found else "'none'"
