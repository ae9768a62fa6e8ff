"""Open a run for asking: the lock of its folder, its log, its journal and the cache."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.config.judges import Judge
from llm_elicit.orchestrator import cache
from llm_elicit.orchestrator.cache import CacheUse, RunCache
from llm_elicit.orchestrator.journal.connection import LEASE, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.questions import unanswered
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.progress import Progress, log_event, logging_to
from llm_elicit.planning.pairs import Plan
from llm_elicit.questions.direct import DirectWording
from llm_elicit.questions.presentation import Presentation, presentations_of
from llm_elicit.spaces.features import FeatureSpace

T = TypeVar("T")


def wording_of(campaign: Campaign, space: FeatureSpace, plan: Plan) -> DirectWording:
    """Return the wording of a campaign's direct questions.

    Raises:
        InputError: a template cannot be read.
    """
    if campaign.direct is None:
        return DirectWording(space, {})
    answer = presentations_of(campaign.design, space, campaign.seed)[0].template.answer
    return DirectWording.of(campaign.direct, space, campaign.seed, plan, answer)


def worded_identity(campaign: Campaign, space: FeatureSpace) -> dict[str, str]:
    """Return a campaign's identity with that of its templates; see `llm_elicit.config.campaign`.

    Raises:
        InputError: a template cannot be read.
    """
    presentations = presentations_of(campaign.design, space, campaign.seed)
    templates = [presentation.template for presentation in presentations]
    direct = DirectWording.of(campaign.direct, space, campaign.seed, answer=templates[0].answer)
    words = frozenset().union(*(t.names for t in (*templates, *direct.templates.values())))
    digests = "".join(presentation.digest for presentation in presentations)
    wording = (
        {"template": templates[0].digest}
        if campaign.design.presentations is None
        else {"presentations": hashlib.sha256(digests.encode()).hexdigest()}
    )
    return {**identity_of(campaign, space, words), **wording, **direct.identity}


@dataclass(frozen=True)
class Study:
    """A campaign with its space, its plan and the folder of its run.

    Attributes:
        retry_failed: whether questions that were set aside are asked again.
        strict_version: whether a judge stops once its answers are of several versions of its model.
        probing: the judges, if only some are asked, each its first open question alone.
    """

    campaign: Campaign
    space: FeatureSpace
    plan: Plan
    folder: Path
    retry_failed: bool = False
    strict_version: bool = False
    probing: tuple[Judge, ...] = ()

    @property
    def judges(self) -> list[str]:
        """The judges' names."""
        return [judge.name for judge in self.campaign.judges]

    @property
    def location(self) -> JournalLocation:
        """Where the journal is."""
        return JournalLocation(self.folder, self.campaign.journal)

    @cached_property
    def presentations(self) -> tuple[Presentation, ...]:
        """The presentations of questions about pairs."""
        return presentations_of(self.campaign.design, self.space, self.campaign.seed)

    def presentation(self, pair: int) -> Presentation:
        """Return the presentation of a pair."""
        return self.presentations[self.plan.presentation(pair)]

    @cached_property
    def direct(self) -> DirectWording:
        """The wording of its direct questions."""
        return wording_of(self.campaign, self.space, self.plan)

    @property
    def identity(self) -> dict[str, str]:
        """What must be equal whenever the run is resumed."""
        plan = self.plan
        shape = f"{plan.orders} {plan.replicates}".encode()
        if plan.presentations is not None:
            shape += plan.presentations[slice(plan.fixed)].tobytes()
        # If a library draws other random numbers, a run must not mix two plans.
        # Later rounds are recorded in the journal.
        fixed = slice(plan.fixed)
        points = plan.a[fixed].tobytes() + plan.b[fixed].tobytes()
        digest = hashlib.sha256(points + shape).hexdigest()
        return {**worded_identity(self.campaign, self.space), "plan": digest}


@dataclass(frozen=True)
class OpenRun:
    """An open run.

    Attributes:
        journal, cache: the journal, and the cache of answers.
        lost: requests that were in flight when an earlier run was killed.
    """

    journal: Journal
    cache: RunCache
    lost: int


@contextlib.asynccontextmanager
async def open_run(
    study: Study,
    progress: Progress,
    shared: bool = True,
    lease: float = LEASE,
    reuse: CacheUse = "reuse",
) -> AsyncIterator[OpenRun]:
    """Open a run and write its plan to the journal; close it on leaving.

    Slow steps run in a thread, so that they do not block the caller's event loop.

    Args:
        study: what is asked.
        progress: receives notes about the cache.
        shared: whether other processes may work on the run as well, if its journal allows it.
        lease: seconds without a sign of life after which others take over.
        reuse: how to use the cache of answers.

    Raises:
        InputError: the folder is in use, cannot be written, or holds another campaign's run.
    """
    campaign, folder, location = study.campaign, study.folder, study.location
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(RunLock(folder, shared=shared and location.shared))
        stack.enter_context(logging_to(folder, campaign))
        log_event(
            "run began", campaign=campaign.name, judges=study.judges, questions=len(study.plan)
        )

        def prepared() -> OpenRun:
            journal = Journal(location, study.identity, campaign.limits, lease)
            stack.push_async_callback(in_thread, journal.close)
            for judge in study.judges if study.retry_failed else ():
                for group in journal.read(unanswered, judge):
                    line = f"asking {group.count:,} unanswered questions again: {group.reason}"
                    progress.note(judge, line)
            lost = journal.prepare(study.judges, study.plan, retry_failed=study.retry_failed)
            # A repeat asks everything again; what it has asked is in its journal.
            use: CacheUse = "off" if campaign.repeat_of else reuse
            answers = RunCache(folder.parent / cache.FILE, use, partial(progress.note, "cache"))
            stack.push_async_callback(in_thread, answers.close)
            return OpenRun(journal, answers, lost)

        yield await in_thread(prepared)


async def in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a thread and return its result; a cancellation waits for its end."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait([task])
