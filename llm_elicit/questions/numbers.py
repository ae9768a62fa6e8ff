"""Reading the values of a reply to a direct question, or the reason why they cannot be read.

Ambiguous replies stay unread, such as those with too many numbers.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

from pydantic import ValidationError

from llm_elicit._util.settings import StrictModel
from llm_elicit.spaces.feature import ENGLISH, EPOCH, Feature, Locale

Unread = Literal[
    "refusal", "truncated", "no numbers", "other count", "not finite", "not in order",
    "no category", "unparsable",
]  # fmt: skip
"""The reason why a reply is unread."""

UNREAD: tuple[Unread, ...] = get_args(Unread)

LEVELS = (5, 25, 50, 75, 95)
"""The quantile levels that are asked for, in per cent."""

_MAX_CHARACTERS = 20_000
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)"
_NUMBER = re.compile(
    rf"(?<![\w.,])(?P<sign>(?<!\d)-\s?|(?<!\d)\+)?[$€£]?\s?"
    rf"(?P<value>{_DIGITS}(?:\.\d+)?|\.\d+)(?P<power>[eE][+-]?\d+)?"
    r"(?P<scale>\s?(?:k|thousand|million|billion|bn)\b)?"
)
_LEVEL = r"(?:5|25|50|75|95)\s?(?:%|per\s?cent|th\b)(?:\s?(?:percentile|quantile))?"
_LABEL = re.compile(rf"(?<![\d.,]){_LEVEL}\s*(?:[:=]|->|→|\bis\b)", re.IGNORECASE)
_LIST_NUMBER = re.compile(r"^[ \t]*(\d+)[.)][ \t]+(?=\S)", re.MULTILINE)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<month>(?:{'|'.join(_MONTHS)})[a-z]*)\.?"
_DAY, _YEAR = r"(?P<day>\d{1,2})", r"(?P<year>\d{4})(?!\d)"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<!\d){_DAY}(?:st|nd|rd|th|\.)?\s+(?:of\s+)?{_MONTH},?\s+{_YEAR}",
        rf"{_MONTH}\s+{_DAY}(?:st|nd|rd|th)?,?\s+{_YEAR}",
        rf"(?<![\d-])(?P<year>\d{{4}})-(?P<month>\d{{1,2}})-{_DAY}(?!\d)",
    )
)
"""The ways to write a date that has one meaning."""

_SEEMS = re.compile(r"\b(?:nan|inf(?:inity)?)\b", re.IGNORECASE)


def read_numbers(
    reply: str, count: int, finish: str = "stop", ignore: Sequence[str] = ()
) -> list[float] | Unread:
    """Return the `count` numbers of a reply in its order, or the reason why it cannot be read.

    Thousands separators, currency signs, units, list numbers ("1." at the start of lines) and
    quantile levels ("5%:") are recognized. "12 thousand", ranges ("3-5") and numbers joined by
    commas make a reply unreadable.

    Args:
        reply: the judge's text.
        count: number of numbers that were asked for.
        finish: why the judge stopped: "stop", "length" or "refusal".
        ignore: texts with digits that are not part of the answer, such as labels.

    Examples:
        >>> read_numbers("about $1,200; then 3.5e3 USD", 2)
        [1200.0, 3500.0]
        >>> read_numbers("5%: 1, 25%: 2, 50%: 3, 75%: 4, 95%: 5", 5)
        [1.0, 2.0, 3.0, 4.0, 5.0]
        >>> read_numbers("between 3-5", 1), read_numbers("I cannot say.", 1)
        ('other count', 'no numbers')
    """
    numbers = _find_numbers(_plain(reply[:_MAX_CHARACTERS], ignore))
    return _complete(numbers, count, reply, finish)


def _complete(
    values: list[float] | Unread, count: int, reply: str, finish: str
) -> list[float] | Unread:
    """Return the values of a reply if it has as many as were asked for."""
    if finish == "refusal":
        return "refusal"
    if isinstance(values, list) and len(values) == count and len(reply) <= _MAX_CHARACTERS:
        return values
    if finish == "length":
        return "truncated"
    return values if isinstance(values, str) else "other count"


def read_quantiles(reply: str, feature: Feature, finish: str = "stop") -> list[float] | Unread:
    """Return the five quantiles of a feature, natural units, or the reason why they cannot be read.

    Examples:
        >>> income = Feature(name="x", label="income", unit="USD", factor=1000, low=1, high=90)
        >>> read_quantiles("8,000; 16,000; 24,000; 40,000; 80,000 USD", income)
        [8.0, 16.0, 24.0, 40.0, 80.0]
        >>> read_quantiles("5; 4; 3; 2; 1", income)
        'not in order'
    """
    if feature.kind == "date":
        values = _read_dates(reply, finish)
    else:
        text, ignore = _english(reply, feature.locale), [feature.label, feature.unit]
        values = read_numbers(text, len(LEVELS), finish, ignore)
    if isinstance(values, str):
        return values
    if any(later < earlier for earlier, later in pairwise(values)):
        return "not in order"
    return values if feature.kind == "date" else [value / feature.factor for value in values]


def read_point(
    reply: str, features: Sequence[Feature], finish: str = "stop"
) -> list[float] | Unread:
    """Return a value for each feature, natural units, or the reason why they cannot be read.

    If there are categories or dates, values are separated by semicolons or lines. A category is
    matched by its word, ignoring case, punctuation and the feature's label before it. Values of
    whole features are rounded.

    Examples:
        >>> kinds = Feature(name="k", label="kind", kind="categorical", categories=["oak", "elm"])
        >>> height = Feature(name="h", label="height", unit="m", low=1, high=50)
        >>> read_point("Elm; 12.5 m", [kinds, height]), read_point("ash; 9", [kinds, height])
        ([1.0, 12.5], 'no category')
    """
    locales = [feature.locale or ENGLISH for feature in features]
    # No thousands separator counts as a comma, or as a point beside a decimal comma.
    marks = {(x.decimal, x.thousands or ("." if x.decimal == "," else ",")) for x in locales}
    if len(marks) > 1 or any(feature.categories or feature.kind == "date" for feature in features):
        return _read_values(reply, features, finish)
    words = [word for feature in features for word in (feature.label, feature.unit)]
    ignore = sorted(words, key=len, reverse=True)
    values = read_numbers(_english(reply, features[0].locale), len(features), finish, ignore)
    if isinstance(values, str):
        return values
    return [feature.value_of(value) for value, feature in zip(values, features, strict=True)]


def _english(text: str, locale: Locale | None) -> str:
    """Return a text whose numbers have English marks in place of those of `locale`.

    Examples:
        >>> _english("1.234,5 kg; 0,25", Locale(decimal=","))
        '1234.5 kg; 0.25'
    """
    text = text[: _MAX_CHARACTERS + 1]
    if locale is None or locale == ENGLISH:
        return text
    if locale.thousands:
        mark = "[ \u00a0\u202f]" if locale.thousands == " " else re.escape(locale.thousands)
        group = rf"(?<![\d.,])\d{{1,3}}(?:{mark}\d{{3}})+(?!\d)"
        text = re.sub(group, lambda match: re.sub(mark, "", match[0]), text)
    if locale.decimal != ".":
        text = re.sub(r"(?<=\d),(?=\d)", ".", text)
    return text


def _parts(text: str) -> list[str]:
    """Return the parts of a text that are separated by semicolons or lines."""
    return [part.strip() for part in re.split(r"[;\n]", text) if part.strip()]


def _read_values(reply: str, features: Sequence[Feature], finish: str) -> list[float] | Unread:
    parts = _parts(_without_list_numbers(reply[:_MAX_CHARACTERS]))
    values: list[float] = []
    if len(parts) == len(features) and len(reply) <= _MAX_CHARACTERS and finish != "refusal":
        for part, feature in zip(parts, features, strict=True):
            value = _value(part, feature)
            if isinstance(value, str):
                return value
            values.append(value)
    return _complete(values, len(features), reply, finish)


def _value(text: str, feature: Feature) -> float | Unread:
    """Return the value of one feature; a category's word is matched without case if need be."""
    if feature.kind == "date":
        return _date(text)
    if not feature.categories:
        values = read_point(text, [feature])
        return values if isinstance(values, str) else values[0]
    label = rf"^\W*{re.escape(feature.label)}\W+"
    for candidate in (text, re.sub(label, "", text, flags=re.IGNORECASE)):
        for form in (str.strip, _bare):
            words = [form(word) for word in feature.categories]
            if form(candidate) and words.count(form(candidate)) == 1:
                return float(words.index(form(candidate)))
    return "no category"


