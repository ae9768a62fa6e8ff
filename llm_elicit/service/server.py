"""The service: its application, its process with socket and log, and the routes about itself.

These are health, counts, sign-in, and the judges and limits that clients may use.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse

from llm_elicit._util import files
from llm_elicit._util.packages import package_version
from llm_elicit.backends.local import MODELS
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.run_index import RunIndex
from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.questions.template import Template
from llm_elicit.service import (
    campaigns,
    composer,
    pages,
    people,
    responses,
    results,
    security,
    spaces,
    state,
)  # fmt: skip
from llm_elicit.service.auth import Keys, SessionCookies
from llm_elicit.service.guard import Connection, Guard, Proxied
from llm_elicit.service.schemas import Health, Models, SignedIn, TemplateSummary, Token
from llm_elicit.service.security import READ
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.state import Service, Shared

router = APIRouter(tags=["service"])


@router.get("/health", summary="Whether the service works; no token is needed")
async def health(service: Shared) -> Health:
    """Return the state of the service."""
    return Health("closing" if service.closing.is_set() else "ok")


@router.get(
    "/metrics", summary="Counts for Prometheus", dependencies=READ, response_class=PlainTextResponse
)
async def counts(service: Shared) -> Response:
    """Return the counts in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=state.CONTENT_TYPE)


@router.post("/api/v1/session", summary="Sign a browser in by a token")
async def sign_in(request: Request, credentials: Token) -> SignedIn:
    """Begin a session; its cookie comes with the answer."""
    scope = await security.sign_in(request, credentials.token.strip())
    return SignedIn(scope, security.csrf_token(request))


@router.delete("/api/v1/session", summary="Sign out", status_code=204, dependencies=READ)
async def sign_out(request: Request) -> Response:
    """End the session."""
    await security.sign_out(request)
    return Response(status_code=204)


@router.get("/api/v1/templates", summary="Question templates", dependencies=READ)
def templates() -> list[TemplateSummary]:
    """Return the templates that a campaign can name; invalid ones are left out."""
    lines = []
    for name in files.available("prompts", ".md"):
        with suppress(InputError):
            template = Template.read(files.find("prompts", name, ".md"))
            lines.append(TemplateSummary(name, template.wording, template.answer))
    return lines


@router.get("/api/v1/models", summary="The judges that a campaign may have", dependencies=READ)
async def models(service: Shared) -> Models:
    """Return the judges and bounds of the server's file."""
    settings = service.settings
    local = any(judge.backend == "local" for judge in settings.judges)
    return Models(list(settings.judges), sorted(MODELS) if local else [], settings.bounds)


_ROUTERS = (
    router, campaigns.router, results.stream, results.router, results.comparing, people.router,
    spaces.router, composer.router, pages.router, people.judging, people.pages,
)  # fmt: skip

_ABOUT = """
Campaigns that elicit the beliefs of language models and people from pairwise comparisons.

Errors are `application/problem+json`. Where a token is required, send it as
`Authorization: Bearer TOKEN`.
"""


_ERRORS = {
    422: "A value is invalid.",
    401: "A token is missing or wrong.",
    403: "The token may only read, or a form is of another session.",
    404: "A name in the address is unknown.",
    409: "It is not possible in the present state.",
    429: "Too many requests; repeat it after `Retry-After` seconds.",
    503: "The service is busy or closing; repeat it after `Retry-After` seconds.",
}
"""The statuses of refused requests, with their reasons."""


@router.get("/api/v1/openapi.json", include_in_schema=False)
async def openapi(request: Request, service: Shared) -> JSONResponse:
    """Return the description of the routes."""
    if not service.document:
        schemas = await service.workers.call(results.result_schemas)
        service.document = describe(request.app, schemas, service.sessions.cookie)
    return JSONResponse(service.document)


