"""Every way a command can end has the exit code that docs/how-to/resume.md gives it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from fakes.batches import BatchProvider
from fakes.spaces import write_two_features

from llm_elicit import errors
from llm_elicit.cli import main as cli
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading, totals
from llm_elicit.pipeline import stages
from llm_elicit.testing.provider import Answer, Error, Hangs, Provider

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "resume.md"
ROWS = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", DOCS.read_text(), re.M)
CODES = {outcome: int(code) for code, outcome in ROWS}


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")


def campaign(url, pairs=20, rest="", **settings):
    judge = {"name": "claude", "backend": "anthropic", "model": "claude-haiku-4-5",
             "base_url": url, "max_tokens": 8, "attempts": 1, **settings}  # fmt: skip
    text = f"name: c\nspace: two.yaml\ndesign: {{pairs: {pairs}}}\njudges: [{json.dumps(judge)}]\n"
    write_two_features(Path())
    Path("c.yaml").write_text(f"{text}fit: {{method: utility, samples: 500}}\n{rest}")
    return "c.yaml"


def command(monkeypatch, capsys, *arguments):
    """The exit code and what was written to standard error."""
    monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0, capsys.readouterr().err


def test_the_table_names_every_code_there_is():
    kinds = [errors.ElicitError, *_below(errors.ElicitError)]
    assert len(ROWS) == len(CODES), "an outcome is listed twice"
    assert {kind.exit_code for kind in kinds} | {0, errors.STOPPED, 143, 129} == set(CODES.values())


def _below(kind):
    return [k for sub in kind.__subclasses__() for k in (sub, *_below(sub))]


def test_complete(monkeypatch, capsys):
    with Provider() as provider:
        assert command(monkeypatch, capsys, "ask", campaign(provider.url))[0] == CODES["complete"]


def test_not_usable(monkeypatch, capsys):
    path = campaign("http://127.0.0.1:9", rest="sead: 1\n")
    assert command(monkeypatch, capsys, "ask", path)[0] == CODES["not usable"]
    assert command(monkeypatch, capsys, "ask")[0] == CODES["not usable"], "a missing argument"


@pytest.mark.parametrize("stage", ["ask", "run"])
def test_judge_stopped(monkeypatch, capsys, stage):
    with Provider(lambda n, body: Error(402, "no credit") if n > 25 else Answer()) as provider:
        code, said = command(monkeypatch, capsys, stage, campaign(provider.url, concurrency=1))
    assert code == CODES["judge stopped"]
    assert "no credit" in said


def test_cap_reached(monkeypatch, capsys):
    with Provider() as provider:
        code, said = command(
            monkeypatch, capsys, "ask", campaign(provider.url), "--max-cost", "0.003"
        )
    assert code == CODES["cap reached"]
    assert "raise the cap" in said


def test_answers_missing(monkeypatch, capsys):
    """Later stages go on with a warning, and nothing calls the run complete until it is."""
    canary = "sk-canary-0123456789"
    monkeypatch.setenv("ANTHROPIC_API_KEY", canary)
    broken = True

    def behave(number, body):
        if broken and number in (9, 12):
            return Error(400, f"no, {canary}")
        return Answer(f"A, not {canary}" if number == 5 else "A")

    with Provider(behave) as p:
        path = campaign(p.url, concurrency=1)
        code, said = command(monkeypatch, capsys, "ask", path)
        assert code == CODES["answers missing"]
        assert "2 of 40 questions to 'claude' have no answer" in said
        for stage in ("fit", "audit", "report"):
            code, said = command(monkeypatch, capsys, stage, path)
            assert code == CODES["complete"]
            assert f"claude: {stage}: 2 of 40 questions have no answer" in said
        page = Path("runs/c/report.html")
        assert "The campaign is not complete" in page.read_text()
        broken = False
        code, said = command(monkeypatch, capsys, "run", path)
        assert code == CODES["complete"]
        assert "no answer" not in said
        assert "The campaign is not complete" not in page.read_text()
        assert len(p.seen) == 42
    files = [file for file in Path().rglob("*") if file.is_file()]
    assert page in files
    assert [file for file in files if canary.encode() in file.read_bytes()] == []


def test_what_is_set_aside_is_asked_again_on_request(monkeypatch, capsys):
    """Every message says why, and names only what does something."""
    broken = ""

    def behave(number, body):
        nonlocal broken
        question = body["messages"][-1]["content"]
        broken = broken or question
        return Error(400, "this breaks the tokenizer") if question == broken else Answer("A")

    def shown():
        monkeypatch.setattr(sys, "argv", ["llm-elicit", "status", path])
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().out

    with Provider(behave) as p:
        path = campaign(p.url, pairs=4)
        for expected, unexpected, option in (
            ("1 given up, asked again by the next run", "--retry-failed", ""),
            ("1 set aside, asked again with --retry-failed", "next run", " --retry-failed"),
        ):
            code, said = command(monkeypatch, capsys, "ask", path)
            assert code == CODES["answers missing"]
            assert expected in said
            assert unexpected not in said
            assert "breaks the tokenizer" in said.splitlines()[-1]
            status = shown()
            assert f"llm-elicit run runs/c{option} asks it again" in status
            assert "breaks the tokenizer" in status
        assert len(p.seen) == 9
        assert command(monkeypatch, capsys, "ask", path)[0] == CODES["answers missing"]
        assert len(p.seen) == 9
        code, said = command(monkeypatch, capsys, "ask", path, "--retry-failed")
        assert code == CODES["answers missing"]
        assert "claude: asking 1 unanswered questions again: in two runs: request refused" in said
        assert len(p.seen) == 10
        broken = "mended"
        assert command(monkeypatch, capsys, "ask", path, "--retry-failed")[0] == CODES["complete"]
        assert len(p.seen) == 11


@pytest.mark.parametrize("pairs", [4, 20])
def test_nothing_is_found_from_no_answers(monkeypatch, capsys, pairs):
    """Of few questions all are asked, of many some; other judges are not held up."""
    with Provider(lambda n, body: Answer("", stop="length")) as p:
        path = campaign(p.url, pairs=pairs)
        code, said = command(monkeypatch, capsys, "run", path)
        assert code == CODES["answers missing"]
        number = len(p.seen)
        assert number == 8 if pairs == 4 else number <= 20
        assert f"no usable answers: {number} of {number} truncated at max_tokens=8" in said
        assert not Path("runs/c/report.html").exists()
        assert not Path("runs/c/beliefs").exists()
        rest = "judges: [{name: expert, backend: simulated}, "
        text = Path(path).read_text().replace("judges: [", rest).replace("name: c\n", "name: d\n")
        Path("d.yaml").write_text(text)
        code, said = command(monkeypatch, capsys, "run", "d.yaml")
        assert code == CODES["answers missing"]
        assert "no usable answers" in said.splitlines()[-1]
        assert Path("runs/d/report.html").exists()


def test_many_unusable_answers_are_said_last(monkeypatch, capsys):
    with Provider(lambda n, body: Answer("?" if n % 3 == 0 else "A")) as p:
        path = campaign(p.url)
        monkeypatch.setattr(sys, "argv", ["llm-elicit", "ask", path])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("claude: 13 of 40 answers are unusable: 13 of 40 unparsable (such")
        monkeypatch.setattr(sys, "argv", ["llm-elicit", "status", path])
        with pytest.raises(SystemExit):
            cli.main()
        status = capsys.readouterr().out
        assert "claude: 13 of 40 answers are unusable" in status
        assert "claude: answers given by claude-haiku-4-5" in status
        models = json.loads(Path("runs/c/manifest.json").read_text())["models"]
        assert list(models["claude"].values()) == [40]


def test_batch_mode_is_complete_when_all_is_collected(monkeypatch, capsys):
    """`submit` ends well when all is handed in; `collect` not before every answer is there."""
    with BatchProvider() as provider:
        path = campaign(provider.url)
        assert command(monkeypatch, capsys, "ask", path, "--batch", "submit")[0] == 0
        monkeypatch.setattr(sys, "argv", ["llm-elicit", "ask", path, "--batch", "status"])
        with pytest.raises(SystemExit):
            cli.main()
        shown = capsys.readouterr().out.splitlines()[1].split()
        assert shown == ["claude", "batch_1", "in_progress", "40", "0"]
        code, said = command(monkeypatch, capsys, "ask", path, "--batch", "collect")
        assert code == CODES["answers missing"]
        assert "40 of 40 questions to 'claude' have no answer" in said
        provider.end()
        code, _ = command(monkeypatch, capsys, "ask", path, "--batch", "collect")
        assert code == CODES["complete"]
        assert len(provider.batches) == 1
        provider.refuses = Error(401, "bad key")
        path = campaign(provider.url, rest="seed: 2\nruns: other\n")
        code, said = command(monkeypatch, capsys, "ask", path, "--batch", "wait")
        assert code == CODES["judge stopped"]
        assert "bad key" in said


def test_defect(monkeypatch, capsys):
    """One line, and the traceback on request."""
    monkeypatch.setattr(stages, "plan_grid", lambda campaign: 1 / 0)
    path = campaign("http://127.0.0.1:9")
    with pytest.raises(ZeroDivisionError):
        command(monkeypatch, capsys, "plan", path)
    monkeypatch.delenv("LLM_ELICIT_DEBUG")
    code, said = command(monkeypatch, capsys, "plan", path)
    assert code == CODES["defect"] == 1 == errors.ElicitError.exit_code
    assert said.startswith("internal error: ZeroDivisionError: division by zero; this is a defect")
    assert said.count("\n") == 1


def _start(path):
    path_of_tests = os.pathsep.join(part or "." for part in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "llm_elicit", "ask", path],
        env={**os.environ, "PYTHONPATH": path_of_tests},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait(condition, child):
    until = time.monotonic() + 120
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until, "the child does not come on"
        time.sleep(0.005)


def _answered():
    with reading(JournalLocation(Path("runs/c"))) as db:
        return totals(db, "claude").done


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_wait_for_what_is_in_flight_too(sent, request):
    # Under `nohup` processes begin ignoring a hangup, as this one does.
    request.addfinalizer(partial(signal.signal, sent, signal.signal(sent, signal.SIG_DFL)))
    with Provider(lambda number, body: Answer("A", delay=0.1)) as provider:
        child = _start(campaign(provider.url, pairs=100, concurrency=4))
        _wait(lambda: len(provider.seen) >= 20, child)
        child.send_signal(sent)
        _, said = child.communicate(timeout=120)
        outcome = {signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}[sent]
        assert child.returncode == CODES[outcome], said
        assert "waiting for the answers in flight" in said
        assert said.endswith("stopped; every answer received is kept: run again to resume\n")
        assert _answered() == len(provider.seen) < 60


def test_stopped(monkeypatch, capsys):
    """The first Ctrl-C waits for what is in flight, the second does not; a resume asks the rest."""
    hanging, slow = False, True

    def behave(number, body):
        if hanging and number > 60:
            return Hangs(120)
        # After twenty answers slowly, so that there is time for the status in the first second.
        return Answer("A", delay=1.0 if slow and number > 20 else 0.1)

    with Provider(behave) as provider:
        path = campaign(provider.url, pairs=100, concurrency=4)
        child = _start(path)
        _wait(lambda: len(provider.seen) >= 20, child)
        monkeypatch.setattr(sys, "argv", ["llm-elicit", "status", "runs/c"])
        with pytest.raises(SystemExit):
            cli.main()
        rows = [re.split(r"\s\s+", line.strip()) for line in capsys.readouterr().out.splitlines()]
        shown = dict(zip(rows[0], rows[1], strict=True))
        assert 0 < int(shown["in flight"]) <= 4
        assert int(shown["done"]) + int(shown["in flight"]) + int(shown["planned"]) == 200
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
        assert child.returncode == CODES["stopped"], said
        assert "waiting for the answers in flight" in said
        assert said.endswith("stopped; every answer received is kept: run again to resume\n")
        assert "Traceback" not in said
        assert _answered() == len(provider.seen) < 60
        hanging, slow = True, False
        child = _start(path)
        _wait(lambda: len(provider.seen) >= 64, child)
        child.send_signal(signal.SIGINT)
        said = next(line for line in child.stderr if "waiting for the answers in flight" in line)
        time.sleep(0.5)
        assert child.poll() is None, "the first Ctrl-C waits"
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        said += child.stderr.read()
        child.communicate(timeout=120)
        assert time.monotonic() - began < 60, "they hang for two minutes"
        assert child.returncode == CODES["stopped"], said
        assert "Traceback" not in said
        assert _answered() == 60
        hanging = False
        assert command(monkeypatch, capsys, "ask", path)[0] == CODES["complete"]
        assert len(provider.seen) == 200 + 4, "the four that were dropped are asked again"
