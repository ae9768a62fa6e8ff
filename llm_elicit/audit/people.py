"""Agreement, attention and response times of people, and estimates of their preference.

A *rater* is an expert or a model. Raters are compared over the pairs that both have judged, by the
point preferred, whichever was shown first. If a rater gave several answers about a pair (in both
orders, or as replicates), agreement is the expectation over one answer drawn at random. Log-odds
and stated probabilities count as the choice that they imply. Answers without a choice do not count;
"equal" is a third choice beside the two points.

Chance is corrected for by Cohen's (1960) kappa for two raters, and by Krippendorff's (2004) alpha
for any number of raters with missing answers, both nominal: 1 for raters that always agree, 0 for
raters that agree as often as by chance. Their 95 % intervals are percentiles of a bootstrap over
pairs. Both are written out here, since the bootstrap needs them for many tables at once.

*What a model adds* (`estimate_people_preference`). A model answers all pairs, people a random part
of them. Effects are those of a linear regression of people's preferences less 1/2 on differences
of the features, over all pairs drawn from λ, estimated by prediction-powered inference
(`llm_elicit.audit.inference.prediction_powered`) whatever the model answers. Pairs are the sample:
the people who answer are these people. Of pairs chosen by people, or by a rule, nothing holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.special import expit

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import (
    Interval,
    PredictionPowered,
    percentile_interval,
    prediction_powered,
    share_interval,
    wilson_interval,
)
from llm_elicit.audit.reference import KernelDensity, Reference
from llm_elicit.audit.responses import build_response
from llm_elicit.audit.utility import MAX_ROWS
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.spaces.circles import Circle
from llm_elicit.spaces.features import FeatureSpace, Floats

FAST_SECONDS = 1.0
"""Seconds below which an answer counts as too fast to have read two cards."""

PersonKey = tuple[str, str]
"""The name of a judge with backend human, and the name of an expert who answers for it."""
AgreementMeasure = Callable[[Floats], Floats]
"""A measure of agreement of tables of answers; NaN where it is undefined."""

_FIRST_PREFERENCE = {"a": 1.0, "b": 0.0, "equal": 0.5}
"""P(first shown preferred), by what was chosen."""
_RESAMPLES = 1_000
"""Number of bootstrap resamples."""
_MIN_PAIRS = 5
"""Smallest number of common pairs for which chance-corrected agreement is reported."""
_MIN_DISAGREEMENT = 1e-12
"""Expected disagreement below which agreement cannot be corrected for chance."""


class RaterAgreement(StrictModel):
    """Agreement of two raters, or of an expert's answers with earlier ones.

    Attributes:
        first, second: names of the raters.
        pairs: number of pairs that both judged; for one expert, number of repeated questions.
        share: share of these on which the answers agree.
        kappa: Cohen's kappa; None if all answers of both are the same.
    """

    first: str
    second: str
    pairs: int
    share: Interval
    kappa: Interval | None


class GroupAgreement(StrictModel):
    """Agreement of several raters.

    Attributes:
        raters: names of the raters.
        pairs: number of pairs that at least two raters judged.
        alpha: Krippendorff's alpha; None if all answers are the same.
    """

    raters: list[str]
    pairs: int
    alpha: Interval | None


@dataclass(frozen=True)
class Ratings:
    """The choices of raters about pairs.

    Attributes:
        names: the raters.
        shares: the share of a rater's answers about a pair in each of k categories,
            `(raters, pairs, k)`; zeros where a rater has no choice.
    """

    names: list[str]
    shares: Floats

    @classmethod
    def from_preferences(
        cls, raters: Sequence[str], pairs: Sequence[int], preference: Floats
    ) -> Ratings:
        """Return the ratings of answers, in the categories "b", "equal" and "a".

        Args:
            raters, pairs: who answered and about what, `(n,)`.
            preference: P(a preferred), `(n,)`.
        """
        names, rater = np.unique(raters, return_inverse=True)
        distinct, pair = np.unique(pairs, return_inverse=True)
        counts = np.zeros((len(names), len(distinct), 3))
        np.add.at(counts, (rater, pair), choice_indicators(preference))
        total = counts.sum(axis=2, keepdims=True)
        return cls([str(name) for name in names], counts / np.maximum(total, 1.0))

    def select(self, names: Sequence[str]) -> Ratings:
        """Return the ratings of some raters, in this order."""
        return Ratings(list(names), self.shares[[self.names.index(name) for name in names]])


def choice_indicators(preference: Floats) -> Floats:
    """Return P(a preferred) `(n,)` as indicators of "b", "equal" and "a", `(n, 3)`.

    Examples:
        >>> choice_indicators(np.array([0.2, 0.5])).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return np.asarray(np.eye(3)[(np.sign(preference - 0.5) + 1.0).astype(np.int64)])


