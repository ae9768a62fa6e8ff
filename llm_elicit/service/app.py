"""The application: what every request passes, the routes, and the runs behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware import Middleware

from llm_elicit._util.packages import package_version
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import ElicitError
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.service import (
    campaigns,
    evaluation,
    events,
    invitations,
    judging,
    operations,
    pages,
    people_page,
    problems,
    results,
    spaces,
)
from llm_elicit.service.guard import Guard
from llm_elicit.service.keys import Keys
from llm_elicit.service.sessions import SessionCookies
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.state import Service

_ROUTERS = (
    operations.router, campaigns.router, events.router, results.router, invitations.router,
    spaces.router, pages.router, judging.router,
    people_page.router,
)  # fmt: skip

_ABOUT = """
Campaigns that elicit the beliefs of language models and people from pairwise comparisons.

Errors are `application/problem+json`. Where a token is required, send it as
`Authorization: Bearer TOKEN`.
"""


def create_app(settings: ServerSettings, start: Sequence[str] = ()) -> FastAPI:
    """Return the application of a service.

    Args:
        settings: the service's settings.
        start: campaigns of the operator, by path or name, which start with the service.

    Raises:
        InputError: a secret cannot be read or made, or a campaign cannot be used.
    """
    variables = [judge.api_key_env for judge in settings.judges if judge.api_key_env]
    keys = Keys.load(settings.own_folder, needs_token=settings.needs_token, variables=variables)
    runtime = Runtime(
        settings.runs,
        max_cost=settings.max_cost,
        fits=settings.fits,
        journal=settings.journal,
        live_every=settings.live,
    )
    service = Service(settings, keys, runtime)
    chosen = [_opened(name, settings) for name in start]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        warming = asyncio.create_task(service.workers.call(evaluation.ready))
        async with runtime:
            beginning = asyncio.create_task(_begin(runtime, chosen))
            yield
            beginning.cancel()
            await asyncio.to_thread(service.experts.close)
        warming.cancel()

    app = FastAPI(
        title="llm-elicit",
        description=_ABOUT,
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
        responses={422: {"model": problems.Problem, "description": "It cannot be used."}},
        middleware=[
            Middleware(Guard, settings=settings, keys=keys, observe=service.metrics.observe),
            Middleware(SessionCookies, sessions=service.sessions),
        ],
    )
    app.state.service = service
    problems.add_handlers(app, keys)
    for router in _ROUTERS:
        app.include_router(router)
    return app


async def _begin(runtime: Runtime, chosen: Sequence[Run]) -> None:
    """Take up earlier runs and start those of the operator, while requests are answered."""
    try:
        await runtime.recover()
        for run in chosen:
            if run.campaign.name not in runtime.runs:
                runtime.start(run, owner="service")
    except ElicitError as error:
        problems.logger.error("runs could not be taken up: %s", error)


def _opened(name: str, settings: ServerSettings) -> Run:
    """Open a campaign of the operator's in the service's folder."""
    campaign = Campaign.load(name)
    changes = {"runs": settings.runs, "journal": campaign.journal or settings.journal}
    return Run.open(campaign.model_copy(update=changes))
