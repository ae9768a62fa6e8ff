"""A runtime: several runs in one process, which share what is limited."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.budget import Amount, Budget
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.journal import ENDED, SILENCE, JournalLocation, spent_in
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline.campaign_run import CampaignRun, Sharing
from llm_elicit.pipeline.recovery import Recovery, run_folders
from llm_elicit.pipeline.run_folder import Run, find
from llm_elicit.pipeline.turns import Turns


class Runtime:
    """Runs campaigns side by side, and owns what they share.

    Its runs share a cap in USD, the processes that fit, the cache of answers, and the rate limiter
    of each provider, key and model. Two runtimes share nothing: each keeps within a provider's
    limit, and both together may exceed it. As a library it sets no signal handler and prints
    nothing.

    Its runs belong to the event loop in which it is entered; after it was left, it may be entered
    in another, and goes on at the pace that was found. Its `limiters` may be used from any thread
    and event loop at the same time, also by `llm_elicit.run(..., limiters=runtime.limiters)`.

    Args:
        folder: where the runs are.
        max_cost: a cap in USD for all runs of the folder together, earlier ones included.
        fits: fits at the same time, each in a process of its own.
        at_once: runs at work at the same time; others wait for their turn, in the order in which
            they were started. None for all. A run that is paused is not at work.
        journal: a PostgreSQL address for the journals of campaigns that do not name one.
        live_every: seconds between two live views of a run; None for no live views.

    Example (`tests/pipeline/test_runtime.py` runs it)::

        async with le.Runtime() as runtime:
            job = runtime.start("examples/simulated.yaml")
            await job.pause()
            await job.resume()
            run = await job.wait()
    """

    def __init__(
        self,
        folder: Path = Path("runs"),
        *,
        max_cost: float | None = None,
        fits: int = 1,
        at_once: int | None = None,
        journal: str | None = None,
        live_every: float | None = None,
    ) -> None:
        if fits < 1:
            raise InputError(f"fits = {fits}; at least 1 is needed")
        if at_once is not None and at_once < 1:
            raise InputError(f"at_once = {at_once}; at least 1 is needed")
        self.folder = folder
        self._max_cost = max_cost
        self._journal = journal
        self.limiters = RateLimiters()
        self._fits = fits
        self._at_once = at_once
        self._live_every = live_every
        self._sharing = self._shared()
        self._runs: dict[str, CampaignRun] = {}
        self._recovery = Recovery(folder)

    async def __aenter__(self) -> Self:
        self._runs.clear()  # those of another event loop
        self._sharing = self._shared()
        if self._max_cost is not None:
            spent = await in_thread(partial(_spent, self.folder))
            budget = Budget(Limits(max_cost=self._max_cost), Amount(usd=spent))
            self._sharing = replace(self._sharing, budget=budget)
        return self

    def _shared(self) -> Sharing:
        """Return what the runs of one event loop share."""
        fits = asyncio.Semaphore(self._fits)
        turns = Turns(self._at_once)
        return Sharing(self.limiters, fits, live_every=self._live_every, turns=turns)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the answers in flight; `recover` takes the runs up again."""
        await asyncio.gather(*(run.stop() for run in self._runs.values()))

    @property
    def runs(self) -> Mapping[str, CampaignRun]:
        """The runs of this process by the campaign's name, ended ones included.

        Those on which another process works, or that it has taken over, are not among them.
        """
        return {name: run for name, run in self._runs.items() if not run.elsewhere}

    def start(
        self,
        campaign: str | Path | Campaign | Run,
        *,
        max_cost: float | None = None,
        cache: CacheUse = "reuse",
        paused: bool = False,
        owner: str = "process",
        retry_failed: bool = False,
    ) -> CampaignRun:
        """Start a campaign, or take it up where it stopped, and return at once.

        Args:
            campaign: a path, a name from examples/, a `Campaign`, or a run.
            max_cost: a cap in USD that replaces the campaign's own.
            cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or "off".
            paused: whether it waits for `resume`.
            owner: "service" if `recover` takes it up after a restart.
            retry_failed: whether to ask again what was set aside.

        Raises:
            InputError: a setting or a file cannot be used, it is a grid of several runs, or the
                campaign runs here already.
        """
        start = {
            "wanted": "paused" if paused else "running",
            "state": "planned",
            "stage": "plan",
            "owner": owner,
            "error": None,
            "max_cost": max_cost,
            "concurrency": None,
        }
        return self._add(campaign, start, cache, retry_failed)

    def _add(
        self,
        campaign: str | Path | Campaign | Run,
        start: dict[str, Any],
        cache: CacheUse,
        retry_failed: bool = False,
    ) -> CampaignRun:
        run = campaign if isinstance(campaign, Run) else Run.open(self._placed(campaign))
        name = run.campaign.name
        known = self.runs.get(name)
        if known is not None and known.state not in ENDED:
            raise InputError(f"{name}: it is {known.state} here already")
        self._runs[name] = added = CampaignRun(run, self._sharing, start, cache, retry_failed)
        return added

    def _placed(self, campaign: str | Path | Campaign) -> Campaign | str | Path:
        """Return a campaign with the journal of this runtime, if it names none."""
        if self._journal is None:
            return campaign
        loaded = campaign if isinstance(campaign, Campaign) else Run.open(campaign).campaign
        if loaded.journal is not None:
            return loaded
        return loaded.model_copy(update={"journal": self._journal})

    async def recover(self) -> list[CampaignRun]:
        """Take up the runs of an earlier service, running or paused as they were.

        Runs of a service that lives are left to it. Of one that was killed just now it takes some
        seconds to know. A run that cannot be opened is left alone.
        """
        taken, unsure = await self._take_over()
        if unsure:
            await asyncio.sleep(SILENCE)
            taken += (await self._take_over())[0]
        return taken

    async def keep_recovering(self) -> None:
        """Take up the runs of services that are gone, every few seconds, until it is cancelled."""
        while True:
            await asyncio.sleep(SILENCE / 2)
            await self._take_over()

    async def _take_over(self) -> tuple[list[CampaignRun], bool]:
        found, unsure = await in_thread(partial(self._recovery.take, set(self.runs)))
        free = [run for run in found if run.campaign.name not in self.runs]
        return [self._add(run, {"error": None}, "reuse") for run in free], unsure

    async def delete(self, name: str) -> None:
        """Cancel a run, and remove its folder and its journal.

        Raises:
            InputError: there is no such run here.
        """
        run = self._runs.get(name)
        if run is None:
            raise InputError(f"{name}: there is no such run here")
        await run.delete()
        if self._runs.get(name) is run:
            del self._runs[name]


def _spent(folder: Path) -> float:
    """Return the USD that the runs of a folder spent or reserved."""
    found = [(path, find(path)[0]) for path in run_folders(folder)]
    # A grid's own folder holds its campaign only; the runs of its cells lie beside it.
    runs = [JournalLocation(path, one.journal) for path, one in found if one.grid is None]
    return sum(map(spent_in, runs))