def measure_rater_agreement(
    names: tuple[str, str], first: Floats, second: Floats, rng: np.random.Generator
) -> RaterAgreement | None:
    """Return the agreement of two raters; None without a pair that both have judged.

    Args:
        names: the raters.
        first, second: the shares of each rater's answers in each category, `(pairs, k)`; a row
            of zeros is a pair that the rater has not judged.
        rng: generator of the bootstrap.

    Examples:
        >>> ada = choice_indicators(np.array([0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]))
        >>> ben = choice_indicators(np.array([0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]))
        >>> agreement = measure_rater_agreement(("ada", "ben"), ada, ben, np.random.default_rng(0))
        >>> agreement.share.value, agreement.kappa.value
        (0.75, 0.5)
    """
    tables = first[:, :, None] * second[:, None, :]
    tables = tables[tables.sum(axis=(1, 2)) > 0]
    if not len(tables):
        return None
    share = float(tables.trace(axis1=1, axis2=2).mean())
    return RaterAgreement(
        first=names[0],
        second=names[1],
        pairs=len(tables),
        share=wilson_interval(share, len(tables)),
        kappa=_bootstrap_interval(tables, cohen_kappa, rng),
    )


def mean_agreement(own: Floats, others: Floats) -> tuple[Interval, int] | None:
    """Return how often a rater agrees with another one drawn at random, and over how many pairs.

    Args:
        own: the shares of the rater's answers in each category, `(pairs, k)`.
        others: those of the other raters, `(raters, pairs, k)`.

    Returns:
        None without a pair that the rater and another one have judged.

    Examples:
        >>> ada, ben = (choice_indicators(np.array(p)) for p in ([0.0, 1.0], [0.0, 0.5]))
        >>> mean_agreement(ada, ben[None])[0].value
        0.5
    """
    total = others.sum(axis=0)
    number = total.sum(axis=1) * own.sum(axis=1)
    if not number.any():
        return None
    share = (own * total).sum(axis=1)[number > 0] / number[number > 0]
    return wilson_interval(float(share.mean()), len(share)), len(share)


def measure_group_agreement(ratings: Ratings, rng: np.random.Generator) -> GroupAgreement | None:
    """Return the agreement of all raters; None if no pair was judged by two."""
    raters = (ratings.shares.sum(axis=2) > 0).sum(axis=0)
    shared = raters >= 2
    if not shared.any():
        return None
    shares = ratings.shares[:, shared]
    total = shares.sum(axis=0)
    # The answers of every two raters; a rater is not compared with itself.
    self_tables = np.einsum("rpi,rpj->pij", shares, shares)
    tables = total[:, :, None] * total[:, None, :] - self_tables
    tables /= (raters[shared] - 1.0)[:, None, None]
    return GroupAgreement(
        raters=ratings.names,
        pairs=int(shared.sum()),
        alpha=_bootstrap_interval(tables, krippendorff_alpha, rng),
    )


def cohen_kappa(table: Floats) -> Floats:
    """Return Cohen's kappa of tables of two raters' answers `(..., k, k)`; NaN if undefined.

    Examples:
        >>> float(cohen_kappa(np.array([[20.0, 5.0], [10.0, 15.0]])).round(3))
        0.4
    """
    total = table.sum(axis=(-2, -1))
    observed = table.trace(axis1=-2, axis2=-1) / total
    by_chance = (table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1) / total**2
    room = 1.0 - by_chance
    kappa = (observed - by_chance) / np.maximum(room, _MIN_DISAGREEMENT)
    return np.where(room > _MIN_DISAGREEMENT, kappa, np.nan)


def krippendorff_alpha(table: Floats) -> Floats:
    """Return Krippendorff's nominal alpha of coincidence matrices `(..., k, k)`; NaN if undefined.

    Examples:
        >>> float(krippendorff_alpha(np.array([[10.0, 4.0], [4.0, 2.0]])).round(3))
        0.095
    """
    total, values = table.sum(axis=(-2, -1)), table.sum(axis=-1)
    observed = total - table.trace(axis1=-2, axis2=-1)
    different = total**2 - np.square(values).sum(axis=-1)
    by_chance = different / np.maximum(total - 1.0, _MIN_DISAGREEMENT)
    ratio = observed / np.maximum(by_chance, _MIN_DISAGREEMENT)
    return np.where(by_chance > _MIN_DISAGREEMENT, 1.0 - ratio, np.nan)


