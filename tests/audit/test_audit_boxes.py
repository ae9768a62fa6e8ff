"""Boxes: they share the data out, and a hole or a heap planted in a belief is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.planted import box
from llm_elicit.audit.calibration import measure_boxes
from llm_elicit.audit.reference import Reference
from llm_elicit.report.formatting import box_text
from llm_elicit.spaces.features import Feature, FeatureSpace

SPACE = box(3, 9.0)


def reference(rng, data):
    return Reference(SPACE, SPACE.sample(200, rng), data)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), digits=st.integers(0, 3), rows=st.integers(100, 900))
def test_boxes_partition_the_data_with_ties(seed, digits, rows):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(rows, 3)).round(digits)
    boxes = measure_boxes(data, reference(rng, data))
    assert sum(found.data.value for found in boxes) == pytest.approx(1.0)
    assert len(boxes) == 2 ** min(4, int(np.log2(rows / 50)))
    assert {found.gap for found in boxes} == {0.0}


def test_boxes_have_equal_shares_without_ties():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(1600, 3))
    boxes = measure_boxes(data, reference(rng, data))
    assert [found.data.value for found in boxes] == [1 / 16] * 16


def test_the_box_with_the_largest_difference_comes_first():
    """A fifth of the belief is moved from the corner where all features are large."""
    rng = np.random.default_rng(1)
    data, belief = rng.normal(size=(2, 4000, 3))
    hole = (belief > 0).all(axis=1)
    belief[hole] = rng.normal(size=(hole.sum(), 3)) * 0.1 - 1.0
    draws = np.stack([belief[rng.permutation(4000)[:1000]] for _ in range(40)])
    boxes = measure_boxes(belief, reference(rng, data), draws)
    empty = min(boxes, key=lambda found: found.belief)
    assert empty.outside_band
    assert empty.belief < 0.01
    assert empty.data.low > 0.05
    assert {side.name: side.low > -0.1 for side in empty.bounds} == dict.fromkeys(SPACE.names, True)
    assert boxes[0].belief > boxes[0].data.high  # where it was moved to
    assert boxes[0].outside_band


def test_data_like_the_belief_are_seldom_outside_its_band():
    rng = np.random.default_rng(2)
    outside = []
    for _ in range(10):
        data, belief = rng.normal(size=(2, 4000, 3))
        draws = rng.normal(size=(40, 1000, 3))
        outside += [
            found.outside_band for found in measure_boxes(belief, reference(rng, data), draws)
        ]
    assert np.mean(outside) < 0.2


def test_there_are_no_boxes_with_few_rows_or_none():
    rng = np.random.default_rng(0)
    data = rng.normal(size=(99, 3))
    assert measure_boxes(data, reference(rng, data)) is None
    assert measure_boxes(data, Reference(SPACE, SPACE.sample(200, rng), None)) is None


@pytest.mark.parametrize("whole", [True, False])
def test_boxes_of_a_circle_go_around_its_end(whole):
    """Rows from November to March are one stretch of the circle, cut in its middle."""
    kind = {"kind": "integer", "low": 1, "high": 12} if whole else {"low": 0.5, "high": 12.5}
    month = Feature(name="month", label="month", periodic=True, **kind)
    space = FeatureSpace(name="m", title="m", subject="m", features=[month])
    rng = np.random.default_rng(0)
    values = rng.choice([11.0, 12.0, 1.0, 2.0, 3.0], size=(199, 1))
    data = values if whole else month.round(values + rng.uniform(-0.4, 0.4, values.shape))
    boxes = measure_boxes(data, Reference(space, space.sample(200, rng), data))
    assert sum(found.data.value for found in boxes) == pytest.approx(1.0)
    (around,) = (found for found in boxes if found.bounds[0].low > found.bounds[0].high)
    assert around.data.value == pytest.approx(0.5, abs=0.15)
    assert 6.0 <= around.bounds[0].low <= 8.0
    assert around.bounds[0].high == pytest.approx(1.0, abs=0.4)
    if whole:
        assert {box_text(found, space) for found in boxes} == {"month 7 to 1", "month 2 to 6"}
