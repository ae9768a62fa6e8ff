"""Routes of campaigns: create, estimate, start, watch, pause, resume, retune, cancel and delete.

A campaign that comes over HTTP may name only what the operator's file allows. Otherwise its author
could have a key sent to a server of their own (`base_url` with `api_key_env`), read a file of this
machine (`space`, `template`, a model's weights), write to another database (`journal`), or spend
without limit.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from llm_elicit._util import files
from llm_elicit._util.settings import as_mapping, parse_yaml, to_yaml, validate
from llm_elicit._util.text import not_utf8
from llm_elicit.backends import provider_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import OWN_BACKENDS, Judge, PluginJudge
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import estimates
from llm_elicit.orchestrator.engine import check
from llm_elicit.orchestrator.journal.control import ENDED, RunState, Wanted, is_active
from llm_elicit.pipeline.campaign_run import CampaignRun
from llm_elicit.pipeline.repeats import plan_repeats
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.run_index import NAME, Labels, RunOrder, RunPage, RunQuery
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.pipeline.stages import check_run
from llm_elicit.service.responses import ProblemError
from llm_elicit.service.schemas import CampaignYaml, DryRun, Limits
from llm_elicit.service.security import ADMIN, READ, describe_action, media_type
from llm_elicit.service.settings import Bounds, ServerSettings
from llm_elicit.service.spaces import library_of
from llm_elicit.service.state import KEPT_DAYS, CampaignName, NamedRun, Service, Shared

WHERE = "campaign"
"""The name of the campaign in messages."""

_OPERATORS = {
    "runs": "the server uses its own folder",
    "part_of": "only the server sets it",
    "grid": "start the cells of a grid one by one",
}


def read_untrusted(body: bytes, kind: str, settings: ServerSettings) -> Campaign:
    """Return the campaign in a request, ready to run.

    Args:
        body: its text.
        kind: "json" or "yaml".
        settings: what it may name.

    Raises:
        InputError: it breaks a rule, or names what the server does not allow.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{WHERE}: {not_utf8(error)}") from None
    if kind == "yaml":
        data = parse_yaml(text, WHERE)
    else:
        try:
            data = json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_key_once)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{WHERE}: not valid JSON: {error}") from None
    campaign = validate_campaign(data, settings)
    run = Run.open(campaign)
    run.identity  # noqa: B018 - this reads the templates, and tries those of the operator
    return campaign


def validate_campaign(data: Any, settings: ServerSettings) -> Campaign:
    """Return the campaign of parsed data; nothing is read but lists of names.

    Raises:
        InputError: it breaks a rule, or names what the server does not allow.

    Examples:
        >>> data = {"name": "try", "space": "penguins",
        ...         "judges": [{"name": "gpt", "backend": "openai", "model": "m"}]}
        >>> validate_campaign(data, ServerSettings())
        Traceback (most recent call last):
        ...
        llm_elicit.errors.InputError: campaign: judge 'gpt': this server allows no backend \
'openai'; it allows simulated, human
    """
    data = as_mapping(data, WHERE)
    for key, why in _OPERATORS.items():
        if key in data:
            raise InputError(f"{WHERE}: {key}: {why}; remove it")
    if data.get("journal", settings.journal) != settings.journal:
        raise InputError(f"{WHERE}: journal: this server has its own; remove it")
    # Backends are checked before their settings are read, which imports plug-ins.
    backends = list(dict.fromkeys(allowed.backend for allowed in settings.judges))
    stated_judges = data.get("judges")
    for judge in stated_judges if isinstance(stated_judges, list) else []:
        backend = judge.get("backend") if isinstance(judge, dict) else None
        if isinstance(backend, str) and backend not in backends:
            raise InputError(
                f"{WHERE}: judge {str(judge.get('name'))[:80]!r}: this server allows no backend "
                f"{backend[:80]!r}; it allows {', '.join(backends) or 'none'}"
            )
    campaign = validate(Campaign, data, WHERE)
    judges = tuple(_with_price(judge, settings) for judge in campaign.judges)
    _check_size(campaign, settings.bounds)
    most, stated = settings.bounds.max_cost, campaign.limits.max_cost
    paid = next((judge.name for judge in judges if not provider_of(judge).free), None)
    if paid is not None and most is None:
        raise InputError(
            f"{WHERE}: judge {paid!r} costs money, which this server allows only if its "
            "configuration sets bounds.max_cost"
        )
    if paid is not None and stated is None:
        raise InputError(
            f"{WHERE}: limits.max_cost: judge {paid!r} costs money; give a cap of at most "
            f"{most:g} USD"
        )
    if paid is not None:
        check_limits(stated, None, settings.bounds, f"{WHERE}: limits.")
    prompts = files.available("prompts", ".md")
    for name in (campaign.design.template, *campaign.design.templates, *campaign.pilot):
        if name not in prompts:
            text = re.sub(r"\s+", " ", name)[:100]
            raise InputError(f"{WHERE}: no template {text!r}; this server has {', '.join(prompts)}")
    changes = {
        "judges": judges,
        "space": library_of(settings).find(campaign.space),
        "runs": settings.runs,
        "journal": settings.journal,
    }
    return campaign.model_copy(update=changes)


