"""Time and memory that a fit will take, estimated beforehand.

The utility's quadratic form over p features has P = p + p (p + 1)/2 coefficients. Its fit holds
their design (n, P) and about eight matrices (P, P), in double precision. A category of K words is
K − 1 features.
"""

from __future__ import annotations

from pathlib import Path

from llm_elicit.density.errors import DensityError
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.uniform import Uniform

_MATRICES = 8
_GIB = 2**30


def features_of(sampling: SamplingDensity) -> int:
    """Return the number of features p of the utility.

    Examples
    --------
    >>> features_of(Uniform([0.0, 0.0], [1.0, 3.0], categorical=[False, True]))
    4
    """
    if not isinstance(sampling, Uniform):
        return sampling.dimension
    words = (sampling.high - sampling.low)[sampling.categorical]
    return int(sampling.dimension + sampling.periodic.sum() - len(words) + words.sum())


def memory_of(n: int, features: int) -> int:
    """Return about how many bytes the fit of a utility to n comparisons holds at once.

    Examples
    --------
    >>> memory_of(200, 8) < 10**6, memory_of(200, 5000) > 10**15
    (True, True)
    """
    terms = features + features * (features + 1) // 2
    return 8 * terms * (2 * n + _MATRICES * terms)


def seconds_of(n: int, sampling: SamplingDensity) -> float:
    """Return about how many seconds of one core the fit of a utility to n comparisons takes.

    With its draws. A score takes more.

    Examples
    --------
    >>> square = Uniform([0.0, 0.0], [1.0, 1.0])
    >>> seconds_of(200, square) < 60 < seconds_of(100_000, square)
    True
    """
    features = features_of(sampling)
    terms = features + features * (features + 1) // 2
    return float(3.0 * (n / 200.0) ** 0.6 + 1.3e-8 * terms**3)


def check_memory(n: int, sampling: SamplingDensity) -> None:
    """Raise unless the fit of a utility to n comparisons fits into free memory.

    Raises
    ------
    DensityError : with the memory that it would take and what is free.
    """
    features = features_of(sampling)
    wanted, free = memory_of(n, features), free_memory()
    if free is not None and wanted > free:
        raise DensityError(
            f"fit: {n:,} comparisons over {features:,} features (each word of a category but one "
            f"counts) take about {wanted / _GIB:,.1f} GiB of memory, and {free / _GIB:,.1f} GiB "
            "are free; ask about fewer features, or put rare words together."
        )


def free_memory() -> int | None:
    """Return the bytes that this process may still allocate; None where that is unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
        return int(free.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None
