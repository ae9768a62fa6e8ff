"""Beliefs know their features: frames in and out, values by name, words of categories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llm_elicit.density import BeliefDensity, DensityError, Uniform, fit_belief
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

SPACE = Uniform([0.0, 2.0], [2.0, 7.0], categorical=[True, False])
CENTRES = np.array([3.5, 4.5, 5.5])


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    rng = np.random.default_rng(0)
    a, b = SPACE.sample(400, rng), SPACE.sample(400, rng)

    def utility(x: np.ndarray) -> np.ndarray:
        return np.asarray(-2.0 * (x[:, 1] - CENTRES[x[:, 0].astype(int)]) ** 2)

    first = (utility(a) - utility(b) + rng.logistic(size=400) > 0)[:, None]
    names = ["species", "mass"]
    winners = pd.DataFrame(np.where(first, a, b), columns=names)
    losers = pd.DataFrame(np.where(first, b, a), columns=names)[["mass", "species"]]
    fitted = fit_belief(winners, losers, sampling=SPACE, settings=QUADRATIC)
    return fitted.named(fitted.feature_names, {"species": ["Adelie", "Chinstrap", "Gentoo"]})


def test_frames_are_matched_by_name(belief: BeliefDensity) -> None:
    assert belief.feature_names == ("species", "mass")
    frame = belief.to_pandas(50, seed=1)
    assert set(frame["species"]) <= {"Adelie", "Chinstrap", "Gentoo"}
    x = belief.sample(50, seed=1)
    np.testing.assert_allclose(frame["mass"], x[:, 1])
    shuffled = frame.assign(other=1.0)[["other", "mass", "species"]]
    np.testing.assert_array_equal(belief.log_prob(shuffled), belief.log_prob(x))
    np.testing.assert_array_equal(belief.utility(shuffled), belief.utility(x))
    np.testing.assert_allclose(belief.pdf(x), np.exp(belief.log_prob(x)))


def test_values_are_given_by_name(belief: BeliefDensity) -> None:
    gentoo = belief.given({"species": "Gentoo"})
    assert gentoo.feature_names == ("mass",)
    assert abs(gentoo.mean()[0] - 5.5) < 0.3
    drawn = belief.sample_given({"species": "Gentoo"}, 200, seed=3)
    assert (drawn[:, 0] == 2.0).all()
    assert belief.given({"mass": 4.0}).to_pandas(20).columns.to_list() == ["species"]


def test_dates_are_dates_in_frames_and_where_they_are_given(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    box = Uniform([18_262.0, 0.0], [18_300.0, 1.0], integer=[True, False])
    a, b = box.sample(60, rng), box.sample(60, rng)
    belief = fit_belief(a, b, sampling=box, settings=QUADRATIC).named(["day", "size"], dates=[0])
    belief.save(tmp_path)
    for each in (belief, BeliefDensity.load(tmp_path)):
        frame = each.to_pandas(30, seed=1)
        assert frame["day"].between("2020-01-01", "2020-02-08").all()
        assert frame["day"].dtype.kind == "M"
        x = each.sample(30, seed=1)
        np.testing.assert_array_equal(each.log_prob(frame), each.log_prob(x))
        words = frame.assign(day=frame["day"].dt.strftime("%Y-%m-%d"))
        np.testing.assert_array_equal(each.log_prob(words), each.log_prob(x))
    drawn = belief.sample_given({"day": "2020-01-05"}, 20, seed=3)
    assert (drawn[:, 0] == 18_266.0).all()
    later = belief.given({"size": 0.5}).to_pandas(5)
    assert later["day"].dtype.kind == "M"
    with pytest.raises(DensityError, match="day has no date 'soon'; write it as 2020-03-14"):
        belief.given({"day": "soon"})


def test_moments_are_those_of_the_draws(belief: BeliefDensity) -> None:
    x = belief.sample(20_000, seed=2)
    assert belief.marginal("mass") == belief.marginal(1) == belief.marginals[1]
    known = np.where([True, False], np.nan, x)  # a species has shares instead
    np.testing.assert_allclose(belief.sd(), known.std(0), atol=0.05)
    np.testing.assert_allclose(belief.covariance(), np.cov(known.T), atol=0.1)
    shares = np.bincount(x[:, 0].astype(int)) / len(x)
    np.testing.assert_allclose(list(belief.shares("species").values()), shares, atol=0.03)


def test_names_are_kept_with_the_belief(belief: BeliefDensity, tmp_path: Path) -> None:
    belief.save(tmp_path)
    same = BeliefDensity.load(tmp_path)
    assert same.feature_names == belief.feature_names
    assert same.to_pandas(5).equals(belief.to_pandas(5))
    assert belief.tempered(2.0).feature_names == belief.feature_names


def test_a_belief_without_names_has_numbers() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, 40, 2))
    belief = fit_belief(a, b, sampling=Uniform([-1, -1], [1, 1]), settings=QUADRATIC)
    assert belief.feature_names == ("x0", "x1")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda b: b.marginal("mas"), "no feature 'mas'; the features are species, mass"),
        (lambda b: b.given({"species": "Emperor"}), "no category 'Emperor'; it has Adelie"),
        (lambda b: b.given({"mass": "heavy"}), "none; give a number"),
        (lambda b: b.log_prob(pd.DataFrame({"mass": [1.0]})), "no column 'species'; it has 'mass'"),
        (lambda b: b.named(["a"]), "1 names for 2 features"),
        (lambda b: b.named(["a", "a"]), "they must be different texts"),
        (lambda b: b.named(["a", "b"], {"c": ["x"]}), "no feature 'c'; the features are a, b"),
    ],
)
def test_unknown_names_are_refused(belief: BeliefDensity, call, said: str) -> None:
    with pytest.raises(DensityError, match=said):
        call(belief)
