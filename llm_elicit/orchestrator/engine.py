"""Asking a campaign's questions: all judges at once, nothing paid twice, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from llm_elicit.backends import Backend, open_backend
from llm_elicit.backends.capabilities import check_settings
from llm_elicit.campaign import Campaign, Judge
from llm_elicit.errors import ElicitError
from llm_elicit.features import FeatureSpace
from llm_elicit.orchestrator.budget import Amount, Budget, check_cap
from llm_elicit.orchestrator.clerk import Clerk, check_direct, check_worst
from llm_elicit.orchestrator.company import in_company
from llm_elicit.orchestrator.exchange import Desk
from llm_elicit.orchestrator.journal import Journal
from llm_elicit.orchestrator.log import Logged, counted, event
from llm_elicit.orchestrator.opening import Study, opened
from llm_elicit.orchestrator.pool import Pool
from llm_elicit.orchestrator.prices import Price, price_of
from llm_elicit.orchestrator.progress import Progress, Silent, Tally
from llm_elicit.orchestrator.retries import Patience
from llm_elicit.orchestrator.spans import span
from llm_elicit.orchestrator.writer import Claims, Writer
from llm_elicit.plan import Plan
from llm_elicit.questions import Template


@dataclass(frozen=True)
class JudgeSummary:
    """How asking one judge ended.

    Attributes:
        tally: its counts.
        stopped: the error that stopped it before the end; None if it went through.
    """

    tally: Tally
    stopped: ElicitError | None

    @property
    def complete(self) -> bool:
        """Whether every question of the judge has its answer."""
        return self.tally.done == self.tally.total


@dataclass(frozen=True)
class AskSummary:
    """How asking ended.

    Attributes:
        judges: a summary for each judge, in the campaign's order.
        lost_in_flight: requests that were in flight when an earlier run was cut off.
        interrupted: whether the user stopped it.
        spent: USD spent on this run folder, in earlier runs too.
    """

    judges: dict[str, JudgeSummary]
    lost_in_flight: int
    interrupted: bool
    spent: float

    @property
    def complete(self) -> bool:
        """Whether every question has its answer."""
        return all(judge.complete for judge in self.judges.values())

    @property
    def problems(self) -> list[ElicitError]:
        """The errors that stopped judges."""
        return [judge.stopped for judge in self.judges.values() if judge.stopped is not None]


async def ask(
    campaign: Campaign,
    space: FeatureSpace,
    plan: Plan,
    folder: Path,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> AskSummary:
    """Ask every question of the plan that has no answer yet, of every judge.

    **What is guaranteed:** an answer is on the disk before it is counted, and a question whose
    answer is on the disk is not asked again, however the process ended. **What is not:** requests
    in flight when it was killed are asked again; they may have been answered: a cap counts them.

    A judge that cannot go on (bad key, no credit, no such model, a server that is down) stops
    by itself; the others go on. Interrupting once (Ctrl-C) stops sending and waits for the
    answers in flight; twice drops them.

    Args:
        campaign: whom to ask, and the limits.
        space: the feature space that words the points.
        plan: the questions.
        folder: the run's folder; the cache of answers lies beside it.
        progress: told of every change.
        patience: pauses between attempts.

    Raises:
        InputError: a key is missing, the folder is another campaign's or in use, a cap
            cannot be held; in these cases nothing was sent.

    Example:
        >>> import tempfile
        >>> from llm_elicit.plan import make_plan
        >>> campaign = Campaign.model_validate({
        ...     "name": "try", "space": "penguins", "design": {"pairs": 5},
        ...     "judges": [{"name": "expert", "backend": "simulated"}]})
        >>> space = campaign.load_space()
        >>> plan = make_plan(space, campaign.design, campaign.seed)
        >>> with tempfile.TemporaryDirectory() as runs:
        ...     summary = asyncio.run(ask(campaign, space, plan, Path(runs) / "try"))
        >>> summary.complete, summary.judges["expert"].tally.done
        (True, 10)
    """
    shown = Logged(progress or Silent())
    template = Template.load(campaign.design.template)
    prices = {judge.name: price_of(judge) for judge in campaign.judges}
    study = Study(campaign, space, plan, folder)
    backends = _checked(study, template, prices, shown)
    patience = patience or Patience()
    with opened(study, template, lease=patience.lease) as here:
        book = here.book
        budget = Budget(campaign.limits, Amount(*book.spent()))
        async with Writer(book, here.cache.flush) as writer:
            desk = Desk(
                space=space, plan=plan, template=template, direct=study.direct, writer=writer,
                cache=here.cache, budget=budget, progress=shown, patience=patience,
                deadline=time.monotonic() + (campaign.limits.deadline or math.inf),
            )  # fmt: skip
            pools = {
                judge.name: Pool(judge, backends[judge.name], prices[judge.name], desk)
                for judge in campaign.judges
            }
            told = {"elicit.campaign": campaign.name}
            async with in_company(writer, desk.turnstiles):
                with _interruptible(desk), _settled(), span("ask", told):
                    stops = await _run(pools, book, desk)
        judges = _ends(pools, stops, book)
        summary = AskSummary(judges, here.lost, desk.stopping.is_set(), budget.spent.usd)
        log_end(summary)
    return summary


def _ends(
    pools: dict[str, Pool], stops: dict[str, ElicitError | None], book: Journal
) -> dict[str, JudgeSummary]:
    """How asking each judge ended; what is done is what is on the disk."""
    return {
        name: JudgeSummary(replace(pool.tally, done=book.totals(name).done), stops[name])
        for name, pool in pools.items()
    }


def _checked(
    study: Study, template: Template, prices: dict[str, Price | None], shown: Progress
) -> dict[str, Backend]:
    """Every judge's backend, once its settings and the caps are known to hold; sends nothing."""
    campaign, space = study.campaign, study.space
    check_settings(campaign.judges)
    check_cap(campaign.limits, prices)
    backends = {judge.name: _open(judge, space, shown) for judge in campaign.judges}
    for judge in campaign.judges:
        backend, price = backends[judge.name], prices[judge.name]
        clerk = Clerk(space, study.plan, template, backend, price, study.direct)
        check_direct(study.plan, judge, backend)
        check_worst(campaign.limits, judge, clerk)
    return backends


