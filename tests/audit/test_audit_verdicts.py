"""Verdicts over whole campaigns: judges without content, and judges whose scale is changed.

With --log-cli-level=INFO the counts of docs/benchmarks.md, "Verdicts", are shown. The planted
judges get as many campaigns each as the environment's VERDICT_CAMPAIGNS says.
"""

import logging
import os
from collections import Counter
from functools import cache

import numpy as np
import pytest

from audit.planted import Planted, ask, ask_each, constant
from audit.verdict_campaigns import JUDGES as PLANTED
from audit.verdict_campaigns import PREFERENCE, decided
from llm_elicit import density
from llm_elicit.audit.belief_power import evaluate_powers
from llm_elicit.audit.preference import decide_verdicts, measure_preference
from llm_elicit.audit.record import JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.responses import build_response
from llm_elicit.audit.utility import evaluate_utility
from llm_elicit.comparisons.table import evidence_of, sampling_of
from llm_elicit.config.campaign import Fit
from llm_elicit.spaces.features import FeatureSpace

pytestmark = pytest.mark.usefixtures("few_particles")

SPACE = FeatureSpace.load("countries")
PAIRS, CAMPAIGNS = 100, 80
_LOG = logging.getLogger(__name__)


def _logistic(log_odds):
    return 1.0 / (1.0 + np.exp(-log_odds))


def _of_pair(rng, mean, sd):
    """A position effect of each pair's own, the same in both orders."""
    effects = rng.normal(mean, sd, PAIRS)
    return lambda first, _: effects + rng.normal(0.0, 0.07, PAIRS)


def spread(rng):
    effect = _of_pair(rng, 0.5, 0.3)
    return lambda a, b: _logistic(effect(a, b))


def few_levels(rng):
    return lambda a, b: _logistic(rng.choice([0.0, 0.125, 0.25], PAIRS))


JUDGES = {
    "random choices": (lambda rng: constant(0.5), False),
    "constant letter": (lambda rng: constant(1.0), False),
    "position effect with spread": (spread, True),
    "few distinct levels": (few_levels, True),
    "hard letters at temperature 1": (spread, False),
}


def _verdict(log, seed, flips, name="judge"):
    settings = AuditSettings(flips=flips)
    response = build_response(log, name)
    one = measure_preference(response, SPACE, settings, np.random.default_rng(seed))
    return decide_verdicts([one], [None], settings.level)[0].verdict


def test_of_400_campaigns_without_content_few_are_called_consistent():
    alarms = 0
    for number, (name, (judge, soft)) in enumerate(JUDGES.items()):
        rngs = [np.random.default_rng([seed, number, 17]) for seed in range(CAMPAIGNS)]
        judges = {str(seed): Planted(judge(rng), rng) for seed, rng in enumerate(rngs)}
        log = ask_each(SPACE, judges, PAIRS, soft)
        found = Counter(_verdict(log, seed, 399, name) for seed, name in enumerate(judges))
        _LOG.info("%s: %s", name, dict(found))
        alarms += found["consistent preference"]
        if name in ("constant letter", "position effect with spread"):
            assert found["position only"] >= 0.85 * CAMPAIGNS
    _LOG.info("called consistent: %d of %d", alarms, CAMPAIGNS * len(JUDGES))
    assert alarms <= 0.065 * CAMPAIGNS * len(JUDGES)


def test_verdicts_on_planted_judges_are_right():
    campaigns = int(os.environ.get("VERDICT_CAMPAIGNS", "2"))
    right = quiet = alarms = 0
    for name, judge in PLANTED.items():
        counts = Counter(decided(name, seed).verdict for seed in range(campaigns))
        hits = sum(counts[verdict] for verdict in judge.right)
        _LOG.info("%s: %d right, %s", name, hits, dict(counts))
        right += hits
        assert hits >= 0.85 * campaigns - 1, name
        if judge.without_content:
            alarms, quiet = alarms + counts[PREFERENCE], quiet + campaigns
    total = campaigns * len(PLANTED)
    _LOG.info("right %d of %d; false preferences %d of %d", right, total, alarms, quiet)
    assert right >= 0.95 * total
    assert alarms <= 0.065 * quiet


