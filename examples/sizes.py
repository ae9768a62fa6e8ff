"""One fit of a chosen size: seconds, peak memory and how far the belief is from the truth.

    python examples/sizes.py --comparisons 50 --features 1 --method utility

The judge's belief is N(0.3, 0.5²) in each feature, cut by the box [−1, 1]^d it is asked in.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

import numpy as np
import numpy.typing as npt

from llm_elicit.density import Noise, Uniform, fit_belief, simulate_choices

CENTRE, SD, TRUE_MEAN, TRUE_SD = 0.3, 0.5, 0.226, 0.421


def log_belief(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log-density (n,) up to a constant at points (n, d)."""
    return np.asarray(-0.5 * ((x - CENTRE) ** 2).sum(axis=1) / SD**2)


def measure(comparisons: int, features: int, method: str) -> dict[str, object]:
    """Ask, fit, draw 1000 points, and say what it took."""
    box = Uniform(-np.ones(features), np.ones(features))
    rng = np.random.default_rng(0)
    a, b = box.sample(comparisons, rng), box.sample(comparisons, rng)
    wins = simulate_choices(log_belief(a), log_belief(b), Noise(), rng)[:, None]
    wall, processor = time.perf_counter(), time.process_time()
    belief = fit_belief(
        np.where(wins, a, b), np.where(wins, b, a), sampling=box, method=method, seed=1
    )
    x = belief.sample(1000, seed=1)
    seconds, of_processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "comparisons": comparisons,
        "features": features,
        "method": method,
        "seconds": round(seconds, 1),
        "processor_seconds": round(of_processor, 1),
        "peak_mib": peak // (1024 if sys.platform == "linux" else 1024**2),
        "mean": round(float(x.mean()), 3),
        "true_mean": TRUE_MEAN,
        "sd": round(float(x.std(axis=0).mean()), 3),
        "true_sd": TRUE_SD,
        "log_prob_error": belief.diagnostics["log_prob_error"]["total"],
        "effective_share": belief.diagnostics["sampler"]["effective_share"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=50)
    parser.add_argument("--features", type=int, default=1)
    parser.add_argument("--method", default="utility")
    chosen = parser.parse_args()
    print(json.dumps(measure(chosen.comparisons, chosen.features, chosen.method)))
