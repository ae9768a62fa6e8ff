"""Whether a judge's choices have log-odds: counted answer by answer, and reported in one line.

The first question of a judge is a probe, since it is asked alone: its answer shows whether the
server sends log-probabilities, how many alternatives of a token it lists, and whether they are
those of the answer. Why an answer has none is stored with it, so that a resumed run, a batch, the
cache and a report all say the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import sqlalchemy as sa

from llm_elicit.backends import Reply, provider_of
from llm_elicit.backends.base import Unscored
from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator.journal.questions import choices_of
from llm_elicit.orchestrator.journal.schema import Answer

_REASONS: dict[Unscored, str] = {
    "none sent": "the server ignores logprobs",
    "refused": "the server refuses logprobs",
    "another token": "the log-probabilities belong to another token than the answer's letter",
    "letter not listed": "the answer's letters are not among the alternatives of its token",
    "not offered": "the backend offers no log-probabilities",
}

REMEDY = (
    "the template v1/probability, or more pairs, recover part of the information of log-odds; "
    "`llm-elicit pilot` compares templates by information and cost"
)

NO_LONGER = "answers no longer have log-probabilities; they are used as choices"


def unscored_because(
    judge: Judge, reply: Reply, body: Mapping[str, Any], *, offered: bool
) -> Unscored:
    """Return why a choice has no log-odds; empty if it has.

    Args:
        judge: who made it.
        reply: the reply.
        body: the request body that was sent.
        offered: whether the backend is capable of log-probabilities.
    """
    if reply.first is not None:
        return ""
    if judge.choices_only or not offered:
        return "not offered"
    if reply.unscored:
        return reply.unscored
    if reply.letter_mass is not None:
        return "letter not listed"
    return "refused" if judge.backend == "openai" and not body.get("logprobs") else "none sent"


@dataclass
class LogOdds:
    """Whether a judge's choices have log-odds.

    Attributes:
        choices_only: why a language model cannot give any, known without asking; else empty.
        hint: the setting that may bring them back; empty if there is none.
        counts: choices by why they have no log-odds; those with log-odds under "".
        alternatives: how many alternatives of a token were asked for; None if unknown.

    Examples:
        >>> log_odds = LogOdds()
        >>> log_odds.add("", '{"top_logprobs": 5}')
        >>> log_odds.line
        'log-odds: yes, 5 alternatives'
        >>> log_odds.add("none sent")
        >>> log_odds.line.split("; ")[1]
        'none for the others, because the server ignores logprobs'
    """

    choices_only: str = ""
    hint: str = ""
    counts: Counter[Unscored] = field(default_factory=Counter)
    alternatives: int | None = None

    @classmethod
    def of(cls, judge: Judge, rows: Iterable[Mapping[str, Any]] = ()) -> Self:
        """Return the log-odds of a judge's choices.

        Args:
            judge: the judge.
            rows: rows of `CHOICES`; those of other judges are ignored.
        """
        log_odds = cls(judge.choices_only if provider_of(judge).language_model else "")
        thinks = getattr(judge, "effort", None) not in (None, "none")
        if thinks and not judge.choices_only:
            log_odds.hint = "they may return with effort: none; "
        for row in rows:
            if row["judge"] == judge.name:
                log_odds.add(row["unscored"], row["settings"], row["number"])
        return log_odds

    @classmethod
    def read(cls, db: sa.Connection, judge: Judge) -> Self:
        """Return the log-odds of a judge's choices in a journal."""
        return cls.of(judge, choices_of(db, judge.name))

    def add(self, unscored: Unscored, settings: str = "", count: int = 1) -> None:
        """Count choices, with the settings of their requests as JSON."""
        if not unscored and not self.scored:
            fields = json.loads(settings or "{}")
            number = fields.get("top_logprobs", fields.get("logprobs"))  # the latter at Together
            self.alternatives = number if type(number) is int else None
        self.counts[unscored] += count

    def take(self, answer: Answer, notify: Callable[[str], None], *, required: bool) -> str | None:
        """Count an answer if it is a choice, and report a change.

        Args:
            answer: the answer.
            notify: called with one line when the first choice of a judge has no log-odds, or the
                first one after choices with log-odds.
            required: whether the judge must give log-odds.

        Returns:
            Why the judge must stop, if it must.
        """
        if answer.format != "letter" or answer.verdict not in ("A", "B"):
            return None
        unscored: Unscored = answer.unscored  # type: ignore[assignment]
        self.add(unscored, answer.settings)
        if not unscored:
            return None
        if note := self._note(unscored):
            notify(note)
        # After a choice with log-odds, one whose letter is not listed is no reason to stop.
        is_exception = unscored in ("another token", "letter not listed")
        if not required or (self.scored and is_exception):
            return None
        remedy = "; it is from the cache: --cache fresh asks again" if answer.cached else ""
        return f"require: log_odds, but an answer came without log-probabilities{remedy}"

    def _note(self, unscored: Unscored) -> str | None:
        """Return the line about the first choice that has no log-odds for this reason."""
        if self.counts[unscored] > 1 or unscored == "not offered":
            return None
        if self.scored:
            return NO_LONGER if unscored in ("none sent", "refused") else None
        # The refusal of a setting is reported when the question is asked again without it.
        return self.line if unscored != "refused" and self.unscored == 1 else None

    @property
    def scored(self) -> int:
        """The number of choices with log-odds."""
        return self.counts[""]

    @property
    def unscored(self) -> int:
        """The number of choices without log-odds."""
        return self.counts.total() - self.scored

    @property
    def why(self) -> str:
        """Why choices have no log-odds, in a few words; empty if all have."""
        reasons: list[Unscored] = [reason for reason, _ in self.counts.most_common() if reason]
        if reasons and (reasons[0] != "not offered" or not self.choices_only):
            return _REASONS[reasons[0]]
        return self.choices_only

    @property
    def line(self) -> str:
        """A line on whether the judge gives log-odds; empty before its first choice."""
        reason = self.why
        if not self.scored:
            return f"log-odds: none, because {reason}; {self.hint}{REMEDY}" if reason else ""
        noun = "alternative" if self.alternatives == 1 else "alternatives"
        listed = f", {self.alternatives} {noun}" if self.alternatives else ""
        if not self.unscored:
            return f"log-odds: yes{listed}"
        share = f"log-odds: {self.scored:,} of {self.counts.total():,} choices{listed}"
        return f"{share}; none for the others, because {reason}"
