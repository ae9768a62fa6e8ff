"""What a judge's answers are worth and where they come from: how many are usable, why others are
not and which setting helps, how many are old or from the cache, and which models gave them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import func, select

from llm_elicit._util.sanitize import visible
from llm_elicit.backends.base import token_limit
from llm_elicit.orchestrator.journal.schema import answers, questions

TEXT = "text"
"""The verdict of answers to direct questions, which are parsed later."""

USABLE = "usable"
REFUSED, TRUNCATED, UNPARSABLE = "refusal", "truncated", "unparsable"

_FEW = 0.05
"""The share of usable answers up to which a judge is stopped."""

_MANY = 0.2
"""The share of unusable answers from which a run says so."""

_EXAMPLE = 40


def worth(verdict: str, probability: float | None, reply: str, finish: str) -> str:
    """Return what an answer is worth: `USABLE`, or why it is not.

    Example:
        >>> worth("A", 1.0, "A", "stop"), worth("truncated", None, "Let me", "length")
        ('usable', 'truncated')
    """
    if probability is not None or (verdict == TEXT and reply.strip() and finish != REFUSED):
        return USABLE
    if verdict != TEXT:
        return verdict
    return {REFUSED: REFUSED, "length": TRUNCATED}.get(finish, UNPARSABLE)


@dataclass
class AnswerSummary:
    """A judge's answers, counted.

    Attributes:
        counts: answers by what they are worth, see `worth`.
        empty: truncated answers without any visible text, whose tokens went to thinking.
        limit: the least token limit of truncated answers; None if it is unknown.
        example: the text of an unparsable answer.
        models: answers by the model that gave them, as the provider reports it.
        cached: answers from the cache.
        old: answers that are older than a day.
        oldest: the UTC time of the oldest one, ISO 8601; empty without answers.
    """

    counts: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    limit: int | None = None
    example: str = ""
    models: Counter[str] = field(default_factory=Counter)
    cached: int = 0
    old: int = 0
    oldest: str = ""

    @property
    def total(self) -> int:
        """The number of answers."""
        return self.counts.total()

    @property
    def usable(self) -> int:
        """The number of usable answers."""
        return self.counts[USABLE]

    def add(self, worth_: str, reply: str, settings: str, count: int = 1) -> None:
        """Count answers that are alike."""
        self.counts[worth_] += count
        if worth_ == TRUNCATED:
            self.empty += 0 if reply.strip() else count
            limit = token_limit(json.loads(settings or "{}"))
            self.limit = min(filter(None, (self.limit, limit)), default=None)
        elif worth_ == UNPARSABLE:
            self.example = self.example or reply

    def hardly_usable(self, least: int | None) -> bool:
        """Return whether there are at least `least` answers, and hardly any is usable."""
        return least is not None and self.total >= least and self.usable <= _FEW * self.total

    def unusable_line(self) -> str | None:
        """Return how many answers are unusable, why, and what helps; None if they are few."""
        unusable = self.total - self.usable
        if not unusable or unusable < _MANY * self.total:
            return None
        reasons = [reason for reason, _ in self.counts.most_common() if reason != USABLE]
        parts = [f"{self.counts[r]:,} of {self.total:,} {self._described(r)}" for r in reasons]
        begins = f"{unusable:,} of {self.total:,} answers are unusable"
        begins = begins if self.usable else "no usable answers"
        return f"{begins}: {', '.join(parts)}; {self._way_out(reasons[0])}"

    def _described(self, reason: str) -> str:
        if reason == TRUNCATED:
            at = f" at max_tokens={self.limit:,}" if self.limit else ""
            return f"truncated{at}{' before any visible text' if self.empty else ''}"
        if reason == UNPARSABLE:
            example = visible(" ".join(self.example.split()), _EXAMPLE)
            return f"unparsable (such as {example!r})" if example else "unparsable (empty)"
        return "refused" if reason == REFUSED else reason

    def _way_out(self, reason: str) -> str:
        """Return the setting that helps."""
        if reason == TRUNCATED:
            thinks = ", or turn off its thinking, which takes them" if self.empty else ""
            return f"raise the judge's max_tokens{thinks}"
        if reason == REFUSED:
            return "use another design.template, or another model"
        return "use another design.template, or structured: true if the model takes it"

    def origin_line(self) -> str | None:
        """Return where the answers come from; None if all are new and of one model."""
        if not self.cached and not self.old and len(self.models) < 2:
            return None
        parts = []
        if self.cached:
            parts.append(f"{self.cached:,} of {self.total:,} answers are from the cache")
        if self.old:
            date = self.oldest[:10]
            parts.append(f"{self.old:,} of {self.total:,} are older than a day (since {date})")
        if self.models:
            parts.append(self.models_line())
        return "; ".join(parts)

    def models_line(self) -> str:
        """Return the models that answered, each with its number of answers."""
        named = (f"{visible(name, 80)} ({n:,})" for name, n in sorted(self.models.items()))
        return f"answers given by {', '.join(named)}"


def summarize(db: sa.Connection, judge: str) -> AnswerSummary:
    """Return the summary of a judge's answers in a journal."""
    a, result = answers.c, AnswerSummary()
    of_judge = answers.join(questions, questions.c.id == a.question)
    # In a subquery: PostgreSQL takes an expression with parameters for another one when grouping.
    rows = (
        select(a.verdict, a.finish, a.probability.is_not(None).label("chosen"), a.reply, a.settings)
        .add_columns((func.trim(a.reply) == "").label("empty"))
        .select_from(of_judge)
        .where(questions.c.judge == judge)
        .subquery()
        .c
    )
    alike = (rows.verdict, rows.finish, rows.chosen, rows.empty)
    query = select(
        rows.verdict, rows.finish, rows.chosen, func.max(rows.reply), func.max(rows.settings),
        func.count(),
    ).group_by(*alike)  # fmt: skip
    for verdict, finish, chosen, reply, settings, count in db.execute(query):
        value = worth(verdict, 1.0 if chosen else None, reply, finish)
        result.add(value, reply, settings, count)
    before = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="milliseconds")
    ages = select(
        a.model_answered, func.count(), func.sum(a.cached), func.min(a.asked_at),
        func.count().filter(a.asked_at < before),
    )  # fmt: skip
    ages = ages.select_from(of_judge).where(questions.c.judge == judge).group_by(a.model_answered)
    for model, count, cached, oldest, old in db.execute(ages):
        result.models += Counter({model: count} if model else {})  # filters name no model
        result.cached += int(cached or 0)
        result.old += old
        result.oldest = min(filter(None, (result.oldest, oldest)), default="")
    return result