def _read_dates(reply: str, finish: str) -> list[float] | Unread:
    """Return as many dates as there are quantile levels, separated by semicolons or lines."""
    days = [_date(part) for part in _parts(_plain(reply[:_MAX_CHARACTERS], ()))]
    unread = [day for day in days if isinstance(day, str)]
    values = [day for day in days if not isinstance(day, str)]
    if len(days) != len(LEVELS):
        return _complete([], len(LEVELS), reply, finish)
    return _complete(unread[0] if unread else values, len(LEVELS), reply, finish)


def _date(text: str) -> float | Unread:
    """Return the only date of a text as days since 1970.

    Examples:
        >>> _date("14 March 2020"), _date("Mar 14th, 2020"), _date("2020-03-14"), _date("3/4/2020")
        (18335.0, 18335.0, 18335.0, 'unparsable')
    """
    matches = [match for pattern in _DATES for match in pattern.finditer(text)]
    if len(matches) != 1:
        return (
            "other count" if matches else "unparsable" if re.search(r"\d", text) else "no numbers"
        )
    month = matches[0]["month"]
    number = int(month) if month.isdigit() else _MONTHS.index(month[:3].casefold()) + 1
    try:
        day = datetime.date(int(matches[0]["year"]), number, int(matches[0]["day"]))
    except ValueError:
        return "unparsable"
    return float((day - EPOCH).days)


