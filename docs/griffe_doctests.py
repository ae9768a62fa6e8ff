"""Doctests in docstrings are shown as code, whatever section they stand in."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*\n?(?:(?P=indent)\S.*\n?)*", re.M)


class Doctests(griffe.Extension):
    """Puts doctests into code blocks, and gives their sections the name that griffe knows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = _DOCTEST.sub(_fenced, text)


def _fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    return f"{indent}```pycon\n{found[0].rstrip()}\n{indent}```\n"
