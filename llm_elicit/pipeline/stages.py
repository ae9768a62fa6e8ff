"""Running a campaign from its YAML to its report, and the stages one by one.

A run lives in a folder (`runs/<campaign>`). Every stage reads what the stage before wrote and can
be run alone, again, or in another process. Running a campaign again resumes it: answered questions
are not asked twice, and beliefs, audit and report are made again only if what they are made from
was changed, or by another version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from llm_elicit._util.settings import to_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CapError, ElicitError, InputError
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.open_run import in_thread
from llm_elicit.orchestrator.progress import Display, Progress
from llm_elicit.orchestrator.rate_sharing import RateLimiters
from llm_elicit.pipeline.ask import ask, ask_in_batches, export
from llm_elicit.pipeline.audit import audit, compare
from llm_elicit.pipeline.fit import fit
from llm_elicit.pipeline.manifest import Manifest, write_atomically
from llm_elicit.pipeline.one_at_a_time import alone_in, lock_of, to_its_end
from llm_elicit.pipeline.report import report, report_conditions
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run, find, open_runs

__all__ = [
    "arun", "ask", "ask_conditions", "ask_in_batches", "audit", "compare", "export", "fit",
    "plan", "plan_grid", "plan_run", "report", "report_conditions", "run", "run_grid",
]  # fmt: skip

AFTER_ASKING: dict[str, Callable[[Run, Progress], None]] = {
    "fit": fit, "audit": partial(audit, anew=False), "report": partial(report, anew=False),
}  # fmt: skip
"""The stages after asking as a run that is run again has them, by name and in order."""


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
    result = campaign if isinstance(campaign, Run) else Run.open(campaign)
    with (
        Display() if progress is None else nullcontext(progress) as shown,
        lock_of(result.folder),
    ):
        result = result if isinstance(campaign, Run) else plan_run(result)
        asking = ask(
            result, max_cost=max_cost, progress=shown, cache=cache, limiters=limiters,
            retry_failed=retry_failed,
        )  # fmt: skip
        result = asyncio.run(asking)
        for stage in AFTER_ASKING.values():
            stage(result, shown)
    return result


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
                Display() if progress is None else nullcontext(progress) as shown,
                suppress(ElicitError),
            ):
                asking = ask(
                    cell, max_cost=max_cost, progress=shown, cache=cache, limiters=limiters,
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
        with Display() if progress is None else nullcontext(progress) as shown:
            if not isinstance(campaign, Run):
                opened = result
                result = await to_its_end(lambda _: plan_run(opened), shown)
            result = await ask(
                result, max_cost=max_cost, progress=shown, cache=cache, limiters=limiters,
                retry_failed=retry_failed,
            )  # fmt: skip
            for stage in AFTER_ASKING.values():
                await to_its_end(partial(stage, result), shown)
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
