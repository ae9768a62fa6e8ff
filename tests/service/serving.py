"""A service in a process of its own, on a free port of the loopback address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.warm import QUICK_FITS
from orchestrator.running import starved, undisturbed

from llm_elicit._util.settings import to_yaml
from llm_elicit.client import Client, ServiceError, ServiceRun
from llm_elicit.pipeline.snapshot import RunSnapshot

READY = 60.0

TOKEN, LOOK = "an-admin-token-of-the-tests", "a-read-token-of-the-tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
KEYS = {"LLM_ELICIT_TOKEN": TOKEN, "LLM_ELICIT_READ_TOKEN": LOOK}

# A view of a belief takes seconds of the processor: tests of them ask for them. On a busy machine
# what a worker does, which stands back behind others, may take minutes.
LIVE, SECONDS = 3600.0, 600.0


@dataclass
class Served:
    """A service that runs."""

    process: subprocess.Popen[str]
    address: str
    line: str
    folder: Path
    log: list[str] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        """The folder of its runs."""
        return self.folder / "runs"

    def client(self, **options: Any) -> httpx.Client:
        """Return a client of it."""
        return httpx.Client(base_url=self.address, timeout=120.0, **options)

    def api(self, token: str | None = None) -> Client:
        """Return a client of its API."""
        return Client(self.address, token)

    def whole_log(self) -> str:
        """Return the log with the lines of all earlier requests, which come through a pipe."""
        before = "".join(self.log).count("LAST")
        with self.client() as client:
            client.request("LAST", "/")
        until = time.monotonic() + READY
        while (log := "".join(self.log)).count("LAST") == before:
            assert time.monotonic() < until, log
            time.sleep(0.05)
        return log

    def clock(self, *, workers: bool = False) -> float:
        """Return a clock in seconds, which stands still while others have the cores.

        It stands still while this thread or the service's event loop could go on, or a worker.
        """
        processes = [str(self.process.pid), *(self.workers() if workers else ())]
        return undisturbed() - sum(starved(f"{process}/task/{process}") for process in processes)

    def workers(self) -> list[str]:
        """Return the numbers of its workers, which stay; others make a stage and end."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        names = {child: Path(f"/proc/{child}/comm") for child in children}
        return [child for child, name in names.items()
                if name.exists() and name.read_text().strip() == "to_process"]  # fmt: skip

    def computed(self) -> int:
        """Return the processor time of its workers so far, in ticks of the clock."""
        stats = [Path(f"/proc/{worker}/stat").read_text() for worker in self.workers()]
        times = [stat.rpartition(")")[2].split()[11:13] for stat in stats]
        return sum(int(user) + int(system) for user, system in times)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it by a signal and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def start(
    folder: Path, *options: str, settings: dict[str, Any] | None = None, **environment: str
) -> Served:
    """Start a service in a folder and wait until it can be reached."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"live": LIVE, **(settings or {})}
    settings["bounds"] = {"seconds": SECONDS, **settings.get("bounds", {})}
    (folder / "server.yaml").write_text(to_yaml(settings))
    options = ("--config", "server.yaml", *options)
    process = subprocess.Popen(
        [sys.executable, "-m", "llm_elicit", "serve", "--port", "0", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", QUICK_FITS: "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log: list[str] = []
    assert process.stderr is not None
    assert process.stdout is not None
    threading.Thread(target=log.extend, args=(process.stderr,), daemon=True).start()
    line = process.stdout.readline().strip()
    if not line:
        process.wait(READY)
        raise RuntimeError("".join(log))
    return Served(process, line.split()[1].rstrip(";"), line, folder, log)


@contextmanager
def serving(folder: Path, *options: str, **more: Any) -> Iterator[Served]:
    """Serve inside, and stop afterwards."""
    served = start(folder, *options, **more)
    try:
        yield served
    finally:
        served.stop()


def until(
    run: ServiceRun, condition: Callable[[RunSnapshot], bool], seconds: float = 250.0
) -> RunSnapshot:
    """Return the snapshot of a run once it meets a condition."""
    end = time.monotonic() + seconds
    while not condition(snapshot := run.snapshot()):
        assert time.monotonic() < end, snapshot
        time.sleep(0.1)
    return snapshot


def is_in(*states: str) -> Callable[[RunSnapshot], bool]:
    """Return whether a run is in one of some states."""
    return lambda snapshot: snapshot.state in states


def has_done(number: int, judge: str = "expert") -> Callable[[RunSnapshot], bool]:
    """Return whether a judge has answered more questions than a number."""
    return lambda snapshot: judge in snapshot.judges and snapshot.judges[judge].done > number


def refused(status: int, call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return the message with which the service refuses a call."""
    with pytest.raises(ServiceError) as error:
        call(*arguments, **named)
    assert error.value.status == status, error.value
    return str(error.value)
