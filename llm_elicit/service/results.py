"""Results of a campaign: comparisons, beliefs, audit, report, and the stream of its events.

Tables, samples and densities are computed in a worker process. Events are server-sent events whose
`id` is their number: a browser that reconnects sends the last one as `Last-Event-ID`, so no event
is lost or repeated. A slow reader keeps its position in the journal and buffers nothing; a reader
that reads nothing for a minute is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import json
import re
import secrets
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import Field
from starlette.types import Receive, Scope, Send

from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.text import visible
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.comparisons.table_files import plain_cells
from llm_elicit.errors import ConflictError, ElicitError, InputError
from llm_elicit.orchestrator.journal.control import ENDED, RunEvent
from llm_elicit.orchestrator.journal.questions import is_begun
from llm_elicit.orchestrator.judgments import StalePlanError
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.answers import AnswerPage, AnswerQuery, Verdict, read_answers
from llm_elicit.pipeline.manifest import FILE as MANIFEST
from llm_elicit.pipeline.manifest import digest_of, digest_of_file
from llm_elicit.pipeline.run_folder import AUDIT, Run
from llm_elicit.pipeline.run_index import NAME
from llm_elicit.pipeline.run_progress import EventLog
from llm_elicit.service import schemas
from llm_elicit.service.auth import Session, session_of
from llm_elicit.service.responses import ProblemError, logger
from llm_elicit.service.security import READ
from llm_elicit.service.state import CampaignName, NamedRun, Service, Shared
from llm_elicit.spaces.features import Feature

if TYPE_CHECKING:
    from llm_elicit.pipeline import results
else:  # for workers alone
    results = LazyModule("llm_elicit.pipeline.results")

stream = APIRouter(prefix="/api/v1/campaigns", tags=["campaigns"])

HEARTBEAT = 5.0
"""Seconds without an event after which a keep-alive signal is sent."""

_ALIVE = format_sse_event(data_str="{}", event="alive")
"""A keep-alive signal as an event, since pages do not see comments; it has no number."""

_EVENTS = {
    "type": "string",
    "contentMediaType": "text/event-stream",
    "contentSchema": {"$ref": "#/components/schemas/run.RunEvent"},
}
"""The schema of a stream, whose events have an object each as `data`."""

_MAX_EVENT = 10**15
"""Upper bound of the numbers of events."""

_READ_SECONDS = 60.0
"""Seconds that a reader may take to read a part."""


@stream.get(
    "/{name}/events",
    summary="Events as they happen (server-sent events)",
    dependencies=READ,
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": _EVENTS}}},
        204: {"description": "The run has ended, and there are no further events."},
    },
)
async def events(
    request: Request,
    service: Shared,
    name: CampaignName,
    since: Annotated[
        int, Query(ge=0, le=_MAX_EVENT, description="Number of the last event received.")
    ] = 0,
    alive: Annotated[
        bool,
        Query(description="Whether to send keep-alive signals as events `alive`, not as comments."),
    ] = False,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Return all events after a number, and those to come until the run ends."""
    last_event = int(last_event_id) if re.fullmatch(r"[0-9]{1,15}", last_event_id) else since
    job = service.local_run(name)
    if job is not None and job.state in ENDED and 0 < job.snapshot().seq <= last_event:
        return Response(status_code=204)  # a browser does not connect again then
    run = await service.run(name)
    log = job if job is not None else EventLog(run.location, here=False)
    source = log.events(last_event)
    if service.watching >= service.settings.bounds.watchers:
        raise ProblemError(503, "too many event streams are open", {"retry-after": "10"})
    sign = _ALIVE if alive else KEEPALIVE_COMMENT
    return _EventStream(service, _parts(service, source, session_of(request), sign))


class _EventStream(StreamingResponse):
    """A stream of events, whose reader must read, and not sign out."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, parts: AsyncGenerator[bytes]) -> None:
        self._service, self._parts = service, parts
        # A proxy that gathered parts would show a page nothing.
        super().__init__(self._parts, headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts until the source ends, the reader leaves, or it reads no more."""

        async def patient(message: Any) -> None:
            async with asyncio.timeout(_READ_SECONDS):
                await send(message)

        self._service.watching += 1
        try:
            async with aclosing(self._parts):
                await super().__call__(scope, receive, patient)
        except TimeoutError:
            pass  # a reader that reads nothing is disconnected
        finally:
            self._service.watching -= 1


