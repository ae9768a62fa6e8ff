"""Read a run's journal: which answers are usable, and tables of them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import sqlalchemy as sa
from sqlalchemy import func, select

from llm_elicit._util.packages import LazyModule, pd
from llm_elicit._util.text import visible
from llm_elicit.backends.base import token_limit
from llm_elicit.comparisons.table import Comparisons, VersionChange, VersionLog, version_of
from llm_elicit.comparisons.table_files import write_frames
from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalLocation, check_identity
from llm_elicit.orchestrator.journal.schema import (
    Totals,
    Unanswered,
    answers,
    check_digests,
    people,
    questions,
)
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.spaces.features import Floats

if TYPE_CHECKING:
    from scipy import special
else:
    special = LazyModule("scipy.special")

T = TypeVar("T")

TEXT = "text"
"""The verdict of answers to direct questions, which are parsed later."""

USABLE = "usable"
REFUSED, TRUNCATED, UNPARSABLE = "refusal", "truncated", "unparsable"

ROWS_PER_PART = 50_000
"""Rows of the table held in memory while it is written."""

_HARDLY_USABLE = 0.05
"""The share of usable answers up to which a judge is stopped."""

_MANY_UNUSABLE = 0.2
"""The share of unusable answers from which a run reports them."""

_UPPER_QUANTILE = 0.975
"""The upper end of an interval of 95 %."""

_BETWEEN_TEMPLATES, _BETWEEN_SCALE = np.linspace(0.0, 2.0, 201), 0.5
"""Standard deviations of a log-mean between templates, and the scale of their half-normal prior."""

_TINY = 1e-9

_EXAMPLE_LENGTH = 40
"""Characters of an unparsable answer that a message quotes."""


def usability(verdict: str, probability: float | None, reply: str, finish: str) -> str:
    """Return `USABLE` for a usable answer, else the reason why it is not usable.

    Examples:
        >>> usability("A", 1.0, "A", "stop"), usability("truncated", None, "Let me", "length")
        ('usable', 'truncated')
    """
    if probability is not None or (verdict == TEXT and reply.strip() and finish != REFUSED):
        return USABLE
    if verdict != TEXT:
        return verdict
    return {REFUSED: REFUSED, "length": TRUNCATED}.get(finish, UNPARSABLE)


@dataclass
class AnswerSummary:
    """Counts of a judge's answers.

    Attributes:
        counts: answers by the result of `usability`: usable, or the reason why not.
        empty: truncated answers without any visible text, whose tokens went to thinking.
        limit: the smallest token limit of truncated answers; None if it is unknown.
        example: the text of an unparsable answer.
        models: answers by the version that gave them, see `llm_elicit.comparisons.table`.
        cached: answers from the cache.
        old: answers that are older than a day.
        oldest: the UTC time of the oldest answer, ISO 8601; empty without answers.
        log_odds: whether its choices have log-odds.
    """

    counts: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    limit: int | None = None
    example: str = ""
    models: Counter[str] = field(default_factory=Counter)
    cached: int = 0
    old: int = 0
    oldest: str = ""
    log_odds: LogOdds = field(default_factory=LogOdds)

    @property
    def total(self) -> int:
        """The number of answers."""
        return self.counts.total()

    @property
    def usable(self) -> int:
        """The number of usable answers."""
        return self.counts[USABLE]

    def add(self, usability_: str, reply: str, settings: str, count: int = 1) -> None:
        """Count `count` answers of the same usability."""
        self.counts[usability_] += count
        if usability_ == TRUNCATED:
            self.empty += 0 if reply.strip() else count
            limit = token_limit(json.loads(settings or "{}"))
            self.limit = min(filter(None, (self.limit, limit)), default=None)
        elif usability_ == UNPARSABLE:
            self.example = self.example or reply

    def mostly_unusable(self, minimum: int | None) -> bool:
        """Return whether there are at least `minimum` answers, and hardly any is usable."""
        return (
            minimum is not None
            and self.total >= minimum
            and self.usable <= _HARDLY_USABLE * self.total
        )

    def unusable_line(self) -> str | None:
        """Return how many answers are unusable, why, and what helps; None if they are few."""
        unusable = self.total - self.usable
        if not unusable or unusable < _MANY_UNUSABLE * self.total:
            return None
        reasons = [reason for reason, _ in self.counts.most_common() if reason != USABLE]
        parts = [f"{self.counts[r]:,} of {self.total:,} {self._describe(r)}" for r in reasons]
        beginning = f"{unusable:,} of {self.total:,} answers are unusable"
        beginning = beginning if self.usable else "no usable answers"
        remedy = "use another design.template, or structured: true if the model takes it"
        if reasons[0] == TRUNCATED:
            thinks = ", or lower its effort: its thinking used them up" if self.empty else ""
            remedy = f"raise the judge's max_tokens{thinks}"
        elif reasons[0] == REFUSED:
            remedy = "use another design.template, or another model"
        return f"{beginning}: {', '.join(parts)}; {remedy}"

    def _describe(self, reason: str) -> str:
        if reason == TRUNCATED:
            at = f" at max_tokens={self.limit:,}" if self.limit else ""
            return f"truncated{at}{' before any visible text' if self.empty else ''}"
        if reason == UNPARSABLE:
            example = visible(" ".join(self.example.split()), _EXAMPLE_LENGTH)
            return f"unparsable (such as {example!r})" if example else "unparsable (empty)"
        return "refused" if reason == REFUSED else reason

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
        listed = (f"{visible(name, 80)} ({n:,})" for name, n in sorted(self.models.items()))
        return f"answers given by {', '.join(listed)}"


def summarize(db: sa.Connection, judge: str) -> AnswerSummary:
    """Return the summary of a judge's answers in a journal."""
    a, result = answers.c, AnswerSummary()
    of_judge = answers.join(questions, questions.c.id == a.question)
    # The columns are a subquery because PostgreSQL does not match selected and grouped expressions
    # that have parameters.
    rows = (
        select(a.verdict, a.finish, a.probability.is_not(None).label("chosen"), a.reply, a.settings)
        .add_columns((func.trim(a.reply) == "").label("empty"))
        .select_from(of_judge)
        .where(questions.c.judge == judge)
        .subquery()
        .c
    )
    groups = (rows.verdict, rows.finish, rows.chosen, rows.empty)
    query = select(
        rows.verdict, rows.finish, rows.chosen, func.max(rows.reply), func.max(rows.settings),
        func.count(),
    ).group_by(*groups)  # fmt: skip
    for verdict, finish, chosen, reply, settings, count in db.execute(query):
        result_usability = usability(verdict, 1.0 if chosen else None, reply, finish)
        result.add(result_usability, reply, settings, count)
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="milliseconds")
    versions = (a.model_answered, a.fingerprint)
    ages = select(
        *versions, func.count(), func.sum(a.cached), func.min(a.asked_at),
        func.count().filter(a.asked_at < yesterday),
    )  # fmt: skip
    ages = ages.select_from(of_judge).where(questions.c.judge == judge).group_by(*versions)
    for model, fingerprint, count, cached, oldest, old in db.execute(ages):
        if model:  # a reply from a content filter has none
            result.models[version_of(model, fingerprint)] += count
        result.cached += int(cached or 0)
        result.old += old
        result.oldest = min(filter(None, (result.oldest, oldest)), default="")
    return result


