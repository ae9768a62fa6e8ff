"""Text for people: untrusted text sanitized for terminals, pages, spreadsheets and papers."""

from __future__ import annotations

import re
import reprlib
import unicodedata
from dataclasses import fields
from itertools import pairwise
from typing import Any

# What a spreadsheet reads as the start of a formula, after any apostrophes of `guard`.
_FORMULA = r"'*[=+\-@\t\r\n＝＋－＠]"
_UNGUARDED, _GUARDED = re.compile(rf"^(?={_FORMULA})"), re.compile(rf"^'(?={_FORMULA})")

# Special characters of Markdown, of HTML within it, and of tables.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~!#&$])")

_LATEX = {
    **{c: "\\" + c for c in "&%$#_{}"},
    **{c: f"{{{c}}}" for c in "[]*`"},  # a row's first [ or * would belong to the \\ before it
    **{c: f"${c}$" for c in "<>|"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    '"': r"\char34{}",
    "λ": r"$\lambda$", "−": "$-$", "±": r"$\pm$", "≤": r"$\leq$", "×": r"$\times$",
    "°": r"$^{\circ}$", "²": "$^2$", "³": "$^3$", "µ": r"$\mu$", "–": "--", "—": "---",
    "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}",
    "Ł": r"\L{}",
}  # fmt: skip
_ACCENTS = dict(zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327",
                    "`'^~=u.\"rHvc", strict=True))  # fmt: skip


def visible(text: str, max_length: int = 1200) -> str:
    """Return untrusted text with control and format characters replaced by their code points.

    Examples:
        >>> visible("A" + chr(27) + "[31m" + chr(0x202E))
        'A\\\\x1b[31m\\\\u202e'
    """
    shortened = text if len(text) <= max_length else text[:max_length] + " […]"
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co") else _code(c)
        for c in shortened
    )


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def guard(text: str) -> str:
    """Return a cell of a CSV with an apostrophe before a text that a spreadsheet would execute.

    Examples:
        >>> guard("=1+1"), guard("A"), unguard(guard("'=1+1"))
        ("'=1+1", 'A', "'=1+1")
    """
    return _UNGUARDED.sub("'", text)


def unguard(text: str) -> str:
    """Return a text without the apostrophe that `guard` adds."""
    return _GUARDED.sub("", text)


def markdown(text: str) -> str:
    """Escape a text for a cell of a Markdown table, on one line.

    Examples:
        >>> print(markdown("<b>a|b</b>"))
        \\<b\\>a\\|b\\</b\\>
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(visible(text).split()))


def latex(text: str) -> str:
    """Escape a text for a cell of a LaTeX table, on one line, for pdfLaTeX.

    Letters with accents become commands, and characters without one become code points.

    Examples:
        >>> print(latex(r"\\input{a} & Zoë"))
        \\textbackslash{}input\\{a\\} \\& Zo\\"{e}
    """
    line = " ".join(visible(text).split())
    # Two hyphens or two quotes would become one character.
    separators = (
        "{}" if c == previous and c in "-'" else "" for previous, c in pairwise(f" {line}")
    )
    return "".join(part + _latex_character(c) for part, c in zip(separators, line, strict=True))


def _latex_character(character: str) -> str:
    """Return a character as LaTeX that prints it."""
    if character in _LATEX:
        return _LATEX[character]
    if character.isascii():
        return character
    letter, *accents = list(unicodedata.normalize("NFD", character))
    if len(accents) == 1 and accents[0] in _ACCENTS and letter.isascii():
        return f"\\{_ACCENTS[accents[0]]}{{{letter}}}"
    return "".join(_LATEX.get(c, c) for c in _code(character))


def brief_repr(instance: Any) -> str:
    """Return the repr of a dataclass, with the shapes of arrays and shortened values.

    Examples:
        >>> import numpy as np
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Points:
        ...     a: Any
        ...     __repr__ = brief_repr
        >>> Points(np.zeros((500, 3)))
        Points(a=array(500, 3))
    """
    values = {item.name: getattr(instance, item.name) for item in fields(instance)}
    texts = (
        f"{name}=array{value.shape}"
        if type(value).__name__ == "ndarray"
        else f"{name}={reprlib.repr(value)}"
        for name, value in values.items()
    )
    return f"{type(instance).__name__}({', '.join(texts)})"


def names_in(text: str) -> list[str]:
    """Return the names in a comma-separated list.

    Examples:
        >>> names_in("age, income,")
        ['age', 'income']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def not_utf8(error: UnicodeDecodeError) -> str:
    """Return where a text is not UTF-8, and what to do.

    Examples:
        >>> try:
        ...     b"a: 1\\nna\\xefve: 2".decode()
        ... except UnicodeDecodeError as error:
        ...     not_utf8(error)
        'line 2 is not UTF-8 (byte 0xef); save it as UTF-8'
    """
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"line {line} is not UTF-8 (byte 0x{error.object[error.start]:02x}); save it as UTF-8"
