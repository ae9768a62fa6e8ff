"""`llm-elicit compare`: what it says of two judges, and what it refuses."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from llm_elicit.cli import main as cli
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.imports import import_judgments
from llm_elicit.pipeline.repeats import plan_repeats
from llm_elicit.pipeline.run_folder import Run

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

EXPERT = {"name": "expert", "backend": "simulated"}
LONG = {**EXPERT, "name": "a-judge-of-a-name-" + "-".join(["so", *["very"] * 11, "long"])}


def _run(folder: Path, name: str, *judges: dict[str, object]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({
            "name": name, "space": "penguins", "judges": list(judges), "runs": str(folder / "runs"),
            "design": {"pairs": 40}, "fit": {"method": "utility", "samples": 500},
        })
    )  # fmt: skip
    stages.fit(asyncio.run(stages.ask(stages.plan(path))))
    return folder / "runs" / name


def _compare(monkeypatch: pytest.MonkeyPatch, *arguments: object, command: str = "compare") -> int:
    monkeypatch.setattr(sys, "argv", ["llm-elicit", command, *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_runs_and_their_judges_are_set_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No name is cut where there is no terminal, however long it is."""
    monkeypatch.setenv("COLUMNS", "80")
    first = _run(tmp_path, "first", LONG)
    random = {**EXPERT, "name": "random", "belief": "uniform"}
    second = _run(tmp_path, "second", {**LONG, "seed": 9}, random)
    record = tmp_path / "compare.json"
    assert _compare(monkeypatch, first, second, "--out", record) == 0
    shown = capsys.readouterr().out
    data = json.loads(record.read_text())
    name = LONG["name"]
    assert data["judges"] == [f"first/{name}", "random", f"second/{name}"]
    for judge in data["judges"]:
        assert judge in shown
    alike = {(one["first"], one["second"]): one for one in data["agreements"]}
    assert alike[f"first/{name}", f"second/{name}"]["pairs"] > 30
    assert alike[f"first/{name}", f"second/{name}"]["p_alike"] > 0.05
    assert "p alike" in shown
    lines = {each["judge"]: each for each in (*data["ranking"], *data["unranked"])}
    assert lines.keys() == set(data["judges"])
    assert [each["judge"] for each in data["unranked"]][-1:] == ["random"]
    assert lines["random"]["verdict"] == Run.open(second).audit.of("random").verdict
    for line in lines.values():
        assert line["verdict"] in shown
    assert _compare(monkeypatch, second, first, "--out", record) == 0
    assert json.loads(record.read_text()) == data, "whichever run is named first"

    page = tmp_path / "panel.html"
    assert _compare(monkeypatch, first, second, "--out", page, command="panel") == 0
    shown = capsys.readouterr().out
    assert _compare(monkeypatch, first, second, "--json", command="panel") == 0
    (space,) = json.loads(capsys.readouterr().out)["spaces"]
    pools = {"linear pool", "logarithmic pool"}
    assert {entry["judge"] for entry in space["entries"]} == {*data["judges"], *pools}
    html = page.read_text()
    for entry in space["entries"]:
        assert entry["judge"] in shown
        assert entry["judge"] in html
        assert entry["worth_ranks"] is not None
        if entry["judge"] in pools:
            assert sum(entry["weights"].values()) == pytest.approx(1.0)
        else:
            own = [item["worth"] for item in entry["powers"] if item["factor"] == 1.0]
            assert own == [entry["worth"]], "the saved power is one of those listed"
            assert entry["verdict"] == lines[entry["judge"]]["verdict"]
    assert html.count("<figure>") == 4 * len(space["entries"])
    assert _compare(monkeypatch, first, "--out", "panel.txt", command="panel") == 2
    assert "name a .json or .html file" in capsys.readouterr().err

    assert _compare(monkeypatch, first) == 2
    assert "at least two" in capsys.readouterr().err
    assert _compare(monkeypatch, first, "--out", "compare.txt") == 2
    assert "name a .json or .html file" in capsys.readouterr().err


def test_people_are_corrected_by_a_model_and_get_its_next_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = _run(tmp_path, "model", EXPERT)
    plan, space = Run.open(model).plan, Run.open(model).space
    sides = [space.table_of(x).add_prefix(f"{side}_") for side, x in (("a", plan.a), ("b", plan.b))]
    first = pd.concat(sides, axis=1).head(20)
    first["winner"] = np.where(first["a_body_mass_g"] > first["b_body_mass_g"], "a", "b")
    first.to_csv("first.csv", index=False)
    panel, _ = import_judgments("first.csv", "penguins", judge="panel")
    assert _compare(monkeypatch, model, panel.folder, "--next", "next.csv") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "panel and expert: 20 pairs answered by both, 20 by expert alone" in shown
    assert "Next for panel: pairs 20, 21, 22, 23, 24, 25, 26, 27 ... of expert" in shown
    following = pd.read_csv("next.csv")
    assert following["pair"].tolist() == list(range(20, 40))
    answered = following.head(10).assign(winner="a").drop(columns="pair")
    pd.concat([first, answered]).to_csv("more.csv", index=False)
    more, _ = import_judgments("more.csv", "penguins", judge="panel")
    (pair,) = stages.compare([Run.open(model), more]).people
    assert (pair.pairs, pair.next_pairs[0]) == (30, 30)
    assert [effect.name for effect in pair.effects] == [*space.names, "data"]

    assert _compare(monkeypatch, model, "--next", "next.csv") == 2
    assert "at least two" in capsys.readouterr().err
    assert _compare(monkeypatch, model, panel.folder, "--next", "no/next.csv") == 2
    assert "--next no/next.csv: there is no folder no" in capsys.readouterr().err


def test_other_features_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    penguins = stages.plan(_planned(tmp_path, "here", "penguins"))
    houses = stages.plan(_planned(tmp_path, "there", "california_housing"))
    assert _compare(monkeypatch, penguins.folder, houses.folder) == 2
    error = capsys.readouterr().err
    assert "name runs over the same ones" in error
    assert "california_housing" in error
    assert isinstance(penguins, Run)


def _planned(folder: Path, name: str, space: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({"name": name, "space": space, "judges": [EXPERT], "runs": str(folder)})
    )
    return path


def test_a_run_is_compared_with_its_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path, "first", EXPERT)
    again = asyncio.run(stages.ask(plan_repeats(run)[0]))
    page, record = tmp_path / "page.html", tmp_path / "record.json"
    assert _compare(monkeypatch, run, "--out", page) == 0
    shown = capsys.readouterr().out
    sentence = "No answer differs between the runs: these answers repeat exactly"
    assert _compare(monkeypatch, run, again.folder, "--out", record) == 0
    for text in (shown, page.read_text()):
        assert sentence in text
        assert "first.repeat-1" in text
    (judge,) = json.loads(record.read_text())["judges"]
    assert judge["change"]["preference"] == judge["change"]["position"] == judge["p_holm"] == 1.0
    assert [one["run"] for one in judge["runs"]] == ["first", "first.repeat-1"]
    assert judge["runs"][0]["auc"] == judge["runs"][1]["auc"]
    other = _run(tmp_path, "other", {**EXPERT, "name": "b"})
    assert _compare(monkeypatch, run, other, "--out", page) == 2