def _shares(points):
    """Points on each feature's scale, from 0 to 1 over its range."""
    ends = SPACE.to_scale(np.stack([SPACE.low, SPACE.high]))
    return (SPACE.to_scale(points) - ends[0]) / (ends[1] - ends[0])


@pytest.mark.parametrize("pairs", [15, 30])
def test_a_faint_judge_is_found_from_few_pairs(pairs):
    """As faint and as repeatable as a real model: log-odds of sd .16, noise .08 a pair."""
    found = Counter()
    for seed in range(40):
        rng = np.random.default_rng([seed, 31])

        def choose(a, b, rng=rng):
            weights = np.linspace(0.35, 0.0, SPACE.dimension)
            log_odds = 0.1 + (_shares(a) - _shares(b)) @ weights
            return _logistic(log_odds + rng.normal(0, 0.08, len(a)))

        found[_verdict(ask(SPACE, choose, rng, pairs, soft=True), seed, flips=399)] += 1
    _LOG.info("%d pairs: %s", pairs, dict(found))
    assert found["consistent preference"] >= (36 if pairs == 15 else 40)


@cache
def _audited(scale):
    """A whole campaign of a judge that prefers high values of the first and the middle of the next.

    Fitted, taken to one nat over λ as the fit stage does, and audited.
    """
    rng = np.random.default_rng([1, 41])

    def choose(a, b):
        one, other = (x[:, 0] - 2.0 * (x[:, 1] - 0.5) ** 2 for x in (_shares(a), _shares(b)))
        return _logistic(scale * (0.1 + 0.4 * (one - other) + rng.normal(0, 0.07, len(a))))

    log = ask(SPACE, choose, rng, 60, soft=True)
    evidence = evidence_of(log, "judge", Fit(methods=("auto",)))
    belief = density.fit_evidence(evidence, sampling=sampling_of(SPACE), seed=0)
    spread = belief.utility(belief.sampling.sample(4096, np.random.default_rng(0))).std()
    belief = belief.tempered(1.0 / spread)
    points, data = belief.sample(2000, seed=0), SPACE.table_points()
    judge = JudgeEvidence(
        "judge", log, {"auto": points}, {"auto": belief.diagnostics},
        utility_draws=evaluate_utility(belief, SPACE, data, 0),
        powers=evaluate_powers(belief, SPACE, points, data, 0),
    )  # fmt: skip
    reference = Reference(SPACE, SPACE.sample(2000, np.random.default_rng(1)), data)
    small = AuditSettings(size=100, marginal_size=500, repeats=2, flips=399)
    return audit_run([judge], reference, settings=small).of("judge")


def _driving(judge):
    """The features that drive it, the largest effect first, with direction."""
    clear = [effect for effect in judge.effects if effect.p_holm < 0.05]
    return [(e.name, e.direction) for e in sorted(clear, key=lambda effect: -effect.sd)]


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_multiplying_all_log_odds_changes_nothing_that_is_said_of_a_judge(scale):
    base, other = _audited(1.0), _audited(scale)
    assert base.verdict == "consistent preference"
    assert base.preference.reliability.source == "belief"
    assert (other.verdict, other.preference.reason) == (base.verdict, base.preference.reason)
    for name in ("value", "low", "high"):
        for what in ("reliability", "ceiling"):
            one, two = (getattr(getattr(x.preference, what), name) for x in (base, other))
            assert two == pytest.approx(one, abs=2e-3)
        for what in ("auc", "rank_correlation", "level_set"):
            one, two = (getattr(getattr(x.discrimination, what), name) for x in (base, other))
            assert two == pytest.approx(one, abs=0.01)
    assert _driving(other) == _driving(base) != []
    assert [e.p_value for e in other.effects] == [e.p_value for e in base.effects]
    for here, there in zip(base.powers.beliefs, other.powers.beliefs, strict=True):
        assert there.log_density == pytest.approx(here.log_density, abs=0.1)