def _bootstrap_interval(
    tables: Floats, measure: AgreementMeasure, rng: np.random.Generator
) -> Interval | None:
    """Return a measure of the sum of tables, with its bootstrap interval over them.

    Args:
        tables: one table of answers for each pair, `(pairs, k, k)`.
        measure: measure of the agreement in a table.
        rng: generator of the bootstrap.

    Returns:
        None if the measure is undefined, or if there are fewer than five pairs.
    """
    value = float(measure(tables.sum(axis=0)))
    if np.isnan(value) or len(tables) < _MIN_PAIRS:
        return None
    # Equal tables are resampled together, so that the time depends on the number of different ones.
    distinct_tables, counts = np.unique(tables.reshape(len(tables), -1), axis=0, return_counts=True)
    resample_counts = rng.multinomial(len(tables), counts / len(tables), size=_RESAMPLES)
    resampled = measure((resample_counts @ distinct_tables).reshape(-1, *tables.shape[1:]))
    return percentile_interval(value, resampled)


class PersonAudit(StrictModel):
    """The answers of one expert.

    Attributes:
        name, judge: the expert, and the judge in the campaign.
        answers: number of answers, without repeats and attention questions.
        undone_answers: number of these that were undone.
        first_shown_share: share of choices of the option shown first; 1/2 without a position
            effect, None without a choice.
        retest: agreement of the expert's answers to repeated questions, in either order, and to
            replicates; None if there are none.
        attention_questions: number of attention questions that were answered.
        attention_share: share of attention questions that were answered correctly; None if there
            are none.
        median_seconds: median response time in seconds.
        fast_share: share of answers in less than a second.
        mean_confidence: mean of the stated confidence, 0 to 1; None if none was stated.
    """

    name: str
    judge: str
    answers: int
    undone_answers: int
    first_shown_share: Interval | None
    retest: RaterAgreement | None
    attention_questions: int
    attention_share: Interval | None
    median_seconds: float
    fast_share: float
    mean_confidence: float | None


class PeopleAudit(StrictModel):
    """The experts of a run, and their agreement with each other and with models.

    Attributes:
        people: one record for each expert.
        agreements: agreement of every two raters with a common pair, experts first.
        people_agreement: agreement of all experts; None for one expert, or without a common pair.
        overall_agreement: agreement of experts and models together; None without models, or without
            a common pair.
    """

    people: list[PersonAudit]
    agreements: list[RaterAgreement]
    people_agreement: GroupAgreement | None
    overall_agreement: GroupAgreement | None


@dataclass(frozen=True)
class PeopleEvidence:
    """The answers that the audit of experts is based on.

    Attributes:
        comparisons: the judgments of the run.
        cards: the cards that experts have answered, see
            `llm_elicit.orchestrator.judgments.people_cards`.
    """

    comparisons: Comparisons
    cards: pd.DataFrame


def audit_people(evidence: PeopleEvidence, seed: int = 0) -> PeopleAudit | None:
    """Return the agreement, attention and response times of experts; None without their answers.

    Args:
        evidence: the answers of experts and of models.
        seed: seed of the bootstrap.
    """
    cards, frame = evidence.cards, evidence.comparisons.frame
    answered_cards = cards[cards["state"] == "answered"]
    if answered_cards.empty:
        return None
    rng = np.random.default_rng([seed, 0xA64EE])
    # Experts by their names, preceded by the judge where another expert or a judge has this name.
    keys = list(dict.fromkeys(zip(answered_cards["judge"], answered_cards["expert"], strict=True)))
    all_names = [expert for _, expert in keys]
    all_names += sorted(set(evidence.comparisons.judges) - {judge for judge, _ in keys})
    names = {key: key[1] if all_names.count(key[1]) == 1 else "/".join(key) for key in keys}
    choices = frame[frame["probability"].notna()]
    raters = zip(choices["judge"], choices["model_answered"], strict=True)
    ratings = Ratings.from_preferences(
        [names.get(rater, rater[0]) for rater in raters],
        choices["pair"].to_list(),
        choices["probability"].to_numpy(np.float64),
    )
    people = [name for name in names.values() if name in ratings.names]
    models = [name for name in ratings.names if name not in people]
    all_ratings = ratings.select([*people, *models])
    person_audits = [_audit_person(names[key], key, cards, choices, rng) for key in names]
    raters = zip(all_ratings.names, all_ratings.shares, strict=True)
    agreements = [
        measure_rater_agreement((first, second), first_shares, second_shares, rng)
        for (first, first_shares), (second, second_shares) in combinations(raters, 2)
    ]
    return PeopleAudit(
        people=person_audits,
        agreements=[pair for pair in agreements if pair is not None],
        people_agreement=measure_group_agreement(ratings.select(people), rng),
        overall_agreement=measure_group_agreement(all_ratings, rng) if models else None,
    )


