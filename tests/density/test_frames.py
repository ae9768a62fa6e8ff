"""Data frames are accepted wherever arrays of points are, whatever the order of their columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from llm_elicit.density import (
    BeliefDensity,
    DensityError,
    Empirical,
    Evidence,
    GaussianMixture,
    LinearConstraint,
    PolygonConstraint,
    Uniform,
    band,
    fit_belief,
    fit_evidence,
    fit_power,
    suggest_pairs,
)
from llm_elicit.density.belief import read_sampling
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

WORDS = ["Adelie", "Chinstrap", "Gentoo"]
BOX = Uniform([0.0, 2.0, 10.0], [2.0, 7.0, 90.0], categorical=[True, False, False])
RNG = np.random.default_rng(0)
A, B = BOX.sample(150, RNG), BOX.sample(150, RNG)


def utility(x: np.ndarray) -> np.ndarray:
    at = np.array([3.5, 4.5, 5.5])[x[:, 0].astype(int)]
    return np.asarray(-2.0 * (x[:, 1] - at) ** 2 - ((x[:, 2] - 40.0) / 20.0) ** 2)


FIRST = utility(A) - utility(B) + RNG.logistic(size=150) > 0
W, L = np.where(FIRST[:, None], A, B), np.where(FIRST[:, None], B, A)


def frame(x: np.ndarray) -> pd.DataFrame:
    """The points in shuffled columns, species as a category whose codes are those of `WORDS`."""
    species = pd.Categorical.from_codes(x[:, 0].astype(int), WORDS)
    return pd.DataFrame({"mass": x[:, 1], "species": species, "age": x[:, 2], "noted": "x"})[
        ["noted", "age", "species", "mass"]
    ]


def features(x: np.ndarray) -> pd.DataFrame:
    """The points in the columns of λ."""
    return frame(x)[["species", "mass", "age"]]


def fit(winners: object = None, losers: object = None) -> BeliefDensity:
    return fit_belief(
        features(W) if winners is None else winners,
        frame(L) if losers is None else losers,
        sampling=BOX,
        method="utility",
        settings=QUADRATIC,
    )


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return fit()


X = BOX.sample(40, np.random.default_rng(1))


def test_a_fit_takes_names_and_the_words_of_categories(belief: BeliefDensity) -> None:
    assert belief.feature_names == ("species", "mass", "age")
    np.testing.assert_array_equal(belief.log_prob(X), fit(W, L).log_prob(X))
    assert set(belief.to_pandas(50)["species"]) <= set(WORDS)
    assert belief.given({"species": "Gentoo"}).mean()[0] > belief.mean()[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda b, x: b.log_prob(x),
        lambda b, x: b.pdf(x),
        lambda b, x: b.utility(x),
        lambda b, x: b.utilities(x),
        lambda b, x: b.draws().log_prob(x),
        lambda b, x: b.draws().cdf(x),
        lambda b, x: b.as_prior().logpdf(x),
        lambda b, x: b.as_prior().pdf(x),
        lambda b, x: b.credible_region(0.5).contains(x),
        lambda b, x: fit_power(b, points=x).value,
        lambda b, x: fit_power(b, ratios=(x, x[::-1], np.linspace(-1, 1, 40))).value,
        lambda b, x: b.to_pandas(points=x).to_numpy().tolist(),
    ],
)
def test_a_frame_says_what_its_array_says(belief: BeliefDensity, call) -> None:  # type: ignore[no-untyped-def]
    np.testing.assert_array_equal(call(belief, frame(X)), call(belief, X))


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: Evidence.comparisons(a, b, FIRST * 1.0),
        lambda a, b: Evidence.log_odds(a, b, utility(A) - utility(B)),
        lambda a, b: Evidence.probabilities(a, b, np.where(FIRST, 0.8, 0.3)),
    ],
)
def test_evidence_keeps_the_names(make) -> None:  # type: ignore[no-untyped-def]
    named, plain = make(features(A), frame(B)), make(A, B)
    for one, other in zip(named.arrays(), plain.arrays(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert named.features is not None
    assert named.features.names == ("species", "mass", "age")
    joined = plain + named
    assert joined.features == named.features
    belief = fit_evidence(joined, sampling=BOX, settings=QUADRATIC)
    assert belief.marginal("mass") == belief.marginal(1)


def test_rankings_of_frames() -> None:
    sets, ranking = np.stack([A[:50], B[:50], W[50:100]], axis=1), np.tile([2, 0, 1], (50, 1))
    frames = [features(A[:50]), frame(B[:50]), frame(W[50:100])]
    named, plain = Evidence.rankings(frames, ranking), Evidence.rankings(sets, ranking)
    np.testing.assert_array_equal(named.winners, plain.winners)
    assert named.features is not None
    with pytest.raises(DensityError, match="different lengths"):
        Evidence.rankings([frames[0], frames[1][:3]], ranking)


def test_a_fit_takes_dates() -> None:
    box = Uniform([18_000.0], [19_000.0])
    days = [
        pd.DataFrame({"seen": pd.to_datetime(x, unit="D")})
        for x in (W[:60, 2].round(), L[:60, 2].round())
    ]
    later = [day + pd.Timedelta(days=18_400) for day in days]
    belief = fit_belief(*later, sampling=box, method="utility", settings=QUADRATIC)
    assert belief.to_pandas(5)["seen"].dtype.kind == "M"
    assert "2020-" in belief._repr_html_()
    assert belief.plot(bands=False).axes[0].get_xlabel() == "seen"
    assert np.isfinite(belief.log_prob(later[0])).all()
    with pytest.raises(DensityError, match="seen has no date NaT"):
        belief.log_prob(later[0].mask(later[0] > later[0].iloc[0]))


def test_suggested_pairs_are_worded(belief: BeliefDensity) -> None:
    first, _ = suggest_pairs(belief, 5)
    assert set(belief.to_pandas(points=first)["species"]) <= set(WORDS)


def test_quantiles_and_draws_are_asked_by_name(belief: BeliefDensity) -> None:
    stated = {0.25: 4.0, 0.75: 5.5}
    assert fit_power(belief, quantiles={"mass": stated}) == fit_power(belief, quantiles={1: stated})
    draws = belief.draws()
    np.testing.assert_array_equal(draws.shares("species"), draws.shares(0))
    edges = np.linspace(2, 7, 4)
    np.testing.assert_array_equal(draws.marginal("mass", edges), draws.marginal(1, edges))


def test_a_table_is_a_sampling_density() -> None:
    numbers = frame(A)[["mass", "age"]]
    data = Empirical(numbers)
    np.testing.assert_array_equal(data.log_prob(numbers), Empirical(A[:, 1:]).log_prob(A[:, 1:]))


def test_the_default_draws_are_kept(belief: BeliefDensity) -> None:
    assert belief.draws().points is belief.draws().points
    other = belief.named(["a", "b", "c"]).draws()
    np.testing.assert_array_equal(other.marginal("b", [2, 4, 7]), other.marginal(1, [2, 4, 7]))
    here, there = (band(belief.draws(**seed).mean())[0] for seed in ({}, {"seed": 0}))
    np.testing.assert_array_equal(here, there)
    assert np.isnan(here).tolist() == [True, False, False]
    assert (belief.draws(seed=1).points[0] != belief.draws().points[0]).any()


def test_draws_of_equal_weight_have_the_mean_of_the_weighted(belief: BeliefDensity) -> None:
    draws = belief.draws()
    points = draws.sample(2000)
    assert points.shape == (len(draws), 2000, 3)
    assert (abs(points.mean(1) - draws.mean()) < 0.1 * belief.sd())[:, 1:].all()


def test_codes_of_categories_are_not_averaged(belief: BeliefDensity) -> None:
    known = [False, True, True]
    for values in (belief.mean(), belief.sd(), belief.quantile([0.5])[0], belief.as_prior().mean()):
        assert np.isfinite(values).tolist() == known
    assert np.isfinite(belief.covariance()).tolist() == np.outer(known, known).tolist()
    assert np.isnan(belief.marginal("species").mean)
    assert belief.draws().quantile([0.1, 0.9]).shape == (len(belief.draws()), 2, 3)
    assert np.isnan(belief.draws().mean()).any(0).tolist() == [True, False, False]
    shares = belief.shares("species")
    assert list(shares) == list(WORDS)
    points = belief.to_pandas(20_000)["species"].value_counts(normalize=True)
    assert all(abs(shares[word] - points.get(word, 0.0)) < 0.03 for word in WORDS)
    with pytest.raises(DensityError, match="'mass' has no categories"):
        belief.shares("mass")


def test_what_a_notebook_shows_of_an_object_is_short(belief: BeliefDensity) -> None:
    for shown in (belief, belief.draws(), belief.as_prior(), belief.credible_region(), BOX):
        assert len(repr(shown)) < 1000
    assert repr(belief.draws()).startswith("BeliefDraws(")


# --- λ with names ------------------------------------------------------------------------------

PLAIN = np.random.default_rng(2).uniform([0.0, 10.0, -5.0], [10.0, 20.0, 5.0], (60, 3))
NAMES, TURNED = ["u", "v", "w"], ["w", "u", "v"]
UVW = pd.DataFrame(PLAIN, columns=NAMES)
WUV = UVW[TURNED]
LOW, HIGH = [0.0, 10.0, -5.0], [10.0, 20.0, 5.0]
MEAN, COVARIANCE = UVW.mean(), UVW.cov()


def _limits(x: list[float], names: list[str]) -> pd.Series:
    """The limits of u, v, w in the order of names."""
    return pd.Series(x, NAMES)[names]


def _constrained(low: object, high: object, coefficients: object) -> Uniform:
    return Uniform(low, high, constraints=[LinearConstraint(coefficients, -4.0)])  # type: ignore[arg-type]


# Each makes λ from arrays or from what names the features in another order.
SAMPLINGS = {
    "uniform of series": (
        lambda: Uniform(LOW, HIGH, periodic=[True, False, False]),
        lambda: Uniform(
            _limits(LOW, TURNED), _limits(HIGH, NAMES),
            periodic=pd.Series([False, True, False], TURNED),
        ),
    ),
    "uniform of mappings": (
        lambda: Uniform(LOW, HIGH),
        lambda: Uniform(dict(_limits(LOW, TURNED)), dict(_limits(HIGH, NAMES))),
    ),
    "uniform under a constraint": (
        lambda: _constrained(LOW, HIGH, [1.0, -1.0, 0.0]),
        lambda: _constrained(_limits(LOW, TURNED), _limits(HIGH, NAMES), {"v": -1.0, "u": 1.0}),
    ),
    "gaussian": (
        lambda: GaussianMixture([1.0], [MEAN.to_numpy()], [COVARIANCE.to_numpy()]),
        lambda: GaussianMixture([1.0], [MEAN[TURNED]], [COVARIANCE]),
    ),
    "mixture of frames": (
        lambda: GaussianMixture([0.5, 0.5], PLAIN[:2], [COVARIANCE.to_numpy()] * 2),
        lambda: GaussianMixture(
            [0.5, 0.5], WUV[:2], [COVARIANCE, COVARIANCE.loc[TURNED, NAMES]]
        ),
    ),
    "empirical": (
        lambda: Empirical(PLAIN, low=[0.0, -np.inf, -5.0], log=[True, False, False]),
        lambda: Empirical(
            WUV, low=_limits([0.0, -np.inf, -5.0], NAMES), log={"u": True, "v": False, "w": False}
        ),
    ),
    "empirical of arrow": (lambda: Empirical(PLAIN), lambda: Empirical(pa.table(WUV))),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_a_sampling_density_with_names_is_the_one_without(kind: str) -> None:
    plain, named = (make() for make in SAMPLINGS[kind])
    assert sorted(named.names) == NAMES
    order = [NAMES.index(name) for name in named.names]
    points = plain.sample(20, np.random.default_rng(0))
    frame = pd.DataFrame(points, columns=NAMES)
    expected = plain.log_prob(points)
    for x in (frame, frame[TURNED], pa.table(frame[TURNED]), dict(frame[TURNED])):
        np.testing.assert_allclose(named.log_prob(x), expected, rtol=1e-9)
        assert named.contains(x).all()
        assert named.to_cube(x).shape == (20, 3)
    np.testing.assert_allclose(named.log_prob(points[:, order]), expected, rtol=1e-9)
    again = read_sampling(json.loads(json.dumps(named.to_dict())))
    assert again.names == named.names
    turned = named.reorder([named.names.index(name) for name in NAMES])
    np.testing.assert_allclose(turned.log_prob(points), expected, rtol=1e-9)


NEARER = np.square(PLAIN[:30] - [3, 16, 1]).sum(1) < np.square(PLAIN[30:] - [3, 16, 1]).sum(1)
SIDES = [
    np.where(NEARER[:, None], *each)
    for each in ((PLAIN[:30], PLAIN[30:]), (PLAIN[30:], PLAIN[:30]))
]
FIRST_SIDE, OTHER_SIDE = (pd.DataFrame(side, columns=NAMES) for side in SIDES)
BOX_OF_NAMES = Uniform(_limits(LOW, TURNED), _limits(HIGH, TURNED))


@pytest.mark.parametrize(
    "make",
    [
        lambda: fit_belief(
            FIRST_SIDE, OTHER_SIDE[TURNED], sampling=BOX_OF_NAMES, settings=QUADRATIC
        ),
        lambda: fit_belief(
            pa.table(FIRST_SIDE), pa.table(OTHER_SIDE[TURNED]), sampling=BOX_OF_NAMES,
            settings=QUADRATIC,
        ),
        lambda: fit_evidence(
            Evidence.comparisons(FIRST_SIDE, OTHER_SIDE[TURNED]), sampling=BOX_OF_NAMES,
            settings=QUADRATIC,
        ),
        lambda: fit_evidence(
            Evidence.rankings([FIRST_SIDE, OTHER_SIDE[TURNED]], [[0, 1]] * 30, positions=False),
            sampling=BOX_OF_NAMES, settings=QUADRATIC,
        ),
    ],
)  # fmt: skip
def test_points_and_the_limits_of_a_fit_are_matched_by_name(make) -> None:  # type: ignore[no-untyped-def]
    belief = make()
    assert belief.feature_names == belief.sampling.names == ("u", "v", "w")
    at = [[1.0, 19.0, 2.0], [19.0, 1.0, 2.0]]
    assert np.isfinite(belief.log_prob(at)).tolist() == [True, False]
    plain = fit_belief(*SIDES, sampling=Uniform(LOW, HIGH), settings=QUADRATIC)
    np.testing.assert_allclose(belief.log_prob(at), plain.log_prob(at), rtol=1e-6)
    one = pd.Series([2.0, 1.0, 19.0], TURNED)
    for x in (one, dict(one)):
        assert belief.as_prior().logpdf(x) == belief.log_prob(at)[0]


def test_points_without_names_are_in_the_order_of_the_limits(tmp_path: Path) -> None:
    order = [NAMES.index(name) for name in TURNED]
    turned = (side[:, order] for side in SIDES)
    belief = fit_belief(*turned, sampling=BOX_OF_NAMES, settings=QUADRATIC)
    assert belief.feature_names == tuple(TURNED)
    given = belief.given({"u": 4.0})
    assert given.feature_names == given.sampling.names == ("w", "v")
    belief.save(tmp_path)
    assert BeliefDensity.load(tmp_path).sampling.names == tuple(TURNED)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Uniform(_limits(LOW, NAMES), HIGH), "not both"),
        (lambda: Uniform(LOW, _limits(HIGH, NAMES)), "not both"),
        (lambda: Uniform(_limits(LOW, NAMES), _limits(HIGH, NAMES).rename({"u": "z"})), "z, v, w"),
        (lambda: Uniform(pd.Series(LOW, [2, 1, 0]), pd.Series(HIGH, [0, 1, 2])), "different texts"),
        (lambda: Uniform(pd.Series(LOW, ["u", "u", "v"]), HIGH), "must be different texts"),
        (lambda: Empirical(UVW, low={"u": 0.0}), "must be the same"),
        (lambda: GaussianMixture([0.5, 0.5], [MEAN, LOW], [COVARIANCE] * 2), "name all"),
        (lambda: _constrained(LOW, HIGH, {"u": 1.0}), "no names; give both by name"),
        (lambda: _constrained(_limits(LOW, NAMES), _limits(HIGH, NAMES), {"z": 1.0}), "the same"),
        (lambda: PolygonConstraint((0, 1), UVW[["v", "u"]][:3]), "vertices have names"),
        (lambda: fit_belief(UVW, PLAIN, sampling=Uniform(LOW, HIGH)), "two data frames, or two"),
        (lambda: Evidence.comparisons(PLAIN, UVW), "two data frames, or two"),
        (lambda: Evidence.rankings([PLAIN, UVW], [[0, 1]] * 60), "name all"),
        (
            lambda: fit_belief(UVW, WUV, sampling=Uniform({"a": 0, "u": 0}, {"a": 9, "u": 9})),
            "sampling has the features a, u, and the points have u, v, w",
        ),
    ],
)  # fmt: skip
def test_names_that_cannot_be_matched_are_refused_in_one_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DensityError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda b: b.log_prob(frame(X).drop(columns="age")), "no column 'age'"),
        (lambda b: b.draws().log_prob(frame(X).drop(columns="age")), "no column 'age'"),
        (lambda b: fit_power(b, points=frame(X)[:0]), "points has no points"),
        (lambda b: fit_power(b, quantiles={"height": {0.5: 1.0}}), "no feature 'height'"),
        (lambda b: b.draws().shares("height"), "no feature 'height'"),
        (lambda b: b.named(["a", "b", "c"], {0: ["x", "y"]}), "2 words for feature 0"),
        (lambda b: fit(features(W).assign(species="Adelie")), "cannot be read as numbers"),
        (lambda b: fit(features(W), frame(L).assign(species="Emperor")), "no category 'Emperor'"),
        (
            lambda b: (
                Evidence.comparisons(features(A), frame(B))
                + Evidence.comparisons(frame(A)[["age", "species", "mass"]], frame(B))
            ),
            "cannot be joined",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(belief: BeliefDensity, call, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DensityError, match=said) as caught:
        call(belief)
    assert "\n" not in str(caught.value)
