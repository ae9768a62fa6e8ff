"""The service's pages: the list of campaigns, one campaign, and the sign-in form.

They work without JavaScript: a form redirects to its page after a change, and pages reload
themselves. With JavaScript, parts of a page are fetched again after each event.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse
from pydantic import Field, ValidationError

from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal.control import ENDED
from llm_elicit.pipeline.answers import AnswerPage, AnswerQuery, read_answers
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run
from llm_elicit.pipeline.run_index import NAME, Labels, RunQuery
from llm_elicit.pipeline.snapshot import LiveView, RunSnapshot
from llm_elicit.service import auth, campaigns, responses, results, security
from llm_elicit.service.campaigns import Listing
from llm_elicit.service.responses import ProblemError, render, render_run, sentence, status_of
from llm_elicit.service.results import AnswersQuery
from llm_elicit.service.schemas import Limits
from llm_elicit.service.security import ADMIN, READ, SIGN_IN, Admin, Reader, Text, csrf_token
from llm_elicit.service.state import KEPT_DAYS, CampaignName, Service, Shared, service_of

router = APIRouter(include_in_schema=False)

_SCRIPTS = ("live.js", "judge.js", "copy.js")
_CACHE_HEADERS = {"cache-control": "max-age=300"}
_MOST_DELETED = 50
"""Largest number of deleted campaigns on the page."""

_MOST_ACTIONS = 100
"""Largest number of actions on a page of their record."""

_LARGE = 1_000
"""Number of answers from which on a run is opened before its answers are asked for."""

_SHARED_SECONDS = 1.0
"""Seconds for which pages get the same parts; less than they wait after an event."""

_UPDATES = 10.0
"""Most updates a second of all open pages together, so that they slow asking down little."""

_CSRF = "-csrf-token-of-the-session-"

_FOLLOW_TIMEOUT = 2.0
"""Seconds that a form waits until the run has followed its request."""


@dataclass(frozen=True)
class Parts:
    """Parts of a page, which replace the old ones in the browser.

    Attributes:
        parts: HTML by the part's name.
        title: the page's title.
        words: the state of the run, to be read out.
        ended: whether the run has ended.
        pause: seconds from an event until the browser asks again.
    """

    parts: dict[str, str]
    title: str = ""
    words: str = ""
    ended: bool = False
    pause: float = 1.0


@router.get("/static/style.css")
async def style() -> Response:
    """Return the style sheet."""
    return Response(responses.stylesheet(), media_type="text/css", headers=_CACHE_HEADERS)


@router.get("/static/{name}")
async def script(name: str) -> Response:
    """Return a script."""
    if name not in _SCRIPTS:
        raise ProblemError(404, "no such file")
    path = responses.STATIC / name
    return FileResponse(path, media_type="text/javascript", headers=_CACHE_HEADERS)


@router.get(SIGN_IN)
async def sign_in_form(request: Request, next: Annotated[str, Query()] = "") -> Response:
    """Return the form to sign in."""
    return security.page(request, "login", next=_local_path(next))


@router.post(SIGN_IN)
async def sign_in(request: Request, token: Text = "", next: Text = "") -> Response:
    """Sign in, and redirect to the page that was requested."""
    try:
        sessions = auth.session_of(request), auth.session_of(request, auth.FORMS)
        await security.check_csrf(request, *sessions)
        await security.sign_in(request, token.strip())
    except ProblemError as error:
        stated = {"next": _local_path(next), "message": sentence(error)}
        return security.page(request, "login", error.status_code, **stated)
    return _redirect(_local_path(next) or "/")


def _local_path(path: str) -> str:
    """Return the path and query of a page of this service; empty for any other address.

    Examples:
        >>> [_local_path(path) for path in ("/a?x=1", "//evil.example", "https://evil.example")]
        ['/a?x=1', '', '']
    """
    return path if re.fullmatch(r"/([A-Za-z0-9._~%?=&-][A-Za-z0-9._~%?=&/-]*)?", path) else ""


@router.post("/logout", dependencies=READ)
async def sign_out(request: Request) -> Response:
    """Sign out."""
    await security.sign_out(request)
    return _redirect(SIGN_IN)


@router.get("/")
async def home(
    request: Request,
    caller: Reader,
    query: Listing,
    undo: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Return the page with the campaigns.

    Args:
        request, caller, query: the request, and the list that it asks for.
        undo: campaigns that were deleted just now, and can be restored.
    """
    return await _home_page(request, caller, query, undo=undo or ())


