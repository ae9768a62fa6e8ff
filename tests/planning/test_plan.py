import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.config.design import Design, Rounds
from llm_elicit.errors import InputError
from llm_elicit.planning.pairs import Query, make_plan
from llm_elicit.spaces.features import FeatureSpace

SPACE = FeatureSpace.load("penguins")


@given(st.integers(4, 40), st.booleans(), st.integers(1, 3), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_a_plan_is_a_pure_function_that_asks_everything_once(pairs, both, replicates, seed):
    design = Design(pairs=pairs, both_orders=both, replicates=replicates)
    plan, again = make_plan(SPACE, design, seed), make_plan(SPACE, design, seed)
    np.testing.assert_array_equal(plan.a, again.a)
    queries = list(plan)
    assert queries == list(again)
    assert len(queries) == len(plan) == len(set(queries)) == pairs * (1 + both) * replicates


def test_both_orders_show_the_same_pair_swapped():
    plan = make_plan(SPACE, Design(pairs=5), seed=1)
    a, b = plan.points_in_order(Query(2, "ab", 0))
    b2, a2 = plan.points_in_order(Query(2, "ba", 0))
    np.testing.assert_array_equal(a, a2)
    np.testing.assert_array_equal(b, b2)
    assert not np.array_equal(a, b)


def test_a_longer_plan_begins_with_the_shorter_one():
    """So that a campaign extended later finds its answers in the cache."""
    short, long = (make_plan(SPACE, Design(pairs=n), seed=7) for n in (10, 25))
    np.testing.assert_array_equal(long.a[:10], short.a)
    np.testing.assert_array_equal(long.b[:10], short.b)


def test_fewer_pairs_than_features_are_refused():
    with pytest.raises(InputError, match=r"design\.pairs: 3 is fewer than the 4 features"):
        make_plan(SPACE, Design(pairs=3), seed=1)


@given(st.integers(2, 8), st.integers(0, 6), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_a_triad_is_every_pair_of_three_points(triads, alone, seed):
    pairs = 3 * triads + alone
    plan = make_plan(SPACE, Design(pairs=pairs, triads=triads), seed)
    assert len(plan.a) == pairs
    for first in range(alone, pairs, 3):
        sides = np.concatenate([plan.a[first : first + 3], plan.b[first : first + 3]])
        corners, times = np.unique(sides, axis=0, return_counts=True)
        assert times.tolist() == [2, 2, 2]
        assert SPACE.contains(corners).all()
        joined = {
            frozenset(map(tuple, ends))
            for ends in zip(plan.a[first : first + 3], plan.b[first : first + 3], strict=True)
        }
        assert len(joined) == 3


def test_triads_leave_the_other_pairs_as_they_were():
    """Answers that a campaign without triads was paid for are found in the cache."""
    without = make_plan(SPACE, Design(pairs=20), seed=7)
    some, more = (make_plan(SPACE, Design(pairs=20 + 3 * t, triads=t), seed=7) for t in (4, 9))
    for plan in (some, more):
        np.testing.assert_array_equal(plan.a[:20], without.a)
        np.testing.assert_array_equal(plan.b[:20], without.b)
    np.testing.assert_array_equal(more.a[: len(some.a)], some.a)
    np.testing.assert_array_equal(more.b[: len(some.b)], some.b)


def test_triads_belong_to_the_first_round():
    design = Design(pairs=60, triads=6, rounds=Rounds(count=3))
    plan = make_plan(SPACE, design, seed=1)
    assert plan.fixed == len(plan.a) == 20
    corners = np.unique(np.concatenate([plan.a[2:], plan.b[2:]]), axis=0)
    assert len(corners) == 18


def test_a_pair_of_a_triad_is_turned_by_a_coin():
    """Always taking the first point must not look like going round in circles."""
    plan = make_plan(SPACE, Design(pairs=3000, triads=1000), seed=1)
    chosen = plan.a.reshape(1000, 3, 4)
    circles = [len(np.unique(three, axis=0)) == 3 for three in chosen]
    assert np.mean(circles) == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("design", "rule"),
    [
        ({"pairs": 20, "triads": 7}, "7 triads need 21 pairs, more than the 20 pairs; ask more"),
        (
            {"pairs": 60, "triads": 7, "rounds": {"count": 3}},
            "7 triads need 21 pairs, more than the 20 pairs of the first round",
        ),
        ({"triads": -1}, "greater than or equal to 0"),
    ],
)
def test_more_triads_than_pairs_are_refused(design, rule):
    with pytest.raises(ValueError, match=rule):
        Design.model_validate(design)


def test_pairs_of_few_whole_numbers_are_of_two_points() -> None:
    dice = {"name": "eyes", "label": "eyes", "kind": "integer", "low": 1, "high": 2}
    space = FeatureSpace(name="s", title="t", subject="a die", features=[dice])
    plan = make_plan(space, Design(pairs=50), seed=1)
    assert (plan.a != plan.b).all()
    with pytest.raises(InputError, match="only 2 different points"):
        make_plan(space, Design(pairs=50, triads=1), seed=1)
