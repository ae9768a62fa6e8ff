"""Pairs of ranges lie within the box, differ in width, and are what the density core takes."""

import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.density import Ranges
from llm_elicit.planning.direct_questions import draw_ranges


@given(
    d=st.integers(1, 6),
    n=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_box_has_ranges_within_it(d, n, seed, data):
    log = np.array(data.draw(st.lists(st.booleans(), min_size=d, max_size=d)))
    low = np.where(log, 2.0, -7.0)
    first, second = draw_ranges(low, np.full(d, 50.0), n, np.random.default_rng(seed), log=log)
    ranges = Ranges(first, second, np.zeros(n))  # which checks that no range is reversed
    assert ranges.first.shape == (n, d, 2)
    finite = np.isfinite(first)
    assert (finite == np.isfinite(second)).all(), "both ranges of a pair bound the same features"
    assert (finite[..., 0].sum(1) == min(2, d)).all()
    for side in (first, second):
        inside = (side >= low[:, None] - 1e-9) & (side <= 50.0 + 1e-9)
        assert (inside | ~finite).all()


def test_every_feature_is_bounded_as_often_and_widths_differ():
    first, second = draw_ranges([0.0] * 5, [1.0] * 5, 50, np.random.default_rng(0))
    uses = np.isfinite(first[..., 0]).sum(0)
    assert np.ptp(uses) <= 1
    with np.errstate(invalid="ignore"):
        gap = np.log(np.diff(first)) - np.log(np.diff(second))
    gap = gap[np.isfinite(gap)]
    assert (abs(gap) > np.log(0.3 / 0.02) - 1e-9).all()
    assert 0.3 < (gap > 0).mean() < 0.7, "narrow ranges come first as often as wide ones"


def test_a_logarithmic_scale_has_its_ranges_spread_on_it():
    first, second = draw_ranges([1.0], [1e6], 400, np.random.default_rng(1), log=[True])
    middles = np.log10(np.concatenate([first, second])[:, 0]).mean(1)
    assert abs(middles.mean() - 3.0) < 0.2


def test_only_the_features_named_are_bounded_and_a_seed_repeats():
    arguments = ([0.0] * 4, [1.0] * 4, 9)
    one = draw_ranges(*arguments, np.random.default_rng(3), features=[1, 3])
    same = draw_ranges(*arguments, np.random.default_rng(3), features=[1, 3])
    assert np.isfinite(one[0][:, [1, 3]]).all()
    assert np.isinf(one[0][:, [0, 2]]).all()
    assert all((a == b).all() for a, b in zip(one, same, strict=True))


def test_no_range_is_narrower_than_two_steps():
    rng, resolution = np.random.default_rng(4), [3.0, 1.0]
    for side in draw_ranges([0.0, 1.0], [100.0, 1e2], 30, rng, resolution=resolution):
        width = np.diff(side)[..., 0]
        assert (width[:, 0] >= 6.0 - 1e-9).all()
        assert (width[:, 1] >= 2.0 - 1e-9).all()


def test_large_values_on_a_linear_scale_overflow_nothing():
    """The logarithmic features' step is not computed of the others, where exp has no end."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_ranges([3000.0, 1.0], [6000.0, 9.0], 4, np.random.default_rng(0), log=[False, True])
