import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.design import Design
from llm_elicit.errors import InputError
from llm_elicit.features import FeatureSpace
from llm_elicit.plan import Query, make_plan

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
    a, b = plan.shown(Query(2, "ab", 0))
    b2, a2 = plan.shown(Query(2, "ba", 0))
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
