"""What is said of a drafted space: what became of every column, and which settings are guesses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ColumnReport:
    """What a column of the table became.

    Attributes:
        column: its heading.
        kept: what it is kept as; empty if it was dropped.
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
    def dropped(cls, column: str, reason: str) -> ColumnReport:
        """Return the report of a column that was left out."""
        return cls(column, "", reason)

    @classmethod
    def of(
        cls, column: str, kept: str, feature: Mapping[str, Any], guessed: Iterable[str]
    ) -> ColumnReport:
        """Return the report of a column that became a feature with these settings."""
        span = ", ".join(feature["categories"]) if "categories" in feature else _span(feature)
        scale = "circle" if feature.get("periodic") else feature.get("scale", "")
        return cls(column, kept, span, scale, feature.get("unit", ""), tuple(guessed))


def _span(feature: Mapping[str, Any]) -> str:
    """Return the range of a feature, in the unit that it is worded in."""
    ends, factor = (feature.get("low"), feature.get("high")), feature.get("factor", 1.0)
    low, high = ends if factor == 1.0 else (f"{end * factor:.3g}" for end in ends)
    return f"{low} to {high}"


def with_comments(text: str, guesses: Mapping[str, Mapping[str, str]]) -> str:
    """Return YAML text with a comment after every guessed setting of a feature.

    Args:
        text: the text, of a mapping with a list of features.
        guesses: what to say, by feature and key.
    """
    lines, feature = [], ""
    for line in text.splitlines():
        key, _, value = line.removeprefix("- ").strip().partition(":")
        if line.startswith("- name: "):
            feature = value.strip().strip("'\"")
        elif not line.startswith((" ", "-")):
            feature = ""
        says = guesses.get(feature, {}).get(key)
        whole = value.strip() == "" or not value.strip().startswith(("|", ">", "'", '"'))
        lines.append(f"{line}  # {says}" if says and line.startswith("  ") and whole else line)
    return "\n".join(lines) + "\n"
