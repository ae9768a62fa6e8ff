"""The runs of a service: those of this process, and the others in its folder.

Runs of other processes, such as those of `llm-elicit run` or of another service with the same
folder, can be watched and asked to pause, to go on and to stop through their journals.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request
from fastapi import Path as InPath

from llm_elicit.errors import ConflictError, ElicitError
from llm_elicit.orchestrator.journal import control as journal
from llm_elicit.orchestrator.journal.control import Wanted, is_active
from llm_elicit.pipeline.run_control import check_limits
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run, remove_unreadable
from llm_elicit.pipeline.snapshot import RunSnapshot, stored_snapshot
from llm_elicit.service.problems import ProblemError
from llm_elicit.service.state import service_of

if TYPE_CHECKING:
    from llm_elicit.pipeline.campaign_run import CampaignRun
    from llm_elicit.pipeline.runtime import Runtime
    from llm_elicit.pipeline.snapshot import RunIndex

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
"""The pattern of a campaign's name."""

CampaignName = Annotated[str, InPath(pattern=NAME, description="The campaign's name.")]


@dataclass(frozen=True)
class Catalog:
    """The runs of a service."""

    runtime: Runtime
    index: RunIndex

    def here(self, name: str) -> CampaignRun | None:
        """Return a run of this process; None if there is none of that name."""
        return self.runtime.runs.get(name)

    def taken(self, name: str) -> bool:
        """Whether there is a run of that name."""
        return name in self.runtime.runs or (self.runtime.folder / name).exists()

    async def run(self, name: str) -> Run:
        """Return the run of a campaign.

        Raises:
            ProblemError: there is none.
        """
        job = self.here(name)
        return job.run if job else await asyncio.to_thread(_open, self.runtime.folder, name)

    async def snapshot(self, name: str) -> RunSnapshot:
        """Return what a run does now.

        Raises:
            ProblemError: there is none.
        """
        job = self.here(name)
        if job is not None:
            return job.snapshot()
        return await asyncio.to_thread(stored_snapshot, await self.run(name))

    async def snapshots(self) -> list[RunSnapshot]:
        """Return what all runs do now by name; of those that cannot be read, why."""
        jobs = dict(self.runtime.runs)
        others = await asyncio.to_thread(self.index.snapshots, jobs.keys())
        named = [run for run in others if re.match(NAME, run.name)]
        snapshots = [*named, *(run.snapshot() for run in jobs.values())]
        return sorted(snapshots, key=lambda run: run.name)

    async def at_work_elsewhere(self, name: str) -> bool:
        """Whether another process works on a run.

        Raises:
            ProblemError: there is none.
        """
        run = await self.run(name)
        at_work = await asyncio.to_thread(is_active, run.location)
        return at_work and self.here(name) is None

    async def request(self, name: str, state: Wanted | None = None, **limits: Any) -> None:
        """Ask a run that is not of this process to do something, or to have other limits.

        Raises:
            ConflictError: it has ended.
        """
        run = await self.run(name)
        await asyncio.to_thread(_request, run, state, **limits)

    async def delete(self, name: str) -> None:
        """Cancel a run and remove its folder and journal.

        Raises:
            ConflictError: another process is at work on it.
        """
        if self.here(name) is not None:
            await self.runtime.delete(name)
        else:
            await asyncio.to_thread(_delete, self.runtime.folder, name)


def catalog(request: Request) -> Catalog:
    """Return the runs of the service that a request came to; a dependency."""
    service = service_of(request)
    return Catalog(service.runtime, service.index)


Runs = Annotated[Catalog, Depends(catalog)]


async def _named(name: CampaignName, runs: Runs) -> Run:
    """Return the run that the path of a request names; a dependency."""
    return await runs.run(name)


NamedRun = Annotated[Run, Depends(_named)]


def _open(folder: Path, name: str) -> Run:
    path = folder / name / CAMPAIGN
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        raise ProblemError(404, f"no campaign {name!r}") from None
    return _opened(path.parent, changed)


@lru_cache(maxsize=256)
def _opened(folder: Path, changed: int) -> Run:
    """Open a run; again if its campaign was changed."""
    del changed
    return Run.open(folder)


def _request(
    run: Run,
    state: Wanted | None,
    max_cost: float | None = None,
    concurrency: int | None = None,
) -> None:
    if not is_active(run.location):
        raise ConflictError(f"{run.campaign.name}: no process is at work on it; start it")
    check_limits(run.campaign, max_cost, concurrency)
    journal.request(run.location, state, max_cost=max_cost, concurrency=concurrency)


def _delete(folder: Path, name: str) -> None:
    try:
        run = _open(folder, name)
        active = is_active(run.location)
    except (ElicitError, OSError):
        remove_unreadable(folder / name)
        return
    if active:
        raise ConflictError(f"{name}: another process is at work on it; cancel it first")
    run.remove()
