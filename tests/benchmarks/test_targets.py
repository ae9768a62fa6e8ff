"""Each target's draws follow its density, and the densities are the ones they say they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.targets import (
    PAPER_TARGETS,
    RING_PRINTED,
    TUNING_TARGETS,
    cube,
    find,
    mixture,
    rejection,
)
from llm_elicit.density import GaussianMixture, Uniform
from llm_elicit.errors import ElicitError, InputError

EVERY = (*PAPER_TARGETS, RING_PRINTED, *TUNING_TARGETS)
PLANAR = [target for target in EVERY if target.dimension == 2]


def by_name(target):
    return target.name


def score(target, points, step=1e-5):
    """∇ log p (n, d) by central differences."""
    slopes = []
    for shift in step * np.eye(target.dimension):
        up, down = target.log_density(points + shift), target.log_density(points - shift)
        slopes.append((up - down) / (2 * step))
    return np.stack(slopes, axis=1)


def bin_masses(target, bins, fine=16):
    """Probability of each of bins² cells of λ's box, by the midpoint rule."""
    axes = [
        np.linspace(low, high, bins * fine, endpoint=False) + (high - low) / (2 * bins * fine)
        for low, high in zip(target.sampling.low, target.sampling.high, strict=True)
    ]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    mass = np.exp(target.log_density(grid)).reshape(bins, fine, bins, fine).sum(axis=(1, 3))
    return mass / mass.sum()


def chi_square(target, points, bins=24):
    """p-value of the points' counts in cells where at least ten are expected."""
    edges = [
        np.linspace(low, high, bins + 1)
        for low, high in zip(target.sampling.low, target.sampling.high, strict=True)
    ]
    counts = np.histogram2d(*points.T, bins=edges)[0].ravel()
    expected = bin_masses(target, bins).ravel() * len(points)
    common = expected >= 10
    rest = counts[~common].sum(), expected[~common].sum()
    counts, expected = (
        np.append(values[common], extra + 1e-9)
        for values, extra in zip((counts, expected), rest, strict=True)
    )
    return stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("target", PLANAR, ids=by_name)
def test_draws_have_the_density_s_shares_of_cells(target):
    points = target.sample(40_000, np.random.default_rng(1))
    assert chi_square(target, points) > 1e-3
    moved = np.clip(points + np.array([0.1, 0.0]), target.sampling.low, target.sampling.high)
    assert chi_square(target, moved) < 1e-6, "the test sees a shift of a tenth"


@pytest.mark.parametrize("target", [t for t in EVERY if t.name != "Edges4D"], ids=by_name)
def test_draws_meet_steins_identity(target):
    """E[∇log p(x) (x − m)ᵀ] = −I for any m, if no mass is near the edges of the box."""
    points = target.sample(40_000, np.random.default_rng(2))
    found = score(target, points).T @ (points - points.mean(axis=0)) / len(points)
    tolerance = 0.25 if target.name == "StudentT4D" else 0.12
    assert abs(found + np.eye(target.dimension)).max() < tolerance


@pytest.mark.parametrize("target", EVERY, ids=by_name)
def test_a_target_is_finite_and_drawn_within_its_support(target):
    rng = np.random.default_rng(3)
    assert np.isfinite(target.log_density(target.sampling.sample(20_000, rng))).all()
    points = target.sample(5000, rng)
    assert points.shape == (5000, target.dimension)
    assert target.sampling.contains(points).all()
    assert (
        target.sample(10, np.random.default_rng(4)) == target.sample(10, np.random.default_rng(4))
    ).all()


def test_the_papers_targets_are_in_its_order_and_dimensions():
    assert [(t.name, t.dimension) for t in PAPER_TARGETS] == [
        ("Onemoon2D", 2),
        ("Twomoons2D", 2),
        ("Ring2D", 2),
        ("Gaussian4D", 4),
        ("Mixturegaussians4D", 4),
        ("Stargaussian6D", 6),
        ("Mixturegaussians10D", 10),
        ("Gaussian16D", 16),
    ]
    assert all(isinstance(t.sampling, Uniform) == (t.dimension <= 4) for t in PAPER_TARGETS)


def test_no_tuning_target_is_in_the_papers_tables():
    assert not {t.name for t in TUNING_TARGETS} & {t.name for t in PAPER_TARGETS}
    assert any(isinstance(t.sampling, GaussianMixture) for t in TUNING_TARGETS)


def test_twomoons_has_two_equal_moons_of_radius_two():
    twomoons = find(["Twomoons2D"])[0]
    points = twomoons.sample(20_000, np.random.default_rng(5))
    assert abs((points[:, 0] > 0).mean() - 0.5) < 0.015
    assert abs(np.linalg.norm(points, axis=1).mean() - 2.06) < 0.02  # moons thin out outwards
    left, right = twomoons.log_density(np.array([[-2.0, 0.3], [2.0, 0.3]]))
    assert left == right


