"""Powers that are known from somewhere, as marks on the slider and on the columns of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from llm_elicit.audit.powers import DataPower, PinnedPower, Powers, SourcePower
from llm_elicit.report.words import number, times_saved


@dataclass(frozen=True)
class Mark:
    """One power on the slider.

    Attributes:
        letter: what it is called.
        at, low, high: where the power and its interval are, from 0 to 1 along the slider; those
            beyond its ends are at its ends.
        nearest: place of the nearest of the slider's powers; None where it is beyond its ends.
        text: where the power comes from, and what it is.
    """

    letter: str
    at: float
    low: float
    high: float
    nearest: int | None
    text: str


def marks_of(powers: Powers | None, factors: Sequence[float]) -> tuple[Mark, ...]:
    """Return the marks on a slider of factors of the saved power: what pins it, and the data."""
    if powers is None or len(factors) < 2:
        return ()
    found: list[tuple[str, SourcePower]] = []
    if powers.pinned is not None:
        alone = powers.pinned.sources
        if len(alone) > 1:
            found.append(("all sources together", _whole(powers.pinned)))
        found += [(f"{one.source} alone" if len(alone) > 1 else one.source, one) for one in alone]
    if powers.data is not None and powers.data.value > 0.0:
        found.append((_data(powers.data), powers.data))
    return tuple(
        _mark(letter, name, power, powers.saved, factors)
        for letter, (name, power) in zip(ascii_uppercase, found, strict=False)
    )


def _data(power: DataPower) -> str:
    beyond = "" if power.bounded else ", the sharpest that was tried"
    return f"where the data are most likely{beyond}, which is no property of the judge"


def _whole(pinned: PinnedPower) -> SourcePower:
    return SourcePower(source=pinned.source, value=pinned.value, low=pinned.low, high=pinned.high)


def _mark(
    letter: str, name: str, power: SourcePower, saved: float, factors: Sequence[float]
) -> Mark:
    value, low, high = (each / saved for each in (power.value, power.low, power.high))
    at = _along(value, factors)
    step = round(at * (len(factors) - 1))
    inside = factors[0] / 2**0.25 <= value <= factors[-1] * 2**0.25
    return Mark(
        letter=letter,
        at=at,
        low=_along(low, factors),
        high=_along(high, factors),
        nearest=step if inside else None,
        text=f"{name}: {times_saved(round(value, 2))} ({number(low, 2)} to {number(high, 2)})",
    )


def _along(factor: float, factors: Sequence[float]) -> float:
    """Return where a factor is from 0 to 1; factors are equally spaced in the logarithm."""
    first, last = math.log(factors[0]), math.log(factors[-1])
    return min(max((math.log(max(factor, 1e-9)) - first) / (last - first), 0.0), 1.0)
