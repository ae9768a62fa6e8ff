"""The error of the density core, and the checks of arguments that raise it.

Every check returns the value in the form that the core computes with, or raises `DensityError`
with the argument's name ``where``, what was found, and the rule. Texts, masks, missing values and
complex numbers are never read as numbers, and numbers are never read as flags.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LARGEST = 1e150
"""The largest number accepted: larger ones overflow when squared."""

_NUMBERS = "fiub"  # NumPy's kinds: floating, signed, unsigned, boolean
_MOST_POINTS = 10**9
_SHOWN = 60


class DensityError(ValueError):
    """An argument of the density core cannot be used.

    The message is one line: the argument, its value, the rule it breaks, and what to do.

    Examples
    --------
    >>> from llm_elicit.density import Uniform
    >>> Uniform([0.0], [0.0])
    Traceback (most recent call last):
    ...
    llm_elicit.density.errors.DensityError: Uniform: low[0] = 0.0 is not below high[0] = 0.0; \
every lower bound must lie below its upper bound; swap or widen the bounds.
    """


def brief(text: str, most: int = 400) -> str:
    """Return the representation of an object, cut in the middle if it is long.

    Examples
    --------
    >>> brief("Uniform(low=[0.0, 0.0, 0.0])", 20)
    'Uniform( ... , 0.0])'
    """
    return text if len(text) <= most else f"{text[: most // 2 - 2]} ... {text[3 - most // 2 :]}"


def numbers(where: str, values: object) -> Array:
    """Return values of any shape as floats."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DensityError(f"{where} has masked values; drop them first.")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(map(_is_number, array.flat)):
            array = array.astype(np.float64)
        if array.dtype.kind in _NUMBERS:
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        # From NumPy, or from PyTorch if a tensor has a gradient.
        raise DensityError(f"{where} cannot be read as numbers ({_short(error)}).") from None
    raise DensityError(
        f"{where} cannot be read as numbers (it is {_short(repr(values))}); convert it to floats "
        "first."
    )


def shaped(where: str, values: object, dimension: int) -> Array:
    """Return points (n, d) as floats, NaN and infinite ones included."""
    array = numbers(where, values)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise DensityError(
            f"{where} has shape {array.shape}; it must be (n, {dimension}); reshape a single point "
            "to one row, a single feature to one column."
        )
    return array


def points_of(where: str, values: object, dimension: int, *, infinite: bool = False) -> Array:
    """Return points (n, d) as floats, finite ones unless ``infinite`` are allowed."""
    return (no_nan if infinite else finite)(where, shaped(where, values, dimension))


def no_nan(where: str, array: Array) -> Array:
    """Return an array after a check that no value is NaN."""
    bad = np.argwhere(np.isnan(array))
    if bad.size:
        index = ", ".join(map(str, bad[0]))
        raise DensityError(f"{where}[{index}] is nan; drop such points.")
    return array


def finite(where: str, values: object) -> Array:
    """Return values of any shape as floats, all finite and below `LARGEST` in size."""
    array = numbers(where, values)
    bad = np.argwhere(~(np.abs(array) <= LARGEST))
    if bad.size:
        index = ", ".join(map(str, bad[0]))
        raise DensityError(
            f"{where}[{index}] is {array[tuple(bad[0])]}; every value must be finite and less than "
            f"{LARGEST:g} in size; drop or repair the others."
        )
    return array


def table_of(where: str, values: object, axes: int = 2) -> Array:
    """Return points (n, d), or (n, k, d) for three axes, that are finite and not empty."""
    array = numbers(where, values)
    if array.ndim != axes or 0 in array.shape:
        shape = "(n, d)" if axes == 2 else "(n, k, d)"
        raise DensityError(
            f"{where} has shape {array.shape}; it must be {shape}, with no axis of length 0; "
            "reshape a single feature to a last axis of one."
        )
    return finite(where, array)


