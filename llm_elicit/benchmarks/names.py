"""The names of the tables, apart from what computes them: `--help` shows them."""

TABLES = (
    "table1", "marginalization", "ablation", "runtime", "adaptive", "coverage", "power", "faint",
)  # fmt: skip
