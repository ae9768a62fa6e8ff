"""What the routes of one service share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from llm_elicit.orchestrator.people import People
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.runtime import Runtime
from llm_elicit.pipeline.snapshot import RunIndex
from llm_elicit.service.keys import Keys
from llm_elicit.service.links import Links
from llm_elicit.service.metrics import Metrics
from llm_elicit.service.problems import ProblemError, logger
from llm_elicit.service.sessions import Attempts, Sessions
from llm_elicit.service.settings import ServerSettings
from llm_elicit.service.workers import Workers


class Experts:
    """The journals of runs that people judge, opened when the first expert comes.

    Its methods block; the service calls them in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, People] = {}

    def of(self, run: Run) -> People:
        """Return what gives a run's questions to people.

        Raises:
            InputError: the journal cannot be written.
            ProblemError: the run was deleted.
        """
        with self._lock:
            if not run.folder.is_dir():
                raise ProblemError(404, f"no campaign {run.campaign.name!r}")
            known = self._open.get(run.campaign.name)
            if known is None:
                known = People(run.location, run.campaign, run.space, run.plan)
                self._open[run.campaign.name] = known
            return known

    def forget(self, name: str) -> None:
        """Close the journal of a run that is deleted."""
        with self._lock:
            known = self._open.pop(name, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Close all journals."""
        for name in list(self._open):
            self.forget(name)


@dataclass
class Service:
    """What the routes of one service share.

    Attributes:
        settings: its settings.
        keys: its secrets.
        runtime: its runs.
        index: the other runs in its folder.
        sessions: the sessions of browsers.
        links: the links of people who judge.
        experts: the runs that people judge.
        attempts: the wrong tokens of the last minute.
        metrics: its counts.
        watching: the number of event streams that are open.
        workers: the processes that work for requests.
        examples: the text of the examples that campaigns may begin with, once they are read.
        closing: set when the service stops, so that streams end.
        tasks: what goes on after its request was answered.
    """

    settings: ServerSettings
    keys: Keys
    runtime: Runtime
    index: RunIndex = field(init=False)
    sessions: Sessions = field(init=False)
    links: Links = field(init=False)
    experts: Experts = field(default_factory=Experts)
    attempts: Attempts = field(default_factory=Attempts)
    metrics: Metrics = field(init=False)
    workers: Workers = field(init=False)
    watching: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings = self.settings
        self.index = RunIndex(settings.runs, settings.own_folder / "runs")
        self.sessions = Sessions(self.keys, settings.own_folder, settings.session)
        self.links = Links(settings.own_folder, self.keys.secret)
        self.workers = Workers(2, settings.bounds.seconds)
        self.metrics = Metrics(lambda: self.runtime.runs, lambda: self.watching)

    async def within(self, seconds: float, work: Coroutine[Any, Any, None]) -> bool:
        """Wait some time for work that goes on in any case; return whether it is done."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            task.add_done_callback(_log_failure)
            return False
        task.result()
        return True


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log why work failed whose request was answered before."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("work for a request failed after its answer: %s", task.exception())


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service
