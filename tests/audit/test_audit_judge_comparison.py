"""Judges against judges: planted beliefs are told apart where they differ, and tied where not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.special import expit

from audit.planted import ask, box
from llm_elicit.audit.judge_comparison import (
    JudgeBelief,
    JudgeComparison,
    compare_judges,
    order_p_values,
)
from llm_elicit.audit.reference import Reference
from llm_elicit.comparisons.table import Choices, Comparisons
from llm_elicit.density import BeliefDensity, Uniform, fit_evidence
from llm_elicit.density.evidence import Evidence
from llm_elicit.errors import InputError
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

SPACE = box(2)


RNG = np.random.default_rng(1)
DATA = Reference(SPACE, SPACE.sample(2000, RNG), RNG.normal([0.0, 0.0], 0.8, (2000, 2)))
NO_DATA = Reference(SPACE, SPACE.sample(500, RNG))


@cache
def _fitted(
    centre: float, seed: int, pairs: int, against: bool, weight: float
) -> tuple[Choices, BeliefDensity]:
    asked, answers = np.random.default_rng(0), np.random.default_rng(seed)
    a, b = SPACE.sample(pairs, asked), SPACE.sample(pairs, asked)

    def utility(x: np.ndarray) -> np.ndarray:
        value = -0.5 * np.square((x - [centre, 0.0]) / 0.8).sum(1)
        return weight * (-value if against else value)

    won = (utility(a) - utility(b) + answers.logistic(0.0, 0.78, pairs) > 0).astype(float)
    belief = fit_evidence(
        Evidence.comparisons(a, b, won),
        sampling=Uniform(SPACE.low, SPACE.high),
        settings=QUADRATIC,
        seed=seed,
    )
    return Choices(a, b, won, np.arange(pairs)), belief


def _side(
    name: str,
    centre: float,
    seed: int,
    *,
    pairs: int = 600,
    against: bool = False,
    weight: float = 1.0,
    verdict: str = "consistent preference",
    reference: Reference = DATA,
) -> JudgeBelief:
    """A judge who believes in N((centre, 0), 0.8²), or in the contrary of it, or in nothing."""
    choices, belief = _fitted(centre, seed, pairs, against, weight)
    return JudgeBelief(name, verdict, choices, belief, reference)


RANDOM = _side("random", 0.0, 7, pairs=200, weight=0.0, verdict="no consistent preference")


@pytest.fixture(scope="module")
def comparison() -> JudgeComparison:
    return compare_judges([_side("one", 0.0, 1), _side("two", 0.0, 2), _side("right", 1.2, 3)])


def _gap(comparison: JudgeComparison, first: str, second: str):
    (found,) = [gap for gap in comparison.differences if (gap.first, gap.second) == (first, second)]
    return found


def test_a_comparison_is_short_in_print_and_has_a_frame(comparison: JudgeComparison) -> None:
    assert (
        str(comparison)
        == repr(comparison)
        == ("JudgeComparison(one, right, two; .frame has a row for each two)")
    )
    frame = comparison.frame.set_index(["first", "second"])
    assert frame.shape == (3, 14)
    assert frame.loc[("one", "right"), "differ_in"] == "x0"
    row, gap = frame.loc[("one", "two")], _gap(comparison, "one", "two")
    assert (row["distance"], row["distance_high"]) == (gap.distance.value, gap.distance.high)
    assert row["rank_correlation_low"] < row["rank_correlation"] < row["self_correlation"] + 0.1
    assert compare_judges([_side("one", 0.0, 1), replace(RANDOM, belief=None)]).frame.empty


def test_whether_two_judges_answer_alike_is_tested_on_the_questions_they_share() -> None:
    """As `llm-elicit power` simulates it: two of one belief with noise, one of another belief."""

    def answers(name: str, centre: float, seed: int) -> tuple[Comparisons, str]:
        noise = np.random.default_rng(seed)

        def choose(first: np.ndarray, second: np.ndarray) -> np.ndarray:
            gap = np.square(second - [centre, 0.0]).sum(1) - np.square(first - [centre, 0.0]).sum(1)
            return expit(0.5 * gap + noise.normal(0.0, 1.0, len(gap)))

        return ask(SPACE, choose, np.random.default_rng(0), 80, name, soft=True), name

    one, two, right = _side("one", 0.0, 1), _side("two", 0.0, 2), _side("right", 1.2, 3)
    assert compare_judges([one, two]).agreements[0].p_alike is None
    one = replace(one, answers=answers("one", 0.0, 1))
    two = replace(two, answers=answers("same", 0.0, 2))
    table, name = answers("right", 1.2, 3)
    found = compare_judges([one, two, replace(right, answers=(table, name))])
    p = {(pair.first, pair.second): pair.p_alike for pair in found.agreements}
    assert p["one", "two"] > 0.05
    assert p["one", "right"] < 0.01
    assert found.frame["p_alike"].tolist() == list(p.values())
    other = Comparisons(table.frame.assign(prompt_hash="1" * 64), SPACE.names)
    (apart,) = compare_judges([one, replace(right, answers=(other, name))]).agreements
    assert apart.p_alike is None, "no question is the same"


def test_a_control_does_not_count_for_the_ranks_of_the_others() -> None:
    """Pairs without it are one family; in 2 % of draws "a" is farther than the others."""
    far, near = np.ones(500), np.where(np.arange(500) < 10, 2.0, 0.0)
    distances = {"a": near, "b": far, "c": far}
    alone = order_p_values({"a": near, "b": far}, set())
    beside = order_p_values(distances, {"c"})
    assert alone["a", "b"] == beside["a", "b"] == pytest.approx(0.04, abs=1e-3)
    assert beside["a", "c"] == pytest.approx(0.12, abs=1e-3)
    assert order_p_values(distances, set())["a", "b"] == beside["a", "c"]


def test_equal_beliefs_do_not_differ_significantly(comparison: JudgeComparison) -> None:
    gap = _gap(comparison, "one", "two")
    assert gap.differing_features == []
    assert gap.floor <= gap.distance.value < 3 * gap.floor


def test_the_features_in_which_two_beliefs_differ_are_found(comparison: JudgeComparison) -> None:
    for first in ("one", "two"):
        gap = _gap(comparison, *sorted([first, "right"]))
        assert gap.differing_features == ["x0"]
        shift, sign = gap.features[0], 1.0 if gap.first == "right" else -1.0
        assert shift.mean.low < sign * 1.2 / 0.8 < shift.mean.high, "in sd of the data"
        assert gap.distance.low > gap.floor


def test_the_nearest_to_the_data_come_first_and_ties_are_ties(comparison: JudgeComparison) -> None:
    assert comparison.ranking is not None
    places = {each.judge: (each.best_rank, each.worst_rank) for each in comparison.ranking}
    assert places == {"one": (1, 2), "two": (1, 2), "right": (3, 3)}
    assert comparison.unranked == []
    best, _, last = comparison.ranking
    # A belief as near as it can be lies about the floor, which is measured over fewer points.
    assert 0.5 * best.floor < best.distance.value < 2.0 * best.floor < best.sampling_distance
    assert best.distance.high < last.distance.low


def test_judges_with_equal_utilities_agree_and_opposite_ones_do_not() -> None:
    sides = [_side("one", 0.0, 1), _side("two", 0.0, 2), _side("no", 0.0, 4, against=True)]
    sides = [replace(side, reference=NO_DATA) for side in sides]
    comparison = compare_judges(sides)
    alike = {(each.first, each.second): each.same_choice_share for each in comparison.agreements}
    assert alike["one", "two"].low > 0.7
    assert alike["no", "one"].high < 0.3
    ranks = {(each.first, each.second): each for each in comparison.agreements}
    same = ranks["one", "two"]
    assert same.rank_correlation.low > 0.8
    assert same.rank_correlation.value == pytest.approx(same.self_correlation, abs=0.1)
    assert ranks["no", "one"].rank_correlation.high < -0.8
    assert comparison.ranking is None
    flipped = replace(sides[0], choices=_flipped(sides[0].choices), name="flipped")
    again = compare_judges([flipped, sides[1]])
    assert again.agreements[0].same_choice_share == alike["one", "two"], (
        "whichever point was called a"
    )


def test_rank_correlations_do_not_depend_on_the_power_of_a_belief() -> None:
    one, right = (
        _side("one", 0.0, 1, reference=NO_DATA), _side("right", 1.2, 3, reference=NO_DATA)
    )  # fmt: skip
    (base,) = compare_judges([one, right]).agreements
    assert one.belief is not None
    (other,) = compare_judges([replace(one, belief=one.belief.tempered(3.0)), right]).agreements
    for name in ("value", "low", "high"):
        here, there = (getattr(each.rank_correlation, name) for each in (base, other))
        assert here == pytest.approx(there, abs=1e-4)


def test_no_number_depends_on_the_order_of_judges_of_different_runs() -> None:
    """Two conditions: each judge is right about its own data, and far from the other's."""
    rng = np.random.default_rng(2)
    moved = Reference(SPACE, SPACE.sample(2000, rng), rng.normal([1.2, 0.0], 0.8, (1500, 2)))
    sides = [
        _side("here", 0.0, 1),
        _side("there", 1.2, 3, reference=moved),
        _side("astray", 0.0, 2, reference=moved),
        RANDOM,
    ]
    found = compare_judges(sides)
    assert compare_judges([sides[place] for place in (3, 1, 0, 2)]) == found
    assert found.ranking is not None
    places = {each.judge: (each.best_rank, each.worst_rank) for each in found.ranking}
    assert places == {"here": (1, 2), "there": (1, 2), "astray": (3, 3)}
    lines = {each.judge: each for each in found.ranking}
    alone = compare_judges([sides[0], RANDOM]).ranking
    assert alone is not None
    assert lines["here"].distance == alone[0].distance, "whatever data other runs have"
    assert lines["here"].sampling_distance != lines["there"].sampling_distance