@router.get("/parts", dependencies=READ)
async def home_parts(service: Shared, query: Listing) -> Parts:
    """Return the list of campaigns, the part of the page that changes."""
    return Parts({"list": render("list", **await _list_context(service, query))})


@router.post("/selection/{action}")
async def change_selection(
    request: Request,
    service: Shared,
    caller: Reader,
    action: Literal[
        "compare", "panel", "archive", "unarchive", "tag", "untag", "delete", "restore"
    ],
    run: Annotated[list[Annotated[str, Field(pattern=NAME)]] | None, Form()] = None,
    tag: Text = "",
) -> Response:
    """Do something with the campaigns that are selected in the list, and return to it.

    Comparing, and a panel, need to read alone. What is done before a refusal stays done.
    """
    if action not in ("compare", "panel"):
        await security.require("admin")(request)
    try:
        if not run:
            raise ProblemError(422, "select a campaign first")
        if action in ("compare", "panel"):
            return _redirect(f"/{action}?" + urlencode([("run", name) for name in run]))
        for name in run:
            if action == "delete":
                await campaigns.delete(service, name)
            elif action == "restore":
                await campaigns.restore(service, name)
            else:
                folder = (await service.run(name)).folder
                labels = await asyncio.to_thread(Labels.read, folder)
                await campaigns.label(service, name, labels.changed(action, tag.split()))
            security.describe_action(request, f"{action} {tag}".rstrip(), name)
    except (ElicitError, ProblemError) as error:
        return await _home_page(request, caller, error=error)
    undo = "?" + urlencode([("undo", name) for name in run]) if action == "delete" else ""
    return _redirect(f"/{undo}")


