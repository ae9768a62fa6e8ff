"""One process at work on a campaign, with other ceilings of waiting than the command line's.

`python -m llm_elicit.benchmarks.faults.worker CAMPAIGN PATIENCE`, the latter a `Patience` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator import Patience, ask
from llm_elicit.pipeline.run_folder import Run


def work(campaign: str, patience: Patience) -> None:
    """Ask what is open.

    Raises:
        ElicitError: what stopped the judge.
    """
    run = Run.open(campaign)
    summary = asyncio.run(ask(run.campaign, run.space, run.plan, run.folder, patience=patience))
    if summary.problems:
        raise summary.problems[0]


if __name__ == "__main__":
    try:
        work(sys.argv[1], Patience(**json.loads(sys.argv[2])))
    except ElicitError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
