"""Features: the coordinates of a feature space, and how their values are worded.

A feature has a *scale*, linear or logarithmic. Points are drawn uniformly on that scale, and the
belief is a density per unit of it.

The values of a *categorical* feature are words. In arrays they are codes, the whole numbers from 0
in the order of `categories`. Codes only name categories: their order, mean and quantiles have no
meaning.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator

from llm_elicit.config.base_model import StrictModel
from llm_elicit.errors import InputError

Floats = NDArray[np.float64]
NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The pattern of a feature's name."""

_LARGEST = 1e30
"""The largest value of a feature; squares of larger ones would leave the range of floats."""


class Feature(StrictModel):
    """One coordinate of a feature space, and how its values are worded.

    Attributes:
        name: the name, by default also the heading of its column in the table.
        label: what the judge reads.
        unit: the unit after a value.
        prefix: a text before a value, such as a currency sign.
        kind: "continuous", "integer" or "categorical".
        scale: "linear" or "log".
        low, high: the range that is asked about, natural units.
        digits: significant digits of worded values.
        factor: the worded value of one unit of the table.
        note: a remark for readers of the file.
        categories: the words of a categorical feature.

    Example:
        >>> age = Feature(name="age", label="age", unit="years", kind="integer", low=0, high=90)
        >>> age.word(41.7)
        '42 years'
        >>> island = Feature(name="island", label="island", kind="categorical",
        ...                  categories=["Biscoe", "Dream", "Torgersen"])
        >>> island.word(1.0), island.code("Torgersen"), island.high
        ('Dream', 2.0, 2.0)
    """

    name: Annotated[str, Field(pattern=NAME)]
    label: str
    unit: str = ""
    prefix: str = ""
    kind: Literal["continuous", "integer", "categorical"] = "continuous"
    scale: Literal["linear", "log"] = "linear"
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    digits: Annotated[int, Field(ge=1, le=9)] = 3
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    note: str = ""
    # Without categories the key is left out, so that the identity of older runs does not change.
    categories: tuple[str, ...] = Field(default=(), exclude_if=lambda words: not words)

    @model_validator(mode="before")
    @classmethod
    def _codes_of_categories(cls, data: Any) -> Any:
        """Derive low and high of a categorical feature from its words."""
        return _with_codes(data) if isinstance(data, dict) else data

    @field_validator("label", "unit", "prefix")
    @classmethod
    def _can_be_read(cls, text: str, info: ValidationInfo) -> str:
        """Refuse texts that would break the line of a question."""
        if not text.isprintable() or (info.field_name == "label" and not text.strip()):
            raise ValueError("holds nothing that prints in one line; give words")
        return text

    @model_validator(mode="after")
    def _range_is_usable(self) -> Feature:
        largest = max(abs(self.low), abs(self.high)) * max(1.0, self.factor)
        if largest > _LARGEST:
            raise ValueError(
                f"{self.name}: values up to {largest:g} are beyond {_LARGEST:g}; use a larger unit"
            )
        if not self.low < self.high:
            raise ValueError(
                f"{self.name}: low {self.low:g} is not below high {self.high:g}; swap or widen them"
            )
        if self.scale == "log" and self.low <= 0:
            raise ValueError(
                f"{self.name}: a log scale needs low > 0, got {self.low:g}; "
                "raise low or use scale: linear"
            )
        if not self.categories:
            self._check_digits()
        return self

    def _check_digits(self) -> None:
        """Check that the ends of the range are worded differently.

        Raises:
            ValueError: both ends are worded alike.
        """
        low, high = self.word(self.low), self.word(self.high)
        if low == high:
            raise ValueError(
                f"{self.name}: {self.low:g} and {self.high:g} would be asked about as {low!r} and "
                f"{high!r}; give more digits, or factor and unit of a smaller unit (factor: 1e9)"
            )

    def word(self, value: float) -> str:
        """Return a value with its unit, rounded to `digits` digits, or a category's word.

        `factor` converts the table's unit into the worded one: a median income in 10,000 USD is
        worded in USD with `factor: 10000`.

        Raises:
            InputError: it is not a number.
        """
        if math.isnan(value):
            raise InputError(
                f"{self.name}: what is not a number cannot be put into words; nothing was asked: "
                "the pair has no points yet, or its table has a gap"
            )
        if self.categories:
            return self.categories[round(min(max(value, self.low), self.high))]
        if self.scale == "linear" and math.isfinite(value):
            decimals, grid = self._grid
            # `_rounded` for one number, without NumPy's overhead: campaigns word millions.
            whole = value * self.factor * grid
            rounded = math.copysign(round(whole), whole) / grid / self.factor
            rounded = min(max(rounded, self.low), self.high)
        else:
            values = np.asarray(value)
            digits = self._decimals(values)
            decimals, rounded = int(digits), float(self._rounded(values, digits))
        shown = rounded * self.factor
        return f"{self.prefix}{shown:,.{max(0, decimals)}f} {self.unit}".rstrip()

    def word_range(self, low: float, high: float) -> str:
        """Return a range of values in words.

        Example:
            >>> age = Feature(name="age", label="age", unit="years", kind="integer", low=0, high=90)
            >>> age.word_range(50, 55)
            'between 50 and 55 years'
        """
        unit = f" {self.unit}" if self.unit else ""
        return f"between {self.word(low).removesuffix(unit)} and {self.word(high)}"

    def code(self, word: str) -> float:
        """Return the code of a category's word, ignoring blanks around it.

        Raises:
            InputError: there is no such category.
        """
        try:
            return float(self.categories.index(word.strip()))
        except ValueError:
            known = ", ".join(self.categories) or "none, it is not categorical"
            raise InputError(f"{self.name}: no category {word!r}; known: {known}") from None

    @cached_property
    def _grid(self) -> tuple[int, float]:
        """The number of decimals on a linear scale, and ten to its power."""
        return int(self._of_range), float(10.0**self._of_range)

    @property
    def step(self) -> float:
        """The step between worded values, natural units; 0 on a logarithmic scale.

        Example:
            >>> Feature(name="x", label="x", low=0, high=50).step
            0.1
        """
        return 0.0 if self.scale == "log" else 1.0 / (self._grid[1] * self.factor)

    def round(self, values: Floats) -> Floats:
        """Round values as they are worded: to `digits` digits, or to whole numbers or codes.

        Digits are counted from the leading digit of the range on a linear scale (a latitude of
        34.0522 over a ten-degree range is 34.1 at three digits) and from the leading digit of
        the value on a logarithmic one (a population of 1166 is 1170).
        """
        if self.categories:
            # 0.0 is added to avoid −0.
            return np.asarray(np.clip(np.rint(values), self.low, self.high) + 0.0)
        return self._rounded(values, self._decimals(values))

    def _rounded(self, values: Floats, decimals: Floats) -> Floats:
        grid = 10.0**decimals
        shown = np.rint(values * self.factor * grid) / grid / self.factor
        return np.asarray(np.clip(shown, self.low, self.high))

    def _decimals(self, values: Floats) -> Floats:
        """Return the number of decimals of worded values; negative for tens, hundreds, ..."""
        return self._digits_of(np.abs(values)) if self.scale == "log" else self._of_range

    @cached_property
    def _of_range(self) -> Floats:
        return self._digits_of(np.asarray(self.high - self.low))

    def _digits_of(self, extent: Floats) -> Floats:
        decimals = self.digits - 1 - np.floor(np.log10(np.maximum(extent * self.factor, 1e-300)))
        return np.asarray(np.minimum(decimals, 0.0 if self.kind == "integer" else 6.0))


