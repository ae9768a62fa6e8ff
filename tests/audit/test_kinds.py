"""Every kind of feature: distances at their floors, recovered beliefs, a page that shows them."""

import datetime
import hashlib
import re

import numpy as np
import pandas as pd
import pytest
import yaml

import llm_elicit as le
from llm_elicit import density
from llm_elicit.audit.distances import DistanceEstimator
from llm_elicit.audit.record import Audit
from llm_elicit.audit.reference import AuditSettings, Standardizer
from llm_elicit.backends.simulated import SimulatedBackend
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.config.judges import SimulatedJudge
from llm_elicit.spaces.features import FeatureSpace

GRADES = ["poor", "fair", "good", "best"]
FEATURES = {
    "size": {"unit": "m", "low": 10, "high": 90},
    "price": {"unit": "EUR", "scale": "log", "low": 20, "high": 9000},
    "rooms": {"kind": "integer", "low": 1, "high": 4},
    "flag": {"kind": "integer", "low": 0, "high": 1},
    "count": {"kind": "integer", "scale": "log", "low": 1, "high": 3000},
    "year": {"kind": "integer", "low": 1970, "high": 2020, "digits": 4,
             "locale": {"thousands": ""}},
    "grade": {"kind": "ordered", "categories": GRADES},
    "sort": {"kind": "categorical", "categories": ["a", "b", "c"]},
    "seen": {"kind": "date", "low": datetime.date(2020, 1, 1), "high": datetime.date(2024, 12, 30)},
    "wind": {"unit": "degrees", "low": 0, "high": 360, "periodic": True},
    "month": {"kind": "integer", "low": 1, "high": 12, "periodic": True},
}  # fmt: skip


def rows(n, rng):
    """A table of one column of each kind."""
    first = pd.Timestamp("2020-01-01")
    days = np.rint(rng.normal(900, 300, n).clip(0, 1825))
    return pd.DataFrame({
        "size": rng.normal(50, 12, n).clip(10, 90).round(1),
        "price": np.exp(rng.normal(6, 1, n)).clip(20, 9000).round(1),
        "rooms": rng.integers(1, 5, n),
        "flag": rng.random(n) < 0.7,
        "count": np.rint(np.exp(rng.normal(3, 1.2, n)).clip(1, 3000)).astype(int),
        "year": np.rint(rng.normal(2000, 9, n).clip(1970, 2020)).astype(int),
        "grade": np.array(GRADES)[np.rint(rng.normal(2, 0.8, n)).clip(0, 3).astype(int)],
        "sort": np.array(["a", "b", "c"])[rng.choice(3, n, p=[0.2, 0.5, 0.3])],
        "seen": [str((first + pd.Timedelta(days=day)).date()) for day in days],
        "wind": np.mod(rng.normal(350, 40, n), 360).round(1),
        "month": 1 + np.mod(np.rint(rng.normal(12, 1.7, n)).astype(int) - 1, 12),
    }).astype({"flag": int})  # fmt: skip


def space_of(folder, *names, n=2000):
    """A space of some features, with a table of `n` rows, the first ten of which lack a number."""
    table = rows(n, np.random.default_rng(0)).astype({"rooms": float})
    table.loc[:9, ["size", "rooms"]] = np.nan
    path = folder / "kinds.csv"
    table.to_csv(path, index=False)
    return FeatureSpace.model_validate({
        "name": "kinds", "title": "every kind", "subject": "a thing", "folder": folder,
        "features": [{"name": name, "label": name} | FEATURES[name] for name in names],
        "table": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                  "source": "made up", "licence": "CC0", "rows": n},
    })  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
def test_data_against_themselves_are_at_the_floor(name, tmp_path):
    """Two halves of a table differ by as much as two samples of one half."""
    space = space_of(tmp_path, name)
    data = np.random.default_rng(1).permutation(space.table_points())
    one, other = data[:995], data[-995:]
    settings = AuditSettings(repeats=40)
    # The joint distance, which is not looked at, is one of few points.
    estimator = DistanceEstimator(Standardizer.of(space, data), settings, 20, 400)
    rng = np.random.default_rng(2)
    (between,), (floor,) = (
        estimator.estimate_distance(one, other, rng).features,
        estimator.estimate_floor(one, rng).features,
    )
    assert between.total_variation.mean < 1.3 * floor.total_variation.mean + 0.02
    if name == "sort":
        assert between.wasserstein is None
    else:
        assert between.wasserstein.mean < 1.3 * floor.wasserstein.mean + 0.02


