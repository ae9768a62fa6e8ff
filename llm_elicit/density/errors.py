"""The error of the density core, and the checks of arguments that raise it.

Every check returns the value in the form that the core computes with, or raises `DensityError`
with the argument's name ``where``, what was found, and the rule. Texts, masks, missing values and
complex numbers are never read as numbers, and numbers are never read as flags.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]

LARGEST = 1e150
"""The largest number accepted: larger ones overflow when squared."""

_NUMBERS = "fiub"  # NumPy's kinds: floating, signed, unsigned, boolean
_MOST_POINTS = 10**9
_SHOWN = 60


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


def brief(text: str, most: int = 400) -> str:
    """Return the representation of an object, cut in the middle if it is long.

    Examples:
        >>> brief("Uniform(low=[0.0, 0.0, 0.0])", 20)
        'Uniform( ... , 0.0])'
    """
    return text if len(text) <= most else f"{text[: most // 2 - 2]} ... {text[3 - most // 2 :]}"


def numbers(label: str, values: object) -> Array:
    """Return values of any shape as floats."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DensityError(f"{label} has masked values; drop them first.")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and all(map(_is_number, array.flat)):
            array = array.astype(np.float64)
        if array.dtype.kind in _NUMBERS:
            return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        # From NumPy, or from PyTorch if a tensor has a gradient.
        raise DensityError(f"{label} cannot be read as numbers ({short(error)}).") from None
    raise DensityError(
        f"{label} cannot be read as numbers (it is {short(repr(values))}); convert it to floats "
        "first."
    )


def shaped(label: str, values: object, dimension: int) -> Array:
    """Return points (n, d) as floats, NaN and infinite ones included."""
    array = numbers(label, values)
    if array.ndim != 2 or array.shape[1] != dimension:
        raise DensityError(
            f"{label} has shape {array.shape}; it must be (n, {dimension}); reshape a single point "
            "to one row, a single feature to one column."
        )
    return array


def points_of(label: str, values: object, dimension: int, *, infinite: bool = False) -> Array:
    """Return points (n, d) as floats, finite ones unless ``infinite`` are allowed."""
    return (no_nan if infinite else finite)(label, shaped(label, values, dimension))


def no_nan(label: str, array: Array) -> Array:
    """Return an array after a check that no value is NaN."""
    bad = np.argwhere(np.isnan(array))
    if bad.size:
        index = ", ".join(map(str, bad[0]))
        raise DensityError(f"{label}[{index}] is nan; drop such points.")
    return array


def finite(label: str, values: object) -> Array:
    """Return values of any shape as floats, all finite and below `LARGEST` in size."""
    array = numbers(label, values)
    bad = np.argwhere(~(np.abs(array) <= LARGEST))
    if bad.size:
        index = ", ".join(map(str, bad[0]))
        raise DensityError(
            f"{label}[{index}] is {array[tuple(bad[0])]}; every value must be finite and less than "
            f"{LARGEST:g} in size; drop or repair the others."
        )
    return array


def table_of(label: str, values: object, axes: int = 2) -> Array:
    """Return points (n, d), or (n, k, d) for three axes, that are finite and not empty."""
    array = numbers(label, values)
    if array.ndim != axes or 0 in array.shape:
        shape = "(n, d)" if axes == 2 else "(n, k, d)"
        raise DensityError(
            f"{label} has shape {array.shape}; it must be {shape}, with no axis of length 0; "
            "reshape a single feature to a last axis of one."
        )
    return finite(label, array)


def column(label: str, values: object, n: int) -> Array:
    """Return one finite number for each of n rows, (n,); a single number is repeated."""
    array = numbers(label, values)
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"{label} has shape {array.shape}; one number per row is needed, shape ({n},)."
        )
    return finite(label, np.broadcast_to(array, n).copy())


def flags(label: str, values: object, n: int) -> Flags:
    """Return a flag for each of n rows, (n,), of True, False, 1 and 0; a single one is repeated."""
    array = numbers(label, values)
    if not np.isin(array, (0.0, 1.0)).all():
        raise DensityError(f"{label} holds other values than True and False; compare them first.")
    if array.shape not in ((), (n,)):
        raise DensityError(
            f"{label} has shape {array.shape}; one flag per row is needed, shape ({n},)."
        )
    return np.broadcast_to(array.astype(np.bool_), n).copy()


def integer(label: str, value: object, least: int = 0, most: int = _MOST_POINTS) -> int:
    """Return a whole number in [least, most]; a float or a flag is none."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise DensityError(f"{label} = {short(repr(value))}; it must be a whole number.") from None
    if not least <= whole <= most:
        raise DensityError(f"{label} = {whole}; it must lie between {least} and {most}.")
    return whole


def seed_of(label: str, value: object) -> int:
    """Return a seed, a whole number from 0 to 2^63 − 1."""
    return integer(label, value, most=2**63 - 1)


def number(label: str, value: object, above: float = -LARGEST, most: float = LARGEST) -> float:
    """Return one number in (above, most]."""
    if isinstance(value, bool | np.bool_) or not _is_number(value):
        raise DensityError(f"{label} = {short(repr(value))}; it must be a number.")
    real = float(value)  # type: ignore[arg-type]
    if not above < real <= most:
        raise DensityError(
            f"{label} = {real}; it must be a finite number above {above:g}, {most:g} at most."
        )
    return real


def fraction(label: str, value: object) -> float:
    """Return a number strictly between 0 and 1."""
    share = number(label, value)
    if not 0.0 < share < 1.0:
        raise DensityError(f"{label} = {share}; it must lie strictly between 0 and 1.")
    return share


def share(label: str, value: object) -> float:
    """Return a number from 0 to 1, both included."""
    part = number(label, value)
    if not 0.0 <= part <= 1.0:
        raise DensityError(f"{label} = {part}; a share lies between 0 and 1.")
    return part


def check_fields(
    settings: object, check: Callable[..., object], *names: str, **limits: Any
) -> None:
    """Check fields of settings by `integer`, `number` or another function of this module."""
    for name in names:
        check(f"{type(settings).__name__}: {name}", getattr(settings, name), **limits)


def increasing(settings: object, low: str, high: str) -> None:
    """Check that two fields of settings are positive, and the first less than the second."""
    check_fields(settings, number, low, high, above=0.0)
    ends = getattr(settings, low), getattr(settings, high)
    if ends[0] >= ends[1]:
        raise DensityError(
            f"{type(settings).__name__}: {low} = {ends[0]} is not below {high} = {ends[1]}; swap "
            "or change them."
        )


def levels_of(label: str, levels: object) -> Array:
    """Return quantile levels (L,) in [0, 1], one or more."""
    p = np.atleast_1d(numbers(label, levels))
    if p.ndim != 1 or not p.size or not ((p >= 0.0) & (p <= 1.0)).all():
        raise DensityError(f"{label} = {short(p.tolist())}; a list of numbers in [0, 1] is needed.")
    return p


def callback(label: str, value: object) -> None:
    """Check that a value is None or callable as value(stage, done, total)."""
    if value is not None and not callable(value):
        raise DensityError(
            f"{label} = {short(repr(value))}; it must be a function of (stage, done, total)."
        )


def instance(label: str, value: object, kind: type, way_out: str) -> None:
    """Check that a value is an instance of ``kind``; ``way_out`` ends the message."""
    if not isinstance(value, kind):
        raise DensityError(f"{label} is {short(repr(value))}, not a {kind.__name__}; {way_out}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, np.complexfloating)


def short(value: object) -> str:
    """Return a value in one line of sixty letters at most."""
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