def _bare(text: str) -> str:
    """Return a text in lower case, without blanks and punctuation around it."""
    return re.sub(r"^[\W_]+|[\W_]+$", "", text).casefold()


def _plain(text: str, ignore: Sequence[str]) -> str:
    """Return the text without markup, labels, list numbers and levels, with one minus sign."""
    text = re.sub(r"[*_`#]", "", text.replace("\u2212", "-").replace("\u00a0", " "))
    for label in ignore:
        if re.search(r"\d", label):
            text = re.sub(re.escape(label), " ", text, flags=re.IGNORECASE)
    return _without_list_numbers(_LABEL.sub(" ", text))


def _without_list_numbers(text: str) -> str:
    """Return the text without list numbers at the start of lines."""
    numbers = [int(number) for number in _LIST_NUMBER.findall(text) if len(number) < 4]
    if len(numbers) > 1 and numbers == list(range(1, len(numbers) + 1)):
        text = _LIST_NUMBER.sub(" ", text)
    return text


def _find_numbers(text: str) -> list[float] | Unread:
    """Return all numbers of a plain text, or the reason why one cannot be read."""
    if _SEEMS.search(text):
        return "not finite"
    numbers = []
    for match in _NUMBER.finditer(text):
        follows = text[match.end() : match.end() + 2]
        if match["scale"] or re.match(r"[\d,.]\d|\s?-\d", follows):
            return "other count"
        value = float(match["value"].replace(",", "") + (match["power"] or ""))
        numbers.append(-value if (match["sign"] or "").startswith("-") else value)
    if not numbers:
        return "no numbers"
    return numbers if all(math.isfinite(value) for value in numbers) else "not finite"


class RowLikelihood(StrictModel):
    """The probability that a model writes the values of a row, kept as the text of a reply.

    Attributes:
        log_probs: the logarithm of each value's, given the text before it, in the order shown.
        others: the most that tokenizations other than the one read add to their sum.
        is_bound: whether a token's probability is only known to be at most that of those listed.
    """

    log_probs: tuple[float, ...]
    others: float = 0.0
    is_bound: bool = False

    @classmethod
    def read(cls, reply: str) -> RowLikelihood | None:
        """Return the likelihood in a reply; None if it is none.

        Examples:
            >>> RowLikelihood.read('{"log_probs": [-2.5, -1.0]}').log_prob
            -3.5
            >>> RowLikelihood.read("42") is None
            True
        """
        try:
            return cls.model_validate_json(reply)
        except ValidationError:
            return None

    @property
    def log_prob(self) -> float:
        """The logarithm of the probability of all values."""
        return math.fsum(self.log_probs)
