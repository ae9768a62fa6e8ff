"""How many pairs a campaign needs: the statistical power of its tests, by simulated campaigns.

*Statistical power* is the probability that a test finds what is there. It has nothing to do with
the power of a utility, at which a belief lies (`llm_elicit.density.fit_power`).

A judge is assumed who answers pairs drawn as the campaign's, by every simulated campaign anew, in
its orders and presentations, with the log-odds

    ℓ_ab = m + d + e,      ℓ_ba = m − d + e'

of the option shown first. The preference d of a pair is a random linear and quadratic rule on the
features plus a part that no rule describes, which both orders share; another part of it may be
particular to the presentation. Noise and d have the variances that make the correlation of a pair's
two answers the *reliability*, as the pilot measures it (`llm_elicit.pipeline.pilot`). In choices
the noise is logistic. The table of answers then goes through the functions that an audit calls:

* *verdict*: the judge is found to have a consistent preference (`audit.randomization`), at the
  level divided by the number of judges, as Holm's adjustment does if only one of them has a
  preference. With several presentations it must not depend on the wording, either.
* *effect*: a feature with a share of the rule's variance is found, adjusted over features
  (`audit.utility.measure_effects`). The feature differs between campaigns.
* *difference*: two judges whose preferences have a correlation are found to differ
  (`audit.repeats.judges_differ`, which a comparison of judges shows, too).
* *auc*: the 95 % interval of the area under the curve of data against λ is at most so wide, by a
  fit of the belief (`audit.utility.measure_auc`). Here the rule describes all of the preference. An
  audit's interval also counts what the features do not describe, once the answers show that there
  is such a part, and more pairs do not make that narrower but show it more often.

Sizes are simulated on a grid that is refined where the power is near the one wanted. A probit
regression on √n over the sizes around gives the number of pairs, with the interval of its Monte
Carlo error; for *auc*, log half-widths are regressed on log n. What is assumed of a judge has an
error of its own: simulate the ends of the pilot's interval, too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

from llm_elicit import density
from llm_elicit.audit.inference import Interval, size_by_margins, size_by_probit, wilson_interval
from llm_elicit.audit.presentations import PresentedResponse, measure_presentations
from llm_elicit.audit.randomization import RandomizationTest, feature_differences
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.repeats import judges_differ
from llm_elicit.audit.responses import Response, ResponseKind, build_response
from llm_elicit.audit.utility import measure_auc, measure_effects
from llm_elicit.comparisons.table import Choices, Comparisons, evidence_of, noise_of, sampling_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.density.settings import AnnealingSettings, FitSettings
from llm_elicit.density.utility.interaction import TARGET_GENERALIZABILITY
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.orchestrator.estimates import estimate
from llm_elicit.orchestrator.progress import SILENT, Progress
from llm_elicit.pipeline.pilot import AssumedJudge, assumed_of
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.planning.pairs import Plan, fewest_pairs, make_plan
from llm_elicit.spaces.features import FeatureSpace, Floats

Index = npt.NDArray[np.int64]
Question = Literal["verdict", "effect", "difference", "auc"]
QUESTIONS: tuple[Question, ...] = get_args(Question)
DEFAULT_QUESTIONS = QUESTIONS[:3]  # an AUC takes minutes: each campaign is fitted
DEFAULT_SIZES: Mapping[Question, float] = {"effect": 0.25, "difference": 0.5, "auc": 0.1}
"""The sizes that are asked about by default; a verdict has none."""

_OF_AUC = (
    "auc: simulated as if the features described all of the preference; what they do not describe "
    "widens the interval, whatever the number of pairs"
)
_LEVEL = 0.05
_MAX_PAIRS, _MAX_FITTED = 5_000, 1_500
_MARGIN = 0.1  # of power, by which the first sizes must enclose the one wanted
_SPREAD = 1.2  # ratio of the sizes around the number of pairs that seems needed
_FITS_PER_SIZE = 100  # of beliefs: a width says more than whether it is small enough
_UTILITY_ALONE = FitSettings(annealing=AnnealingSettings(moves=1, final_moves=0))
"""Settings of a fit of whose belief only the utility is used, which the sampler does not change."""


@dataclass(frozen=True)
class SizePower:
    """The power with one number of pairs.

    Attributes:
        pairs: number of pairs.
        campaigns: number of simulated campaigns.
        power: the share that succeeded, with its 95 % interval.
    """

    pairs: int
    campaigns: int
    power: Interval


@dataclass(frozen=True)
class QuestionPower:
    """The power for one question, over numbers of pairs.

    Attributes:
        question: "verdict", "effect", "difference" or "auc".
        size: the share of the preference that the feature has, 1 − the correlation of the two
            judges' preferences, or the half-width of the interval; None for a verdict.
        curve: the power with every number of pairs that was simulated, in order.
        own: the power with the campaign's own number.
        pairs: the number of pairs that reaches the power wanted; None if `most` does not.
        low, high: 95 % interval of `pairs` for the Monte Carlo error; None likewise.
        most: the largest number simulated.
        cost: USD of the pairs of all judges; None if unknown.
    """

    question: Question
    size: float | None
    curve: tuple[SizePower, ...]
    own: SizePower
    pairs: int | None
    low: int | None
    high: int | None
    most: int
    cost: float | None = None

    @property
    def label(self) -> str:
        """The question in words."""
        return {
            "verdict": "a consistent preference",
            "effect": f"a feature with {self.size or 0.0:.0%} of the preference",
            "difference": f"two judges who correlate at {1.0 - (self.size or 0.0):.2g}",
            "auc": f"the AUC within ± {self.size or 0.0:g}",
        }[self.question]


@dataclass(frozen=True)
class StatisticalPower:
    """How many pairs a campaign needs.

    Attributes:
        campaign: the campaign's name.
        pairs: its own number of pairs.
        power: the power that is wanted.
        judge: what is assumed of a judge.
        presentations: number of presentations of the campaign.
        questions: the power for each question.
        notes: what was not simulated.
    """

    campaign: str
    pairs: int
    power: float
    judge: AssumedJudge
    presentations: int
    questions: tuple[QuestionPower, ...]
    notes: tuple[str, ...] = ()

    @property
    def presentations_needed(self) -> int | None:
        """The presentations of a generalizability of .8 with many pairs; None if not known."""
        ratio = self.judge.wording / max(1.0 - self.judge.wording, 1e-9)
        needed = math.ceil(ratio / (1.0 / TARGET_GENERALIZABILITY - 1.0) - 1e-9)
        return needed if 0 < needed < _MAX_PAIRS else None

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each question and number of pairs: the power with its interval."""
        return pd.DataFrame([
            {
                "question": question.question, "size": question.size, "pairs": point.pairs,
                "campaigns": point.campaigns, "power": point.power.value,
                "low": point.power.low, "high": point.power.high,
                "own": point.pairs == self.pairs,
            }
            for question in self.questions for point in question.curve
        ])  # fmt: skip


