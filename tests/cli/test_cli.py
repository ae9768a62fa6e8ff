"""The command line: exit codes, one clear line, no traceback, stages that resume."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from fakes import warm
from fakes.spaces import write_two_features

from cli.conftest import CAMPAIGN


@pytest.fixture(autouse=True)
def keyless(monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def campaign(folder, text=CAMPAIGN, name="c.yaml"):
    (folder / name).write_text(text)
    return name


def assert_refused(done, *parts):
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_from_outside_too_there_is_one_line_and_a_proper_exit_code(tmp_path, fresh_processes):
    command = [sys.executable, "-m", "llm_elicit", "run", "nothing.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert_refused(done, "nothing.yaml")


def test_an_unknown_matplotlib_backend_in_the_environment_has_no_effect(llm_elicit, tmp_path):
    write_two_features(tmp_path)
    small = CAMPAIGN.replace("penguins", "two.yaml").replace("pairs: 60", "pairs: 8")
    path = campaign(tmp_path, small)
    for stage in ("ask", "fit", "audit"):
        assert llm_elicit(stage, path).returncode == 0
    command = [sys.executable, "-m", "llm_elicit", "report", path]
    environment = {**os.environ, "MPLBACKEND": "missing"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("report.html"))


def test_a_command_in_this_process_leaves_others_their_quick_start(llm_elicit, monkeypatch):
    """It names a backend of Matplotlib; processes with another environment import all anew."""
    monkeypatch.delenv("MPLBACKEND", raising=False)
    llm_elicit("models")
    assert os.environ["MPLBACKEND"] == "agg"
    assert warm._starts_alike({**os.environ})
    assert not warm._starts_alike({**os.environ, "MPLBACKEND": "missing"})


def test_unknown_yaml_key(llm_elicit, tmp_path):
    path = campaign(tmp_path, CAMPAIGN.replace("pairs: 60", "pears: 60"))
    assert_refused(llm_elicit("run", path), "c.yaml", "design.pears", "unknown key")


def test_range_upside_down(llm_elicit, tmp_path):
    space = "name: s\ntitle: t\nsubject: x\nfeatures: [{name: x, label: x, low: 3, high: 1}]\n"
    (tmp_path / "s.yaml").write_text(space)
    path = campaign(tmp_path, CAMPAIGN.replace("penguins", "s.yaml"))
    assert_refused(llm_elicit("run", path), "s.yaml", "low 3 must be below high 1")


def test_missing_campaign(llm_elicit, tmp_path):
    assert_refused(llm_elicit("run", "nothing.yaml"), "nothing.yaml", "california")


@pytest.mark.parametrize(
    ("judge", "variable"),
    [
        ("{name: j, backend: anthropic, model: claude-haiku-4-5}", "ANTHROPIC_API_KEY"),
        ("{name: j, backend: openai, model: gpt-4.1-mini}", "OPENAI_API_KEY"),
    ],
)
def test_missing_key(llm_elicit, tmp_path, judge, variable):
    path = campaign(tmp_path, CAMPAIGN.replace("{name: expert, backend: simulated}", judge))
    assert_refused(llm_elicit("run", path), variable)


def test_unknown_local_model(llm_elicit, tmp_path):
    judge = "{name: j, backend: local, model: gpt-99}"
    path = campaign(tmp_path, CAMPAIGN.replace("{name: expert, backend: simulated}", judge))
    assert_refused(llm_elicit("run", path), "gpt-99", "smollm2")


def test_text_in_a_numeric_column(llm_elicit, tmp_path):
    (tmp_path / "my.csv").write_text("x,y\n1,2\n2,three\n3,5\n4,6\n")
    assert_refused(llm_elicit("space", "init", "my.csv"), "'y'", "line 3", "'three'")


def test_fewer_pairs_than_features(llm_elicit, tmp_path):
    path = campaign(tmp_path, CAMPAIGN.replace("pairs: 60", "pairs: 3"))
    assert_refused(llm_elicit("run", path), "design.pairs", "4 features")


def test_a_run_folder_of_another_campaign(llm_elicit, tmp_path):
    assert llm_elicit("ask", campaign(tmp_path)).returncode == 0
    other = campaign(tmp_path, CAMPAIGN.replace("pairs: 60", "pairs: 70"))
    assert_refused(llm_elicit("run", other), "runs/tiny", "design.pairs differs: 60 before, 70 now")


def test_an_unknown_export_format(llm_elicit, tmp_path):
    path = campaign(tmp_path)
    llm_elicit("ask", path)
    assert_refused(llm_elicit("export", path, "out.xlsx"), ".parquet, .jsonl or .csv")


def test_a_stage_before_its_input(llm_elicit, tmp_path):
    path = campaign(tmp_path)
    llm_elicit("plan", path)
    assert_refused(llm_elicit("fit", path), "comparisons.parquet")
    assert_refused(llm_elicit("report", path), "audit.json")


def test_stages_one_by_one_and_again(llm_elicit, tmp_path):
    """Each stage alone, in its own process, gives what the whole job gives; again is a no-op."""
    path = campaign(tmp_path)
    for stage in ("plan", "ask", "fit", "audit", "report"):
        done = llm_elicit(stage, path)
        assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "tiny"
    first = (run / "audit.json").read_text()
    samples = (run / "beliefs" / "expert" / "utility" / "samples.parquet").stat().st_mtime_ns
    assert len(pd.read_parquet(run / "comparisons.parquet")) == 120
    assert "<html" in (run / "report.html").read_text()

    done = llm_elicit("run", path)
    assert done.returncode == 0, done.stderr
    assert (run / "audit.json").read_text() == first
    assert (
        run / "beliefs" / "expert" / "utility" / "samples.parquet"
    ).stat().st_mtime_ns == samples
    assert "report.html" in done.stdout

    status = llm_elicit("status", "tiny")
    assert status.stdout.split("\n")[1].split()[:4] == ["expert", "120", "0", "0"]
    exported = llm_elicit("export", "tiny", "out.jsonl")
    assert exported.returncode == 0, exported.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 120
    assert {row["verdict"] for row in rows} <= {"A", "B"}


def test_a_dry_run_sends_nothing(llm_elicit, tmp_path):
    judge = "{name: j, backend: openai, model: gpt-4.1-mini}"
    path = campaign(tmp_path, CAMPAIGN.replace("{name: expert, backend: simulated}", judge))
    done = llm_elicit("run", path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bill length") == 6  # three questions of two penguins
    assert "120" in done.stdout
    assert "Nothing was sent" in done.stdout
    assert "60 pairs can show a preference (smallest possible p-value 0.0005): a" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_an_estimate_names_every_judge_and_its_model(llm_elicit, tmp_path):
    judges = "{name: j, backend: openai, model: gpt-4.1-mini}\n  - {name: e, backend: simulated}"
    path = campaign(tmp_path, CAMPAIGN.replace("{name: expert, backend: simulated}", judges))
    done = llm_elicit("estimate", path)
    assert done.returncode == 0, done.stderr
    *table, basis, note = done.stdout.strip().splitlines()
    _, hosted, expert, total = (line.split() for line in table)
    assert hosted[:3] == ["j", "gpt-4.1-mini", "120"]
    assert 0 < float(hosted[6]) < float(hosted[7])
    assert float(hosted[8]) == pytest.approx(float(hosted[6]) / 2, abs=1e-4)
    assert expert[:3] == ["e", "simulated", "120"]
    assert float(total[1]) == pytest.approx(float(hosted[6]), abs=1e-4)
    assert basis.startswith("j: ")
    assert "estimated from assumed answer lengths" in basis
    assert "pairs can show a preference" in note
    assert not (tmp_path / "runs").exists()


def test_an_estimate_leaves_out_what_is_answered(llm_elicit, tmp_path):
    path = campaign(tmp_path)
    assert llm_elicit("ask", path).returncode == 0
    done = llm_elicit("estimate", path)
    assert done.stdout.splitlines()[1].split()[:3] == ["expert", "simulated", "0"]
    assert "120 questions already have an answer" in done.stdout


def test_a_users_csv_becomes_a_space_that_can_be_run(llm_elicit, tmp_path):
    table = pd.DataFrame({"height": range(150, 190), "mass": [50.5 + i / 2 for i in range(40)]})
    table.assign(name="x").to_csv(tmp_path / "people.csv", index=False)
    table["height"] = table["height"].sample(frac=1, random_state=0).to_numpy()
    table["mass"] = table["mass"].where(table.index % 5 > 0)
    table.to_csv(tmp_path / "people.csv", index=False)
    done = llm_elicit("space", "init", "people.csv")
    assert done.returncode == 0, done.stderr
    assert "40 rows used: 8 with a missing mass" in done.stdout
    assert "--not-stated mass --force" in done.stdout
    shown = llm_elicit("run", "people-campaign.yaml", "--dry-run").stdout
    facets = "8 wordings, 4 sets of worked examples, 2 orders of features"
    assert f"8 presentations ({facets})" in " ".join(shown.split())
    done = llm_elicit("space", "init", "people.csv", "--not-stated", "mass", "--force")
    assert "with 20% not stated" in done.stdout
    assert "missing" not in done.stdout
    again = llm_elicit("space", "init", "people.csv")
    assert_refused(again, "people.yaml", "--force")
    path = campaign(tmp_path, CAMPAIGN.replace("penguins", "people.yaml"))
    planned = llm_elicit("plan", path)
    assert (planned.returncode, "rows used" in planned.stdout) == (0, False)
    narrow = (tmp_path / "people.yaml").read_text().replace("  low: 150", "  low: 187")
    (tmp_path / "people.yaml").write_text(narrow)
    for shown in (llm_elicit("plan", path), llm_elicit("run", path, "--dry-run")):
        text = " ".join(shown.stdout.split())
        assert "3 of 40 rows used: 37 outside the range of height; beliefs are compared" in text
        assert "widen the ranges (low, high)" in text


def test_local_models_are_listed(llm_elicit, tmp_path):
    done = llm_elicit("models")
    assert "smollm2" in done.stdout
    assert "Apache-2.0" in done.stdout


def test_plan_refuses_a_template_that_is_not_there_or_shows_nothing(llm_elicit, tmp_path):
    path = campaign(tmp_path, CAMPAIGN.replace("pairs: 60", "pairs: 60, template: v9/none"))
    assert_refused(llm_elicit("plan", path), "'v9/none'", "v1/zero-shot")
    (tmp_path / "mine.md").write_text("---\nid: mine\nwording: x\n---\n# user\nWhich one?\n")
    path = campaign(tmp_path, CAMPAIGN.replace("pairs: 60", "pairs: 60, template: mine.md"))
    assert_refused(llm_elicit("plan", path), "mine.md", "option_a and option_b")
    assert not (tmp_path / "runs").exists()


def test_the_version_is_printed(llm_elicit):
    done = llm_elicit("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("llm-elicit ")
    assert "run" in llm_elicit("--help").stdout