@pytest.mark.parametrize("name", FEATURES)
def test_the_belief_of_a_simulated_judge_is_recovered(name, tmp_path):
    space = space_of(tmp_path, name)
    judge = SimulatedBackend(
        SimulatedJudge(name="expert", backend="simulated", belief="table"), space
    )
    rng = np.random.default_rng(3)
    a, b = space.sample(150, rng), space.sample(150, rng)
    odds = judge.log_belief(a) - judge.log_belief(b) + 0.2 * rng.standard_normal(150)
    belief = density.fit_evidence(
        density.Evidence.log_odds(a, b, odds),
        sampling=sampling_of(space),
        method="utility",
        settings=density.BETWEEN_ROUNDS,
    )
    believed = belief.sample(4000, seed=1)
    assert space.contains(space.round(believed)).all()
    truth = judge.sample(4000, rng)
    estimator = DistanceEstimator(Standardizer.of(space, truth), AuditSettings(repeats=5), 20, 2000)
    (found,) = estimator.estimate_distance(believed, truth, rng).features
    assert found.total_variation.mean < 0.09
    assert found.wasserstein is None or found.wasserstein.mean < 0.12


MIXED = ("rooms", "year", "grade", "seen", "wind", "month")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory, quick_fits):
    """A run over six kinds, in rounds, with triads and with direct questions of every form."""
    folder = tmp_path_factory.mktemp("mixed")
    space = space_of(folder, *MIXED, n=600)
    path = folder / "kinds.yaml"
    path.write_text(yaml.safe_dump(space.model_dump(mode="json", exclude={"folder"})))
    campaign = folder / "campaign.yaml"
    campaign.write_text(yaml.safe_dump({
        "name": "kinds", "space": str(path), "runs": str(folder / "runs"),
        "design": {"pairs": 60, "triads": 4,
                   "rounds": {"count": 2, "stop": {"max_band_width": 0.01}}},
        "direct": {"quantiles": 1, "samples": 20, "ranges": 6, "ratios": 5},
        "judges": [{"name": "expert", "backend": "simulated",
                    "log_odds": {"gain": 1.0, "noise": 0.2}}],
        "fit": {"method": "utility", "samples": 500},
    }))  # fmt: skip
    return le.run(campaign, progress=le.Silent())


def test_every_number_of_the_audit_is_one_of_its_kind(mixed):
    audit = Audit.load(mixed.folder / "audit.json")
    judge = audit.of("expert")
    assert str(audit.reference.table_rows) == (
        f"{audit.reference.rows} of 600 rows used: 10 with a missing rooms"
    )
    data = dict(zip(MIXED, audit.reference.data_summary, strict=True))
    assert {"q50", "sd"} <= set(type(data["seen"]).model_fields)
    assert list(data["grade"].shares) == GRADES
    assert not hasattr(data["wind"], "q50")
    assert abs(np.mod(data["wind"].mean - 350 + 180, 360) - 180) < 6
    assert [tails.name for tails in judge.shape.tails] == ["year", "seen"]
    assert not {"wind", "month"} & {pair.first for pair in judge.shape.correlations}
    assert [each.name for each in judge.direct.stated_quantiles] == [
        "rooms",
        "year",
        "seen",
    ]
    assert all(each.times for each in judge.direct.stated_quantiles)
    assert judge.direct.generated_points.points == 20
    assert all(len(effect.categories) == 2 for effect in judge.effects[4:])


def test_the_page_shows_every_kind(mixed):
    page = mixed.report_path.read_text()
    text = re.sub(r"<[^>]*>", " ", page)
    assert not re.search(r"\b(1,9\d\d|2,0\d\d)\b", text.split("Methods and caveats")[0])
    assert "600 rows used: 10 with a missing rooms" in text
    assert "a periodic feature has no quantiles" in text
    assert "wind 0 to 360 degrees, periodic" in text
    assert re.search(r"\d+ [JFMASOND][a-z]{2} 202\d", text)
    assert {"poor", "best"} <= set(text.split())
