"""Powers that are known from somewhere, as marks on the slider and on the columns of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from llm_elicit.audit.belief_power import DataPower, PinnedPower, Powers, SourcePower, WidthResponse
from llm_elicit.audit.inference import p_words
from llm_elicit.report.formatting import listed, number, times_saved

_LEVEL = 0.05
"""Sources of a power whose common power is rejected at this level are said to disagree."""


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


def power_sentence(powers: Powers) -> str:
    """Return where the saved power comes from, and whether what says it agrees."""
    pinned = powers.pinned
    if pinned is None:
        return f"Nothing says how sharp the belief is. {_saved(powers)}"
    source = sources_text(pinned.source)
    ends = (number(end / powers.saved, 2) for end in (pinned.low, pinned.high))
    interval = f"90 % interval {' to '.join(ends)} times the saved power"
    if not pinned.used:
        return f"Answers about {source} leave open how sharp the belief is ({interval}). " + (
            _saved(powers)
        )
    if powers.scale is None:
        known = (
            f"The saved power is the one that answers about {source} would give ({interval}), but "
            "they are not those of the holder of a density, so the scale is not known."
        )
    else:
        known = f"The saved power is known from {source} ({interval})."
    if pinned.agreement is None:
        return known
    p = p_words(pinned.agreement, False)
    if disagree(powers):
        return f"{known} The sources do not agree ({p}), so read each by itself."
    return f"{known} The sources agree ({p})."


def nearer_sentence(powers: Powers) -> str:
    """Return whether a belief is nearer to the data than λ is, whatever its power."""
    if powers.sampling_data is None:
        return ""
    first, last = (powers.rows[end].factor for end in (0, -1))
    looked = f"from {first:g} to {last:g} times the saved one"
    if powers.nearer is None:
        return f"Whether the belief is nearer to the data than λ depends on the power, {looked}."
    every = "every power" if powers.nearer else "no power"
    return f"The belief is nearer to the data than λ at {every} {looked}."


def coherence_of(powers: Powers | None) -> WidthResponse | None:
    """Return the reaction to the width of ranges; None where none were asked about."""
    return None if powers is None or powers.pinned is None else powers.pinned.coherence


def coherence_sentence(powers: Powers | None) -> str:
    """Return what pairs of ranges say of a judge's coherence; empty where none were asked."""
    found = coherence_of(powers)
    if found is None:
        return ""
    numbers = (
        f"coefficient of log width {number(found.width.value, 2)}, 95 % interval "
        f"{number(found.width.low, 2)} to {number(found.width.high, 2)}, where "
        f"{number(found.expected, 2)} is expected of the holder of a density; "
        f"{p_words(found.p_value, False)}"
    )
    unseen = found.width.low <= 0.0 <= found.width.high
    if found.coherent and unseen:
        return (
            f"Asked about ranges, it shows no reaction to their width ({numbers}), as only a very "
            "sharp density would."
        )
    if found.coherent:
        return f"Asked about ranges, it reacts to their width as a density would ({numbers})."
    if unseen:
        return f"Asked about ranges, it does not react to their width ({numbers})."
    return f"Asked about ranges, it reacts to their width unlike a density ({numbers})."


def disagree(powers: Powers) -> bool:
    """Return whether the sources of a power have no power in common."""
    pinned = powers.pinned
    return pinned is not None and pinned.agreement is not None and pinned.agreement < _LEVEL


def sources_text(source: str) -> str:
    return listed(source.split(" + "))


def _saved(powers: Powers) -> str:
    """Return what the saved power is where nothing says it."""
    return {
        "convention": (
            "The figures start at a power by convention, at which the log-density has a standard "
            "deviation of one nat over λ."
        ),
        "assumed noise level": (
            "The figures start at the power that follows from the noise level assumed for choices."
        ),
    }.get(powers.source, f"The figures start at a power by {sources_text(powers.source)}.")