def describe(app: FastAPI, schemas: Mapping[str, Any], cookie: str) -> dict[str, Any]:
    """Return the OpenAPI document of an application, with the errors of each route.

    Args:
        app: the application.
        schemas: further schemas by name.
        cookie: the name of the cookie of a session.
    """
    document: dict[str, Any] = app.openapi()
    components = document["components"]
    components["schemas"] |= {**schemas, "Problem": responses.Problem.model_json_schema()}
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which are not sent
        del components["schemas"][name]
    components["securitySchemes"]["session"]["name"] = cookie
    problem = {responses.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            statuses = [422, 503]
            statuses += [401, 403, 429] if "security" in operation or "session" in path else []
            statuses += [404] if "{" in path else []
            statuses += [409] if method != "get" else []
            operation["responses"] |= {
                str(status): {"description": _ERRORS[status], "content": problem}
                for status in sorted(statuses)
            }
    return document


_FIRST_LOOK = 1.0
"""Seconds that a start may take to read the runs in the folder; then it goes on meanwhile."""


def create_app(settings: ServerSettings, start: Sequence[str] = ()) -> FastAPI:
    """Return the application of a service.

    Args:
        settings: the service's settings.
        start: campaigns of the operator, by path or name, which start with the service.

    Raises:
        InputError: a secret cannot be read or made, or a campaign cannot be used.
    """
    variables = [judge.api_key_env for judge in settings.judges if judge.api_key_env]
    keys = Keys.load(
        settings.own_folder,
        needs_token=settings.needs_token,
        admins=settings.admins,
        variables=variables,
    )
    index = RunIndex(settings.runs, settings.own_folder / "runs.sqlite")
    runtime = Runtime(
        settings.runs,
        max_cost=settings.max_cost,
        fits=settings.fits,
        at_once=settings.bounds.campaigns,
        journal=settings.journal,
        live_every=settings.live,
        index=index,
    )
    service = Service(settings, keys, runtime, index)
    chosen = []
    for name in start:
        campaign = Campaign.load(name)
        changes = {"runs": settings.runs, "journal": campaign.journal or settings.journal}
        chosen.append(Run.open(campaign.model_copy(update=changes)))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        if settings.max_cost is None:  # else the runtime reads what all runs have spent
            # A list is complete once all runs have been read that no service has seen yet.
            sweep = asyncio.create_task(asyncio.to_thread(index.sweep))
            await asyncio.wait([sweep], timeout=_FIRST_LOOK)
        await asyncio.to_thread(service.remove_deleted)
        async with runtime:
            if runtime.unreadable:
                names = ", ".join(runtime.unreadable)
                responses.logger.warning(
                    "max_cost does not count these campaigns, which cannot be read: %s", names
                )
            beginning = asyncio.create_task(_begin(runtime, chosen))
            yield
            beginning.cancel()
            await asyncio.wait([beginning])
            await asyncio.to_thread(service.experts.close)

    app = FastAPI(
        title="llm-elicit",
        description=_ABOUT,
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        # To include the routers would make each route again with the first request.
        routes=[route for router in _ROUTERS for route in router.routes],
        middleware=[
            Middleware(Proxied, settings=settings),
            Middleware(Guard, settings=settings, keys=keys, observe=service.metrics.observe),
            Middleware(SessionCookies, sessions=service.sessions),
            Middleware(security.Recording, actions=service.actions),
        ],
    )
    app.state.service = service
    security.add_handlers(app)
    return app


async def _begin(runtime: Runtime, chosen: Sequence[Run]) -> None:
    """Resume earlier runs, start those of the operator, and resume runs of services that died."""
    with _log_failures():
        await runtime.recover()
    for run in chosen:
        if run.campaign.name not in runtime.runs:
            with _log_failures():
                runtime.start(run, owner="service")
    while True:
        with _log_failures():
            await runtime.keep_recovering()


@contextmanager
def _log_failures() -> Iterator[None]:
    """Log an exception instead of raising it, so that the service continues."""
    try:
        yield
    except Exception as error:
        responses.logger.error("runs could not be resumed", exc_info=error)


_DRAIN_SECONDS = 10
"""Seconds that requests have to end once the service stops."""

_IDLE_SECONDS = 75
"""Seconds until an idle connection is closed, which may be under a request that comes then.

Longer than proxies and clients keep theirs, so that they close them.
"""


_OTHERS = 400
"""The number of connections above that of event streams from which on waiting ones are closed."""


def serve(settings: ServerSettings, say: Callable[[str], None], start: Sequence[str] = ()) -> None:
    """Serve until SIGTERM or Ctrl-C; runs are stopped and come back with the next start.

    Args:
        settings: the service's settings.
        say: called with one line once it can be reached.
        start: campaigns of the operator, by path or name, which start with the service.

    Raises:
        InputError: the port is taken, or a secret or a campaign cannot be used.
    """
    app = create_app(settings, start)
    service: Service = app.state.service
    listening = _bound(settings)
    config = uvicorn.Config(
        app,
        http=type("_Limited", (Connection,), {"most": settings.bounds.watchers + _OTHERS}),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_IDLE_SECONDS,
        h11_max_incomplete_event_size=64_000,
    )
    with _logging(service.keys):
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{listening.getsockname()[1]}"
        asyncio.run(_Server(config, service, say, address).serve([listening]))


class _Server(uvicorn.Server):
    """uvicorn's server, which logs its address and ends streams before it stops."""

    def __init__(
        self, config: uvicorn.Config, service: Service, say: Callable[[str], None], address: str
    ) -> None:
        super().__init__(config)
        self._service, self._say, self._address = service, say, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and log the address."""
        await super().startup(sockets)
        # A full collection goes through all loaded modules, and would block requests meanwhile.
        gc.freeze()
        token_file = self._service.keys.token_file
        token = f"; the token is in {token_file}" if token_file else ""
        self._say(f"serving {self._address} with the runs in {self._service.settings.runs}{token}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then the requests, then the runs."""
        self._service.closing.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal; being asked to stop is no failure."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def _bound(settings: ServerSettings) -> socket.socket:
    """Return the socket on which the service listens.

    Raises:
        InputError: it cannot listen there.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(2048)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror or error}); give another --port or "
            "--host, or stop the program that listens there"
        ) from None
    return listening


class _Scrubbed(logging.Formatter):
    """A formatter whose lines hold no secret, tracebacks included."""

    def __init__(self, keys: Keys) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._keys = keys

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        return self._keys.scrub(super().format(record))


@contextmanager
def _logging(keys: Keys) -> Iterator[None]:
    """Send the log of the service and of uvicorn to standard error, without secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Scrubbed(keys))
    levels = {"llm_elicit.service": logging.INFO, "uvicorn": logging.WARNING}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(level)
