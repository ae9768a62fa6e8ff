"""A run's files changed, gone or older: made again or refused in one line, never other numbers."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import llm_elicit as le
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.manifest import Manifest
from llm_elicit.pipeline.run_folder import Run

pytestmark = pytest.mark.usefixtures("quick_fits")

SPACE = """
name: mass
title: a number
subject: case
ranges: as in a handbook
features:
  - {name: mass, label: body mass, unit: g, low: 2700, high: 6300}
"""
TEMPLATE = """---
id: mine
wording: x
---
# user
Which is likelier, A or B?
A: {{ option_a }}
B: {{ option_b }}
"""
CAMPAIGN = """
name: tiny
space: mass
design: {pairs: 8, template: mine}
direct: {samples: 6}
judges:
  - {name: expert, backend: simulated, belief: uniform}
fit: {method: utility, samples: 100}
"""
BELIEF = "beliefs/expert/utility"


class Notes(Silent):
    """Keeps what is said of files and settings."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, judge: str, line: str) -> None:
        if "no power from" not in line:
            self.lines.append(f"{judge}: {line}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a campaign, what it names, and its finished run."""
    home = tmp_path_factory.mktemp("home")
    for name, text in (
        ("datasets/mass.yaml", SPACE), ("prompts/mine.md", TEMPLATE), ("c.yaml", CAMPAIGN)
    ):  # fmt: skip
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        le.run("c.yaml", progress=le.Silent())
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to work in."""
    copy = tmp_path / "home"
    shutil.copytree(finished, copy)
    monkeypatch.chdir(copy)
    return copy


def _tell(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _untimed(fields: dict[str, object]) -> dict[str, object]:
    """What a record says but for how long things took."""
    return {name: value for name, value in fields.items() if "seconds" not in name}


def _numbers(folder: Path) -> list[object]:
    """All that a reader could take from a run."""
    audit = json.loads((folder / "audit.json").read_text(), object_hook=_untimed)["judges"]
    tables = ("comparisons.parquet", "direct.parquet", f"{BELIEF}/samples.parquet",
              f"{BELIEF}/draws.parquet", f"{BELIEF}/powers.parquet")  # fmt: skip
    return [audit, *(pd.read_parquet(folder / name).to_json() for name in tables)]


MADE_AGAIN = {
    "plan.parquet": "plan.parquet is missing or changed",
    "comparisons.parquet": "comparisons.parquet is missing or changed; rebuilt",
    "direct.parquet": "direct.parquet is missing or changed; rebuilt from the journal",
    f"{BELIEF}/samples.parquet": "samples.parquet is missing or changed; fitted again",
    f"{BELIEF}/bands.json": "bands.json is missing or changed; fitted again",
    f"{BELIEF}/draws.parquet": "draws.parquet is missing or changed; fitted again",
    f"{BELIEF}/belief.json": "belief.json is missing or changed; fitted again",
    f"{BELIEF}/belief.safetensors": "belief.safetensors is missing or changed; fitted again",
    f"{BELIEF}/power.json": "power.json is missing or changed; fitted again",
    f"{BELIEF}/powers.parquet": "audit.json or one of its inputs was changed",
    "audit.json": "audit.json or one of its inputs was changed",
}
REFUSED = {"campaign.yaml": "campaign.yaml: the run's copy of the campaign was changed"}
NOT_READ = (
    "manifest.json",
    "journal.sqlite",
    "log.jsonl",
    "report.html",
    "figures",
    "tables",
    "inputs",
)  # read by repeats


@pytest.mark.parametrize("name", [*MADE_AGAIN, *REFUSED, "all that is not read"])
def test_a_changed_byte_is_never_another_number(home: Path, name: str) -> None:
    folder, notes = home / "runs" / "tiny", Notes()
    before = _numbers(folder)
    for path in sorted(folder.rglob("*")):
        part = path.relative_to(folder).as_posix()
        idle = part.split("/")[0].startswith(NOT_READ) and path.is_file() and path.stat().st_size
        if part == name or (idle and name not in (*MADE_AGAIN, *REFUSED)):
            _flip(path)
        elif path.is_file() and path.stat().st_size:
            assert idle or part in (*MADE_AGAIN, *REFUSED), f"{part}: nobody looks at it"
    if name in REFUSED:
        with pytest.raises(InputError, match=REFUSED[name]):
            Run.open(folder)
        return
    stage = stages.audit if BELIEF in name and "powers" not in name else stages.report
    stage(Run.open(folder), notes)
    assert _numbers(folder) == before
    assert [name for name in MADE_AGAIN if not _is_as_written(folder, name)] == []
    if name in MADE_AGAIN:
        (line,) = notes.lines
        assert MADE_AGAIN[name] in line
    else:
        assert notes.lines == []


def _is_as_written(folder: Path, name: str) -> bool:
    made_by = ("plan", "pairs", "ask", "fit expert utility", "audit")
    return all(Manifest(folder).as_written(stage, name) for stage in made_by)


def test_what_is_gone_is_made_again(home: Path) -> None:
    folder, notes = home / "runs" / "tiny", Notes()
    before = _numbers(folder)
    for name in MADE_AGAIN:
        (folder / name).unlink()
    with pytest.raises(InputError, match="run the campaign first"):
        _ = Run.open(folder).comparisons
    stages.audit(Run.open(folder), notes)
    assert _numbers(folder) == before
    assert [line.split(" is missing")[0] for line in notes.lines] == [
        "tiny: audit: plan.parquet",
        "tiny: audit: comparisons.parquet and direct.parquet",
        "expert: audit: " + ", ".join(f"{BELIEF}/{name}" for name in (
            "belief.json", "belief.safetensors", "samples.parquet", "bands.json", "draws.parquet",
            "power.json",
        )),
    ]  # fmt: skip


def test_from_a_script_what_was_changed_is_refused(home: Path) -> None:
    run = Run.open("tiny")
    for name in ("comparisons.parquet", "audit.json", f"{BELIEF}/belief.safetensors"):
        _flip(run.folder / name)
    for look in (lambda: run.comparisons, lambda: run.audit, lambda: run.beliefs["expert"]):
        with pytest.raises(InputError, match=r"changed since it was written; llm-elicit"):
            look()


def test_without_a_journal_nothing_is_asked_again(home: Path) -> None:
    folder = home / "runs" / "tiny"
    for path in folder.glob("journal.sqlite*"):
        path.unlink()
    for command in (lambda: le.run("c.yaml"), lambda: asyncio.run(stages.ask(Run.open("tiny")))):
        with pytest.raises(
            InputError, match=r"journal holds 0 of the 22 answers .*; restore the journal, or move"
        ):
            command()
    assert not (folder / "journal.sqlite").exists()
    (folder / "journal.sqlite").touch()
    with pytest.raises(InputError, match="journal holds 0 of"):
        le.run("c.yaml")
    (folder / "journal.sqlite").unlink()
    stages.report(Run.open("tiny"), notes := Notes())
    assert notes.lines == [], "what is there is enough for a report"
    _flip(folder / "comparisons.parquet")
    with pytest.raises(InputError, match=r"comparisons.parquet was changed .* no journal"):
        stages.report(Run.open("tiny"))


def test_rounds_are_as_they_were_planned_or_nothing_is(home: Path) -> None:
    _tell(home / "c.yaml", "pairs: 8,", "pairs: 8, rounds: {count: 2},")
    _tell(home / "c.yaml", "name: tiny", "name: rounds")
    run = asyncio.run(stages.ask(stages.plan("c.yaml")))
    stages.fit(run, notes := Notes())
    assert notes.lines == []
    (run.folder / "journal.sqlite").unlink()
    for stage in (stages.fit, stages.audit, stages.report):
        with pytest.raises(InputError, match="the journal, which holds the pairs of later rounds"):
            stage(Run.open("rounds"))


def test_an_older_copy_of_the_journal_is_refused(home: Path) -> None:
    with sqlite3.connect("runs/tiny/journal.sqlite") as db:
        db.execute("UPDATE questions SET state = 'planned' WHERE id = 3")
        db.execute("DELETE FROM answers WHERE question = 3")
    with pytest.raises(InputError, match="journal holds 21 of the 22 answers"):
        le.run("c.yaml")
    _flip(home / "runs/tiny/comparisons.parquet")
    with pytest.raises(InputError, match="journal holds 21 of the 22 answers"):
        stages.report(Run.open("tiny"))


MADE = ("comparisons.parquet", "audit.json", "report.html")


def _made(folder: Path) -> dict[str, tuple[int, int]]:
    """Tell when files were written."""
    files = {name: (folder / name).stat() for name in MADE}
    return {name: (file.st_ino, file.st_mtime_ns) for name, file in files.items()}


def test_a_run_with_nothing_open_leaves_its_files_as_they_are(home: Path) -> None:
    folder = home / "runs" / "tiny"
    before = _made(folder)
    le.run("c.yaml", progress=le.Silent())
    assert _made(folder) == before


def _a_figure_is_gone(home: Path, _patch: pytest.MonkeyPatch) -> None:
    (home / "runs/tiny/figures/expert-marginals.svg").unlink()


def _a_title_is_another(home: Path, _patch: pytest.MonkeyPatch) -> None:
    _tell(home / "datasets/mass.yaml", "a number", "a number of grams")


def _a_limit_is_another(home: Path, _patch: pytest.MonkeyPatch) -> None:
    _tell(home / "c.yaml", "name: tiny", "name: tiny\nlimits: {max_cost: 3}")


def _the_version_is_another(_home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("llm_elicit.pipeline.results.installed_versions", lambda: {"x": "1"})


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (_a_figure_is_gone, ["report.html"]),
        (_a_limit_is_another, ["report.html"]),
        (_a_title_is_another, ["audit.json", "report.html"]),
        (_the_version_is_another, ["audit.json", "report.html"]),
    ],
)
def test_what_a_run_shows_is_made_again_where_it_would_be_another(
    home: Path, monkeypatch: pytest.MonkeyPatch, change: Any, made: list[str]
) -> None:
    folder = home / "runs" / "tiny"
    before = _made(folder)
    change(home, monkeypatch)
    le.run("c.yaml", progress=le.Silent())
    assert [name for name in MADE if _made(folder)[name] != before[name]] == made
    assert (folder / "figures/expert-marginals.svg").is_file()
    assert ("a number of grams" in (folder / "report.html").read_text()) == (
        change is _a_title_is_another
    )


def test_an_answer_changed_by_hand_ends_the_run(home: Path) -> None:
    with sqlite3.connect("runs/tiny/journal.sqlite") as db:
        db.execute("UPDATE answers SET probability = 1 - probability WHERE question = 3")
    with pytest.raises(InputError, match="answer of 'expert' to question 1 ab, replicate 0, has"):
        le.run("c.yaml", progress=le.Silent())


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        (
            "datasets/mass.yaml",
            "unit: g",
            "unit: kg",
            "feature mass.unit differs: g before, kg now",
        ),
        ("datasets/mass.yaml", "6300", "6400", "mass.high differs: 6300.0 before, 6400.0 now"),
        ("datasets/mass.yaml", "subject: case", "subject: bird", "space.subject differs: case bef"),
        ("prompts/mine.md", "likelier", "more likely", "its template differs: "),
        ("c.yaml", "pairs: 8", "pairs: 9", "design.pairs differs: 8 before, 9 now"),
        ("c.yaml", "name: tiny", "name: tiny\nseed: 2", "its seed differs: 1 before, 2 now"),
        ("c.yaml", "uniform}", "uniform, seed: 4}", "expert.seed differs: 186760161 before, 4 now"),
    ],
)
def test_what_changes_a_question_is_another_campaign(
    home: Path, file: str, old: str, new: str, line: str
) -> None:
    _tell(home / file, old, new)
    for stage in (stages.plan_run, stages.fit, stages.audit, stages.report):
        with pytest.raises(InputError, match="run of another campaign") as caught:
            stage(Run.open("c.yaml"))
        assert line in str(caught.value)
        assert "give this campaign another name" in str(caught.value)


def test_what_changes_no_number_goes_on(home: Path) -> None:
    _tell(home / "datasets/mass.yaml", "a number", "a number of grams")
    _tell(home / "datasets/mass.yaml", "as in a handbook", "as in another")
    _tell(home / "datasets/mass.yaml", "high: 6300", "high: 6300.0, note: of living birds")
    _tell(home / "c.yaml", "uniform}", "uniform, concurrency: 3, timeout: 5, attempts: 2}")
    _tell(home / "c.yaml", "name: tiny", "name: tiny\nlimits: {max_cost: 3, deadline: 60}")
    before = _numbers(home / "runs" / "tiny")
    run = stages.plan("c.yaml")
    for stage in (stages.fit, stages.audit, stages.report):
        stage(run, notes := Notes())
        assert notes.lines == []
    assert _numbers(run.folder) == before


def test_a_judge_may_be_added(home: Path) -> None:
    before = pd.read_parquet(f"runs/tiny/{BELIEF}/samples.parquet")
    _tell(home / "c.yaml", "uniform}", "uniform}\n  - {name: two, backend: simulated, "
          "belief: uniform, seed: 3}")  # fmt: skip
    run = asyncio.run(stages.ask(stages.plan("c.yaml")))
    assert len(run.comparisons.of("two")) == len(run.comparisons.of("expert")) == 16
    stages.fit(run, notes := Notes())
    assert notes.lines == []
    assert sorted(run.beliefs) == ["expert", "two"]
    assert before.equals(pd.read_parquet(f"runs/tiny/{BELIEF}/samples.parquet"))
    stages.report(run, notes)
    rebuilt = "report: audit.json or one of its inputs was changed; the audit is rebuilt"
    assert notes.lines == [f"tiny: {rebuilt}"]
    _tell(home / "c.yaml", "seed: 3", "seed: 5")
    with pytest.raises(InputError, match=r"judge two\.seed differs: 3 before, 5 now"):
        stages.plan("c.yaml")


def test_before_anything_is_asked_all_may_be_changed(home: Path) -> None:
    _tell(home / "c.yaml", "name: tiny", "name: draft")
    stages.plan("c.yaml")
    _tell(home / "c.yaml", "pairs: 8", "pairs: 9")
    _tell(home / "datasets/mass.yaml", "unit: g", "unit: kg")
    assert len(asyncio.run(stages.ask(stages.plan("c.yaml"))).comparisons) == 18


def test_other_settings_of_the_fit_are_fitted_again(home: Path) -> None:
    _tell(home / "c.yaml", "samples: 100", "samples: 101")
    run = Run.open("c.yaml")
    stages.audit(run, notes := Notes())
    assert notes.lines == ["expert: audit: answers or settings changed; fitted again"]
    assert len(pd.read_parquet(run.folder / BELIEF / "samples.parquet")) == 101