def power(  # noqa: PLR0913 - the public function carries every choice a caller can make
    campaign: str | Path | Campaign,
    *,
    questions: Collection[str] = DEFAULT_QUESTIONS,
    sizes: Mapping[Question, float] | None = None,
    judge: str | None = None,
    reliability: float | None = None,
    position: float | None = None,
    wording: float | None = None,
    described: float = 0.8,
    answers: ResponseKind | None = None,
    power: float = 0.8,
    simulations: int = 200,
    seed: int = 0,
    progress: Progress = SILENT,
) -> StatisticalPower:
    """Return how many pairs a campaign needs, by simulated campaigns.

    Args:
        campaign: the campaign.
        questions: of "verdict", "effect", "difference" and "auc", which takes minutes.
        sizes: what is to be found, by question; see `QuestionPower.size` and `DEFAULT_SIZES`.
        judge: the judge; by default the least reliable one of the pilot.
        reliability, position, wording, answers: see `AssumedJudge`; by default those of the pilot.
        described: see `AssumedJudge`.
        power: the power wanted.
        simulations: simulated campaigns at every size near the result.
        seed: seed of all random numbers.
        progress: receives every change.

    Raises:
        InputError: there is no pilot and no reliability, a number is out of range, or the campaign
            is a grid.

    Examples:
        >>> result = power("simulated", questions=["verdict"], reliability=0.9, simulations=10)
        >>> 6 <= result.questions[0].pairs < 30
        True
    """
    run = Run.open(campaign)
    if not 0.1 <= power <= 0.99 or simulations < 10:
        raise InputError(
            f"power {power:g}, {simulations} simulations: a power must be from 0.1 to 0.99, and at "
            "least 10 simulations are needed"
        )
    if unknown := set(questions) - set(QUESTIONS):
        raise InputError(f"power: no question {min(unknown)!r}; known: {', '.join(QUESTIONS)}")
    stated = {"position": position, "wording": wording, "answers": answers}
    assumed = _assume(run.campaign, judge, described, {**stated, "reliability": reliability})
    simulator = Simulator(run.campaign, run.space, assumed)
    targets = {**DEFAULT_SIZES, **(sizes or {})}
    question_sizes = {name: targets.get(name) for name in QUESTIONS if name in questions}
    notes = simulator.notes
    if "auc" in question_sizes and run.space.table is None:
        del question_sizes["auc"]
        notes = (*notes, f"{run.space.name} has no table, so there is no AUC")
    if "auc" in question_sizes and assumed.described < 1.0:
        notes = (*notes, _OF_AUC)
    trials = {name: simulator.trial(name, size) for name, size in question_sizes.items()}
    results = []
    for name, trial in trials.items():
        show = partial(progress.stage, name)
        search = Search(trial, simulator.least, simulator.own, power, simulations, seed, show)
        result = search.run(name, question_sizes[name])
        cost = None if result.pairs is None else simulator.cost(result.pairs)
        results.append(replace(result, cost=cost))
    return StatisticalPower(
        campaign=run.campaign.name,
        pairs=simulator.own,
        power=power,
        judge=assumed,
        presentations=simulator.presentations,
        questions=tuple(results),
        notes=notes,
    )


