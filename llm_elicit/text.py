"""Words from outside, made harmless: for a terminal, a page, a spreadsheet."""

from __future__ import annotations

import re
import unicodedata

# What a spreadsheet takes for the beginning of a formula, behind any guards of ours.
_FORMULA = r"'*[=+\-@\t\r\n＝＋－＠]"
_UNGUARDED, _GUARDED = re.compile(rf"^(?={_FORMULA})"), re.compile(rf"^'(?={_FORMULA})")


def visible(text: str, most: int = 1200) -> str:
    """Untrusted text with nothing in it that acts unseen: controls shown by their code point.

    Example:
        >>> visible("A" + chr(27) + "[31m" + chr(0x202E))
        'A\\\\x1b[31m\\\\u202e'
    """
    cut = text if len(text) <= most else text[:most] + " […]"
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co") else _code(c)
        for c in cut
    )


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def guard(text: str) -> str:
    """A cell of a CSV that no spreadsheet takes for a formula: an apostrophe goes before one.

    Example:
        >>> guard("=1+1"), guard("A"), unguard(guard("'=1+1"))
        ("'=1+1", 'A', "'=1+1")
    """
    return _UNGUARDED.sub("'", text)


def unguard(text: str) -> str:
    """Inverse of `guard`."""
    return _GUARDED.sub("", text)
