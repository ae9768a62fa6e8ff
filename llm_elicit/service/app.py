"""The application: what every request passes, and the routes."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware import Middleware

from llm_elicit._util.packages import package_version
from llm_elicit.service import operations, problems, spaces
from llm_elicit.service.guard import Guard
from llm_elicit.service.keys import Keys
from llm_elicit.service.sessions import SessionCookies
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.state import Service

_ROUTERS = (operations.router, spaces.router)

_ABOUT = """
Campaigns that elicit the beliefs of language models and people from pairwise comparisons.

Errors are `application/problem+json`. Where a token is required, send it as
`Authorization: Bearer TOKEN`.
"""


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application of a service.

    Args:
        settings: the service's settings.

    Raises:
        InputError: a secret cannot be read or made.
    """
    variables = [judge.api_key_env for judge in settings.judges if judge.api_key_env]
    keys = Keys.load(settings.own_folder, needs_token=settings.needs_token, variables=variables)
    service = Service(settings, keys)

    app = FastAPI(
        title="llm-elicit",
        description=_ABOUT,
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
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