def _audit_person(
    name: str, key: PersonKey, cards: pd.DataFrame, choices: pd.DataFrame, rng: np.random.Generator
) -> PersonAudit:
    own_cards = cards[(cards["judge"] == key[0]) & (cards["expert"] == key[1])]
    answered_cards = own_cards[own_cards["state"] == "answered"]
    questions = answered_cards[answered_cards["kind"] == "question"]
    letters = questions["choice"][questions["choice"].isin(["a", "b"])]
    checks = answered_cards[answered_cards["kind"] == "attention"]
    confidence = answered_cards["confidence"].dropna()
    own_choices = choices[(choices["judge"] == key[0]) & (choices["model_answered"] == key[1])]
    return PersonAudit(
        name=name,
        judge=key[0],
        answers=len(questions),
        undone_answers=len(own_cards.query("state == 'undone' and kind == 'question'")),
        first_shown_share=share_interval((letters == "a").to_numpy()),
        retest=_measure_retest(name, answered_cards, own_choices, rng),
        attention_questions=len(checks),
        attention_share=share_interval((checks["choice"] == checks["expected"]).to_numpy()),
        median_seconds=float(answered_cards["seconds"].median()),
        fast_share=float((answered_cards["seconds"] < FAST_SECONDS).mean()),
        mean_confidence=float(confidence.mean()) if len(confidence) else None,
    )


def _measure_retest(
    name: str, answered_cards: pd.DataFrame, own_choices: pd.DataFrame, rng: np.random.Generator
) -> RaterAgreement | None:
    """Return the agreement of an expert's answers with earlier answers to the same questions.

    Questions that were asked a second time count, and so do replicates, which are two answers to a
    question in the same order.
    """
    first_preference = answered_cards["choice"].map(_FIRST_PREFERENCE).astype(float)
    preference = first_preference.where(answered_cards["order"] != "ba", 1.0 - first_preference)
    answers = answered_cards.assign(preference=preference)[preference.notna()]
    first_answers = answers[answers["kind"] == "question"][["question", "preference"]]
    repeat_answers = answers[answers["kind"] == "repeat"][["question", "preference"]]
    repeated = first_answers.merge(repeat_answers, on="question", suffixes=("", "_again"))
    in_order = own_choices.sort_values("replicate")
    earlier = in_order.groupby(["pair", "order"])["probability"].shift()
    later = in_order["probability"][earlier.notna()]
    earlier_answers = pd.concat([repeated["preference"], earlier.dropna()])
    later_answers = pd.concat([repeated["preference_again"], later])
    once, again = (side.to_numpy(np.float64) for side in (earlier_answers, later_answers))
    tables = choice_indicators(once), choice_indicators(again)
    return measure_rater_agreement((name, name), *tables, rng)


_MIN_FREEDOM = 8
"""Least number of common pairs beyond the columns of the regression."""


class PeopleEffect(PredictionPowered):
    """A preference of people: by their own answers, and by a model's as well; 90 % intervals.

    For a number, the effect is the share of choices that a point gains if the feature rises by half
    its range and the others stay; for a category, if it replaces the first one. For the data, it is
    the share of choices for the point where the data are denser; one half without a relation.

    Attributes:
        name: the feature, with the category; or "data".
    """

    name: str


class PeoplePreference(StrictModel):
    """People's preference, estimated from a model's answers to all pairs and theirs to a part.

    Attributes:
        people, model: the judges.
        pairs: number of common pairs.
        model_pairs: number of pairs that the model answered.
        effects: one for each feature, and that of the data; empty for a reason.
        reason: why there is no estimate.
        next_pairs: numbers in the model's run of the pairs that people should get next, in this
            order: the next of its plan. Any beginning of the plan is a random part of it.
    """

    people: str
    model: str
    pairs: int
    model_pairs: int
    effects: tuple[PeopleEffect, ...] = ()
    reason: str = ""
    next_pairs: tuple[int, ...] = ()


