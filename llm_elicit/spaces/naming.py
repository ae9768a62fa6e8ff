"""Names, labels and units of features, guessed from the headings of columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_elicit.spaces.feature import NAME

_UNITS = {
    "mm": "mm", "cm": "cm", "km": "km", "ft": "feet", "kg": "kg", "mg": "mg", "lb": "pounds",
    "lbs": "pounds", "oz": "ounces", "kwh": "kWh", "kw": "kW", "mph": "miles per hour",
    "kmh": "km/h", "kph": "km/h", "sec": "seconds", "secs": "seconds", "seconds": "seconds",
    "mins": "minutes", "minutes": "minutes", "hrs": "hours", "hours": "hours", "days": "days",
    "weeks": "weeks", "months": "months", "years": "years", "yrs": "years", "pct": "%",
    "percent": "%", "perc": "%", "usd": "USD", "eur": "EUR", "gbp": "GBP", "chf": "CHF",
    "dollars": "USD", "celsius": "°C", "degc": "°C", "fahrenheit": "°F", "degf": "°F",
    "deg": "°", "degrees": "°", "hpa": "hPa", "kpa": "kPa", "ppm": "ppm", "ppb": "ppb",
    "ml": "ml", "liters": "litres", "litres": "litres", "sqm": "m²", "m2": "m²", "km2": "km²",
    "sqft": "square feet", "kcal": "kcal", "ha": "ha",
}  # fmt: skip
"""Units by their abbreviation at the end of a heading."""

_LETTERS = {"m": "m", "g": "g", "l": "litres", "s": "seconds"}
_DEGREES = {"c": "°C", "f": "°F", "k": "K"}
_WORDS = {
    "temp": "temperature", "avg": "average", "max": "maximum", "min": "minimum", "qty": "quantity",
    "num": "number of", "lat": "latitude", "lon": "longitude", "lng": "longitude", "yr": "year",
    "pop": "population", "dow": "day of the week", "hr": "hour", "dob": "date of birth",
}  # fmt: skip
"""Abbreviations that are written out."""

_IN_BRACKETS = re.compile(r"^(.+?)\s*[\[(]\s*([^\[\]()]{1,15}?)\s*[\])]$")
_QUOTIENT = re.compile(r"^(.+?)\s+([^\s/]{1,10}/[^\s/]{1,10})$")

_STATISTICS = {"avg", "average", "mean", "median", "max", "maximum", "min", "minimum", "total"}
"""Words that come first in a label: the maximum temperature, of a column temp_max."""

_OWN_UNITS = {"age": "years", "latitude": "°", "longitude": "°"}


@dataclass(frozen=True)
class Wording:
    """How a column is worded.

    Attributes:
        name: the feature's name.
        label: its label.
        unit: its unit; empty if unknown.
        guessed: the keys that are guesses: "label", "unit".
    """

    name: str
    label: str
    unit: str
    guessed: frozenset[str]


def words_of(heading: str) -> list[str]:
    """Return the words of a heading in lower case.

    Examples:
        >>> words_of("body_mass_g"), words_of("lifeExp"), words_of("GDPPerCap (US$)")
        (['body', 'mass', 'g'], ['life', 'exp'], ['gdp', 'per', 'cap', 'us'])
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", heading)
    return [word.casefold() for word in re.findall(r"[^\W_]+", apart)]


def wordings(headings: Sequence[str]) -> dict[str, Wording]:
    """Return the wording of each heading; names and labels differ.

    Examples:
        >>> columns = wordings(["body_mass_g", "temp_c", "price (USD)", "Yield (kg/ha)"])
        >>> [(column.label, column.unit) for column in columns.values()]
        [('body mass', 'g'), ('temperature', '°C'), ('price', 'USD'), ('Yield', 'kg/ha')]
    """
    names, worded = _names(headings), dict[str, Wording]()
    for heading in headings:
        label, unit = _guess(heading)
        plain = _spaced(heading)
        labels = {wording.label for wording in worded.values()}
        if label in labels or not label.isprintable() or not label:
            label, unit = plain, ""
        if label in labels or not label.isprintable() or not label:
            label = names[heading]
        guesses = {"label": label.casefold() != plain.casefold(), "unit": bool(unit)}
        guessed = frozenset(key for key, is_guess in guesses.items() if is_guess)
        worded[heading] = Wording(names[heading], label, unit, guessed)
    return worded


