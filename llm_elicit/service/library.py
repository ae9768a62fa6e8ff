"""The feature spaces of a service: the operator's, and those that were uploaded.

An uploaded space is a folder of its own below the service's, with the table and the YAML file of
one name. Names that come over HTTP are looked up in a list; they are never joined to a path before.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llm_elicit.config import resources
from llm_elicit.config.base_model import parse_yaml, validated
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
"""The pattern of the names of uploaded spaces."""

_MAGIC = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PAR1", b"ARROW1", b"\xd0\xcf\x11\xe0",
          b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf", b"%PDF")  # fmt: skip
"""How archives, compressed files and formats other than text begin."""

_SEPARATORS = b",;\t|"
_MOST_COLUMNS = 1_000
_LINE = 1_000_000


class Library:
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
        own = resources.available("datasets", ".yaml")
        return {**dict.fromkeys(uploaded, True), **dict.fromkeys(own, False)}

    def find(self, name: str) -> str:
        """Return what `FeatureSpace.load` reads a space by, given its name.

        Raises:
            InputError: there is none; paths are not names.
        """
        known = self.names()
        if name not in known:
            raise InputError(f"no feature space {name!r}; known: {', '.join(sorted(known))}")
        return str(self._folder / name / f"{name}.yaml") if known[name] else name

    def path(self, name: str) -> Path:
        """Return the path of a space's YAML file.

        Raises:
            InputError: there is none of that name.
        """
        return resources.find("datasets", self.find(name), ".yaml")

    @contextmanager
    def added(self, name: str) -> Iterator[Path]:
        """Yield an empty folder for a new space, which is put in its place at the end.

        Raises:
            InputError: the name is taken, or is none.
        """
        self._check_free(name)
        beside = self._folder / f".{secrets.token_hex(8)}"
        beside.mkdir(mode=0o700, parents=True)
        try:
            yield beside
            try:
                os.rename(beside, self._folder / name)  # noqa: PTH104 - refuses a folder in use
            except OSError:
                raise InputError(f"a feature space {name!r} exists; choose another name") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def replace(self, name: str, text: str) -> FeatureSpace:
        """Write the YAML text of an uploaded space, and return it.

        Raises:
            InputError: it was not uploaded, or the text breaks a rule.
        """
        folder = self._uploaded(name)
        space = checked(text, name, folder)
        beside = folder / f".{secrets.token_hex(8)}"
        beside.write_text(text, encoding="utf-8")
        beside.replace(folder / f"{name}.yaml")
        return space

    def remove(self, name: str) -> None:
        """Remove an uploaded space with its table.

        Raises:
            InputError: it was not uploaded.
        """
        shutil.rmtree(self._uploaded(name))

    def _uploaded(self, name: str) -> Path:
        known = self.names()
        if not known.get(name):
            raise InputError(
                f"no uploaded feature space {name!r}; those of the server's own folders stay as "
                "they are"
            )
        return self._folder / name

    def _check_free(self, name: str) -> None:
        if not re.match(NAME, name):
            raise InputError(
                f"name: {name[:100]!r} is no name; give up to 64 letters, digits and underscores, "
                "the first a letter"
            )
        if name in self.names():
            raise InputError(f"a feature space {name!r} exists; choose another name")


def draft(folder: Path, name: str, columns: list[str], cells: int) -> dict[str, Any]:
    """Draft a space from the uploaded table NAME.csv in a folder; write NAME.yaml beside it.

    Returns:
        Its name and YAML text, what became of every column, and which rows are used.

    Raises:
        InputError: the table is no text, too large, or cannot be used.
    """
    table = folder / f"{name}.csv"
    try:
        _check_table(table, cells)
        space = FeatureSpace.from_file(table, columns)
        path = space.save()
    except InputError as error:
        # The table has a name of its own for the user.
        raise InputError(str(error).replace(str(table), f"{name}.csv")) from None
    if space.name != name:
        raise InputError(f"name: {name!r} cannot be the name of a space; choose another")
    assert space.draft is not None
    return {
        "name": name,
        "yaml": path.read_text(encoding="utf-8"),
        "columns": [asdict(column) for column in space.draft.columns],
        "rows": str(space.table_rows()),
    }


def checked(text: str, name: str, folder: Path) -> FeatureSpace:
    """Return the space of a YAML text that came over HTTP.

    Raises:
        InputError: it breaks a rule, or names a file other than the uploaded table.
    """
    where = f"{name}.yaml"
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        raise InputError(f"{where}: a mapping of keys is expected, got {type(data).__name__}")
    for key in ("folder", "fixed"):
        if key in data:
            raise InputError(f"{where}: {key}: unknown key; remove it")
    if data.get("name") != name:
        raise InputError(f"{where}: name: must be {name!r}, as it was uploaded")
    table = data.get("table")
    if table is not None and (not isinstance(table, dict) or table.get("file") != f"{name}.csv"):
        raise InputError(f"{where}: table.file: must be '{name}.csv', the uploaded table")
    space = validated(FeatureSpace, {**data, "folder": folder}, where)
    if table is not None:
        space.table_points()
    return space


def _check_table(path: Path, cells: int) -> None:
    """Check that a file is text of a size that can be read, before it is parsed.

    Raises:
        InputError: it is not.
    """
    content = path.read_bytes()
    if content.startswith(_MAGIC):
        raise InputError(f"{path}: not a text file; unpack it, or save the table as CSV")
    first = content[: content.find(b"\n") + 1 or _LINE][:_LINE]
    columns = 1 + max(first.count(separator) for separator in _SEPARATORS)
    rows = max(content.count(b"\n"), content.count(b"\r"))
    if columns > _MOST_COLUMNS:
        raise InputError(f"{path}: {columns:,} columns; upload at most {_MOST_COLUMNS:,}")
    if rows * columns > cells:
        raise InputError(
            f"{path}: {rows:,} rows of {columns:,} columns; upload at most {cells:,} cells, "
            "such as a random part of the rows"
        )
