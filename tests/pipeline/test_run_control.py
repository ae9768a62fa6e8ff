"""A run is paused, resumed, retuned and cancelled by another process, through its journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CancelledRunError, CapError
from llm_elicit.orchestrator.journal.connection import JournalLocation, RunInUseError
from llm_elicit.orchestrator.journal.control import (
    read_control,
    request,
    take_over,
    visible_state,
    write_control,
)
from llm_elicit.orchestrator.judgments import status
from llm_elicit.pipeline import run_control
from llm_elicit.pipeline.ask import ask
from llm_elicit.pipeline.run_control import RunControl
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.stages import plan
from llm_elicit.testing.provider import Answer, Provider
from pipeline.conftest import LATENCY

QUESTIONS = 120
AT_ONCE = 4
SOON = AT_ONCE * 0.75 / LATENCY
"""Requests in three quarters of a second: a clock would count a stall of the machine, too."""


def _planned(url: str, folder: Path, **settings: object) -> Run:
    judge = {
        "name": "gpt", "backend": "openai", "model": "gpt-4o-mini", "base_url": f"{url}/v1",
        "concurrency": AT_ONCE, **settings,
    }  # fmt: skip
    return plan(
        Campaign.model_validate(
            {
                "name": "controlled",
                "space": "penguins",
                "design": {"pairs": QUESTIONS // 2},
                "judges": [judge],
                "runs": str(folder),
            }
        )
    )


async def _until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not happen"
        await asyncio.sleep(0.02)


def _answered(provider: Provider) -> int:
    return sum(seen.answered for seen in provider.seen)


def _state(location: JournalLocation) -> str:
    found = read_control(location)
    return "none" if found is None else found.state


def test_a_paused_run_has_nothing_in_flight_and_goes_on_without_asking_again(
    slow: Provider, tmp_path: Path
) -> None:
    run = _planned(slow.url, tmp_path)

    async def go() -> Run:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        before = len(slow.seen)
        request(run.location, "paused")
        await _until(lambda: _state(run.location) == "paused")
        seen = len(slow.seen)
        assert seen - before < SOON
        assert status(run.folder, run.campaign)["gpt"].in_flight == 0
        await asyncio.sleep(0.6)
        assert len(slow.seen) == seen < QUESTIONS
        request(run.location, "running")
        return await asking

    done = asyncio.run(go())
    assert done.judgments == {"gpt": QUESTIONS}
    assert len(slow.seen) == QUESTIONS
    assert _state(run.location) == "done"


def test_a_cancelled_run_keeps_its_answers_and_can_be_run_again(
    slow: Provider, tmp_path: Path
) -> None:
    run = _planned(slow.url, tmp_path)

    async def go() -> None:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        request(run.location, "cancelled")
        await asking

    with pytest.raises(CancelledRunError, match="run again to continue"):
        asyncio.run(go())
    assert _state(run.location) == "cancelled"
    kept = run.judgments["gpt"]
    assert kept == len(slow.seen) < QUESTIONS
    assert asyncio.run(ask(run)).judgments == {"gpt": QUESTIONS}
    assert len(slow.seen) == QUESTIONS


def test_concurrency_changes_while_the_run_asks(slow: Provider, tmp_path: Path) -> None:
    run = _planned(slow.url, tmp_path)
    in_flight: list[int] = []  # as each request arrives

    def behave(_n: int, _body: object) -> Answer:
        in_flight.append(sum(not seen.answered for seen in slow.seen))
        return Answer("A", delay=LATENCY)

    slow.behave = behave

    async def go() -> Run:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        await _until(lambda: max(in_flight) == AT_ONCE)
        before = len(in_flight)
        request(run.location, concurrency=1)
        await _until(lambda: in_flight[-3:] == [1, 1, 1])
        since = len(in_flight)
        assert since - before < SOON
        await _until(lambda: len(in_flight) >= since + 5)
        assert set(in_flight[since:]) == {1}
        request(run.location, concurrency=8)
        return await asking

    assert asyncio.run(go()).judgments == {"gpt": QUESTIONS}
    assert len(slow.seen) == QUESTIONS
    assert max(in_flight) == 8


def test_a_cap_that_is_lowered_while_the_run_asks_is_held(slow: Provider, tmp_path: Path) -> None:
    run = _planned(slow.url, tmp_path, price={"input": 1000.0, "output": 1000.0})

    async def go() -> None:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        request(run.location, max_cost=status(run.folder, run.campaign)["gpt"].cost)
        await asking

    with pytest.raises(CapError, match=r"limits\.max_cost"):
        asyncio.run(go())
    assert _state(run.location) == "failed"
    assert len(slow.seen) < QUESTIONS


def test_a_second_start_leaves_the_run_at_work_as_it_is(slow: Provider, tmp_path: Path) -> None:
    """Also while it is paused, when nothing is asked."""
    run = _planned(slow.url, tmp_path)

    async def go() -> Run:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        request(run.location, "paused", concurrency=3)
        await _until(lambda: _state(run.location) == "paused")
        before = read_control(run.location)
        with pytest.raises(RunInUseError, match="another process is running"):
            await ask(run)
        assert read_control(run.location) == before
        request(run.location, "running")
        return await asking

    assert asyncio.run(go()).judgments == {"gpt": QUESTIONS}
    assert _state(run.location) == "done"


def test_a_run_that_was_taken_over_is_left_to_the_other_process(
    slow: Provider, tmp_path: Path
) -> None:
    """As when this process was suspended for so long that it counted as dead."""
    run = _planned(slow.url, tmp_path, concurrency=1)  # it outlasts several signs of life

    async def go() -> None:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        write_control(run.location, owner="service", alive=0.0)
        assert take_over(run.location)
        with pytest.raises(RunInUseError, match="another process took over the run"):
            await asking

    asyncio.run(go())
    found = read_control(run.location)
    assert found is not None
    assert (found.state, found.takeovers) == ("running", 1)
    assert status(run.folder, run.campaign)["gpt"].in_flight == 0


def test_a_stopped_run_is_interrupted_at_once(slow: Provider, tmp_path: Path) -> None:
    run = _planned(slow.url, tmp_path)

    async def go() -> None:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(go())
    found = read_control(run.location)
    assert found is not None
    assert visible_state(found) == "interrupted"
    assert (found.state, found.wanted) == ("running", "running")


def test_no_sign_of_life_comes_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would bring the journal of a deleted run back."""
    running: list[str] = []

    def slowly(location: JournalLocation, takeovers: int) -> None:
        running.append("began")
        time.sleep(0.5)
        running.append("ended")

    monkeypatch.setattr(run_control, "record_heartbeat", slowly)

    async def go() -> None:
        async with RunControl(JournalLocation(tmp_path)):
            while not running:
                await asyncio.sleep(0.01)
        assert running == ["began", "ended"]

    asyncio.run(go())
