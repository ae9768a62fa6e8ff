"""Reading a reply as a verdict: a choice, a tie, a refusal, or the reason why there is none.

A choice is read only if the reply states one. A letter elsewhere in the text is no choice, and a
reply that states both letters has none.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Literal

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
    """Read a reply.

    Args:
        reply: the model's text.
        options: the letters of the first and the second option, as the template names them.
        finish: why the model stopped: "stop", "length" or "refusal".

    Returns:
        "A" when the first option is chosen and "B" when the second is, whatever their letters;
        "tie", "refusal", "truncated" (the token limit cut the reply short of a choice), or
        "unparsable".

    Example:
        >>> parse("**B**"), parse("The answer is A because ..."), parse("I can't say.")
        ('B', 'A', 'refusal')
        >>> parse('{"choice": "B"}')
        'B'
    """
    if finish == "refusal":
        return "refusal"
    structured = _structured(reply, options)
    if structured is not None:
        return structured
    text = _plain(reply)
    verdict = _verdict(text, options)
    if verdict == "unparsable" and finish == "length":
        return "truncated"
    return verdict


def _structured(reply: str, options: tuple[str, str]) -> Verdict | None:
    """Return the choice of a reply that is a JSON object; None for any other reply."""
    if not reply.lstrip().startswith("{"):
        return None
    try:
        choice = json.loads(reply)["choice"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return _which(choice, options) if choice in options else "unparsable"


def _plain(reply: str) -> str:
    """Return the reply without Markdown, typographic quotes and surrounding blanks."""
    text = reply.replace("\u2019", "'").replace("\u2018", "'")
    return re.sub(r"[*_`#>$]|\\boxed", "", text).strip()


@lru_cache(maxsize=256)  # most replies are one of a few
def _verdict(text: str, options: tuple[str, str]) -> Verdict:
    leading = _leading(text, options)
    if leading is None and _TIE_WORD.fullmatch(text.rstrip(" .!")):
        return "tie"
    if leading is None and _REFUSAL.search(text):
        return "refusal"
    chosen = _stated(text, options)
    if leading is not None:
        chosen.add(leading)
    alone = _alone(text, options)
    # Both letters alone repeat the options; the other one alone contradicts the choice.
    if not chosen or len(alone) == 1:
        chosen |= alone
    if len(chosen) == 1:
        return chosen.pop()
    return "tie" if not chosen and _NEITHER.search(text) else "unparsable"


def _leading(text: str, options: tuple[str, str]) -> Verdict | None:
    """Return the choice of a reply that starts with a separate letter: "B", "(b)", "B: ..."."""
    first, second = options
    bare = re.fullmatch(rf"[\W_]*([{first}{second}])[\W_]*", text, re.IGNORECASE)
    if bare is not None:
        return _which(bare[1], options)
    opened = re.match(
        rf"[(\[{{\"']*([{first}{second}])(?:[)\]}}\"']+[.:,;]?|[.:;,]|\s*[-\u2013\u2014]|\s*\n)(?=\s|$)",
        text,
    )
    if opened is None:
        return None
    other = second if opened[1] == first else first
    rest = text[opened.end() :]
    listed = _opens_option(rest, other) or _which(other, options) in _alone(rest, options)
    return None if listed else _which(opened[1], options)


def _opens_option(rest: str, other: str) -> bool:
    """Return whether `rest` lists the other letter, so that the reply lists both options."""
    return re.search(rf"(?:^|\n|[.;,]\s|\b(?:and|or)\s)\s*[(\[]?{other}[)\].:,]", rest) is not None


_SURE = (
    r"(?:(?:definitely|certainly|clearly|surely|obviously|probably|likely|i think|i believe|it is|"
    r"it's|that is|that's)\b[\s,:]*)*"
)
"""Words that may precede the letter of a choice."""

_NOUN = r"(?:(?:option|description|candidate|choice|answer)\s+)?"


def _alone(text: str, options: tuple[str, str]) -> set[Verdict]:
    """Return the options that are whole clauses or lines: "Option B", "Definitely B."."""
    first, second = options
    alone = rf"(?i:[\W_]*{_SURE}(?:the\s+)?{_NOUN})[(\[\"']*([{first}{second}])[\W_]*"
    clauses = re.split(r"[.!?;,\n]+|\b(?:and|or|but)\b", text)
    found = (re.fullmatch(alone, clause.strip()) for clause in clauses)
    return {_which(match[1], options) for match in found if match is not None}


def _stated(text: str, options: tuple[str, str]) -> set[Verdict]:
    """Return the options that sentences of the reply state as the choice."""
    first, second = options
    letter = rf"[(\[\"']*([{first}{second}])(?![\w'])[)\]\"']*"
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
    found: set[Verdict] = set()
    for claim in claims:
        for match in re.finditer(claim, _capital(text)):
            rest = text[match.end() :]
            if _negated(text, match.start()) or re.match(wrong, rest):
                continue
            also = re.match(listed, rest)
            found |= {_which(match[1], options), _which((also or match)[1], options)}
    return found


def _capital(text: str) -> str:
    """Return the text with words such as "Answer" in lower case; letters keep their case."""
    return re.sub(
        r"\b(Answer|ANSWER|Choice|CHOICE|Verdict|VERDICT|Pick|PICK|Preference|PREFERENCE)\b",
        lambda match: match[0].lower(),
        text,
    )


def _negated(text: str, start: int) -> bool:
    """Return whether the clause before a claim negates it: "I don't think that A is more ..."."""
    clause = re.split(r"[.;!?\n,]", text[:start])[-1]
    return re.search(r"\b(?:not|never|if|whether)\b|n't\b", clause, re.IGNORECASE) is not None


def _which(letter: str, options: tuple[str, str]) -> Verdict:
    return "A" if letter.upper() == options[0] else "B"
