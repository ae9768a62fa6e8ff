"""Parse replies: a choice, a tie, a refusal, a number, or the reason why there is none.

A choice is read only if the reply states one. A letter elsewhere in the text is not a choice, and a
reply that states both letters has none. A probability or ratio is read if the first line is one
number in one of a few formats, and no other line is another number. All other replies are
unparsable.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from llm_elicit.questions.template import Answer

Verdict = Literal["A", "B", "tie", "refusal", "truncated", "unparsable"]

_NEITHER = re.compile(
    r"\b(?:neither|both (?:are|descriptions|options|candidates|seem|look)\b[^.]*\b(?:equal|same|"
    r"similar)\w*|(?:are |is |they are |they're |it is |it's )?(?:equally|just as) "
    r"(?:plausible|likely|probable)|a tie\b|no (?:clear )?(?:difference|preference))",
    re.IGNORECASE,
)
_TIE_WORD = re.compile(
    r"(?:a |it's a |it is a )?(?:tie|both|equal|neither|either|same)", re.IGNORECASE
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable|not able|not comfortable)|i (?:can(?:'t|not)|won't|will not|"
    r"must decline|do not feel|don't feel)|as an ai\b|(?:decline|refuse) to (?:answer|choose|say)|"
    r"(?:it is|it's) (?:not possible|impossible) (?:for me )?to)",
    re.IGNORECASE,
)


def parse(reply: str, options: tuple[str, str] = ("A", "B"), finish: str = "stop") -> Verdict:
    """Return the verdict of a reply.

    Args:
        reply: the model's text.
        options: the letters of the first and the second option, as the template names them.
        finish: why the model stopped: "stop", "length" or "refusal".

    Returns:
        "A" when the first option is chosen and "B" when the second is, whatever their letters;
        "tie", "refusal", "truncated" (the token limit cut the reply short of a choice), or
        "unparsable".

    Examples:
        >>> parse("**B**"), parse("The answer is A because ..."), parse("I can't say.")
        ('B', 'A', 'refusal')
        >>> parse('{"choice": "B"}')
        'B'
    """
    if finish == "refusal":
        return "refusal"
    structured = _json_choice(reply, options)
    if structured is not None:
        return structured
    text = _plain(reply)
    verdict = _verdict(text, options)
    if verdict == "unparsable" and finish == "length":
        return "truncated"
    return verdict


def _json_choice(reply: str, options: tuple[str, str]) -> Verdict | None:
    """Return the choice of a reply that is a JSON object; None for any other reply."""
    if not reply.lstrip().startswith("{"):
        return None
    try:
        choice = json.loads(reply)["choice"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return _verdict_of(choice, options) if choice in options else "unparsable"


def _plain(reply: str) -> str:
    """Return the reply without Markdown, typographic quotes and surrounding blanks."""
    text = reply.replace("\u2019", "'").replace("\u2018", "'")
    return re.sub(r"[*_`#>$]|\\boxed", "", text).strip()


@lru_cache(maxsize=256)  # most replies are one of a few
def _verdict(text: str, options: tuple[str, str]) -> Verdict:
    leading = _leading_choice(text, options)
    if leading is None and _TIE_WORD.fullmatch(text.rstrip(" .!")):
        return "tie"
    if leading is None and _REFUSAL.search(text):
        return "refusal"
    chosen = _stated_choices(text, options)
    if leading is not None:
        chosen.add(leading)
    standalone = _standalone_choices(text, options)
    # A reply with both letters on their own repeats the options; one with the other letter on its
    # own contradicts the choice.
    if not chosen or len(standalone) == 1:
        chosen |= standalone
    if len(chosen) == 1:
        return chosen.pop()
    return "tie" if not chosen and _NEITHER.search(text) else "unparsable"


def _leading_choice(text: str, options: tuple[str, str]) -> Verdict | None:
    """Return the choice of a reply that starts with a separate letter: "B", "(b)", "B: ..."."""
    first, second = options
    bare = re.fullmatch(rf"[\W_]*([{first}{second}])[\W_]*", text, re.IGNORECASE)
    if bare is not None:
        return _verdict_of(bare[1], options)
    opened = re.match(
        rf"[(\[{{\"']*([{first}{second}])(?:[)\]}}\"']+[.:,;]?|[.:;,]|\s*[-\u2013\u2014]|\s*\n)(?=\s|$)",
        text,
    )
    if opened is None:
        return None
    letter, remainder = second if opened[1] == first else first, text[opened.end() :]
    # If the other letter opens an option or stands alone, the reply lists both options.
    opens = rf"(?:^|\n|[.;,]\s|\b(?:and|or)\s)\s*[(\[]?{letter}[)\].:,]"
    listed = re.search(opens, remainder) or _verdict_of(letter, options) in _standalone_choices(
        remainder, options
    )
    return None if listed else _verdict_of(opened[1], options)


_SURE = (
    r"(?:(?:definitely|certainly|clearly|surely|obviously|probably|likely|i think|i believe|it is|"
    r"it's|that is|that's)\b[\s,:]*)*"
)
"""Words that may precede the letter of a choice."""

_NOUN = r"(?:(?:option|description|candidate|choice|answer)\s+)?"


def _standalone_choices(text: str, options: tuple[str, str]) -> set[Verdict]:
    """Return the options that are whole clauses or lines: "Option B", "Definitely B."."""
    first, second = options
    alone = rf"(?i:[\W_]*{_SURE}(?:the\s+)?{_NOUN})[(\[\"']*([{first}{second}])[\W_]*"
    clauses = re.split(r"(?:[!?;\n]|(?<!\d)[.,]|[.,](?!\d))+|\b(?:and|or|but)\b", text)
    matches = (re.fullmatch(alone, clause.strip()) for clause in clauses)
    return {_verdict_of(match[1], options) for match in matches if match is not None}


def _stated_choices(text: str, options: tuple[str, str]) -> set[Verdict]:
    """Return the options that sentences of the reply state as the choice."""
    first, second = options
    # If 1 is a label, the 1 of 1.5 is not it.
    letter = rf"[(\[\"']*([{first}{second}])(?![\w']|[.,]\d)[)\]\"']*"
    claims = (
        r"\b(?:answer|choice|verdict|pick|preference)\s*(?:is|would be|:|=)+\s*"
        rf"(?i:{_SURE}{_NOUN}){letter}",
        r"\bI(?:'d| would)?\s+(?:choose|pick|select|say|go with|prefer|judge)\s+"
        rf"(?i:{_NOUN}){letter}",
        rf"(?i:{_NOUN})(?<![\w']){letter}\s+(?:is|seems|looks|appears|sounds)\s+"
        r"(?:to be\s+)?(?:(?:much|far|slightly|somewhat|clearly|the)\s+)*"
        r"(?:right|correct|more|most|better|likelier)\b(?!-|\s+(?:un|im)\w+)",
        rf"(?i:more|most|likelier)\s+(?i:plausible|likely|probable|realistic|typical)"
        rf"(?:\s+\w+){{0,3}}?\s*(?:\bis\b|\bwould be\b|:)+\s*(?i:{_NOUN}){letter}",
    )
    wrong = r"\s+(?:is|seems|looks|appears|sounds)\s+(?:not|wrong|incorrect|less|least|un|im)"
    listed = rf"\s*(?:,|/|\bor\b|\band\b)\s*(?i:{_NOUN}){letter}"
    # Lower-case words such as "Answer", but keep the case of letters.
    nouns = "Answer|ANSWER|Choice|CHOICE|Verdict|VERDICT|Pick|PICK|Preference|PREFERENCE"
    lowered = re.sub(rf"\b(?:{nouns})\b", lambda match: match[0].lower(), text)
    verdicts: set[Verdict] = set()
    for claim in claims:
        for match in re.finditer(claim, lowered):
            clause = re.split(r"[.;!?\n,]", text[: match.start()])[-1]
            # As in "I don't think that A is more plausible".
            negated = re.search(r"\b(?:not|never|if|whether)\b|n't\b", clause, re.IGNORECASE)
            remainder = text[match.end() :]
            if negated or re.match(wrong, remainder):
                continue
            also = re.match(listed, remainder)
            verdicts |= {_verdict_of(match[1], options), _verdict_of((also or match)[1], options)}
    return verdicts


def _verdict_of(letter: str, options: tuple[str, str]) -> Verdict:
    return "A" if letter.upper() == options[0] else "B"


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
    """Return the reading of a reply to a question about a pair.

    Args:
        reply: the model's text.
        answer: the answer format: "letter", "probability" or "ratio".
        options: the letters of the first and the second option.
        finish: why the model stopped: "stop", "length" or "refusal".
        soft: P(first shown) from log-probabilities, for a letter; NaN counts as None.

    Examples:
        >>> read_answer("B, 80 %", "probability")
        Reading(verdict='B', first=0.2)
        >>> read_answer("3 times", "ratio")
        Reading(verdict='A', first=0.75)
        >>> read_answer("about 70", "probability")
        Reading(verdict='unparsable', first=None)
    """
    if answer == "letter":
        verdict = parse(reply, options, finish)
        is_soft = soft is not None and math.isfinite(soft) and verdict in ("A", "B")
        return Reading(verdict, soft if is_soft else None)
    if finish == "refusal":
        return Reading("refusal")
    if answer == "probability":
        first = read_probability(reply, options)
    else:
        ratio = read_ratio(reply)
        first = None if ratio is None else ratio / (1.0 + ratio)
    if first is None:
        verdict = parse(reply, options, finish)
        return Reading(verdict if verdict in ("refusal", "truncated") else "unparsable")
    return Reading("tie" if first == 0.5 else "A" if first > 0.5 else "B", first)


def read_probability(reply: str, options: tuple[str, str] = ("A", "B")) -> float | None:
    """Return the stated probability that the first option is more plausible; None if unreadable.

    A number is in per cent, unless it has a decimal point, no % sign and is at most 1. A number
    next to an option's letter is the probability of that option.

    Examples:
        >>> [read_probability(reply) for reply in ("73", "73 %", "0.73", "B (27%)", "A: 73")]
        [0.73, 0.73, 0.73, 0.73, 0.73]
        >>> [read_probability(reply) for reply in ("101 %", "70-80", "likely", "-3", "70 or 30")]
        [None, None, None, None, None]
    """
    json_percent = _number_in_json(reply, "percent")
    if json_percent is not None:
        return json_percent / 100.0 if 0.0 <= json_percent <= 100.0 else None
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
            letter_before, value, sign, *letters_after = (group or "" for group in match.groups())
            # 72.5 can only be per cent; 0.725 is a probability.
            decimal = "." in value and not sign and float(value) <= 1.0
            share = float(value) if decimal else float(value) / 100.0
            if share > 1.0:
                return None
            return (
                round(1.0 - share, 12) if options[1] in (letter_before, *letters_after) else share
            )
        return None

    return _read_first_line(reply, read)


def read_ratio(reply: str) -> float | None:
    """Return the stated ratio, a positive number; None if unreadable.

    Examples:
        >>> [read_ratio(reply) for reply in ("3", "3x", "3 times", "1/4", "0.25")]
        [3.0, 3.0, 3.0, 0.25, 0.25]
        >>> [read_ratio(reply) for reply in ("0", "1/0", "-2", "2-3", "about 3", "three", "")]
        [None, None, None, None, None, None, None]
    """
    json_ratio = _number_in_json(reply, "ratio")
    if json_ratio is not None:
        return json_ratio if json_ratio > 0.0 else None
    fraction = re.compile(rf"{_NUMBER}\s?/\s?{_NUMBER}\.?")
    plain = re.compile(rf"{_NUMBER}(?i:{_TIMES})\.?")

    def read(line: str) -> float | None:
        match = plain.fullmatch(line) or fraction.fullmatch(line)
        if match is None:
            return None
        over, under = float(match[1]), float(match[2]) if match.re is fraction else 1.0
        ratio = over / under if under > 0.0 else 0.0
        return ratio if 0.0 < ratio < math.inf else None

    return _read_first_line(reply, read)


def _number_in_json(reply: str, name: str) -> float | None:
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


def _read_first_line(reply: str, read: Callable[[str], float | None]) -> float | None:
    """Return the number of the first line, if no other line has a different one."""
    text = re.sub(r"[*_`#>$]|\\boxed", "", reply.replace("\u00a0", " "))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    values = [value for line in lines if (value := read(line)) is not None]
    return values[0] if len(set(values)) == 1 and read(lines[0]) is not None else None
