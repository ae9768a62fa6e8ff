"""A run is paused, resumed, retuned and cancelled by another process, through its journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CancelledRunError, CapError
from llm_elicit.orchestrator import JournalLocation, read_control, request, status
from llm_elicit.pipeline.ask import ask
from llm_elicit.pipeline.plan import plan
from llm_elicit.pipeline.run_control import POLL
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.testing.provider import Provider
from pipeline.conftest import LATENCY

QUESTIONS = 120


def _planned(url: str, folder: Path, **settings: object) -> Run:
    judge = {
        "name": "gpt", "backend": "openai", "model": "gpt-4o-mini", "base_url": f"{url}/v1",
        "concurrency": 4, **settings,
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


async def _until(true: Callable[[], bool], seconds: float = 10.0) -> float:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, "it did not happen"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


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
        request(run.location, "paused")
        took = await _until(lambda: _state(run.location) == "paused")
        assert took < LATENCY + 1.0
        seen = len(slow.seen)
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

    with pytest.raises(CancelledRunError, match="run again to go on"):
        asyncio.run(go())
    assert _state(run.location) == "cancelled"
    kept = run.judgments["gpt"]
    assert kept == len(slow.seen) < QUESTIONS
    assert asyncio.run(ask(run)).judgments == {"gpt": QUESTIONS}
    assert len(slow.seen) == QUESTIONS


def test_concurrency_changes_while_the_run_asks(slow: Provider, tmp_path: Path) -> None:
    run = _planned(slow.url, tmp_path)

    async def most_in_flight(seconds: float) -> int:
        most, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            most = max(most, sum(not seen.answered for seen in slow.seen))
            await asyncio.sleep(0.005)
        return most

    async def go() -> Run:
        asking = asyncio.create_task(ask(run))
        await _until(lambda: _answered(slow) > 10)
        assert await most_in_flight(0.2) > 1
        request(run.location, concurrency=1)
        await asyncio.sleep(POLL + 4 * LATENCY + 0.3)
        assert await most_in_flight(0.3) == 1
        request(run.location, concurrency=8)
        return await asking

    assert asyncio.run(go()).judgments == {"gpt": QUESTIONS}
    assert len(slow.seen) == QUESTIONS


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
