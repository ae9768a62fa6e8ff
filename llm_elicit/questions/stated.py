"""Reading a stated probability or ratio: one number in one of a few formats.

A reply is read if its first line is such a number and no other line is a different one. All other
replies are unparsable.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from llm_elicit.questions.parse import Verdict, parse
from llm_elicit.questions.template import Answer

_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_CLAIM = (
    r"(?:(?:the )?probability(?: that {first} is (?:the )?more plausible(?: one)?)?|"
    r"P\(\W?{first}\W?\)|{first} is (?:the )?more plausible)"
)
_TIMES = r"\s?(?:x|×|times(?: as plausible)?)?"


@dataclass(frozen=True)
class Reading:
    """A reply to a question about a pair.

    Attributes:
        verdict: the chosen option, "A" for the first shown whatever its letter, or the reason why
            there is none.
        first: P(first shown) from log-probabilities or as stated; r / (1 + r) for a ratio r. None
            for a choice alone, or without one.
    """

    verdict: Verdict
    first: float | None = None

    @property
    def preference(self) -> float | None:
        """P(first shown), 0 or 1 for a choice; None without a choice."""
        if self.first is not None:
            return self.first
        return {"A": 1.0, "B": 0.0, "tie": 0.5}.get(self.verdict)


def read_answer(
    reply: str,
    answer: Answer,
    options: tuple[str, str] = ("A", "B"),
    finish: str = "stop",
    soft: float | None = None,
) -> Reading:
    """Read a reply to a question about a pair.

    Args:
        reply: the model's text.
        answer: the answer format: "letter", "probability" or "ratio".
        options: the letters of the first and the second option.
        finish: why the model stopped: "stop", "length" or "refusal".
        soft: P(first shown) from log-probabilities, for a letter; NaN counts as None.

    Example:
        >>> read_answer("B, 80 %", "probability")
        Reading(verdict='B', first=0.2)
        >>> read_answer("3 times", "ratio")
        Reading(verdict='A', first=0.75)
        >>> read_answer("about 70", "probability")
        Reading(verdict='unparsable', first=None)
    """
    if answer == "letter":
        verdict = parse(reply, options, finish)
        known = soft is not None and math.isfinite(soft) and verdict in ("A", "B")
        return Reading(verdict, soft if known else None)
    if finish == "refusal":
        return Reading("refusal")
    first = read_probability(reply, options) if answer == "probability" else _share(reply)
    if first is None:
        said = parse(reply, options, finish)
        return Reading(said if said in ("refusal", "truncated") else "unparsable")
    return Reading("tie" if first == 0.5 else "A" if first > 0.5 else "B", first)


def read_probability(reply: str, options: tuple[str, str] = ("A", "B")) -> float | None:
    """Return the stated probability that the first option is more plausible; None if unreadable.

    A number is in per cent, unless it has a decimal point, no % sign and is at most 1. A number
    next to an option's letter is the probability of that option.

    Example:
        >>> [read_probability(reply) for reply in ("73", "73 %", "0.73", "B (27%)", "A: 73")]
        [0.73, 0.73, 0.73, 0.73, 0.73]
        >>> [read_probability(reply) for reply in ("101 %", "70-80", "likely", "-3", "70 or 30")]
        [None, None, None, None, None]
    """
    stated = _in_json(reply, "percent")
    if stated is not None:
        return stated / 100.0 if 0.0 <= stated <= 100.0 else None
    letter = rf"([{options[0]}{options[1]}])"
    claim = _CLAIM.format(first=re.escape(options[0]))
    number = rf"{_NUMBER}\s?(%|per ?cent)?"
    forms = (
        re.compile(rf"(?:(?i:{claim})\s?(?::|=|is)?\s*)?()(?i:{number})\.?"),
        re.compile(rf"[(\"']?{letter}[)\"']?\s?(?:[,:;(=\u2013\u2014-])?\s*(?i:{number})\)?\.?"),
        re.compile(rf"()(?i:{number})\s+(?i:for|that|in favou?r of)?\s*{letter}\.?"),
    )

    def read(line: str) -> float | None:
        for form in forms:
            match = form.fullmatch(line)
            if match is None:
                continue
            of, value, sign, *after = (group or "" for group in match.groups())
            # 72.5 can only be per cent; 0.725 is a probability.
            decimal = "." in value and not sign and float(value) <= 1.0
            share = float(value) if decimal else float(value) / 100.0
            if share > 1.0:
                return None
            return round(1.0 - share, 12) if options[1] in (of, *after) else share
        return None

    return _agreed(reply, read)


def read_ratio(reply: str) -> float | None:
    """Return the stated ratio, a positive number; None if unreadable.

    Example:
        >>> [read_ratio(reply) for reply in ("3", "3x", "3 times", "1/4", "0.25")]
        [3.0, 3.0, 3.0, 0.25, 0.25]
        >>> [read_ratio(reply) for reply in ("0", "1/0", "-2", "2-3", "about 3", "three", "")]
        [None, None, None, None, None, None, None]
    """
    stated = _in_json(reply, "ratio")
    if stated is not None:
        return stated if stated > 0.0 else None
    fraction = re.compile(rf"{_NUMBER}\s?/\s?{_NUMBER}\.?")
    plain = re.compile(rf"{_NUMBER}(?i:{_TIMES})\.?")

    def read(line: str) -> float | None:
        match = plain.fullmatch(line) or fraction.fullmatch(line)
        if match is None:
            return None
        over, under = float(match[1]), float(match[2]) if match.re is fraction else 1.0
        ratio = over / under if under > 0.0 else 0.0
        return ratio if 0.0 < ratio < math.inf else None

    return _agreed(reply, read)


def _share(reply: str) -> float | None:
    """Return r / (1 + r) of a stated ratio r."""
    ratio = read_ratio(reply)
    return None if ratio is None else ratio / (1.0 + ratio)


def _in_json(reply: str, name: str) -> float | None:
    """Return a number from a reply that is a JSON object, NaN if it is not finite or missing.

    None for a reply that is not an object.
    """
    if not reply.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(reply)[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.nan
    return float(value) if isinstance(value, int | float) and abs(value) < math.inf else math.nan


def _agreed(reply: str, read: Callable[[str], float | None]) -> float | None:
    """Return the number of the first line, if no other line has a different one."""
    text = re.sub(r"[*_`#>$]|\\boxed", "", reply.replace("\u00a0", " "))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    found = [value for line in lines if (value := read(line)) is not None]
    return found[0] if len(set(found)) == 1 and read(lines[0]) is not None else None
