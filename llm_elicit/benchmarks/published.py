"""The published numbers, for comparison with ours (Mikkola, Acerbi and Klami, 2026).

Means over ten seeds with their standard deviations beside them. The paper's computer had two
Intel Xeon Cascade Lake processors of 20 cores each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A mean over ten seeds and its standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True)
class PublishedSeconds:
    """Mean seconds: training the score, estimating τ(x), drawing 25,000 to 40,000 samples."""

    training: float
    tempering: float
    sampling: float
    per_sample: float

    @property
    def total(self) -> float:
        """All three."""
        return self.training + self.tempering + self.sampling


_TABLE_1 = """
Onemoon2D           1.37 0.03  0.44 0.13  0.37 0.14  0.54 0.00  0.25 0.06  0.22 0.06
Twomoons2D          1.29 0.06  0.54 0.14  0.44 0.09  0.53 0.01  0.15 0.03  0.14 0.02
Ring2D              0.87 0.03  0.40 0.07  0.39 0.08  0.40 0.01  0.27 0.01  0.26 0.01
Gaussian4D          6.12 0.05  1.69 0.22  1.40 0.24  0.72 0.01  0.41 0.05  0.44 0.08
Mixturegaussians4D  3.75 0.02  1.23 0.06  1.09 0.09  0.53 0.01  0.27 0.01  0.22 0.02
Stargaussian6D      2.25 0.02  1.55 0.04  1.28 0.04  0.19 0.00  0.18 0.02  0.16 0.01
Mixturegaussians10D 1.41 0.01  1.10 0.12  1.33 0.11  0.19 0.00  0.14 0.02  0.26 0.06
Gaussian16D         5.50 0.03  5.00 0.07  5.00 0.06  0.16 0.00  0.13 0.00  0.13 0.00
"""
_COLUMNS = [(m, k) for m in ("w1", "mmtv") for k in ("flow", "score-constant", "score")]


def _table_1() -> dict[tuple[str, str, str], Published]:
    found = {}
    for line in _TABLE_1.strip().splitlines():
        target, *cells = line.split()
        numbers = [float(cell) for cell in cells]
        for place, (metric, method) in enumerate(_COLUMNS):
            found[target, method, metric] = Published(*numbers[2 * place : 2 * place + 2])
    return found


TABLE_1 = _table_1()

SECONDS = {
    "Onemoon2D": PublishedSeconds(80, 49, 690, 0.0276),
    "Twomoons2D": PublishedSeconds(81, 48, 701, 0.0280),
    "Ring2D": PublishedSeconds(82, 47, 692, 0.0277),
    "Gaussian4D": PublishedSeconds(283, 2660, 7187, 0.2872),
    "Mixturegaussians4D": PublishedSeconds(262, 4560, 6958, 0.2783),
    "Stargaussian6D": PublishedSeconds(440, 3364, 12053, 0.4018),
    "Mixturegaussians10D": PublishedSeconds(653, 6728, 27314, 0.6829),
    "Gaussian16D": PublishedSeconds(797, 4977, 47477, 1.1870),
}

# Wasserstein distance between winners drawn jointly with their losers and winners drawn alone.
MARGINALIZATION = {
    "Onemoon2D": Published(0.085, 0.009),
    "Twomoons2D": Published(0.072, 0.010),
    "Ring2D": Published(0.077, 0.012),
    "Gaussian4D": Published(0.069, 0.001),
    "Mixturegaussians4D": Published(0.071, 0.002),
    "Stargaussian6D": Published(0.156, 0.001),
    "Mixturegaussians10D": Published(0.366, 0.001),
    "Gaussian16D": Published(0.671, 0.001),
}


def published(target: str, method: str, metric: str) -> Published | None:
    """Return the paper's number for a target, a method and ``"w1"`` or ``"mmtv"``, if it has one.

    A method that the paper does not have stands beside the paper's own, ``score``.

    Example:
        >>> published("Ring2D", "score", "w1")
        Published(mean=0.39, sd=0.08)
    """
    known = method if (target, method, metric) in TABLE_1 else "score"
    return TABLE_1.get((target, known, metric))


PAPER_FLOORS = {
    "Onemoon2D": 0.015, "Twomoons2D": 0.046, "Ring2D": 0.045, "Gaussian4D": 0.140,
    "Mixturegaussians4D": 0.188, "Stargaussian6D": 0.334, "Mixturegaussians10D": 0.628,
    "Gaussian16D": 2.16,
}  # fmt: skip
"""Wasserstein distances between two true samples of the paper's 15,000 points."""
