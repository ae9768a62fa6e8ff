"""Brings the two layouts of the package's docstrings into one before they are shown.

The density core underlines its sections (`Parameters` and a line of hyphens) and writes a sentence
after `name :`, where NumPy's layout has a type; the rest of the package writes `Args:`. Doctests
are shown as code, whatever section they stand in.
"""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*\n?(?:(?P=indent)\S.*\n?)*", re.M)
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n(.*?)(?=^\w[\w ]*\n-{3,}\n|\Z)", re.S | re.M)
_NAMES = re.compile(r"^(\*{0,2}\w+(?:, *\*{0,2}\w+)*) ?:(?: |$)", re.M)
_NAMED = {"Parameters", "Attributes", "Other Parameters"}


class Docstrings(griffe.Extension):
    """Rewrites each docstring for griffe's Google parser."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _SECTION.sub(_section, obj.docstring.value)
            text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)
            obj.docstring.value = _DOCTEST.sub(_fenced, text)


def _section(found: re.Match[str]) -> str:
    title, body = found[1], found[2].rstrip()
    if title in _NAMED:
        body = _NAMES.sub(lambda names: _each(names[1]), body)
    elif title in ("Returns", "Yields"):
        body = re.sub(r"\n +", "\n", body)
    elif title in ("Notes", "References", "See Also"):
        return f"**{title}.** {body}\n\n"
    indented = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f"{title}:\n{indented}\n\n"


def _each(names: str) -> str:
    """One entry a name; all but the last refer to it."""
    *others, last = names.split(", ")
    return "".join(f"{name}: as `{last}`.\n" for name in others) + f"{last}: "


def _fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    return f"{indent}```pycon\n{found[0].rstrip()}\n{indent}```\n"