@pytest.mark.parametrize(
    ("name", "law"), [("Ring2D", stats.norm(2, 0.25)), ("Ring2D-printed", None)]
)
def test_the_radius_of_the_ring_is_normal(name, law):
    ring = find([name])[0]
    radius = np.linalg.norm(ring.sample(20_000, np.random.default_rng(6)), axis=1)
    if law is not None:
        assert stats.kstest(radius, law.cdf).pvalue > 1e-3
    else:  # without the factor 1/r the radius has density ∝ r exp(−32 (r − 2)²)
        assert abs(radius.std() - 0.125) < 0.005
        assert abs(radius.mean() - (2 + 0.125**2 / 2)) < 0.005


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("Mixturegaussians4D", [0.25] * 4),
        ("Mixturegaussians10D", [0.25] * 4),
        ("UnequalMixture2D", [0.75, 0.25]),
        ("UnequalMixture5D", [0.75, 0.25]),
    ],
)
def test_modes_have_their_weights(name, shares):
    target = find([name])[0]
    law = target.log_density.__self__
    points = target.sample(20_000, np.random.default_rng(7))
    nearest = np.linalg.norm(points[:, None] - law.means, axis=2).argmin(axis=1)
    assert np.allclose(np.bincount(nearest) / len(points), shares, atol=0.02)


def test_moments_are_those_of_the_appendix():
    for name, d in (("Gaussian4D", 4), ("Gaussian16D", 16)):
        points = find([name])[0].sample(100_000, np.random.default_rng(8))
        signs = np.array([(-1) ** j for j in range(1, d + 1)])
        assert np.allclose(points.mean(axis=0), 2 * signs, atol=0.03)
        covariance = np.full((d, d), d / 15)
        np.fill_diagonal(covariance, d / 10)
        assert np.allclose(np.cov(points.T), covariance, atol=0.04 * d / 4)
    star = find(["Stargaussian6D"])[0].sample(100_000, np.random.default_rng(9))
    assert np.allclose(star.mean(axis=0), 3, atol=0.02)
    # Correlations of 0.9 and ±0.9: they cancel between odd and even features.
    order = np.arange(6)
    expected = np.where((order[:, None] + order) % 2 == 0, 0.9, 0.0) + 0.1 * np.eye(6)
    assert np.allclose(np.cov(star.T), expected, atol=0.02)


def test_gaussian_sampling_has_three_times_the_targets_variances():
    for name in ("Stargaussian6D", "Gaussian16D"):
        target = find([name])[0]
        points = target.sample(50_000, np.random.default_rng(10))
        assert np.allclose(target.sampling.mean, points.mean(axis=0), atol=0.05)
        assert np.allclose(np.diag(target.sampling.covariance) / points.var(axis=0), 3, atol=0.1)
        assert np.count_nonzero(target.sampling.covariance) == target.dimension


@settings(max_examples=20, deadline=None)
@given(
    st.floats(-2, 2), st.floats(0.3, 2.0), st.floats(1.0, 3.0), st.integers(1, 500), st.integers(0)
)
def test_restricted_draws_follow_the_truncated_normal(mean, sd, side, n, seed):
    law = GaussianMixture([1.0], [[mean]], [[[sd**2]]])
    target = mixture("normal", law, cube(side, 1))
    points = target.sample(n, np.random.default_rng(seed % 2**32))
    assert points.shape == (n, 1)
    bounds = (-side - mean) / sd, (side - mean) / sd
    cdf = stats.truncnorm(*bounds, mean, sd).cdf
    assert stats.kstest(points[:, 0], cdf).pvalue > 1e-5


def test_a_wrong_bound_for_rejection_is_noticed():
    draw = rejection(lambda x: -(x**2).sum(axis=1), -5.0, cube(1.0, 2))
    with pytest.raises(ElicitError, match="exceeds its bound"):
        draw(10, np.random.default_rng(0))


def test_a_target_that_is_never_in_its_box_ends_with_an_error(monkeypatch):
    monkeypatch.setattr("benchmarks.targets._ROUNDS", 3)
    law = GaussianMixture([1.0], [[100.0]], [[[1.0]]])
    with pytest.raises(ElicitError, match="proposals were accepted"):
        mixture("far", law, cube(1.0, 1)).sample(5, np.random.default_rng(0))


def test_an_unknown_target_is_refused_with_the_choices():
    with pytest.raises(
        InputError, match=r"target 'Moon' is unknown; choose from paper, tuning, Onemoon2D"
    ):
        find(["Moon"])