def _guess(heading: str) -> tuple[str, str]:
    """Return a label and a unit; the unit is empty if none is recognized."""
    words = words_of(heading)
    match = _IN_BRACKETS.match(heading) or _QUOTIENT.match(heading)
    parts = match[2].split("/") if match else []
    units = [part == "h" or (re.search(r"[^\W\d]|%", part) and is_unit(part)) for part in parts]
    if match and all(units):
        unit = _UNITS.get(match[2].casefold(), match[2])
        if len(parts) > 1 or not _unit(words, heading):  # a price in USD/kg is none in kg
            return _guess(match[1])[0], unit
    unit = _unit(words, heading)
    stem = words[:-1] if unit else words
    if len(stem) > 1 and stem[-1] in _STATISTICS:
        stem = [stem[-1], *stem[:-1]]
    if not unit and len(words) == 1 and heading.isprintable() and words[0] not in _WORDS:
        return _spaced(heading), _OWN_UNITS.get(words[0], "")
    label = " ".join(_WORDS.get(word, word) for word in stem)
    if not unit and label == " ".join(words):
        label = _spaced(heading)  # with its capitals
        label = " ".join(words) if re.search(r"[a-z][A-Z]", label) else label
    return label, unit or _OWN_UNITS.get(label, "")


def _spaced(heading: str) -> str:
    """Return a heading with spaces for underscores, and for points between letters."""
    return " ".join(re.sub(r"_|(?<=[^\W\d])\.(?=[^\W\d])", " ", heading).split())


def _unit(words: Sequence[str], heading: str) -> str:
    if len(words) < 2:
        return ""
    last = words[-1]
    if last in _UNITS:
        return _UNITS[last]
    if {"temp", "temperature"} & set(words) and last in _DEGREES:
        return _DEGREES[last]
    # A single letter is a unit only where something sets it apart.
    return _LETTERS.get(last, "") if re.search(r"[\s_.(\[][a-zA-Z][)\]]?$", heading) else ""


def is_unit(text: str) -> bool:
    """Whether a text is a unit, or stands in brackets or for nothing as in a line of units.

    Examples:
        >>> is_unit("kg"), is_unit("[m/s]"), is_unit("-"), is_unit("Oslo")
        (True, True, True, False)
    """
    plain = text.strip().casefold()
    units = {*_UNITS, *_LETTERS, *map(str.casefold, {*_UNITS.values(), *_DEGREES.values()})}
    return plain in units | {"-", "–", "1", "n/a"} or bool(
        re.fullmatch(r"[\[(].{1,15}[\])]", plain)
    )


def _names(headings: Sequence[str]) -> dict[str, str]:
    """Return the name of each heading's feature: the heading, or a valid name made from it."""
    names = {heading: heading for heading in headings if re.fullmatch(NAME, heading)}
    for heading in headings:
        if heading not in names:
            names[heading] = valid_name(heading, names.values())
    return names


def valid_name(text: str, used: Collection[str] = ()) -> str:
    """Return a valid name made from a text, different from those in use.

    Examples:
        >>> valid_name("weight kg"), valid_name("2nd"), valid_name("%", ["_"])
        ('weight_kg', '_2nd', '__2')
    """
    plain = re.sub(r"^(?=\d)", "_", re.sub(r"[^A-Za-z0-9]+", "_", text.strip()))
    plain = re.sub(r"(?<=.)_$", "", plain) or "_"
    candidates = (f"{plain}_{k}" if k > 1 else plain for k in itertools.count(1))
    return next(name for name in candidates if name not in used)


@dataclass(frozen=True)
class ColumnReport:
    """What a column of the table became.

    Attributes:
        column: its heading.
        kept: the kind of its feature; empty if it was dropped.
        range: its range or its categories; the reason if it was dropped.
        scale: its scale; empty for categories.
        unit: its unit.
        guessed: the settings that are guesses.
    """

    column: str
    kept: str
    range: str
    scale: str = ""
    unit: str = ""
    guessed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, column: str, kind: str, feature: Mapping[str, Any], guessed: Iterable[str]
    ) -> ColumnReport:
        """Return the report of a column that became a feature with these settings."""
        if "categories" in feature:
            span = ", ".join(feature["categories"])
        else:  # in the unit that the feature is worded in
            ends, factor = (feature.get("low"), feature.get("high")), feature.get("factor", 1.0)
            low, high = ends if factor == 1.0 else (f"{end * factor:.3g}" for end in ends)
            span = f"{low} to {high}"
        scale = "periodic" if feature.get("periodic") else feature.get("scale", "")
        return cls(column, kind, span, scale, feature.get("unit", ""), tuple(guessed))
