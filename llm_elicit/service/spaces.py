"""Feature spaces of a service: the operator's, and those drafted from uploaded tables.

An uploaded space is a folder below the service's, which holds the table and the YAML file. Names
that come over HTTP are looked up in a list and are never joined to a path.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from llm_elicit._util import files
from llm_elicit._util.settings import parse_yaml, read_yaml, validate
from llm_elicit._util.text import names_in, not_utf8
from llm_elicit.errors import ConflictError, ElicitError, InputError
from llm_elicit.pipeline.run_folder import CAMPAIGN, run_folders
from llm_elicit.service.responses import ProblemError
from llm_elicit.service.security import media_type, require
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.state import Service, Shared
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.spaces.naming import ColumnReport

router = APIRouter(prefix="/api/spaces", tags=["feature spaces"])

_READ, _ADMIN = [Depends(require("read"))], [Depends(require("admin"))]


@dataclass(frozen=True)
class SpaceSummary:
    """A feature space that a campaign can name."""

    name: str
    uploaded: bool


@dataclass(frozen=True)
class SpaceYaml:
    """A feature space as YAML."""

    name: str
    yaml: str


@dataclass(frozen=True)
class SpaceDraft(SpaceYaml):
    """A drafted feature space: its YAML to edit, its columns, and which rows are used.

    Attributes:
        notes: remarks on the file, such as its encoding.
    """

    columns: tuple[ColumnReport, ...]
    rows: str
    notes: tuple[str, ...]


@router.get("", summary="Feature spaces", dependencies=_READ)
async def list_spaces(service: Shared) -> list[SpaceSummary]:
    """Return the spaces that a campaign can name."""
    names = await asyncio.to_thread(library_of(service.settings).names)
    return [SpaceSummary(name=name, uploaded=uploaded) for name, uploaded in sorted(names.items())]


@router.post(
    "",
    summary="Upload a CSV file and draft a space from it",
    status_code=201,
    dependencies=_ADMIN,
    openapi_extra={"requestBody": {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
async def upload(
    request: Request,
    service: Shared,
    name: Annotated[str, Query(description="The name of the space.")],
    columns: Annotated[
        str, Query(description="Columns to use, separated by commas; all if empty.")
    ] = "",
    not_stated: Annotated[
        str,
        Query(
            description=(
                "Numeric columns where a missing cell means 'not stated', separated by commas."
            )
        ),
    ] = "",
    encoding: Annotated[str, Query(description="Encoding of the file; detected if empty.")] = "",
) -> SpaceDraft:
    """Draft a feature space from a table, which is the body of the request."""
    if media_type(request) != "text/csv":
        raise ProblemError(415, "send the table as text/csv; other formats are not read")
    with library_of(service.settings).adding(name) as folder:
        await asyncio.to_thread((folder / f"{name}.csv").write_bytes, await request.body())
        return await service.workers.call(
            draft, folder, name, names_in(columns), names_in(not_stated), encoding,
            service.settings.bounds.cells,
        )  # fmt: skip


@router.get("/{name:path}", summary="A feature space as YAML", dependencies=_READ)
async def read_space(service: Shared, name: str) -> SpaceYaml:
    """Return a space's YAML text."""
    path = await asyncio.to_thread(library_of(service.settings).path, name)
    return SpaceYaml(name=name, yaml=await asyncio.to_thread(path.read_text, "utf-8"))


@router.put("/{name}", summary="Edit an uploaded space", dependencies=_ADMIN)
async def edit(request: Request, service: Shared, name: str) -> SpaceYaml:
    """Replace a space's YAML, which is the body of the request."""
    body = await request.body()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(422, not_utf8(error)) from None
    await _check_unused(service, name)
    await service.workers.call(library_of(service.settings).replace, name, text)
    return SpaceYaml(name=name, yaml=text)


@router.delete("/{name}", summary="Remove an uploaded space", status_code=204, dependencies=_ADMIN)
async def remove(service: Shared, name: str) -> Response:
    """Remove a space and its table."""
    await _check_unused(service, name)
    await asyncio.to_thread(library_of(service.settings).remove, name)
    return Response(status_code=204)


def library_of(settings: ServerSettings) -> SpaceLibrary:
    """Return the feature spaces of a service."""
    return SpaceLibrary(settings.own_folder / "spaces")


async def _check_unused(service: Service, name: str) -> None:
    """Check that no campaign uses a space, since it could not go on without it.

    Raises:
        ProblemError: a campaign uses the space.
    """
    space = library_of(service.settings).yaml_path(name).resolve()
    # A run that has just started has no folder yet.
    running = [(job.name, job.run.campaign.space) for job in service.runtime.runs.values()]

    def read_written() -> list[tuple[str, Any]]:
        spaces = []
        for run in (*run_folders(service.settings.runs), *service.deleted()):
            with suppress(ElicitError, KeyError, TypeError):  # it cannot be read
                spaces.append((run.name, read_yaml(run / CAMPAIGN)["space"]))
        return spaces

    for campaign, stated in (*running, *await asyncio.to_thread(read_written)):
        if isinstance(stated, str) and Path(stated).resolve() == space:
            raise ProblemError(
                409,
                f"feature space {name!r} is used by the campaign {campaign!r}; delete the campaign "
                "with purge=true first, or upload the table under another name",
            )


NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
"""The pattern of the names of uploaded spaces."""

_MAGIC = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PAR1", b"ARROW1", b"\xd0\xcf\x11\xe0",
          b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"%PDF")  # fmt: skip
"""The first bytes of archives, compressed files and formats other than text."""

_SEPARATORS = b",;\t|"
_MAX_COLUMNS = 1_000
_MAX_LINE = 1_000_000


