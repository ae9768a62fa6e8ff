"""Drafting a feature space from a CSV file, for the user to edit."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from llm_elicit.config.base_model import to_yaml, validated
from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_columns import read_csv
from llm_elicit.spaces.features import NAME, FeatureSpace, Floats

LOW, HIGH = 0.01, 0.99
_SKEWED = 1.0
_LARGEST = 1e100
"""Squares of larger values, and sums of squares, leave what a float can hold."""

_MOST_WORDS = 12
_HEADER = """\
# Drafted from {file}; edit before use.
#
# - subject is what one row of the table is; labels and units are what the judge reads.
# - Ranges are the 1 % and 99 % quantiles, rounded outwards: a few extreme rows would otherwise
#   waste most questions on empty regions. Columns with a long right tail (skewness above 1,
#   smaller on the logarithm) are asked about on a logarithmic scale.
# - Columns of text with 2 to {most} different words are categorical: all of them are asked about.
# - Other text, columns of one value and of row numbers were left out: {left_out}.
"""


def draft_space(table: Path) -> tuple[FeatureSpace, str]:
    """Return a feature space for a CSV's columns of numbers and of few words, and its YAML text.

    Args:
        table: a CSV file, also gzipped, with a header line.

    Raises:
        InputError: no such file, not a CSV, a numeric column with a cell of text, or no column
            that can be a feature.
    """
    frame, written = _read(table), read_csv(table, dtype=str, keep_default_na=False)
    drafts: dict[str, dict[str, Any]] = {}
    left_out = []
    for column in frame.columns:
        cells = written[column][frame[column].notna()]
        _refuse_decimal_commas(cells, table)
        if _is_text(cells):
            draft = _draft_categories(cells)
        else:
            draft = _draft_feature(frame[column], table)
        if draft is None:
            left_out.append(str(column))
        else:
            drafts[str(column)] = draft
    if not drafts:
        raise InputError(
            f"{table}: no column of numbers, or of few words, with at least two values; nothing to "
            "ask about"
        )
    names = _names(list(drafts))
    labels = _labels(names)
    headings = {name: heading for heading, name in names.items() if name != heading}
    name = re.sub(r"\W+", "_", table.name.split(".")[0]).strip("_") or "space"
    data = {
        "name": name,
        "title": name.replace("_", " "),
        "subject": f"a row of {table.name}",
        "ranges": "1 % and 99 % quantiles of the table, rounded outwards; log scale where skewed",
        "features": [
            {"name": names[heading], "label": labels[heading], **draft}
            for heading, draft in drafts.items()
        ],
        "table": {
            "file": table.name,
            "sha256": hashlib.sha256(table.read_bytes()).hexdigest(),
            "rows": len(frame),
            "licence": "unstated",
            "source": table.name,
            **({"columns": headings} if headings else {}),
        },
    }
    space = validated(FeatureSpace, {**data, "folder": table.parent}, str(table))
    shown = {"file": table.name, "most": _MOST_WORDS, "left_out": ", ".join(left_out) or "none"}
    header = _HEADER.format(**shown)
    return space, header + to_yaml(data)


def _read(table: Path) -> pd.DataFrame:
    if not table.is_file():
        raise InputError(f"{table}: no such file; give the path of a CSV with a header line")
    return read_csv(table)


def _is_text(column: pd.Series[Any]) -> bool:
    """Whether most of the cells are not numbers."""
    return bool(pd.to_numeric(column, errors="coerce").isna().mean() > 0.5)


def _refuse_decimal_commas(column: pd.Series[Any], table: Path) -> None:
    """Refuse a column of numbers with decimal commas.

    Raises:
        InputError: most cells are such numbers; the message names the first.
    """
    written = column.astype(str).str.fullmatch(r"\s*-?\d+,\d+\s*")
    if written.mean() > 0.5:
        row = int(column.index[written][0])
        raise InputError(
            f"{table}: column {column.name!r}, line {row + 2}: {column[row]!r} has a comma for "
            "the decimal point; write numbers as 1.5"
        )


def _draft_categories(column: pd.Series[Any]) -> dict[str, Any] | None:
    """Return the settings of a categorical feature; None if there are too many words."""
    words = sorted(set(column.str.strip()) - {""})
    few = 2 <= len(words) <= min(_MOST_WORDS, len(column) // 2)
    if not few or not all(word.isprintable() for word in words):
        return None
    return {"kind": "categorical", "categories": words}


def _labels(names: Mapping[str, str]) -> dict[str, str]:
    """Return the label of each heading's feature: the heading as words, or the feature's name.

    Args:
        names: the features' names by heading.
    """
    labels: dict[str, str] = {}
    for heading, name in names.items():
        words = " ".join(heading.replace("_", " ").split())
        usable = words.isprintable() and words and words not in labels.values()
        labels[heading] = words if usable else name
    return labels


def _names(headings: list[str]) -> dict[str, str]:
    """Return the name of each heading's feature: the heading, or a valid name made from it."""
    names = {heading: heading for heading in headings if _is_name(heading)}
    for heading in headings:
        if heading in names:
            continue
        plain = re.sub(r"^(?=\d)", "_", re.sub(r"[^A-Za-z0-9]+", "_", heading.strip()))
        plain = re.sub(r"(?<=.)_$", "", plain) or "_"
        tried = (f"{plain}_{k}" if k > 1 else plain for k in itertools.count(1))
        names[heading] = next(name for name in tried if name not in names.values())
    return names


