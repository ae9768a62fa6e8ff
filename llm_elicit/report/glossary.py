"""The glossary of a report: the definition of each number, and its references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

import yaml


@dataclass(frozen=True)
class Entry:
    """One term.

    Attributes:
        term: the term as the page prints it.
        definition: its meaning, for a reader who knows none of the methods.
        references: the publications that introduce it, in full.
    """

    term: str
    definition: str
    references: tuple[str, ...] = ()


def _read() -> Mapping[str, Entry]:
    """Return the entries of `glossary.yaml` by their key, in the order of the file."""
    text = (resources.files("llm_elicit.report") / "glossary.yaml").read_text(encoding="utf-8")
    stored = yaml.safe_load(text)
    return MappingProxyType(
        {
            key: Entry(
                entry["term"],
                entry["definition"],
                tuple(stored["references"][name] for name in entry.get("references", ())),
            )
            for key, entry in stored["terms"].items()
        }
    )


GLOSSARY: Mapping[str, Entry] = _read()
"""Every term by its key, in the order in which the page lists them."""
