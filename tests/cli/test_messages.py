"""What is in the wrong place, in the way, full or cut off: one line that names it, exit code 2."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from llm_elicit.cli import main as cli
from llm_elicit.comparisons import table_files
from llm_elicit.errors import InputError
from llm_elicit.questions.template import Template

CAMPAIGN = """
name: tiny
space: penguins
design: {pairs: 20}
judges: [{name: expert, backend: simulated}]
fit: {method: utility, samples: 100}
"""
COMMANDS = ("run", "estimate", "plan", "ask", "fit", "audit", "report", "status", "export",
            "pilot", "power", "compare")  # fmt: skip
NO_CAMPAIGNS = ("nope.yaml", "nope", "folder.yaml", "empty", "words", "/dev/null", "", "a\0b",
                "x" * 5000, "half")  # fmt: skip


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """The command, in this process and a folder with a campaign."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CAMPAIGN)

    def called(*arguments):
        monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        *_, line = shown.err.splitlines() or [""]
        return SimpleNamespace(code=ended.value.code or 0, line=line, out=shown.out)

    return called


def refused(done, *parts):
    assert done.code == 2, done.line
    assert done.line.startswith("error: ")
    assert len(done.line) < 900
    for part in parts:
        assert part in done.line


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_campaign_and_no_run(call, command):
    Path("folder.yaml").mkdir()
    Path("empty").mkdir()
    Path("half/campaign.yaml").mkdir(parents=True)
    Path("words").write_text("words")
    for where in NO_CAMPAIGNS:
        refused(call(command, where, *(["o.csv"] if command == "export" else [])))
    refused(call("status", "nope.yaml"), "no campaign 'nope.yaml'", "simulated")
    refused(call("status", "empty"), "empty: a folder without a run")
    refused(call("status", "words"), "'words' is not a campaign; name a .yaml file")


def test_export_writes_over_nothing_unasked(call):
    assert call("ask", "c.yaml").code == 0
    Path("a_folder.csv").mkdir()
    refused(call("export", "c.yaml", "no/where.csv"), "there is no folder no")
    refused(call("export", "c.yaml", "a_folder.csv"), "is a folder")
    refused(call("export", "c.yaml", "c.yaml"), "c.yaml exists; use --force")
    refused(call("compare", "c.yaml", "--out", "no/x.json"), "there is no folder no")
    assert call("export", "c.yaml", "out.csv").code == 0
    before = Path("out.csv").read_text()
    Path("out.csv").write_text("mine")
    refused(call("export", "c.yaml", "out.csv"), "out.csv exists; use --force to overwrite it")
    assert Path("out.csv").read_text() == "mine"
    assert call("export", "c.yaml", "out.csv", "--force").code == 0
    assert Path("out.csv").read_text() == before


@pytest.mark.parametrize("name", ["campaign.yaml", "manifest.json", "journal.sqlite", "log.jsonl",
                                  ".lock"])  # fmt: skip
def test_a_folder_where_a_file_is_to_be(call, name):
    Path("runs/tiny", name).mkdir(parents=True)
    refused(call("ask", "c.yaml"), "runs/tiny")


def test_a_file_where_a_folder_is_to_be(call):
    Path("runs").write_text("words")
    refused(call("ask", "c.yaml"), "runs/tiny: cannot be written (Not a directory)")
    Path("runs").unlink()
    Path("runs").mkdir()
    Path("runs/tiny").write_text("words")
    refused(call("ask", "c.yaml"), "runs/tiny: cannot be written (File exists)")


def _space(table):
    with gzip.open("table.csv.gz", "wt") as file:
        file.write("x,y\n" + "".join(f"{i},{i * 7 % 11}\n" for i in range(500)))
    data = {
        "name": "s", "title": "t", "subject": "x",
        "features": [{"name": n, "label": n, "low": 0, "high": 1000} for n in "xy"],
        "table": table,
    }  # fmt: skip
    Path("s.yaml").write_text(yaml.safe_dump(data))
    Path("c.yaml").write_text(CAMPAIGN.replace("penguins", "s.yaml"))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"words" + b,
                                    lambda b: b[:40] + b"\xff" * 20 + b[60:]])  # fmt: skip
def test_a_table_whose_gzip_is_damaged(call, damage):
    _space("table.csv.gz")
    whole = Path("table.csv.gz").read_bytes()
    Path("table.csv.gz").write_bytes(damage(whole))
    refused(call("ask", "c.yaml"), "table.csv.gz")


def test_settings_that_are_not_utf_8_are_said_with_a_way_out(call):
    Path("c.yaml").write_bytes(CAMPAIGN.encode() + "# Größe\n".encode("cp1252"))
    line = CAMPAIGN.count("\n") + 1
    refused(call("plan", "c.yaml"), f"c.yaml: line {line} is not UTF-8 (byte 0xf6); save it as")
    Path("t.md").write_bytes("Größe".encode("cp1252"))
    with pytest.raises(InputError, match=r"line 1 is not UTF-8 \(byte 0xf6\); save it as UTF-8"):
        Template.load("t.md")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_of_few_characters_shows_every_question(tmp_path, encoding):
    text = Path("datasets/penguins.yaml").read_text().replace("body mass", "Größe → λ 体重")
    (tmp_path / "s.yaml").write_text(text)
    shutil.copy("datasets/penguins.csv.gz", tmp_path)
    (tmp_path / "c.yaml").write_text(CAMPAIGN.replace("penguins", "s.yaml"))
    done = subprocess.run(
        [sys.executable, "-m", "llm_elicit", "run", "c.yaml", "--dry-run"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
            "PYTHONIOENCODING": encoding,
        },
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u4f53\\u91cd" in done.stdout


def test_a_full_disk_is_one_line_that_names_the_file(call, monkeypatch):
    """A real device that is full stands where the file is to be written."""
    assert call("ask", "c.yaml").code == 0
    full = Path("out.csv.part")
    full.symlink_to("/dev/full")
    monkeypatch.setattr(table_files, "unfinished", lambda path: full)
    refused(call("export", "c.yaml", "out.csv"), "out.csv: cannot be written", "No space left")


def test_a_defect_is_one_line_and_its_traceback_is_for_those_who_ask(monkeypatch, capsys):
    def broken():
        raise KeyError("inside")

    monkeypatch.delenv(cli.DEBUG)
    assert cli.run_app(broken) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("internal error: KeyError: 'inside'; this is a defect")
    monkeypatch.setenv(cli.DEBUG, "1")
    with pytest.raises(KeyError):
        cli.run_app(broken)
