"""Points drawn from a kernel density of the reference table."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from fakes.fits import fit_quickly, report_quickly
from scipy import stats

import llm_elicit as le
from llm_elicit import density
from llm_elicit.audit.utility import evaluate_utility
from llm_elicit.comparisons.table import evidence_of, sampling_of
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline import stages
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.spaces.table import TableDensity


@pytest.mark.parametrize("name", ["california_housing", "countries", "penguins_kinds"])
def test_points_follow_the_table(name: str) -> None:
    uniform = FeatureSpace.load(name)
    space = uniform.with_sampling("empirical")
    drawn = space.sample(3000, np.random.default_rng(1))
    assert space.contains(drawn).all()
    np.testing.assert_array_equal(space.round(drawn), drawn)
    table = space.to_scale(space.table_points())
    scaled = space.to_scale(drawn)
    for j in range(space.dimension):
        if space.categorical[j]:
            shares = [np.bincount(x[:, j].astype(int)) / len(x) for x in (table, scaled)]
            assert np.abs(shares[0] - shares[1]).max() < 0.04
        else:
            assert stats.ks_2samp(table[:, j], scaled[:, j]).statistic < 0.22
    numbers = ~space.categorical
    expected = np.corrcoef(table[:, numbers].T)
    np.testing.assert_allclose(np.corrcoef(scaled[:, numbers].T), expected, atol=0.15)


def test_the_kernel_has_the_width_that_is_stated() -> None:
    """A normal sample smoothed by h² of its covariance has the covariance times 1 + h²."""
    rows = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 2000)
    drawn = TableDensity(rows, np.array([True, True])).sample(
        100_000, np.random.default_rng(1), lambda z: np.ones(len(z), dtype=bool)
    )
    widened = np.cov(rows.T) * (1.0 + 2000 ** (-2 / 6))
    np.testing.assert_allclose(np.cov(drawn.T), widened, atol=0.02)


def test_lambda_of_the_fit_is_that_of_the_points() -> None:
    space = FeatureSpace.load("countries").with_sampling("empirical")
    sampling = sampling_of(space)
    assert sampling.contains(space.sample(2000, np.random.default_rng(2))).all()
    x = sampling.sample(4000, np.random.default_rng(3))
    for j in range(space.dimension):
        other = space.sample(4000, np.random.default_rng(4))[:, j]
        assert stats.ks_2samp(x[:, j], other).statistic < 0.15


def test_a_belief_about_ordered_words_stays_on_them() -> None:
    space = FeatureSpace.load("gallery/diamonds").with_sampling("empirical")
    drawn = sampling_of(space).sample(200, np.random.default_rng(0))
    assert space.inside(drawn)[:, space.names.index("cut")].all()


def test_a_campaign_asks_about_points_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_quickly(monkeypatch)
    report_quickly(monkeypatch)
    campaign = Campaign.model_validate({
        "name": "plausible", "space": "countries", "runs": str(tmp_path),
        "design": {"pairs": 24, "sampling": "empirical"},
        "judges": [{"name": "expert", "backend": "simulated"}],
        "fit": {"method": "auto", "samples": 100},
    })  # fmt: skip
    run = le.run(campaign, progress=le.Silent())
    assert run.space.sampling == "empirical"
    np.testing.assert_array_equal(le.Run.open(run.folder).plan.a, run.plan.a)
    belief = run.beliefs["expert"]
    assert type(belief.sampling).__name__ == "Empirical"
    uniform = Campaign.model_validate(
        campaign.model_dump(mode="json") | {"design": {"pairs": 24}, "runs": str(tmp_path)}
    )
    with pytest.raises(InputError, match="another campaign"):
        le.run(uniform, progress=le.Silent())


def test_what_has_no_table_or_no_density_is_refused() -> None:
    space = FeatureSpace.load("penguins")
    bare = FeatureSpace.model_validate(space.model_dump(exclude={"table"}))
    with pytest.raises(InputError, match="needs a reference table"):
        bare.with_sampling("empirical")
    with pytest.raises(InputError, match="needs 20 complete rows"):
        TableDensity(np.zeros((3, 1)), np.array([True]))
    with pytest.raises(ValueError, match="'score' needs the exact density λ"):
        Campaign.model_validate({
            "name": "c", "space": "penguins", "design": {"sampling": "empirical"},
            "judges": [{"name": "expert", "backend": "simulated"}], "fit": {"method": "score"},
        })  # fmt: skip


def test_a_judge_without_preference_has_no_effects(tmp_path: Path) -> None:
    """The fall of the density beyond the compared points was once taken for one of a feature."""
    campaign = Campaign.model_validate({
        "name": "r", "space": "gallery/flights", "runs": str(tmp_path),
        "design": {"pairs": 25, "sampling": "empirical", "template": "v1/few-shot"},
        "judges": [{"name": "random", "backend": "simulated", "belief": "uniform",
                    "log_odds": {"noise": 0.1}}],
        "fit": {"method": "auto"},
    })  # fmt: skip
    run = asyncio.run(stages.ask(stages.plan(campaign)))
    evidence = evidence_of(run.comparisons, "random", campaign.fit)
    belief = density.fit_evidence(evidence, sampling=sampling_of(run.space), seed=campaign.seed)
    found = evaluate_utility(belief, run.space, run.space.table_points(), seed=1)
    assert max(float(np.ptp(np.median(effect, axis=0))) for effect in found.effect_curves) < 0.3
