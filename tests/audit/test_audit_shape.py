"""Shape: planted correlations and tails come back, bands are those of the draws, laws hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm

from audit.planted import box
from llm_elicit.audit.inference import Interval
from llm_elicit.audit.reference import Reference
from llm_elicit.audit.summaries import (
    BeliefBands,
    correlation_difference,
    correlation_intervals,
    correlation_matrix,
    measure_bands,
    measure_shape,
    read_draws,
    standardize_columns,
    write_draws,
)
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.density import BeliefDraws
from llm_elicit.density.latent import make_latent
from llm_elicit.spaces.features import Feature

SPACE = box(3, 9.0)
DRAWN = np.linspace(-0.2, 0.8, 201)


def normal(rng, correlation, n=4000, widths=(1.0, 1.0, 1.0)):
    covariance = np.eye(3)
    covariance[0, 1] = covariance[1, 0] = correlation
    return rng.multivariate_normal(np.zeros(3), covariance, size=n) * widths


def drawn_bands(space=SPACE):
    """Bands of 201 draws whose first correlation is exactly even over -0.2 ... 0.8."""
    z = np.random.default_rng(0).normal(size=(400, 3))
    z = np.linalg.qr(z - z.mean(axis=0))[0]  # columns of no correlation at all
    points = [
        np.column_stack([z[:, 0], r * z[:, 0] + np.sqrt(1 - r**2) * z[:, 1], z[:, 2]])
        for r in DRAWN
    ]
    even = np.full(400, 1 / 400)
    whole = [space.from_scale(points) for points in points]
    latent = make_latent(sampling_of(space))  # draws know λ's categories by it
    draws = BeliefDraws(tuple(whole), (even,) * len(points), latent, None, None, None)
    return measure_bands(draws, space)


def reference(rng, correlation=0.0, **options):
    return Reference(SPACE, SPACE.sample(4000, rng), normal(rng, correlation, **options))


def correlation_interval(x, y, level=0.95):
    u, v = standardize_columns(np.column_stack([x, y]), np.full(len(x), 1 / len(x))).T
    return correlation_intervals(u, v, [level])[0]


def test_a_belief_outside_its_band_has_no_difference():
    """An interval is computed, and not stretched to contain its value."""
    data = Interval(value=0.1, low=-0.1, high=0.3)
    assert correlation_difference(0.9, (0.2, 0.8), data) is None
    assert correlation_difference(0.5, (0.2, 0.8), data).low < 0.4


def test_bands_of_correlations_are_those_of_the_draws():
    bands = drawn_bands()
    assert [(b.first, b.second) for b in bands.correlations] == [
        ("x0", "x1"),
        ("x0", "x2"),
        ("x1", "x2"),
    ]
    low, high = bands.correlations[0].correlation
    assert low == pytest.approx(-0.15, abs=0.01)
    assert high == pytest.approx(0.75, abs=0.01)
    assert bands.correlations[1].correlation == pytest.approx((0.0, 0.0), abs=1e-9)


def test_correlations_are_of_the_logarithm_where_the_scale_is():
    logs = tuple(
        Feature(name=f"x{i}", label=f"x{i}", scale="log", low=1e-6, high=1e6, digits=6)
        for i in range(3)
    )
    space = box(3).model_copy(update={"features": logs})
    assert drawn_bands(space).correlations[0].correlation == pytest.approx(
        drawn_bands().correlations[0].correlation, abs=1e-9
    )
    rng = np.random.default_rng(1)
    points = np.exp(3 * normal(rng, 0.6))
    shape = measure_shape(points, Reference(space, points, points), None)
    assert shape.correlations[0].belief == pytest.approx(0.6, abs=0.03)
    assert abs(np.corrcoef(points.T)[0, 1]) < 0.45


@pytest.mark.parametrize(("planted", "outside"), [(0.5, False), (0.9, True), (-0.5, True)])
def test_data_outside_the_band_are_flagged(planted, outside):
    rng = np.random.default_rng(2)
    shape = measure_shape(normal(rng, 0.3), reference(rng, planted), drawn_bands())
    pair = shape.correlations[0]
    assert pair.outside_band is outside
    assert pair in shape.pairs_outside_band or not outside
    assert pair.data.low < planted < pair.data.high
    assert pair.belief == pytest.approx(0.3, abs=0.05)
    assert abs(pair.sampling) < 0.05
    assert shape.largest_gaps(2)[0] == pair
    assert len(shape.largest_gaps(2)) == 2


def test_tails_of_normals_of_other_widths():
    rng = np.random.default_rng(3)
    shape = measure_shape(normal(rng, 0.0, widths=(1.0, 0.5, 2.0)), reference(rng), None)
    for tails, width in zip(shape.tails, (1.0, 0.5, 2.0), strict=True):
        expected = norm.cdf(width * norm.ppf(0.05))
        for share in (tails.below, tails.above):
            assert share.value == pytest.approx(expected, abs=0.02)
            assert share.low <= share.value <= share.high
        assert tails.below_band is tails.above_band is None


def test_a_tail_s_band_is_the_share_at_the_ends_of_the_quantile_s():
    rng, bands = np.random.default_rng(4), drawn_bands()
    against = reference(rng, widths=(0.05, 0.05, 0.05))
    tails = measure_shape(normal(rng, 0.3), against, bands).tails[1]
    for band, ends, above in (
        (tails.below_band, bands.features[1].q05, False),
        (tails.above_band, bands.features[1].q95, True),
    ):
        column = against.data[:, 1]
        shares = sorted(float((column > e if above else column < e).mean()) for e in ends)
        assert list(band) == pytest.approx(shares)
        assert band[0] < band[1]


def test_without_data_and_of_one_feature():
    rng = np.random.default_rng(5)
    bare = measure_shape(normal(rng, 0.8), Reference(SPACE, SPACE.sample(99, rng)), drawn_bands())
    assert bare.tails is None
    assert [pair.outside_band for pair in bare.correlations] == [None] * 3
    assert bare.largest_gaps(1) == bare.correlations[:1]
    line = box(1)
    points = line.sample(50, rng)
    assert measure_shape(points, Reference(line, points, points), None).correlations == []


def test_bands_of_before_there_were_correlations_still_load():
    old = drawn_bands().model_dump(exclude={"correlations"})
    bands = BeliefBands.model_validate(old)
    rng = np.random.default_rng(6)
    shape = measure_shape(normal(rng, 0.3), reference(rng), bands)
    assert [pair.band for pair in shape.correlations] == [None] * 3
    assert shape.pairs_outside_band == []
    assert shape.tails[0].below_band is not None


def test_a_constant_feature_hangs_together_with_none():
    rng = np.random.default_rng(7)
    points = normal(rng, 0.5, n=50)
    points[:, 1] = 0.1  # whose mean rounds
    assert correlation_matrix(points)[0, 1] == 0
    interval = correlation_interval(points[:, 0], points[:, 1])
    assert (interval.low, interval.value, interval.high) == (0, 0, 0)
    assert correlation_interval(points[:, 0], -2 * points[:, 0]).high == -1


@pytest.mark.parametrize("freedom", [np.inf, 5], ids=["normal", "heavy"])
def test_the_data_s_interval_holds_the_truth_where_fisher_s_may_not(freedom):
    """Of Student's t with 5 degrees of freedom Fisher's holds it 80 times in a hundred."""
    rng, hits, fisher, widths = np.random.default_rng(8), 0, 0, []
    for _ in range(400):
        scale = 1.0 if np.isinf(freedom) else np.sqrt(freedom / rng.chisquare(freedom, (600, 1)))
        points = normal(rng, 0.6, n=600) * scale
        interval = correlation_interval(points[:, 0], points[:, 1])
        hits += interval.low < 0.6 < interval.high
        fisher += abs(np.arctanh(interval.value) - np.arctanh(0.6)) < 1.96 / np.sqrt(597)
        widths.append(np.arctanh(interval.high) - np.arctanh(interval.low))
    assert 0.92 <= hits / 400 <= 0.98
    if np.isinf(freedom):
        assert np.mean(widths) == pytest.approx(2 * 1.96 / np.sqrt(597), rel=0.03)
    else:
        assert fisher / 400 < 0.87


@given(
    arrays(np.float64, (6, 3), elements=st.integers(-50, 50).map(float)),
    arrays(np.int64, 6, elements=st.integers(1, 4)),
)
def test_weights_count_rows_and_units_do_not_matter(points, counts):
    weighted = correlation_matrix(points, counts / counts.sum())
    assert np.allclose(weighted, correlation_matrix(np.repeat(points, counts, axis=0)), atol=1e-8)
    assert np.allclose(weighted, weighted.T)
    assert np.abs(weighted).max() <= 1
    moved = correlation_matrix(points * [2.0, -3.0, 1.0] + 5.0, counts / counts.sum())
    assert np.allclose(moved * np.outer([1, -1, 1], [1, -1, 1]), weighted, atol=1e-8)


def test_the_interval_of_a_difference_holds_it_nine_times_in_ten():
    """Two samples of known correlations, each with its interval of 90 %."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(300):
        one, other = normal(rng, 0.8, n=60), normal(rng, 0.2, n=200)
        belief, data = (correlation_interval(x[:, 0], x[:, 1], 0.9) for x in (one, other))
        found = correlation_difference(belief.value, (belief.low, belief.high), data)
        held += found.low <= 0.6 <= found.high
    assert 0.85 < held / 300 < 0.95


def test_points_kept_of_draws_are_those_of_their_weights(tmp_path):
    rng = np.random.default_rng(6)
    points = tuple(rng.normal(size=(5000, 3)) for _ in range(4))
    weights = tuple(np.exp(x[:, 0]) / np.exp(x[:, 0]).sum() for x in points)
    write_draws(BeliefDraws(points, weights, None, None, None, None), SPACE, tmp_path / "draws")
    kept = read_draws(tmp_path / "draws")
    assert kept.shape == (4, 1000, 3)
    for x, w, drawn in zip(points, weights, kept, strict=True):
        np.testing.assert_allclose(drawn.mean(axis=0), w @ x, atol=0.12)
        assert np.isin(drawn.astype(np.float32), x.astype(np.float32)).all()
    assert read_draws(tmp_path / "none") is None
