"""Choices that no rule contradicts bound the sharpness of a belief from below only."""

import numpy as np
import pytest
from scipy import stats

from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import Response
from llm_elicit.audit.utility import evaluate_utility, measure_effects
from llm_elicit.comparisons.table import Choices, sampling_of
from llm_elicit.density import BeliefDensity, Uniform, bounded_below, fit_belief
from llm_elicit.density.utility.fit import find_fitted_separation, find_separation, separated_rows
from llm_elicit.spaces.features import Feature, FeatureSpace
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

Array = np.ndarray


def judged(gaps: Array, steps: Array) -> Array:
    """Return the steps (n, P) turned towards what was preferred."""
    return np.where(gaps[:, None] > 0, steps, -steps)


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_rows_are_separated_if_a_rule_decides_them_and_none_is_against_it(size: float) -> None:
    rng = np.random.default_rng(0)
    steps = size * rng.normal(size=(300, 3))
    by_first = judged(steps[:, 0], steps)
    assert separated_rows(by_first).all()
    noisy = judged(steps[:, 0] + size * rng.logistic(size=300), steps)
    assert not separated_rows(noisy).any()
    # By the first where it differs, else at random: no rule decides what is random.
    tied = np.where(np.arange(300)[:, None] < 120, steps * [0.0, 1.0, 1.0], steps)
    first = np.where(tied[:, 0] == 0.0, rng.normal(size=300), tied[:, 0])
    assert separated_rows(judged(first, tied)).tolist() == [False] * 120 + [True] * 180
    assert separated_rows(np.zeros((0, 3))).tolist() == []
    assert not separated_rows(np.zeros((5, 3))).any()
    assert not separated_rows(np.concatenate([by_first[:5], -by_first[:1]])).all()


def test_one_contradiction_among_thousands_is_seen() -> None:
    rng = np.random.default_rng(1)
    steps = rng.normal(size=(4000, 4))
    right = judged(steps @ [1.0, 2.0, -1.0, 0.5], steps)
    assert separated_rows(right).all()
    right[1234] *= -1.0
    assert not separated_rows(right).any()


@pytest.mark.parametrize("step", [None, 0.5, 0.01])
def test_a_lexicographic_judge_has_a_linear_rule(step: float | None) -> None:
    points = np.random.default_rng(0).uniform(-1.7, 1.7, (2, 300, 3))
    if step is not None:
        points[..., 0] = step * np.round(points[..., 0] / step)
    steps = points[0] - points[1]
    chosen = judged(np.where(steps[:, 0] != 0.0, steps[:, 0], steps[:, 1]), steps)
    separation = find_separation(chosen, 3, np.zeros((300, 0)), np.arange(300))
    assert separation is not None
    assert separation["rule"] == "linear"
    assert separation["complete"]


def test_the_chance_of_random_choices_is_that_of_simulated_ones() -> None:
    rng = np.random.default_rng(2)
    steps, nothing = rng.normal(size=(10, 5)), np.zeros((10, 0))
    draws = [judged(rng.normal(size=10), steps) for _ in range(200)]
    each = [find_separation(c, 5, nothing, np.arange(10)) for c in draws]
    found = [one for one in each if one is not None]
    assert found[0]["chance"] == pytest.approx(0.5)
    assert found[0]["by_chance"]
    assert found[0]["complete"]
    assert stats.binomtest(len(found), 200, 0.5).pvalue > 0.01
    assert "give only a lower bound of the sharpness of the belief" in found[0]["message"]
    assert "probability 0.5" in found[0]["message"]


def test_a_position_that_explains_all_choices_is_no_rule_of_the_features() -> None:
    rng = np.random.default_rng(3)
    steps, shown_first = rng.normal(size=(60, 2)), np.ones((60, 1))
    assert find_separation(steps, 2, shown_first, np.arange(60)) is None
    # A rule, and the first of two points that it finds nearly equal, asked in both orders.
    steps, side = np.repeat(steps, 2, axis=0), np.tile([1.0, -1.0], 60)
    gaps = steps[:, 0] + 0.2 * side
    chosen, order = judged(gaps, steps), np.where(gaps > 0, side, -side)[:, None]
    pairs = np.arange(120) // 2
    assert find_separation(chosen, 2, np.zeros((120, 0)), pairs) is None
    found = find_separation(chosen, 2, order, pairs)
    assert (found["rule"], found["pairs"], found["by_chance"]) == ("linear", 60, False)


def fitted(n: int, sharpness: float, *, votes: float = 1.0) -> tuple[BeliefDensity, Array, Array]:
    """A fit to choices of the larger first feature, or of that and noise."""
    rng = np.random.default_rng(4)
    a, b = rng.uniform(-1, 1, (2, n, 2))
    gap = sharpness * (a - b)[:, :1] + rng.logistic(0.0, 0.78, (n, 1))
    sides = np.where(gap > 0, a, b), np.where(gap > 0, b, a)
    belief = fit_belief(
        *sides, sampling=Uniform([-1.0, -1.0], [1.0, 1.0]), weights=np.full(n, votes),
        settings=QUADRATIC,
    )  # fmt: skip
    return belief, a, b


@pytest.mark.parametrize("votes", [1.0, 3.0])
def test_a_fit_says_that_a_judge_without_noise_bounds_its_sharpness_from_below(
    votes: float,
) -> None:
    belief, a, b = fitted(60, 1e9, votes=votes)
    found = belief.diagnostics["separation"]
    assert (found["rule"], found["complete"], found["pairs"]) == ("linear", True, 60)
    assert bounded_below(belief.diagnostics)
    assert found["message"] in belief.diagnostics["reason"]
    features = tuple(Feature(name=f"x{j}", label=f"x{j}", low=-1, high=1) for j in (0, 1))
    space = FeatureSpace(name="w", title="w", subject="w", features=features)
    assert sampling_of(space).low.tolist() == [-1.0, -1.0]
    response = Response.from_choices(Choices(a, b, (a > b)[:, 0] * 1.0, np.arange(60)))
    effects = measure_effects(
        response, space, AuditSettings(flips=99), np.random.default_rng(0), None,
        evaluate_utility(belief, space, None, 0), bounded_below(belief.diagnostics),
    )  # fmt: skip
    assert [(e.value, e.high, e.open_ended) for e in effects] == [(None, None, True)] * 2
    assert effects[0].has_direction
    assert effects[0].low > 3.0
    assert (effects[1].has_direction, effects[1].low) == (False, None)


def test_a_noisy_judge_is_not_said_to_be_without_noise() -> None:
    assert fitted(60, 2.0)[0].diagnostics["separation"] is None
    few = fitted(4, 0.3)[0].diagnostics
    assert few["separation"] is None or few["separation"]["by_chance"]
    assert not bounded_below(few)


def test_a_rule_without_terms_is_seen_where_the_fitted_utility_agrees_with_all_choices() -> None:
    differ, pairs = np.ones(80, dtype=bool), np.arange(80)
    found = find_fitted_separation(differ, pairs, np.full(80, 0.1), 12.3)
    assert (found["rule"], found["complete"], found["by_chance"]) == ("fitted", True, False)
    assert find_fitted_separation(differ, pairs, np.full(80, 0.1), 60.0)["by_chance"]
    assert find_fitted_separation(differ, pairs, np.r_[-1.0, np.ones(79)], 12.3) is None
