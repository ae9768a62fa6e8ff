"""The paper's targets and tables, run by `python -m benchmarks`.

Source of targets, protocol and published numbers: Mikkola, Acerbi and Klami (2026), "Score-based
density estimation from pairwise comparisons", section 5 and appendix E.

This module has the names of the tables and one job of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TABLES = {
    "table1": "Distances from the paper's targets, method by method.",
    "marginalization": "Winners' density learnt jointly with the losers' or alone.",
    "ablation": "Variants of the methods.",
    "runtime": "Time and memory only.",
    "adaptive": "Pairs chosen in rounds.",
    "coverage": "Coverage of credible bands.",
    "power": "False alarms and power of the test of a preference.",
    "low-amplitude": "Judges of low amplitude.",
}
"""The tables of fits, and what each measures."""

Row = dict[str, Any]
DEFAULT = "default"


@dataclass(frozen=True)
class Job:
    """One fit to measure.

    Attributes:
        table: the table it belongs to.
        target: a target's name.
        method: as in `fit_belief`.
        seed: of everything random.
        n: comparisons.
        variant: named settings, or the method's default.
        points: of each sample of the Wasserstein distance; 0 measures only time and memory.
        samples: drawn from the belief.
    """

    table: str
    target: str
    method: str
    seed: int
    n: int
    variant: str = DEFAULT
    points: int = 4000
    samples: int = 25_000

    @property
    def name(self) -> str:
        """A readable file name.

        Examples:
            >>> Job("table1", "Ring2D", "utility", 1, 2000).name
            'Ring2D-utility-default-001-n2000'
        """
        return f"{self.target}-{self.method}-{self.variant}-{self.seed:03d}-n{self.n}"
