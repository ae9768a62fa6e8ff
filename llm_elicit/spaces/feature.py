"""A feature: one quantity or category that is asked about, and how its values are worded.

A feature has a *scale*, linear or logarithmic. Candidates are drawn uniformly on that scale
and the belief density is the density per unit of it, so that a question about a block group's
population weighs "twice as many" alike at 500 and at 5000 people.

The kinds:

- ``continuous``: a real number.
- ``integer``: a whole number, a count or a year.
- ``date``: a day. In arrays it is the number of days since 1 January 1970.
- ``categorical``: words without an order. In arrays they are codes, the whole numbers from 0 in the
  order of ``categories``. Codes only name the categories: their differences, means and quantiles
  have no meaning.
- ``ordered``: words in their order, also coded as whole numbers from 0.

A ``periodic`` feature is a circle, such as an hour, a month or a direction: continuous values lie
in [low, high), and high is the same value as low; whole values go from low to high, and the value
after high is low.
"""

from __future__ import annotations

import datetime
import math
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from llm_elicit._util.packages import pd
from llm_elicit._util.settings import StrictModel, distinct, validate
from llm_elicit.errors import InputError

EPOCH = datetime.date(1970, 1, 1)
"""The day that dates are counted from."""

NOT_STATED = "not stated"
"""The category of empty cells."""

ANY_DIGIT = "\0"
"""What stands for any digit in `Feature.form`."""

_NUMBER_DEFAULTS = {
    "unit": "", "prefix": "", "scale": "linear", "digits": 3, "factor": 1.0, "units": (),
}  # fmt: skip
"""The keys of numbers alone, with their defaults."""


def _word_of_category(word: object) -> object:
    """Return a category without blanks around it.

    Raises:
        ValueError: it is not printable text.
    """
    if not isinstance(word, str):
        raise ValueError(f"category {word!r} is not text; put it in quotes")
    if not word.strip() or not word.strip().isprintable():
        raise ValueError(
            f"category {word!r} is empty or contains a control character; use printable text"
        )
    return word.strip()


def days_of(name: object, key: str, value: object) -> object:
    """Return the bound of a date as days since 1970; numbers are days already.

    Raises:
        ValueError: the value is not a date.
    """
    try:
        day = datetime.date.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(day, datetime.date):
            return float(day.toordinal() - EPOCH.toordinal())
        if isinstance(day, int | float):
            EPOCH + datetime.timedelta(days=day)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: {key} {value!r} is not a date; write it as 2020-03-14") from None
    return value


_MAX_PLAIN_NUMBER = 1e15
"""Numbers from here on are written with a power of ten."""

_MAX_DECIMALS = 6
"""Numbers with more decimals are written with a power of ten."""


class Locale(StrictModel):
    """The marks within a number.

    Attributes:
        decimal: the decimal mark.
        thousands: the thousands separator; empty for none, as in years.

    Examples:
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
                f"locale: {self.decimal!r} is both the decimal mark and the thousands separator; "
                "use different marks"
            )
        return self


ENGLISH = Locale()


def format_number(value: float, decimals: int, locale: Locale = ENGLISH) -> str:
    """Return a number that has been rounded, with its decimals.

    Args:
        value: the number.
        decimals: how many decimals it is rounded to; negative for tens, hundreds, ...
        locale: the marks within the number.

    Examples:
        >>> format_number(1234.5, 2), format_number(1234.5, 2, Locale(decimal=","))
        ('1,234.50', '1.234,50')
        >>> format_number(1.2e-9, 11), format_number(0.0, 11), format_number(2020, 0)
        ('1.20e-9', '0', '2,020')
    """
    if value == 0.0 and decimals >= _MAX_DECIMALS:
        text = "0"
    elif abs(value) < _MAX_PLAIN_NUMBER and decimals <= _MAX_DECIMALS:
        text = f"{value:,.{max(0, decimals)}f}"
    elif not math.isfinite(value):
        text = f"{abs(value):g}"
    else:
        power = math.floor(math.log10(abs(value)))
        mantissa, power_text = f"{value:.{max(0, decimals + power)}e}".split("e")
        text = f"{mantissa}e{int(power_text)}"
    thousands = "\u00a0" if locale.thousands == " " else locale.thousands
    return text.translate({ord(","): thousands, ord("."): locale.decimal})


Floats = NDArray[np.float64]
NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The pattern of a feature's name."""

_MAX_VALUE, _MIN_VALUE = 1e30, 1e-30
"""Largest and smallest size of a value; squares of others overflow or vanish."""

