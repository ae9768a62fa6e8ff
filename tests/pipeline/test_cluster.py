"""Fits and audits on workers: as here, bit for bit, whatever dies."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fakes.fits import AUDIT_CONSTANTS, AUDIT_SETTINGS, FIT_CONSTANTS

import llm_elicit as le
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import cluster, fit, results
from llm_elicit.pipeline.cluster import Outcome, Workers, describe, make_beforehand
from llm_elicit.pipeline.run_folder import AUDIT, BELIEF, Run
from llm_elicit.pipeline.stages import ask, make, plan_grid

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.timeout(1200)  # starting a worker is importing PyTorch, twice here

CAMPAIGN = """
space: countries
design: {pairs: 15}
judges:
  - {name: expert, backend: simulated, log_odds: {}}
  - {name: random, backend: simulated, belief: uniform, log_odds: {}}
fit: {method: utility}
"""


# As `fakes.fits`, but importing no more than fits and audits do.
QUICK = f"""
from functools import partial
from importlib import import_module
from llm_elicit import density
from llm_elicit.audit import record
from llm_elicit.density import settings
few = settings.PosteriorSettings(draws=24), settings.GaussianProcessSettings(draws=24)
forms = settings.MixtureSettings(counts=()), settings.SmoothSettings(frequencies=0)
utility = settings.UtilitySettings(8, *forms, *few)
fit = partial(density.fit_evidence, settings=settings.FitSettings(utility=utility))
density.fit_evidence = fit
record.AuditSettings = partial(record.AuditSettings, **{AUDIT_SETTINGS})
for module, values in {FIT_CONSTANTS | AUDIT_CONSTANTS}.items():
    vars(import_module(module)).update(values)
"""


@pytest.fixture(scope="module")
def workers(quick_fits: None) -> Iterator[Workers]:
    """Two workers of this machine; a task is given up at the second death of its worker."""
    import dask

    once = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_DISTRIBUTED__WORKER__PRELOAD", repr([QUICK]))
        with once, Workers(count=2) as started:
            yield started


class KillOne(Silent):
    """Kills a worker that is at work, once a task is done."""

    def __init__(self, pids: list[int]) -> None:
        self.pids, self.lines, self.killed = pids, [], False

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Note the line, and kill."""
        self.lines.append(f"{label}: {step}, {done} of {total}")
        if done and not self.killed:
            busy = max(self.pids, key=lambda pid: psutil.Process(pid).cpu_times().user)
            os.kill(busy, signal.SIGKILL)
            self.killed = True


def contents(run: Run) -> dict[str, object]:
    """The files of beliefs and the audit of a run; without the seconds that a fit took."""
    found: dict[str, object] = {}
    for path in (*run.folder.glob("beliefs/*/*/*"), run.folder / AUDIT):
        name = str(path.relative_to(run.folder))
        found[name] = path.read_bytes()
        if path.name in (BELIEF[0], AUDIT):
            found[name] = without_seconds(json.loads(path.read_text(encoding="utf-8")))
    return found


def without_seconds(value: object) -> object:
    if isinstance(value, dict):
        left_out = {"seconds", "digest"}  # the digest is that of the file with its seconds
        return {key: without_seconds(part) for key, part in value.items() if key not in left_out}
    if isinstance(value, list):
        return [without_seconds(part) for part in value]
    return value


def test_a_grid_is_fitted_as_here_though_a_worker_is_killed(
    workers: Workers, tmp_path: Path
) -> None:
    grid = tmp_path / "g.yaml"
    axis = "grid: {given: [{lifeExp: 50}, {lifeExp: 75}]}"
    grid.write_text(f"name: g\nruns: {tmp_path / 'runs'}\n{CAMPAIGN}{axis}\n", encoding="utf-8")
    cells = plan_grid(grid)
    for cell in cells:
        asyncio.run(ask(cell, progress=Silent()))
    alone = [Run(tmp_path / "alone" / c.folder.name, c.campaign, c.space) for c in cells]
    for cell, copy in zip(cells, alone, strict=True):
        shutil.copytree(cell.folder, copy.folder)
    progress = KillOne(list(workers._client.run(os.getpid).values()))
    assert make_beforehand(cells, "run", workers, progress)
    assert progress.killed
    assert progress.lines[0] == "fits and audits: 2 workers, 0 of 4"
    for cell, copy in zip(cells, alone, strict=True):
        assert not cell.manifest.stale(fit.reads(cell), unknown=True)
        assert not cell.manifest.stale(results.audit_reads(cell), unknown=True)
        make(copy, "fit")
        make(copy, "audit")
        assert contents(cell) == contents(copy)
        assert len(contents(cell)) > 6


