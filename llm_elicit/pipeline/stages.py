"""Running a campaign from its YAML to its report, and the stages one by one.

A run lives in a folder (`runs/<campaign>`). Every stage reads what the stage before wrote and can
be run alone, again, or in another process. Running a campaign again resumes it: answered questions
are not asked twice, and beliefs, audit and report are made again only if what they are made from
was changed, or by another version.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from llm_elicit._util.settings import to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CapError, ElicitError, InputError
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.journal.connection import FILE as JOURNAL
from llm_elicit.orchestrator.log import span
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import Display, Progress, Silent, Tally
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline.ask import ask, ask_in_batches, export, write_tables
from llm_elicit.pipeline.manifest import Manifest, write_atomically
from llm_elicit.pipeline.run_folder import CAMPAIGN, COMPARISONS, PLAN, Run, find, open_runs

__all__ = [
    "arun", "ask", "ask_conditions", "ask_in_batches", "audit", "compare", "export", "fit",
    "plan", "plan_grid", "plan_run", "report", "report_conditions", "run", "run_grid",
]  # fmt: skip

if TYPE_CHECKING:
    from llm_elicit.audit.judge_comparison import JudgeComparison

T = TypeVar("T")

_SILENT = Silent()

_LOOK = 0.05
"""Seconds between two looks at a folder in which another call is at work."""

_locks: dict[Path, threading.Lock] = {}


class _Stage(Protocol):
    """The module of a stage after asking; it imports PyTorch, which asking needs not."""

    def is_stale(self, run: Run, *, exactly: bool = False) -> bool: ...

    def make(self, run: Run, progress: Progress, goal: str) -> None: ...


def _stage(name: str) -> _Stage:
    return cast("_Stage", import_module(f"llm_elicit.pipeline.{name}"))


def fit(run: Run, progress: Progress = _SILENT) -> None:
    """Estimate every judge's belief by every method of the campaign, with samples and bands."""
    _make(run, "fit", progress)


def audit(run: Run, progress: Progress = _SILENT, *, anew: bool = True) -> None:
    """Compare each belief with the data and with the sampling density; write audit.json.

    Args:
        run: the run.
        progress: receives every change.
        anew: whether to make it also where this version made it from the same files before.
    """
    _make(run, "audit", progress, anew=anew)


def report(run: Run, progress: Progress = _SILENT, *, anew: bool = True) -> None:
    """Write report.html, its figures and its tables.

    Args:
        run: the run.
        progress: receives every change.
        anew: whether to write them also where they were written from the same files before, by the
            same versions.
    """
    _make(run, "report", progress, anew=anew)


AFTER_ASKING: dict[str, Callable[[Run, Progress], None]] = {
    "fit": fit, "audit": partial(audit, anew=False), "report": partial(report, anew=False),
}  # fmt: skip
"""The stages after asking as a run that is run again has them, by name and in order."""

_BEFORE = {"fit": (), "audit": ("fit",), "report": ("fit", "audit"), "compare": ("fit",)}
"""The stages whose files a stage reads."""


def _make(run: Run, goal: str, progress: Progress, *, anew: bool = True) -> None:
    """Make the files of a stage, and before them those that it reads where they are stale."""
    with span(goal):
        _update(run, goal, progress)
        warn_of_gaps(run, goal, progress)
        if anew or _stage(goal).is_stale(run, exactly=True):
            _stage(goal).make(run, progress, goal)


def _update(run: Run, goal: str, progress: Progress) -> None:
    """Make again what a stage reads where it is stale."""
    check_files(run, goal, progress)
    for stage in map(_stage, _BEFORE[goal]):
        if stage.is_stale(run):
            stage.make(run, progress, goal)


def compare(runs: Sequence[Run], progress: Progress = _SILENT) -> JudgeComparison:
    """Compare the judges of one or several runs; see `llm_elicit.audit.judge_comparison`.

    A judge is called by its name, or `run/judge` if two runs have judges of that name.

    Raises:
        InputError: feature spaces that differ, fewer than two judges, or a belief that has no
            draws.
    """
    from llm_elicit.pipeline.audit import compare_runs

    for run in runs:
        _update(run, "compare", progress)
    return compare_runs(runs, progress)


def report_conditions(runs: Sequence[Run]) -> list[Path]:
    """Write a page for each group of runs that differ only in their condition; return the pages."""
    from llm_elicit.pipeline.report import write_conditions

    return write_conditions(runs)


