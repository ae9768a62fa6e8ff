"""The stages after asking, and the view of a run that still asks, in a process of their own.

A fit takes seconds of all processors and imports PyTorch. In a process of its own it neither blocks
the event loop of a service nor slows its requests down, and it can be stopped.

`python -m llm_elicit.pipeline.stage_process FOLDER STAGE...` runs stages of the run in a folder. It
writes what happens to standard output, one JSON object a line; see `StageProgress`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator import Tally
from llm_elicit.pipeline.audit import audit
from llm_elicit.pipeline.fit import fit
from llm_elicit.pipeline.live import write_live
from llm_elicit.pipeline.report import report
from llm_elicit.pipeline.run_folder import Run

STAGES = {"fit": fit, "audit": audit, "report": report, "live": write_live}

_NICENESS = 15
"""How far the stages stand back behind the requests of this machine's services."""

_LONGEST = 2**20
"""The most bytes of a line."""

_LAST = 2_000
"""The number of bytes of standard error that are kept."""


class StageFailedError(ElicitError):
    """The process of a stage ended without a result."""


class StageProgress:
    """A progress that writes one JSON object a line: "stage", "note", "ended" or "error"."""

    def tally(self, judge: str, tally: Tally) -> None:
        """Write nothing: these stages do not ask."""

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
        stages: names of `STAGES`, in order.

    Raises:
        InputError: a stage refused its input; the message is that of the stage.
        StageFailedError: the process failed otherwise, or was killed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(folder), *stages,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, limit=_LONGEST, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    refusal = None
    try:
        async for line in process.stdout:
            said = json.loads(line)
            refusal = said.get("error", refusal)
            yield said
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
        why = last.splitlines()[-1] if last else f"it ended with code {code}"
        raise StageFailedError(f"{folder}: {', '.join(stages)} failed: {why}")


def main(folder: str, *stages: str) -> int:
    """Run stages in this process, and return its exit code."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    progress = StageProgress()
    try:
        run = Run.open(folder)
        for name in stages:
            progress.write(began=name)
            STAGES[name](run, progress)
            progress.write(ended=name)
    except ElicitError as error:
        progress.write(error=str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