class SpaceLibrary:
    """The feature spaces that a campaign which comes over HTTP can name.

    Args:
        folder: where uploaded spaces are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> dict[str, bool]:
        """Return the names, and whether each was uploaded."""
        uploaded = sorted(
            path.parent.name
            for path in self._folder.glob("*/*.yaml")
            if path.stem == path.parent.name and re.match(NAME, path.stem)
        )
        own = files.available("datasets", ".yaml")
        return {**dict.fromkeys(uploaded, True), **dict.fromkeys(own, False)}

    def find(self, name: str) -> str:
        """Return the argument of `FeatureSpace.load` for a space, given its name.

        Raises:
            InputError: no space has that name (a path is not a name).
        """
        names = self.names()
        if name not in names:
            raise InputError(f"no feature space {name!r}; known: {', '.join(sorted(names))}")
        return str(self.yaml_path(name)) if names[name] else name

    def yaml_path(self, name: str) -> Path:
        """Return the path of an uploaded space's YAML file."""
        return self._folder / name / f"{name}.yaml"

    def path(self, name: str) -> Path:
        """Return the path of a space's YAML file.

        Raises:
            ProblemError: no space has that name.
        """
        try:
            return files.find("datasets", self.find(name), ".yaml")
        except InputError as error:
            raise ProblemError(404, str(error)) from None

    @contextmanager
    def adding(self, name: str) -> Iterator[Path]:
        """Yield a temporary folder, which is renamed to the folder of the new space on success.

        Raises:
            ConflictError: the name is taken.
            InputError: the name is not valid.
        """
        if not re.match(NAME, name):
            raise InputError(
                f"name: {name[:100]!r} is not a valid name; use up to 64 letters, digits and "
                "underscores, starting with a letter"
            )
        if name in self.names():
            raise _name_conflict(name)
        beside = self._folder / f".{secrets.token_hex(8)}"
        beside.mkdir(mode=0o700, parents=True)
        try:
            yield beside
            try:
                os.rename(beside, self._folder / name)  # noqa: PTH104 - refuses a folder in use
            except OSError:
                raise _name_conflict(name) from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def replace(self, name: str, text: str) -> None:
        """Write the YAML text of an uploaded space.

        Raises:
            ProblemError: it was not uploaded.
            InputError: the text breaks a rule.
        """
        folder = self._uploaded(name)
        validate_space(text, name, folder)
        beside = folder / f".{secrets.token_hex(8)}"
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / f"{name}.yaml")

    def remove(self, name: str) -> None:
        """Remove an uploaded space with its table.

        Raises:
            ProblemError: it was not uploaded.
        """
        shutil.rmtree(self._uploaded(name))

    def _uploaded(self, name: str) -> Path:
        names = self.names()
        if not names.get(name):
            raise ProblemError(
                404,
                f"no uploaded feature space {name!r}; spaces in the server's own folders cannot "
                "be changed",
            )
        return self._folder / name


def _name_conflict(name: str) -> ConflictError:
    return ConflictError(f"a feature space {name!r} exists; choose another name")


def draft(
    folder: Path, name: str, columns: list[str], not_stated: list[str], encoding: str, cells: int
) -> SpaceDraft:
    """Draft a space from the uploaded table NAME.csv in a folder; write NAME.yaml beside it.

    Returns:
        Its name and YAML text, a report on every column, and which rows are used.

    Raises:
        InputError: the table is not text, is too large, or cannot be used.
    """
    table = folder / f"{name}.csv"
    try:
        # The size is checked before the table is parsed.
        content = table.read_bytes()
        if content.startswith(_MAGIC):
            raise InputError(f"{table}: not a text file; unpack it, or save the table as CSV")
        first = content[: content.find(b"\n") + 1 or _MAX_LINE][:_MAX_LINE]
        column_count = 1 + max(first.count(separator) for separator in _SEPARATORS)
        row_count = max(content.count(b"\n"), content.count(b"\r"))
        if column_count > _MAX_COLUMNS:
            raise InputError(f"{table}: {column_count:,} columns; upload at most {_MAX_COLUMNS:,}")
        if row_count * column_count > cells:
            raise InputError(
                f"{table}: {row_count:,} rows of {column_count:,} columns; upload at most "
                f"{cells:,} cells, such as a random part of the rows"
            )
        space = FeatureSpace.from_file(table, columns, not_stated, encoding)
        path = space.save()
    except InputError as error:
        # Show the name of the upload, not the path on the server.
        raise InputError(str(error).replace(str(table), f"{name}.csv")) from None
    if space.name != name:
        raise InputError(
            f"name: {name!r} is not a valid name of a space (it becomes {space.name!r}); use that"
        )
    assert space.draft is not None
    text, rows = path.read_text(encoding="utf-8"), str(space.table_rows())
    return SpaceDraft(name, text, space.draft.columns, rows, space.draft.notes)


def validate_space(text: str, name: str, folder: Path) -> FeatureSpace:
    """Return the space of a YAML text that came over HTTP.

    Raises:
        InputError: it breaks a rule, or names a file other than the uploaded table.
    """
    file = f"{name}.yaml"
    data = parse_yaml(text, file)
    if not isinstance(data, dict):
        raise InputError(f"{file}: expected a mapping (key: value), got {type(data).__name__}")
    for key in ("folder", "fixed"):
        if key in data:
            raise InputError(f"{file}: {key}: unknown key; remove it")
    if data.get("name") != name:
        raise InputError(f"{file}: name: must be {name!r}, as it was uploaded")
    table = data.get("table")
    if table is not None and (not isinstance(table, dict) or table.get("file") != f"{name}.csv"):
        raise InputError(f"{file}: table.file: must be '{name}.csv', the uploaded table")
    space = validate(FeatureSpace, {**data, "folder": folder}, file)
    if table is not None:
        space.table_points()
    return space
