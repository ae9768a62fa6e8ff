"""Runs as objects: side by side, watched, paused, cancelled, killed and taken up again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes.spaces import write_two_features
from fakes.warm import WarmPopen

import llm_elicit as le
from llm_elicit._util.settings import to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CancelledRunError, CapError, InputError
from llm_elicit.orchestrator.journal.connection import AT_WORK, RunInUseError, RunLock
from llm_elicit.orchestrator.journal.control import RunEvent, read_control
from llm_elicit.orchestrator.judgments import status
from llm_elicit.pipeline import campaign_run, stage_process
from llm_elicit.pipeline.ask import ask
from llm_elicit.pipeline.campaign_run import CampaignRun
from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.pipeline.snapshot import stored_snapshot
from llm_elicit.pipeline.stages import plan, plan_grid
from llm_elicit.testing.provider import Answer, Error, Provider
from pipeline.conftest import LATENCY

PRICE = {"input": 1000.0, "output": 1000.0}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")


def _campaign(url: str, folder: Path, name: str = "one", pairs: int = 40, **judge: Any) -> Campaign:
    asked = {
        "name": "gpt", "backend": "openai", "model": "gpt-4o-mini", "base_url": f"{url}/v1",
        "concurrency": 4, **judge,
    }  # fmt: skip
    return Campaign.model_validate(
        {
            "name": name,
            "space": str(write_two_features(folder)),
            "design": {"pairs": pairs},
            "judges": [asked],
            "seed": len(name),
            "runs": str(folder),
        }
    )


def _simulated(folder: Path) -> Campaign:
    return Campaign.model_validate(
        {
            "name": "small",
            "space": str(write_two_features(folder)),
            "design": {"pairs": 8},
            "runs": str(folder),
            "judges": [{"name": "expert", "backend": "simulated"}],
            "fit": {"method": "utility", "samples": 100},
        }
    )


def _starved() -> float:
    """Seconds so far that this thread was ready to run and others had the cores; by Linux."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0  # another system


def _spent() -> float:
    """Seconds of the processor of this process and of those that it has waited for."""
    times = psutil.Process().cpu_times()
    return times.user + times.system + times.children_user + times.children_system


async def _answers(job: CampaignRun, number: int, seconds: float = 60.0) -> None:
    began = time.monotonic()
    while sum(judge.done for judge in job.snapshot().judges.values()) < number:
        assert time.monotonic() - began < seconds, job.snapshot()
        await asyncio.sleep(0.02)


async def _fit() -> psutil.Process:
    """The process that this one has started to fit."""
    async with asyncio.timeout(60.0):
        while True:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if child.name() == stage_process.__name__.rpartition(".")[2]:
                        return child
            await asyncio.sleep(0.02)


def test_a_run_goes_from_its_campaign_to_its_report_and_tells_what_happens(tmp_path: Path) -> None:
    campaign = _simulated(tmp_path)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    collector, level = gc.isenabled(), logging.getLogger().level

    gaps, busy = [], []

    async def go() -> tuple[le.Run, list[RunEvent]]:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(campaign)
            while job.state != "done":
                began, worked = time.perf_counter(), time.process_time()
                await asyncio.sleep(0.002)
                gaps.append(time.perf_counter() - began - 0.002)
                busy.append(time.process_time() - worked)
            run = await job.wait()
            assert job.snapshot().report
            return run, [event async for event in job.events()]

    waited, began = _starved(), _spent()
    run, events = asyncio.run(go())
    spent = _spent() - began
    # The event loop was free while the run asked, fitted and wrote, but for collections of garbage:
    # no turn of it takes much of the processor time of the run, whose stages are other processes.
    # Of the gaps themselves less their waits, a dozen may be stalls of the machine.
    assert sorted(busy)[-4] < 0.01 * spent
    assert max(busy) < 0.1 * spent
    assert sorted(gaps)[-12] < 0.05 + _starved() - waited
    assert run.report_path.is_file()
    assert run.beliefs["expert"].sample(10, seed=1).shape == (10, run.space.dimension)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    kinds = [event.kind for event in events]
    order = ["planned", "answered", "fitted", "audited", "reported"]
    assert [kind for kind in kinds if kind in order[2:]] == order[2:]
    counts = [event.data["count"] for event in events if event.kind == "answered"]
    assert sum(counts) == status(run.folder, run.campaign)["expert"].done
    states = [event.data["state"] for event in events if event.kind == "state"]
    assert states[-1] == "done"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert (gc.isenabled(), logging.getLogger().level) == (collector, level)