def _assume(
    campaign: Campaign, judge: str | None, described: float, stated: Mapping[str, Any]
) -> AssumedJudge:
    """Return the assumptions about a judge: the stated ones, others from the pilot."""
    names = [item.name for item in campaign.judges]
    if judge is not None and judge not in names:
        raise UnknownNameError.of(f"power: {campaign.name}", "judge", judge, names)
    values = {name: value for name, value in stated.items() if value is not None}
    if "reliability" in values:
        fields = {"answers": "log-odds", "described": described, **values}
        return AssumedJudge(judge or names[0], **fields)
    judges = names if judge is None else [judge]
    assumed = (assumed_of(campaign, name, described) for name in judges)
    piloted = [item for item in assumed if item is not None]
    if not piloted:
        raise InputError(
            f"power: no pilot of {judge or campaign.name} has repeatable answers; run llm-elicit "
            "pilot, or give --reliability, the correlation of a pair's two answers"
        )
    return replace(min(piloted, key=lambda item: item.reliability), **values)


@dataclass(frozen=True)
class _Questions:
    """The questions of a plan, and the table of their answers without the answers."""

    plan: Plan
    design: Floats
    owners: Index
    content: Index
    table: Comparisons

    @property
    def presentation(self) -> Index:
        """The number of each pair's presentation, `(n,)`."""
        numbers = self.plan.presentations
        return np.zeros(len(self.plan.a), dtype=np.int64) if numbers is None else numbers


