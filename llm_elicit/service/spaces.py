"""Feature spaces of a service: the operator's, and those drafted from uploaded tables.

An uploaded space is a folder below the service's, which holds the table and the YAML file. Names
that come over HTTP are looked up in a list and are never joined to a path.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zipfile import BadZipFile, ZipFile

from fastapi import APIRouter, Query, Request, Response

from llm_elicit._util import files
from llm_elicit._util.packages import LazyModule
from llm_elicit._util.settings import as_mapping, parse_yaml, read_yaml, validate
from llm_elicit._util.text import names_in, not_utf8
from llm_elicit.errors import ConflictError, ElicitError, InputError
from llm_elicit.pipeline.run_folder import CAMPAIGN, run_folders
from llm_elicit.service.responses import ProblemError
from llm_elicit.service.schemas import SpaceDraft, SpaceSummary, SpaceYaml
from llm_elicit.service.security import ADMIN, READ, media_type
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.state import Service, Shared
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    from pyarrow import parquet
else:
    parquet = LazyModule("pyarrow.parquet")  # for workers alone

router = APIRouter(prefix="/api/v1/spaces", tags=["feature spaces"])

_TYPED = {
    "application/vnd.apache.parquet": ".parquet",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
"""The suffixes of tables whose cells have types, by media type."""

SUFFIXES = (".csv", *_TYPED.values())
"""The suffixes of tables that can be uploaded."""

_REPORT = "draft.json"
"""The file beside an uploaded table with the report on its columns, and remarks on its file."""


@router.get("", summary="Feature spaces", dependencies=READ)
async def list_spaces(service: Shared) -> list[SpaceSummary]:
    """Return the spaces that a campaign can name."""
    names = await asyncio.to_thread(library_of(service.settings).names)
    return [SpaceSummary(name=name, uploaded=uploaded) for name, uploaded in sorted(names.items())]


@router.post(
    "",
    summary="Upload a table and draft a space from it",
    status_code=201,
    dependencies=ADMIN,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "text/csv": {"schema": {"type": "string"}},
                **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in _TYPED},
            },
        }
    },
)
async def upload(  # noqa: PLR0913, PLR0917 - a parameter each
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
    encoding: Annotated[str, Query(description="Encoding of a CSV; detected if empty.")] = "",
    sep: Annotated[str, Query(description="Separator of a CSV; detected if empty.")] = "",
    decimal: Annotated[str, Query(description="Decimal mark of a CSV; detected if empty.")] = "",
) -> SpaceDraft:
    """Draft a feature space from a table, which is the body of the request."""
    kinds = {"text/csv": ".csv", **_TYPED}
    suffix = kinds.get(media_type(request))
    if suffix is None:
        raise ProblemError(415, f"send the table as one of {', '.join(kinds)}")
    reading = TableReading(names_in(columns), names_in(not_stated), encoding, sep, decimal)
    return await add_table(service, name, suffix, await request.body(), reading)


async def add_table(
    service: Service, name: str, suffix: str, content: bytes, reading: TableReading
) -> SpaceDraft:
    """Store a table, whose suffix names its format, and draft a space from it.

    Raises:
        ConflictError: the name is taken.
        InputError: the name is not valid, or the table cannot be used.
    """
    cells = service.settings.bounds.cells
    with library_of(service.settings).adding(name) as folder:
        table = folder / f"{name}{suffix}"
        await asyncio.to_thread(table.write_bytes, content)
        return await service.workers.call(draft, table, reading, cells)


@router.get("/{name:path}", summary="A feature space as YAML", dependencies=READ)
async def read_space(service: Shared, name: str) -> SpaceYaml:
    """Return a space's YAML text."""
    path = await asyncio.to_thread(library_of(service.settings).path, name)
    return SpaceYaml(name=name, yaml=await asyncio.to_thread(path.read_text, "utf-8"))


@router.put(
    "/{name}",
    summary="Edit an uploaded space",
    dependencies=ADMIN,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/yaml": {"schema": {"type": "string"}}},
        }
    },
)
async def edit(request: Request, service: Shared, name: str) -> SpaceYaml:
    """Replace a space's YAML, which is the body of the request."""
    body = await request.body()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(422, not_utf8(error)) from None
    await check_unused(service, name)
    await service.workers.call(library_of(service.settings).replace, name, text)
    return SpaceYaml(name=name, yaml=text)


@router.delete("/{name}", summary="Remove an uploaded space", status_code=204, dependencies=ADMIN)
async def remove(service: Shared, name: str) -> Response:
    """Remove a space and its table."""
    await check_unused(service, name)
    await asyncio.to_thread(library_of(service.settings).remove, name)
    return Response(status_code=204)


def library_of(settings: ServerSettings) -> SpaceLibrary:
    """Return the feature spaces of a service."""
    return SpaceLibrary(settings.own_folder / "spaces")


async def check_unused(service: Service, name: str) -> None:
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
_CELL_BYTES = 100
"""Largest number of unpacked bytes of a compressed file, for each cell that is allowed."""


