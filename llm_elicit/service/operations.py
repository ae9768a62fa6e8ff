"""Routes about the service itself: health, counts, sign-in, and what campaigns may name."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from llm_elicit._util import resources
from llm_elicit._util.settings import StrictModel
from llm_elicit.backends.weights import KNOWN
from llm_elicit.errors import InputError
from llm_elicit.questions import Template
from llm_elicit.service import metrics, security
from llm_elicit.service.keys import Scope
from llm_elicit.service.security import Reader, require
from llm_elicit.service.settings import AllowedJudge, Bounds
from llm_elicit.service.state import service_of

router = APIRouter(tags=["service"])


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok", "closing"]


class Token(StrictModel):
    """A token to sign in with."""

    token: str


class SignedIn(BaseModel):
    """The scope of a session, and the token that its requests repeat in `X-CSRF-Token`."""

    scope: Scope
    csrf: str


class TemplateLine(BaseModel):
    """A question template that a campaign can name."""

    name: str
    wording: str
    answer: str


class Models(BaseModel):
    """The judges that a campaign may have, and the models that can run on the server."""

    judges: list[AllowedJudge]
    local: list[str]
    bounds: Bounds


@router.get("/health", summary="Whether the service works; no token is needed")
async def health(request: Request) -> Health:
    """Return the state of the service."""
    return Health(status="closing" if service_of(request).closing.is_set() else "ok")


@router.get("/metrics", summary="Counts for Prometheus", dependencies=[Depends(require("read"))])
async def counts(request: Request) -> Response:
    """Return the counts in Prometheus' text format."""
    return Response(service_of(request).metrics.text(), media_type=metrics.CONTENT_TYPE)


@router.post("/api/session", summary="Sign a browser in by a token")
async def sign_in(request: Request, given: Token) -> SignedIn:
    """Begin a session; its cookie comes with the answer."""
    scope = await security.sign_in(request, given.token.strip())
    return SignedIn(scope=scope, csrf=security.csrf_token(request))


@router.delete("/api/session", summary="Sign out", status_code=204)
async def sign_out(request: Request, caller: Reader) -> Response:
    """End the session."""
    del caller
    await security.sign_out(request)
    return Response(status_code=204)


@router.get("/api/templates", summary="Question templates", dependencies=[Depends(require("read"))])
async def templates() -> list[TemplateLine]:
    """Return the templates that a campaign can name."""
    return await asyncio.to_thread(_templates)


@router.get(
    "/api/models",
    summary="The judges that a campaign may have",
    dependencies=[Depends(require("read"))],
)
async def models(request: Request) -> Models:
    """Return what the server's file allows."""
    settings = service_of(request).settings
    local = any(judge.backend == "local" for judge in settings.judges)
    return Models(
        judges=list(settings.judges), local=sorted(KNOWN) if local else [], bounds=settings.bounds
    )


def _templates() -> list[TemplateLine]:
    """Read the templates; those that break a rule are left out."""
    found = []
    for name in resources.available("prompts", ".md"):
        try:
            template = Template.read(resources.find("prompts", name, ".md"))
        except InputError:
            continue
        line = TemplateLine(name=name, wording=template.wording, answer=template.answer)
        found.append(line)
    return found
