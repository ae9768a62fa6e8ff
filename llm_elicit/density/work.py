"""Time and memory that a fit will take, estimated beforehand.

The utility's quadratic form over p features has P = p + p (p + 1)/2 coefficients, less the products
within one feature's categories. Its fit holds their design (n, P) and about eight matrices (P, P),
in double precision. A category of K words is K − 1 features, and a periodic feature two.
"""

from __future__ import annotations

from pathlib import Path

from llm_elicit.density.errors import DensityError
from llm_elicit.density.sampling import SamplingDensity
from llm_elicit.density.uniform import Uniform

_MOST_CATEGORIES = 200  # of one feature
_MATRICES = 8
_GIB = 2**30


def features_of(sampling: SamplingDensity) -> int:
    """Return the number of features p of the utility."""
    return int(sampling.dimension + sampling.periodic.sum() + sum(n - 1 for n in _words(sampling)))


def terms_of(sampling: SamplingDensity) -> int:
    """Return the number of coefficients P of the quadratic form."""
    features = features_of(sampling)
    within = sum(n * (n + 1) // 2 for n in _words(sampling))
    return features + features * (features + 1) // 2 - within


def _words(sampling: SamplingDensity) -> list[int]:
    """Return the number of words less one of each categorical feature."""
    if not isinstance(sampling, Uniform):
        return []
    return [round(less) for less in (sampling.high - sampling.low)[sampling.categorical]]


def seconds_of(n: int, sampling: SamplingDensity) -> float:
    """Return about how many seconds of one core a fit by "auto" to n comparisons takes, with draws.

    Examples
    --------
    >>> square = Uniform([0.0, 0.0], [1.0, 1.0])
    >>> seconds_of(200, square) < 60 < seconds_of(100_000, square)
    True
    """
    return float(3.0 * (n / 200.0) ** 0.6 + 1.3e-8 * terms_of(sampling) ** 3)


def check_work(n: int, sampling: SamplingDensity) -> None:
    """Raise unless a utility can be fitted to n comparisons in the memory that is free."""
    most = max(_words(sampling), default=0) + 1
    if most > _MOST_CATEGORIES:
        raise DensityError(
            f"fit: a feature has {most:,} categories, {_MOST_CATEGORIES} at most can be fitted; "
            "put rare ones together."
        )
    terms, free = terms_of(sampling), _free_memory()
    wanted = 8 * terms * (2 * n + _MATRICES * terms)
    if free is not None and wanted > free:
        raise DensityError(
            f"fit: {n:,} comparisons over {features_of(sampling):,} features (each word of a "
            f"category but one counts) take about {wanted / _GIB:,.1f} GiB of memory, and "
            f"{free / _GIB:,.1f} GiB are free; ask about fewer features, or put rare words "
            "together."
        )


def _free_memory() -> int | None:
    """Return the bytes that this process may still allocate; None where that is unknown."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
        return int(free.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None
