"""The service with many runs, with many answers of one run, and with many open pages.

A page is opened as a browser does it: its HTML, its stream of events, and after events, as late as
the service asks for, the parts of the page that change. Whether the pages slow asking down is
measured against `llm-elicit ask`, in turns.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import numpy as np

from benchmarks.asking.bars import LATENCY, Bar
from benchmarks.provider_process import ProviderProcess
from benchmarks.tables import Table
from llm_elicit._util.settings import to_yaml
from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.journal.control import write_control
from llm_elicit.orchestrator.journal.schema import (
    Answer,
    Question,
    answers,
    now,
    questions,
    with_digest,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.stages import ask, plan

_API = "/api/v1"
_TICKS = os.sysconf("SC_CLK_TCK")
_PRICE = {"input": 1.0, "output": 1.0}
_Pace = tuple[float, float]
"""Answers a second, and answers a second of processor time."""

_CAP = {"max_cost": 1000.0}
"""With a cap on all runs, a start has to know what each has spent."""

_OPENING = 20.0
"""Seconds from a look at a campaign's page until its answers are read."""

_AT_ONCE = 20_000
"""Rows that are inserted at a time."""

_VERDICTS = {"A": 0.485, "B": 0.485, "tie": 0.01, "refusal": 0.01, "unparsable": 0.01}


@dataclass(frozen=True)
class Size:
    """How much there is.

    Attributes:
        runs: stored runs.
        answers: answers of the large run.
        pages: open pages of a run that asks.
        asked: questions of that run.
        rounds: alternations of it with `llm-elicit ask`.
    """

    runs: int = 10_000
    answers: int = 1_000_000
    pages: int = 50
    asked: int = 4_000
    rounds: int = 3