async def _parts(
    service: Service, source: AsyncIterator[RunEvent], session: Session | None, sign: bytes
) -> AsyncGenerator[bytes]:
    """Yield events as text, with signs of life while nothing happens, until the service stops.

    That the session was ended is seen within `HEARTBEAT` as well.
    """
    clock = asyncio.get_running_loop().time
    closing = asyncio.ensure_future(service.closing.wait())
    coming: asyncio.Future[RunEvent | None] | None = None
    try:
        yield sign
        checked = clock()
        while not closing.done():
            if session is not None and clock() - checked >= HEARTBEAT:
                if await asyncio.to_thread(service.sessions.has_ended, session):
                    return
                checked = clock()
            coming = coming or asyncio.ensure_future(_next(source))
            done, _ = await asyncio.wait(
                (coming, closing), timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED
            )
            if coming in done:
                event, coming = coming.result(), None
                if event is None:
                    return
                data = event.model_dump_json()
                yield format_sse_event(data_str=data, event=event.kind, id=str(event.seq))
            elif not done:
                yield sign
    finally:
        closing.cancel()
        if coming is not None:
            coming.cancel()


async def _next(source: AsyncIterator[RunEvent]) -> RunEvent | None:
    """Return the next event; None after the last. `StopAsyncIteration` cannot leave a task.

    A journal that cannot be read ends the stream, and the browser connects again.
    """
    try:
        return await anext(source, None)
    except ElicitError as error:
        logger.warning("an event stream ended: %s", error)
        return None


Format = Literal["json", "parquet"]
TableFormat = Literal["json", "jsonl", "csv", "parquet"]

_MAX_ATTEMPTS = 3
"""Largest number of attempts to read a table while rounds are being planned."""

router = APIRouter(prefix="/api/v1/campaigns/{name}", tags=["results"], dependencies=READ)

comparing = APIRouter(tags=["results"], dependencies=READ)

_MEDIA = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
_MAX_PANELS = 20
"""Number of panels that are kept."""


def _in_formats(model: type, *forms: str) -> dict[int | str, dict[str, Any]]:
    """Return the description of an answer that is JSON, or a file in another format."""
    file = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"model": model, "content": {_MEDIA[form]: file for form in forms}}}


def _described(name: str) -> dict[str, Any]:
    """Return the description of an answer whose schema `result_schemas` returns."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"content": {_MEDIA["json"]: {"schema": schema}}}


def result_schemas() -> dict[str, Any]:
    """Return the JSON Schemas, by name, of what the service itself could not import."""
    return results.schemas("#/components/schemas/")


_MAX_PANEL = 8
"""Most campaigns on one panel, which is made while the browser waits."""

_HASH = re.compile(r"script-src '(sha256-[A-Za-z0-9+/=]+)'")
_HEAD_CHARACTERS = 20_000
"""Characters at the start of a report that contain its policy."""


class _Export(FileResponse):
    """A file that is removed once it is sent, or its reader has left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink(missing_ok=True)


