"""A campaign against the loopback provider, in processes of its own.

`python -m benchmarks.faults.trial CAMPAIGN PATIENCE` is such a process with timeouts
other than the command line's, given as the JSON of a `RetryPolicy`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import func, select

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.engine import ask
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import Totals, workers
from llm_elicit.orchestrator.judgments import status
from llm_elicit.orchestrator.retries import RetryPolicy
from llm_elicit.pipeline.run_folder import Run

KEY = "BENCH_FAULTS_KEY"
HUNG = -1000
"""The exit code if a process did not end in time."""

_JUDGE = "bench"


@dataclass(frozen=True)
class Trial:
    """A campaign of one judge, in a folder.

    Attributes:
        folder: of the campaign and its runs.
        url: of the provider.
        questions, slots: numbers of questions and of concurrent requests.
        judge, rest: further settings of the judge and of the campaign.
        patience: timeouts other than the default; the command line is run without any.
    """

    folder: Path
    url: str
    questions: int
    slots: int
    judge: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    patience: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def path(self) -> Path:
        """The campaign's file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        judge = {
            "name": _JUDGE, "backend": "openai", "model": "bench-1",
            "base_url": f"{self.url}/v1", "logprobs": False, "api_key_env": KEY,
            "concurrency": self.slots, **self.judge,
        }  # fmt: skip
        campaign = {
            "name": "try", "space": "penguins", "design": {"pairs": self.questions // 2},
            "judges": [judge], "runs": str(self.folder / "runs"), **self.rest,
        }  # fmt: skip
        path = self.folder / "try.yaml"
        path.write_text(yaml.safe_dump(campaign), encoding="utf-8")
        return path

    @property
    def command(self) -> list[str]:
        """The command that asks its questions."""
        if not self.patience:
            return [sys.executable, "-m", "llm_elicit", "ask", str(self.path)]
        return [sys.executable, "-m", __name__, str(self.path), json.dumps(dict(self.patience))]

    def start(self, command: Sequence[str] | None = None) -> Client:
        """Start a process that asks the open questions, or another command."""
        return Client(command or self.command)

    def run(self, limit: float = 300.0) -> Ended:
        """Ask the open questions, and wait for the end."""
        return self.start().wait(limit)

    @cached_property
    def campaign(self) -> Campaign:
        """The campaign, read from its file."""
        return Campaign.load(self.path)

    @property
    def totals(self) -> Totals:
        """The counts of the journal; all open if there is no journal yet."""
        try:
            return status(self.campaign.folder, self.campaign)[_JUDGE]
        except InputError as error:
            if "no journal" in str(error) or "no such table" in str(error):
                return Totals(total=self.questions)
            raise

    @property
    def workers(self) -> int:
        """The number of processes that have opened the journal and not closed it."""
        location = JournalLocation(self.campaign.folder, self.campaign.journal)
        try:
            with reading(location) as db:
                return int(db.execute(select(func.count()).select_from(workers)).scalar_one())
        except InputError:
            return 0


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code; minus a signal's number, or `HUNG`.
        said: its standard error.
        seconds: its wall time.
    """

    code: int
    said: str
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether it ended in time and without a traceback."""
        return self.code != HUNG and "Traceback" not in self.said

    @property
    def line(self) -> str:
        """The last line it wrote."""
        return (self.said.strip().splitlines() or [""])[-1]


class Client:
    """A running process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when it is read
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._said,
            env={**os.environ, KEY: "sk-bench-0123456789", "COLUMNS": "200"},
        )  # fmt: skip

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def alive(self) -> bool:
        """Return whether it is still running."""
        return self._process.poll() is None

    def until(self, condition: Callable[[], bool], limit: float = 60.0) -> None:
        """Wait until a condition is true, or the process has ended."""
        end = time.monotonic() + limit
        while self.alive() and not condition() and time.monotonic() < end:
            time.sleep(0.005)

    def wait(self, limit: float = 300.0) -> Ended:
        """Wait for its end, and kill it after `limit` seconds."""
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = HUNG
        seconds = time.monotonic() - self._began
        with self._said as said:
            said.seek(0)
            return Ended(code, said.read(), seconds)


def _ask(campaign: str, patience: RetryPolicy) -> None:
    """Ask the open questions of a campaign, as the command line does.

    Raises:
        ElicitError: what stopped the judge.
    """
    run = Run.open(campaign)
    summary = asyncio.run(ask(run.study, retry_policy=patience))
    if summary.problems:
        raise summary.problems[0]


if __name__ == "__main__":
    try:
        _ask(sys.argv[1], RetryPolicy(**json.loads(sys.argv[2])))
    except ElicitError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
