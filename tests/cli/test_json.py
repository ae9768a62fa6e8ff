"""`--json`: every command that prints facts prints them as one JSON document, too."""

import json

import pandas as pd
import pytest
from fakes.spaces import write_two_features

from cli.conftest import CAMPAIGN
from llm_elicit.cli.main import COMMANDS, load
from llm_elicit.testing.provider import Error, Provider

GRID = (
    CAMPAIGN
    + """
grid: {templates: [v1/zero-shot, v1/few-shot]}
"""
)
WRITE_FILES = {"serve", "export", "bundle", "models pull"}
"""Commands whose results are files, which they name."""


def _commands(command, name):
    for word, part in getattr(command, "commands", {}).items():
        yield from _commands(part, f"{name} {word}")
    if command.callback and (not hasattr(command, "commands") or name == "models"):
        yield name, {option for one in command.params for option in one.opts}


def test_every_command_that_prints_facts_has_the_option():
    names = [path.rpartition(".")[2] for path in COMMANDS]
    found = dict(option for name in names for option in _commands(load(name), name))
    assert {name for name, options in found.items() if "--json" not in options} == WRITE_FILES


def test_the_list_of_commands_has_the_first_line_of_the_help_of_each():
    """The list is printed without importing the commands."""
    for path, line in COMMANDS.items():
        assert load(path.rpartition(".")[2]).help.splitlines()[0] == line


@pytest.fixture
def facts(llm_elicit, tmp_path):
    """Return what a command prints with --json, parsed."""
    write_two_features(tmp_path)
    for name, text in (("tiny", CAMPAIGN), ("grid", GRID)):
        (tmp_path / f"{name}.yaml").write_text(text.replace("space: penguins", "space: two.yaml"))

    def call(*arguments):
        done = llm_elicit(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
        return json.loads(done.stdout)

    return call


def test_a_run_from_the_estimate_to_the_report(facts, tmp_path):
    (estimate,) = facts("estimate", "tiny.yaml")["runs"]
    assert estimate["judges"][0]["requests"] == 120
    assert estimate["judges"][0]["cost"] == 0.0
    (dry,) = facts("run", "tiny.yaml", "--dry-run")["runs"]
    assert {message["role"] for message in dry["examples"][0]} <= {"system", "user"}
    assert not (tmp_path / "runs").exists()

    (plan,) = facts("plan", "tiny.yaml")["runs"]
    assert plan["questions"] == 120
    (asked,) = facts("ask", "tiny.yaml")["runs"]
    assert asked["judgments"] == {"expert": 120}
    assert len(pd.read_parquet(tmp_path / asked["table"])) == 120
    (fit,) = facts("fit", "tiny.yaml")["runs"]
    assert fit["fits"]["expert"]["method"] == "utility"
    (audit,) = facts("audit", "tiny.yaml")["runs"]
    written = json.loads((tmp_path / "runs" / "tiny" / "audit.json").read_text())
    assert audit["audit"]["judges"][0]["name"] == "expert"
    assert audit["audit"] == written
    (report,) = facts("report", "tiny.yaml")["runs"]
    assert (tmp_path / report["report"]).is_file()
    (whole,) = facts("run", "tiny.yaml")["runs"]
    assert whole["run"] == "tiny"
    assert (
        whole["verdicts"]
        == report["verdicts"]
        == {"expert": written["judges"][0]["preference"]["verdict"]}
    )
    assert whole["problems"] == []


def test_status_has_every_cell_of_a_grid(facts, llm_elicit):
    facts("ask", "grid.yaml")
    found = facts("status", "grid.yaml")["runs"]
    assert len(found) == 2
    for one in found:
        assert one["judges"]["expert"]["done"] == 120
        assert one["judges"]["expert"]["planned"] == 0
    refused = llm_elicit("status", "grid.yaml", "--json", "--watch")
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_run_that_fails_in_a_part_says_so_in_its_facts(llm_elicit, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-accepted")
    with Provider(lambda _n, _body: Error(401)) as provider:
        hosted = f"{{name: hosted, backend: openai, model: m, base_url: '{provider.url}/v1'}}"
        (tmp_path / "part.yaml").write_text(CAMPAIGN.replace("fit:", f"  - {hosted}\nfit:", 1))
        done = llm_elicit("ask", "part.yaml", "--json")
    assert done.returncode == 2
    (found,) = json.loads(done.stdout)["runs"]
    assert found["judgments"]["expert"] == 120
    assert "key is not accepted" in found["problems"][0]
    assert found["problems"][0] in done.stderr


def test_a_drafted_space_and_what_this_machine_has(facts, tmp_path):
    table = pd.DataFrame({"height": range(150, 190), "mass": [50.5 + i / 2 for i in range(40)]})
    table["height"] = table["height"].sample(frac=1, random_state=0).to_numpy()
    table.assign(same=1).to_csv(tmp_path / "people.csv", index=False)
    drafted = facts("space", "init", "people.csv")
    columns = {one["column"]: one["kept"] for one in drafted["columns"]}
    assert columns["height"]
    assert not columns["same"]
    assert drafted["rows"]["total"] == 40
    assert {"model", "megabytes", "licence", "weights"} <= set(facts("models")[0])
    assert {"simulated": "ready"}.items() <= {
        one["backend"]: one["state"] for one in facts("backends")
    }.items()


def test_judges_side_by_side(facts, tmp_path):
    two = CAMPAIGN.replace("fit:", "  - {name: other, backend: simulated}\nfit:", 1)
    (tmp_path / "two.yaml").write_text(two.replace("name: tiny", "name: two"))
    facts("ask", "two.yaml")
    facts("fit", "two.yaml")
    found = facts("compare", "two")
    assert found["agreements"][0]["first"] == "expert"
