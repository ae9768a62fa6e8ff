"""One benchmark job: simulate a judge, fit, sample, and measure the error of the samples."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import Job, Row
from benchmarks.targets import Target, find
from benchmarks.variants import variant
from llm_elicit.density import BeliefDensity, Noise, fit_belief, simulate_choices

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Streams:
    """Independent random numbers of one job, from its target and seed alone.

    The same for every method and variant, so that all see the same comparisons.
    """

    pairs: np.random.Generator
    choices: np.random.Generator
    truth: np.random.Generator
    fit: int
    draw: int

    @classmethod
    def of(cls, target: str, seed: int) -> Streams:
        """Return the streams of a target and a seed.

        Examples:
            >>> Streams.of("Ring2D", 1).fit == Streams.of("Ring2D", 2).fit
            False
        """
        root = np.random.SeedSequence([zlib.crc32(target.encode()), seed])
        pairs, choices, truth, fit, draw = root.spawn(5)
        return cls(
            np.random.default_rng(pairs),
            np.random.default_rng(choices),
            np.random.default_rng(truth),
            int(fit.generate_state(1)[0]),
            int(draw.generate_state(1)[0]),
        )


def compare(
    target: Target, n: int, streams: Streams, noise: Noise | None = None
) -> tuple[Array, Array]:
    """Return winners and losers (n, d) of pairs drawn from λ, judged by the target.

    The judge's noise is the paper's unless another is given.

    Examples:
        >>> winners, losers = compare(find(["Ring2D"])[0], 100, Streams.of("Ring2D", 11))
        >>> winners.shape
        (100, 2)
    """
    a, b = (target.sampling.sample(n, streams.pairs) for _ in range(2))
    return choose(target, (a, b), streams, noise)


def choose(
    target: Target, pairs: tuple[Array, Array], streams: Streams, noise: Noise | None = None
) -> tuple[Array, Array]:
    """Return winners and losers (n, d) of given pairs, judged as by `compare`."""
    a, b = pairs
    utilities = target.log_density(a), target.log_density(b)
    wins = simulate_choices(*utilities, noise or Noise(), streams.choices)[:, None]
    return np.where(wins, a, b), np.where(wins, b, a)


def measure(job: Job) -> Row:
    """Run a job in this process and return its row: distances, seconds, memory, provenance.

    Examples:
        >>> job = Job("table1", "Ring2D", "utility", seed=11, n=80, points=200, samples=500)
        >>> row = measure(job)
        >>> row["w1"] > 0 and row["peak_mib"] > 50
        True
    """
    target = find([job.target])[0]
    streams = Streams.of(job.target, job.seed)
    winners, losers = compare(target, job.n, streams)
    began = time.process_time()
    belief = _fit(job, target, winners, losers, streams.fit)
    fitted = time.process_time()
    drawn = belief.sample(job.samples, seed=streams.draw)
    sampled = time.process_time()
    row = {
        "dimension": target.dimension,
        "fit_seconds": fitted - began,
        "sample_seconds": sampled - fitted,
        "peak_mib": peak_mib(),  # before the distances, whose cost matrix is larger
        "held_out_log_likelihood": belief.diagnostics.get("held_out_log_likelihood"),
        "diagnostics": json.dumps(belief.diagnostics, default=str),
        **_distances(job, target, drawn, streams),
    }
    return {**row, **provenance_of(sampled)}


def _fit(job: Job, target: Target, winners: Array, losers: Array, seed: int) -> BeliefDensity:
    chosen = variant(job.method, job.variant)
    return fit_belief(
        winners,
        losers,
        sampling=target.sampling,
        method=chosen.method,
        noise=Noise(),
        seed=seed,
        settings=chosen.settings_for(target.dimension),
    )


def _distances(job: Job, target: Target, drawn: Array, streams: Streams) -> Row:
    names = ("w1", "mmtv", "w1_floor", "mmtv_floor")
    if not job.points:
        return dict.fromkeys(names)
    # Not before the fit: what these bring in would count into its memory.
    from benchmarks.metrics import distances, floor  # noqa: PLC0415

    truth = target.sample(job.samples, streams.truth)
    ours = distances(drawn, truth, job.points)
    chance = floor(target, job.samples, job.points, streams.truth)
    return dict(zip(names, (*ours, *chance), strict=True))


def reset_peak() -> None:
    """Let the peak memory of this process be its present memory, where Linux can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_mib() -> float:
    """Return the peak memory of this process, MiB.

    Read from Linux if possible, since `getrusage` may also count the parent's memory when it
    started this process.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource  # noqa: PLC0415 - only where there is one

        scale = 2**20 if platform.system() == "Darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def provenance_of(sampled: float) -> Row:
    """Return the origin of a row: seconds since sampling ended, commit, machine and date."""
    return {
        "measure_seconds": time.process_time() - sampled,
        "commit": _commit(),
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine() -> str:
    """Return the processor's name and the number of its cores that this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} cores"


def _commit() -> str | None:
    """Return the checkout's commit, with a + if files differ from it; None without a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, check=True
        )
        state = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.decode().strip() + ("+" if state.stdout.strip() else "")