def check_limits(
    max_cost: float | None, concurrency: int | None, bounds: Bounds, prefix: str = ""
) -> None:
    """Check limits of a run; `prefix` begins the message.

    Raises:
        InputError: a limit is above the server's.
    """
    most = bounds.max_cost
    if max_cost is not None and most is not None and max_cost > most:
        raise InputError(
            f"{prefix}max_cost: {max_cost:g} USD; this server allows at most {most:g} USD"
        )
    if concurrency is not None and concurrency > bounds.concurrency:
        raise InputError(
            f"concurrency: {concurrency}; this server allows at most {bounds.concurrency}"
        )


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"duplicate key {twice!r}; remove one")
    return dict(pairs)


def _with_price(judge: Judge, settings: ServerSettings) -> Judge:
    """Return a judge with the price that the operator states.

    Raises:
        InputError: no entry of the server's file has its address, key and model.
    """
    prefix = f"{WHERE}: judge {judge.name!r}"
    if "price" in judge.model_fields_set:
        raise InputError(f"{prefix}: price: the server's configuration sets it; remove it")
    if judge.backend not in OWN_BACKENDS:  # a plug-in
        further = judge.model_fields_set - set(PluginJudge.model_fields) - {"base_url"}
        if further:
            raise InputError(
                f"{prefix}: {sorted(further)[0]}: this server does not allow it; remove it"
            )
    entries = [entry for entry in settings.judges if entry.backend == judge.backend]
    names = ("profile", "base_url", "api_key_env")
    place = [*(getattr(judge, name, None) for name in names), getattr(judge, "extra_headers", {})]
    if getattr(judge, "extra_body", {}):
        raise InputError(f"{prefix}: extra_body: this server does not allow it; remove it")
    model = getattr(judge, "model", None)
    for entry in entries:
        own_file = entry.backend == "local" and str(model).endswith(".gguf")
        named = model is None or (model in entry.models if entry.models else not own_file)
        if named and place == [*(getattr(entry, name) for name in names), entry.extra_headers]:
            price = entry.price
            return judge if price is None else judge.model_copy(update={"price": price})
    allowed = []
    for entry in entries:
        words = [f"profile {entry.profile}"] if entry.profile else []
        words.append(f"base_url {entry.base_url}" if entry.base_url else "no base_url")
        words.append(f"api_key_env {entry.api_key_env}" if entry.api_key_env else "no api_key_env")
        words.append(f"models {', '.join(entry.models)}" if entry.models else "any model")
        allowed.append(" with ".join(words))
    raise InputError(
        f"{prefix}: this server does not allow this combination of profile, base_url, "
        f"api_key_env, extra_headers and model; for {judge.backend} it allows {'; '.join(allowed)}"
    )


def _check_size(campaign: Campaign, bounds: Bounds) -> None:
    design, direct = campaign.design, campaign.direct
    direct_count = 0 if direct is None else sum(direct.model_dump().values())
    experts = sum(len(judge.experts) for judge in campaign.people.values())
    rounds = design.rounds.count if design.rounds else 1
    sizes = [
        ("judges", len(campaign.judges), bounds.judges),
        ("judges: experts", experts, bounds.experts),
        ("design.pairs", design.pairs, bounds.pairs),
        ("design.rounds.count", rounds, bounds.rounds),
        ("direct", direct_count, bounds.direct),
        ("questions", len(campaign.judges) * (design.questions + direct_count), bounds.questions),
        ("fit.samples", campaign.fit.samples, bounds.samples),
    ]
    for judge in campaign.judges:
        for name in ("concurrency", "attempts", "timeout"):
            value = getattr(judge, name)
            sizes.append((f"judge {judge.name!r}: {name}", value, getattr(bounds, name)))
    for name, value, most in sizes:
        if value > most:
            raise InputError(f"{WHERE}: {name}: {value:,}; this server allows at most {most:,}")


