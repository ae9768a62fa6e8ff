"""Requirements of the orchestrator: each is measured and compared with its bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks.asking.client import Cost, Job
from benchmarks.provider_process import Faults, ProviderProcess, Rate
from benchmarks.tables import Table

LATENCY = 0.05
SLOTS = 100
LOOPS = ("sdk", "sdk-aiohttp")
FAULTS = Faults(limited=0.02, error=0.01, hang=0.005, reset=0.005, malformed=0.005)
HANGS = 10.0
"""Timeout of a request in the campaign with faults, in seconds."""
PER_MINUTE = 600.0

Provider = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class Size:
    """Numbers of questions: the full form takes minutes, the short one seconds.

    Attributes:
        questions: of every campaign except the following two.
        many: of a large campaign with a provider that answers at once.
        limited: of campaigns with a provider of unknown limit; 0 for none.
        rounds: alternating runs of the bare loops and a campaign, of which medians are reported.
        providers: the providers whose SDKs are measured.
    """

    questions: int = 3_000
    many: int = 200_000
    limited: int = 1_800
    rounds: int = 3
    providers: tuple[Provider, ...] = ("openai", "anthropic")


FULL = Size()
SHORT = Size(questions=200, many=300, limited=0, rounds=1, providers=("openai",))


@dataclass(frozen=True)
class Bar:
    """One measurement and its requirement."""

    name: str
    measured: str
    wanted: str
    reached: bool | None


def run_bars(size: Size, note: Callable[[str], None]) -> Table:
    """Measure everything.

    Args:
        size: numbers of questions.
        note: called with one line before each measurement.
    """
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        for provider in size.providers:
            note(f"speed, {provider}")
            bars += _speed(size, provider, Path(folder) / provider)
        for bar in (_killed, _faulty, _limited, _large):
            note(bar.__name__.strip("_"))
            bars += bar(size, Path(folder) / bar.__name__)
    words = {True: "yes", False: "no", None: ""}
    rows = tuple((bar.name, bar.measured, bar.wanted, words[bar.reached]) for bar in bars)
    title = f"{size.questions:,} questions, {SLOTS} slots, answers after {LATENCY * 1000:.0f} ms"
    return Table(title, ("bar", "measured", "must be", "reached"), rows)


def run_client(job: Job) -> Cost:
    """Measure a client in a separate process, on one core if possible."""
    with _client(job) as process:
        out, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"the client {job.kind!r} failed")
    return Cost(**json.loads(out))


def _client(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.asking.client"]
    process = subprocess.Popen(
        [*command, json.dumps(asdict(job))], stdout=subprocess.PIPE, text=True
    )
    if hasattr(os, "sched_setaffinity"):
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {core})
    return process


def _speed(size: Size, provider: Provider, folder: Path) -> list[Bar]:
    """Measure questions per second against the bare SDK, then from the cache."""
    costs: dict[str, list[Cost]] = {kind: [] for kind in (*LOOPS, "campaign")}
    with ProviderProcess(LATENCY) as server:
        # Alternating, so that other load on the machine affects all of them.
        for number in range(size.rounds):
            for kind, measured in costs.items():
                run = str(folder / str(number) / "run")
                job = Job(kind, server.url, size.questions, SLOTS, run, provider)
                measured.append(run_client(job))
        before = server.seen()
        again = Job(
            "campaign", server.url, size.questions, SLOTS, str(folder / "0" / "again"), provider
        )
        cached = run_client(again)
        sent = server.seen()[0] - before[0]
    bars = [Bar(f"{provider}, bare loop, {kind}", _rates(costs[kind]), "", None) for kind in LOOPS]
    return [*bars, *_campaign(provider, costs), *_cached(provider, cached, sent)]


def _campaign(provider: Provider, costs: dict[str, list[Cost]]) -> list[Bar]:
    """Return the measurements of the campaign against the faster bare loop."""
    ours = costs["campaign"]
    share = 0.9 * max(median(map(_rate, costs[kind])) for kind in LOOPS)
    each = median(_milliseconds(cost) for cost in ours)
    most = max(cost.mebibytes for cost in ours)
    return [
        Bar(
            f"{provider}, campaign, questions per second", _rates(ours), f">= {share:.0f}",
            median(map(_rate, ours)) >= share,
        ),
        Bar(
            f"{provider}, campaign, processor time per question, ms", f"{each:.2f}", "< 1.5",
            each < 1.5,
        ),
        Bar(f"{provider}, campaign, memory, MiB", f"{most:.0f}", "< 150", most < 150),
    ]  # fmt: skip


def _cached(provider: Provider, cost: Cost, sent: int) -> list[Bar]:
    seconds = f"{cost.seconds:.2f} ({cost.cpu:.2f} of processor time)"
    return [
        Bar(f"{provider}, all cached, s", seconds, "<= 1", cost.seconds <= 1.0),
        Bar(f"{provider}, all cached, requests", str(sent), "0", sent == 0),
    ]


def _rate(cost: Cost) -> float:
    return cost.answered / cost.seconds


def _milliseconds(cost: Cost) -> float:
    return 1000 * cost.cpu / cost.answered


def _rates(costs: list[Cost]) -> str:
    """Return questions per second and processor time of every round."""
    rates = ", ".join(f"{_rate(cost):.0f}" for cost in costs)
    each = ", ".join(f"{_milliseconds(cost):.2f}" for cost in costs)
    return f"{rates} ({each} ms)"


def _killed(size: Size, folder: Path) -> list[Bar]:
    """SIGKILL at about half, then resume: only requests in flight are asked again."""
    folder.mkdir()
    with ProviderProcess(LATENCY) as server:
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


def _faulty(size: Size, folder: Path) -> list[Bar]:
    """Measure a server with faults: no question is lost, and few are asked twice."""
    folder.mkdir()
    with ProviderProcess(LATENCY, FAULTS) as server:
        run = str(folder / "run")
        job = Job("campaign", server.url, size.questions, SLOTS, run, timeout=HANGS)
        cost = run_client(job)
        requests, wrong = server.seen()[0], server.gone_wrong()
    settled, share = cost.answered + cost.quarantined, (requests - wrong) / size.questions
    name = f"with {wrong} faults"
    return [
        Bar(
            f"{name}, answered + quarantined", f"{cost.answered:,} + {cost.quarantined}",
            f"{size.questions:,}", settled == size.questions,
        ),
        Bar(f"{name}, other requests per question", f"{share:.3f}", "< 1.1", share < 1.1),
    ]  # fmt: skip


def _limited(size: Size, folder: Path) -> list[Bar]:
    """Measure a limit of 600 per minute that the client does not know, with and without headers.

    It is a bucket: 600 at once, then ten per second.
    """
    bars: list[Bar] = []
    for dialect in ("openai", "none") if size.limited else ():
        rate = Rate(PER_MINUTE, dialect)
        with ProviderProcess(LATENCY, rate=rate) as server:
            run = str(folder / dialect / "run")
            cost = run_client(Job("campaign", server.url, size.limited, SLOTS, run))
            requests, refused = server.seen()[0], server.gone_wrong()
        used = cost.answered / (PER_MINUTE * (1.0 + cost.seconds / 60.0))
        name = f"{PER_MINUTE:.0f} a minute, {'with' if dialect == 'openai' else 'no'} headers"
        share = refused / requests
        bars += [
            Bar(f"{name}, used", f"{used:.1%}", ">= 90 %", used >= 0.9),
            Bar(f"{name}, refused", f"{share:.2%}", "< 1 %", share < 0.01),
        ]
    return bars


def _large(size: Size, folder: Path) -> list[Bar]:
    """Measure many questions: answered at once, then with none open, then from the cache."""
    folder.mkdir()
    with ProviderProcess(0.0) as server:
        run, again = (str(folder / name) for name in ("run", "again"))
        job = Job("campaign", server.url, size.many, SLOTS, run, export=True)
        cost, idle = run_client(job), run_client(job)
        cached = run_client(replace(job, folder=again, export=False))
    return large_bars(size.many, cost, idle, cached)


def large_bars(questions: int, cost: Cost, idle: Cost, cached: Cost) -> list[Bar]:
    """Return the requirements of a large campaign.

    Args:
        questions: their number.
        cost: of asking them.
        idle: of the same run again, without open questions.
        cached: of another run, from the cache.
    """
    each, drift = _milliseconds(cost), cost.tenths[-1] / cost.tenths[0] - 1.0
    rate, nothing = cached.answered / cached.cpu, idle.seconds + idle.exported
    most = 5.0 * max(questions / 200_000, 1.0)
    name = f"{questions:,} questions"
    return [
        Bar(f"{name}, processor time each, ms", f"{each:.2f}", "<= 1.0", each <= 1.0),
        Bar(f"{name}, last tenth of it to first", f"{drift:+.1%}", "<= +10 %", drift <= 0.1),
        Bar(f"{name}, first answer, s", f"{cost.first:.1f}", "<= 10", cost.first <= 10.0),
        Bar(
            f"{name}, memory with the export, MiB", f"{cost.mebibytes:.0f}", "<= 600",
            cost.mebibytes <= 600.0,
        ),
        Bar(
            f"{name}, memory from a tenth to the last, MiB", f"{cost.growth:+.0f}", "< 50",
            cost.growth < 50.0,
        ),
        Bar(f"{name}, counts read, s", f"{cost.status:.2f}", "<= 1", cost.status <= 1.0),
        Bar(
            f"{name}, none open and exported, s", f"{nothing:.1f}", f"<= {most:.0f}",
            nothing <= most,
        ),
        Bar(
            f"{name}, cached, a second of processor time", f"{rate:,.0f}", ">= 10,000",
            rate >= 10_000,
        ),
    ]  # fmt: skip