@router.get("/actions", dependencies=ADMIN)
async def actions(
    request: Request,
    service: Shared,
    campaign: Annotated[str, Query(pattern=f"({NAME})?")] = "",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> Response:
    """Return the record of who did what."""
    actions = await asyncio.to_thread(service.actions.read, campaign, _MOST_ACTIONS, offset)
    return security.page(
        request, "actions", actions=actions, campaign=campaign, offset=offset,
        limit=_MOST_ACTIONS, named=bool(service.settings.admins),
    )  # fmt: skip


@router.get("/compare")
async def compare(
    request: Request,
    service: Shared,
    caller: Reader,
    run: Annotated[list[Annotated[str, Field(pattern=NAME)]] | None, Query()] = None,
) -> Response:
    """Return a page that compares the judges of some campaigns."""
    try:
        comparison = await results.compare(service, run or [])
    except (ElicitError, ProblemError) as error:
        return await _home_page(request, caller, error=error)
    return security.page(request, "compare", runs=run, comparison=comparison)


@router.get("/panel")
async def panel(
    request: Request,
    service: Shared,
    caller: Reader,
    run: Annotated[list[Annotated[str, Field(pattern=NAME)]] | None, Query()] = None,
) -> Response:
    """Return the panel of some campaigns."""
    try:
        text = await results.panel(service, list(dict.fromkeys(run or [])))
    except (ElicitError, ProblemError) as error:
        return await _home_page(request, caller, error=error)
    return _with_way_back(text, "/", "Campaigns")


@router.get("/campaigns/{name}")
async def campaign(request: Request, name: CampaignName, caller: Reader) -> Response:
    """Return a campaign's page."""
    return await _campaign_response(request, name, caller.scope)


@router.get("/campaigns/{name}/answers", dependencies=READ)
async def answers(
    request: Request, service: Shared, name: CampaignName, query: AnswersQuery
) -> Response:
    """Return a page of a campaign's questions and answers."""
    run, message, status, page = await service.run(name), None, 200, AnswerPage((), None)
    try:
        page = await results.answers(service, run, query)
    except (ElicitError, ProblemError) as error:
        message, status = sentence(error), status_of(error)
    stated = {key: text for key, text in request.query_params.items() if text and key != "after"}
    return security.page(
        request, "answers", status, name=name, title=run.space.title, page=page, query=query,
        stated=stated, following=urlencode(stated | {"after": str(page.following)}),
        judges=[judge.name for judge in run.campaign.judges], verdicts=responses.VERDICT_WORDS,
        features=[(feature.name, feature.label) for feature in run.space.features],
        message=message,
    )  # fmt: skip


@router.get("/campaigns/{name}/report", dependencies=READ)
async def report(service: Shared, name: CampaignName) -> Response:
    """Return a campaign's report, with a way back to its page."""
    text = await results.report_text(await service.run(name))
    return _with_way_back(text, f"/campaigns/{name}", f"{name}: its campaign")


def _with_way_back(text: str, path: str, words: str) -> Response:
    """Return a page of the report with a link to a page of the service."""
    back = f'<p><a href="{responses.ROOT.get()}{path}">← {words}</a></p>'
    page = text.replace("<header>", f"<header>\n{back}", 1)
    return HTMLResponse(page, headers=results.page_headers(page))


@router.get("/campaigns/{name}/parts")
async def campaign_parts(
    request: Request, service: Shared, name: CampaignName, caller: Reader
) -> Parts:
    """Return the parts of a campaign's page that change; many open pages share their making."""
    snapshot = await service.snapshot(name)
    signed_in = auth.session_of(request) is not None
    key = (name, caller.scope, signed_in, responses.ROOT.get(), snapshot.state, snapshot.stage)
    making = service.parts.get(key)
    if making is None:
        making = asyncio.create_task(_make_parts(request, snapshot, caller.scope))
        service.parts[key] = making
        asyncio.get_running_loop().call_later(_SHARED_SECONDS, service.parts.pop, key, None)
    made: Parts = await asyncio.shield(making)
    own = csrf_token(request)
    parts = {name: html.replace(_CSRF, own) for name, html in made.parts.items()}
    return replace(made, parts=parts, pause=max(_SHARED_SECONDS, service.watching / _UPDATES))


async def _make_parts(request: Request, snapshot: RunSnapshot, scope: str) -> Parts:
    """Return the parts of a campaign's page, with `_CSRF` in place of a session's token."""
    run = await service_of(request).run(snapshot.name)
    live = await asyncio.to_thread(_live_view, run)
    more = {**_controls_context(request, run, scope), "csrf": _CSRF}
    words = responses.state_words(snapshot)
    names = ("controls", "status", "belief")
    return Parts(
        parts={name: render_run(name, snapshot, live, **more) for name in names},
        title=f"{snapshot.name}: {words}",
        words=f"{words}; {snapshot.done:,} of {snapshot.total:,} questions are answered",
        ended=snapshot.state in ENDED,
    )


@router.post("/campaigns/{name}/retune")
async def retune(
    request: Request,
    service: Shared,
    name: CampaignName,
    caller: Admin,
    concurrency: Text = "",
    max_cost: Text = "",
) -> Response:
    """Change a campaign's limits; empty fields leave a limit as it is."""
    stated = {"concurrency": concurrency.strip(), "max_cost": max_cost.strip()}

    async def retuned() -> RunSnapshot:
        try:
            limits = Limits.model_validate({key: text for key, text in stated.items() if text})
        except ValidationError as error:
            first = error.errors()[0]
            nothing = first["msg"].removeprefix("Value error, ")
            rule = "the limits must be numbers above 0" if first["loc"] else nothing
            raise ProblemError(422, rule) from None
        return await campaigns.retune(service, name, limits)

    return await _respond_to_action(request, name, caller.scope, retuned(), stated)


@router.post("/campaigns/{name}/pause")
@router.post("/campaigns/{name}/resume")
@router.post("/campaigns/{name}/start")
@router.post("/campaigns/{name}/cancel")
@router.post("/campaigns/{name}/repeat")
async def act(request: Request, service: Shared, name: CampaignName, caller: Admin) -> Response:
    """Pause, resume, start, cancel or repeat a campaign; answers in flight are awaited."""
    action = request.url.path.rpartition("/")[2]
    if action == "pause":
        done = campaigns.pause(Response(), service, name, _FOLLOW_TIMEOUT)
    elif action == "cancel":
        done = campaigns.cancel(Response(), service, name, True, _FOLLOW_TIMEOUT)
    elif action == "repeat":
        done = campaigns.repeat(Response(), service, name)
    else:
        done = (campaigns.resume if action == "resume" else campaigns.start)(service, name)
    return await _respond_to_action(request, name, caller.scope, done)


async def _respond_to_action(
    request: Request,
    name: str,
    scope: str,
    action: Awaitable[RunSnapshot],
    stated: dict[str, str] | None = None,
) -> Response:
    """Await an action and redirect to the campaign's page, or show there why it was refused.

    The page of a repeat is that of the new campaign.
    """
    try:
        snapshot = await action
    except (ElicitError, ProblemError) as error:
        return await _campaign_response(request, name, scope, error=error, stated=stated)
    return _redirect(f"/campaigns/{snapshot.name}")


async def _campaign_response(
    request: Request,
    name: str,
    scope: str,
    *,
    error: Exception | None = None,
    stated: dict[str, str] | None = None,
) -> Response:
    """Return a campaign's page, after a refused form with the reason and its fields."""
    service = service_of(request)
    run = await service.run(name)
    snapshot, live = await service.snapshot(name), await asyncio.to_thread(_live_view, run)
    if snapshot.done >= _LARGE:
        service.workers.prepare(read_answers, run.folder, AnswerQuery(limit=1))
    about = await asyncio.to_thread(campaigns.yaml_of, run)
    more = {"title": run.space.title, "about": about, "message": error and sentence(error)}
    more |= _controls_context(request, run, scope, stated)
    text = render_run("campaign", snapshot, live, bundle=False, **more)
    return HTMLResponse(text, 200 if error is None else status_of(error))


def _live_view(run: Run) -> LiveView | None:
    """Return a run's live view; None if there is none, or it is of another version."""
    try:
        return LiveView.read(run.folder)
    except InputError:
        return None


def _controls_context(
    request: Request, run: Run, scope: str, stated: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the template variables of a campaign's controls; `stated` are refused limits."""
    admin = scope == "admin"
    began = None
    with suppress(OSError):  # one that has just started has no folder yet
        began = (run.folder / CAMPAIGN).stat().st_mtime
    return {
        "began": began,
        "csrf": csrf_token(request),
        "people": bool(run.campaign.people) and admin,
        "signed_in": auth.session_of(request) is not None,
        "may_change": admin,
        "stated": stated,
    }


async def _home_page(
    request: Request,
    caller: security.Caller,
    query: RunQuery | None = None,
    *,
    undo: Sequence[str] = (),
    error: Exception | None = None,
) -> Response:
    """Return the page of campaigns, after a refused action with the reason."""
    service = service_of(request)
    deleted = await asyncio.to_thread(service.deleted)
    return security.page(
        request, "campaigns", 200 if error is None else status_of(error),
        **await _list_context(service, query or RunQuery()),
        deleted=dict.fromkeys(folder.name for folder in deleted[:_MOST_DELETED]),
        days=KEPT_DAYS, admin=caller.scope == "admin", undo=undo, message=error and sentence(error),
    )  # fmt: skip


async def _list_context(service: Service, query: RunQuery) -> dict[str, Any]:
    """Return the template variables of a page of the list."""
    page = await service.page(query)
    stated = [(name, str(text)) for name, text in asdict(query).items() if text and name != "text"]
    stated += [("q", query.text)] if query.text else []

    def address(offset: int) -> str:
        """Return the address of the page that begins with a run."""
        parts = [(name, text) for name, text in stated if name != "offset"]
        return "?" + urlencode([*parts, ("offset", str(offset))])

    before, after = query.offset - query.limit, query.offset + query.limit
    return {
        "page": page,
        "query": query,
        "words": {run.name: responses.state_words(run) for run in page.runs},
        "states": {state: responses.STATE_WORDS[state] for state in page.states},
        "previous": address(max(before, 0)) if query.offset else "",
        "following": address(after) if after < page.total else "",
    }


def _redirect(path: str) -> Response:
    return RedirectResponse(path, 303)