def check_files(run: Run, stage: str, progress: Progress) -> None:
    """Check a run's identity and files; write changed pairs and tables of answers again.

    Args:
        run: the run.
        stage: the stage that follows, for messages.
        progress: receives a note for every file that is written again.

    Raises:
        InputError: the campaign, its space or a template was changed; a table was changed and
            there is no journal to make it from; or the pairs of later rounds are lost with it.
    """
    run.check_identity()
    manifest, name = run.manifest, run.campaign.name
    is_asked = manifest.entry("ask") is not None
    journal = run.location.shared or (run.folder / JOURNAL).is_file()
    if is_asked and not journal and run.campaign.design.rounds is not None:
        raise InputError(
            f"{run.folder}: the journal is gone, in which the pairs of later rounds are; put it "
            "back"
        )
    if not manifest.as_written("pairs", PLAN):
        progress.note(name, f"{stage}: {PLAN} is gone or was changed; it is written again")
        run.write_pairs()
    tables = manifest.changed("ask")
    if not tables:
        return
    files = " and ".join(tables)
    if not journal:
        raise InputError(
            f"{run.folder}: {files} was changed since it was written, and there is no journal "
            "to make it from; put either back, or fit a table of your own by "
            "llm_elicit.density.fit_belief"
        )
    progress.note(name, f"{stage}: {files} is gone or was changed; made again from the journal")
    write_tables(run)


def warn_of_gaps(run: Run, stage: str, progress: Progress) -> None:
    """Add a note for every judge whose questions are not all answered."""
    if not (run.folder / COMPARISONS).is_file():
        return  # the stage names the file that it misses
    counts = run.questions
    for judge, gap in run.missing.items():
        of_all = f"{gap:,} of {counts[judge]:,} questions have no answer"
        progress.note(judge, f"{stage}: {of_all}; the result uses the others")


def run(
    campaign: str | Path | Campaign | Run,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
    limiters: RateLimiters | None = None,
    retry_failed: bool = False,
) -> Run:
    """Run a campaign from its YAML to its report, or resume it. Blocks until it is done.

    Args:
        campaign: a path, a name from examples/, a `Campaign`, or a run that is planned already.
        max_cost: a cap in USD that replaces the campaign's own, resumes included.
        progress: receives every change; by default a display on standard error. `Silent()`
            shows nothing.
        cache: "reuse" answers of earlier runs, ask "fresh" and replace them, or leave it "off".
        limiters: the rate limiters that it shares with other runs, such as `Runtime.limiters`; its
            own by default, which keep within the limits of the campaign alone.
        retry_failed: whether to ask again what was set aside, see `llm-elicit status`.

    Raises:
        InputError: a setting or a file cannot be used.
        JudgeError: no judge could be asked. If some could, `Run.problems` has the errors of the
            others.
        KeyboardInterrupt: the user stopped it. While questions are asked, the first Ctrl-C waits
            for the answers in flight; every answer received is kept.

    Example (`examples/run_campaign.py` is run by a test)::

        result = le.run("examples/simulated.yaml")
        result.beliefs["expert"].sample(1000, seed=1)  # (1000, 4), natural units
    """
    if _inside_event_loop():
        raise InputError("run() was called inside an event loop; use `await arun(...)` there")
    return asyncio.run(
        arun(
            campaign, max_cost=max_cost, progress=progress, cache=cache, limiters=limiters,
            retry_failed=retry_failed,
        )
    )  # fmt: skip


def ask_conditions(
    cells: Sequence[Run],
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
    limiters: RateLimiters | None = None,
    retry_failed: bool = False,
) -> None:
    """Ask the cells of a grid that have conditions, so that the first fit has all answers.

    Errors are left to `run`, which asks again what has no answer.
    """
    for cell in cells:
        if cell.campaign.given and len(cells) > 1:
            with (
                Display() if progress is None else nullcontext(progress) as display,
                suppress(ElicitError),
            ):
                asking = ask(
                    cell, max_cost=max_cost, progress=display, cache=cache, limiters=limiters,
                    retry_failed=retry_failed,
                )  # fmt: skip
                asyncio.run(asking)


def _inside_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def arun(
    campaign: str | Path | Campaign | Run,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
    limiters: RateLimiters | None = None,
    retry_failed: bool = False,
) -> Run:
    """Run a campaign as `run` does, in a notebook or a service with an event loop.

    Signal handlers and the garbage collector are left alone. Cancelling the task while questions
    are asked waits for the answers in flight; cancelling it again drops them. In other stages it
    ends with the step at work. Calls with the same folder run one after the other.
    """
    result = campaign if isinstance(campaign, Run) else await in_thread(partial(Run.open, campaign))
    async with alone_in(result.folder):
        with Display() if progress is None else nullcontext(progress) as display:
            if not isinstance(campaign, Run):
                opened = result
                result = await to_its_end(lambda _: plan_run(opened), display)
            result = await ask(
                result, max_cost=max_cost, progress=display, cache=cache, limiters=limiters,
                retry_failed=retry_failed,
            )  # fmt: skip
            for stage in AFTER_ASKING.values():
                await to_its_end(partial(stage, result), display)
    return result


