"""A run as a guest in a host's event loop, which goes on meanwhile."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import stages
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.conftest import gpt

LAG = 0.05


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Full collections are the host's own: they take as long as it has objects."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(before[0], before[1], 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _asked(path: str) -> float:
    """Plan and ask; return the most that the loop's thread worked between two ticks, in seconds.

    It is processor time: how long others had the core says nothing of the run.
    """
    most = 0.0

    async def tick() -> None:
        nonlocal most
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            most, before = max(most, now - before), now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    result = await asyncio.to_thread(stages.plan, path)
    result = await stages.ask(result, progress=Silent())
    ticker.cancel()
    assert not result.problems
    return most


def test_the_event_loop_of_a_host_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    common_seconds: Callable[[Callable[[], float], float], float],
) -> None:
    """From planning to the table of answers, with a page of 256 questions worded on the way."""

    def lag() -> float:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        monkeypatch.chdir(folder)
        return _lag()

    assert common_seconds(lag, LAG) < LAG


def _lag() -> float:
    """The lag of a run in the working folder."""
    with Provider(lambda n, body: Answer("A")) as provider:
        study = {
            "name": "c", "space": "penguins", "design": {"pairs": 400},
            "judges": [gpt(provider.url, concurrency=50)],
        }  # fmt: skip
        Path("c.yaml").write_text(yaml.safe_dump(study))
        with _seldom_collected():
            lag = asyncio.run(_asked("c.yaml"))
        assert len(provider.seen) == 800
    return lag
