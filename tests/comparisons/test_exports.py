"""Beliefs in other software: the same numbers, under the features' names."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llm_elicit as le
from llm_elicit.density import BeliefDensity, PosteriorSettings, Uniform, band, fit_belief
from tests.density.targets import QUICK, ask

SPACE = le.FeatureSpace(
    name="incomes",
    title="incomes",
    subject="a household",
    features=(
        le.Feature(name="age", label="age", unit="years", low=0, high=90),
        le.Feature(name="income", label="income", unit="USD", factor=10_000, low=0, high=9),
    ),
)


def _belief(draws: int) -> BeliefDensity:
    """Of a judge who expects an age near 40 and an income near 30,000."""
    box = Uniform(SPACE.low, SPACE.high)
    winners, losers = ask(
        lambda x: -0.5 * np.square((x - [40.0, 3.0]) / [9.0, 1.0]).sum(1), box, 150, seed=3
    )
    utility = replace(QUICK.utility, posterior=PosteriorSettings(draws=draws))
    settings = replace(QUICK, utility=utility)
    return fit_belief(winners, losers, sampling=box, method="utility", settings=settings)


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return _belief(draws=32)


@pytest.fixture(scope="module")
def exported(belief):
    pytest.importorskip("arviz")
    return le.to_arviz(belief, SPACE, chains=3, draws=400, seed=7)


def test_arviz_summarizes_a_belief_as_it_does_itself(belief, exported):
    arviz = pytest.importorskip("arviz")
    table = arviz.summary(exported, round_to="none")
    assert list(table.index) == ["x[age]", "x[income]"]
    assert (table["r_hat"] < 1.02).all()
    sd = np.array([each.sd for each in belief.marginals])
    error = sd / np.sqrt(3 * 400 * belief.diagnostics["sampler"]["effective_share"])
    assert (abs(table["mean"].to_numpy() - belief.mean()) < 4 * error).all()
    np.testing.assert_allclose(table["sd"], sd, rtol=0.1)


def test_the_draws_of_beliefs_have_the_bands_of_the_core(belief, exported):
    draws = belief.draws(seed=7)
    kept = exported.beliefs
    assert dict(kept.sizes) == {"chain": 1, "draw": 32, "level": 5, "feature": 2}
    ages = kept["mean"].sel(chain=0, feature="age").to_numpy()
    np.testing.assert_array_equal(np.array(band(ages)), np.array(band(draws.mean()))[:, 0])
    medians = kept["quantile"].sel(chain=0, feature="income", level=0.5).to_numpy()
    np.testing.assert_array_equal(medians, draws.quantile(0.5)[:, 0, 1])


def test_an_export_says_what_it_is(exported):
    """Units are those of the numbers: incomes are kept in 10,000 USD, and asked in USD."""
    assert exported.posterior["unit"].to_numpy().tolist() == ["years", "10,000 USD"]
    attributes = exported.posterior.attrs
    assert attributes["creation_library"] == "llm_elicit"
    assert attributes["method"] == "utility"
    assert attributes["noise_family"] == "gumbel"
    assert attributes["seed"] == 7
    x = exported.posterior["x"]
    assert x.shape == (3, 400, 2)
    assert len(np.unique(x.to_numpy()[:, 0, 0])) == 3  # every chain is drawn on its own


def test_an_export_is_kept_in_a_file(exported, tmp_path):
    pytest.importorskip("h5netcdf")
    xarray = pytest.importorskip("xarray")
    exported.to_netcdf(str(tmp_path / "belief.nc"))
    again = xarray.open_dataset(tmp_path / "belief.nc", group="posterior", engine="h5netcdf")
    np.testing.assert_array_equal(again["x"], exported.posterior["x"])
    assert again.attrs["noise_level"] == exported.posterior.attrs["noise_level"]


def test_a_belief_without_draws_or_names():
    pytest.importorskip("arviz")
    found = le.to_arviz(_belief(draws=0), chains=1, draws=5)
    assert found.posterior["feature"].to_numpy().tolist() == ["x0", "x1"]
    assert not hasattr(found, "beliefs")


def test_what_cannot_be_exported_is_said_in_one_line(belief, monkeypatch):
    with pytest.raises(le.InputError, match=r"2 features and the space 'penguins' has 4"):
        le.to_arviz(belief, le.FeatureSpace.load("penguins"))
    with pytest.raises(le.InputError, match="chains = 0"):
        le.to_arviz(belief, SPACE, chains=0)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(le.InputError, match=r"pip install 'llm-elicit\[arviz\]'"):
        le.to_arviz(belief, SPACE)


@pytest.mark.parametrize("package", ["pymc", "numpyro"])
def test_hamiltonian_samplers_agree_with_weighted_draws(package):
    """The packages are too heavy for every run: a machine that has them runs this."""
    pytest.importorskip(package)
    found = runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"prior_{package}.py"))
    posterior, mean, sd = found["posterior"], found["mean"], found["sd"]
    assert (abs(posterior.mean(0) - mean) < 0.25 * sd).all()
    np.testing.assert_allclose(posterior.std(0), sd, rtol=0.2)


def test_categories_are_exported_as_shares():
    """Their codes are in no variable: a mean of codes would be a number of nothing."""
    pytest.importorskip("arviz")
    kinds = le.Feature(name="kind", label="kind", kind="categorical", categories=["oak", "elm"])
    features = (kinds, SPACE.features[0])
    space = le.FeatureSpace(name="trees", title="trees", subject="a tree", features=features)
    box = Uniform([0.0, 0.0], [1.0, 90.0], categorical=[True, False])
    winners, losers = ask(
        lambda x: np.where(x[:, 0] == 1.0, 1.0, 0.0) - ((x[:, 1] - 40.0) / 9.0) ** 2,
        box,
        80,
        seed=3,
    )
    belief = fit_belief(winners, losers, sampling=box, method="utility", settings=QUICK)
    tree = le.to_arviz(belief, space, chains=2, draws=300, seed=1)
    for group in ("posterior", "beliefs"):
        shares = tree[group]["share_kind"]
        assert list(shares["kind_category"].values) == ["oak", "elm"]
        np.testing.assert_allclose(shares.sum("kind_category"), 1.0)
    assert list(tree["posterior"]["feature"].values) == ["age"]
    drawn = belief.sample(4000, seed=2)[:, 0].mean()
    found = tree["posterior"]["share_kind"].sel(kind_category="elm").mean()
    assert float(found) == pytest.approx(drawn, abs=0.06)
    assert list(le.to_arviz(belief, draws=10)["posterior"]["share_x0"]["x0_category"]) == ["0", "1"]
