"""A campaign in a process of its own, to be killed: `child.py URL FOLDER PAIRS [expert direct]`."""

import sys
from pathlib import Path

from llm_elicit.errors import ElicitError
from orchestrator.conftest import EXPERT, claude
from orchestrator.running import campaign, run

DIRECT = {"quantiles": 2, "samples": 40, "rows": 20}


def study(url: str, pairs: int, *more: str):
    """Eight slots; without the expert the child need not load the density core."""
    judges = [claude(url, concurrency=8), *([EXPERT] if "expert" in more else [])]
    return campaign(judges, pairs=pairs, **({"direct": DIRECT} if "direct" in more else {}))


if __name__ == "__main__":
    url, folder, pairs, *rest = sys.argv[1:]
    try:
        summary = run(study(url, int(pairs), *rest), Path(folder))
    except ElicitError as error:
        sys.stdout.write(f"refused: {error}" + "\n")
        sys.exit(error.exit_code)
    sys.stdout.write(f"interrupted={summary.interrupted} complete={summary.complete}\n")
