"""A CSV's columns as numbers: those of numbers as they stand, those of words as codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llm_elicit.errors import InputError
from llm_elicit.later import Later

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = Later("pandas")  # a process that only asks questions does without


def read_columns(path: Path, columns: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Columns of a CSV as floats, NaN where a cell is empty.

    Args:
        path: the file, also gzipped.
        columns: the words that each column may hold, by its name; a word's place among them is
            its code. Of a column of numbers there are none.

    Raises:
        InputError: a column is missing, a cell of a column of numbers holds text, or one of a
            column of words another word; the message names column and line.
    """
    frame = pd.read_csv(path)
    numbers = [name for name, words in columns.items() if not words]
    found = numeric_columns(frame, numbers, str(path))
    words = {name: some for name, some in columns.items() if some}
    _all_there(frame, list(words), str(path))
    if words:
        # As they are written: "4" is no 4.0, and "NA" may stand for North America.
        written = pd.read_csv(path, usecols=list(words), dtype=str, keep_default_na=False)
        for name, some in words.items():
            found[name] = word_codes(written[name], frame[name].isna(), some, str(path))
    return found[list(columns)]


def numeric_columns(frame: pd.DataFrame, names: list[str], where: str) -> pd.DataFrame:
    """The columns `names` as floats.

    Raises:
        InputError: a column is missing, or a cell holds text; the message names column and line.
    """
    _all_there(frame, names, where)
    out = {}
    for name in names:
        column = pd.to_numeric(frame[name], errors="coerce")
        bad = column.isna() & frame[name].notna()
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"{where}: column {name!r}, line {row + 2}: {frame[name].iloc[row]!r} is not a "
                "number; correct the cell or leave the column out"
            )
        out[name] = column.astype(float)
    return pd.DataFrame(out, index=frame.index)


def word_codes(
    written: pd.Series[str], empty: pd.Series[bool], words: Sequence[str], where: str
) -> pd.Series[float]:
    """Each cell's place among `words`, blanks around it aside; NaN where it is `empty`.

    Raises:
        InputError: a cell that is not empty holds no such word; the message names column and line.

    Example:
        >>> cells = pd.Series([" 4", "8", "", "4"], name="cylinders")
        >>> word_codes(cells, cells == "", ["4", "6", "8"], "cars.csv").tolist()
        [0.0, 2.0, nan, 0.0]
    """
    stripped = written.str.strip()
    codes = stripped.map({word: float(code) for code, word in enumerate(words)})
    bad = codes.isna() & ~empty & (stripped != "")
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{where}: column {written.name!r}, line {row + 2}: {stripped.iloc[row]!r} is none of "
            f"its categories; known: {', '.join(words)}"
        )
    return codes.astype(float)


def _all_there(frame: pd.DataFrame, names: list[str], where: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise InputError(f"{where}: no column {missing[0]!r}; it has {', '.join(frame.columns)}")
