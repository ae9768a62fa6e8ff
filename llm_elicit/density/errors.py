"""The error of the density core, and the checks of arguments that raise it.

Every check returns the value in the form that the core computes with, or raises `DensityError`
with the argument's name ``where``, what was found, and the rule. Texts, masks, missing values and
complex numbers are never read as numbers, and numbers are never read as flags. Values by the names
of features are put in order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]
Kind = TypeVar("Kind")

MAX_NUMBER = 1e150
"""The largest number accepted: larger ones overflow when squared."""

_NUMERIC_KINDS = "fiub"  # NumPy's kinds: floating, signed, unsigned, boolean
_MAX_INTEGER = 10**9
_MAX_LETTERS = 60
MAX_NAMES = 8
"""Largest number of feature names in a message."""


class DensityError(ValueError):
    """An argument of the density core cannot be used.

    The message is one line: the argument, its value, the rule it breaks, and what to do.

    Examples:
        >>> from llm_elicit.density import Uniform
        >>> Uniform([0.0], [0.0])
        Traceback (most recent call last):
        ...
        llm_elicit.density.errors.DensityError: Uniform: low[0] = 0.0 is not below high[0] = 0.0; \
every lower bound must lie below its upper bound; swap or widen the bounds.
    """


def abbreviate(text: str, max_length: int = 400) -> str:
    """Return a text, cut in the middle if it is long.

    Examples:
        >>> abbreviate("Uniform(low=[0.0, 0.0, 0.0])", 20)
        'Uniform( ... , 0.0])'
    """
    return (
        text
        if len(text) <= max_length
        else f"{text[: max_length // 2 - 2]} ... {text[3 - max_length // 2 :]}"
    )


def check_numbers(label: str, values: object) -> Array:
    """Return values of any shape as floats."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DensityError(f"{label} has masked values; drop them first.")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(map(_is_number, array.flat)):
            array = array.astype(np.float64)
        if array.dtype.kind in _NUMERIC_KINDS:
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        # From NumPy, or from PyTorch if a tensor has a gradient.
        raise DensityError(
            f"{label} cannot be read as numbers ({shorten(error)}); convert it to floats first."
        ) from None
    raise DensityError(
        f"{label} cannot be read as numbers (it is {shorten(repr(values))}); convert it to floats "
        "first."
    )


def check_shape(label: str, values: object, dimension: int) -> Array:
    """Return points (n, d) as floats, NaN and infinite ones included."""
    array = check_numbers(label, values)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise DensityError(
            f"{label} has shape {array.shape}; it must be (n, {dimension}); reshape a single point "
            "to one row, a single feature to one column."
        )
    return array


def check_points(label: str, values: object, dimension: int, *, infinite: bool = False) -> Array:
    """Return points (n, d) as floats, finite ones unless ``infinite`` are allowed."""
    array = check_shape(label, values, dimension)
    if not infinite:
        return check_finite(label, array)
    for row, column in np.argwhere(np.isnan(array)):
        raise DensityError(f"{label}[{row}, {column}] is nan; drop such points.")
    return array


def check_finite(label: str, values: object) -> Array:
    """Return values of any shape as floats, all finite and below `MAX_NUMBER` in size."""
    array = check_numbers(label, values)
    bad = np.argwhere(~(np.abs(array) <= MAX_NUMBER))
    if bad.size:
        index = ", ".join(map(str, bad[0]))
        raise DensityError(
            f"{label}[{index}] is {array[tuple(bad[0])]}; every value must be finite and less than "
            f"{MAX_NUMBER:g} in size; drop or repair the others."
        )
    return array


def check_table(label: str, values: object, axes: int = 2) -> Array:
    """Return points (n, d), or (n, k, d) for three axes, that are finite and not empty."""
    array = check_numbers(label, values)
    if array.ndim != axes or 0 in array.shape:
        shape = "(n, d)" if axes == 2 else "(n, k, d)"
        raise DensityError(
            f"{label} has shape {array.shape}; it must be {shape}, with no axis of length 0; "
            "reshape a single feature to a last axis of one."
        )
    return check_finite(label, array)


def check_column(label: str, values: object, n: int, *, finite: bool = True) -> Array:
    """Return one number for each of n rows, (n,), ``finite`` or not; a single one is repeated."""
    array = check_numbers(label, values)
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"{label} has shape {array.shape}; one number per row is needed, shape ({n},)."
        )
    column = np.broadcast_to(array, n).copy()
    return check_finite(label, column) if finite else column


def check_flags(label: str, values: object, n: int) -> Flags:
    """Return a flag for each of n rows, (n,), of True, False, 1 and 0; a single one is repeated."""
    array = check_numbers(label, values)
    if not np.isin(array, (0.0, 1.0)).all():
        raise DensityError(f"{label} holds other values than True and False; compare them first.")
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"{label} has shape {array.shape}; one flag per row is needed, shape ({n},)."
        )
    return np.broadcast_to(array.astype(np.bool_), n).copy()