def version_changes(folder: Path, campaign: Campaign) -> list[VersionChange]:
    """Return the changes of the version that answers, over all judges that share a model.

    Raises:
        InputError: there is no journal in the folder.
    """
    with sql.reading(JournalLocation(folder, campaign.journal)) as db:
        return VersionLog(campaign.aliases, sql.versions_answered(db)).changes


class StalePlanError(InputError):
    """The journal has answers to pairs of a round that the plan does not have."""


def _table(db: sa.Connection, thinking: bool) -> sa.Select[Any]:
    """Return the query of the table of comparisons."""
    q, a = questions.c, answers.c
    soft = a.first.is_not(None) & (a.verdict.in_(("A", "B")) | (a.format != "letter"))
    censored = sa.case((q.form == "ba", -a.censored), else_=a.censored)
    models = (a.model_asked, a.model_answered, a.fingerprint)
    texts = (a.template, a.prompt_hash, *models, a.reply, a.verdict)
    counts = (a.prompt_tokens, a.completion_tokens, a.cached_tokens, a.cost, a.latency)
    presented = db.execute(select(a.question).where(a.presentation != "").limit(1)).first()
    optional = [a.presentation] if presented else []
    optional += [a.thinking] if thinking else []
    return (
        sa.select(q.judge, q.pair, q.form.label("order"), q.replicate, *texts, *optional)
        .add_columns(a.probability, soft.label("soft"), *counts, q.attempts, a.cached)
        .add_columns(a.asked_at, a.letter_mass, a.format, censored.label("censored"))
        .join_from(questions, answers, q.id == a.question)
        .where(q.form.in_(("ab", "ba")))
        .order_by(q.id)
    )