def test_a_run_is_paused_and_resumed_and_repeats_nothing(slow: Provider, tmp_path: Path) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path))
            await _answers(job, 10)
            before = len(slow.seen)
            await job.pause()
            assert job.state == "paused"
            assert status(job.folder, job.run.campaign)["gpt"].in_flight == 0
            seen = len(slow.seen)
            # Those of half a second: a clock would count a stall of the machine, too.
            assert seen - before < 4 * 0.5 / LATENCY
            await asyncio.sleep(0.3)
            assert len(slow.seen) == seen < 80
            await job.resume()
            await _answers(job, 80)
            await job.cancel()
            assert len(slow.seen) == 80

    asyncio.run(go())


@pytest.mark.parametrize("drain", [True, False])
def test_a_cancelled_run_keeps_its_answers_and_can_be_resumed(
    slow: Provider, tmp_path: Path, drain: bool
) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path))
            await _answers(job, 10)
            await job.cancel(drain=drain)
            assert job.state == "cancelled"
            if drain:
                with pytest.raises(CancelledRunError):
                    await job.wait()
            kept = status(job.folder, job.run.campaign)["gpt"].done
            assert 10 <= kept < 80
            await job.resume()
            await _answers(job, 80)
            await job.cancel()

    asyncio.run(go())


def test_who_pauses_a_run_does_not_wait_once_it_goes_on(tmp_path: Path) -> None:
    with Provider(lambda _n, _body: Answer("A", delay=120.0)) as provider:

        async def go() -> None:
            async with Runtime(tmp_path) as runtime:
                job = runtime.start(_campaign(provider.url, tmp_path))
                while not provider.seen:
                    await asyncio.sleep(0.02)
                pausing = asyncio.create_task(job.pause())
                while job.state != "pausing":
                    await asyncio.sleep(0.02)
                await job.resume()
                await asyncio.wait_for(pausing, 60.0)
                assert job.state == "running"
                await job.cancel(drain=False)

        asyncio.run(go())


def test_a_paused_run_is_cancelled_at_once_and_can_be_resumed(
    slow: Provider, tmp_path: Path
) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path), paused=True)
            await job.pause()
            watching = asyncio.create_task(_numbers(job, 0))
            await job.cancel(drain=False)
            assert job.state == "cancelled"
            assert await asyncio.wait_for(watching, 60.0)
            await job.resume()  # the lock of its folder is free
            await _answers(job, 80)
            await job.cancel()

    asyncio.run(go())


def test_a_run_that_reached_its_cap_goes_on_with_a_higher_one(
    slow: Provider, tmp_path: Path
) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path, price=PRICE), max_cost=3.0)
            with pytest.raises(CapError):
                await job.wait()
            assert job.state == "failed"
            assert "max_cost" in job.snapshot().problems[0]
            done = job.snapshot().judges["gpt"].done
            await job.retune(max_cost=1000.0)
            await job.resume()
            await _answers(job, done + 5)
            await job.cancel()

    asyncio.run(go())


