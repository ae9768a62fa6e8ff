"""Numbers in words: significant digits, thousands separators and the decimal mark."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import model_validator

from llm_elicit._util.settings import StrictModel

_LARGEST = 1e15
"""Numbers from here on are written with a power of ten."""

_MOST_DECIMALS = 6
"""Numbers with more decimals are written with a power of ten."""


class Locale(StrictModel):
    """The marks within a number.

    Attributes:
        decimal: the decimal mark.
        thousands: the thousands separator; empty for none, as in years.

    Example:
        >>> Locale(decimal=",").thousands
        '.'
    """

    decimal: Literal[".", ","] = "."
    thousands: Literal[",", ".", " ", "'", ""] = ","

    @model_validator(mode="before")
    @classmethod
    def _other_mark(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("decimal") == "," and "thousands" not in data:
            return data | {"thousands": "."}
        return data

    @model_validator(mode="after")
    def _marks_differ(self) -> Locale:
        if self.decimal == self.thousands:
            raise ValueError(
                f"locale: {self.decimal!r} is both decimal mark and thousands; use two"
            )
        return self


ENGLISH = Locale()


def format_number(value: float, decimals: int, locale: Locale = ENGLISH) -> str:
    """Return a number that has been rounded, with its decimals.

    Args:
        value: the number.
        decimals: how many decimals it is rounded to; negative for tens, hundreds, ...
        locale: the marks within the number.

    Example:
        >>> format_number(1234.5, 2), format_number(1234.5, 2, Locale(decimal=","))
        ('1,234.50', '1.234,50')
        >>> format_number(1.2e-9, 11), format_number(0.0, 11), format_number(2020, 0)
        ('1.20e-9', '0', '2,020')
    """
    if value == 0.0 and decimals >= _MOST_DECIMALS:
        text = "0"
    elif abs(value) < _LARGEST and decimals <= _MOST_DECIMALS:
        text = f"{value:,.{max(0, decimals)}f}"
    elif not math.isfinite(value):
        text = f"{abs(value):g}"
    else:
        power = math.floor(math.log10(abs(value)))
        mantissa, power_text = f"{value:.{max(0, decimals + power)}e}".split("e")
        text = f"{mantissa}e{int(power_text)}"
    return text.translate(_marks(locale))


def _marks(locale: Locale) -> dict[int, str]:
    thousands = "\u00a0" if locale.thousands == " " else locale.thousands
    return {ord(","): thousands, ord("."): locale.decimal}


def to_english(text: str, locale: Locale) -> str:
    """Return a text whose numbers have English marks in place of those of `locale`.

    Example:
        >>> to_english("1.234,5 kg; 0,25", Locale(decimal=","))
        '1234.5 kg; 0.25'
    """
    if locale == ENGLISH:
        return text
    if locale.thousands:
        mark = "[ \u00a0\u202f]" if locale.thousands == " " else re.escape(locale.thousands)
        group = rf"(?<![\d.,])\d{{1,3}}(?:{mark}\d{{3}})+(?!\d)"
        text = re.sub(group, lambda found: re.sub(mark, "", found[0]), text)
    if locale.decimal != ".":
        text = re.sub(r"(?<=\d),(?=\d)", ".", text)
    return text