def sides_of(where: tuple[str, str], one: object, other: object) -> tuple[Array, Array]:
    """Return two sides (n, d) of n questions; tables are matched by their columns' names."""
    other = _in_order(where, one, other)
    a, b = table_of(where[0], one), table_of(where[1], other)
    if a.shape != b.shape:
        raise DensityError(
            f"{where[0]} has shape {a.shape} and {where[1]} {b.shape}; row i of each is one "
            "question, so the shapes must be equal; pass matching arrays."
        )
    return a, b


def _in_order(where: tuple[str, str], one: object, other: object) -> object:
    """Return the second of two tables with its columns in the order of the first."""
    names, others = (_columns(each) for each in (one, other))
    for name, found in zip(where, (names, others), strict=True):
        if found is not None and len(set(found)) < len(found):
            raise DensityError(f"{name} has two columns of one name among {_short(found)}.")
    if names is None or others is None or names == others:
        return other
    if set(names) != set(others):
        raise DensityError(
            f"{where[1]} has the columns {_short(others)} and {where[0]} {_short(names)}; they "
            "must be the same features."
        )
    table: Any = other
    return table[names]


def _columns(table: object) -> list[object] | None:
    found = getattr(table, "columns", None)
    return None if found is None or isinstance(table, np.ndarray) else list(found)


def column(where: str, values: object, n: int) -> Array:
    """Return one finite number for each of n rows, (n,); a single number is repeated."""
    array = numbers(where, values)
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"{where} has shape {array.shape}; one number per row is needed, shape ({n},)."
        )
    return finite(where, np.broadcast_to(array, n).copy())


def flags(where: str, values: object, n: int) -> Flags:
    """Return a flag for each of n rows, (n,), of True, False, 1 and 0; a single one is repeated."""
    array = numbers(where, values)
    if not np.isin(array, (0.0, 1.0)).all():
        raise DensityError(f"{where} holds other values than True and False; compare them first.")
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"{where} has shape {array.shape}; one flag per row is needed, shape ({n},)."
        )
    return np.broadcast_to(array.astype(np.bool_), n).copy()


def integer(where: str, value: object, least: int = 0, most: int = _MOST_POINTS) -> int:
    """Return a whole number in [least, most]; a float or a flag is none."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DensityError(f"{where} = {_short(repr(value))}; it must be a whole number.") from None
    if not least <= found <= most:
        raise DensityError(f"{where} = {found}; it must lie between {least} and {most}.")
    return found


def seed_of(where: str, value: object) -> int:
    """Return a seed, a whole number from 0 to 2^63 − 1."""
    return integer(where, value, most=2**63 - 1)


def number(where: str, value: object, above: float = -LARGEST, most: float = LARGEST) -> float:
    """Return one number in (above, most]."""
    if isinstance(value, bool | np.bool_) or not _is_number(value):
        raise DensityError(f"{where} = {_short(repr(value))}; it must be a number.")
    found = float(value)  # type: ignore[arg-type]
    if not above < found <= most:
        raise DensityError(
            f"{where} = {found}; it must be a finite number above {above:g}, {most:g} at most."
        )
    return found


def fraction(where: str, value: object) -> float:
    """Return a number strictly between 0 and 1."""
    found = number(where, value)
    if not 0.0 < found < 1.0:
        raise DensityError(f"{where} = {found}; it must lie strictly between 0 and 1.")
    return found


def levels_of(where: str, levels: object) -> Array:
    """Return quantile levels (L,) in [0, 1], one or more."""
    found = np.atleast_1d(numbers(where, levels))
    if found.ndim != 1 or not found.size or not ((found >= 0.0) & (found <= 1.0)).all():
        raise DensityError(
            f"{where} = {_short(found.tolist())}; a list of numbers in [0, 1] is needed."
        )
    return found


def callback(where: str, value: object) -> None:
    """Check that a value is None or callable as value(stage, done, total)."""
    if value is not None and not callable(value):
        raise DensityError(
            f"{where} = {_short(repr(value))}; it must be a function of (stage, done, total)."
        )


def instance(where: str, value: object, kind: type, way_out: str) -> None:
    """Check that a value is an instance of ``kind``; ``way_out`` ends the message."""
    if not isinstance(value, kind):
        raise DensityError(f"{where} is {_short(repr(value))}, not a {kind.__name__}; {way_out}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, np.complexfloating)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