class SpaceLibrary:
    """The feature spaces that a campaign received over HTTP can name.

    Args:
        folder: the folder of uploaded spaces.
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
        temporary = self._folder / f".{secrets.token_hex(8)}"
        temporary.mkdir(mode=0o700, parents=True)
        try:
            yield temporary
            try:
                os.rename(temporary, self._folder / name)  # noqa: PTH104 - refuses a folder in use
            except OSError:
                raise _name_conflict(name) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def replace(self, name: str, text: str) -> None:
        """Write the YAML text of an uploaded space.

        Raises:
            ProblemError: it was not uploaded.
            InputError: the text breaks a rule.
        """
        folder = self._uploaded(name)
        validate_space(text, name, folder)
        temporary = folder / f".{secrets.token_hex(8)}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / f"{name}.yaml")

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


@dataclass(frozen=True)
class TableReading:
    """The settings for reading a table; empty ones are detected.

    Attributes:
        columns: the columns to use; all that can be features if empty.
        not_stated: numeric columns where a missing cell means "not stated".
        encoding, sep, decimal: the encoding, the separator and the decimal mark of a CSV.
    """

    columns: Sequence[str] = ()
    not_stated: Sequence[str] = ()
    encoding: str = ""
    sep: str = ""
    decimal: str = ""

    def space_of(self, table: Path) -> FeatureSpace:
        """Return a space drafted from a table.

        Raises:
            InputError: it cannot be read, or no column can be a feature.
        """
        names = self.columns, self.not_stated
        return FeatureSpace.from_file(table, *names, self.encoding, self.decimal, self.sep)


def draft(table: Path, reading: TableReading, cells: int) -> SpaceDraft:
    """Draft a space from an uploaded table; write it beside the table.

    Returns:
        Its name and YAML text, a report on every column, and which rows are used.

    Raises:
        InputError: the table is of another format than its name says, too large, or not usable.
    """
    name = table.stem
    try:
        _check_table(table, cells)
        space = reading.space_of(table)
        if space.name != name:
            raise InputError(
                f"name: {name!r} is not a valid name of a space (it becomes {space.name!r}); use "
                "that"
            )
        path = space.save(replace=True)
    except InputError as error:
        # Show the name of the upload, not the path on the server.
        raise InputError(str(error).replace(str(table), table.name)) from None
    assert space.draft is not None
    columns = [asdict(column) for column in space.draft.columns]
    report = json.dumps({"columns": columns, "notes": space.draft.notes})
    (table.parent / _REPORT).write_text(report, "utf-8")
    text, rows = path.read_text(encoding="utf-8"), str(space.table_rows())
    return SpaceDraft(name, text, space.draft.columns, rows, space.draft.notes)


def read_report(folder: Path) -> dict[str, Any]:
    """Return the report on an uploaded table: of its `columns`, and `notes` on its file."""
    path = folder / _REPORT
    return json.loads(path.read_text("utf-8")) if path.is_file() else {"columns": [], "notes": []}


def _check_table(table: Path, cells: int) -> None:
    """Check the format and the size of a table before it is parsed.

    Raises:
        InputError: it is of another format than its name says, or too large.
    """
    content, size = table.read_bytes(), 0
    if table.suffix == ".csv":
        if content.startswith(_MAGIC):
            raise InputError(f"{table}: not a text file; unpack it, or save the table as CSV")
        first = content[: content.find(b"\n") + 1 or _MAX_LINE][:_MAX_LINE]
        column_count = 1 + max(first.count(separator) for separator in _SEPARATORS)
        row_count = max(content.count(b"\n"), content.count(b"\r"))
    else:
        try:
            if table.suffix == ".parquet":
                metadata = parquet.ParquetFile(table).metadata
                row_count, column_count = metadata.num_rows, metadata.num_columns
                groups = map(metadata.row_group, range(metadata.num_row_groups))
                size = sum(group.total_byte_size for group in groups)
            else:
                with ZipFile(table) as workbook:
                    workbook.getinfo("[Content_Types].xml")
                    row_count = column_count = 0
                    size = sum(part.file_size for part in workbook.infolist())
        except (BadZipFile, KeyError, OSError, ValueError):
            raise InputError(
                f"{table}: not a file of the format {table.suffix}; save the table as CSV"
            ) from None
    if column_count > _MAX_COLUMNS:
        raise InputError(f"{table}: {column_count:,} columns; upload at most {_MAX_COLUMNS:,}")
    if row_count * column_count > cells or size > _CELL_BYTES * cells:
        count = f"{row_count:,} rows of {column_count:,} columns" if row_count else "too many cells"
        raise InputError(
            f"{table}: {count}; upload at most {cells:,} cells, such as a random part of the rows"
        )


def validate_space(text: str, name: str, folder: Path) -> FeatureSpace:
    """Return the space of a YAML text that came over HTTP.

    Raises:
        InputError: it breaks a rule, or names a file other than the uploaded table.
    """
    file = f"{name}.yaml"
    data = as_mapping(parse_yaml(text, file), file)
    for key in ("folder", "fixed"):
        if key in data:
            raise InputError(f"{file}: {key}: unknown key; remove it")
    if data.get("name") != name:
        raise InputError(f"{file}: name: must be {name!r}, as it was uploaded")
    table = data.get("table")
    own = [f"{name}{suffix}" for suffix in SUFFIXES if (folder / f"{name}{suffix}").is_file()]
    if table is not None and (not isinstance(table, dict) or table.get("file") not in own):
        raise InputError(f"{file}: table.file: must be {own[0]!r}, the uploaded table")
    space = validate(FeatureSpace, {**data, "folder": folder}, file)
    if table is not None:
        space.table_points()
    return space