_MIN_RELATIVE_WIDTH = 1e-12
"""The least width of a range, as a share of its values; floats hold about 16 digits."""

_FLOAT_DIGITS = 15
_STEP_SLACK = 1e-6
"""The share of a step below which a number is one of the steps."""

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

Kind = Literal["continuous", "integer", "categorical", "ordered", "date"]


class Unit(StrictModel):
    """Another unit of a feature: `factor` turns the table's unit into it, as `Feature.factor`."""

    unit: str = ""
    prefix: str = ""
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Feature(StrictModel):
    """One coordinate of a feature space, and how its values are worded.

    Examples:
        >>> age = Feature(name="age", label="age", unit="years", kind="integer", low=0, high=90)
        >>> age.word(41.7)
        '42 years'
        >>> island = Feature(name="island", label="island", kind="categorical",
        ...                  categories=["Biscoe", "Dream", "Torgersen"])
        >>> island.word(1.0), island.code("Torgersen"), island.high
        ('Dream', 2.0, 2.0)
        >>> born = Feature(name="born", label="birthday", kind="date",
        ...                low="1990-01-01", high="2020-12-31")
        >>> born.word(18_335.0)
        '14 March 2020'
    """

    name: Annotated[str, Field(pattern=NAME)]
    label: str
    unit: str = ""
    prefix: str = ""
    kind: Kind = "continuous"
    scale: Literal["linear", "log"] = "linear"
    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    digits: Annotated[int, Field(ge=1, le=9)] = 3
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    note: str = ""
    # Later fields are left out where they have no effect, so that the identity of earlier runs is
    # as it was.
    categories: tuple[Annotated[str, BeforeValidator(_word_of_category)], ...] = Field(
        default=(), exclude_if=lambda words: not words
    )
    periodic: bool = Field(default=False, exclude_if=lambda value: not value)
    locale: Locale | None = Field(default=None, exclude_if=lambda value: value is None)
    units: tuple[Unit, ...] = Field(default=(), exclude_if=lambda units: not units)

    _differ = field_validator("categories")(distinct)

    @model_validator(mode="before")
    @classmethod
    def _complete_bounds(cls, data: Any) -> Any:
        """Bounds of categories follow from their words, and those of dates are days."""
        if not isinstance(data, dict):
            return data
        name, kind, categories = (data.get(key) for key in ("name", "kind", "categories"))
        if kind in ("categorical", "ordered"):
            if not isinstance(categories, list | tuple) or len(categories) < 2:
                raise ValueError(f"{name}: kind: {kind} needs at least two categories; list them")
            bounds: dict[str, object] = {"low": 0.0, "high": len(categories) - 1.0}
            defaults = _NUMBER_DEFAULTS | bounds
        elif categories:
            raise ValueError(
                f"{name}: only kind: categorical or ordered takes categories; change `kind`, or "
                "remove `categories`"
            )
        elif kind == "date":
            bounds = {key: days_of(name, key, data[key]) for key in ("low", "high") if key in data}
            defaults = _NUMBER_DEFAULTS
        else:
            return data
        for key, default in defaults.items():
            if data.get(key, default) != default:
                raise ValueError(f"{name}: a feature of kind {kind} takes no {key}; remove {key}")
        return data | bounds

    @field_validator("label", "unit", "prefix")
    @classmethod
    def _check_text(cls, text: str, info: ValidationInfo) -> str:
        """Check a text that is printed within a line of a question."""
        if not text.isprintable() or (info.field_name == "label" and not text.strip()):
            raise ValueError(
                "is empty or contains a line break or control character; give printable text"
            )
        return text

    @model_validator(mode="after")
    def _check_range(self) -> Feature:
        largest = max(abs(self.low), abs(self.high)) * max(1.0, self.factor)
        if largest > _MAX_VALUE:
            raise ValueError(
                f"{self.name}: values up to {largest:g} are beyond {_MAX_VALUE:g}; use a larger "
                "unit"
            )
        if not self.low < self.high:
            raise ValueError(
                f"{self.name}: low {self.low:g} must be below high {self.high:g}; swap or widen "
                "them"
            )
        if self.scale == "log" and self.low <= 0:
            raise ValueError(
                f"{self.name}: a log scale needs low > 0, got {self.low:g}; "
                "raise low or use scale: linear"
            )
        if self.periodic and (self.scale == "log" or self.kind in ("categorical", "date")):
            raise ValueError(
                f"{self.name}: periodic needs a linear scale, and continuous, integer or ordered "
                "values; remove periodic"
            )
        if self.categories:
            return self
        # The ends of the range can be told apart, as floats and as they are worded.
        smallest = self.low if self.scale == "log" else self.high - self.low
        if smallest * min(1.0, self.factor) < _MIN_VALUE:
            raise ValueError(
                f"{self.name}: values of {smallest:g} are below {_MIN_VALUE:g}; use a smaller unit"
            )
        if self.high - self.low < _MIN_RELATIVE_WIDTH * max(abs(self.low), abs(self.high)):
            raise ValueError(
                f"{self.name}: numbers between {self.low:.17g} and {self.high:.17g} are too "
                "close together for floating-point numbers; count from another origin"
            )
        low = self.lowest
        high = low + self.period / 2.0 if self.periodic else self.highest
        if not low < high or (self.kind != "date" and self.word(low) == self.word(high)):
            raise ValueError(
                f"{self.name}: {self.low:g} and {high:g} would both be worded alike, as "
                f"{self.word(low)!r} and {self.word(high)!r}; give more digits, or factor and unit "
                "of a smaller unit (factor: 1e9)"
            )
        return self

    @property
    def counts_digits(self) -> bool:
        """Whether values are numbers with significant digits: not on a circle."""
        return self.kind in ("continuous", "integer") and not self.periodic

    def reworded(self, unit: int = 0, digits: int | None = None) -> Feature:
        """Return the feature with its values worded in another unit or with other digits.

        Args:
            unit: which of `units`, counted from 1; the feature's own unit if there is no such one.
            digits: significant digits; the feature's own if None, and for values without digits.

        Raises:
            InputError: the ends of its range would be worded alike.

        Examples:
            >>> area = Feature(name="area", label="area", unit="km²", low=0, high=9e6,
            ...                units=[{"unit": "thousand km²", "factor": 0.001}])
            >>> area.word(1_230_000), area.reworded(1, digits=2).word(1_230_000)
            ('1,230,000 km²', '1,200 thousand km²')
        """
        changes: dict[str, Any] = {}
        if 0 < unit <= len(self.units):
            changes = self.units[unit - 1].model_dump()
            # Whole numbers of another unit are not whole.
            changes |= {"kind": "continuous"} if self.kind == "integer" else {}
        if digits is not None and self.counts_digits:
            changes["digits"] = digits
        if not changes:
            return self
        fields = self.model_dump() | changes
        return validate(Feature, fields, "design.presentations")

    @property
    def whole(self) -> bool:
        """Whether the values in arrays are whole numbers: integers, dates and ordered words.

        Integers with a `factor` are whole only as they are worded.
        """
        return self.kind in ("ordered", "date") or (self.kind == "integer" and self.factor == 1.0)

    @cached_property
    def lowest(self) -> float:
        """The lowest value: `low`, or the first whole number from there."""
        return float(math.ceil(self.low)) if self.whole else self.low

    @cached_property
    def highest(self) -> float:
        """The highest value: `high`, or the last whole number up to there."""
        return float(math.floor(self.high)) if self.whole else self.high

    @property
    def period(self) -> float:
        """The length of the circle of a periodic feature."""
        return self.highest - self.lowest + (1.0 if self.whole else 0.0)

    def word(self, value: float) -> str:
        """Return a value as the questions word it: rounded, in the worded unit, and with that unit.

        `factor` turns the table's unit into the worded one (a median income stored in
        10,000 USD is worded in USD with `factor: 10000`). A category is worded by its name, a
        date as a day.

        Raises:
            InputError: the value is not a number.
        """
        if math.isnan(value):
            raise InputError(
                f"{self.name}: a missing value cannot be worded; the points of the pair are not "
                "planned yet, or a cell of its table is empty"
            )
        decimals, scaled = self._shown(value)
        if self.categories:
            return self.categories[int(scaled)]
        if self.kind == "date":
            day = EPOCH + datetime.timedelta(days=scaled)
            return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
        number = format_number(scaled, decimals, self.locale or ENGLISH)
        return f"{self.prefix}{number} {self.unit}".rstrip()

    def form(self, value: float) -> str:
        """Return a worded value with `ANY_DIGIT` for each digit that rounding replaced by a 0.

        Examples:
            >>> people = Feature(name="x", label="x", kind="integer", scale="log", low=10, high=9e6)
            >>> people.form(54_321).replace(ANY_DIGIT, "?")
            '54,3??'
        """
        text = self.word(value)
        if self.categories or self.kind == "date":
            return text
        decimals, scaled = self._shown(value)
        free = max(0, -decimals) if abs(scaled) < _MAX_PLAIN_NUMBER else 0
        number = text.removesuffix(f" {self.unit}")
        digits = [i for i, letter in enumerate(number) if letter.isdigit()][-free:] * (free > 0)
        letters = (ANY_DIGIT if i in digits else letter for i, letter in enumerate(text))
        return "".join(letters)

    def word_range(self, low: float, high: float) -> str:
        """Return a range of values in words.

        Examples:
            >>> age = Feature(name="age", label="age", unit="years", kind="integer", low=0, high=90)
            >>> age.word_range(50, 55)
            'between 50 and 55 years'
        """
        unit = f" {self.unit}" if self.unit else ""
        return f"between {self.word(low).removesuffix(unit)} and {self.word(high)}"

    def read(self, value: str | float) -> float:
        """Return a value as arrays hold it: a rounded number, a date's days, or a category's code.

        Raises:
            InputError: there is no such category or date, or the number is outside the range.
        """
        if self.categories:
            return self.code(str(value))
        try:
            parsed = days_of(self.name, "value", value) if self.kind == "date" else value
        except ValueError as error:
            raise InputError(str(error)) from None
        number = parsed if isinstance(parsed, int | float) else math.nan
        if not self.low <= number <= self.high:
            raise InputError(
                f"{self.name}: {value!r} is not a number from {self.low:g} to {self.high:g}; give "
                "one, or widen the range in the feature space"
            )
        return float(self.round(np.asarray(float(number))))

    def code(self, word: str) -> float:
        """Return the code of a category; blanks around its name are ignored.

        Raises:
            InputError: there is no such category.
        """
        try:
            return float(self.categories.index(word.strip()))
        except ValueError:
            categories = (
                ", ".join(self.categories) or "none, because the feature is not categorical"
            )
            raise InputError(f"{self.name}: no category {word!r}; known: {categories}") from None

    def column(self, values: Floats) -> pd.Series[Any]:
        """Return values `(n,)` as a column of a table: numbers, names of categories, or dates.

        Examples:
            >>> size = Feature(name="size", label="size", kind="ordered", categories=["S", "M"])
            >>> size.column(np.array([1.0, 0.0])).tolist()
            ['M', 'S']
        """
        if self.categories:
            codes = np.rint(values).astype(int)
            dtype = pd.CategoricalDtype(list(self.categories), ordered=self.kind == "ordered")
            return pd.Series(pd.Categorical.from_codes(codes, dtype=dtype))
        if self.kind == "date":
            return pd.Series(np.rint(values).astype("datetime64[D]").astype("datetime64[s]"))
        return pd.Series(values)

    def read_column(self, column: pd.Series[Any]) -> pd.Series[Any]:
        """Return a column as `column` makes it, from categories, codes, dates, their text or days.

        Raises:
            InputError: a word is not a category, or a text is not a date.
        """
        if self.kind == "date" and column.dtype.kind == "M":
            column = column.astype("datetime64[s]").astype(np.int64) // 86_400
        elif (self.categories or self.kind == "date") and column.dtype.kind not in "iuf":
            column = column.map({cell: self.read(str(cell)) for cell in column.unique()})
        return self.column(column.to_numpy(np.float64))

    def value_of(self, number: float) -> float:
        """Return the value in natural units that is worded with a number; whole for whole features.

        Examples:
            >>> income = Feature(name="x", label="income", factor=1000, low=1, high=90)
            >>> income.value_of(40_000)
            40.0
        """
        value = number / self.factor
        rounded = float(self.round(np.asarray(value)))
        decimals, scaled = self._shown(rounded)
        if float(format_number(scaled, decimals).replace(",", "")) == number:
            return rounded  # to the last bit, also at an end with more digits than are worded
        return float(np.rint(value)) if self.whole else value

    def _shown(self, value: float) -> tuple[int, float]:
        """Return the decimals of the worded number, and this number in the worded unit."""
        if self.scale == "linear" and math.isfinite(value) and not self.periodic:
            decimals, grid = self._range_decimals, 10.0**self._range_decimals
            # `_rounded` for one number: NumPy takes its time, and campaigns word millions.
            rounded = round(value * self.factor * grid) / grid / self.factor
            rounded = min(max(rounded, self.lowest), self.highest)
        else:
            rounded = float(self.round(np.asarray(value)))
            decimals = int(self._decimals(np.asarray(rounded)))  # 9.996 is 10.0, not 10.00
        return decimals, rounded * self.factor + 0.0  # no −0

    @property
    def step(self) -> float:
        """The step between the values that are worded, natural units; 0 on a logarithmic scale.

        Examples:
            >>> Feature(name="x", label="x", low=0, high=50).step
            0.1
        """
        return 0.0 if self.scale == "log" else 1.0 / (10.0**self._range_decimals * self.factor)

    def log_cells(self, values: Floats) -> Floats:
        """Return the log width, on the scale, of the values that are worded as each of `values`.

        0 for words of categories.

        Examples:
            >>> age = Feature(name="x", label="x", low=0, high=90)
            >>> np.exp(age.log_cells(np.array([35.5]))).round(6).tolist()
            [0.1]
        """
        if self.categories:
            return np.zeros_like(values)

        def step(at: Floats) -> Floats:
            steps = 10.0 ** -self._decimals(at) / self.factor
            return np.maximum(steps, 1.0) if self.whole else steps

        if self.scale == "linear":
            return np.asarray(np.log(step(values)) + 0.0 * values)
        # Below a power of ten the step is a tenth of that above.
        below, above = step(values * (1.0 - 1e-9)), step(values)
        return np.asarray(np.log(np.log1p(0.5 * above / values) - np.log1p(-0.5 * below / values)))

    def round(self, values: Floats) -> Floats:
        """Return values rounded as they are worded: to `digits` digits, integers to whole numbers.

        Digits are counted from the leading digit of the range on a linear scale (a latitude of
        34.0522 over a ten-degree range is 34.1 at three digits) and from the leading digit of
        the value itself on a logarithmic one (a population of 1166 is 1170). Codes and dates are
        rounded to whole numbers. Periodic values beyond the range are moved into it by whole
        periods, all others to its nearer end.
        """
        rounded = self._rounded(values, self._decimals(values))
        # 9.995e11 is rounded up to 1e12, which has other decimals.
        return self._rounded(rounded, self._decimals(rounded)) if self.scale == "log" else rounded

    def _rounded(self, values: Floats, decimals: Floats) -> Floats:
        grid, low = 10.0**decimals, self.lowest
        rounded = np.rint(self._around(values) * self.factor * grid) / grid / self.factor
        if self.periodic:
            # If the period is not a whole number of steps, its end is the first value again.
            step = 1.0 / self.factor
            first = np.ceil(low / step * grid - _STEP_SLACK) / grid * step
            beyond = (rounded < low) | (rounded >= low + self.period)
            rounded = self._around(np.where(beyond, first, rounded))
        whole = np.rint(rounded) if self.whole else rounded
        # 0.0 is added so that no value is −0.
        return np.asarray(np.clip(whole, low, self.highest) + 0.0)

    def _around(self, values: Floats) -> Floats:
        """Return values, those of a periodic feature moved into its range by whole periods."""
        if not self.periodic:
            return values
        beyond = (values < self.lowest) | (values >= self.lowest + self.period)
        return np.where(beyond, self.lowest + np.mod(values - self.lowest, self.period), values)

    def _decimals(self, values: Floats) -> Floats:
        """Return the number of decimals of worded values; negative for tens, hundreds, ..."""
        if self.scale == "log":
            return self._digits_of(np.abs(values))
        return np.asarray(float(self._range_decimals))

    @cached_property
    def _range_decimals(self) -> int:
        """The number of decimals on a linear scale."""
        if self.categories or self.kind == "date":
            return 0
        largest = max(abs(self.low), abs(self.high)) * self.factor
        max_decimals = _FLOAT_DIGITS - 1 - math.floor(math.log10(largest))
        return min(int(self._digits_of(np.asarray(self.high - self.low))), max_decimals)

    def _digits_of(self, extent: Floats) -> Floats:
        size = np.maximum(extent * self.factor, _MIN_VALUE)
        decimals = self.digits - 1 - np.floor(np.log10(size))
        return np.asarray(np.minimum(decimals, 0.0) if self.kind == "integer" else decimals)


def column_values(column: pd.Series[Any]) -> Floats:
    """Return the numbers `(n,)` of a column made by `Feature.column`.

    Categories become codes, dates days since 1970.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return np.asarray(column.cat.codes, dtype=np.float64)
    if column.dtype.kind == "M":
        return column.to_numpy("datetime64[D]").astype(np.int64).astype(np.float64)
    return column.to_numpy(np.float64)