class Simulator:
    """Simulated campaigns: a judge's answers to plans drawn as the campaign's.

    Examples:
        >>> campaign = Campaign.load("simulated")
        >>> judge = AssumedJudge("expert", "log-odds", 0.5)
        >>> simulator = Simulator(campaign, campaign.load_space(), judge)
        >>> rng = np.random.default_rng(0)
        >>> questions = simulator.questions(50, seed=1)
        >>> answers = simulator.answers(questions, simulator.preference(questions, rng), rng)
        >>> len(answers), answers.judges
        (100, ['expert'])
    """

    def __init__(self, campaign: Campaign, space: FeatureSpace, judge: AssumedJudge) -> None:
        self.campaign, self.space, self.judge = campaign, space, judge
        self.own = campaign.design.pairs
        self.tested = max(len(campaign.judges) - len(campaign.controls), 1)
        first = self.questions(max(self.own, self.least), campaign.seed)
        self.presentations = int(first.presentation.max()) + 1

    @property
    def least(self) -> int:
        """The smallest number of pairs that is simulated."""
        return max(fewest_pairs(self.tested, _LEVEL), self.space.dimension, 6)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the parts of the campaign that are not simulated."""
        if self.campaign.design.rounds is None:
            return ()
        return ("rounds: all pairs are simulated as those of the first round, drawn from λ",)

    def _campaign_of(self, pairs: int) -> Campaign:
        design = self.campaign.design
        triads = min(design.triads, pairs // 3)
        changes = {"pairs": pairs, "rounds": None, "triads": triads}
        return self.campaign.model_copy(update={"design": design.model_copy(update=changes)})

    def cost(self, pairs: int) -> float | None:
        """Return the cost, USD, of this number of pairs for all judges; None if it is unknown."""
        campaign = self._campaign_of(pairs)
        lines = estimate(campaign, self.space, self.questions(pairs, campaign.seed).plan)
        costs = [line.cost for line in lines]
        return None if None in costs else float(sum(cost or 0.0 for cost in costs))

    def questions(self, pairs: int, seed: int) -> _Questions:
        """Return the questions about this number of pairs, drawn with this seed."""
        plan = make_plan(self.space, self._campaign_of(pairs).design, seed)
        numbers = np.arange(len(plan.a))
        response = Response.from_choices(Choices(plan.a, plan.b, np.ones(len(numbers)), numbers))
        design, owners = feature_differences(response, self.space)
        points = np.concatenate([plan.a, plan.b], axis=1)
        content = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1)
        return _Questions(
            plan, design[:, owners >= 0], owners[owners >= 0], content, self._empty_table(plan)
        )

    def _empty_table(self, plan: Plan) -> Comparisons:
        queries = list(plan)
        pair = np.array([query.pair for query in queries])
        order = np.array([query.order for query in queries])
        columns: dict[str, object] = {
            "judge": self.judge.name, "pair": pair, "order": order,
            "replicate": [query.replicate for query in queries],
            "template": self.campaign.design.templates[0],
            "prompt_hash": np.char.add(pair.astype(str), order),
            "verdict": "A", "probability": 0.5, "soft": self.judge.answers == "log-odds",
            **dict.fromkeys(("model_asked", "model_answered", "reply", "asked_at"), ""),
            **dict.fromkeys(("letter_mass", "attempts"), 1), "cached": False,
            **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), 0),
            **dict.fromkeys(("cost", "latency"), 0.0),
        }  # fmt: skip
        if plan.presentations is not None:
            columns["presentation"] = plan.presentations[pair].astype(str)
        for j, name in enumerate(self.space.names):
            columns[f"a_{name}"], columns[f"b_{name}"] = plan.a[pair, j], plan.b[pair, j]
        return Comparisons(pd.DataFrame(columns), self.space.names)

    def rule(
        self, questions: _Questions, rng: np.random.Generator, shares: Floats | None = None
    ) -> Floats:
        """Return a random rule's preferences `(n,)`, with a mean square of one.

        Args:
            questions: the questions.
            rng: draws the rule.
            shares: share of each feature in its variance, `(d,)`; random by default.
        """
        dimension = self.space.dimension
        shares = rng.dirichlet(np.ones(dimension)) if shares is None else shares
        total = np.zeros(len(questions.design))
        for j in range(dimension):
            columns = questions.design[:, questions.owners == j]
            total += math.sqrt(shares[j]) * _unit(columns @ rng.standard_normal(columns.shape[1]))
        return _unit(total)

    def preference(
        self,
        questions: _Questions,
        rng: np.random.Generator,
        shares: Floats | None = None,
        described: float | None = None,
    ) -> Floats:
        """Return a judge's preferences of a over b `(n,)`, with a mean square of one."""
        judge = self.judge
        described = judge.described if described is None else described
        unexplained = _unit(rng.standard_normal(len(questions.content))[questions.content])
        rule = self.rule(questions, rng, shares)
        common = _unit(math.sqrt(described) * rule + math.sqrt(1.0 - described) * unexplained)
        if self.presentations == 1 or not judge.wording:
            return common
        own = np.stack([self.rule(questions, rng) for _ in range(self.presentations)])
        particular = own[questions.presentation, np.arange(len(common))]
        return math.sqrt(1.0 - judge.wording) * common + math.sqrt(judge.wording) * particular

    def answers(
        self, questions: _Questions, preference: Floats, rng: np.random.Generator
    ) -> Comparisons:
        """Return the table of a judge's answers, by the preferences of all pairs `(n,)`."""
        table = copy.copy(questions.table)
        rows, (sd, position) = table.frame, self.judge.scale
        is_first = (rows["order"] == "ab").to_numpy(bool)
        d = sd * preference[rows["pair"].to_numpy(np.int64)]
        log_odds = position + np.where(is_first, d, -d)
        if self.judge.answers == "log-odds":
            noise = math.sqrt(1.0 - self.judge.reliability)
            first = expit(log_odds + noise * rng.standard_normal(len(rows)))
        else:
            first = (rng.random(len(rows)) < expit(log_odds)).astype(np.float64)
        table.frame = rows.assign(probability=np.where(is_first, first, 1.0 - first))
        return table

    def trial(self, question: Question, size: float | None) -> Callable[[int, int], float]:
        """Return the function that simulates a campaign: its outcome by pairs and seed.

        The outcome is above 0 if the campaign succeeds: 1, or of the AUC the logarithm of the
        half-width wanted over that of the interval.

        Raises:
            InputError: the size is out of range.
        """
        most = 0.5 if question == "auc" else 1.0
        if size is not None and not 0.0 < size <= most:
            raise InputError(f"power: {question} {size:g}; give a number above 0, at most {most:g}")
        run = {
            "verdict": self._verdict, "effect": self._effect, "difference": self._difference,
            "auc": self._auc,
        }[question]  # fmt: skip
        number = QUESTIONS.index(question)

        def simulate(pairs: int, seed: int) -> float:
            rng = np.random.default_rng([seed, number, pairs])
            return run(self.questions(pairs, int(rng.integers(2**32))), size or 0.0, rng)

        return simulate

    def _verdict(self, questions: _Questions, _: float, rng: np.random.Generator) -> float:
        preference, name = self.preference(questions, rng), self.judge.name
        table = self.answers(questions, preference, rng)
        settings = AuditSettings()
        response = build_response(table, name)
        p_value = RandomizationTest(response, self.space).run(settings.flips, rng).p_value
        if p_value * self.tested >= settings.level:
            return 0.0
        if self.presentations == 1:
            return 1.0
        presented = PresentedResponse.of(table, name)
        audit = measure_presentations(presented, name, self.space, settings, rng, {})
        if audit is None or audit.interaction.p_value * self.tested >= settings.level:
            return 1.0
        if audit.over_presentations is None:  # an audit decides by the fit, near the true share
            return float(self.judge.wording < 0.5)
        return float(audit.has_common_preference(settings.level))

    def _effect(self, questions: _Questions, size: float, rng: np.random.Generator) -> float:
        feature = int(rng.integers(self.space.dimension))
        others = np.arange(self.space.dimension) != feature
        shares = np.ones(self.space.dimension)
        if others.any():
            shares[feature] = size
            shares[others] = (1.0 - size) * rng.dirichlet(np.ones(int(others.sum())))
        table = self.answers(questions, self.preference(questions, rng, shares), rng)
        response, settings = build_response(table, self.judge.name), AuditSettings()
        effects = measure_effects(response, self.space, settings, rng)
        return float(effects[feature].p_holm < settings.level)

    def _difference(self, questions: _Questions, size: float, rng: np.random.Generator) -> float:
        first, independent = (self.preference(questions, rng) for _ in range(2))
        independent = _unit(independent - first * float(first @ independent) / float(first @ first))
        second = (1.0 - size) * first + math.sqrt(1.0 - (1.0 - size) ** 2) * independent
        name = self.judge.name
        tables = [(self.answers(questions, side, rng), name) for side in (first, second)]
        return float(judges_differ(tables, self.space, int(rng.integers(2**32))) < _LEVEL)

    def _auc(self, questions: _Questions, size: float, rng: np.random.Generator) -> float:
        preference, name = self.preference(questions, rng, described=1.0), self.judge.name
        table = self.answers(questions, preference, rng)
        belief = density.fit_evidence(
            evidence_of(table, name, self.campaign.fit),
            sampling=sampling_of(self.space),
            noise=noise_of(self.campaign.fit),
            seed=int(rng.integers(2**32)),
            settings=_UTILITY_ALONE,
        )
        area = measure_auc(belief, self.space, self.space.table_points(), rng)
        return math.log(2.0 * size / max(area.high - area.low, 1e-6))