def log_end(summary: AskSummary) -> None:
    """Log every judge's counts and how asking ended."""
    for name, judge in summary.judges.items():
        counted(name, judge.tally)
    event(
        "run ended",
        complete=summary.complete,
        interrupted=summary.interrupted,
        lost_in_flight=summary.lost_in_flight,
        spent=summary.spent,
        problems=[str(problem) for problem in summary.problems],
    )


def _open(judge: Judge, space: FeatureSpace, progress: Progress) -> Backend:
    return open_backend(judge, space, partial(progress.note, judge.name))


async def _run(pools: dict[str, Pool], book: Journal, desk: Desk) -> dict[str, ElicitError | None]:
    """All pools at once; a defect in one (not a judge's failure) ends them all."""
    tasks: dict[str, asyncio.Task[ElicitError | None]] = {}
    for name, pool in pools.items():
        pool.begin(book.totals(name))
    async with asyncio.TaskGroup() as group:
        for name, pool in pools.items():
            claims = Claims(desk.writer, name, pool.serve, desk.stopping)
            tasks[name] = group.create_task(pool.run(claims))
    return {name: task.result() for name, task in tasks.items()}


@contextlib.contextmanager
def _settled() -> Iterator[None]:
    """Spare the garbage collector what was loaded before: it would go through all of it again and
    again, for a twentieth of the time that asking takes."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _interruptible(desk: Desk) -> Iterator[None]:
    """The first Ctrl-C asks the run to stop; the second is Python's own."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        desk.stopping.set()
        loop.remove_signal_handler(signal.SIGINT)
        desk.progress.note("stopping", "waiting for the answers in flight; Ctrl-C drops them")

    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):
        # Not the main thread, or a system without signals: the caller's own handling stays.
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