def _is_name(heading: str) -> bool:
    return re.fullmatch(NAME, heading) is not None


def _draft_feature(column: pd.Series[Any], table: Path) -> dict[str, Any] | None:
    """Return the settings of a numeric feature; None if the column cannot be one."""
    numbers = pd.to_numeric(column, errors="coerce")
    text = numbers.isna() & column.notna()
    if numbers.nunique() < 2:
        return None
    if text.any():
        row = int(np.flatnonzero(text)[0])
        raise InputError(
            f"{table}: column {column.name!r}, line {row + 2}: {column.iloc[row]!r} is not a "
            "number; correct the cell or delete the column"
        )
    values = numbers.dropna().to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{table}: column {column.name!r} holds an infinite value; correct it")
    if np.abs(values).max() > _LARGEST:
        raise InputError(
            f"{table}: column {column.name!r} holds a value beyond {_LARGEST:g}; correct it, or "
            "give the column in a larger unit"
        )
    if _is_row_number(values):
        return None
    whole = bool(np.all(values == np.round(values)))
    low, high = _robust_range(values, whole)
    log = low > 0 and _is_skewed(values)
    return {
        "unit": "",
        "kind": "integer" if whole else "continuous",
        "scale": "log" if log else "linear",
        "low": low,
        "high": high,
    }


def _is_row_number(values: Floats) -> bool:
    """Whether a column numbers the rows."""
    return len(values) > 2 and bool(np.all(np.diff(values) == 1))


def _robust_range(values: Floats, whole: bool) -> tuple[float, float]:
    """Return the 1 % and 99 % quantiles, rounded outwards to three digits of their distance.

    If they coincide, the extremes are used.
    """
    low, high = np.quantile(values, [LOW, HIGH])
    if low == high:
        low, high = values.min(), values.max()
    grid = 10.0 ** (np.floor(np.log10(high - low)) - 2)
    if whole:
        grid = max(1.0, grid)
    edges = np.floor(low / grid) * grid, np.ceil(high / grid) * grid
    # A positive range stays positive: rounding 0.004 down to 0 would rule out the log scale.
    bottom = float(low) if low > 0 >= edges[0] else float(f"{edges[0]:.12g}")
    return bottom, float(f"{edges[1]:.12g}")


def _is_skewed(values: Floats) -> bool:
    """Whether a long right tail becomes shorter on the logarithm."""
    raw, logarithmic = float(stats.skew(values)), float(stats.skew(np.log(values[values > 0])))
    return raw > _SKEWED and abs(logarithmic) < abs(raw)
