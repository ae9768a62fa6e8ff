"""Campaigns about conditional beliefs: `given`, alone and as an axis of a grid."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import llm_elicit as le
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline.fit import conditions_of, joint_table
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.spaces.features import FeatureSpace

SPECIES = ("Adelie", "Chinstrap", "Gentoo")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, quick_fits: None) -> dict[str, Run]:
    """The example, in a folder of its own."""
    folder = tmp_path_factory.mktemp("conditions")
    text = Path("examples/conditions.yaml").read_text(encoding="utf-8")
    campaign = folder / "conditions.yaml"
    campaign.write_text(f"{text}runs: {folder / 'runs'}\n", encoding="utf-8")
    done = le.run_grid(campaign, progress=Silent())
    return {name.rsplit(".", 1)[1]: run for name, run in done.items()}


def test_every_condition_is_a_run_about_the_other_features(runs: dict[str, Run]) -> None:
    assert tuple(runs) == SPECIES
    for species, run in runs.items():
        assert "species" not in run.space.names
        assert run.space.setting == f"All of them have species {species}."
        assert run.beliefs["expert"].dimension == 4
        assert species in run.report_path.read_text(encoding="utf-8")


def test_beliefs_move_with_the_condition_as_the_data_do(runs: dict[str, Run]) -> None:
    for name in ("bill_length_mm", "body_mass_g"):
        believed, seen = [], []
        for run in runs.values():
            feature = run.space.names.index(name)
            believed.append(run.beliefs["expert"].mean()[feature])
            seen.append(run.space.table_points()[:, feature].mean())
        assert np.argmax(believed) == np.argmax(seen)
        assert np.corrcoef(believed, seen)[0, 1] > 0.8


def test_one_fit_uses_the_answers_of_all_conditions(runs: dict[str, Run]) -> None:
    together = conditions_of(runs["Gentoo"])
    assert [run.campaign.given["species"] for run in together] == list(SPECIES)
    names = FeatureSpace.load("penguins_kinds").names
    table = joint_table(together, names)
    assert len(table) == sum(len(run.comparisons) for run in runs.values())
    assert table.features == names
    choices = table.choices("expert")
    assert (choices.a[:, 0] == choices.b[:, 0]).all()
    assert set(choices.a[:, 0]) == {0.0, 1.0, 2.0}
    assert runs["Gentoo"].space.given == {"species": 2.0}
    given = [run.beliefs["expert"].diagnostics["given"] for run in together]
    assert given == [{"0": 0.0}, {"0": 1.0}, {"0": 2.0}]


def test_a_page_compares_the_conditions(runs: dict[str, Run]) -> None:
    page = runs["Gentoo"].folder.parent / "conditions" / "conditions.html"
    text = page.read_text(encoding="utf-8")
    for run in runs.values():
        link = re.search(rf'href="(\.\./{re.escape(run.folder.name)}/report\.html)"', text)
        assert link is not None
        assert (page.parent / link[1]).is_file()
    assert text.count("<figure>") == 3
    mass = runs["Gentoo"].audit.of("expert").belief_summary[-1]
    assert f"{round(mass.mean, -1):,.0f}" in text
    assert "2 of 2" in text
    assert "<script" not in text


def test_a_second_fit_finds_all_beliefs_current(runs: dict[str, Run]) -> None:
    before = {
        name: (run.belief_folder("expert", "auto") / "belief.json").stat().st_mtime_ns
        for name, run in runs.items()
    }
    le.run(runs["Adelie"], progress=Silent())
    le.run(runs["Gentoo"], progress=Silent())
    for name, run in runs.items():
        path = run.belief_folder("expert", "auto") / "belief.json"
        assert path.stat().st_mtime_ns == before[name]


def test_one_condition_needs_no_grid(tmp_path: Path) -> None:
    campaign = Campaign.model_validate({
        "name": "gentoo", "space": "penguins_kinds", "given": {"species": "Gentoo"},
        "design": {"pairs": 20}, "judges": [{"name": "expert", "backend": "simulated"}],
    })  # fmt: skip
    space = campaign.load_space()
    assert space.dimension == 4
    assert len(space.table_points()) == 113


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"specie": "Gentoo"}, "no feature 'specie'"),
        ({"species": "Emperor"}, "no category 'Emperor'"),
        ({"body_mass_g": "heavy"}, "not a number from"),
        ({"body_mass_g": 1.0}, "not a number from"),
    ],
)
def test_what_cannot_be_given_is_refused(given: dict[str, str | float], said: str) -> None:
    campaign = Campaign.model_validate({
        "name": "c", "space": "penguins_kinds", "given": given,
        "judges": [{"name": "expert", "backend": "simulated"}],
    })  # fmt: skip
    with pytest.raises(InputError, match=said):
        campaign.load_space()


def test_conditions_of_a_grid_are_about_the_same_features() -> None:
    with pytest.raises(ValueError, match="must fix the same features"):
        Campaign.model_validate({
            "name": "c", "space": "penguins_kinds",
            "judges": [{"name": "expert", "backend": "simulated"}],
            "grid": {"given": [{"species": "Gentoo"}, {"sex": "male"}]},
        })  # fmt: skip