router = APIRouter(prefix="/api/v1/campaigns", tags=["campaigns"])

_DAY = r"^(\d{4}-\d{2}-\d{2})?$"

_LATER: dict[int | str, dict[str, Any]] = {
    202: {"model": RunSnapshot, "description": "It has not reached the new state yet."}
}
_CAMPAIGN = {"$ref": "#/components/schemas/run.Campaign"}
_BODY = {
    "requestBody": {
        "description": "A campaign as in its YAML file.",
        "required": True,
        "content": {
            "application/json": {"schema": _CAMPAIGN},
            "application/yaml": {"schema": {"type": "string", "contentSchema": _CAMPAIGN}},
        },
    }
}
_KINDS = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}

WaitSeconds = Annotated[
    float, Query(ge=0, le=60, description="Seconds to wait for the run to reach the new state.")
]


async def run_query(  # noqa: PLR0913 - the parameters of an address
    *,
    text: Annotated[
        str, Query(alias="q", max_length=200, description="Words in the name or a tag.")
    ] = "",
    state: Literal[RunState, "unreadable", ""] = "",
    tag: Annotated[str, Query(max_length=40)] = "",
    since: Annotated[str, Query(pattern=_DAY, description="First day of creation.")] = "",
    until: Annotated[str, Query(pattern=_DAY, description="Last day of creation.")] = "",
    archived: Annotated[bool, Query(description="The archived ones, not the others.")] = False,
    sort: RunOrder = "active",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> RunQuery:
    """Return the list that a request asks for; a dependency."""
    return RunQuery(text, state, tag, since, until, archived, sort, offset, limit)


Listing = Annotated[RunQuery, Depends(run_query)]


@router.get("", summary="A page of the list of campaigns", dependencies=READ)
async def list_campaigns(service: Shared, query: Listing) -> RunPage:
    """Return the snapshots of some campaigns, and how many there are by state and tag."""
    return await service.page(query)


@router.put("/{name}/labels", summary="Tag or archive a campaign", dependencies=ADMIN)
async def label(service: Shared, name: CampaignName, labels: Labels) -> Labels:
    """Replace the labels of a campaign."""
    run = await service.run(name)
    await asyncio.to_thread(labels.write, run.folder)
    await asyncio.to_thread(service.index.refresh, name)
    return labels


@router.post("/{name}/restore", summary="Undo a deletion", status_code=204, dependencies=ADMIN)
async def restore(service: Shared, name: CampaignName) -> Response:
    """Bring the campaign back that was last deleted under this name."""
    await asyncio.to_thread(service.restore, name)
    return Response(status_code=204)


@router.post(
    "", summary="Create a campaign", status_code=201, dependencies=ADMIN, openapi_extra=_BODY
)
async def create(
    request: Request,
    response: Response,
    service: Shared,
    start: Annotated[bool, Query(description="Whether to start at once.")] = True,
    idempotency_key: Annotated[
        str,
        Header(
            max_length=200,
            description="A repeated request with the same key gets the same run, for a day.",
        ),
    ] = "",
) -> RunSnapshot:
    """Create a campaign, and start it unless it is to wait."""

    async def add() -> str:
        job = await begin(service, await _campaign(request, service), paused=not start)
        describe_action(request, "create", job.name)
        return job.name

    keys, key = service.creation_keys, idempotency_key
    if not key:
        name = await add()
    else:
        sent = b"%s %s" % (str(request.query_params).encode(), await request.body())
        async with service.creating:
            known = await asyncio.to_thread(keys.run_of, key, sent)
            if known is not None and service.exists(known):
                name = known
            else:
                name = await add()
                await asyncio.to_thread(keys.add, key, sent, name)
    response.headers["location"] = f"/api/v1/campaigns/{name}"
    return await service.snapshot(name)


@router.post(
    "/dry-run",
    summary="Show a campaign's questions and cost without starting it",
    dependencies=READ,
    openapi_extra=_BODY,
)
async def dry_run(request: Request, service: Shared) -> DryRun:
    """Return some prompts and the estimated costs of a campaign; nothing is kept or sent."""
    campaign = await _campaign(request, service)
    return await service.workers.call(dry_run_of, campaign, examples=True)


@router.get("/{name}", summary="A campaign's state, counts and costs", dependencies=READ)
async def read_campaign(service: Shared, name: CampaignName) -> RunSnapshot:
    """Return a campaign's snapshot."""
    return await service.snapshot(name)


@router.get("/{name}/campaign", summary="A campaign's settings", dependencies=READ)
async def settings(run: NamedRun) -> CampaignYaml:
    """Return a campaign's settings as YAML."""
    text = await asyncio.to_thread(yaml_of, run)
    return CampaignYaml(name=run.campaign.name, yaml=text)


@router.get(
    "/{name}/estimate", summary="Estimated cost of the unanswered questions", dependencies=READ
)
async def estimate(service: Shared, run: NamedRun) -> DryRun:
    """Return the estimated cost of the questions without an answer."""
    return await service.workers.call(dry_run_of, run.campaign, examples=False)


@router.post("/{name}/start", summary="Start or continue", dependencies=ADMIN)
async def start(
    service: Shared,
    name: CampaignName,
    retry_failed: Annotated[
        bool, Query(description="Whether to ask again questions that were given up or set aside.")
    ] = False,
) -> RunSnapshot:
    """Start a campaign that waits, is paused, or has ended before its report."""
    job = service.local_run(name)
    if job is not None:
        await _check_askable(service, job.run)
        await job.resume(retry_failed=retry_failed)
        return job.snapshot()
    run = await service.run(name)
    if await asyncio.to_thread(is_active, run.location):  # in another process
        await service.request(name, "running")
        return await service.snapshot(name)
    await _check_askable(service, run)
    return service.runtime.start(run, owner="service", retry_failed=retry_failed).snapshot()


@router.post(
    "/{name}/repeat",
    summary="Ask the same questions again, in a new run",
    status_code=201,
    dependencies=ADMIN,
)
async def repeat(
    response: Response,
    service: Shared,
    name: CampaignName,
    repeat_name: Annotated[
        str | None,
        Query(alias="as", pattern=NAME, description="Name of the repeat; default: NAME.repeat-N."),
    ] = None,
) -> RunSnapshot:
    """Repeat a campaign that has ended, past the cache; an unfinished repeat goes on."""
    if (await service.snapshot(name)).state not in ENDED:
        raise ProblemError(409, f"campaign {name!r} is running; repeat it when it has ended")
    run = await service.run(name)
    await _check_askable(service, run)
    (planned,) = await asyncio.to_thread(plan_repeats, run.folder, repeat_name)
    response.headers["location"] = f"/api/v1/campaigns/{planned.campaign.name}"
    return await start(service, planned.campaign.name)


@router.post("/{name}/resume", summary="Resume a paused campaign", dependencies=ADMIN)
async def resume(service: Shared, name: CampaignName) -> RunSnapshot:
    """Go on with a campaign that is paused."""
    if service.local_run(name) is not None:
        return await start(service, name)
    await service.request(name, "running")
    return await service.snapshot(name)


@router.post(
    "/{name}/pause", summary="Pause: send no more requests", dependencies=ADMIN, responses=_LATER
)
async def pause(
    response: Response, service: Shared, name: CampaignName, wait: WaitSeconds = 5.0
) -> RunSnapshot:
    """Pause a campaign; 202 if answers in flight have not arrived yet."""
    return await _follow(response, service, name, "paused", CampaignRun.pause, wait)


@router.post(
    "/{name}/cancel", summary="Cancel, and keep all answers", dependencies=ADMIN, responses=_LATER
)
async def cancel(
    response: Response,
    service: Shared,
    name: CampaignName,
    drain: Annotated[bool, Query(description="Whether to wait for answers in flight.")] = True,
    wait: WaitSeconds = 5.0,
) -> RunSnapshot:
    """Cancel a campaign; 202 if it has not ended yet."""
    work = partial(CampaignRun.cancel, drain=drain)
    return await _follow(response, service, name, "cancelled", work, wait)


async def _follow(
    response: Response,
    service: Service,
    name: str,
    state: Wanted,
    work: Callable[[CampaignRun], Coroutine[Any, Any, None]],
    wait: float,
) -> RunSnapshot:
    """Await work on a run of this process, or ask another process to bring its run to a state."""
    job, followed = service.local_run(name), False
    if job is None:
        await service.request(name, state)
    else:
        followed = await service.wait_for(wait, work(job))
    response.status_code = 200 if followed else 202
    return await service.snapshot(name)


@router.post("/{name}/retune", summary="Change limits of a running campaign", dependencies=ADMIN)
async def retune(service: Shared, name: CampaignName, limits: Limits) -> RunSnapshot:
    """Change the number of concurrent requests or the cap on the cost."""
    check_limits(limits.max_cost, limits.concurrency, service.settings.bounds)
    job = service.local_run(name)
    if job is None:
        await service.request(name, **limits.model_dump())
    else:
        await job.retune(**limits.model_dump())
    return await service.snapshot(name)


@router.delete(
    "/{name}",
    summary="Delete a campaign",
    status_code=204,
    dependencies=ADMIN,
    responses={202: {"description": "It is cancelled, and will be deleted."}},
)
async def delete(
    service: Shared,
    name: CampaignName,
    wait: WaitSeconds = 30.0,
    purge: Annotated[
        bool, Query(description=f"Whether to delete it for good, not after {KEPT_DAYS} days.")
    ] = False,
) -> Response:
    """Cancel a campaign and remove its links; it can be restored unless it is purged."""
    if purge and not service.exists(name) and service.deleted(name):
        await asyncio.to_thread(service.remove_deleted, name, 0.0)
        return Response(status_code=204)
    done = await service.wait_for(wait, service.delete(name, purge=purge))
    return Response(status_code=204 if done else 202)


def check_new(service: Service, name: str) -> None:
    """Check that no campaign has a name.

    Raises:
        ProblemError: one has it.
    """
    if service.exists(name):
        raise ProblemError(409, f"a campaign {name!r} already exists; choose another name")


async def begin(service: Service, campaign: Campaign, *, paused: bool) -> CampaignRun:
    """Begin a new campaign.

    Raises:
        ProblemError: its name is taken.
        InputError: it is to start at once, and a key is missing or a cap cannot be held.
    """
    run = await asyncio.to_thread(Run.open, campaign)
    if not (paused or service.exists(campaign.name)):
        await _check_askable(service, run)
    check_new(service, campaign.name)
    if campaign.journal and service.deleted(campaign.name):  # its journal is on the server still
        raise ProblemError(
            409,
            f"a deleted campaign has the name {campaign.name!r}; restore it, delete it with "
            "purge=true, or choose another name",
        )
    return service.runtime.start(run, paused=paused, owner="service")


async def _campaign(request: Request, service: Service) -> Campaign:
    """Return the campaign in the body of a request.

    Raises:
        ProblemError: the body is neither JSON nor YAML.
        InputError: it breaks a rule, or names what the server does not allow.
    """
    kind = _KINDS.get(media_type(request))
    if kind is None:
        raise ProblemError(415, "send the campaign as application/json or application/yaml")
    body = await request.body()
    return await service.workers.call(read_untrusted, body, kind, service.settings)


async def _check_askable(service: Service, run: Run) -> None:
    """Check before a run starts or goes on that its judges can be asked; nothing is sent.

    Raises:
        InputError: a key is missing, or a cap cannot be held.
    """
    await service.workers.call(check_judges, run.campaign)


def check_judges(campaign: Campaign) -> None:
    """Check that the judges of a campaign can be asked; nothing is sent.

    Raises:
        InputError: a key is missing, or a cap cannot be held.
    """
    run = Run.open(campaign)
    check_run(run)
    check(run.study)


def yaml_of(run: Run) -> str:
    """Return a campaign's settings as YAML, without folders of the server."""
    return to_yaml(run.campaign.shareable())


def dry_run_of(campaign: Campaign, *, examples: bool) -> DryRun:
    """Return a dry run's parts; it is called in the process of a worker."""
    run = Run.open(campaign)
    check_run(run)
    arguments = campaign, run.space, run.plan
    lines = estimates.estimate(*arguments, run.answered, run.measured_tokens)
    prompts = estimates.example_prompts(*arguments) if examples else []
    return DryRun(
        campaign.name, len(run.plan.a), list(lines), [prompt.messages for prompt in prompts]
    )
