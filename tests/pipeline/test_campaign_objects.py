"""A campaign as a Python object runs as its file does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.spaces import write_two_features

import llm_elicit as le
from llm_elicit._util.settings import to_yaml

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")


def _settings(runs: Path) -> dict[str, Any]:
    return {
        "name": "object", "space": str(write_two_features(runs.parent)), "design": {"pairs": 8},
        "runs": str(runs), "judges": [{"name": "expert", "backend": "simulated"}],
        "fit": {"method": "utility", "samples": 200},
    }  # fmt: skip


def test_a_campaign_object_runs_and_resumes_as_its_file(tmp_path: Path) -> None:
    campaign = le.Campaign.model_validate(_settings(tmp_path / "runs"))
    first = le.run(campaign, progress=le.Silent())
    assert len(first.comparisons) == 16
    path = tmp_path / "object.yaml"
    path.write_text(to_yaml(_settings(tmp_path / "runs")), encoding="utf-8")
    again = le.run(path, progress=le.Silent())
    assert again.folder == first.folder
    assert again.comparisons.frame.equals(first.comparisons.frame)


def test_a_grid_as_an_object_is_named_in_the_message(tmp_path: Path) -> None:
    settings = _settings(tmp_path / "runs") | {
        "grid": {"templates": ["v1/zero-shot", "v1/few-shot"]}
    }
    campaign = le.Campaign.model_validate(settings)
    with pytest.raises(le.InputError, match=r"^object is a grid"):
        le.run(campaign, progress=le.Silent())
