"""Draft a feature from a column of a table, or leave it out with a reason.

Words with a known order ("low, medium, high" or "18-24, 25-34, 65+") become ordered categories.

Rows that lack a number have no place on its scale and are left out. Where a missing value is an
answer of its own (an income that was not stated), the column can become categories instead: ranges
with about a fifth of the numbers each, and "not stated" for missing values. They are categorical
rather than ordered, because "not stated" is neither below nor above the ranges.

If a column has only a few numbers far apart, such as rates of 7 and 19 per cent, they become
ordered categories, so that nobody is asked about 13 per cent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit._util.text import visible
from llm_elicit.spaces import cells
from llm_elicit.spaces.csv_files import Dialect
from llm_elicit.spaces.feature import (
    ENGLISH,
    MONTHS,
    NOT_STATED,
    Floats,
    Locale,
    format_number,
)
from llm_elicit.spaces.number_drafts import MAX_LEVELS, UnusableColumnError, draft_numbers

_MONTHS = tuple(month.lower() for month in MONTHS)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ORDERS: tuple[tuple[str, ...], ...] = (
    _MONTHS, tuple(month[:3] for month in _MONTHS), _DAYS, tuple(day[:3] for day in _DAYS),
    ("very low", "low", "medium", "high", "very high"),
    ("very low", "low", "middle", "high", "very high"),
    ("very low", "low", "moderate", "high", "very high"),
    ("xxs", "xs", "s", "m", "l", "xl", "xxl", "xxxl"),
    ("tiny", "small", "medium", "large", "huge"), ("small", "mid", "large"),
    ("never", "rarely", "sometimes", "often", "always"),
    ("never", "rarely", "occasionally", "frequently", "always"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("strongly disagree", "disagree", "neither agree nor disagree", "agree", "strongly agree"),
    ("very dissatisfied", "dissatisfied", "neutral", "satisfied", "very satisfied"),
    ("very poor", "poor", "fair", "good", "very good", "excellent"),
    ("terrible", "bad", "poor", "fair", "average", "good", "very good", "excellent"),
    ("fair", "good", "very good", "premium", "ideal"),
    ("mild", "moderate", "severe"), ("primary", "secondary", "tertiary"),
    ("none", "mild", "moderate", "severe"), ("no", "maybe", "yes"), ("1st", "2nd", "3rd", "crew"),
    ("first", "second", "third", "fourth", "fifth"), ("freshman", "sophomore", "junior", "senior"),
    ("primary school", "secondary school", "high school", "college", "university"),
    ("high school", "bachelor's degree", "master's degree", "phd"),
    ("high school", "bachelors", "masters", "doctorate"),
    ("less than high school", "high school", "some college", "bachelor", "master", "doctorate"),
    ("never", "yearly", "monthly", "weekly", "daily"),
    ("i1", "si2", "si1", "vs2", "vs1", "vvs2", "vvs1", "if"),
)  # fmt: skip
_CIRCLES = _ORDERS[:4]
_QUARTER = r"\d{4}[-/ ]?q[1-4]"
_RANGE = re.compile(
    r"(?P<below>[<≤]|under |below |less than )?\s?(?P<first>\d[\d,.]*)\s?[a-z$€%]*"
    r"(?:\s?(?:-|–|to)\s?\d[\d,.]*\s?[a-z$€%]*|\s?\+|\s?(?:and|or) (?:over|more|older|above))?"
)


def known_order(words: Sequence[str]) -> list[str]:
    """Return words in their known order; empty if they have none.

    Examples:
        >>> known_order(["high", "low", "medium"]), known_order(["25-34", "65+", "<18", "18-24"])
        (['low', 'medium', 'high'], ['<18', '18-24', '25-34', '65+'])
        >>> known_order(["oak", "elm"])
        []
    """
    plain_words = {word: " ".join(word.casefold().replace("_", " ").split()) for word in words}
    for order in _ORDERS:
        if set(plain_words.values()) <= set(order):
            return sorted(words, key=lambda word: order.index(plain_words[word]))
    ranges = {word: _RANGE.fullmatch(text) for word, text in plain_words.items()}
    if all(re.fullmatch(_QUARTER, text) for text in plain_words.values()):
        return sorted(words, key=lambda word: plain_words[word])
    # "Below 18" comes before "18 to 24".
    starts = {
        word: (float(match["first"].replace(",", "").rstrip(".") or "nan"), match["below"] is None)
        for word, match in ranges.items()
        if match is not None
    }
    distinct = len(set(starts.values())) == len(words)
    range_count = sum(not re.fullmatch(r"[\d.,]+", text) for text in plain_words.values())
    return sorted(words, key=lambda word: starts[word]) if distinct and range_count > 1 else []


def is_circle(words: Sequence[str]) -> bool:
    """Return whether words are all months or all days of the week, in any order.

    Examples:
        >>> is_circle(["Sat", "Sun"]), is_circle(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
        (False, True)
    """
    plain = {word.casefold() for word in words}
    return any(plain == set(order) for order in _CIRCLES)


MAX_CATEGORIES = 30
"""Largest number of categories of a column that is not named by the user."""

MAX_NAMED_CATEGORIES = 100
"""Largest number of categories of a column that the user names (`--columns`)."""

_MAX_MISSING_SHARE = 0.05
"""The share of empty cells above which they are a category of their own."""

_MIN_TOLERANT_CELLS = 20
"""Columns of numbers with more cells may have a cell that is not a number; it counts as missing."""

_MAX_ODD_SHARE = 0.01
"""Largest share of cells that are not numbers in a column of numbers."""

_MIN_NUMBER_SHARE = 0.9
"""Share of numbers from which a column with few different cells counts as one of numbers."""

_MAX_SPAN_SHARE = 0.9
"""Dates span all days if their 1 % and 99 % quantiles span more than this share of that range."""

_SAMPLE_CELLS = 500
"""Number of cells from which the format of dates and the unit of numbers are detected."""

_BOOLEANS = (("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y"), ("0", "1"))
_DATES = (
    cells.ISO, "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m/%d/%y", "%d %B %Y",
    "%d %b %Y", "%b %d %Y", "%B %d, %Y", "%b %d, %Y", "%d-%b-%Y", "%d-%b-%y",
    "%Y年%m月%d日", "%Y-%m",
)  # fmt: skip
"""Formats of dates; the first that reads every cell is used."""

_COMPACT, _COMPACT_DATE = "%Y%m%d", r"(?:1[89]|20)\d{6}"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?"
_SENTINELS = tuple(-float("9" * digits) for digits in range(1, 6))
"""Sentinel values: they mean "missing" in columns without other numbers below 0."""

_DURATIONS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))


@dataclass(frozen=True)
class ColumnDraft:
    """A column that becomes a feature.

    Attributes:
        settings: the feature's settings, without its name, label and unit.
        description: the kind of the column in words, such as "ordered categories".
        cell_categories: the categories of cells that are written differently; empty for cells that
            mean a missing value.
        dates: the format of the column's dates; empty for ISO dates and other kinds.
        unit: the unit in the column's cells; empty if they have none.
        guesses: what was guessed from the values, by key of the settings.
        cuts: if the categories are ranges of numbers, the lower bounds of all but the first.
        missing: the share of the column's cells without a number or date.
    """

    settings: dict[str, Any]
    description: str
    cell_categories: dict[str, str] = field(default_factory=dict)
    dates: str = ""
    unit: str = ""
    guesses: Mapping[str, str] = field(default_factory=dict)
    cuts: Sequence[float] = ()
    missing: float = 0.0


def draft_column(
    column: pd.Series[Any], heading_words: Sequence[str], dialect: Dialect
) -> ColumnDraft:
    """Draft the feature of a column.

    Args:
        column: the column's cells, as text or typed.
        heading_words: the words of its heading.
        dialect: the format of numbers.

    Raises:
        UnusableColumnError: the column cannot be a feature; the message says why.
    """
    text = cells.as_text(column)
    texts = [word for word in text.unique().tolist() if word]
    if not texts:
        raise UnusableColumnError("every cell is empty")
    if len(texts) == 1:
        raise UnusableColumnError(f"constant: every cell with a value is {_quote(texts[0])}")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return _draft_dates(cells.to_days(column), "")
    if getattr(column.dtype, "ordered", False):
        levels = [str(level) for level in column.cat.categories]
        return _draft_categories(text, texts, [level for level in levels if level in texts])
    values = [word for word in texts if word.lower() not in cells.NO_VALUE]
    if all(re.fullmatch(_COMPACT_DATE, word) for word in values) and values:
        days = cells.to_days(text, _COMPACT)
        if days[text.isin(values)].notna().all():
            return _draft_dates(days, _COMPACT)
    numeric = pd.api.types.is_numeric_dtype(column.dtype)
    if not numeric and not pd.api.types.is_timedelta64_dtype(column.dtype):
        draft = _draft_text(column, text, texts, dialect)
        if draft is not None:
            return draft
    elif numeric and _is_boolean(texts):
        return _draft_categories(text, texts)
    return _draft_numbers(column, text, heading_words, dialect)


def _draft_numbers(
    column: pd.Series[Any], text: pd.Series[str], heading_words: Sequence[str], dialect: Dialect
) -> ColumnDraft:
    """Draft the feature of a column of numbers or durations.

    Raises:
        UnusableColumnError: as `draft_numbers`.
    """
    numbers = cells.to_numbers(column, dialect)
    # The smallest number may be a sentinel for "missing", as -99 in surveys.
    code = float(numbers.min())
    others = numbers[numbers != code].dropna()
    isolated = (numbers == code).sum() > 1 and len(others) > 0 and bool((others >= 0).all())
    code = code if code in _SENTINELS and isolated else math.nan
    values: Floats = np.asarray(numbers[numbers != code].dropna(), dtype=np.float64)
    settings, description = draft_numbers(values, heading_words)
    missing = 1.0 - len(values) / len(column)
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        # The largest unit that most durations reach.
        usual = float(np.median(np.abs(values)))
        size, unit = next(((s, u) for s, u in _DURATIONS if usual >= s), (1, "seconds"))
        if size > 1:
            settings |= {"kind": "continuous", "factor": 1.0 / size}
        return ColumnDraft(settings, "durations", unit=unit, missing=missing)
    is_code = (numbers == code) | (numbers.isna() & ~cells.is_missing(text))
    blank = dict.fromkeys(text[is_code].unique().tolist(), "")
    listed = " and ".join(cell if cell == f"{code:g}" else _quote(cell) for cell in blank)
    description += f", {listed} counts as missing" if blank else ""
    guesses = {"low": f"{listed} counts as a missing value"} if blank else {}
    return ColumnDraft(settings, description, blank, "", _unit(text), guesses, missing=missing)


def _draft_text(
    column: pd.Series[Any], text: pd.Series[str], texts: list[str], dialect: Dialect
) -> ColumnDraft | None:
    """Draft the feature of a column of text; None if all or nearly all cells are numbers."""
    if _is_boolean(texts):
        return _draft_categories(text, texts)
    unique = pd.Series(texts)
    unique = unique[~cells.is_missing(unique)]
    numeric = unique.isin(text[cells.to_numbers(column, dialect).notna()])
    if len(unique) and numeric.all():
        return None
    sample = unique.iloc[:_SAMPLE_CELLS]
    may_be_dates = len(sample) and sample.str.contains(r"\d.*[-/. 年月].*\d").all()
    for date_format in _DATES if may_be_dates else ():
        if all(cells.to_days(part, date_format).notna().all() for part in (sample, unique)):
            return _draft_dates(cells.to_days(text, date_format), date_format)
    _refuse_times(sample)
    present = text[text.isin(unique)]
    is_repetitive = len(texts) <= min(MAX_CATEGORIES, len(present) // 2)
    share = present.isin(unique[numeric]).mean()
    if share >= (_MIN_NUMBER_SHARE if is_repetitive else 0.5):
        invalid = unique[~numeric]
        invalid_count = len(present) - int(share * len(present) + 0.5)
        if len(present) > _MIN_TOLERANT_CELLS and invalid_count <= max(
            1, _MAX_ODD_SHARE * len(present)
        ):
            return None
        line = int(text.index[text == invalid.iloc[0]][0]) + 2
        others = f" and {len(invalid) - 1:,} more" if len(invalid) > 1 else ""
        raise UnusableColumnError(
            f"line {line}: {_quote(invalid.iloc[0])} is not a number{others}; correct it to keep "
            "the column"
        )
    return _draft_categories(text, texts)


def _refuse_times(unique: pd.Series[str]) -> None:
    """Refuse a column of times of day, or of dates in different formats.

    Raises:
        UnusableColumnError: the column is one of these.
    """
    if not len(unique) or not unique.str.contains(r"\d").all():
        return
    if unique.str.fullmatch(_TIME).all():
        raise UnusableColumnError(
            f"times of day, such as {_quote(unique.iloc[0])}; give the hour as a number, from 0 to "
            "23"
        )
    read = (cells.to_days(unique, date_format).notna() for date_format in _DATES)
    ways = [days for days in read if days.any()]
    if len(ways) > 1 and np.any(ways, axis=0).all():
        raise UnusableColumnError(
            f"dates written in several ways, such as {_quote(unique.iloc[0])} and "
            f"{_quote(unique[~ways[0]].iloc[0])}; write them alike"
        )


def _is_boolean(texts: Sequence[str]) -> bool:
    return len(texts) == 2 and tuple(sorted(map(str.casefold, texts))) in _BOOLEANS


def _draft_categories(
    text: pd.Series[str], texts: list[str], levels: Sequence[str] = ()
) -> ColumnDraft:
    """Draft a categorical or ordered feature.

    Raises:
        UnusableColumnError: there are too many categories, or too few rows for each.
    """
    empty = text == ""
    count = int((~empty).sum())
    if len(texts) > max(2, count // 2):
        raise UnusableColumnError(
            f"text: {len(texts):,} different values in {count:,} cells; group them into categories"
        )
    if len(texts) > MAX_NAMED_CATEGORIES:
        raise UnusableColumnError(
            f"too many categories: {len(texts):,}; at most {MAX_NAMED_CATEGORIES} are possible, "
            f"and {MAX_CATEGORIES} unless the column is named; group the rare ones"
        )
    unreadable = [word for word in texts if not word.isprintable()]
    if unreadable:
        raise UnusableColumnError(
            f"the cell {_quote(unreadable[0])} contains a control character; remove it"
        )
    cell_categories: dict[str, str] = {}
    if _is_boolean(texts) and not levels:
        levels = ["no", "yes"]
        pairs = zip(sorted(texts, key=str.casefold), levels, strict=True)
        cell_categories = {cell: word for cell, word in pairs if cell != word}
    share = float(empty.mean())
    order = list(levels) or known_order(texts)
    ordered = bool(order) and not cell_categories and len(order) > 2
    categories = order or sorted(texts)
    description = "yes or no" if cell_categories else "categories"
    description = "ordered categories" if ordered else description
    guesses = {"categories": "their order is a guess"} if ordered and not levels else {}
    if cell_categories:
        guesses = {"categories": f"from {', '.join(sorted(texts, key=str.casefold))}"}
    ambiguous = [word for word in categories if word.casefold() in cells.MISSING]
    if ambiguous and len(categories) > 2:
        line = f"{ambiguous[0]} counts as a category; delete it if it means a missing value"
        guesses = {"categories": line}
    if share > _MAX_MISSING_SHARE:
        ordered, guesses = False, dict(guesses)
        categories = [*categories, NOT_STATED]
        cell_categories |= {"": NOT_STATED}
        description = f"categories, with {share:.0%} {NOT_STATED}"
    settings: dict[str, Any] = {"kind": "ordered" if ordered else "categorical"}
    settings["categories"] = categories
    if ordered and is_circle(categories):
        settings["periodic"], description = True, "periodic categories"
    return ColumnDraft(settings, description, cell_categories, guesses=guesses)


def _draft_dates(days: pd.Series[float], date_format: str) -> ColumnDraft:
    """Draft a feature of dates.

    Raises:
        UnusableColumnError: all dates are the same day.
    """
    values: Floats = np.asarray(days.dropna(), dtype=np.float64)
    if values.min() == values.max():
        raise UnusableColumnError(f"constant: every date is {values.astype('datetime64[D]')[0]}")
    low, high = (float(end) for end in np.quantile(values, [0.01, 0.99]))
    if high - low > _MAX_SPAN_SHARE * (values.max() - values.min()) or low == high:
        low, high = float(values.min()), float(values.max())  # no day is far from the others
    low_day, high_day = np.array([low, high]).astype("datetime64[D]").tolist()
    settings = {"kind": "date", "low": low_day, "high": high_day}
    is_ambiguous = date_format in ("%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y")
    first = "the month" if date_format.startswith("%m") else "the day"
    guesses = {"kind": f"{first} is assumed to come first"} if is_ambiguous else {}
    missing, dates = float(days.isna().mean()), "" if date_format == cells.ISO else date_format
    return ColumnDraft(settings, "dates", dates=dates, guesses=guesses, missing=missing)


def _unit(text: pd.Series[str]) -> str:
    """Return the unit in the first cells of numbers, such as "%" or "USD"; else an empty text."""
    units = {"%": "%", "$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
    first = text[text != ""].iloc[:_SAMPLE_CELLS]
    signs = {sign for sign in units if first.str.contains(sign, regex=False).mean() > 0.5}
    return units[signs.pop()] if len(signs) == 1 else cells.unit_of(first)


def format_share(part: float) -> str:
    """Return a share as text; "0%" and "100%" are exact.

    Examples:
        >>> format_share(0.002), format_share(0.2), format_share(0.999)
        ('<1%', '20%', '>99%')
    """
    if 0.99 < part < 1.0:
        return ">99%"
    return "<1%" if 0.0 < part < 0.01 else f"{part:.0%}"


def _quote(cell: str) -> str:
    return repr(visible(re.sub(r"\s+", " ", cell), 60))


_QUANTILE_LEVELS = (0.2, 0.4, 0.6, 0.8)
_MAX_SPELLINGS = 5
"""Largest mean number of spellings of a number in a column, such as 7, 7.0 and 7 %."""

_MIN_ROWS_PER_LEVEL = 10
"""Smallest mean number of rows for each number that becomes an ordered category."""

_MAX_DISCRETE_RANGE = 1000
"""Whole numbers with ranges shorter than this are worded "20 to 44", not "20 to 45"."""


def draft_ranges(
    draft: ColumnDraft, column: pd.Series[Any], dialect: Dialect, unit: str
) -> ColumnDraft:
    """Return the draft of a column of numbers as categories, with "not stated".

    Args:
        draft: what the column becomes otherwise.
        column: its cells.
        dialect: how numbers are written.
        unit: the unit of the numbers.

    Raises:
        UnusableColumnError: it holds no numbers or is periodic, or no cell is missing.

    Examples:
        >>> income = pd.Series([*np.arange(1000.0, 100_000.0, 1000.0), None], name="income")
        >>> draft = draft_column(income, ["income"], Dialect())
        >>> draft_ranges(draft, income, Dialect(), "USD").settings["categories"][1:4]
        ['21,000 to 41,000 USD', '41,000 to 60,000 USD', '60,000 to 80,000 USD']
    """
    numeric = draft.settings["kind"] in ("continuous", "integer")
    if not numeric or draft.settings.get("periodic"):
        raise UnusableColumnError(
            f"not_stated needs a column of numbers, and this one holds {draft.description}"
        )
    values = _numbers_of(draft, column, dialect)
    missing = float(values.isna().mean())
    if not missing:
        raise UnusableColumnError("no cell is missing; leave the column out of not_stated")
    present = np.asarray(values.dropna(), dtype=np.float64)
    cuts = _range_bounds(present)
    is_integer = draft.settings["kind"] == "integer"
    locale = Locale.model_validate(draft.settings.get("locale", {}))
    categories = [*_name_ranges(cuts, is_integer, unit, locale), NOT_STATED]
    return ColumnDraft(
        {"kind": "categorical", "categories": categories},
        f"{len(cuts) + 1} ranges, with {format_share(missing)} {NOT_STATED}",
        cell_categories=dict.fromkeys(["", *draft.cell_categories], NOT_STATED),
        guesses={"categories": "ranges with about a fifth of the numbers each"},
        cuts=cuts,
    )


def _numbers_of(draft: ColumnDraft, column: pd.Series[Any], dialect: Dialect) -> pd.Series[float]:
    """Return a column's numbers, NaN for the cells that the draft names categories of."""
    numbers = cells.to_numbers(column, dialect)
    return numbers.mask(cells.as_text(column).isin(draft.cell_categories))


def draft_few_numbers(
    draft: ColumnDraft, column: pd.Series[Any], dialect: Dialect, unit: str
) -> ColumnDraft:
    """Return the draft of a column as ordered categories if it has few numbers, with gaps.

    The arguments are those of `draft_ranges`.

    Examples:
        >>> tax = pd.Series([7, 19] * 20, name="tax")
        >>> draft = draft_column(tax, ["tax"], Dialect())
        >>> draft_few_numbers(draft, tax, Dialect(), "%").settings
        {'kind': 'ordered', 'categories': ['7 %', '19 %']}
    """
    settings = draft.settings
    plain = settings["kind"] in ("continuous", "integer") and "factor" not in settings
    if not plain or settings.get("periodic") or draft.description == "years":
        return draft
    if column.nunique() > _MAX_SPELLINGS * MAX_LEVELS:  # fast for columns of many numbers
        return draft
    values = np.asarray(_numbers_of(draft, column, dialect).dropna(), dtype=np.float64)
    unique = np.unique(values)
    # Counts have gaps among their largest values only.
    dense = settings["kind"] == "integer" and np.median(np.diff(unique)) <= 1
    if dense or len(unique) > MAX_LEVELS or len(values) < _MIN_ROWS_PER_LEVEL * len(unique):
        return draft
    end = f" {unit}" if unit else ""
    short = [float(f"{value:.6g}") for value in unique.tolist()]  # 0.1 of a 32-bit float
    levels = short if len(set(short)) == len(unique) else unique.tolist()
    words = [f"{_format_value(value, ENGLISH)}{end}" for value in levels]
    return replace(
        draft,
        settings={"kind": "ordered", "categories": words},
        description=f"{len(words)} numbers, as ordered categories",
        guesses={"categories": "values between these numbers are not asked about"},
        cuts=unique[1:].tolist(),
    )


def _range_bounds(values: Floats) -> list[float]:
    """Return the lower bounds of ranges except the first: rounded quintiles, no range empty."""
    quintiles = np.quantile(values, _QUANTILE_LEVELS, method="higher")
    extent = float(np.ptp(np.quantile(values, [0.1, 0.9]))) or float(np.ptp(values))
    rounded = {float(f"{round(cut / grid) * grid:.12g}")
               for cut in quintiles.tolist() for grid in [_grid(cut, extent)]}  # fmt: skip
    ends = [-math.inf, *sorted(rounded), math.inf]
    counts = np.histogram(values, ends)[0]
    cuts = [cut for cut, below in zip(ends[1:-1], counts[:-1], strict=True) if below]
    if cuts and not counts[-1]:
        cuts.pop()
    return cuts or [float(values[values > values.min()].min())]  # nearly all are the least one


def _grid(cut: float, extent: float) -> float:
    """Return the step to round to: two digits of the number, or of the extent if smaller."""
    size = min(abs(cut), extent) or extent
    return float(10.0 ** (math.floor(math.log10(size)) - 1))


def _name_ranges(
    cuts: Sequence[float], is_integer: bool, unit: str, locale: Locale = ENGLISH
) -> list[str]:
    """Return the names of ranges; small whole ones end at the last number below the next range.

    Examples:
        >>> _name_ranges([20, 45], True, "years"), _name_ranges([0.5], False, "")
        (['under 20 years', '20 to 44 years', '45 years or more'], ['under 0.5', '0.5 or more'])
    """
    gaps = [later - cut for cut, later in pairwise(cuts)]
    steps = (
        is_integer and min(gaps, default=abs(cuts[0])) < _MAX_DISCRETE_RANGE
    )  # otherwise 20,000 to 45,000
    end = f" {unit}" if unit else ""
    starts = [_format_value(cut, locale) for cut in cuts]
    stops = [_format_value(cut - 1, locale) for cut in cuts] if steps else starts
    between = (
        f"{start} to {stop}{end}" if start != stop else f"{start}{end}"
        for start, stop in zip(starts, stops[1:], strict=False)
    )
    return [f"under {starts[0]}{end}", *between, f"{starts[-1]}{end} or more"]


def _format_value(cut: float, locale: Locale) -> str:
    exponent = Decimal(f"{cut:.12g}").as_tuple().exponent
    return format_number(cut, max(0, -int(exponent)), locale)
