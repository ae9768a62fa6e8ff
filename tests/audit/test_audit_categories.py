"""Categories in the audit: their codes mean nothing, and what is said of them is of shares."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from audit.planted import ask, constant
from llm_elicit.audit.calibration import measure_boxes
from llm_elicit.audit.consistency import measure_nonresponse
from llm_elicit.audit.direct_answers import measure_generated
from llm_elicit.audit.distances import DistanceEstimator
from llm_elicit.audit.reference import AuditSettings, Reference, Standardizer
from llm_elicit.audit.responses import Response
from llm_elicit.audit.utility import measure_effects
from llm_elicit.comparisons.table import Choices, Comparisons
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import Feature, FeatureSpace

WORDS = ("oak", "elm", "ash", "fir")


def space_of(words=WORDS):
    features = (
        Feature(name="kind", label="kind", kind="categorical", categories=words),
        Feature(name="x", label="x", low=-5, high=5, digits=6),
    )
    return FeatureSpace(name="s", title="s", subject="a tree", features=features)


SPACE = space_of()


def trees(n, seed, shares=(0.4, 0.3, 0.2, 0.1)):
    rng = np.random.default_rng(seed)
    kind = rng.choice(4, n, p=shares)
    return np.column_stack([kind, rng.normal(kind - 1.5, 0.7).clip(-5, 5)]).astype(float)


def recoded(points, order):
    """The same trees, where the categories are listed in another order."""
    other = points.copy()
    other[:, 0] = np.argsort(order)[points[:, 0].astype(int)]
    return other


@given(st.lists(st.integers(1, 50), min_size=2, max_size=7))
def test_categories_have_unit_variance_and_equal_distances(counts):
    space = space_of(tuple(map(str, range(len(counts)))))
    rows = np.column_stack([np.repeat(np.arange(len(counts)), counts), np.zeros(sum(counts))])
    standard = Standardizer.of(space, rows)
    columns = standard.columns_by_feature(rows)[0]
    assert columns.shape == (sum(counts), len(counts) - 1)
    np.testing.assert_allclose(columns.mean(axis=0), 0.0, atol=1e-9)
    assert columns.var(axis=0).sum() == pytest.approx(1.0)
    apart = cdist(standard.vertices[0], standard.vertices[0])
    expected = standard.category_distance(0) * (1 - np.eye(len(counts)))
    np.testing.assert_allclose(apart, expected, atol=1e-9)
    assert np.isnan(standard.standardize_numbers(rows)[:, 0]).all()


def test_two_categories_are_one_standardized_indicator():
    space = space_of(("a", "b"))
    rows = np.column_stack([np.arange(50) % 5 == 0, np.zeros(50)]).astype(float)
    found = Standardizer.of(space, rows)(rows)[:, 0]
    plain = (rows[:, 0] - rows[:, 0].mean()) / rows[:, 0].std()
    np.testing.assert_allclose(np.abs(found), np.abs(plain))


@settings(max_examples=8)
@given(st.permutations(range(4)))
def test_distances_do_not_depend_on_the_order_of_the_categories(order):
    x, y = trees(300, 1), trees(300, 2, (0.1, 0.2, 0.3, 0.4))

    def measured(space, x, y):
        estimator = DistanceEstimator(Standardizer.of(space, y), AuditSettings(repeats=2), 100, 300)
        return estimator.estimate_distance(x, y, np.random.default_rng(0))

    one = measured(SPACE, x, y)
    other = measured(space_of([WORDS[i] for i in order]), recoded(x, order), recoded(y, order))
    assert one.wasserstein.mean == pytest.approx(other.wasserstein.mean)
    assert one.joint.energy.mean == pytest.approx(other.joint.energy.mean)
    assert one.joint.sliced.mean == pytest.approx(other.joint.sliced.mean, rel=0.1)
    assert one.mmtv.mean == pytest.approx(other.mmtv.mean)
    shares = [np.bincount(side[:, 0].astype(int)) / 300 for side in (x, y)]
    tv = 0.5 * np.abs(shares[0] - shares[1]).sum()
    assert one.features[0].total_variation.mean == pytest.approx(tv)
    assert one.features[0].wasserstein is None


def test_boxes_of_categories_partition_the_data():
    data = trees(600, 3)
    reference = Reference(SPACE, trees(100, 4), data)
    belief = trees(900, 5, (0.1, 0.2, 0.3, 0.4))
    boxes = measure_boxes(belief, reference)
    assert sum(box.data.value for box in boxes) == pytest.approx(1.0)
    assert sum(box.belief for box in boxes) == pytest.approx(1.0)
    assert min(box.data.value for box in boxes) * len(data) >= 25
    words = {w for box in boxes for side in box.bounds for w in side.categories or ()}
    assert words == set(WORDS)
    for box in boxes:
        for side in box.bounds:
            assert (side.categories is None) == (side.name == "x")
            assert side.name == "x" or side.low is side.high is None


def test_the_effect_of_a_category_is_found():
    rng = np.random.default_rng(0)
    a, b = SPACE.sample(150, rng), SPACE.sample(150, rng)
    likes = (a[:, 0] == 2) * 1.0 - (b[:, 0] == 2)
    choices = Choices(a, b, 0.5 + 0.5 * likes, np.arange(150))
    settings = AuditSettings(flips=199)
    kind, x = measure_effects(Response.from_choices(choices), SPACE, settings, rng)
    assert kind.p_holm < 0.05 < x.p_holm
    assert kind.loo_r2 > 0.7


def test_nonresponse_of_one_category_is_found():
    rng = np.random.default_rng(1)
    frame = ask(SPACE, constant(0.5), rng, 150).frame
    firs = (frame[["a_kind", "b_kind"]] == 3).any(axis=1).to_numpy()
    refused = firs & (rng.random(len(frame)) < 0.6)
    frame.loc[refused, ["verdict", "reply"]] = ["refusal", "I cannot."]
    frame.loc[refused, "probability"] = np.nan
    log = Comparisons(frame, SPACE.names)
    kind, x = measure_nonresponse(log, "judge", SPACE, 199, rng).features
    assert kind.thirds is None
    assert x.categories is None
    assert max(kind.categories, key=kind.categories.get) == "fir"
    assert kind.p_holm < 0.05 < x.p_holm


def test_a_category_in_no_pair_has_no_nonresponse_rate():
    frame = ask(SPACE, constant(0.5), np.random.default_rng(1), 60).frame
    frame[["a_kind", "b_kind"]] = 1.0
    frame.loc[::3, ["verdict", "probability"]] = ["refusal", np.nan]
    log = Comparisons(frame, SPACE.names)
    kind, _ = measure_nonresponse(log, "judge", SPACE, 99, np.random.default_rng(0)).features
    assert kind.p_value == 1.0
    assert kind.categories["oak"] is None


def test_generated_categories_are_compared_by_shares():
    data = trees(800, 6)
    reference = Reference(SPACE, trees(100, 7), data)
    oaks = np.column_stack([np.zeros(40), data[:40, 1]])
    rng = np.random.default_rng(0)
    kind, x = measure_generated(oaks, reference, None, AuditSettings(), rng).features
    assert kind.data.distance == pytest.approx(0.6, abs=0.06)
    assert kind.data.p_value < 0.05 < x.data.p_value


def test_numbers_that_are_no_category_codes_are_refused():
    points = trees(9, 0)
    points[3, 0] = 1.5
    with pytest.raises(InputError, match=r"row 4, kind = 1.5; it must be the code of a category"):
        Reference(SPACE, points)
    reference = Reference(SPACE, trees(9, 0))
    with pytest.raises(InputError, match=r"kind = 4"):
        replace(reference, data=np.array([[4.0, 0.0], [1.0, 0.0]]))
