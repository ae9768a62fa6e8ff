"""P(first option) from the log-probabilities of an answer's first token."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_MASS = 0.05
"""Letters that hold less of the first token's probability than this do not make a judgment soft."""

LARGEST_DOUBT = 0.01
"""How uncertain P(first) may be for a letter that is not among the listed tokens."""


def soft_choice(
    listed: Sequence[tuple[str, float]], options: tuple[str, str]
) -> tuple[float | None, float]:
    """P(first option), and the mass of both letters together.

    The masses of all tokens that read as a letter ("A", " A", "(A", "**A") are summed. A letter
    that is not listed can have at most the mass of the least listed token; where that bound is
    too loose, the letters have too little mass together, or a log-probability is no number (NaN),
    there is no soft choice.

    Args:
        listed: the first token's alternatives as (token, natural log-probability).
        options: the letters of the first and the second option.

    Example:
        >>> import math
        >>> soft_choice([("A", math.log(0.6)), (" B", math.log(0.2)), ("To", -3.0)], ("A", "B"))
        (0.75, 0.8)
    """
    mass = dict.fromkeys(options, 0.0)
    seen: set[str] = set()
    least = 1.0
    known = [(token, logprob) for token, logprob in listed if not math.isnan(logprob)]
    for token, logprob in known:
        probability = math.exp(min(logprob, 0.0))
        least = min(least, probability)
        letter = token.strip(" \t\n\u2581\u0120*_([\"'.)]:")
        if letter in mass and token not in seen:
            seen.add(token)
            mass[letter] += probability
    first, second = mass[options[0]], mass[options[1]]
    total = min(first + second, 1.0)
    if total < LEAST_MASS or len(known) < len(listed):
        return None, total
    if first == 0.0 or second == 0.0:
        if least / (first + second + least) > LARGEST_DOUBT:
            return None, total
        first, second = first or least, second or least
    return round(first / (first + second), 12), round(total, 12)
