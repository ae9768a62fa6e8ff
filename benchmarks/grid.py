"""How much faster two workers fit a grid than one, with and without a worker that is killed.

`python -m benchmarks.grid` fits 24 beliefs (three spaces, four templates, two judges) with the
default settings on one local Dask worker and on two; then on two of which one is killed once a
third of the fits are done. It prints the seconds from the first task to the last, what travels for
a fit, and whether the beliefs are the same, bit for bit.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import yaml

from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import cluster, run_folder, stages
from llm_elicit.pipeline.cluster import StageFiles, StageTask, Workers
from llm_elicit.pipeline.run_folder import Run

GRID = {
    "name": "grid",
    "design": {"pairs": 60},
    "judges": [
        {"name": "expert", "backend": "simulated", "log_odds": {}},
        {"name": "noisy", "backend": "simulated"},
    ],
    "grid": {
        "spaces": ["cars", "countries", "penguins"],
        "templates": ["v1/zero-shot", "v2/believable", "v2/common", "v2/drawn"],
    },
}


class WorkerKiller(Silent):
    """Kills the first worker, which fits then, once a third of the tasks are done."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.killed = pids, False

    def stage(self, _: str, __: str, done: int, total: int) -> None:
        """Kill the first worker."""
        if 3 * done >= total and not self.killed:
            os.kill(self.pids[0], signal.SIGKILL)
            self.killed = True


def fit_grid(
    cells: Sequence[Run], folder: Path, count: int, *, kill: bool = False
) -> tuple[float, dict[str, bytes]]:
    """Fit copies of the runs below a folder; return the seconds and the beliefs' arrays."""
    runs = [replace(run, folder=folder / run.folder.name) for run in cells]
    for cell, run in zip(cells, runs, strict=True):
        shutil.copytree(cell.folder, run.folder)
    with Workers(count=count) as workers:
        pids = list(workers._client.run(import_fits).values())
        killer = WorkerKiller(pids) if kill else Silent()
        began = time.perf_counter()
        cluster.make_beforehand(runs, "fit", workers, killer)
        seconds = time.perf_counter() - began
    arrays = [name for name in run_folder.BELIEF if not name.endswith(".json")]
    return seconds, {
        str(path.relative_to(folder)): path.read_bytes()
        for run in runs
        for name in arrays
        for path in run.folder.glob(f"beliefs/*/*/{name}")
    }


def import_fits() -> int:
    """Import what a fit needs, as a worker that has fitted before; return the process's number."""
    import_module("llm_elicit.pipeline.fit")
    return os.getpid()


def measure(parent: Path) -> None:
    """Print the table."""
    campaign = parent / "grid.yaml"
    campaign.write_text(yaml.safe_dump({**GRID, "runs": str(parent / "runs")}), encoding="utf-8")
    cells = stages.plan_grid(campaign)
    for cell in cells:
        asyncio.run(stages.ask(cell, progress=Silent()))
    tasks: dict[tuple[object, ...], StageTask] = {}
    for cell in cells:
        cluster.add_fits(tasks, cell, new=True)
    task = next(iter(tasks.values()))
    files: StageFiles = cluster.make_files(task)
    sys.stdout.write(
        f"{len(tasks)} fits; a task has {len(pickle.dumps(task)):,} bytes, "
        f"its belief {len(pickle.dumps(files)):,}\n| workers | s | times as fast | beliefs |\n"
        "| --- | --- | --- | --- |\n"
    )
    alone, reference = fit_grid(cells, parent / "1", 1)
    sys.stdout.write(f"| 1 | {alone:.1f} | 1 | {len(reference)} files |\n")
    for kill in (False, True):
        seconds, beliefs = fit_grid(cells, parent / f"2{kill}", 2, kill=kill)
        same = "the same" if beliefs == reference else "DIFFERENT"
        name = "2, one killed" if kill else "2"
        sys.stdout.write(f"| {name} | {seconds:.1f} | {alone / seconds:.2f} | {same} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as parent:
        measure(Path(parent))
