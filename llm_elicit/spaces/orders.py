"""Words that have a known order, such as "low, medium, high" or "18-24, 25-34, 65+"."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
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


def in_order(words: Sequence[str]) -> list[str]:
    """Return words in their known order; empty if they have none.

    Example:
        >>> in_order(["high", "low", "medium"]), in_order(["25-34", "65+", "<18", "18-24"])
        (['low', 'medium', 'high'], ['<18', '18-24', '25-34', '65+'])
        >>> in_order(["oak", "elm"])
        []
    """
    plain = {word: " ".join(word.casefold().replace("_", " ").split()) for word in words}
    for order in _ORDERS:
        if set(plain.values()) <= set(order):
            return sorted(words, key=lambda word: order.index(plain[word]))
    ranges = {word: _RANGE.fullmatch(text) for word, text in plain.items()}
    if all(re.fullmatch(_QUARTER, text) for text in plain.values()):
        return sorted(words, key=lambda word: plain[word])
    starts = {word: _start(found) for word, found in ranges.items() if found is not None}
    apart = len(set(starts.values())) == len(words)
    spans = sum(not re.fullmatch(r"[\d.,]+", text) for text in plain.values())
    return sorted(words, key=lambda word: starts[word]) if apart and spans > 1 else []


def is_circle(words: Sequence[str]) -> bool:
    """Whether words are all months or all days of the week, in any order.

    Example:
        >>> is_circle(["Sat", "Sun"]), is_circle(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
        (False, True)
    """
    plain = {word.casefold() for word in words}
    return any(plain == set(order) for order in _CIRCLES)


def _start(found: re.Match[str]) -> tuple[float, bool]:
    """Return where a range starts; what is below a number comes before what starts there."""
    return float(found["first"].replace(",", "").rstrip(".") or "nan"), found["below"] is None