def status(folder: Path, campaign: Campaign) -> dict[str, Totals]:
    """Return the state of each judge of a run, which may be running.

    Raises:
        InputError: there is no journal in the folder.
    """
    return _by_judge(folder, campaign, sql.totals)


def unanswered(folder: Path, campaign: Campaign) -> dict[str, list[Unanswered]]:
    """Return each judge's questions that were given up or set aside, by reason.

    Raises:
        InputError: there is no journal in the folder.
    """
    return _by_judge(folder, campaign, sql.unanswered)


def answer_summaries(folder: Path, campaign: Campaign) -> dict[str, AnswerSummary]:
    """Return how many of each judge's answers are usable, and where they come from.

    Raises:
        InputError: there is no journal in the folder.
    """
    with sql.reading(JournalLocation(folder, campaign.journal)) as db:
        summaries = {judge.name: summarize(db, judge.name) for judge in campaign.judges}
        for judge in campaign.judges:
            summaries[judge.name].log_odds = LogOdds.read(db, judge)
    return summaries


def answered_counts(folder: Path, campaign: Campaign) -> dict[str, dict[str, int]]:
    """Return how many questions each judge has answered, by form ("ab", ..., "row").

    Raises:
        InputError: there is no journal in the folder.
    """
    return _by_judge(folder, campaign, sql.answered_by_kind)


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens of a judge's answers about pairs in one run, counted by its provider.

    Attributes:
        prompt, cached: mean number of tokens of the prompt, and of those from the provider's cache.
        completion: tokens of each answer `(n,)`, thinking included.
    """

    prompt: float
    cached: float
    completion: Floats


@dataclass(frozen=True)
class MeasuredTokens:
    """The tokens expected of a judge's further answers to questions about pairs.

    Attributes:
        answers: number of answers used, those to other templates included.
        questions: number of questions of the run's own templates that are answered; without any,
            `prompt` and `cached` are unknown.
        prompt, cached, completion: means; thinking is part of the completion.
        spread: standard deviation of the completion of one answer, divided by its mean.
        error: standard deviation of the logarithm of the mean completion.
        degrees: degrees of freedom of `spread`.
    """

    answers: int
    questions: int
    prompt: float
    cached: float
    completion: float
    spread: float
    error: float
    degrees: int

    @classmethod
    def of(cls, own: Sequence[AnswerTokens], others: Sequence[AnswerTokens] = ()) -> Self:
        """Estimate the tokens of further answers to the same templates.

        Answers to other templates count as far as templates are alike: the logarithms of means
        vary with an unknown standard deviation τ (random effects with a half-normal prior), and the
        expectation is averaged over the posterior of τ. The arithmetic mean is used, which is
        almost as efficient as a lognormal model for thinking of 200 to 4,000 tokens, and is right
        for any distribution.

        Args:
            own: answers to the run's own templates.
            others: answers to each of the other templates; at least one template if `own` is empty.
        """
        parts = [[part.completion for part in own], *([part.completion] for part in others)]
        groups = [np.concatenate(part) for part in parts if part]
        sizes, means = np.array([(len(group), group.mean()) for group in groups]).T
        degrees = int((sizes - 1.0).sum())
        deviations = [
            (((group / mean - 1.0) ** 2).sum(), len(group) * np.log(group).var())
            for group, mean in zip(groups, means, strict=True)
        ]
        # The variance of few skewed values is mostly too small; that of logarithms is not.
        variance, log_variance = np.sum(deviations, axis=0) / max(degrees, 1)
        variance = float(np.clip(np.expm1(log_variance), variance, 2.0 * variance))
        logs, errors = np.log(means), np.maximum(np.log1p(variance / sizes), _TINY)
        if not own:
            logs, errors = np.append(0.0, logs), np.append(1.0 / _TINY, errors)
        between = _BETWEEN_TEMPLATES**2
        precision = 1.0 / (errors[:, None] + between)
        common = (precision * logs[:, None]).sum(axis=0) / precision.sum(axis=0)
        squares = (precision * (logs[:, None] - common) ** 2).sum(axis=0)
        log_weight = np.log(precision).sum(axis=0) - np.log(precision.sum(axis=0)) - squares
        log_weight -= between / _BETWEEN_SCALE**2
        weight = np.exp(0.5 * (log_weight - log_weight.max()))
        weight /= weight.sum()
        share = errors[0] * precision[0]
        expected = (1.0 - share) * logs[0] + share * common
        error = between * share + share**2 / precision.sum(axis=0)
        mean = float(weight @ expected)
        return cls(
            answers=sum(map(len, groups)),
            questions=max((len(part.completion) for part in own), default=0),
            prompt=float(np.mean([part.prompt for part in own or others])),
            cached=float(np.mean([part.cached for part in own or others])),
            completion=math.exp(mean),
            spread=math.sqrt(variance),
            error=math.sqrt(weight @ (error + (expected - mean) ** 2)) if degrees else 0.0,
            degrees=degrees,
        )

    def factor(self, requests: int) -> float:
        """Return the factor between the expected and the true completion tokens of further answers.

        It is exceeded, in either direction, with a probability of at most about 5 %. It combines
        the variation of `requests` answers with the error of the expected mean, and is a factor,
        since the lengths of thinking are skewed.
        """
        if not self.degrees or not requests:
            return 1.0
        variance = self.error**2 + math.log1p(self.spread**2 / requests)
        quantile = float(special.stdtrit(self.degrees, _UPPER_QUANTILE))
        return math.exp(quantile * math.sqrt(variance))


def answer_tokens(folder: Path, campaign: Campaign) -> dict[str, AnswerTokens]:
    """Return the tokens of each judge's answers about pairs; judges without answers are left out.

    Answers whose tokens the provider did not count are not measured.

    Raises:
        InputError: there is no journal in the folder.
    """
    a = answers.c

    def read(db: sa.Connection, judge: str) -> AnswerTokens | None:
        sums = func.count(), func.sum(a.prompt_tokens), func.sum(a.cached_tokens)
        rows = select(a.completion_tokens, *sums).join(questions).where(
            questions.c.judge == judge,
            questions.c.form.in_(("ab", "ba")),
            a.completion_tokens > 0,
        ).group_by(a.completion_tokens)  # fmt: skip
        counts = np.array([tuple(row) for row in db.execute(rows)], dtype=float)
        if not len(counts):
            return None
        completion, number, prompt, cached = counts.T
        total = number.sum()
        return AnswerTokens(
            float(prompt.sum() / total), float(cached.sum() / total),
            np.repeat(completion, number.astype(int)),
        )  # fmt: skip

    measured = _by_judge(folder, campaign, read)
    return {judge: tokens for judge, tokens in measured.items() if tokens is not None}


def _by_judge(
    folder: Path, campaign: Campaign, read: Callable[[sa.Connection, str], T]
) -> dict[str, T]:
    with sql.reading(JournalLocation(folder, campaign.journal)) as db:
        return {judge.name: read(db, judge.name) for judge in campaign.judges}


def comparisons(study: Study, *, thinking: bool = False) -> Comparisons:
    """Return the judgments in a run's journal, one row for each answered question.

    It may be called while the run continues.

    Args:
        study: the run and its plan.
        thinking: whether to add the visible thinking of reasoning models, which may be a thousand
            times as long as their answers.

    Raises:
        InputError: there is no journal in the folder, it is another campaign's, or an answer in
            it was changed by hand.
        StalePlanError: the journal has answers to pairs that are not in the plan.
    """
    with _open_checked(study) as db:
        check_digests(db, str(study.folder), pairs=True)
        frame = pd.read_sql_query(_table(db, thinking), db)
    return _with_points(frame, study)


def check_answers(study: Study) -> None:
    """Check that every answer in a run's journal matches its digest.

    Raises:
        InputError: there is no journal in the folder, it is another campaign's, or an answer in
            it was changed by hand.
    """
    with _open_checked(study) as db:
        check_digests(db, str(study.folder))


def write_judgments(study: Study, path: Path, *, thinking: bool = False) -> Path:
    """Write the table of `comparisons` to a file, a limited number of rows at a time.

    Raises:
        InputError: as `comparisons` and `Comparisons.write`.
    """
    with _open_checked(study) as db:
        check_digests(db, str(study.folder), pairs=True)
        rows = db.execution_options(stream_results=True)
        frames = pd.read_sql_query(_table(db, thinking), rows, chunksize=ROWS_PER_PART)
        return write_frames((_with_points(part, study).frame for part in frames), path)


def _with_points(frame: pd.DataFrame, study: Study) -> Comparisons:
    """Add the points of each pair to rows of the journal."""
    space, plan = study.space, study.plan
    frame["cost"] = frame["cost"].astype(float)
    frame["probability"] = frame["probability"].astype(float)
    pairs = frame["pair"].to_numpy(dtype=np.int64)
    unknown = int(np.isnan(plan.a[pairs, 0]).sum())
    if unknown:
        raise StalePlanError(
            f"{unknown:,} answers are about pairs that another process planned after this one read "
            "the plan; run again"
        )
    points = {
        f"{side}_{name}": column.set_axis(frame.index)
        for side, values in (("a", plan.a), ("b", plan.b))
        for name, column in space.table_of(values[pairs]).items()
    }
    return Comparisons(frame.assign(**points), space.names)


def direct_answers(study: Study) -> pd.DataFrame:
    """Return the answers to direct questions in a run's journal, one row each, unparsed.

    Columns: judge, kind, number (of the feature, the row, the pair or the pair of ranges), order
    ("ab" or "ba" for ranges, else empty), replicate, template, prompt_hash, model_answered,
    fingerprint, reply, finish, verdict, first (P(first shown) as measured, for ranges and ratios),
    letter_mass, prompt_tokens, completion_tokens, cost, cached, asked_at.

    Raises:
        InputError: there is no journal in the folder, it is another campaign's, or an answer in
            it was changed by hand.
    """
    q, a = questions.c, answers.c
    query = (
        sa.select(q.judge, q.form.label("kind"), q.pair.label("number"), q.replicate)
        .add_columns(a.template, a.prompt_hash, a.model_answered, a.fingerprint, a.reply, a.finish)
        .add_columns(a.verdict, a.first, a.letter_mass)
        .add_columns(a.prompt_tokens, a.completion_tokens, a.cost, a.cached, a.asked_at)
        .join_from(questions, answers, q.id == a.question)
        .where(q.form.not_in(("ab", "ba")))
        .order_by(q.id)
    )
    with _open_checked(study) as db:
        check_digests(db, str(study.folder), pairs=False)
        frame = pd.read_sql_query(query, db)
    parts = [form.partition("-") for form in frame["kind"]]
    frame["kind"] = [kind for kind, _, _ in parts]
    frame.insert(3, "order", [order for _, _, order in parts])
    return frame.astype({"first": float, "letter_mass": float})


def people_cards(study: Study) -> pd.DataFrame:
    """Return the cards that people have answered, with repeats and attention questions.

    Columns: judge, expert, kind ("question", "repeat" or "attention"), question (its number in the
    journal; empty for an attention question), pair, order, state ("answered" or "undone"), choice,
    expected (what an attention question asks for, else empty), confidence, seconds, answered_at,
    comment.

    Raises:
        InputError: there is no journal in the folder, or it is another campaign's.
    """
    c = people.c
    query = (
        sa.select(c.judge, c.expert, c.kind, c.question, c.pair, c.form.label("order"))
        .add_columns(
            c.state, c.choice, c.expected, c.confidence, c.seconds, c.answered_at, c.comment
        )
        .where(c.state.in_(("answered", "undone")))
        .order_by(c.id)
    )
    with _open_checked(study) as db:
        frame = pd.read_sql_query(query, db)
    frame = frame.fillna({"comment": ""})
    return frame.astype({"question": float, "confidence": float, "seconds": float})


@contextmanager
def _open_checked(study: Study) -> Iterator[sa.Connection]:
    """Open a run's journal and check that it belongs to this campaign."""
    with sql.reading(study.location) as db:
        check_identity(db, identity_of(study.campaign, study.space), study.folder)
        yield db
