"""What a later stage needs of a campaign's files is checked before the first question."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import llm_elicit as le
from llm_elicit.cli import main as cli
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.pipeline import pilot

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

TABLE = "height,Mass (g)\n" + "\n".join(f"{150 + n},{50.5 + n % 7}" for n in range(30)) + "\n"
SPACE = """
name: people
title: people
subject: {subject}
features:
  - {{name: height, label: height, unit: cm, low: {low}, high: {high}}}
  - {{name: {mass}, label: mass, unit: g, low: 50, high: 60}}
table: {{file: {file}, sha256: {sha256}, rows: 30, licence: CC0, source: us, columns: {columns}}}
"""
GOOD = {
    "subject": "person", "low": 150, "high": 180, "mass": "mass", "file": "people.csv",
    "sha256": hashlib.sha256(TABLE.encode()).hexdigest(), "columns": "{mass: Mass (g)}",
}  # fmt: skip
CAMPAIGN = """
name: c
space: people.yaml
design: {pairs: 20}
judges: [{name: expert, backend: simulated, belief: uniform}]
fit: {samples: 100}
"""
FAULTS = {
    "no column 'Mass'": {"columns": "{mass: Mass}"},
    "no column 'mas'": {"mass": "mas"},
    "reference table is missing": {"file": "peopel.csv"},
    "update `sha256` to " + GOOD["sha256"]: {"sha256": "a" * 64},
    "nothing to compare beliefs with: 0 of 30 rows used": {"low": 10, "high": 20},
}


def _write_space(**changes: object) -> None:
    Path("people.yaml").write_text(SPACE.format(**{**GOOD, **changes}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text(TABLE)
    Path("c.yaml").write_text(CAMPAIGN)
    _write_space()
    return tmp_path


@pytest.fixture
def call(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str]]:
    """The command's exit code, and what it prints."""

    def called(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out + printed.err

    return called


@pytest.mark.parametrize("line", FAULTS)
def test_a_table_that_is_not_as_the_space_says_is_refused_before_asking(
    call: Callable[..., tuple[object, str]], line: str
) -> None:
    _write_space(**FAULTS[line])
    for command in (("run",), ("run", "--dry-run"), ("estimate",), ("plan",), ("ask",), ("pilot",)):
        code, printed = call(*command, "c.yaml")
        assert (code, line in printed) == (2, True), (command, printed)
    Path("grid.yaml").write_text(CAMPAIGN + "grid: {templates: [v1/zero-shot, v1/few-shot]}\n")
    assert call("run", "grid.yaml")[0] == 2
    with pytest.raises(InputError):
        le.run("c.yaml", progress=le.Silent())
    assert not list(Path().rglob(JOURNAL))


def test_a_started_run_fails_before_asking(home: Path) -> None:
    async def started() -> None:
        async with le.Runtime() as runtime:
            await runtime.start("c.yaml").wait()

    _write_space(mass="mas")
    with pytest.raises(InputError, match="no column 'mas'"):
        asyncio.run(started())
    assert not list(home.rglob(JOURNAL))


def test_a_pilot_plans_every_template_before_it_asks(home: Path) -> None:
    Path("prompts").mkdir()
    Path("prompts/mine.md").write_text(
        "---\nid: mine\nwording: x\n---\n# user\n{{ option_c }}{{ option_a }}{{ option_b }}"
    )
    Path("c.yaml").write_text(CAMPAIGN + "pilot: [v1/zero-shot, mine]\n")
    with pytest.raises(InputError, match="option_c"):
        pilot.run_pilot(le.Campaign.load("c.yaml"), 10)
    assert not list(home.rglob(JOURNAL))


def test_a_table_can_be_mended_in_the_same_run(home: Path) -> None:
    le.run("c.yaml", progress=le.Silent())
    table = TABLE.replace("50.5", "51.5").replace("Mass (g)", "m")
    Path("moved.csv").write_text(table)
    _write_space(
        file="moved.csv", sha256=hashlib.sha256(table.encode()).hexdigest(), mass="weight",
        columns="{weight: m}",
    )  # fmt: skip
    run = le.run("c.yaml", progress=le.Silent())
    assert "a_weight" in run.comparisons.frame
    assert run.judgments == {"expert": 40}
    assert [feature.name for feature in run.space.features] == ["height", "weight"]
    assert (run.folder / "inputs/moved.csv").read_text() == table
    events = json.loads((run.folder / "manifest.json").read_text())
    assert events["stages"]["ask"]["read"]["answers"] == "40"
    assert le.repeat(run.folder, progress=le.Silent()).judgments == {"expert": 40}


def test_a_dry_run_refuses_what_a_run_does(call: Callable[..., tuple[object, str]]) -> None:
    assert call("ask", "c.yaml")[0] == 0
    Path("c.yaml").write_text(CAMPAIGN.replace("pairs: 20", "pairs: 20, template: v1/few-shot"))
    for command in (("run", "--dry-run"), ("estimate",), ("run",)):
        code, printed = call(*command, "c.yaml")
        assert (code, "run of another campaign" in printed) == (2, True), printed


HOSTED = "{name: gpt, backend: openai, model: MODEL, base_url: 'http://127.0.0.1:9/v1'PRICE}"


def _hosted(model: str = "m", price: str = ", price: {input: 1, output: 2}") -> None:
    judge = HOSTED.replace("MODEL", model).replace("PRICE", price)
    Path("c.yaml").write_text(CAMPAIGN.replace("judges: [", f"judges: [{judge}, "))


def test_an_estimate_says_where_a_cap_ends_it(
    call: Callable[..., tuple[object, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    _hosted()
    for command in (("estimate",), ("run", "--dry-run")):
        code, printed = call(*command, "c.yaml", "--max-cost", "0.0004")
        assert code == 0
        assert "Cap of 0.0004 USD: about " in printed
        assert " of 80 questions can be asked within it." in printed
        assert "Cap of" not in call(*command, "c.yaml", "--max-cost", "5")[1]
        assert ("OPENAI_API_KEY holds no key" in printed) == (command != ("estimate",))
    record = json.loads(call("estimate", "c.yaml", "--max-cost", "0.0004", "--json")[1])
    assert record["cap"].startswith("cap of 0.0004 USD: about ")


def test_a_cap_that_cannot_be_held_is_said_by_the_dry_run(
    call: Callable[..., tuple[object, str]],
) -> None:
    _hosted("nobody-knows-it", "")
    for command in (("estimate",), ("run", "--dry-run")):
        code, printed = call(*command, "c.yaml", "--max-cost", "1")
        assert code == 2
        assert "unknown price" in printed
        assert "so a cap cannot be held" in printed


def test_a_drafted_subject_is_mentioned(call: Callable[..., tuple[object, str]]) -> None:
    for command in (("run", "--dry-run"), ("plan",)):
        assert "drafted automatically" not in call(*command, "c.yaml")[1]
    _write_space(subject="a row of people.csv")
    for command in (("run", "--dry-run"), ("plan",), ("run",)):
        assert (
            "subject 'a row of people.csv' was drafted automatically" in call(*command, "c.yaml")[1]
        )


def test_a_score_method_and_a_period_are_refused(home: Path) -> None:
    Path("c.yaml").write_text(CAMPAIGN.replace("samples: 100", "method: score"))
    text = Path("people.yaml").read_text().replace("unit: cm,", "unit: cm, periodic: true,")
    Path("people.yaml").write_text(text)
    with pytest.raises(InputError, match="non-periodic numbers without constraints"):
        le.Run.open("c.yaml")


@pytest.mark.parametrize(
    ("wrong", "lines"),
    [
        (("judges:", "juges:"), ["juges: unknown key; did you mean 'judges'?"]),
        (("name: c", "nme: c"), ["nme: unknown key; did you mean 'name'?"]),
        (("{pairs:", "{pears:"), ["design.pears: unknown key; did you mean 'pairs'?"]),
        (("simulated,", "simulated, nois: gumbel,"), ["judges.0.nois: unknown key; did you mean"]),
        (
            ("simulated,", "simulated, temperature: 0,"),
            ["judges.0.temperature: unknown key; backend 'simulated' does not have it; remove it"],
        ),
        (("backend: simulated", "backend: opnai"), ["judges.0.backend: backend 'opnai' is not"]),
        (("space:", "xyz:"), ["xyz: unknown key; remove it", "; space: Field required"]),
        (
            ("pairs: 20}", "pairs: 0, replicates: 0}\nseed: -1"),
            ["seed: ", "; design.pairs: ", "; design.replicates"],
        ),
    ],
)
def test_what_is_misspelt_is_named_first_and_every_fault_is_listed(
    home: Path, wrong: tuple[str, str], lines: list[str]
) -> None:
    Path("c.yaml").write_text(CAMPAIGN.replace(*wrong))
    with pytest.raises(InputError) as refusal:
        le.Campaign.load("c.yaml")
    message = str(refusal.value)
    assert message.startswith(f"c.yaml: {lines[0]}")
    assert all(line in message for line in lines)
    assert " more)" not in message
    assert ("required" in message) == ("required" in lines[-1])


def test_a_misspelt_key_of_a_feature_and_a_campaign_as_a_space(home: Path) -> None:
    Path("people.yaml").write_text(Path("people.yaml").read_text().replace("low: 50", "lwo: 50"))
    with pytest.raises(InputError, match=r": features\.1\.lwo: unknown key; did you mean 'low'\?$"):
        le.FeatureSpace.load("people.yaml")
    with pytest.raises(InputError, match="this is a campaign"):
        le.FeatureSpace.load("c.yaml")


def test_a_misspelt_run_names_the_runs(call: Callable[..., tuple[object, str]]) -> None:
    assert call("plan", "c.yaml")[0] == 0
    Path("runs/c").rename("runs/coffee-fs")
    Path("coffee.yaml").write_text(CAMPAIGN)
    for where in ("coffee-sf", "runs/coffee-sf"):
        code, printed = call("status", where)
        assert code == 2
        assert "did you mean 'coffee-fs'? runs: coffee-fs" in printed
        with pytest.raises(InputError, match="did you mean 'coffee-fs'"):
            le.Run.open(where)
    with pytest.raises(InputError, match=r"did you mean 'coffee\.yaml'"):
        le.Campaign.load("cofee.yaml")


def test_what_is_no_campaign_or_no_run_is_said(home: Path) -> None:
    del home
    for call in (le.run, le.Run.open):
        with pytest.raises(InputError, match=r"got dict; le\.Campaign\.model_validate"):
            call({"name": "c"})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"compare: takes runs, .* got str"):
        le.compare(["c"])  # type: ignore[list-item]


def test_public_names_are_completed() -> None:
    assert set(le.__all__) <= set(dir(le))
    assert not {"TYPE_CHECKING", "Any", "annotations"} & set(dir(le))
