"""The gallery: every campaign runs to its report, with a simulated judge in the model's place."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from fakes.fits import audit_quickly, fit_quickly
from pydantic import TypeAdapter

import llm_elicit as le
from llm_elicit.config.campaign import Campaign, cells
from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.spaces.features import FeatureSpace

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "examples" / "gallery").glob("*.yaml"))
JUDGES = TypeAdapter(list[Judge]).validate_python([{"name": "expert", "backend": "simulated"}])


def test_there_are_six_tables_and_the_page_shows_each() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert len(NAMES) == 6
    for name in NAMES:
        assert f"llm-elicit run gallery/{name}\n" in page
        assert f"(gallery/{name}.png)" in page
        assert (ROOT / "docs" / "gallery" / f"{name}.png").stat().st_size < 50_000


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_small_and_its_licence_is_stated(name: str) -> None:
    space = FeatureSpace.load(f"gallery/{name}")
    assert space.table is not None
    assert space.table.licence != "unstated"
    assert 4 <= space.dimension <= 6
    table = ROOT / "datasets" / "gallery" / space.table.file
    assert table.stat().st_size < 50_000
    assert len(pd.read_csv(table)) == space.table.rows <= 2000


@pytest.mark.parametrize("name", NAMES)
def test_a_space_is_what_space_init_drafts_but_for_its_wording(name: str) -> None:
    """Ranges, scales and kinds are the draft's; the order of some words is a person's."""
    space = FeatureSpace.load(f"gallery/{name}")
    draft = FeatureSpace.from_file(ROOT / "datasets" / "gallery" / f"{name}.csv.gz").draft
    assert draft is not None
    drafted = draft.data["features"]
    assert [each["name"] for each in drafted] == list(space.names)
    for feature, draft in zip(space.features, drafted, strict=True):
        if draft["kind"] in ("continuous", "integer"):
            assert (feature.low, feature.high) == (draft["low"], draft["high"])
            assert feature.scale == draft.get("scale", "linear")
            assert feature.kind == draft["kind"]
        else:
            assert set(feature.categories) == {*draft["categories"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_runs_to_its_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_quickly(monkeypatch)
    audit_quickly(monkeypatch)
    campaign = Campaign.load(f"gallery/{name}")
    assert [judge.model for judge in campaign.judges] == ["qwen2.5-coder-1.5b"]
    fit = campaign.fit.model_copy(update={"method": "utility", "samples": 300})
    small = campaign.model_copy(
        update={
            "design": campaign.design.model_copy(update={"pairs": 10}),
            "judges": tuple(JUDGES),
            "fit": fit,
            "runs": tmp_path,
        }
    )
    runs = le.run_grid(small, progress=Silent())
    assert list(runs) == [cell.name for cell in cells(small)]
    for run in runs.values():
        assert len(run.comparisons) == 20
        drawn = run.beliefs["expert"].sample(50, seed=0)
        assert run.space.contains(run.space.to_support(drawn)).all()
        assert run.audit.of("expert").belief_summary is not None
        assert run.space.title in run.report_path.read_text(encoding="utf-8")
