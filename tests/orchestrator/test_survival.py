"""Real processes, killed and interrupted."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.warm import WarmPopen
from sqlalchemy import select

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import questions
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.testing.provider import Answer, Hangs, Provider
from orchestrator.child import study
from orchestrator.running import plan_of, run, table, until

CHILD = Path(__file__).parent / "child.py"
SLOTS = 8


def _start(url: str, folder: Path, pairs: int, *rest: str) -> "subprocess.Popen[str]":
    return WarmPopen(
        [sys.executable, str(CHILD), url, str(folder), str(pairs), *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
    )


def _wait(condition: Callable[[], bool], child: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 240
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until, "the child does not come on"
        time.sleep(0.002)


def _on_disk(folder: Path) -> set[int]:
    """The claude questions with an answer, as another process sees them."""
    done = select(questions.c.id).where(questions.c.judge == "claude", questions.c.state == "done")
    with reading(JournalLocation(folder)) as db:
        return set(db.execute(done).scalars())


def _texts(campaign: Campaign) -> dict[int, str]:
    """The last turn of each claude question, by its number in the journal."""
    plan = plan_of(campaign)
    space, template = campaign.load_space(), Template.load("v1/zero-shot")
    asked = [render(space, *plan.points_in_order(query), template) for query in plan]
    return {number: prompt.messages[-1].content for number, prompt in enumerate(asked, 1)}


def test_killed_at_random_and_resumed_nothing_answered_is_asked_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Kills in one campaign. Only what was in flight at a kill may be asked again."""
    pairs, kills = 100, 3
    rng = random.Random(7)
    folder = tmp_path / "try"
    with Provider(lambda n, body: Answer("A", delay=0.02)) as provider:
        texts = _texts(study(provider.url, pairs))
        lost, kept = 0, set[str]()
        for kill in range(kills):
            seen = len(provider.seen)
            target = seen + rng.randint(5, 50)
            child = _start(provider.url, folder, pairs)
            _wait(lambda: len(provider.seen) >= target, child)  # noqa: B023
            child.send_signal(signal.SIGKILL)
            child.communicate()
            assert child.returncode == -signal.SIGKILL
            again = {request.question for request in provider.seen[seen:]}
            assert not again & kept, f"kill {kill}: an answered question was asked again"
            done = _on_disk(folder)
            assert done, f"kill {kill}: nothing was kept"
            kept = {texts[number] for number in done}
            # What this kill caught in flight the server answers all the same.
            until(lambda: all(request.answered for request in provider.seen))
            answered = len(provider.seen)
            # What the server answered is on the disk, but for what the kill caught in flight.
            assert answered - len(done) - lost <= SLOTS
            lost = answered - len(done)
        seen = len(provider.seen)
        last = run(study(provider.url, pairs), folder)
        assert not {request.question for request in provider.seen[seen:]} & kept
        asked = Counter(request.question for request in provider.seen)
    assert last.complete
    assert last.lost_in_flight <= SLOTS
    questions = 2 * pairs
    assert len(asked) == questions
    repeated = len(provider.seen) - questions
    record_property("requests", len(provider.seen))
    record_property("repeated", repeated)
    assert repeated <= SLOTS * kills
    frame = table(study(provider.url, pairs), folder).frame
    assert frame.groupby("judge").size().to_dict() == {"claude": questions}


def test_the_expert_answers_the_same_after_a_kill(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A", delay=0.02)) as provider:
        child = _start(provider.url, tmp_path / "killed", 20, "expert")
        _wait(lambda: len(provider.seen) >= 10, child)
        child.kill()
        child.communicate()
        campaign = study(provider.url, 20, "expert")
        run(campaign, tmp_path / "killed")
        run(campaign, tmp_path / "whole")
    cut, whole = (
        table(campaign, tmp_path / name).of("expert")[["pair", "order", "verdict"]]
        for name in ("killed", "whole")
    )
    assert cut.equals(whole)


def test_an_interrupted_run_keeps_the_answers_in_flight(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with Provider(lambda n, body: Answer("A", delay=0.1)) as provider:
        child = _start(provider.url, folder, 100)
        _wait(lambda: len(provider.seen) >= 30, child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
        assert "interrupted=True complete=False" in out
        sent = len(provider.seen)
        assert sent < 200
        assert len(_on_disk(folder)) == sent
        assert run(study(provider.url, 100), folder).complete
        assert len(provider.seen) == 200


def test_a_second_process_is_refused_and_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    held = True
    with Provider(lambda n, body: Hangs(300.0) if held and n > 5 else Answer("A")) as provider:
        first = _start(provider.url, folder, 10)
        _wait(lambda: len(provider.seen) >= 5 + SLOTS, first)
        second = _start(provider.url, folder, 10)
        out, _ = second.communicate(timeout=240)
        assert second.returncode == 2
        assert "another process is running this campaign" in out
        assert len(provider.seen) == 5 + SLOTS
        first.kill()
        first.communicate()
        held = False
        assert run(study(provider.url, 10), folder).complete


def test_a_damaged_journal_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    folder.mkdir()
    (folder / "journal.sqlite").write_bytes(b"not a database at all, but text" * 100)
    with pytest.raises(InputError, match=r"journal cannot be used .*not a database"):
        run(study("http://127.0.0.1:9", 5), folder)
