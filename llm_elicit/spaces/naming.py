"""Names, labels and units of features, guessed from the headings of columns."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
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
    "sqft": "square feet", "kcal": "kcal", "ha": "ha", "$": "USD",
    "us$": "USD", "€": "EUR", "£": "GBP",
}  # fmt: skip
"""Units by their abbreviation at the end of a heading."""

_LETTERS = {"m": "m", "g": "g", "l": "litres", "s": "seconds"}
"""Units of one letter, which count only where something separates them from the name."""
_DEGREES = {"c": "°C", "f": "°F", "k": "K"}
"""Units of one letter that count for temperatures only."""
_WORDS = {
    "temp": "temperature", "avg": "average", "max": "maximum", "min": "minimum", "qty": "quantity",
    "num": "number of", "lat": "latitude", "lon": "longitude", "lng": "longitude", "yr": "year",
    "pop": "population", "dow": "day of the week", "hr": "hour", "dob": "date of birth",
}  # fmt: skip
"""Abbreviations that are written out."""

_SYMBOLS = (
    "h % ‰ °c °f ° k$ k€ µm μm nm dm hm µg μg ug ng dl cl hl µl μl mol mmol µmol μmol kn pa mpa "
    "gpa mbar bar mmhg kj mj gj mw gw mwh gwh wh mv kv khz mhz ghz hz db lux lx rpm inch inches yd "
    "mile miles acre acres tonne tonnes ton tons gal gallon jpy cny inr sek nok dkk pln metre "
    "metres meter meters gram grams gramm µs μs ms"
)
_DIVISORS = "d t k j w v yr year day hour hr min minute week month night person"
"""Parts of compound units that are not units alone, in lower case."""

_SET_APART = tuple(
    re.compile(pattern)
    for pattern in (
        r"(.+?)\s*[\[({<]\s*([^\[\](){}<>]{1,20}?)\s*[\])}>]",
        r"(.+?)(?:\s*[,;:]\s*|\s+[-–/]\s+|\s+in\s+)(.{1,20})",
        r"(.+?)\s+(\S{1,10}(?:\s*/\s*|\s+per\s+)\S{1,10}|\S{1,6}[ ·*]\S{1,6}|[%°]\S?)",
    )
)
"""A heading with its unit in brackets, after a comma or "in", or as a compound."""

_STATISTICS = {"avg", "average", "mean", "median", "max", "maximum", "min", "minimum", "total"}
"""Words that come first in a label: "maximum temperature" for a column temp_max."""

_LATIN = str.maketrans({
    "ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss", "ẞ": "SS",
    "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d",
    "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i",
})  # fmt: skip
"""Transcriptions of letters that are not an ASCII letter with an accent."""

_OWN_UNITS = {"age": "years", "latitude": "°", "longitude": "°"}
"""Units of quantities whose heading needs to name none."""


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
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", heading)
    return [word.lower() for word in re.findall(r"[^\W_]+", separated)]


def wordings(headings: Sequence[str]) -> dict[str, Wording]:
    """Return the wording of each heading; names and labels differ.

    Examples:
        >>> columns = wordings(["body_mass_g", "temp_c", "price (USD)", "Yield (kg/ha)"])
        >>> [(column.label, column.unit) for column in columns.values()]
        [('body mass', 'g'), ('temperature', '°C'), ('price', 'USD'), ('Yield', 'kg/ha')]
    """
    names, wording_of = _names(headings), dict[str, Wording]()
    for heading in headings:
        plain, labels = _spaced(heading), {wording.label for wording in wording_of.values()}
        candidates = (_guess_label(heading), (plain, ""))
        usable = (c for c in candidates if c[0] and c[0].isprintable() and c[0] not in labels)
        label, unit = next(usable, (names[heading], ""))
        guesses = {"label": label.casefold() != plain.casefold(), "unit": bool(unit)}
        guessed = frozenset(key for key, is_guess in guesses.items() if is_guess)
        wording_of[heading] = Wording(names[heading], label, unit, guessed)
    return wording_of


def _guess_label(heading: str) -> tuple[str, str]:
    """Return a label and a unit; the unit is empty if none is recognized."""
    words, plain = words_of(heading), _spaced(heading)
    unit = "" if words[-2:-1] == ["per"] else _unit(words, heading)  # a price per kg has none
    matches = [match for pattern in _SET_APART if (match := pattern.fullmatch(plain))]
    for match in matches:
        written = _written_unit(match[2])
        # Alone, a letter or a word is split off below.
        if written and (written != unit or re.search(r"\sin\s", plain)):
            return _guess_label(match[1])[0], written
    if matches and plain.endswith((")", "]")):
        unit = _unit(words, heading) if _written_unit(matches[0][2]) else ""
    stem = words[:-1] if unit else words
    if len(stem) > 1 and stem[-1] in _STATISTICS:
        stem = [stem[-1], *stem[:-1]]
    if not unit and len(words) == 1 and heading.isprintable() and words[0] not in _WORDS:
        return _spaced(heading), _OWN_UNITS.get(words[0], "")
    label = " ".join(_WORDS.get(word, word) for word in stem)
    if not unit and label == " ".join(words):
        label = _spaced(heading)  # with its capitals
        label = " ".join(words) if re.search(r"[a-z][A-Z].", label) else label
    return label, unit or _OWN_UNITS.get(label, "")


def _written_unit(text: str) -> str:
    """Return the wording of a unit; empty if the text is not a unit."""
    units = {*_UNITS, *map(str.casefold, _UNITS.values()), *_LETTERS, *_SYMBOLS.split()}
    text = re.sub(r"\s+per\s+", "/", text)
    parts = re.split(r"[\s/·*]+", text)
    bases = [re.sub(r"(?<=\D)(?:\^?[-−]?\d|[⁻¹²³]+)$", "", part) for part in parts]
    compound = len(parts) > 1 or bases != parts
    letters = len(parts) > 1 and all(re.fullmatch("[A-Z]", part) for part in parts)  # won/lost
    units |= set(_DIVISORS.split()) if compound else set()
    if letters or any(part.casefold() not in units for part in bases):
        return ""
    if not compound:
        return _UNITS.get(text.casefold(), _LETTERS.get(text, text))
    return re.sub(r"[a-z]{3}(?![a-z])", lambda word: _UNITS.get(word[0], word[0]), text)


def _spaced(heading: str) -> str:
    """Return a heading with spaces for underscores, and for points between letters."""
    return " ".join(re.sub(r"_|(?<=[^\W\d])\.(?=[^\W\d])", " ", heading).split())


def _unit(words: Sequence[str], heading: str) -> str:
    """Return the unit that the last word of a heading abbreviates; empty if it is none."""
    if len(words) < 2:
        return ""
    last = words[-1]
    if last in _UNITS:
        return _UNITS[last]
    if {"temp", "temperature"} & set(words) and last in _DEGREES:
        return _DEGREES[last]
    # A single letter is a unit only where something separates it from the name.
    return _LETTERS.get(last, "") if re.search(r"[\s_.(\[][a-zA-Z][)\]]?$", heading) else ""


def is_unit(text: str) -> bool:
    """Return whether a cell fits into a line of units: a unit, a text in brackets, or a dash.

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
        >>> valid_name("Höhe (m)"), valid_name("Année")
        ('Hoehe_m', 'Annee')
    """
    latin = unicodedata.normalize("NFKC", text.strip()).translate(_LATIN)
    latin = re.sub(r"[\u0300-\u036f]", "", unicodedata.normalize("NFKD", latin))
    plain = re.sub(r"^(?=\d)", "_", re.sub(r"[^A-Za-z0-9]+", "_", latin))
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
        guessed: what was guessed, and from what.
    """

    column: str
    kept: str
    range: str
    scale: str = ""
    unit: str = ""
    guessed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, column: str, kind: str, feature: Mapping[str, Any], guesses: Mapping[str, str]
    ) -> ColumnReport:
        """Return the report of a column that became a feature with these settings."""
        if "categories" in feature:
            span = ", ".join(feature["categories"])
        else:  # in the unit that the feature is worded in
            ends, factor = (feature.get("low"), feature.get("high")), feature.get("factor", 1.0)
            low, high = ends if factor == 1.0 else (f"{end * factor:.3g}" for end in ends)
            span = f"{low} to {high}"
        scale = "periodic" if feature.get("periodic") else feature.get("scale", "")
        keys = dict[str, list[str]]()
        for key, guess in guesses.items():
            keys.setdefault(guess.removeprefix("guessed "), []).append(key)
        guessed = tuple(
            # The guess says itself that it is of the low end, which marks a missing value.
            guess if settings == ["low"] else f"{' and '.join(settings)}: {guess}"
            for guess, settings in keys.items()
        )
        return cls(column, kind, span, scale, feature.get("unit", ""), guessed)