def run_grid(
    campaign: str | Path | Campaign,
    *,
    max_cost: float | None = None,
    progress: Progress | None = None,
    cache: CacheUse = "reuse",
    retry_failed: bool = False,
) -> dict[str, Run]:
    """Run every cell of a grid, one after the other, or resume it. Caps apply to all together.

    A cell without a judge that could be asked is left out of the result, and the others go on. A
    campaign without a grid is its only cell.

    Returns:
        The cells' runs by name.

    Raises:
        CapError: a cap of the grid is reached.
        JudgeError, InputError: no cell could be asked; the first cell's reason.
        KeyboardInterrupt: the user stopped it; every answer received is kept.
    """
    if _inside_event_loop():
        raise InputError("run_grid() was called inside an event loop; use a thread of its own")
    done: dict[str, Run] = {}
    stopped: ElicitError | None = None
    cells, limiters = plan_grid(campaign), RateLimiters()
    shared: dict[str, Any] = {"max_cost": max_cost, "cache": cache, "limiters": limiters}
    ask_conditions(cells, progress=progress, retry_failed=retry_failed, **shared)
    for cell in cells:
        try:
            done[cell.campaign.name] = run(
                cell, progress=progress, retry_failed=retry_failed, **shared
            )
        except CapError:
            raise
        except ElicitError as error:
            stopped = stopped or error
    if stopped is not None and not done:
        raise stopped
    report_conditions(list(done.values()))
    return done


def plan(campaign: str | Path | Campaign) -> Run:
    """Validate a campaign, draw its pairs and write both to the run's folder.

    Raises:
        InputError: the campaign breaks a rule, is a grid of several, or the folder holds another
            campaign's run.
    """
    return plan_run(Run.open(campaign))


def plan_grid(campaign: str | Path | Campaign) -> tuple[Run, ...]:
    """Plan every cell of a grid; a campaign without a grid is its only cell."""
    cells = tuple(plan_run(cell) for cell in open_runs(campaign))
    whole, folder = find(campaign)
    if whole.grid is not None and folder != cells[0].folder:
        folder.mkdir(parents=True, exist_ok=True)
        _write_campaign(whole, folder / CAMPAIGN)
        Manifest(folder).record("plan", {}, [folder / CAMPAIGN])
    return cells


def _write_campaign(campaign: Campaign, path: Path) -> None:
    """Write a run's copy of a campaign; of a grid, only the settings that were given."""
    grid = campaign.grid is not None
    data = campaign.model_dump(mode="json", exclude={"runs"}, exclude_unset=grid)
    data["runs"] = str(campaign.runs)
    write_atomically(path, to_yaml(data))


def plan_run(result: Run) -> Run:
    """Write a campaign and its pairs to the run's folder.

    Raises:
        InputError: the folder holds another campaign's run.
    """
    identity = result.identity  # this reads the templates, before anything is written
    if result.started:
        result.check_identity()
    result.folder.mkdir(parents=True, exist_ok=True)
    result.write_pairs()
    before = result.recorded_identity if result.started else {}
    result.manifest.record_identity(before | identity)
    _write_campaign(result.campaign, result.folder / CAMPAIGN)
    result.manifest.record("plan", {}, [result.folder / CAMPAIGN])
    return result


@asynccontextmanager
async def alone_in(folder: Path) -> AsyncIterator[None]:
    """Wait, without blocking the event loop, until no other call of this process is at work."""
    lock = _locks.setdefault(folder.resolve(), threading.Lock())
    while not lock.acquire(blocking=False):
        await asyncio.sleep(_LOOK)
    try:
        yield
    finally:
        lock.release()


class _StoppedError(BaseException):
    """The call was cancelled; as a KeyboardInterrupt, it is no error to recover from."""


class _StoppingProgress:
    """Passes reports on, and ends the thread that reports once its call is cancelled."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stopped = False

    def tally(self, judge: str, tally: Tally) -> None:
        """Report a judge's counts."""
        self._check()
        self._progress.tally(judge, tally)

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Report other work."""
        self._check()
        self._progress.stage(label, step, done, total)

    def note(self, judge: str, line: str) -> None:
        """Report one line."""
        self._check()
        self._progress.note(judge, line)

    def _check(self) -> None:
        if self.stopped:
            raise _StoppedError


async def to_its_end(work: Callable[[Progress], T], progress: Progress) -> T:
    """Call `work` in a thread and return its result.

    Cancelled, it ends with the thread, which stops at its next report of progress.

    Args:
        work: is called with a progress that it should report to.
        progress: receives its reports.
    """
    stopping = _StoppingProgress(progress)

    def stoppable() -> T | None:
        try:
            return work(stopping)
        except _StoppedError:
            return None

    thread = asyncio.ensure_future(asyncio.to_thread(stoppable))
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError:
            stopping.stopped = True
    result = await thread
    if stopping.stopped:
        raise asyncio.CancelledError
    return result  # type: ignore[return-value]  # None only if it was stopped