def test_all_runs_of_a_runtime_stay_within_its_cap(slow: Provider, tmp_path: Path) -> None:
    async def go() -> float:
        async with Runtime(tmp_path, max_cost=4.0) as runtime:
            campaigns = [_campaign(slow.url, tmp_path, name, price=PRICE) for name in ("a", "b")]
            jobs = [runtime.start(campaign) for campaign in campaigns]
            for job in jobs:
                with pytest.raises(CapError):
                    await job.wait()
            return sum(job.snapshot().cost or 0.0 for job in jobs)

    spent = asyncio.run(go())
    assert 1.0 < spent <= 4.0

    async def again() -> None:
        async with Runtime(tmp_path, max_cost=4.0) as runtime:
            await runtime.start(_campaign(slow.url, tmp_path, "c", price=PRICE)).wait()

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "campaign.yaml").write_text("name: [")
    # What earlier runs spent counts, as far as it is known.
    with pytest.raises(CapError, match=r"is spent \(not counted, since unreadable: broken\) and"):
        asyncio.run(again())


def test_the_folder_of_a_capped_runtime_may_hold_a_grid(tmp_path: Path) -> None:
    grid = Campaign.load("grid").model_copy(update={"runs": tmp_path})
    plan_grid(grid)

    async def go() -> None:
        async with Runtime(tmp_path, max_cost=1.0) as runtime:
            assert not runtime.runs

    asyncio.run(go())


def test_two_campaigns_share_a_limit_fairly(tmp_path: Path) -> None:
    a_second, number, times = 20, 80, list[float]()

    def behave(_n: int, _body: object) -> Answer:
        times.append(time.monotonic())
        return Answer("A", delay=0.02)

    with Provider(behave) as provider:

        async def go() -> list[int]:
            async with Runtime(tmp_path) as runtime:
                limit = {"requests_per_minute": 60.0 * a_second}
                many = _campaign(provider.url, tmp_path, "many", 200, concurrency=64, **limit)
                few = _campaign(provider.url, tmp_path, "few", 200, concurrency=3, **limit)
                jobs = [runtime.start(many), runtime.start(few)]
                for job in jobs:
                    await _answers(job, 1)
                del times[:]
                counts = [job.snapshot().judges["gpt"].done for job in jobs]
                while len(times) < number:
                    await asyncio.sleep(0.02)
                return [
                    job.snapshot().judges["gpt"].done - count
                    for job, count in zip(jobs, counts, strict=True)
                ]

        done = asyncio.run(go())
    assert number - 1 <= a_second * (times[number - 1] - times[0]) * 1.1 + 4
    # Of the best second: a stall of the machine spoils those with a part of it only.
    seconds = zip(times, times[a_second:], strict=False)
    assert min(after - before for before, after in seconds) <= 1.0 / 0.7
    assert min(done) >= 0.7 * max(done)


def test_a_runtime_shares_its_limits_with_other_event_loops(tmp_path: Path) -> None:
    """A run of the runtime and one in a thread make ten requests a second together."""
    with Provider(lambda _n, _body: Answer("A")) as provider:
        limit = {"requests_per_minute": 600.0}
        here, there = (
            _campaign(provider.url, tmp_path, name, 8, **limit) for name in ("here", "there")
        )

        async def go() -> float:
            async with Runtime(tmp_path) as runtime:
                began = time.monotonic()
                job = runtime.start(here)
                await asyncio.to_thread(
                    lambda: asyncio.run(ask(plan(there), limiters=runtime.limiters))
                )
                await _answers(job, 16)
                took = time.monotonic() - began
                await job.cancel()
                return took

        assert asyncio.run(go()) >= 2.7
        assert len(provider.seen) == 32