class Served:
    """A service in a process of its own, in a `with` block.

    Args:
        folder: the folder in which it has its runs.
        settings: its settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder, self._settings = folder, settings

    def __enter__(self) -> Served:
        (self._folder / "server.yaml").write_text(to_yaml(self._settings))
        command = [sys.executable, "-m", "llm_elicit", "serve", "--config", "server.yaml"]
        began = time.monotonic()
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", "0"], cwd=self._folder, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if not words:
            raise RuntimeError((self._folder / "log").read_text())
        self.process = self._process.pid
        self.seconds, self.processor = time.monotonic() - began, self.used()
        self.client = httpx2.Client(base_url=words[1].rstrip(";"), timeout=600.0)
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def used(self) -> float:
        """Return the seconds of processor time of the service, without its workers."""
        return _processor_time(self._process.pid)

    def mebibytes(self) -> tuple[float, float]:
        """Return the peak memory of the service, and the memory of its workers now, in MiB."""
        workers = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        names = workers.read_text().split()
        return _memory(self._process.pid, "VmHWM"), sum(_memory(int(n), "VmRSS") for n in names)

    def get(self, path: str) -> float:
        """Return the seconds that a request takes."""
        began = time.perf_counter()
        answer = self.client.get(path)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
        return time.perf_counter() - began

    def measured(self, name: str, path: str, limit: float, times: int = 10) -> Bar:
        """Return the time of the first request for a path, and the median of some others."""
        first = self.get(path)
        before = self.used()
        warm = [self.get(path) for _ in range(times)]
        processor = (self.used() - before) / times
        text = f"{first * 1e3:.0f}, {median(warm) * 1e3:.0f} ({processor * 1e3:.0f})"
        return Bar(f"{name}: first, median (processor), ms", text, f"<= {limit * 1e3:.0f}",
                   max(first, median(warm)) <= limit)  # fmt: skip


def run_service(size: Size, note: Callable[[str], None]) -> Table:
    """Measure everything.

    Args:
        size: how much there is.
        note: called with one line before each measurement.
    """
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        for measure in (_many_runs, _many_answers, _many_pages):
            note(measure.__name__.strip("_").replace("_", " "))
            place = Path(folder) / measure.__name__
            (place / "runs").mkdir(parents=True)
            bars += measure(size, place)
            shutil.rmtree(place)
    words = {True: "yes", False: "no", None: ""}
    rows = tuple((bar.name, bar.measured, bar.wanted, words[bar.reached]) for bar in bars)
    return Table("Service", ("bar", "measured", "must be", "reached"), rows)


def _many_runs(size: Size, folder: Path) -> list[Bar]:
    """Measure starts and lists with many stored runs."""
    make_runs(folder / "runs", size.runs)
    bars = []
    with Served(folder, _CAP) as served:
        bars += _start("start without an index", served, None)
        while served.client.get(f"{_API}/campaigns?limit=1").json()["unread"]:
            time.sleep(0.5)
        bars.append(Bar("all runs read (processor), s", f"({served.used():.0f})", "", None))
        peak, _ = served.mebibytes()
        bars.append(Bar("memory meanwhile, MiB", f"{peak:.0f}", "<= 400", peak <= 400.0))
    with Served(folder, _CAP) as served:
        bars += _start("start", served, 3.0)
        far = 50 * (size.runs // 50 - 1)
        for name, query in {
            "list": "", "last page": f"offset={far}", "searched": "q=run-0042",
            "by cost": "sort=cost", "by name": "sort=name", "by last answer": "sort=updated",
            "of a state": "state=done", "of a day": "since=2020-01-01&until=2030-01-01",
        }.items():  # fmt: skip
            bars.append(served.measured(name, f"/?{query}", 0.3))
        bars.append(served.measured("list as JSON", f"{_API}/campaigns?limit=50", 0.3))
        peak, workers = served.mebibytes()
        text = f"{peak:.0f}, {workers:.0f}"
        bars.append(Bar("memory: service, workers, MiB", text, "<= 400", peak + workers <= 400.0))
    return bars


def _start(name: str, served: Served, limit: float | None) -> list[Bar]:
    text = f"{served.seconds:.1f} ({served.processor:.1f})"
    must = "" if limit is None else f"<= {limit:.0f}"
    reached = None if limit is None else served.seconds <= limit
    return [Bar(f"{name} (processor), s", text, must, reached)]


def make_runs(folder: Path, count: int) -> None:
    """Make runs: one is asked, and the others are its files under other names."""
    judge = {"name": "expert", "backend": "simulated", "belief": "uniform"}
    settings = {"name": "run", "runs": str(folder), "space": "penguins", "design": {"pairs": 6}}
    first = plan(Campaign.model_validate({**settings, "judges": [judge]}))
    asyncio.run(ask(first, progress=Silent()))
    for number in range(1, count):
        shutil.copytree(first.folder, folder / f"run-{number:05d}", copy_function=os.link)


def _many_answers(size: Size, folder: Path) -> list[Bar]:
    """Measure pages of the answers of one large run."""
    run = make_answers(folder / "runs", size.answers)
    half = size.answers // 2
    bars = []
    with Served(folder, {}) as served:
        place = f"/campaigns/{run.campaign.name}/answers?"
        served.get(f"/campaigns/{run.campaign.name}")  # which opens the run for its answers
        bars.append(served.measured("campaign's page", f"/campaigns/{run.campaign.name}", 0.3, 3))
        time.sleep(_OPENING)
        for name, query in {
            "first page": "", "far page": f"after={half}", "judge": "judge=second",
            "pair": f"pair={half // 2 - 1}", "refused": "verdict=refusal",
            "refused of a judge": "judge=second&verdict=refusal", "verdict A": "verdict=A",
            "orders differ": "orders=differ", "orders differ of a judge, far":
            f"judge=second&orders=differ&after={half + half // 2}",
            "feature range": "feature=body_mass_g&low=4000&high=4100",
            "rare feature range": "feature=body_mass_g&low=4000&high=4000.01",
            "truncated (none)": "verdict=truncated",
        }.items():  # fmt: skip
            bars.append(served.measured(f"answers, {name}", place + query, 0.3))
        peak, workers = served.mebibytes()
        bars.append(Bar("memory: service, workers, MiB", f"{peak:.0f}, {workers:.0f}", "", None))
    return bars


def make_answers(folder: Path, count: int) -> Run:
    """Make a run of two judges with many answers, which are rows of its journal alone."""
    judges = [{"name": name, "backend": "simulated"} for name in ("first", "second")]
    settings = {"name": "large", "runs": str(folder), "space": "penguins", "judges": judges}
    run = plan(Campaign.model_validate({**settings, "design": {"pairs": count // 4}}))
    journal = Journal(run.location, identity_of(run.campaign, run.space))
    journal.prepare([judge.name for judge in run.campaign.judges], run.plan)
    journal.close()
    rng = np.random.default_rng(1)
    columns = [questions.c[name] for name in ("id", "pair", "form", "replicate", "judge")]
    with run.location.writable().connect() as db, db.begin():
        rows = db.execute(questions.select().with_only_columns(*columns)).all()
        verdicts = rng.choice(list(_VERDICTS), len(rows), p=list(_VERDICTS.values()))
        for begin in range(0, len(rows), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            made = [_answer(row, str(verdict))
                    for row, verdict in zip(rows[part], verdicts[part], strict=True)]  # fmt: skip
            db.execute(answers.insert(), made)
        db.execute(questions.update().values(state="done"))
    write_control(run.location, state="done", stage="report")
    return run


def _answer(row: Any, verdict: str) -> dict[str, Any]:
    """Return the row of an answer to a question."""
    question = Question(row.id, row.pair, row.form, row.replicate, 0, row.judge)
    first = {"A": 1.0, "B": 0.0, "tie": 0.5}.get(verdict)
    point_a = 1.0 - first if first is not None and question.order == "ba" else first
    answer = Answer(
        template="v1/zero-shot", prompt_hash="0" * 64, endpoint="simulated", settings="{}",
        model_asked="simulated", model_answered="simulated", reply=verdict, finish="stop",
        verdict=verdict, first=None, letter_mass=None, probability=point_a, prompt_tokens=100,
        completion_tokens=1, cached_tokens=0, cost=0.0, latency=0.0, cached=False, asked_at=now(),
    )  # fmt: skip
    return vars(with_digest(question, answer)) | {"question": question.id, "cached": 0}


def _many_pages(size: Size, folder: Path) -> list[Bar]:
    """Measure the pace of asking with open pages, in turns with `llm-elicit ask`."""
    alone, watched, updates = list[_Pace](), list[_Pace](), list[float]()
    with ProviderProcess(LATENCY) as provider:
        for number in range(size.rounds):
            campaign = _campaign(f"alone-{number}", provider.url, size.asked, 2 * number)
            campaign["judges"][0]["price"] = _PRICE
            (folder / "alone.yaml").write_text(to_yaml(campaign))
            command = [sys.executable, "-m", "llm_elicit", "ask", "alone.yaml"]
            asking = subprocess.Popen(
                command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            alone.append(asyncio.run(_pace(asking.pid, folder / "runs" / campaign["name"])))
            asking.wait()
            campaign = _campaign(f"watched-{number}", provider.url, size.asked, 2 * number + 1)
            pace, seen = asyncio.run(_watch(folder, campaign, provider.url, size.pages))
            watched.append(pace)
            updates.append(seen)
    bars = [Bar(f"updates a second of {size.pages} open pages", _rates(updates), "", None)]
    for number, unit in enumerate(("second", "processor second")):
        first, second = ([pace[number] for pace in paces] for paces in (alone, watched))
        share = median(second) / median(first)
        bars += [
            Bar(f"`llm-elicit ask`, answers a {unit}", _rates(first), "", None),
            Bar(f"with open pages, answers a {unit}", _rates(second), "", None),
            Bar(f"share by {unit}", f"{share:.0%}", ">= 90 %", share >= 0.9),
        ]
    return bars


def _rates(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def _campaign(name: str, url: str, asked: int, seed: int) -> dict[str, Any]:
    """Return a campaign; with a seed of its own, none of its answers is in the cache."""
    judge = {
        "name": "bench", "backend": "openai", "model": "bench-1", "base_url": f"{url}/v1",
        "logprobs": False, "api_key_env": None, "concurrency": 100,
    }  # fmt: skip
    return {
        "name": name, "space": "penguins", "seed": seed, "design": {"pairs": asked // 2},
        "judges": [judge], "limits": {"max_cost": 10.0},
    }  # fmt: skip


async def _watch(
    folder: Path, campaign: dict[str, Any], url: str, pages: int
) -> tuple[_Pace, float]:
    """Have a service ask with open pages; return its pace, and their updates a second."""
    judge = {"backend": "openai", "base_url": f"{url}/v1", "price": _PRICE}
    # Fits for live views would take processor time from both.
    bounds = {"concurrency": 100, "max_cost": 10.0}
    settings = {"judges": [judge], "bounds": bounds, "live": 3600.0}
    name = campaign["name"]
    with Served(folder, settings) as served:
        base = str(served.client.base_url)
        made = served.client.post(f"{_API}/campaigns?start=false", json=campaign)
        made.raise_for_status()
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=base, timeout=60.0, limits=limits) as client:
            browsers = [asyncio.create_task(_browse(client, name)) for _ in range(pages)]
            await asyncio.sleep(2.0)
            began = time.monotonic()
            (await client.post(f"{_API}/campaigns/{name}/resume")).raise_for_status()
            pace = await _pace(served.process, folder / "runs" / name)
            seconds = time.monotonic() - began
            for browser in browsers:
                browser.cancel()
            counts = await asyncio.gather(*browsers)
        served.client.post(f"{_API}/campaigns/{name}/cancel")
    return pace, sum(counts) / seconds


async def _browse(client: httpx2.AsyncClient, name: str) -> int:
    """Open a campaign's page and keep it up to date until cancelled; return its updates."""
    page = await client.get(f"/campaigns/{name}")
    page.raise_for_status()
    count, pause, news = 0, 1.0, asyncio.Event()

    async def listen() -> None:
        path = f"{_API}/campaigns/{name}/events?alive=true"
        async with client.stream("GET", path) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event:") and line != "event: alive":
                    news.set()

    listening = asyncio.create_task(listen())
    with suppress(asyncio.CancelledError):
        while True:
            await news.wait()
            await asyncio.sleep(pause)
            news.clear()
            answer = await client.get(f"/campaigns/{name}/parts")
            count, pause = count + 1, answer.raise_for_status().json().get("pause", 1.0)
    listening.cancel()
    return count


def _counts(folder: Path) -> tuple[int, int]:
    """Return the numbers of answers and of questions of a run; zeros before it begins."""
    with suppress(sqlite3.OperationalError), closing(
        sqlite3.connect(f"file:{folder / JOURNAL}?mode=ro", uri=True)
    ) as db:  # fmt: skip
        tables = ("answers", "questions")
        done, total = (db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables)
        return int(done), int(total)
    return 0, 0


async def _pace(process: int, folder: Path) -> _Pace:
    """Return the answers a second, and a second of processor time, of a process that asks."""
    points = list[tuple[int, float, float]]()
    done, total = 0, 1
    while done < total:
        await asyncio.sleep(0.1)
        done, total = _counts(folder)
        if done:
            points.append((done, time.monotonic(), _processor_time(process)))
        total = total or 1
    answers, seconds, processor = (b - a for a, b in zip(points[0], points[-1], strict=True))
    return answers / seconds, answers / processor


def _processor_time(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(process: int, key: str) -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024
