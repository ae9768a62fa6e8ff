"""Hypotheses that were stated before asking, in a closed grammar, and their tests.

The audit makes all of these tests; their p-values are adjusted within a family:

- *consistent preference*: the randomization test of a preference. It is not met if the verdict is
  that the preference depends on the wording or follows the surface of the text.
- *follows the data*: the AUC is above 1/2 and the rank correlation above 0. p is the larger of the
  two-sided p-values that their 95 % intervals imply under a normal distribution.
- *effect*: the randomization test of a feature given the others; p = 1 if the direction
  differs.
- *differs*: the tests of `llm_elicit.audit.judge_comparison` over all features; p is the
  smallest adjusted one.
- *depends on the wording*: the permutation test of the interaction with the presentation.

A test that is still missing counts as p = 1, so that adjusted p-values can only fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, get_args

from scipy.stats import norm

from llm_elicit._util.settings import StrictModel
from llm_elicit.audit.inference import AdjustedTest, Interval, adjust_tests
from llm_elicit.audit.judge_comparison import JudgeComparison
from llm_elicit.audit.preference import DOUBTFUL_VERDICTS
from llm_elicit.audit.record import Audit, JudgeAudit
from llm_elicit.config.study import Claim, Correction, Hypothesis, Sign

_NORMAL_END = float(norm.ppf(0.975))

Compare = Callable[[str], JudgeComparison | None]
"""Compares the judges of a run, as `llm-elicit compare` does; None if it cannot."""


class _Outcome(AdjustedTest):
    """The result of an audit for a claim.

    Attributes:
        test, estimate: the test and the estimate; empty while it is missing.
        obstacle: why the claim cannot hold, whatever the p-value; empty if it can.
    """

    test: str = ""
    estimate: str = ""
    obstacle: str = ""

    @classmethod
    def of(cls, name: str, test: AdjustedTest, estimate: str, obstacle: str = "") -> Self:
        """Return the outcome of a test that the audit has made and adjusted."""
        p_values = test.model_dump(include=set(AdjustedTest.model_fields))
        return cls(**p_values, test=name, estimate=estimate, obstacle=obstacle)

    @classmethod
    def of_intervals(cls, name: str, p_value: float, estimate: str, obstacle: str = "") -> Self:
        """Return the outcome of a test that the audit does not adjust."""
        return cls.of(name, AdjustedTest(p_value=p_value, p_holm=p_value), estimate, obstacle)


class TestedHypothesis(_Outcome):
    """A hypothesis with its test.

    Attributes:
        run, judge, family: the run, the judge, and what the p-value is adjusted over.
        text: the hypothesis.
        outcome: whether it is met.
    """

    __test__ = False  # no test of pytest

    run: str
    judge: str
    family: str
    text: str
    outcome: Literal["met", "not met", "not tested"] = "not tested"


class RegisteredResults(StrictModel):
    """The results of a registered study, apart from exploratory ones.

    Attributes:
        name, created, digest: name, time and digest of the registration.
        alpha, correction: the level, and the adjustment within a family.
        hypotheses: the registered hypotheses.
        exploratory: tests below the level that were not registered, as the audits adjust them.
        deviations: what differs from the registration.
    """

    name: str
    created: str
    digest: str
    alpha: float
    correction: Correction
    hypotheses: tuple[TestedHypothesis, ...]
    exploratory: tuple[TestedHypothesis, ...]
    deviations: tuple[str, ...]

    def of_run(self, run: str) -> RegisteredResults:
        """Return the results of one run."""
        parts = {
            name: tuple(test for test in getattr(self, name) if test.run == run)
            for name in ("hypotheses", "exploratory")
        }
        return self.model_copy(update=parts)

    @property
    def summary(self) -> str:
        """The numbers of hypotheses that are met, and of deviations, in one line."""
        outcomes = [test.outcome for test in self.hypotheses]
        parts = [f"{outcomes.count('met')} of {len(outcomes)} hypotheses met"]
        if "not tested" in outcomes:
            parts.append(f"{outcomes.count('not tested')} not tested yet")
        number = len(self.deviations)
        parts.append(f"{number or 'no'} deviation{'' if number == 1 else 's'}")
        return ", ".join(parts)


def _evaluate(hypothesis: Hypothesis, audit: Audit, compare: Compare) -> _Outcome | None:
    """Return the result of an audit for a hypothesis; None if the audit does not measure it."""
    judges = {judge.name: judge for judge in audit.judges}
    judge = judges.get(hypothesis.judge)
    if judge is None or (hypothesis.other is not None and hypothesis.other not in judges):
        return None
    if hypothesis.claim == "consistent preference":
        doubtful = judge.verdict in DOUBTFUL_VERDICTS
        estimate = f"R² {_interval_text(judge.preference.reliability)}"
        obstacle = judge.verdict if doubtful else ""
        return _Outcome.of("randomization of pairs", judge.preference, estimate, obstacle)
    if hypothesis.claim == "depends on the wording":
        presentations = judge.presentations
        if presentations is None:
            return None
        common = f"common share {_interval_text(presentations.common)}"
        return _Outcome.of("permutation of wordings", presentations.interaction, common)
    if hypothesis.claim == "effect":
        return _evaluate_effect(hypothesis, judge)
    return (
        _evaluate_difference(hypothesis, compare(hypothesis.run))
        if hypothesis.other
        else _evaluate_data_agreement(judge)
    )


def _evaluate_effect(hypothesis: Hypothesis, judge: JudgeAudit) -> _Outcome | None:
    effect = next((e for e in judge.effects if e.name == hypothesis.feature), None)
    if effect is None:
        return None
    estimate: str = effect.direction or "no direction"
    if effect.value is not None:
        ends = "" if effect.low is None else f" [{effect.low:.3f}, {effect.high:.3f}]"
        estimate += f" {effect.value:.3f}{ends}"
    outcome = _Outcome.of("randomization given the other features", effect, estimate)
    if effect.direction == hypothesis.sign:
        return outcome
    changed = {"p_value": 1.0, "p_is_bound": False, "obstacle": "another direction"}
    return outcome.model_copy(update=changed)


def _evaluate_data_agreement(judge: JudgeAudit) -> _Outcome | None:
    data = judge.discrimination
    if data is None:
        return None
    p_value = max(_p_above(data.auc, 0.5), _p_above(data.rank_correlation, 0.0))
    estimate = (
        f"AUC {_interval_text(data.auc)}, rank correlation {_interval_text(data.rank_correlation)}"
    )
    obstacle = "" if judge.preference.consistent else judge.verdict
    return _Outcome.of_intervals("intervals of both", p_value, estimate, obstacle)


def _p_above(interval: Interval, null: float) -> float:
    """Return the two-sided p-value of `null`, from a 95 % interval; 1 if the value is not above it.

    Examples:
        >>> round(_p_above(Interval(value=0.3, low=0.0, high=0.4), 0.0), 6)
        0.05
        >>> _p_above(Interval(value=-0.3, low=-0.4, high=0.0), 0.0)
        1.0
    """
    if interval.value <= null:
        return 1.0
    spread = (interval.value - interval.low) / _NORMAL_END
    return 0.0 if spread <= 0.0 else float(2.0 * norm.sf((interval.value - null) / spread))


def _evaluate_difference(
    hypothesis: Hypothesis, comparison: JudgeComparison | None
) -> _Outcome | None:
    sides = {hypothesis.judge, hypothesis.other}
    for difference in () if comparison is None else comparison.differences:
        if {difference.first, difference.second} == sides:
            p_value = min(feature.p_holm for feature in difference.features)
            names = ", ".join(difference.differing_features) or "no feature"
            estimate = f"distance {_interval_text(difference.distance)}; {names}"
            return _Outcome.of_intervals("posterior draws of both", p_value, estimate)
    return None


def _interval_text(estimate: Interval | None) -> str:
    return "not measured" if estimate is None else estimate.text()


def decide_hypotheses(
    hypotheses: Sequence[Hypothesis],
    audits: Mapping[str, Audit],
    compare: Compare,
    alpha: float = 0.05,
    correction: Correction = "holm",
) -> tuple[TestedHypothesis, ...]:
    """Return every hypothesis with its test, its p-value adjusted within its family.

    Args:
        hypotheses: the hypotheses of a study.
        audits: the audits by run.
        compare: compares the judges of a run.
        alpha: the level of each family.
        correction: the adjustment within a family.
    """
    tests = []
    for hypothesis in hypotheses:
        audit = audits.get(hypothesis.run)
        outcome = None if audit is None else _evaluate(hypothesis, audit, compare)
        tests.append(_with_outcome(hypothesis, outcome))
    for family in dict.fromkeys(test.family for test in tests):
        indices = [index for index, test in enumerate(tests) if test.family == family]
        members = [tests[index] for index in indices]
        if correction == "holm":
            members = [test for test in adjust_tests(members) if test is not None]
        else:
            members = [test.model_copy(update={"p_holm": test.p_value}) for test in members]
        for index, test in zip(indices, members, strict=True):
            met = test.test and not test.obstacle and test.p_holm < alpha
            tests[index] = test.model_copy(update={"outcome": "met"}) if met else test
    return tuple(tests)


def _with_outcome(hypothesis: Hypothesis, outcome: _Outcome | None) -> TestedHypothesis:
    """Return a hypothesis with its test, adjusted as in the audit; it counts as not met."""
    fields: dict[str, Any] = {"text": str(hypothesis)}
    fields |= hypothesis.model_dump(include={"run", "judge", "family"})
    if outcome is None:
        return TestedHypothesis(**fields, p_value=1.0)
    return TestedHypothesis(**fields, **outcome.model_dump(), outcome="not met")


def explore(
    hypotheses: Sequence[Hypothesis], audits: Mapping[str, Audit], alpha: float
) -> Iterator[TestedHypothesis]:
    """Yield the significant tests of the audits that no hypothesis covers."""
    keys = {"run", "claim", "judge", "feature"}
    registered = [hypothesis.model_dump(include=keys) for hypothesis in hypotheses]
    claims: tuple[Claim, ...] = (
        "consistent preference", "follows the data", "depends on the wording",
    )  # fmt: skip
    for run, audit in audits.items():
        for judge in audit.judges:
            candidates = [Hypothesis(run=run, claim=claim, judge=judge.name) for claim in claims]
            for effect in judge.effects:
                if effect.direction in get_args(Sign):
                    about: dict[str, Any] = {"feature": effect.name, "sign": effect.direction}
                    about |= {"run": run, "claim": "effect", "judge": judge.name}
                    candidates.append(Hypothesis(**about))
            for hypothesis in candidates:
                if hypothesis.model_dump(include=keys) in registered:
                    continue
                outcome = _evaluate(hypothesis, audit, _refuse_comparison)
                if outcome and not outcome.obstacle and outcome.p_holm < alpha:
                    yield _with_outcome(hypothesis, outcome)


def _refuse_comparison(run: str) -> JudgeComparison:
    """Raise an error: no exploratory test compares judges."""
    raise AssertionError(f"{run}: only stated hypotheses compare judges")