def kill_itself(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> None:
    raise ValueError(f"{number} is\nnegative")


def test_errors_of_jobs_are_one_line(workers: Workers) -> None:
    errors: list[str] = []

    def take(outcome: Outcome[int, None]) -> list[int]:
        assert outcome.error is not None
        errors.append(describe(outcome.error))
        return []

    workers.run(fail, [-1], take)
    workers.run(kill_itself, [1], take)
    assert errors == ["ValueError: -1 is negative", "2 workers died of it (out of memory?)"]


def note_call(path: Path) -> int:
    with path.open("a", encoding="utf-8") as calls:
        calls.write("called\n")
    return os.getpid()


def test_a_result_that_arrived_is_not_computed_again(workers: Workers, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    pids: list[int] = []

    def take(outcome: Outcome[Path, int]) -> list[Path]:
        assert outcome.result is not None
        pids.append(outcome.result)
        if outcome.job == first:
            return [second]  # after whose result the scheduler knows that the first is not needed
        if outcome.job == second:
            before = workers.number
            os.kill(pids[0], signal.SIGKILL)
            while workers.number == before:
                time.sleep(0.001)
            return [third]
        return []

    gc.disable()  # futures are in cycles of references
    try:
        workers.run(note_call, [first], take)
    finally:
        gc.enable()
    assert first.read_text(encoding="utf-8") == "called\n"


def test_a_runtime_fits_on_a_cluster(workers: Workers, tmp_path: Path) -> None:
    campaign = tmp_path / "c.yaml"
    campaign.write_text(f"name: c\nruns: {tmp_path}\n{CAMPAIGN}", encoding="utf-8")

    async def run() -> Run:
        async with le.Runtime(tmp_path, cluster=workers.address) as runtime:
            return await runtime.start(campaign).wait()

    done = asyncio.run(run())
    assert set(done.beliefs) == {"expert", "random"}
    assert done.report_path.is_file()


def test_another_version_of_a_package_is_refused(workers, tmp_path, monkeypatch) -> None:
    campaign = tmp_path / "c.yaml"
    campaign.write_text(f"name: c\nruns: {tmp_path}\n{CAMPAIGN}", encoding="utf-8")
    (run,) = plan_grid(campaign)
    asyncio.run(ask(run, progress=Silent()))
    monkeypatch.setattr(cluster, "installed_versions", lambda: {"torch": "1.0"})
    tasks: dict = {}
    cluster.add_fits(tasks, run, new=True)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"a worker has torch 2\S+, and this machine 1\.0"):
        cluster.make_files(next(iter(tasks.values())))


def test_what_is_not_there_is_named(monkeypatch) -> None:
    with pytest.raises(InputError, match="workers = 0; at least 1"):
        Workers(count=0)
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 1)
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        Workers("tcp://127.0.0.1:9").__enter__()
    with (
        distributed.LocalCluster(
            n_workers=0, host="127.0.0.1", protocol="tcp://", dashboard_address=None
        ) as empty,
        pytest.raises(InputError, match="has no workers; start one for each core with"),
    ):
        Workers(empty.scheduler_address).__enter__()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"run: pip install 'llm-elicit\[cluster\]'"):
        Workers("tcp://127.0.0.1:9").__enter__()


def test_no_worker_outlives_a_killed_caller() -> None:
    script = (
        "import os\nfrom llm_elicit.pipeline.cluster import Workers\n"
        "with Workers() as workers:\n"
        "    print(*workers._client.run(os.getpid).values(), flush=True)\n"
        "    input()"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    worker = psutil.Process(int(caller.stdout.readline()))
    caller.kill()
    caller.wait()
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running()
