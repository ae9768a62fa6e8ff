"""The bars of the orchestrator: each is run, measured and compared with what it must reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from llm_elicit.benchmarks.asking.client import Cost, Job
from llm_elicit.benchmarks.asking.loopback import Loopback
from llm_elicit.benchmarks.tables import Table

LATENCY = 0.05
SLOTS = 100
LOOPS = ("sdk", "sdk-aiohttp")


@dataclass(frozen=True)
class Size:
    """How much is asked: the full form takes minutes, the short one seconds.

    Attributes:
        questions: of the speed, the cached and the killed campaign.
        many: of the campaign whose memory is watched.
    """

    questions: int = 3_000
    many: int = 200_000


FULL = Size()
SHORT = Size(questions=400, many=2_000)


@dataclass(frozen=True)
class Bar:
    """One measurement beside what it must reach."""

    name: str
    measured: str
    wanted: str
    reached: bool | None


def run_bars(size: Size, note: Callable[[str], None]) -> Table:
    """Run every bar.

    Args:
        size: how much is asked.
        note: told of each bar as it begins.
    """
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        for bar in (_speed, _killed, _memory):
            note(bar.__name__.strip("_"))
            bars += bar(size, Path(folder) / bar.__name__)
    words = {True: "yes", False: "no", None: ""}
    rows = tuple((bar.name, bar.measured, bar.wanted, words[bar.reached]) for bar in bars)
    title = f"{size.questions:,} questions, {SLOTS} slots, answers after {LATENCY * 1000:.0f} ms"
    return Table(title, ("bar", "measured", "must be", "reached"), rows)


def run_client(job: Job) -> Cost:
    """Measure a client in a process of its own, on one core where that can be asked for."""
    with _client(job) as process:
        out, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the client {job.kind!r} failed")
    return Cost(**json.loads(out))


def _client(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llm_elicit.benchmarks.asking.client"]
    process = subprocess.Popen(
        [*command, json.dumps(asdict(job))], stdout=subprocess.PIPE, text=True
    )
    if hasattr(os, "sched_setaffinity"):
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {core})
    return process


def _speed(size: Size, folder: Path) -> list[Bar]:
    """Questions a second beside the bare SDK, then the same again from the cache."""
    bars, rates = [], []
    with Loopback(LATENCY) as server:
        for kind in LOOPS:
            if kind == "sdk-aiohttp" and not _has_aiohttp():
                bars.append(Bar("bare SDK, aiohttp", "not installed", "", None))
                continue
            cost = run_client(Job(kind, server.url, size.questions, SLOTS))
            rates.append(cost.answered / cost.seconds)
            bars.append(Bar(f"bare loop, {kind}", _rate(cost), "", None))
        folder.mkdir()
        cost = run_client(Job("campaign", server.url, size.questions, SLOTS, str(folder / "a")))
        rate, share = cost.answered / cost.seconds, 0.9 * max(rates)
        each = 1000 * cost.cpu / cost.answered
        bars += [
            Bar("campaign, questions a second", _rate(cost), f"{share:.0f}", rate >= share),
            Bar("processor time a question, ms", f"{each:.2f}", "< 1.5", each < 1.5),
            Bar("memory, MiB", f"{cost.mebibytes:.0f}", "< 150", cost.mebibytes < 150),
        ]
        before = server.seen()
        cost = run_client(Job("campaign", server.url, size.questions, SLOTS, str(folder / "b")))
        sent = server.seen()[0] - before[0]
        bars += [
            Bar("all cached, s", f"{cost.seconds:.2f}", "<= 1", cost.seconds <= 1.0),
            Bar("all cached, requests", str(sent), "0", sent == 0),
        ]
    return bars


def _rate(cost: Cost) -> str:
    return f"{cost.answered / cost.seconds:.0f} in {cost.seconds:.1f} s"


def _has_aiohttp() -> bool:
    return all(find_spec(name) is not None for name in ("aiohttp", "httpx_aiohttp"))


def _killed(size: Size, folder: Path) -> list[Bar]:
    """SIGKILL at about half, then resumed: what is asked again was in flight."""
    folder.mkdir()
    with Loopback(LATENCY) as server:
        job = Job("campaign", server.url, size.questions, SLOTS, str(folder / "run"))
        with _client(job) as process:
            while server.seen()[0] < size.questions // 2 and process.poll() is None:
                time.sleep(0.01)
            process.kill()
        cost = run_client(job)
        requests, different = server.seen()
    again = requests - different
    return [
        Bar("killed at half, asked again", str(again), f"<= {SLOTS}", again <= SLOTS),
        Bar(
            "killed at half, answered", f"{cost.answered:,}", f"{size.questions:,}",
            cost.answered == different == size.questions,
        ),
    ]  # fmt: skip


def _memory(size: Size, folder: Path) -> list[Bar]:
    """Memory from a tenth of many answers to the last of them."""
    folder.mkdir()
    with Loopback(0.0) as server:
        cost = run_client(Job("campaign", server.url, size.many, SLOTS, str(folder / "run")))
    name = f"memory from {size.many // 10:,} to {size.many:,} answers, MiB"
    return [Bar(name, f"{cost.growth:+.0f}", "< 50", cost.growth < 50.0)]
