"""A table with columns of every kind goes from a data frame to a report without an edit."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import llm_elicit as le
from llm_elicit.comparisons.table import sampling_of
from llm_elicit.orchestrator.progress import Silent

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

CAMPAIGN = """
name: kinds
space: mixed.yaml
design: {pairs: 30}
direct: {quantiles: 1, samples: 4, ranges: 4}
judges: [{name: expert, backend: simulated}]
fit: {method: utility, samples: 300}
"""


def mixed(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "day": pd.date_range("2019-12-30", periods=n)[rng.permutation(n)],
            "month": rng.integers(1, 13, n),
            "wind_dir": rng.uniform(0, 360, n).round(),
            "children": rng.binomial(4, 0.3, n),
            "size": rng.choice(["S", "M", "L"], n, p=[0.2, 0.5, 0.3]),
            "region": rng.choice(["NA", "None", "EU"], n),
            "length_cm": rng.normal(50, 10, n).round(1),
            "year": rng.integers(1990, 2020, n),
        }
    )


def test_every_kind_is_asked_fitted_and_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    le.FeatureSpace.from_frame(mixed(), "mixed").save()
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    run = le.run("c.yaml", progress=Silent())
    assert run.problems == ()
    assert run.report_path.is_file()
    points = run.beliefs["expert"].sample(500, seed=1)
    assert run.space.contains(points).all()
    counts = run.audit.judges[0].direct.answer_counts
    assert {one.kind for one in counts} == {"quantiles", "sample", "range"}
    assert sum(sum(one.unparsed.values()) for one in counts) == 0


def test_the_space_and_the_core_have_one_support_and_one_law() -> None:
    space = le.FeatureSpace.from_frame(mixed(), "mixed")
    sampling = sampling_of(space)
    rng = np.random.default_rng(1)
    assert sampling.contains(space.sample(2000, rng)).all()
    drawn = space.round(sampling.sample(20_000, rng))
    assert space.contains(drawn).all()
    apart = np.abs(drawn.mean(axis=0) - space.sample(20_000, rng).mean(axis=0))
    assert (apart < 0.04 * drawn.std(axis=0)).all()