def check_integer(label: str, value: object, minimum: int = 0, maximum: int = _MAX_INTEGER) -> int:
    """Return a whole number in [minimum, maximum]; floats and flags are refused."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DensityError(
            f"{label} = {shorten(repr(value))}; it must be a whole number."
        ) from None
    if not minimum <= number <= maximum:
        raise DensityError(f"{label} = {number}; it must lie between {minimum} and {maximum}.")
    return number


def check_seed(label: str, value: object) -> int:
    """Return a seed, a whole number from 0 to 2^63 − 1."""
    return check_integer(label, value, maximum=2**63 - 1)


def check_number(
    label: str, value: object, above: float = -MAX_NUMBER, maximum: float = MAX_NUMBER
) -> float:
    """Return one number in (above, maximum]."""
    if isinstance(value, bool | np.bool_) or not _is_number(value):
        raise DensityError(f"{label} = {shorten(repr(value))}; it must be a number.")
    real = float(value)  # type: ignore[arg-type]
    if not above < real <= maximum:
        raise DensityError(
            f"{label} = {real}; it must be a finite number above {above:g}, {maximum:g} at most."
        )
    return real


def check_fraction(label: str, value: object) -> float:
    """Return a number strictly between 0 and 1."""
    share = check_number(label, value)
    if not 0.0 < share < 1.0:
        raise DensityError(f"{label} = {share}; it must lie strictly between 0 and 1.")
    return share


def check_share(label: str, value: object) -> float:
    """Return a number from 0 to 1, both included."""
    part = check_number(label, value)
    if not 0.0 <= part <= 1.0:
        raise DensityError(f"{label} = {part}; a share lies between 0 and 1.")
    return part


def check_fields(
    settings: object, check: Callable[..., object], *names: str, **limits: Any
) -> None:
    """Check fields of settings by a function of this module, such as `check_integer`."""
    for name in names:
        check(f"{type(settings).__name__}: {name}", getattr(settings, name), **limits)


def check_increasing(settings: object, low: str, high: str) -> None:
    """Check that two fields of settings are positive, and the first less than the second."""
    check_fields(settings, check_number, low, high, above=0.0)
    ends = getattr(settings, low), getattr(settings, high)
    if ends[0] >= ends[1]:
        raise DensityError(
            f"{type(settings).__name__}: {low} = {ends[0]} is not below {high} = {ends[1]}; swap "
            "or change them."
        )


def check_levels(label: str, levels: object) -> Array:
    """Return quantile levels (L,) in [0, 1], one or more."""
    p = np.atleast_1d(check_numbers(label, levels))
    if p.ndim != 1 or not p.size or not ((p >= 0.0) & (p <= 1.0)).all():
        raise DensityError(
            f"{label} = {shorten(p.tolist())}; a list of numbers in [0, 1] is needed."
        )
    return p


def check_callback(label: str, value: object) -> None:
    """Check that a value is None or callable as value(stage, done, total)."""
    if value is not None and not callable(value):
        raise DensityError(
            f"{label} = {shorten(repr(value))}; it must be a function of (stage, done, total)."
        )


def check_instance(label: str, value: object, kind: type[Kind], way_out: str) -> Kind:
    """Return a value that is an instance of ``kind``; ``way_out`` ends the message."""
    if not isinstance(value, kind):
        raise DensityError(f"{label} is {shorten(repr(value))}, not a {kind.__name__}; {way_out}.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, np.complexfloating)


def shorten(value: object) -> str:
    """Return a value in one line of sixty letters at most."""
    text = " ".join(str(value).split())
    return text if len(text) <= _MAX_LETTERS else text[: _MAX_LETTERS - 3] + "..."


def as_frame(x: Any) -> Any:
    """Return a table of polars or Arrow as a pandas data frame; all else as it is."""
    if hasattr(x, "to_pandas") and hasattr(x, "schema"):
        try:
            return x.to_pandas()
        except (ImportError, ValueError) as error:
            raise DensityError(
                f"a {type(x).__name__} cannot be read ({error}); convert it to pandas first."
            ) from None
    return x


def feature_labels(label: str, x: Any) -> tuple[str, ...] | None:
    """Return the names that a mapping, a Series or a data frame gives the features, or None.

    Numbers from 0 in their order are no names.

    Raises:
        DensityError: two names are equal, or names are not texts: their order would go unnoticed.

    Examples:
        >>> feature_labels("low", {"age": 0.0, "income": 1.0})
        ('age', 'income')
    """
    if isinstance(x, Mapping):
        names = list(x)
    elif hasattr(x, "columns") and hasattr(x, "to_numpy"):
        names = list(x.columns)
    elif hasattr(x, "index") and hasattr(x, "to_numpy"):
        names = list(x.index)
    else:
        return None
    if names == list(range(len(names))):
        return None
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise DensityError(
            f"{label}: the names are {', '.join(map(repr, names[:MAX_NAMES]))}; they must be "
            "different texts; rename the columns, or pass to_numpy()."
        )
    return tuple(names)


def match_order(
    label: str, x: Any, names: Sequence[str] | None
) -> tuple[Any, tuple[str, ...] | None]:
    """Return values of the features (..., d) in the order of names, and the names.

    Without ``names`` the values' own are taken. Arrays are returned as they are. Of a list, each
    entry is put in order, and of a square frame, such as a covariance, the rows as well.

    Raises:
        DensityError: the values are of other features, or only some of a list have names.

    Examples:
        >>> match_order("high", {"income": 9.0, "age": 5.0}, ("age", "income"))
        ([5.0, 9.0], ('age', 'income'))
    """
    x, order = as_frame(x), None if names is None else tuple(names)
    if isinstance(x, list | tuple):
        names_of_entries = [feature_labels(label, part) for part in x]
        if not any(names_of_entries):
            return x, order
        if not all(names_of_entries):
            raise DensityError(f"{label}: some entries have names and others none; name all.")
        order = order or names_of_entries[0]
        return [match_order(label, part, order)[0] for part in x], order
    own_names = feature_labels(label, x)
    if own_names is None:
        return x, order
    order = order or own_names
    if set(own_names) != set(order):
        raise DensityError(
            f"{label} has the features {', '.join(own_names)}, and the other features are "
            f"{', '.join(order)}; they must be the same."
        )
    if isinstance(x, Mapping):
        return [x[name] for name in order], order
    if hasattr(x, "columns") and set(x.index) == set(order):
        x = x.loc[list(order)]
    return x[list(order)], order
