"""The audit of people as judges: agreement, attention and response times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llm_elicit.audit.agreement import (
    GroupAgreement,
    RaterAgreement,
    Ratings,
    agreement,
    choice_table,
    group_agreement,
    pairwise,
)
from llm_elicit.audit.inference import Interval, wilson
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.config.base_model import StrictModel
from llm_elicit.spaces.features import Floats

FAST = 1.0
"""Seconds below which an answer counts as too fast to have read two cards."""

_FIRST = {"a": 1.0, "b": 0.0, "equal": 0.5}
"""P(first shown preferred), by what a person chose."""

Key = tuple[str, str]
"""A judge and an expert."""


class PersonAudit(StrictModel):
    """One person's answers.

    Attributes:
        name, judge: the person, and the judge in the campaign.
        answers: number of answers, without repeats and attention questions.
        undone: number of these that were undone.
        first_shown: share of choices of the option shown first, 1/2 without a position effect;
            None without a choice.
        retest: agreement with the person's own earlier answers to the same questions, over repeats,
            in either order, and replicates; None without any.
        attention: number of attention questions answered.
        attentive: share of them that were answered as asked; None without any.
        seconds: median response time.
        fast: share of answers in less than a second.
        confidence: mean of the stated confidence, 0 to 1; None if none was stated.
    """

    name: str
    judge: str
    answers: int
    undone: int
    first_shown: Interval | None
    retest: RaterAgreement | None
    attention: int
    attentive: Interval | None
    seconds: float
    fast: float
    confidence: float | None


class PeopleAudit(StrictModel):
    """People as judges.

    Attributes:
        people: one record a person.
        between: agreement of every two raters with a common pair, people first.
        among_people: agreement of all people; None for one person, or without a common pair.
        among_all: agreement of people and models together; None without models, or without a
            common pair.
    """

    people: list[PersonAudit]
    between: list[RaterAgreement]
    among_people: GroupAgreement | None
    among_all: GroupAgreement | None


@dataclass(frozen=True)
class PeopleEvidence:
    """What the audit of people is based on.

    Attributes:
        comparisons: the judgments of the run.
        cards: the cards that people have answered, see `llm_elicit.orchestrator.people_cards`.
    """

    comparisons: Comparisons
    cards: pd.DataFrame


def audit_people(evidence: PeopleEvidence, seed: int = 0) -> PeopleAudit | None:
    """Measure people's agreement, attention and response times; None without their answers.

    Args:
        evidence: their answers, and those of models.
        seed: of the bootstrap.
    """
    cards, frame = evidence.cards, evidence.comparisons.frame
    answered = cards[cards["state"] == "answered"]
    if answered.empty:
        return None
    rng = np.random.default_rng([seed, 0xA64EE])
    names = _names(answered, evidence.comparisons.judges)
    chosen = frame[frame["probability"].notna()]
    ratings = _ratings(chosen, names)
    people = [name for name in names.values() if name in ratings.names]
    models = [name for name in ratings.names if name not in people]
    together = ratings.select([*people, *models])
    return PeopleAudit(
        people=[_person(names[key], key, cards, chosen, rng) for key in names],
        between=pairwise(together, rng),
        among_people=group_agreement(ratings.select(people), rng),
        among_all=group_agreement(together, rng) if models else None,
    )


def _names(cards: pd.DataFrame, judges: Sequence[str]) -> dict[Key, str]:
    """Return the name of each person: the expert's, with the judge's if that is not unique."""
    keys = list(dict.fromkeys(zip(cards["judge"], cards["expert"], strict=True)))
    of_people = {judge for judge, _ in keys}
    taken = [expert for _, expert in keys] + [name for name in judges if name not in of_people]
    return {key: key[1] if taken.count(key[1]) == 1 else "/".join(key) for key in keys}


def _ratings(chosen: pd.DataFrame, names: Mapping[Key, str]) -> Ratings:
    """Return the ratings of people and of models."""
    keys = zip(chosen["judge"], chosen["model_answered"], strict=True)
    raters = [names.get(key, key[0]) for key in keys]
    return Ratings.of_preferences(
        raters, chosen["pair"].to_list(), chosen["probability"].to_numpy(np.float64)
    )


def _person(
    name: str, key: Key, cards: pd.DataFrame, chosen: pd.DataFrame, rng: np.random.Generator
) -> PersonAudit:
    own = cards[(cards["judge"] == key[0]) & (cards["expert"] == key[1])]
    answered = own[own["state"] == "answered"]
    asked = answered[answered["kind"] == "question"]
    letters = asked["choice"][asked["choice"].isin(["a", "b"])]
    checks = answered[answered["kind"] == "attention"]
    confidence = answered["confidence"].dropna()
    mine = chosen[(chosen["judge"] == key[0]) & (chosen["model_answered"] == key[1])]
    return PersonAudit(
        name=name,
        judge=key[0],
        answers=len(asked),
        undone=int(((own["state"] == "undone") & (own["kind"] == "question")).sum()),
        first_shown=_share(letters == "a"),
        retest=_retest(name, answered, mine, rng),
        attention=len(checks),
        attentive=_share(checks["choice"] == checks["expected"]),
        seconds=float(answered["seconds"].median()),
        fast=float((answered["seconds"] < FAST).mean()),
        confidence=float(confidence.mean()) if len(confidence) else None,
    )


def _share(found: pd.Series) -> Interval | None:
    """Return the share of rows that are true; None without rows."""
    return wilson(float(found.mean()), len(found)) if len(found) else None


def _retest(
    name: str, answered: pd.DataFrame, mine: pd.DataFrame, rng: np.random.Generator
) -> RaterAgreement | None:
    """Return a person's agreement with their own earlier answers to the same questions."""
    parts = [_repeats(answered), _replicates(mine)]
    before, after = (choice_table(np.concatenate(side)) for side in zip(*parts, strict=True))
    return agreement((name, name), before, after, rng)


def _repeats(answered: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return P(a preferred) of the first and the second answer to questions asked twice."""
    first = answered["choice"].map(_FIRST).astype(float)
    preference = first.where(answered["order"] != "ba", 1.0 - first)
    said = answered.assign(preference=preference)[preference.notna()]
    once = said[said["kind"] == "question"][["question", "preference"]]
    twice = said[said["kind"] == "repeat"][["question", "preference"]]
    both = once.merge(twice, on="question", suffixes=("", "_again"))
    return (
        both["preference"].to_numpy(np.float64),
        both["preference_again"].to_numpy(np.float64),
    )


def _replicates(mine: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return P(a preferred) of the earlier and the later answer to a question in one order."""
    in_order = mine.sort_values("replicate")
    earlier = in_order.groupby(["pair", "order"])["probability"].shift()
    known = earlier.notna()
    return (
        earlier[known].to_numpy(np.float64),
        in_order["probability"][known].to_numpy(np.float64),
    )