@pytest.mark.usefixtures("quick_fits")
def test_a_runtime_can_be_entered_again_in_another_event_loop(tmp_path: Path) -> None:
    """In both, one run waits for its turn to fit until the other gives it up."""
    runtime = Runtime(tmp_path)

    async def go() -> list[str]:
        async with runtime:
            assert not runtime.runs
            first, second = (
                _simulated(tmp_path).model_copy(update={"name": name}) for name in ("a", "b")
            )
            fits = runtime.start(first)
            (await _fit()).suspend()  # or it might be over before the other one waits
            waits = runtime.start(second)
            async with asyncio.timeout(60.0):
                while waits.stage != "ask":
                    await asyncio.sleep(0.02)
            await _answers(waits, 16)
            await asyncio.sleep(0.1)
            assert runtime._sharing.fits.locked()
            assert waits.stage == "ask"
            await fits.cancel()
            await waits.wait()
            return [fits.state, waits.state]

    assert asyncio.run(go()) == asyncio.run(go()) == ["cancelled", "done"]


def test_a_late_watcher_sees_every_event_once(slow: Provider, tmp_path: Path) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path))
            watchers = [asyncio.create_task(_numbers(job, 0))]
            await _answers(job, 30)
            watchers.append(asyncio.create_task(_numbers(job, 0)))
            watchers.append(asyncio.create_task(_numbers(job, 3)))
            await _answers(job, 80)
            await job.cancel()
            early, late, later = await asyncio.gather(*watchers)
            assert early == late == list(range(1, len(early) + 1))
            assert later == early[3:]

    asyncio.run(go())


async def _numbers(job: CampaignRun, since: int) -> list[int]:
    return [event.seq async for event in job.events(since)]


def test_bad_requests_are_one_clear_line(slow: Provider, tmp_path: Path) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path), paused=True)
            with pytest.raises(InputError, match="already has a run of this name"):
                runtime.start(_campaign(slow.url, tmp_path))
            with pytest.raises(InputError, match="concurrency = 0"):
                await job.retune(concurrency=0)
            with pytest.raises(InputError, match="no price is known"):
                await job.retune(max_cost=1.0)  # the run could not hold it, and would end
            with pytest.raises(InputError, match="max_cost = -1"):
                await job.retune(max_cost=-1.0)
            with pytest.raises(InputError, match="has no run of this name; start it first"):
                await runtime.delete("other")
            await runtime.delete("one")
            assert not job.folder.exists()
            with pytest.raises(InputError, match="fits = 0"):
                Runtime(tmp_path, fits=0)

    asyncio.run(go())
    assert not slow.seen


def test_a_run_that_another_process_works_on_can_be_started_later(tmp_path: Path) -> None:
    campaign = _simulated(tmp_path)

    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            with RunLock(tmp_path / "small", name=AT_WORK):
                job = runtime.start(campaign)
                with pytest.raises(RunInUseError, match="another process is running"):
                    await job.wait()
            assert job.state == "failed"
            assert not runtime.runs  # the other process has it
            job = runtime.start(campaign, paused=True)
            await job.pause()
            assert job.state == "paused"
            await job.cancel()

    asyncio.run(go())


def test_a_run_that_waits_for_its_turn_to_fit_can_be_cancelled(tmp_path: Path) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime, runtime._sharing.fits:
            job = runtime.start(_simulated(tmp_path))
            await _answers(job, 16)
            await asyncio.sleep(0.5)
            async with asyncio.timeout(60.0):
                await job.cancel()
            assert job.state == "cancelled"

    asyncio.run(go())


def test_a_run_is_deleted_once_and_is_not_resumed_meanwhile(slow: Provider, tmp_path: Path) -> None:
    async def go() -> None:
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(slow.url, tmp_path))
            await _answers(job, 10)
            deleting = [asyncio.create_task(runtime.delete("one")) for _ in range(2)]
            await asyncio.sleep(0)
            for act in (job.resume, job.pause, lambda: job.retune(concurrency=2)):
                with pytest.raises(InputError, match="being deleted"):
                    await act()
            await asyncio.gather(*deleting)
            assert not runtime.runs
            assert not job.folder.exists()

    asyncio.run(go())


