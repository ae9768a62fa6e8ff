"""Bands of the same answers, fitted with many seeds: how far do their ends move?

    python -m benchmarks.band_stability --data Onemoon2D,log-odds:Gaussian4D --seeds 1-20

`--data` takes targets of the benchmarks, whose judge makes choices, or `log-odds:TARGET`, whose
judge states faint log-odds, or `run:FOLDER:JUDGE`, the answers of a run. The answers stay the same,
and a seed is that of the fit and of the posterior's draws. Each end of a 90 % band (of means and of
five quantiles) is compared over all fits, in units of the band's median width: its standard
deviation, and its range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import llm_elicit as le
from benchmarks.low_amplitude import LowAmplitudeJudge
from benchmarks.measure import Streams, compare
from benchmarks.run import parse_names, parse_seeds
from benchmarks.targets import find
from llm_elicit.comparisons.table import evidence_of, noise_of, sampling_of
from llm_elicit.density import BeliefDensity, band, fit_belief, fit_evidence

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
LIBRARIES = {  # torch's own kernels, OpenBLAS (NumPy, SciPy), and MKL (torch)
    "own": {},
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "OPENBLAS_CORETYPE": "Nehalem",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "OPENBLAS_CORETYPE": "Haswell",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
"""Environment of each instruction set."""
COLUMNS = (
    "data", "sd of an end / width: means", "largest", "quantiles", "largest",
    "range / width: means", "largest", "quantiles", "largest", "means inside", "fit s", "draws s",
)  # fmt: skip
Row = dict[str, Any]
Fit = Callable[[int], BeliefDensity]


def fit_of(name: str, each: int) -> Fit:
    """Return what fits the answers of a name, with ``each`` comparisons a feature, by a seed."""
    kind, _, rest = name.partition(":")
    if kind == "run":
        folder, _, judge = rest.partition(":")
        run = le.Run.open(folder)
        settings, sampling = run.campaign.fit, sampling_of(run.space)
        answers, noise = evidence_of(run.comparisons, judge, settings), noise_of(settings)
        method = settings.methods[0]
        return lambda seed: fit_evidence(
            answers, sampling=sampling, method=method, noise=noise, seed=seed
        )
    (target,) = find([rest or name])
    streams, sampling = Streams.of(target.name, 1), target.sampling
    if kind == "log-odds":
        pairs = [sampling.sample(each * target.dimension, streams.pairs) for _ in range(2)]
        log_odds = LowAmplitudeJudge.of(target, streams.choices).judge_points(*pairs)
        return lambda seed: _at_unit_power(fit_evidence(log_odds, sampling=sampling, seed=seed))
    winners, losers = compare(target, each * target.dimension, streams)
    return lambda seed: fit_belief(winners, losers, sampling=sampling, seed=seed)


def _at_unit_power(belief: BeliefDensity) -> BeliefDensity:
    """Return the belief at the power that a run without direct answers takes."""
    return belief.tempered(belief.unit_power())


def measure(name: str, each: int, seeds: tuple[int, ...]) -> list[Row]:
    """Return for each seed the ends of the bands, the belief's own values, and seconds."""
    fit, rows = fit_of(name, each), []
    for seed in seeds:
        began = time.process_time()
        belief = fit(seed)
        own = np.vstack([belief.mean(), belief.quantile(LEVELS)])
        fitted = time.process_time()
        draws = belief.draws(seed=seed)
        values = np.concatenate([draws.mean()[:, None], draws.quantile(LEVELS)], axis=1)
        drawn = time.process_time()
        ends = np.stack(band(values))
        times = {"fit": fitted - began, "draws": drawn - fitted}
        rows.append({"seed": seed, "ends": ends.tolist(), "own": own.tolist(), **times})
    return rows


def elsewhere(library: str, *request: object) -> list[Row]:
    """Return `measure` by another process with the instruction set ``library``."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.band_stability", "--child", json.dumps(request)],
        env={**os.environ, **LIBRARIES[library]}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: list[Row] = json.loads(done.stdout)
    return found


def summarize(name: str, rows: list[Row]) -> str:
    """Return one line of the table."""
    ends = np.array([row["ends"] for row in rows])  # (fits, 2, mean and quantiles, features)
    own = np.array([row["own"] for row in rows])
    width = np.median(ends[:, 1] - ends[:, 0], axis=0)
    inside = (ends[:, 0] <= own) & (own <= ends[:, 1])
    spreads = [
        found(of)
        for moved in (ends.std(0) / width, np.ptp(ends, axis=0) / width)
        for of in (moved[:, :1], moved[:, 1:])
        for found in (np.mean, np.max)
    ]
    seconds = [np.mean([row[part] for row in rows]) for part in ("fit", "draws")]
    cells = [
        *(f"{each:.3f}" for each in (*spreads, inside[:, 0].mean())),
        *map("{:.1f}".format, seconds),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="Gaussian4D")
    parser.add_argument("--comparisons-per-feature", type=int, default=10)
    parser.add_argument("--seeds", default="1-2")
    parser.add_argument("--instructions", default="own", help=", ".join(LIBRARIES))
    parser.add_argument("--rows", help="a file that each fit is appended to, as a line of JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(measure(*json.loads(chosen.child))))
        return
    each, seeds = chosen.comparisons_per_feature, parse_seeds(chosen.seeds)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for data in parse_names(chosen.data):
        rows = [
            {"data": data, "each": each, "library": library, **row}
            for library in parse_names(chosen.instructions)
            for row in elsewhere(library, data, each, seeds)
        ]
        print(summarize(data, rows), flush=True)
        if chosen.rows:
            with Path(chosen.rows).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