def test_judges_without_a_preference_or_no_nearer_than_the_sampling_density_have_no_rank() -> None:
    """However near a belief by chance is."""
    dice = _side("dice", 0.0, 1, verdict="position only")
    silent = JudgeBelief("silent", "no answers", _flipped(RANDOM.choices), None, DATA)
    wrong = _side("wrong", 0.0, 4, against=True)
    found = compare_judges([wrong, silent, dice, RANDOM, _side("right", 1.2, 3)])
    assert found.ranking is not None
    assert [(line.judge, line.best_rank, line.worst_rank) for line in found.ranking] == [
        ("right", 1, 1)
    ]
    reasons = {line.judge: line.reason for line in found.unranked}
    assert reasons == {
        "dice": "position only", "random": "no consistent preference", "silent": "no answers",
        "wrong": "no nearer to the data than λ",
    }  # fmt: skip
    assert found.ranking[0].remark == ""
    vague = found.ranking[0].model_copy(update={"sampling_distance": found.ranking[0].distance.low})
    assert vague.remark == "not shown to be nearer to the data than λ"
    verdicts = {line.judge: line.verdict for line in (*found.ranking, *found.unranked)}
    assert verdicts["wrong"] == verdicts["right"] == "consistent preference"
    assert [line.best_rank for line in found.unranked] == [None] * 4
    assert all("silent" not in (each.first, each.second) for each in found.agreements)


def test_no_estimate_is_beyond_its_own_bound() -> None:
    """Of an uncertain judge and a certain one, with the same belief and with another."""
    unsure = _side("unsure", 0.0, 8, pairs=25)
    found = compare_judges([unsure, RANDOM, _side("one", 0.0, 1), _side("right", 1.2, 3)])
    for alike in found.agreements:
        correlation = alike.rank_correlation
        assert abs(correlation.value) <= alike.self_correlation + 1e-9
        assert correlation.low <= correlation.value <= correlation.high
    for gap in found.differences:
        assert gap.distance.value >= gap.floor - 1e-9
        assert gap.distance.low <= gap.distance.value <= gap.distance.high


def _flipped(choices: Choices) -> Choices:
    return Choices(choices.b, choices.a, 1.0 - choices.preference, choices.pair)


def test_comparing_a_single_judge_is_refused() -> None:
    side = _side("one", 0.0, 1, pairs=40)
    for sides in ([side], [side, side]):
        with pytest.raises(InputError, match="at least two"):
            compare_judges(sides)
