"""Prepares the package's docstrings for griffe's Google parser.

The package writes `Example:` where griffe knows `Examples:`, and may describe several arguments in
one entry. Doctests are shown as code, whatever section they stand in.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*\n?(?:(?P=indent)\S.*\n?)*", re.M)
_SECTION = re.compile(r"^(?:Args|Attributes):\n(?:(?: {4}.*)?(?:\n|\Z))*", re.M)
_NAMES = re.compile(r"^ {4}(\w+(?:, \w+)+):(?= |$)", re.M)
_REFERENCES = re.compile(r"^References:\n((?: {4}.*(?:\n|\Z))*)", re.M)


class Docstrings(griffe.Extension):
    """Rewrites each docstring for griffe's Google parser."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _SECTION.sub(
                lambda section: _NAMES.sub(_entries, section[0]), obj.docstring.value
            )
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
            text = _REFERENCES.sub(_references, text)
            obj.docstring.value = _DOCTEST.sub(_fenced, text)


def _entries(match: re.Match[str]) -> str:
    """One entry a name; all but the last refer to it."""
    *names, last = match[1].split(", ")
    return "".join(f"    {name}: as `{last}`.\n" for name in names) + f"    {last}:"


def _references(match: re.Match[str]) -> str:
    return "**References.** " + re.sub(r"^ {4}", "", match[1], flags=re.M)


def _fenced(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"
