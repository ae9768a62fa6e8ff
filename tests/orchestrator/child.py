"""A campaign in a process of its own, to be killed: `child.py URL FOLDER PAIRS`."""

import sys
from pathlib import Path

from llm_elicit.errors import ElicitError
from orchestrator.conftest import EXPERT, claude
from orchestrator.running import campaign, run


def study(url: str, pairs: int):
    return campaign([claude(url, concurrency=8), EXPERT], pairs=pairs)


if __name__ == "__main__":
    url, folder, pairs = sys.argv[1:]
    try:
        summary = run(study(url, int(pairs)), Path(folder))
    except ElicitError as error:
        sys.stdout.write(f"refused: {error}" + "\n")
        sys.exit(error.exit_code)
    sys.stdout.write(f"interrupted={summary.interrupted} complete={summary.complete}\n")