@router.get(
    "/comparisons",
    summary="The judgments so far as JSON, JSONL, CSV or Parquet",
    responses=_in_formats(schemas.ComparisonPage, "jsonl", "csv", "parquet"),
)
async def comparisons(
    service: Shared,
    run: NamedRun,
    form: Annotated[TableFormat, Query(alias="format")] = "json",
    offset: Annotated[int, Query(ge=0, description="For JSON: number of rows to skip.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=10_000, description="For JSON: largest number of rows.")
    ] = 1_000,
) -> Response:
    """Return a page of the journal's judgments as JSON, or all of them as a file."""
    if form == "json":
        content = await service.workers.call(_page, run.folder, offset, limit)
        return Response(content, media_type=_MEDIA["json"])
    beside = service.settings.own_folder / "exports"
    await asyncio.to_thread(beside.mkdir, mode=0o700, parents=True, exist_ok=True)
    path = beside / f"{secrets.token_hex(8)}.{form}"
    try:
        await service.workers.call(_table, run.folder, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return _Export(path, media_type=_MEDIA[form], filename=f"{run.campaign.name}.{form}")


async def answer_query(  # noqa: PLR0913 - the parameters of an address
    *,
    judge: Annotated[str, Query(max_length=200)] = "",
    verdict: Verdict | Literal[""] = "",
    orders: Annotated[
        Literal["differ", ""],
        Query(description="`differ`: another point was chosen in each order."),
    ] = "",
    pair: Annotated[str, Query(pattern=r"^\d{0,15}$", description="Number of a pair.")] = "",
    feature: Annotated[str, Query(max_length=200)] = "",
    low: Annotated[str, Query(max_length=40, description="Lowest value of `feature`.")] = "",
    high: Annotated[str, Query(max_length=40, description="Highest value of `feature`.")] = "",
    sort: Annotated[
        Literal["asked", "residual"],
        Query(description="`residual`: what the judge's belief expects least first."),
    ] = "asked",
    after: Annotated[int, Query(ge=0, le=10**15, description="`following` of a page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
) -> AnswerQuery:
    """Return the page of answers that a request asks for; a dependency. Empty values are none."""
    number = int(pair) if pair else None
    judges = (judge,) if judge else ()
    return AnswerQuery(judges, verdict, orders, number, feature, low, high, sort, after, limit)


AnswersQuery = Annotated[AnswerQuery, Depends(answer_query)]


@router.get("/answers", summary="Questions and answers as sent, a page at a time")
async def answers(service: Shared, run: NamedRun, query: AnswersQuery) -> AnswerPage:
    """Return some questions with prompts, replies and verdicts, both orders side by side."""
    return await service.workers.call(read_answers, run.folder, query)


@router.get("/beliefs", summary="The judges whose beliefs are fitted")
async def beliefs(run: NamedRun) -> list[schemas.BeliefSummary]:
    """Return the judges that have a belief."""
    judges = await asyncio.to_thread(lambda: list(run.beliefs))
    return [schemas.BeliefSummary(judge) for judge in judges]


@router.get("/beliefs/{judge}", summary="A belief's marginals")
async def marginals(service: Shared, run: NamedRun, judge: str) -> list[schemas.Marginal]:
    """Return the marginal of every feature, natural units."""
    return await service.workers.call(_marginals, run.folder, judge)


@router.get(
    "/beliefs/{judge}/samples",
    summary="Points drawn from a belief",
    responses=_in_formats(schemas.Samples, "parquet"),
)
async def samples(
    service: Shared,
    run: NamedRun,
    judge: str,
    n: Annotated[int, Query(ge=1)] = 1_000,
    seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    form: Annotated[Format, Query(alias="format")] = "json",
) -> Response:
    """Return points in natural units, equal for equal seeds; JSON has `columns` and `data`."""
    most = service.settings.bounds.samples
    if n > most:
        raise ProblemError(
            422,
            f"n: {n:,} points; this server gives at most {most:,} in one request; ask for fewer, "
            "or several times with other seeds",
        )
    content = await service.workers.call(_samples, run.folder, judge, n, seed, form)
    return Response(content, media_type=_MEDIA[form])


@router.post(
    "/beliefs/{judge}/log-prob",
    summary="Log densities of points under a belief",
    responses=_in_formats(schemas.LogProb, "parquet"),
)
async def log_prob(
    service: Shared,
    run: NamedRun,
    judge: str,
    points: schemas.Points,
    form: Annotated[Format, Query(alias="format")] = "json",
) -> Response:
    """Return log densities in nats; categories are given by their words."""
    content = await service.workers.call(_log_prob, run.folder, judge, points.points, form)
    return Response(content, media_type=_MEDIA[form])


async def _check_written(run: Run, kind: str, path: Path) -> None:
    """Check that a run has a file.

    Raises:
        ProblemError: it has none.
    """
    if not await asyncio.to_thread(path.is_file):
        raise ProblemError(
            404, f"{run.campaign.name}: no {kind} yet; it is written when the run ends"
        )


@router.get(
    "/audit", summary="The numbers of the report", responses={200: _described("audit.Audit")}
)
async def audit(service: Shared, run: NamedRun) -> Response:
    """Return the audit."""
    await _check_written(run, "audit", run.folder / AUDIT)
    content = await service.workers.call(_audit, run.folder)
    return Response(content, media_type=_MEDIA["json"])


@router.get("/report", summary="The report as one HTML page", response_class=HTMLResponse)
async def report(run: NamedRun) -> Response:
    """Return the report, in a sandbox: it can reach neither the service nor its cookies."""
    path = run.report_path
    await _check_written(run, "report", path)

    def head() -> str:
        with path.open(encoding="utf-8") as page:
            return page.read(_HEAD_CHARACTERS)

    headers = page_headers(await asyncio.to_thread(head))
    return FileResponse(path, media_type="text/html; charset=utf-8", headers=headers)


async def report_text(run: Run) -> str:
    """Return the report as HTML.

    Raises:
        ProblemError: there is none yet.
    """
    await _check_written(run, "report", run.report_path)
    return await asyncio.to_thread(run.report_path.read_text, "utf-8")


def page_headers(head: str) -> dict[str, str]:
    """Return the headers of a page of the report, in a sandbox, by the beginning of its HTML."""
    # The hash of the only script that it may run, as its own policy states it.
    match = _HASH.search(html.unescape(head[:_HEAD_CHARACTERS]))
    script = f"'{match[1]}'" if match else "'none'"
    policy = (
        f"sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; "
        f"img-src data:; script-src {script}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    )
    return {"content-security-policy": policy, "x-frame-options": "SAMEORIGIN"}


@comparing.get(
    "/api/v1/compare",
    summary="The judges of some campaigns side by side",
    responses={200: _described("audit.JudgeComparison")},
)
async def compare(
    service: Shared, run: Annotated[list[Annotated[str, Field(pattern=NAME)]], Query()]
) -> dict[str, Any]:
    """Return the agreement of judges, the distances of their beliefs, and their ranking."""
    if not run:
        raise ProblemError(422, "name the campaigns to compare")
    return await service.workers.call(_compare, await _audited_folders(service, run))


async def panel(service: Service, names: Sequence[str]) -> str:
    """Return the panel of some campaigns as one HTML page, computed again if a run has changed."""
    if not 0 < len(names) <= _MAX_PANEL:
        raise ProblemError(
            422, f"{len(names)} campaigns; select 1 to {_MAX_PANEL}, or use llm-elicit panel"
        )
    folders = await _audited_folders(service, names)
    files = [folder / name for folder in folders for name in (MANIFEST, AUDIT)]
    digests = await asyncio.to_thread(lambda: [digest_of_file(file) for file in files])
    key = digest_of([names, digests])
    if key not in service.panels:
        text = await service.workers.call(_panel_page, folders)
        if len(service.panels) >= _MAX_PANELS:
            del service.panels[next(iter(service.panels))]
        service.panels[key] = text
    return service.panels[key]


async def _audited_folders(service: Service, names: Sequence[str]) -> list[Path]:
    """Return the folders of campaigns.

    Raises:
        ProblemError: one of them has no audit.
    """
    runs = [await service.run(name) for name in names]
    for run in runs:
        await _check_written(run, "audit", run.folder / AUDIT)
    return [run.folder for run in runs]


def _panel_page(folders: Sequence[Path]) -> str:
    """Return the panel of runs with audits as one HTML page."""
    return results.panel_page([Run.open(folder) for folder in folders])[1]


def _compare(folders: Sequence[Path]) -> dict[str, Any]:
    """Return a comparison as JSON data; the service itself could not read its class."""
    return stages.compare([Run.open(folder) for folder in folders]).model_dump(mode="json")


_Points = Sequence[Sequence[float | str] | Mapping[str, float | str]]
"""Points as lists in the order of the features, or as values by feature; categories as words."""


def _table(folder: Path, path: Path) -> Path:
    """Write the judgments so far to a file, whose suffix gives the format."""
    for _ in range(_MAX_ATTEMPTS):
        run = Run.open(folder)
        if not is_begun(run.location):
            return Comparisons.empty(run.space.names).write(path)
        with contextlib.suppress(StalePlanError):
            return stages.export(run, path)
    raise ConflictError(f"{run.campaign.name}: rounds are being planned; try again")


def _page(folder: Path, offset: int, limit: int) -> bytes:
    """Return some of the judgments as JSON: the same values as in a file."""
    with tempfile.TemporaryDirectory() as beside:
        lines = _table(folder, Path(beside) / "judgments.jsonl").read_bytes().splitlines()
    rows = b",".join(lines[offset : offset + limit])
    return b'{"total": %d, "offset": %d, "rows": [%s]}' % (len(lines), offset, rows)


def _audit(folder: Path) -> bytes:
    """Return the numbers of the report as JSON."""
    return Run.open(folder).audit.model_dump_json().encode()


def _marginals(folder: Path, judge: str) -> list[schemas.Marginal]:
    """Return the mean, the quantiles or the shares of every feature under a belief."""
    run = Run.open(folder)
    belief = _belief(run, judge)
    marginals = []
    for number, feature in enumerate(run.space.features):
        about = (feature.name, feature.label, feature.unit, feature.kind)
        if feature.categories:
            codes = belief.sample(10_000, seed=0)[:, number]
            counts = np.bincount(codes.astype(int), minlength=len(feature.categories))
            shares = (counts / counts.sum()).tolist()
            shares = dict(zip(feature.categories, shares, strict=True))
            marginals.append(schemas.Marginal(*about, shares=shares))
        else:
            marginal = belief.marginal(number)
            values = feature.column(np.array([marginal.mean, *marginal.quantiles.values()]))
            mean, *at = plain_cells(values)
            levels = dict(zip((f"{level:g}" for level in marginal.quantiles), at, strict=True))
            marginals.append(schemas.Marginal(*about, mean, marginal.sd, levels))
    return marginals


def _samples(folder: Path, judge: str, n: int, seed: int, form: Format) -> bytes:
    """Return points drawn from a belief, with the words of categories, and dates."""
    run = Run.open(folder)
    points = _belief(run, judge).sample(n, seed=seed)
    return _serialize(run.space.table_of(points), form)


def _log_prob(folder: Path, judge: str, points: _Points, form: Format) -> bytes:
    """Return the log densities of points under a belief, nats; null outside the support.

    Raises:
        InputError: a point lacks a feature, or has a value that its feature cannot have.
    """
    run = Run.open(folder)
    belief = _belief(run, judge)
    names = run.space.names
    values = np.empty((len(points), run.space.dimension))
    for row, point in enumerate(points):
        stated = list(point) if isinstance(point, Mapping) else names[: len(point)]
        if sorted(stated) != sorted(names) or len(point) != len(names):
            raise InputError(
                f"points[{row}]: {len(point)} values; give one for each of {', '.join(names)}"
            )
        cells = [point[name] for name in names] if isinstance(point, Mapping) else point
        for number, (feature, cell) in enumerate(zip(run.space.features, cells, strict=True)):
            values[row, number] = _value(feature, cell, row)
    log_probs = belief.log_prob(values)
    if form == "json":
        plain = [float(value) if np.isfinite(value) else None for value in log_probs]
        return json.dumps({"log_prob": plain}).encode()
    return _serialize(pd.DataFrame({"log_prob": log_probs}), form)


def _belief(run: Run, judge: str) -> Any:
    """Return a judge's belief.

    Raises:
        ProblemError: the judge has no belief.
    """
    if judge not in run.beliefs:
        judges = ", ".join(run.beliefs) or "none yet"
        raise ProblemError(
            404, f"{run.campaign.name}: no belief of {judge[:80]!r}; there are {judges}"
        )
    return run.beliefs[judge]


def _serialize(frame: pd.DataFrame, form: Format) -> bytes:
    if form == "json":
        rows = zip(*(plain_cells(column) for _, column in frame.items()), strict=True)
        return json.dumps({"columns": list(frame.columns), "data": list(rows)}).encode()
    written = io.BytesIO()
    frame.to_parquet(written)
    return written.getvalue()


def _value(feature: Feature, value: float | str, row: int) -> float:
    if isinstance(value, str) and (feature.categories or feature.kind == "date"):
        return feature.read(value)
    if not isinstance(value, str) and not feature.categories:
        return float(value)  # which may be outside the range
    excerpt = visible(repr(value), 60)
    expected = "the name of a category" if feature.categories else "a number"
    raise InputError(f"points[{row}]: {feature.name}: got {excerpt}; give {expected}")
