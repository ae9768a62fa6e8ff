"""Judges against judges: planted beliefs are told apart where they differ, and tied where not."""

from functools import cache

import numpy as np
import pytest

from audit.planted import box
from llm_elicit.audit import JudgeBelief, JudgeComparison, Reference, compare_judges
from llm_elicit.comparisons.table import Choices
from llm_elicit.density import (
    Uniform,
    fit_evidence,
)
from llm_elicit.density.evidence import Evidence
from llm_elicit.errors import InputError
from tests.density.targets import QUADRATIC

SPACE = box(2)


@cache
def _side(
    name: str, centre: float, seed: int, pairs: int = 600, against: bool = False
) -> JudgeBelief:
    """A judge who believes in N((centre, 0), 0.8²), or in the contrary of it."""
    asked, answers = np.random.default_rng(0), np.random.default_rng(seed)
    a, b = SPACE.sample(pairs, asked), SPACE.sample(pairs, asked)

    def utility(x: np.ndarray) -> np.ndarray:
        value = -0.5 * np.square((x - [centre, 0.0]) / 0.8).sum(1)
        return -value if against else value

    won = (utility(a) - utility(b) + answers.logistic(0.0, 0.78, pairs) > 0).astype(float)
    belief = fit_evidence(
        Evidence.comparisons(a, b, won),
        sampling=Uniform(SPACE.low, SPACE.high),
        settings=QUADRATIC,
        seed=seed,
    )
    return JudgeBelief(name, Choices(a, b, won, np.arange(pairs)), belief)


@pytest.fixture(scope="module")
def comparison() -> JudgeComparison:
    rng = np.random.default_rng(1)
    sides = [_side("one", 0.0, 1), _side("two", 0.0, 2), _side("right", 1.2, 3)]
    data = rng.normal([0.0, 0.0], 0.8, (2000, 2))
    return compare_judges(sides, Reference(SPACE, SPACE.sample(2000, rng), data))


def _gap(comparison: JudgeComparison, first: str, second: str):
    (found,) = [gap for gap in comparison.differences if (gap.first, gap.second) == (first, second)]
    return found


def test_equal_beliefs_do_not_differ_significantly(comparison: JudgeComparison) -> None:
    gap = _gap(comparison, "one", "two")
    assert gap.differing_features == []
    assert gap.distance.value < 3 * gap.floor


def test_the_features_in_which_two_beliefs_differ_are_found(comparison: JudgeComparison) -> None:
    for first in ("one", "two"):
        gap = _gap(comparison, first, "right")
        assert gap.differing_features == ["x0"]
        shift = gap.features[0]
        assert shift.mean.low < -1.2 / 0.8 < shift.mean.high, "in standard deviations of the data"
        assert gap.distance.low > gap.floor


def test_the_nearest_to_the_data_come_first_and_ties_are_ties(comparison: JudgeComparison) -> None:
    assert comparison.ranking is not None
    places = {each.judge: (each.best, each.worst) for each in comparison.ranking}
    assert places == {"one": (1, 2), "two": (1, 2), "right": (3, 3)}
    assert comparison.sampling is not None
    assert comparison.data_floor is not None
    near, far = comparison.ranking[0].distance, comparison.ranking[2].distance
    # A belief as near as it can be lies about the floor, which is measured over fewer points.
    assert (
        0.5 * comparison.data_floor < near.value < 2.0 * comparison.data_floor < comparison.sampling
    )
    assert near.high < far.low


def test_judges_with_equal_utilities_agree_and_opposite_ones_do_not() -> None:
    sides = [_side("one", 0.0, 1), _side("two", 0.0, 2), _side("no", 0.0, 4, against=True)]
    rng = np.random.default_rng(1)
    comparison = compare_judges(sides, Reference(SPACE, SPACE.sample(500, rng)))
    alike = {(each.first, each.second): each.share for each in comparison.agreements}
    assert alike["one", "two"].low > 0.7
    assert alike["one", "no"].high < 0.3
    ranks = {(each.first, each.second): each for each in comparison.agreements}
    same = ranks["one", "two"]
    assert same.rank_correlation.low > 0.8
    assert same.rank_correlation.value == pytest.approx(same.rank_ceiling, abs=0.1)
    assert ranks["one", "no"].rank_correlation.high < -0.8
    assert comparison.ranking is None
    flipped = JudgeBelief("flipped", _flipped(sides[0].choices), sides[0].belief)
    again = compare_judges([flipped, sides[1]], Reference(SPACE, SPACE.sample(500, rng)))
    assert again.agreements[0].share == alike["one", "two"], "whichever point was called a"


def test_rank_correlations_do_not_depend_on_the_power_of_a_belief() -> None:
    one, right = _side("one", 0.0, 1), _side("right", 1.2, 3)
    reference = Reference(SPACE, SPACE.sample(500, np.random.default_rng(1)))
    (base,) = compare_judges([one, right], reference).agreements
    sharper = JudgeBelief("one", one.choices, one.belief.tempered(3.0))
    (other,) = compare_judges([sharper, right], reference).agreements
    for name in ("value", "low", "high"):
        here, there = (getattr(each.rank_correlation, name) for each in (base, other))
        assert here == pytest.approx(there, abs=1e-4)


def _flipped(choices: Choices) -> Choices:
    return Choices(choices.b, choices.a, 1.0 - choices.preference, choices.pair)


def test_comparing_a_single_judge_is_refused() -> None:
    side = _side("one", 0.0, 1, pairs=40)
    reference = Reference(SPACE, SPACE.sample(100, np.random.default_rng(0)))
    for sides in ([side], [side, side]):
        with pytest.raises(InputError, match="two or more"):
            compare_judges(sides, reference)
