"""Find the header row of a table's file, and the rows that are not cases.

Many files have titles and notes above and below the table, wordings or units in a second row,
totals, and repeated headers. They are recognized by their shape: a case has as many cells as the
other cases, and numbers in the same columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile, zip_longest

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from llm_elicit.spaces import cells
from llm_elicit.spaces.csv_files import Dialect, check_distinct
from llm_elicit.spaces.feature import Floats
from llm_elicit.spaces.naming import is_unit

HEADER_SAMPLE_LINES = 80
"""The lines from which the header line is found."""

_MIN_NUMBER_SHARE = 0.9
_SAMPLE_ROWS = 500
_MAX_EXTRA_LINES, _MAX_NOTES = 4, 20
"""Largest numbers of lines of wordings or units below the header line, and of notes at the end."""

_MAX_COLUMNS = 100
"""Columns by which rows that are not cases are found; a question has room for fewer."""

_MIN_ROWS = 3
_TOTAL = re.compile(
    r"(?:grand |sub[- ]?)?totals?|sums?|summe|gesamt|gesamtsumme|insgesamt|zusammen|all together|"
    r"total (?:general|général|generale|geral)|tota(?:l[ei]|al|lt)|sum[am]|som[am]e?|somma|ukupno|"
    r"итого|всего|сумма|разом|合计|总计|小计|共计|总和|合計|総計|總計|小計|합계|총계|총합|계|razem|suma|"
    r"ogółem|celkem|spolu|összesen|toplam|genel toplam|σύνολο|yhteensä|i alt|المجموع|jumlah|"
    r"tổng(?: cộng)?|סה\"כ"
)
_AVERAGE = re.compile(
    r"averages?|avg|means?|durchschnitt|mittel|mittelwert|moyennes?|promedio|média|media|"
    r"gemiddelde|medel|medelvärde|gennemsnit|gjennomsnitt|keskiarvo|среднее(?: значение)?|"
    r"平均值?|평균|średnia|průměr|átlag|ortalama|μέσος όρος"
)
_MAX_CHARACTERS = 60
"""Characters of a cell that are searched for words of totals; notes may have millions."""

_SUFFIX = re.compile(r"[\s:.=]*(?:\(.*\)|\d+)?[\s:.=]*$")
_NOTE = re.compile(
    r"(?:sources?|notes?|footnotes?|quellen?|anmerkung(?:en)?|hinweis|stand|fuentes?|notas?|fontes?|"
    r"bron|kilde|källa|lähde|źródło|zdroj|forrás|kaynak|источник|примечание|资料来源|数据来源|来源|"
    r"注|出典|資料|출처|last updated|updated|data from|generated|exported|copyright|retrieved|"
    r"accessed|end of (?:file|data)|eof)\b|[#*†‡©(\[]|--|\d+\)",
    re.IGNORECASE,
)
_NOTE_WORDS = 4


def header_lines(rows: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the numbers of the lines with the names of columns, counted from 1.

    Args:
        rows: the cells of the first lines.

    Examples:
        >>> header_lines([["Survey 2026"], [], ["age", "city"], ["41", "Oslo"], ["33", "Bergen"]])
        (3,)
        >>> header_lines([["age", "city"], ["41", "Oslo"]])
        (1,)
    """
    rows = [[cell.strip() for cell in row] for row in rows]
    lines = [line for line, row in enumerate(rows) if any(row)]
    filled = [rows[line] for line in lines]
    counts = [sum(map(bool, row)) for row in filled]
    if len(lines) < 2 or (lines[0] and not _is_header(filled[0])):
        return (1,)
    width = Counter(counts[len(lines) // 2 :]).most_common(1)[0][0]
    for number in range(_below_comments(filled), len(lines)):
        if len(filled[number]) < width:
            continue  # of a CSV, where no header line is shorter than its rows
        title = counts[number] < width and bool(filled[number][0])
        if not (title if width < 3 else 2 * counts[number] <= width):
            break
    number = _below_a_gap(filled, lines, number)
    if not _is_header(filled[number]):
        return (lines[0] + 1,)
    names = [cell for cell in filled[number] if cell]
    if number and counts[number - 1] > 1 and len(set(names)) < len(names):
        return (lines[number - 1] + 1, lines[number] + 1)
    # A second line has names for the columns that the header line leaves without.
    blank = [k for k, cell in enumerate(filled[number]) if k and not cell]
    if number + 1 < len(lines) and len(blank) > 1:
        second = filled[number + 1]
        if all(k < len(second) and second[k] for k in blank) and _is_header(second):
            return (lines[number] + 1, lines[number + 1] + 1)
    return (lines[number] + 1,)


def _below_comments(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of the first row below comments, or of the last if it holds the names."""
    comments = len(list(takewhile(_is_comment, rows[:-1])))
    if not comments:
        return 0
    widths = [sum(map(bool, rows[number])) for number in (comments - 1, comments)]
    same_width = widths[0] == widths[1] > 1
    has_names = same_width and (comments == 1 or not _is_header(rows[comments]))
    return comments - 1 if has_names else comments


def _is_comment(row: Sequence[str]) -> bool:
    return row[0].startswith(("#", "%", "//")) and row[0] != "#"


def _below_a_gap(rows: Sequence[Sequence[str]], lines: Sequence[int], number: int) -> int:
    """Return the number of the row below the next blank line if numbers begin there."""
    gaps = [k for k in range(number + 1, len(lines)) if lines[k] - lines[k - 1] > 1]
    for start in gaps[:1]:
        above, below = rows[number:start], rows[start + 1 :]
        columns = [column for column in range(len(rows[start])) if _all_numbers(below, column)]
        has_words_above = any(not _all_numbers(above[1:] or above, column) for column in columns)
        if columns and has_words_above and _is_header(rows[start]) and len(above) < len(below):
            return start
    return number


def _all_numbers(rows: Sequence[Sequence[str]], place: int) -> bool:
    column = [row[place] for row in rows if place < len(row) and row[place]]
    return bool(column) and all(map(_is_number, column))


def _is_header(row: Sequence[str]) -> bool:
    """Return whether a line may be the header: no cell is a number other than a year."""
    return not any(_is_number(cell) and not re.fullmatch(r"(1[89]|20)\d\d", cell.strip())
                   for cell in row)  # fmt: skip


def _is_number(cell: str) -> bool:
    return (
        re.fullmatch(r"[-+]?[$€£]?\d[\d.,'\s]*(?:e[-+]?\d+)?\s?%?", cell.strip(), re.I) is not None
    )


def names_of(header: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the names of columns whose header has two lines.

    Examples:
        >>> names_of(["city", "2019", "", "2020", ""], ["", "men", "women", "men", "women"])
        ['city', '2019 men', '2019 women', '2020 men', '2020 women']
    """
    names, group = [], ""
    for upper, neighbour, lower in zip_longest(header, header[1:], second, fillvalue="."):
        group = upper.strip() or group
        is_alone = upper.strip() and neighbour.strip()  # its column has no neighbour in its group
        names.append(group if is_alone else f"{group} {lower.strip()}".strip())
    return names


def drop_blank_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table with two columns or more in which any cell has a value.

    Examples:
        >>> drop_blank_rows(pd.DataFrame({"a": ["1", " ", "NA"], "b": ["x", "", "#REF!"]}))
           a  b
        0  1  x
    """
    if frame.shape[1] < 2:
        return frame
    blank = frame.index
    for name in frame.columns:
        blank = blank[cells.is_missing(cells.as_text(frame.loc[blank, name])).to_numpy()]
        if not len(blank):
            return frame
    return frame if len(blank) == len(frame) else frame.drop(index=blank)


def rows_of_no_case(frame: pd.DataFrame, dialect: Dialect) -> dict[int, str]:
    """Return the rows that are not cases, by index, and what they are.

    Args:
        frame: the rows, none of them blank.
        dialect: how numbers are written.
    """
    if len(frame) < _MIN_ROWS:
        return {}
    frame = frame.iloc[:, :_MAX_COLUMNS]
    typed = [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name].dtype)]
    words = frame.columns.difference(typed, sort=False)
    text = pd.DataFrame({name: cells.as_text(frame[name]) for name in words}, frame.index)
    repeats = frame.index
    for name in frame.columns:
        repeats = repeats[(frame.loc[repeats, name].astype(str).str.strip() == name).to_numpy()]
    rows = dict.fromkeys(repeats.tolist(), "the header line again")
    rows |= dict.fromkeys(_wordings(frame.drop(index=list(rows)), text, dialect), "no case")
    rows |= dict.fromkeys(_notes(frame.drop(index=list(rows))), "a note")
    return rows | dict.fromkeys(_totals(frame.drop(index=list(rows)), text, dialect), "a total")


def _wordings(frame: pd.DataFrame, text: pd.DataFrame, dialect: Dialect) -> list[int]:
    """Return the rows right below the header line that complete it: wordings, units, codes.

    Such a row has words where the rows below have numbers, and its words appear in no other.
    """
    sample = frame.iloc[: _SAMPLE_ROWS + _MAX_EXTRA_LINES]
    words, numbers = text.loc[sample.index], sample.drop(columns=text.columns)
    for count in range(min(_MAX_EXTRA_LINES, len(sample) - _MIN_ROWS), 0, -1):
        rows, below = sample.index[:count], words.iloc[count:]
        has_numbers = any(_is_number(str(cell)) for cell in numbers.loc[rows].to_numpy().flat)
        if not has_numbers and all(_is_wording(words.loc[row], below, dialect) for row in rows):
            return rows.tolist()
    return []


def _is_wording(row: pd.Series[str], below: pd.DataFrame, dialect: Dialect) -> bool:
    words = {name: cell for name, cell in row.items() if cell}
    if not words:
        return False
    if all(cell.startswith('{"ImportId"') for cell in words.values()):
        return True
    words_above_numbers = new_words = 0
    for name, cell in words.items():
        column = below[name][~cells.is_missing(below[name])]
        if not len(column) or cells.is_missing(pd.Series([cell])).all():
            continue
        if _are_numbers(column, dialect):
            if cells.to_numbers(pd.Series([cell]), dialect).notna().all():
                return False
            words_above_numbers += 1
        elif column.nunique() <= len(column) / 2:
            if (column == cell).any():
                return False
            new_words += 1
    if words_above_numbers and (words_above_numbers > 1 or all(map(is_unit, words.values()))):
        return True
    phrases = sum(" " in cell for cell in words.values()) > len(words) / 2
    return phrases and (new_words >= _MIN_ROWS or (words_above_numbers > 0 and new_words > 0))


def _are_numbers(column: pd.Series[str], dialect: Dialect) -> bool:
    """Return whether nearly all cells of a column without missing cells are numbers or dates."""
    if len(column) < _MIN_ROWS:
        return False
    numbers = cells.to_numbers(column, dialect).notna()
    return bool((numbers | column.str.match(r"\d+[-/.]\d+[-/.]\d+")).mean() >= _MIN_NUMBER_SHARE)


def _notes(frame: pd.DataFrame) -> list[int]:
    """Return the last rows that have only one cell, a sentence or the beginning of a note."""
    if frame.shape[1] < 2:
        return []
    tail = frame.iloc[-_MAX_NOTES:]
    text = {name: cells.as_text(tail[name]) for name in frame.columns}
    notes = list[int]()
    for row in reversed(tail.index.tolist()):
        filled = [(name, column.loc[row]) for name, column in text.items() if column.loc[row]]
        if len(filled) != 1:
            break
        name, cell = filled[0]
        is_note = _NOTE.match(cell) is not None or len(cell.split()) > _NOTE_WORDS
        if not is_note or _is_number(cell) or (cells.as_text(frame[name]) == cell).sum() > 1:
            break
        notes.append(row)
    return notes if len(notes) < len(frame) - _MIN_ROWS else []


def _totals(frame: pd.DataFrame, text: pd.DataFrame, dialect: Dialect) -> list[int]:
    """Return the rows that hold totals or averages of other rows."""
    if len(frame) < _MIN_ROWS:
        return []
    ends = {frame.index[0], *frame.index[-_MAX_EXTRA_LINES:].tolist()}
    totals = set[int]()
    for _, column in text.loc[frame.index].items():
        words = [word for word in column.unique().tolist() if _kind_of_total(word)]
        if not words or len(words) > _MAX_EXTRA_LINES:
            continue
        others = column[~column.isin(words) & ~cells.is_missing(column)]
        rows = column.index[column.isin(words)].tolist()
        if _are_numbers(others, dialect):
            totals.update(rows)
        elif len(rows) == len(words):
            totals.update(row for row in rows if row in ends and
                          _sums_up(frame.drop(index=rows), frame.loc[[row]], column.loc[row],
                                   dialect))  # fmt: skip
    if not totals and _is_sum_without_name(frame, dialect):
        totals.add(int(frame.index[-1]))
    return sorted(totals)


def _kind_of_total(word: str) -> str:
    """Return "total" or "average" if a word names such a row, else an empty text."""
    plain = _SUFFIX.sub("", word[:_MAX_CHARACTERS].casefold())
    if _TOTAL.fullmatch(plain):
        return "total"
    return "average" if _AVERAGE.fullmatch(plain) else ""


def _numbers(frame: pd.DataFrame, dialect: Dialect) -> NDArray[np.float64]:
    columns = [cells.to_numbers(frame[name], dialect) for name in frame.columns]
    return np.column_stack([column.to_numpy(np.float64) for column in columns])


def _sums_up(cases: pd.DataFrame, row: pd.DataFrame, word: str, dialect: Dialect) -> bool:
    """Return whether a row holds totals or averages of the cases.

    Most of its numbers are at least the largest of their column, or near the column's mean.
    """
    values = _numbers(row, dialect)[0]
    present = np.isfinite(values)
    if not present.any():
        return False
    values, numbers = values[present], _numbers(cases.loc[:, present], dialect)
    if _kind_of_total(word) == "total":
        agrees = values >= np.nanmax(numbers, axis=0)
    else:
        agrees = np.abs(values - np.nanmean(numbers, axis=0)) <= 0.2 * np.nanstd(numbers, axis=0)
    return bool(agrees.mean() >= 0.5)


def _is_sum_without_name(frame: pd.DataFrame, dialect: Dialect) -> bool:
    """Return whether the last row has no words, and holds the sum of the rows above it."""
    last, above = frame.iloc[[-1]], frame.iloc[:-1]
    values = _numbers(last, dialect)[0]
    present = np.isfinite(values)
    texts = [cells.as_text(last[name]).iloc[0] for name in frame.columns[~present]]
    if len(above) < 5 or not present.any() or any(texts) or present.all():
        return False
    sums: Floats = np.nansum(_numbers(above.loc[:, present], dialect), axis=0)
    largest = np.nanmax(_numbers(above.loc[:, present], dialect), axis=0)
    return bool((np.isclose(values[present], sums, rtol=1e-6) & (sums > largest)).all())


def name_columns(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a frame whose column names are text; a named index becomes columns.

    Raises:
        InputError: two columns have the same name.
    """
    index_names = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index() if index_names else frame.reset_index(drop=True)
    frame = frame.set_axis([str(name).strip() for name in frame.columns], axis="columns")
    check_distinct(frame.columns, source)
    return frame
