"""A run in one terminal is watched, paused, resumed and cancelled from another.

One terminal is a process, and this process the other.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_elicit._util.settings import to_yaml
from llm_elicit.errors import STOPPED
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.control import SILENCE, write_control
from llm_elicit.orchestrator.journal.schema import clock
from llm_elicit.testing.provider import Answer, Provider

QUESTIONS = 4_000
"""So many that a slow machine's commands come in time: no test has them all asked."""
Command = Callable[..., Any]


def _call(*words: str) -> list[str]:
    return [sys.executable, "-m", "llm_elicit", *words]


@pytest.fixture
def slow() -> Iterator[Provider]:
    """A provider whose answers take a while."""
    with Provider(lambda _n, _body: Answer("A", delay=0.05)) as provider:
        yield provider


@pytest.fixture
def campaign(slow: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a campaign that takes minutes, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    judge = {
        "name": "gpt", "backend": "openai", "model": "gpt-4o-mini",
        "base_url": f"{slow.url}/v1", "concurrency": 2,
    }  # fmt: skip
    settings = {
        "name": "long",
        "space": "penguins",
        "design": {"pairs": QUESTIONS // 2},
        "judges": [judge],
    }
    Path("long.yaml").write_text(to_yaml(settings))
    return "long.yaml"


@contextmanager
def _asking(campaign: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that asks; it ends with the test, also where an assertion fails."""
    with subprocess.Popen(_call("ask", campaign), text=True, **streams) as asking:
        try:
            yield asking
        finally:
            asking.kill()


def _state(status: Any) -> str:
    """The state in the row of the only judge."""
    return str(status.stdout.splitlines()[1].split()[-1])


def _answered(provider: Provider, number: int) -> None:
    latest = time.monotonic() + 120
    while sum(seen.answered for seen in provider.seen) < number:
        assert time.monotonic() < latest
        time.sleep(0.02)


def test_pause_resume_and_cancel_from_another_terminal(
    slow: Provider, campaign: str, llm_elicit: Command
) -> None:
    with _asking(campaign, stderr=subprocess.PIPE) as asking:
        _answered(slow, 10)
        paused = llm_elicit("pause", "long")
        assert paused.returncode == 0, paused.stderr
        assert "paused" in paused.stdout
        seen = len(slow.seen)
        time.sleep(0.5)
        assert len(slow.seen) == seen < QUESTIONS
        assert _state(llm_elicit("status", "long")) == "paused"
        resumed = llm_elicit("resume", "long", "--concurrency", "4")
        assert "running" in resumed.stdout, resumed.stderr
        _answered(slow, seen + 10)
        cancelled = llm_elicit("cancel", "long")
        assert "cancelled" in cancelled.stdout, cancelled.stderr
        assert asking.stderr is not None
        assert "cancelled; every answer received is kept" in asking.stderr.read()
        assert asking.wait(120) == STOPPED
    assert len(slow.seen) < QUESTIONS
    assert _state(llm_elicit("status", "long", "--watch")) == "cancelled"


def test_a_run_that_nobody_works_on_cannot_be_paused(
    slow: Provider, campaign: str, llm_elicit: Command
) -> None:
    for command in ("pause", "resume", "cancel"):
        refused = llm_elicit(command, campaign)
        assert refused.returncode == 2
        assert (
            "no process is working on this run; `llm-elicit run long.yaml` resumes"
            in refused.stderr
        )
    with _asking(campaign, stderr=subprocess.DEVNULL):
        _answered(slow, 10)
    last = {"alive": clock() - SILENCE - 1.0}
    write_control(JournalLocation(Path("runs/long")), **last)
    status = llm_elicit("status", "long")
    how = status.stdout.splitlines()[-1]
    assert _state(status) == "interrupted"
    assert how == "long: interrupted; llm-elicit run runs/long resumes it"
    assert llm_elicit("pause", "long").returncode == 2
