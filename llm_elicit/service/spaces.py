"""Routes of feature spaces: list and read them, upload a table and get a drafted space."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from llm_elicit.service import library
from llm_elicit.service.library import Library
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.security import media_type, require
from llm_elicit.service.state import Service, service_of

router = APIRouter(prefix="/api/spaces", tags=["feature spaces"])

_PART = 1_000_000
_READ, _ADMIN = [Depends(require("read"))], [Depends(require("admin"))]


class SpaceLine(BaseModel):
    """A feature space that a campaign can name."""

    name: str
    uploaded: bool


class SpaceText(BaseModel):
    """A feature space as YAML."""

    name: str
    yaml: str


class Column(BaseModel):
    """What a column of an uploaded table became; see `llm_elicit.spaces.drafting.ColumnReport`."""

    column: str
    kept: str
    range: str
    scale: str
    unit: str
    guessed: list[str]


class SpaceDraft(SpaceText):
    """A drafted feature space: its YAML to edit, its columns, and which rows are used."""

    columns: list[Column]
    rows: str


@router.get("", summary="Feature spaces", dependencies=_READ)
async def listed(request: Request) -> list[SpaceLine]:
    """Return the spaces that a campaign can name."""
    names = await asyncio.to_thread(_library(request).names)
    return [SpaceLine(name=name, uploaded=uploaded) for name, uploaded in sorted(names.items())]


@router.post(
    "",
    summary="Upload a CSV file and draft a space from it",
    status_code=201,
    dependencies=_ADMIN,
    openapi_extra={"requestBody": {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
async def upload(
    request: Request,
    name: Annotated[str, Query(description="The name of the space.")],
    columns: Annotated[str, Query(description="Columns to use, by commas; all if empty.")] = "",
) -> SpaceDraft:
    """Draft a feature space from a table, which is the body of the request."""
    service = service_of(request)
    kind = media_type(request)
    if kind != "text/csv":
        raise ProblemError(415, "send the table as text/csv; other formats are not read")
    chosen = [column.strip() for column in columns.split(",") if column.strip()]
    with _library(request).added(name) as folder:
        await _receive(request, folder / f"{name}.csv")
        drafted = await service.workers.call(
            library.draft, folder, name, chosen, service.settings.bounds.cells
        )
    return SpaceDraft.model_validate(drafted)


@router.get("/{name:path}", summary="A feature space as YAML", dependencies=_READ)
async def read(request: Request, name: str) -> SpaceText:
    """Return a space's YAML text."""
    path = await asyncio.to_thread(_library(request).path, name)
    return SpaceText(name=name, yaml=await asyncio.to_thread(path.read_text, "utf-8"))


@router.put("/{name}", summary="Edit an uploaded space", dependencies=_ADMIN)
async def edit(request: Request, name: str) -> SpaceText:
    """Replace a space's YAML, which is the body of the request."""
    body = await request.body()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(422, f"the text is not UTF-8: {error}") from None
    service = service_of(request)
    await service.workers.call(_edited, _folder(service), name, text)
    return SpaceText(name=name, yaml=text)


@router.delete("/{name}", summary="Remove an uploaded space", status_code=204, dependencies=_ADMIN)
async def remove(request: Request, name: str) -> Response:
    """Remove a space and its table."""
    await asyncio.to_thread(_library(request).remove, name)
    return Response(status_code=204)


def library_of(service: Service) -> Library:
    """Return the feature spaces of a service."""
    return Library(_folder(service))


def _library(request: Request) -> Library:
    return library_of(service_of(request))


def _folder(service: Service) -> Path:
    return service.settings.own_folder / "spaces"


def _edited(folder: Path, name: str, text: str) -> None:
    Library(folder).replace(name, text)


async def _receive(request: Request, path: Path) -> None:
    """Write the body of a request to a file, part by part."""
    with path.open("wb") as file:
        part = bytearray()
        async for chunk in request.stream():
            part += chunk
            if len(part) >= _PART:
                await asyncio.to_thread(file.write, bytes(part))
                part.clear()
        await asyncio.to_thread(file.write, bytes(part))