_OF_NUMBERS = {"unit": "", "prefix": "", "scale": "linear", "digits": 3, "factor": 1.0}
"""The keys of numeric features only, and their defaults."""


def _with_codes(data: dict[str, Any]) -> dict[str, Any]:
    """Return a feature's keys, with the codes' range as low and high of a categorical one.

    Raises:
        ValueError: keys that exclude each other, or categories that are not distinct words.
    """
    name, given = data.get("name"), data.get("categories")
    if data.get("kind") != "categorical":
        if given:
            raise ValueError(f"{name}: categories are given; they need kind: categorical")
        return data
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise ValueError(f"{name}: kind: categorical needs two categories or more; list them")
    for word in given:
        if not isinstance(word, str):
            raise ValueError(f"{name}: category {word!r} is not text; put it in quotes")
        if not word.strip() or not word.strip().isprintable():
            raise ValueError(f"{name}: category {word!r} cannot be read; use words that print")
    words = tuple(word.strip() for word in given)
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise ValueError(f"{name}: the category {twice[0]!r} appears twice; categories must differ")
    derived = {"low": 0.0, "high": len(words) - 1.0}
    for key, usual in (_OF_NUMBERS | derived).items():
        if data.get(key, usual) != usual:
            raise ValueError(f"{name}: kind: categorical has no {key}; remove {key}")
    return {**data, **derived, "categories": words}
