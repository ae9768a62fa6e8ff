"""Stand-ins for a benchmark's job that are quick or fail on purpose."""

import os
from pathlib import Path

from benchmarks import Job, Row

MARK = "LLM_ELICIT_TEST_FOLDER"


def quick(job: Job) -> Row:
    """A row of made-up numbers; leaves a mark that says it ran."""
    with (Path(os.environ[MARK]) / job.name).open("a") as mark:
        mark.write("x")
    return {
        "w1": 0.1 * job.seed,
        "w1_floor": 0.05,
        "mmtv": 0.2,
        "mmtv_floor": 0.03,
        "fit_seconds": 2.0,
        "sample_seconds": 1.0,
        "peak_mib": 100.0,
    }


def odd_seeds_fail(job: Job) -> Row:
    """Odd seeds raise."""
    if job.seed % 2:
        raise ValueError("the fit did\nnot converge")
    return quick(job)
