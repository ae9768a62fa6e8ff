"""The text that a form sends, as it was meant.

Browsers end the lines of every field with CR LF, whatever the page held; what is pasted may begin
with a byte order mark and end in blanks. All fields of all forms are read by `Text`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Form
from pydantic import AfterValidator


def normalized(text: str) -> str:
    r"""Return a form's text with LF at the end of each line, and without blanks before it.

    Example:
        >>> normalized("panel\r\nada \r")
        'panel\nada'
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


Text = Annotated[str, Form(), AfterValidator(normalized)]
"""The type of a form's field: ``name: Text = ""``."""
