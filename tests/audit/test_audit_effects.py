"""Effects in log-odds, of judges whose effects are known; and whose features drive the choices."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from audit.planted import ask, box
from llm_elicit import density
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response, build_response
from llm_elicit.audit.utility import evaluate_utility, measure_effects
from llm_elicit.comparisons.table import Choices
from tests.density.targets import FEW_DRAWS, QUICK

pytestmark = pytest.mark.usefixtures("few_particles")

SPACE = box(3)
SETTINGS = AuditSettings(flips=199)
LAMBDA = density.Uniform(SPACE.low, SPACE.high)


def _faint(rng, scale=1.0):
    """Higher x0, the middle of x1, nothing of x2."""

    def g(x):
        return 0.05 * x[:, 0] - 0.04 * np.square(x[:, 1])

    def choose(first, second):
        log_odds = 0.1 + g(first) - g(second) + rng.normal(0, 0.05, len(first))
        return 1.0 / (1.0 + np.exp(-scale * log_odds))

    return choose


def _effects(seed, scale=1.0, power=None, explained_share=1.0):
    rng = np.random.default_rng(seed)
    log = ask(SPACE, _faint(rng, scale), rng, 80, soft=True)
    response = build_response(log, "judge")
    belief = density.fit_belief(
        response.a, response.b, log_odds=response.value, sampling=LAMBDA, settings=FEW_DRAWS
    )
    if power is not None:
        belief = belief.tempered(power)
    rng = np.random.default_rng(1)
    utility = replace(evaluate_utility(belief, SPACE, None, 0), explained_share=explained_share)
    found = measure_effects(response, SPACE, SETTINGS, rng, None, utility)
    return {effect.name: effect for effect in found}


def test_effects_are_in_log_odds_with_intervals_and_directions():
    """Between the quartiles −1.5 and 1.5 x0 makes .15; from a quartile to the median x1 .09."""
    covered = 0
    for seed in range(12):
        found = _effects(seed)
        assert (found["x0"].direction, found["x1"].direction) == ("higher", "middle")
        assert found["x0"].p_holm < 0.05 > found["x1"].p_holm
        assert found["x0"].value == pytest.approx(0.15, abs=0.03)
        assert found["x1"].value == pytest.approx(0.09, abs=0.03)
        assert found["x2"].sd < 0.02
        covered += found["x0"].low < 0.15 < found["x0"].high
        covered += found["x1"].low < 0.09 < found["x1"].high
    assert covered >= 20


def test_what_a_fit_leaves_out_widens_the_intervals_of_effects():
    found, wide, none = (_effects(0, explained_share=share)["x0"] for share in (1.0, 0.6, 0.0))
    assert wide.high - wide.low > 2.0 * (found.high - found.low)
    assert wide.value == pytest.approx(found.value, abs=0.01)
    assert (none.value, none.low, none.high, none.has_direction) == (None, None, None, False)


def test_effects_scale_with_the_log_odds_and_keep_their_order():
    base, louder = _effects(0), _effects(0, scale=10.0)
    for name, effect in base.items():
        assert louder[name].p_value == effect.p_value
        assert louder[name].loo_r2 == pytest.approx(effect.loo_r2, rel=1e-6)
    for name in ("x0", "x1"):
        assert louder[name].value == pytest.approx(10 * base[name].value, rel=0.02)
    order = sorted(base, key=lambda name: base[name].sd)
    assert order == sorted(louder, key=lambda name: louder[name].sd)


def test_the_power_that_a_belief_is_saved_at_does_not_matter():
    base, sharper = _effects(0), _effects(0, power=7.0)
    for name, effect in base.items():
        assert sharper[name].value == pytest.approx(effect.value, rel=1e-4, abs=1e-6)


def _choices(seed, n=150):
    """By the second of three features alone."""
    rng = np.random.default_rng(seed)
    a, b = SPACE.sample(n, rng), SPACE.sample(n, rng)
    won = (a[:, 1] - b[:, 1] + rng.logistic(0, 0.78, n) > 0).astype(float)
    return Choices(a, b, won, np.arange(n))


def test_the_only_feature_that_a_judge_uses_is_significant():
    found = []
    for seed in range(20):
        response, rng = Response.from_choices(_choices(seed)), np.random.default_rng(seed)
        effects = measure_effects(response, SPACE, SETTINGS, rng)
        found.append([effect.name for effect in effects if effect.p_holm < 0.05])
        assert effects[1].loo_r2 > 0.2
        assert effects[1].value is None, "there is no belief to say it"
    assert all("x1" in names for names in found)
    # Another beside it in at most 5 % of cases: five of 20 or more would be a chance of 0.3 %.
    assert sum(len(names) > 1 for names in found) < 5


def test_the_log_odds_of_choices_are_those_of_their_noise():
    """Choices by logistic noise of .78: x1 makes 3 / .78 between its quartiles."""
    choices = _choices(1, 400)
    evidence = density.Evidence.comparisons(choices.a, choices.b, choices.preference)
    belief = density.fit_evidence(evidence, sampling=LAMBDA, method="utility", settings=QUICK)
    utility = evaluate_utility(belief, SPACE, None, 0)
    response = Response.from_choices(choices)
    found = measure_effects(response, SPACE, SETTINGS, np.random.default_rng(1), None, utility)
    assert found[1].value == pytest.approx(3 / 0.78, rel=0.25)
    assert found[1].low < found[1].value < found[1].high


def test_there_are_no_effects_without_choices():
    nobody = Choices(np.empty((0, 3)), np.empty((0, 3)), np.empty(0), np.empty(0, dtype=np.int64))
    rng = np.random.default_rng(0)
    assert measure_effects(Response.from_choices(nobody), SPACE, SETTINGS, rng) == ()


def _weighing(seed, n=60, own=0.0):
    """Log-odds that are nearly all the first two features' doing; `own` is the third's part."""
    rng = np.random.default_rng([seed, 7])
    a, b = SPACE.sample(n, rng), SPACE.sample(n, rng)
    g = (a - b) @ np.array([1.0, 1.0, own]) + rng.normal(0, 0.1, n)
    choices = Choices(a, b, 0.5 + 0.02 * g, np.arange(n))
    return measure_effects(Response.from_choices(choices), SPACE, AuditSettings(flips=99), rng)[2]


def test_a_small_effect_beside_larger_ones_is_found():
    """Alone, its part is a hundredth of the variation."""
    found = [_weighing(seed, own=0.1) for seed in range(20)]
    assert sum(effect.p_value <= 0.05 for effect in found) >= 19
    assert np.mean([effect.loo_r2 for effect in found]) < 0.1


def test_the_test_of_a_feature_keeps_its_level():
    alarms = sum(_weighing(seed).p_value <= 0.05 for seed in range(300))
    assert alarms <= stats.binom.ppf(0.999, 300, 0.05)
