"""Run the stages after asking, and the live view, in a process of their own.

A fit takes seconds of all processors and imports PyTorch. In a process of its own it neither blocks
the event loop of a service nor slows its requests down, and it can be stopped.

`python -m llm_elicit.pipeline.stage_process FOLDER STAGE...` runs stages of the run in a folder and
writes its progress to standard output, one JSON object a line; see `StageProgress`. With `--child`
before the folder it ends when its standard input does, as when its parent is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.progress import Progress, Silent
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.pipeline.stages import make

CHILD = "--child"
LIVE = "live"
"""The view of a run that still asks, in place of a stage's name."""

_NICENESS = 15
"""How far the stages stand back behind the requests of this machine's services."""

_REST = 3.0
"""The least time between two live views, in times of what the last one took: most of the processor
is left to the questions."""

_GROWTH, _FEWEST = 1.05, 10
"""A live view is made again when the answers have grown by this factor, from this number on."""

_LONGEST = 2**20
"""The most bytes of a line."""

_LAST = 2_000
"""The number of bytes of standard error that are kept."""


class StageFailedError(ElicitError):
    """The process of a stage ended without a result."""


class StageProgress(Silent):
    """A progress that writes one JSON object a line: "stage", "note", "ended" or "error"."""

    def stage(self, label: str, step: str, done: int, total: int) -> None:
        """Write the progress of a step."""
        self.write(label=label, step=step, done=done, total=total)

    def note(self, judge: str, line: str) -> None:
        """Write one line that the user should read."""
        self.write(label=judge, note=line)

    def write(self, **values: Any) -> None:
        """Write one object."""
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


async def run_stages(folder: Path, stages: Sequence[str]) -> AsyncGenerator[dict[str, Any]]:
    """Run stages of the run in a folder, and yield what their process writes.

    Leaving the loop early, or cancelling it, kills the process; use `contextlib.aclosing`.

    Args:
        folder: the run's folder.
        stages: names of stages after asking, and `LIVE`, in order.

    Raises:
        InputError: a stage refused its input; the message is that of the stage.
        StageFailedError: the process failed otherwise, or was killed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, CHILD, str(folder), *stages,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, limit=_LONGEST, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    refusal = None
    try:
        async for line in process.stdout:
            message = json.loads(line)
            refusal = message.get("error", refusal)
            yield message
        code = await process.wait()
        last = (await errors)[-_LAST:].decode(errors="replace").strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        errors.cancel()
    if refusal is not None:
        raise InputError(refusal)
    if code:
        reason = last.splitlines()[-1] if last else f"its process ended with exit code {code}"
        raise StageFailedError(f"{folder}: {', '.join(stages)} failed: {reason}")


async def make_views(
    folder: Path, every: float, turn: asyncio.Semaphore, answers: Callable[[], int | None]
) -> AsyncGenerator[None]:
    """Make live views of the run in a folder while its answers grow; yield after each.

    Args:
        folder: the run's folder.
        every: seconds between two views, at least.
        turn: limits how many views are made at the same time.
        answers: returns the number of answers; None while no view is wanted.
    """
    done_before, duration = 0, 0.0
    while True:
        await asyncio.sleep(max(every, _REST * duration))
        done = answers()
        if done is None or done < max(_FEWEST, _GROWTH * done_before):
            continue
        try:
            async with turn, contextlib.aclosing(run_stages(folder, [LIVE])) as lines:
                began = time.monotonic()
                async for _ in lines:
                    pass
        except ElicitError:
            continue  # a view that cannot be made is made at the next time
        done_before, duration = done, time.monotonic() - began
        yield


async def run_until(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, and cancel it once `stopping` is set."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    if not task.cancelled():
        task.result()


class _StoppedError(BaseException):
    """The call was cancelled; as a KeyboardInterrupt, it is no error to recover from."""


class _StoppingProgress(Silent):
    """Passes a stage's reports on, and ends the thread that reports once its call is cancelled."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stopped = False

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


async def run_to_end(
    work: Callable[[Progress], object], progress: Progress, stopping: asyncio.Event | None = None
) -> bool:
    """Call `work` in a thread, and return whether it was done to its end.

    Cancelled, or once `stopping` is set, it ends with the thread, which stops at its next report
    of progress.

    Args:
        work: is called with a progress that it should report to.
        progress: receives its reports.
        stopping: stops the work.
    """
    reports, cancelled = _StoppingProgress(progress), False

    def stoppable() -> bool:
        try:
            work(reports)
        except _StoppedError:
            return False
        return True

    thread = asyncio.ensure_future(asyncio.to_thread(stoppable))
    stop = asyncio.ensure_future((stopping or asyncio.Event()).wait())
    while not thread.done():
        try:
            waiting = [thread] if reports.stopped else [thread, stop]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            reports.stopped |= stop.done()
        except asyncio.CancelledError:
            reports.stopped = cancelled = True
    stop.cancel()
    done = await thread
    if cancelled:
        raise asyncio.CancelledError
    return done


def end_with_parent() -> None:
    """End this process at once when its parent is gone, which holds the other end of its input."""
    # Not by `sys.stdin`, whose lock could not be released at the end of this process.
    while os.read(0, 1):
        pass
    os._exit(1)


def main(folder: str, *stages: str) -> int:
    """Run stages in this process, and return its exit code."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    progress = StageProgress()
    try:
        run = Run.open(folder)
        for name in stages:
            progress.write(began=name)
            if name == LIVE:
                from llm_elicit.pipeline.live import write_live

                write_live(run, progress)
            else:
                make(run, name, progress, force=False)
            progress.write(ended=name)
    except ElicitError as error:
        progress.write(error=str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == CHILD:
        # Another service may take the run over, and must not fit it beside this process.
        threading.Thread(target=end_with_parent, daemon=True).start()
        arguments.pop(0)
    sys.exit(main(*arguments))