CHILD = """
import asyncio, sys
from pathlib import Path
from llm_elicit.config.campaign import Campaign
from llm_elicit.pipeline.runtime import Runtime

async def go(folder, *campaigns):
    async with Runtime(Path(folder)) as runtime:
        running, waiting = (Campaign.load(path) for path in campaigns)
        runtime.start(waiting, owner="service", paused=True)
        runtime.start(running, owner="service")
        await asyncio.sleep(600)

asyncio.run(go(*sys.argv[1:]))
"""


def test_a_killed_service_comes_back_paused_or_running_as_it_was(
    slow: Provider, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    paths = []
    for name in ("running", "waiting"):
        paths.append(tmp_path / f"{name}.yaml")
        data = _campaign(slow.url, runs, name).model_dump(mode="json", exclude_unset=True)
        paths[-1].write_text(to_yaml(data))
    with WarmPopen([sys.executable, "-c", CHILD, str(runs), *map(str, paths)]) as child:
        deadline = time.monotonic() + 200
        while sum(seen.answered for seen in slow.seen) < 15:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.kill()

    async def go() -> None:
        async with Runtime(runs) as runtime:
            jobs = {job.name: job for job in await runtime.recover()}
            assert set(jobs) == {"running", "waiting"}
            await _answers(jobs["running"], 80)
            assert jobs["waiting"].state == "paused"
            assert jobs["waiting"].snapshot().judges["gpt"].done == 0
            await jobs["running"].cancel()

    asyncio.run(go())
    in_flight = 4
    assert 80 <= len(slow.seen) <= 80 + in_flight
    control = read_control(le.Run.open(runs / "waiting").location)
    assert control is not None
    assert control.wanted == "paused"


def test_counts_go_on_over_pauses_ends_and_processes(tmp_path: Path) -> None:
    """Requests and failures are those of the journal, not of the process or of a round."""

    def behave(number: int, body: dict[str, Any]) -> Answer | Error:
        del body
        if number in (1, 4):
            return Error(500 if number == 1 else 429, headers=(("retry-after", "0.1"),))
        return Answer("A", delay=LATENCY)

    async def go(url: str) -> None:
        campaign = _campaign(url, tmp_path, pairs=60, concurrency=1)
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(campaign)
            await _answers(job, 4)
            await job.pause()
            paused = job.snapshot().judges["gpt"]
            assert paused.requests == paused.done + 2
            assert (paused.errors, paused.throttled) == (2, 1)
            await job.resume()
            await _answers(job, paused.done + 2)
            again = job.snapshot().judges["gpt"]
            assert again.requests >= again.done + 2
            await job.cancel()
            ended = job.snapshot().judges["gpt"]
            assert ended == stored_snapshot(job.run).judges["gpt"].model_copy(
                update={"rate": ended.rate}
            )
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(campaign)
            await _answers(job, ended.done + 2)
            again = job.snapshot().judges["gpt"]
            assert again.requests >= again.done + 2
            assert (again.errors, again.throttled) == (2, 1)
            assert again.failures == ended.failures
            await job.cancel()
            kinds = [event.kind async for event in job.events()]
            assert (kinds.count("throttled"), kinds.count("failed")) == (1, 1)

    with Provider(behave) as provider:
        asyncio.run(go(provider.url))


def test_runs_wait_for_their_turn_in_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    """One that is paused is not at work; one that waits can be paused and cancelled."""

    async def states(jobs: list[CampaignRun], *wanted: str) -> None:
        async with asyncio.timeout(60.0):
            while [job.state for job in jobs] != list(wanted):
                await asyncio.sleep(0.02)

    async def go(url: str) -> None:
        async with Runtime(tmp_path, at_once=1) as runtime:
            waits = runtime.start(_campaign(url, tmp_path, "waits"), paused=True, owner="service")
            # A plan of many pairs takes longer, and keeps its place.
            jobs = [
                runtime.start(
                    _campaign(url, tmp_path, name, pairs=pairs, concurrency=1), owner="service"
                )
                for name, pairs in (("a", 4_000), ("bb", 40), ("ccc", 40), ("dddd", 40))
            ]
            a, b, c, d = jobs
            await states([waits, *jobs], "paused", "running", "planned", "planned", "planned")
            assert [job.snapshot().step for job in jobs[1:]] == [
                "1 campaign is ahead", "2 campaigns are ahead", "3 campaigns are ahead",
            ]  # fmt: skip
            assert sum(job.snapshot().judges["gpt"].requests for job in jobs[1:]) == 0
            await c.pause()
            await a.pause()
            await states(jobs, "paused", "running", "paused", "planned")
            await a.resume()  # at the end
            await b.cancel()
            await states(jobs, "planned", "cancelled", "paused", "running")
            await c.resume()
            await d.cancel()
            await states(jobs, "running", "cancelled", "planned", "cancelled")
            await c.cancel()
            await waits.resume()
            await states([waits], "planned")  # recorded, and so before the next
            await b.resume()
            assert (waits.snapshot().step, b.snapshot().step) == (
                "1 campaign is ahead", "2 campaigns are ahead",
            )  # fmt: skip
            assert b.state == "planned"
            await b._begun.wait()
        # Another process goes on where this one was: the one at work first, then the queue.
        async with Runtime(tmp_path, at_once=1) as runtime:
            again = await runtime.recover()
            assert [job.name for job in again] == ["a", "waits", "bb"]
            await states(again, "running", "planned", "planned")
            assert runtime.runs["bb"].snapshot().step == "2 campaigns are ahead"
            await runtime.runs["waits"].retune(concurrency=2)
        # Neither another limit nor the end of a process costs a run its place.
        async with Runtime(tmp_path, at_once=1) as runtime:
            again = await runtime.recover()
            assert [job.name for job in again] == ["a", "waits", "bb"]
            await asyncio.gather(*(job.cancel() for job in runtime.runs.values()))

    with Provider(lambda _n, _body: Answer("A", delay=LATENCY)) as provider:
        asyncio.run(go(provider.url))


def test_why_one_of_two_judges_was_stopped_is_known_after_the_process(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    dead = _campaign(url, tmp_path, pairs=8, attempts=1)
    both = dead.model_copy(update={"judges": (*dead.judges, *_simulated(tmp_path).judges)})

    async def go() -> None:
        async with Runtime(tmp_path) as runtime, runtime._sharing.fits:
            job = runtime.start(both)
            async with asyncio.timeout(120.0):
                while not job.snapshot().problems:
                    await asyncio.sleep(0.05)
            [why] = job.snapshot().problems
            assert "gpt" in why
            await job.cancel()
            assert job.snapshot().problems == stored_snapshot(job.run).problems == (why,)

    asyncio.run(go())


def test_what_is_set_aside_is_asked_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is done without some answers begins again only for them."""
    monkeypatch.setattr(campaign_run, "AFTER_ASKING", {})
    broken = ""

    def behave(number: int, body: dict[str, Any]) -> Error | Answer:
        nonlocal broken
        question = body["messages"][-1]["content"]
        broken = broken or question
        return Error(400, "this breaks the tokenizer") if question == broken else Answer("A")

    async def main(url: str) -> None:
        nonlocal broken
        async with Runtime(tmp_path) as runtime:
            job = runtime.start(_campaign(url, tmp_path, pairs=4))
            for state in ("1 given up", "1 set aside", "1 set aside"):
                assert state in str((await job.wait()).problems[0])
                with pytest.raises(InputError, match="nothing to resume"):
                    await job.resume()
                await job.resume(retry_failed=True)
            await job.wait()
            broken = "mended"
            job = runtime.start(_campaign(url, tmp_path, pairs=4), retry_failed=True)
            assert not (await job.wait()).problems

    with Provider(behave) as provider:
        asyncio.run(main(provider.url))
        assert len(provider.seen) == 8 + 4
