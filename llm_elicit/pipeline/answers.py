"""Pages of a run's questions and answers, from its journal, also while it is asked.

A page begins after the number of a question, so that the last page takes as long as the first.
Verdicts other than A and B have an index of their own. With any other filter the answers are
examined in order for at most `_SECONDS`. A page that is not full by then has the number after which
the next page begins.

People's answers are compared with each other's and with those of models, too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import func, select

from llm_elicit._util.packages import LazyModule
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.orchestrator.journal.people import choices_about_their_pairs
from llm_elicit.orchestrator.journal.questions import is_begun, reading
from llm_elicit.orchestrator.journal.schema import (
    ANSWERED,
    QUESTION,
    UNUSUAL,
    answers,
    people,
    questions,
    rounds,
)
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.pipeline.manifest import FILE as MANIFEST
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run
from llm_elicit.pipeline.snapshot import LiveInterval
from llm_elicit.planning.pairs import Query
from llm_elicit.questions.template import Message
from llm_elicit.spaces.features import Feature, Floats

if TYPE_CHECKING:
    from llm_elicit.audit import people as audit
else:
    audit = LazyModule("llm_elicit.audit.people")  # which a page of answers does without

Verdict = Literal["A", "B", "tie", "refusal", "truncated", "unparsable", "text"]
"""How an answer was read; "text" is an answer to a direct question, which is parsed later."""

_INDEXED: tuple[Verdict, ...] = ("tie", "refusal", "truncated", "unparsable")
"""The verdicts that the index `unusual` has."""

_WINDOW = 5_000
"""Answers that are examined in one query."""

_SECONDS = 0.1
"""Seconds after which no further answers are examined."""


@dataclass(frozen=True)
class AnswerQuery:
    """Which answers a page has.

    Attributes:
        judges: the names of the judges; all of the run if empty.
        verdict: the verdict; empty for any.
        orders: "differ" for pairs of which a judge chose another point in each order; empty for
            any.
        pair: the number of a pair; None for any.
        feature, low, high: a feature, of which either point has a value from `low` to `high`,
            inclusive, as in a table; empty texts for any.
        sort: "asked" for the order of the questions, "residual" for the choices of one judge
            against which its belief speaks most first; the latter has no other filter.
        after: the number of the question after which the page begins; the number of choices that
            are left out if they are sorted by residual.
        limit: the largest number of questions, both orders counted as one.
    """

    judges: tuple[str, ...] = ()
    verdict: Verdict | Literal[""] = ""
    orders: Literal["differ", ""] = ""
    pair: int | None = None
    feature: str = ""
    low: str = ""
    high: str = ""
    sort: Literal["asked", "residual"] = "asked"
    after: int = 0
    limit: int = 20


@dataclass(frozen=True)
class AskedOrder:
    """A question in one order of its options, with the answer.

    Attributes:
        question: its number in the journal.
        order: "ab" if point a was option A, "ba" if point b was; empty for direct questions.
        prompt: the turns of the prompt.
        as_sent: whether the prompt has the digest of the one that was sent. If it has not, the
            prompt is worded with the campaign's files as they are now.
        model: the model that answered.
        reply, thinking: the texts, unedited.
        verdict: how the reply was read.
        probability: the probability that point a is chosen, 0 or 1 without log-odds; None if there
            is no choice.
        finish: why the reply ended, as the provider says.
        tokens: tokens of the reply, thinking included.
        cost: USD; None if the price is unknown.
        latency: seconds.
        cached: whether it is from the cache.
        asked_at: the UTC time, ISO 8601.
        confidence, comment: what a person said after the choice; None and empty without.
    """

    question: int
    order: str
    prompt: tuple[Message, ...]
    as_sent: bool
    model: str
    reply: str
    thinking: str
    verdict: str
    probability: float | None
    finish: str
    tokens: int
    cost: float | None
    latency: float
    cached: bool
    asked_at: str
    confidence: float | None = None
    comment: str = ""


@dataclass(frozen=True)
class AskedQuestion:
    """A question to a judge, with the answer in each order.

    Attributes:
        judge: the judge's name.
        kind: "pair", or the kind of a direct question.
        pair: the number of the pair, or of the subject of a direct question.
        replicate: the number of the replicate.
        points: each feature's label, and its values at points a and b in words; empty for direct
            questions.
        orders_agree: whether the same point was chosen in both orders; None without two choices.
        orders: the answers, "ab" first.
    """

    judge: str
    kind: str
    pair: int
    replicate: int
    points: tuple[tuple[str, str, str], ...]
    orders_agree: bool | None
    orders: tuple[AskedOrder, ...]


@dataclass(frozen=True)
class AnswerPage:
    """A page of a run's questions and answers.

    Attributes:
        questions: the questions.
        following: the number after which the next page begins; None at the end.
        complete: whether the page is full or no further answers exist; if not, time ran out, and it
            may have fewer questions than asked for.
    """

    questions: tuple[AskedQuestion, ...]
    following: int | None
    complete: bool = True


_Row = sa.Row[tuple[int, str, int, str, int]]
_a, _q, _p = answers.c, questions.c, people.c
_a2, _q2 = answers.alias().c, questions.alias().c
_ROWS: sa.Select[tuple[int, str, int, str, int]] = select(
    _a.question, _q.judge, _q.pair, _q.form, _q.replicate
).join_from(answers, questions, _q.id == _a.question)


def read_answers(folder: Path, query: AnswerQuery) -> AnswerPage:
    """Return a page of a run's questions and answers.

    Raises:
        InputError: the run or its journal cannot be read, or it has no such judge or feature.
    """
    changed = (folder / CAMPAIGN).stat().st_mtime_ns
    run = _open(folder, changed)
    judges = [judge.name for judge in run.campaign.judges]
    for name in query.judges:
        if name not in judges:
            raise UnknownNameError.of(run.campaign.name, "judge", name, judges)
    if query.feature and query.feature not in run.space.names:
        raise UnknownNameError.of(run.campaign.name, "feature", query.feature, run.space.names)
    if query.pair is not None and not query.judges:  # the index of pairs begins with the judge
        query = replace(query, judges=tuple(judges))
    if not is_begun(run.location):
        return AnswerPage((), None)
    with reading(run.location) as db:
        planned = db.execute(select(func.count()).select_from(rounds)).scalar_one()
        study = _study(folder, changed, planned)
        if query.sort == "residual":
            rows, following, complete = _find_residuals(db, query, run)
        else:
            span = _span(folder, changed, planned, query.judges) if query.judges else (1, None)
            rows, following, complete = _find(db, query, study, span)
        return AnswerPage(tuple(_asked(db, row, study) for row in rows), following, complete)


@lru_cache(maxsize=4)
def _open(folder: Path, changed: int) -> Run:
    """Open a run; again if its campaign was changed."""
    del changed
    return Run.open(folder)


@lru_cache(maxsize=2)
def _study(folder: Path, changed: int, planned: int) -> Study:
    """Return what a run asks; again if its campaign was changed or a round was planned."""
    del planned
    return replace(_open(folder, changed)).study


@lru_cache(maxsize=32)
def _span(
    folder: Path, changed: int, planned: int, judges: tuple[str, ...]
) -> tuple[int, int | None]:
    """Return the numbers of the first and the last question of judges, as of `_study`."""
    del planned
    query = select(func.min(_q.id), func.max(_q.id)).where(_q.judge.in_(judges))
    with reading(_open(folder, changed).location) as db:
        lowest, highest = db.execute(query).one()
    return lowest or 1, highest


def _find(
    db: sa.Connection, query: AnswerQuery, study: Study, span: tuple[int, int | None]
) -> tuple[list[_Row], int | None, bool]:
    """Return the first rows of a page, where the next page begins, and whether it is complete."""
    statement, first, last = page_statement(query), max(query.after, span[0] - 1), span[1]
    is_indexed = query.verdict in _INDEXED or query.pair is not None
    last = last or int(db.execute(select(func.max(_a.question))).scalar() or 0)
    in_range = _in_range(query, study)
    max_rows = query.limit + 1 if in_range is None else _WINDOW
    began, rows = time.monotonic(), list[_Row]()
    while first < last:
        end = last if is_indexed else min(first + _WINDOW, last)
        window = {"first": first, "last": end, "rows": max_rows}
        for row in (page := db.execute(statement, window).all()):
            if in_range is None or (row.form in ("ab", "ba") and in_range[row.pair]):
                if len(rows) == query.limit:
                    return rows, rows[-1].question, True
                rows.append(row)
        first = page[-1].question if len(page) == max_rows else end
        if time.monotonic() - began > _SECONDS and first < last:
            return rows, first, False
    return rows, None, True


def _find_residuals(
    db: sa.Connection, query: AnswerQuery, run: Run
) -> tuple[list[_Row], int | None, bool]:
    """Return as `_find` the rows of the choices against which the belief speaks most.

    Raises:
        InputError: there is no belief, not one judge, or another filter.
    """
    if len(query.judges) != 1 or (query.verdict or query.orders or query.feature):
        raise InputError("sort=residual: name one judge, and no other filter")
    changed = (run.folder / MANIFEST).stat().st_mtime_ns
    ranked = _by_residual(run.folder, changed, query.judges[0])
    end = query.after + query.limit
    numbers = ranked[query.after : end].tolist()
    rows = {row[0]: row for row in db.execute(_ROWS.where(_a.question.in_(numbers)))}
    return [rows[number] for number in numbers], end if end < len(ranked) else None, True


@lru_cache(maxsize=4)
def _by_residual(folder: Path, changed: int, judge: str) -> NDArray[np.int64]:
    """Return the questions of a judge's choices, the choice that its belief expects least first.

    A choice of point a with probability p has the margin (2p − 1) (f(a) − f(b)), with f the utility
    of the belief; the least margin is first. Of both orders, the one with the lesser margin stands
    for the question.
    """
    del changed
    run = Run.open(folder)
    plan, belief = run.plan, run.beliefs[judge]
    choices = _ROWS.with_only_columns(_a.question, _q.pair, _q.replicate, _a.probability).where(
        _q.judge == judge, _q.form.in_(("ab", "ba")), _a.verdict.in_(("A", "B"))
    )
    with reading(run.location) as db:
        table = np.array(db.execute(choices).all(), dtype=np.float64).reshape(-1, 4)
    numbers, pairs, _ = table[:, :3].astype(np.int64).T
    difference = belief.utility(plan.a[pairs]) - belief.utility(plan.b[pairs])
    ranked = np.argsort((2.0 * table[:, 3] - 1.0) * difference, kind="stable")
    first = np.unique(table[ranked, 1:3], axis=0, return_index=True)[1]
    ordered: NDArray[np.int64] = numbers[ranked[np.sort(first)]]
    return ordered


def page_statement(query: AnswerQuery) -> sa.Select[tuple[int, str, int, str, int]]:
    """Return the statement of the rows that a page may have, one for both orders of a question.

    Its parameters are the numbers of the questions `first`, which is left out, and `last`, and the
    number of `rows`.
    """
    same = (_q2.judge == _q.judge, _q2.pair == _q.pair, _q2.replicate == _q.replicate)
    other_order = select(_q2.id).where(*same, _q2.id == _a2.question)
    conditions = [
        _a.question > sa.bindparam("first", type_=sa.BigInteger),
        _a.question <= sa.bindparam("last", type_=sa.BigInteger),
    ]
    if query.judges:
        # An expression keeps the database from the index of the judge's questions in another order.
        judge = _q.judge if query.pair is not None else _q.judge + ""
        conditions.append(judge.in_(query.judges))
    if query.pair is not None:
        conditions.append(_q.pair == query.pair)
    if query.verdict:
        conditions.append(_a.verdict == query.verdict)
        other_order = other_order.where(_a2.verdict == query.verdict)
    if query.verdict in _INDEXED:
        conditions.append(sa.literal_column(f"answers.{UNUSUAL}"))
    if query.orders:
        # The same letter in both orders is another point.
        conditions += [_q.form == "ab", _a.verdict.in_(("A", "B"))]
        conditions.append(other_order.where(_q2.form == "ba", _a2.verdict == _a.verdict).exists())
    else:
        conditions.append((_q.form != "ba") | ~other_order.where(_q2.form == "ab").exists())
    limit = sa.bindparam("rows", type_=sa.BigInteger)
    return _ROWS.where(*conditions).order_by(_a.question).limit(limit)


def _value(feature: Feature, text: str, default: float) -> float:
    """Return an end of the range of a feature; the default without one.

    Raises:
        InputError: it is no number, date or category of the feature.
    """
    if not text.strip():
        return default
    if feature.categories or feature.kind == "date":
        return feature.read(text.strip())
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{feature.name}: {text[:40]!r} is not a number") from None


def _in_range(query: AnswerQuery, study: Study) -> NDArray[np.bool_] | None:
    """Return whether a point of each pair has the value that is asked for; None for any value."""
    if not query.feature:
        return None
    number = study.space.names.index(query.feature)
    feature = study.space.features[number]
    low, high = _value(feature, query.low, -np.inf), _value(feature, query.high, np.inf)
    values = np.stack([points[:, number] for points in (study.plan.a, study.plan.b)])
    return np.asarray(((low <= values) & (values <= high)).any(axis=0))


def _asked(db: sa.Connection, row: _Row, study: Study) -> AskedQuestion:
    """Return the question of a row, with the answers in both orders."""
    is_pair = row.form in ("ab", "ba")
    forms = ("ab", "ba") if is_pair else (row.form,)
    of_person = (_p.question == _a.question) & (_p.kind == QUESTION) & (_p.state == ANSWERED)
    statement = (
        select(_q.form, answers, _p.confidence, _p.comment)
        .join_from(questions, answers, _q.id == _a.question)
        .outerjoin(people, of_person)
        .where(_q.judge == row.judge, _q.pair == row.pair, _q.replicate == row.replicate)
        .where(_q.form.in_(forms))
        .order_by(_q.form)
    )
    orders = [
        _order(answer, Query(row.pair, answer.form, row.replicate), study)
        for answer in db.execute(statement)
    ]
    points: tuple[tuple[str, str, str], ...] = ()
    if is_pair:
        a, b = (study.space.word(point[row.pair]) for point in (study.plan.a, study.plan.b))
        points = tuple(
            (label, first, second) for (label, first), (_, second) in zip(a, b, strict=True)
        )
    choices = [order.verdict for order in orders if order.verdict in ("A", "B")]
    agree = len(set(choices)) == 2 if is_pair and len(choices) == 2 else None
    kind = Query(row.pair, row.form, row.replicate).kind or "pair"
    return AskedQuestion(row.judge, kind, row.pair, row.replicate, points, agree, tuple(orders))


def _order(row: sa.Row[tuple[object, ...]], query: Query, study: Study) -> AskedOrder:
    """Return an answer with the prompt of its question."""
    if query.direct:
        prompt = study.direct.question(query).prompt
    else:
        presentation = study.presentation(query.pair)
        prompt = presentation.render(*study.plan.points_in_order(query))
    return AskedOrder(
        question=row.question,
        order="" if query.direct else query.order,
        prompt=prompt.messages,
        as_sent=prompt.hash == row.prompt_hash,
        model=row.model_answered,
        reply=row.reply,
        thinking=row.thinking,
        verdict=row.verdict,
        probability=row.probability,
        finish=row.finish,
        tokens=row.completion_tokens,
        cost=row.cost,
        latency=row.latency,
        cached=bool(row.cached),
        asked_at=row.asked_at,
        confidence=row.confidence,
        comment=row.comment or "",
    )


@dataclass(frozen=True)
class Agreement:
    """How often an expert chooses as another rater drawn at random, and over how many pairs."""

    share: LiveInterval
    pairs: int


Agreements = dict[tuple[str, str], tuple[Agreement | None, Agreement | None]]
"""The agreement of each judge and expert with other experts, and with models."""


def measure_agreement(folder: Path) -> Agreements:
    """Return the agreement of the experts of a run with other experts, and with models."""
    run = Run.open(folder)
    with reading(run.location) as db:
        rows = choices_about_their_pairs(db)
    experts = [row.judge in run.campaign.people for row in rows]
    raters = [(row.judge, row.model_answered if expert else "")
              for row, expert in zip(rows, experts, strict=True)]  # fmt: skip
    names = list(dict.fromkeys(raters))
    ratings = audit.Ratings.from_preferences(
        [f"{names.index(rater):06d}" for rater in raters],
        [row.pair for row in rows],
        np.array([row.probability for row in rows], dtype=np.float64),
    )
    is_person = np.array([bool(expert) for _, expert in names])

    def agreement(number: int, others: Floats) -> Agreement | None:
        measured = audit.mean_agreement(ratings.shares[number], others)
        if measured is None:
            return None
        share, pairs = measured
        return Agreement(LiveInterval.model_validate(share, from_attributes=True), pairs)

    agreements = {}
    for number in np.flatnonzero(is_person).tolist():
        other_people = is_person & (np.arange(len(names)) != number)
        agreements[names[number]] = (
            agreement(number, ratings.shares[other_people]),
            agreement(number, ratings.shares[~is_person]),
        )
    return agreements