def _unit(values: Floats) -> Floats:
    """Return values `(n,)` with a mean square of one; zeros stay."""
    size = math.sqrt(float(np.square(values).mean()))
    return values / size if size > 0.0 else values


@dataclass
class Search:
    """The search for the number of pairs that reaches a power; most simulations are near it.

    Attributes:
        trial: simulates a campaign, see `Simulator.trial`.
        least, own: the smallest number of pairs, and the campaign's own.
        target: the power wanted.
        simulations: campaigns at every size near the result.
        seed: seed of all random numbers.
        show: called as show(step, done, total).
        most: the largest number of pairs.
        outcomes: by number of pairs.
    """

    trial: Callable[[int, int], float]
    least: int
    own: int
    target: float
    simulations: int
    seed: int
    show: Callable[[str, int, int], None]
    most: int = _MAX_PAIRS
    outcomes: dict[int, list[float]] = field(default_factory=dict)

    def run(self, question: Question, size: float | None) -> QuestionPower:
        """Return the power over sizes, and the size that reaches the power wanted."""
        count, fit = self.simulations, size_by_probit
        if question == "auc":
            count, fit, self.most = min(count, _FITS_PER_SIZE), size_by_margins, _MAX_FITTED
        min_count, present_size = max(count // 8, 10), max(self.own, self.least)
        self.most = max(self.most, present_size)
        self._simulate(present_size, min_count)
        above, below = min(self.target + _MARGIN, 0.98), self.target - _MARGIN
        while (last := max(self.outcomes)) < self.most and self._power(last) < above:
            self._simulate(2 * last, min_count)
        while (first := min(self.outcomes)) > self.least and self._power(first) > below:
            self._simulate(first // 2, min_count)
        upper = min((n for n in self.outcomes if self._power(n) >= self.target), default=last)
        lower = max((n for n in self.outcomes if n < upper), default=upper)
        needed = fit(self.outcomes, self.target, math.sqrt(lower * upper))
        reached = last < self.most or self._point(last).power.high >= self.target
        for factors in ((1.0,), (1.0 / _SPREAD, _SPREAD), (1.0,)) if reached else ():
            for factor in factors:
                self._simulate(round(needed.value * factor), count)
            needed = fit(self.outcomes, self.target, needed.value)
        if 0.0 < self._power(present_size) < 1.0:
            self._simulate(present_size, count)
        pairs = low = high = None
        if reached and needed.value <= self.most:
            ends = round(needed.value), math.floor(needed.low), math.ceil(needed.high)
            pairs, low, high = (max(end, self.least) for end in ends)
        return QuestionPower(
            question=question,
            size=size,
            curve=tuple(self._point(n) for n in sorted(self.outcomes)),
            own=self._point(present_size),
            pairs=pairs,
            low=low,
            high=high,
            most=max(self.outcomes),
        )

    def _simulate(self, pairs: float, count: int) -> None:
        """Simulate campaigns with `pairs` pairs until there are `count` of them."""
        pairs = int(min(max(pairs, self.least), self.most))
        done = self.outcomes.setdefault(pairs, [])
        for number in range(len(done), count):
            done.append(self.trial(pairs, self.seed * 1_000_003 + number))
            self.show(f"{pairs} pairs", number + 1, count)

    def _power(self, pairs: int) -> float:
        """Return the share of the campaigns with `pairs` pairs that succeeded."""
        return float(np.mean(np.array(self.outcomes[pairs]) > 0.0))

    def _point(self, pairs: int) -> SizePower:
        count = len(self.outcomes[pairs])
        return SizePower(pairs, count, wilson_interval(self._power(pairs), count))
