"""Calls that are cancelled or made side by side in one process leave no work behind."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import llm_elicit as le
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import campaign_run


def _campaign(folder: Path, name: str = "small") -> Campaign:
    return Campaign.model_validate({
        "name": name, "space": "penguins", "design": {"pairs": 6}, "runs": str(folder),
        "judges": [{"name": "expert", "backend": "simulated"}],
        "fit": {"method": "utility", "samples": 200},
    })  # fmt: skip


@pytest.fixture(autouse=True)
def _quick_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages after asking take a tenth of a second and report their progress."""

    def stage(run: Any, name: str, progress: Any, *, force: bool) -> None:
        assert threading.current_thread().name not in at_work.setdefault(run.folder, [])
        at_work[run.folder].append(threading.current_thread().name)
        try:
            assert len(at_work[run.folder]) == 1, "two calls at once in one folder"
            for _ in range(10):
                progress.stage("fit", "step", 0, 1)
                threading.Event().wait(0.01)
        finally:
            at_work[run.folder].clear()

    at_work: dict[Path, list[str]] = {}
    monkeypatch.setattr(campaign_run, "AFTER_ASKING", ("fit",))
    monkeypatch.setattr(campaign_run, "make", stage)


@pytest.mark.parametrize("after", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_call_can_be_made_again_at_once(
    after: float, times: int, tmp_path: Path
) -> None:
    async def main() -> None:
        first = asyncio.create_task(le.arun(_campaign(tmp_path), progress=Silent()))
        await asyncio.sleep(after)
        for _ in range(times):
            first.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(first, return_exceptions=True)
        run = await le.arun(_campaign(tmp_path), progress=Silent())
        assert run.judgments == {"expert": 12}

    asyncio.run(main())
    assert not [path for path in tmp_path.rglob(".*.*") if path.suffix not in (".lock", ".at-work")]


def test_a_group_whose_other_task_fails(tmp_path: Path) -> None:
    async def fails() -> None:
        raise ValueError("the other one")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(le.arun(_campaign(tmp_path), progress=Silent()))
            group.create_task(fails())

    async def main() -> None:
        with pytest.raises(ExceptionGroup, match="unhandled"):
            await both()
        assert (await le.arun(_campaign(tmp_path), progress=Silent())).judgments == {"expert": 12}

    asyncio.run(main())


def test_calls_side_by_side(tmp_path: Path) -> None:
    """Of one campaign they run in turn, in threads and in one event loop; others at once."""
    names = ["one", "one", "two", "three"]

    def run(name: str) -> dict[str, int]:
        return le.run(_campaign(tmp_path, name), progress=Silent()).judgments

    with ThreadPoolExecutor(len(names)) as threads:
        assert list(threads.map(run, names)) == [{"expert": 12}] * 4

    async def main() -> None:
        again = (le.arun(_campaign(tmp_path, name), progress=Silent()) for name in names)
        assert [run.judgments for run in await asyncio.gather(*again)] == [{"expert": 12}] * 4

    asyncio.run(main())