@dataclass(frozen=True)
class PairAnswers:
    """One judge's answers to pairs that were drawn from λ.

    Attributes:
        name: the judge.
        answers: the table of its answers, and its name there.
        random_pairs: the number of pairs drawn from λ, which come first; None if it is not known
            how the pairs were chosen.
    """

    name: str
    answers: tuple[Comparisons, str]
    random_pairs: int | None

    def table(self) -> tuple[pd.DataFrame, Floats]:
        """Return a row per pair of points, by its number: the key of the points, and answers.

        Returns:
            Columns `preference`, the mean preference for the first point less 1/2, and `pair`; and
            the two points of each row, `(n, 2, d)`, in an order that does not depend on which was
            called a.
        """
        response = build_response(*self.answers)
        points, value = np.stack([response.a, response.b], axis=1), response.value
        if response.kind == "log-odds":  # on the scale of people's answers
            value = expit(value) - 0.5
        rows, column = np.arange(len(value)), (response.a != response.b).argmax(axis=1)
        turned = response.a[rows, column] > response.b[rows, column]
        points[turned] = points[turned, ::-1]
        table = pd.DataFrame(
            {"preference": np.where(turned, -value, value), "pair": response.pair, "row": rows},
            # A number that was written and read again may differ in its last bit.
            index=[pair.tobytes() for pair in points.astype(np.float32)],
        )
        if self.random_pairs is not None:
            table = table[table["pair"] < self.random_pairs]
        by_points = table.groupby(level=0, sort=False)
        table = by_points.agg({"preference": "mean", "pair": "first", "row": "first"})
        table = table.sort_values("pair")
        return table, points[table["row"]]


def estimate_people_preference(
    people: PairAnswers, model: PairAnswers, reference: Reference, seed: int = 0
) -> PeoplePreference:
    """Estimate people's preference from their answers and a model's; see `PeoplePreference`.

    Args:
        people, model: their answers.
        reference: the feature space, and the data.
        seed: seed of the rows of the data, if there are many.
    """
    (people_rows, _), (all_rows, points) = people.table(), model.table()
    is_common = all_rows.index.isin(people_rows.index)
    n, total = int(is_common.sum()), len(all_rows)
    result = PeoplePreference(
        people=people.name, model=model.name, pairs=n, model_pairs=total,
        next_pairs=tuple(all_rows["pair"][~is_common].tolist()),
    )  # fmt: skip
    if model.random_pairs is None or (people.random_pairs is None and not is_common[:n].all()):
        judge = people.name if model.random_pairs is not None else model.name
        reason = f"it is unknown if the pairs of {judge} are a random sample or the first of a plan"
        return result.model_copy(update={"reason": reason})
    names, x = preference_columns(reference.space, points[:, 0], points[:, 1])
    if n < x.shape[1] + _MIN_FREEDOM:
        min_pairs = x.shape[1] + _MIN_FREEDOM
        reason = f"{n} common pairs drawn at random; at least {min_pairs} are needed"
        return result.model_copy(update={"reason": reason})
    y = people_rows["preference"].loc[all_rows.index[is_common]].to_numpy(np.float64)
    f = all_rows["preference"].to_numpy(np.float64)
    estimates = prediction_powered(x, y, f, is_common)
    if reference.data is not None:
        rng = np.random.default_rng([seed, 0x9E0])
        rows = reference.data[rng.permutation(len(reference.data))[:MAX_ROWS]]
        kernels = KernelDensity(reference.standardizer, rows, points.reshape(2 * total, -1))
        levels = kernels.log_density_at_sampling.reshape(total, 2)
        denser = -np.sign(np.diff(levels))
        estimates += prediction_powered(denser, y, f, is_common, centre=0.5)
    effects = [
        PeopleEffect(name=name, **dict(estimate))
        for name, estimate in zip([*names, "data"], estimates, strict=False)
        if name
    ]
    return result.model_copy(update={"effects": tuple(effects)})


def preference_columns(space: FeatureSpace, a: Floats, b: Floats) -> tuple[list[str], Floats]:
    """Return differences of the features of points `(n, d)`, `(n, p)`, and the names of effects.

    Periodic features have two columns without a name: they are adjusted for.
    """
    low, high = space.scale_ends
    scaled = (space.to_scale(a) - space.to_scale(b)) / (0.5 * (high - low))
    names: list[str] = []
    columns: list[Floats] = []
    for j, feature in enumerate(space.features):
        if space.categorical[j]:
            base, *others = feature.categories
            names += [f"{feature.name}: {category} for {base}" for category in others]
            codes = np.arange(1, len(feature.categories))
            indicators = [(points[:, j, None] == codes).astype(np.float64) for points in (a, b)]
            columns.append(indicators[0] - indicators[1])
        elif space.periodic[j]:
            names += ["", ""]
            circle = Circle.of(feature)
            columns.append(circle.vectors(a[:, j]) - circle.vectors(b[:, j]))
        else:
            names.append(feature.name)
            columns.append(scaled[:, j, None])
    return names, np.concatenate(columns, axis=1)
