"""`llm-elicit compare`: judges side by side, of one run or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from llm_elicit.audit.judge_comparison import JudgeComparison
from llm_elicit.cli.options import AsJson, interval, print_json
from llm_elicit.cli.options import out as console_out
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline import run_folder, stages

Where = Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders or names.")]
Out = Annotated[Path | None, typer.Option(help="File for the complete results, .json.")]


def compare_command(where: Where, out: Out = None, as_json: AsJson = False) -> None:
    """Compare judges with each other and with the data."""
    if out is not None and out.suffix != ".json":
        raise InputError(f"--out {out}: the record is JSON; name a file that ends in .json")
    if out is not None and not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}; create it first")
    cells = [cell for name in where for cell in run_folder.open_runs(name)]
    with displays.Display() as progress:
        comparison = stages.compare(cells, progress)
    if out is not None:
        out.write_text(comparison.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(comparison)
        return
    _show(comparison)
    if out is not None:
        console_out.print(f"record: {out}")


def _show(comparison: JudgeComparison) -> None:
    lines = {line.judge: line for line in [*(comparison.ranking or ()), *comparison.unranked]}
    table = Table("judge", "verdict", box=None)
    for name in comparison.judges:
        table.add_row(name, lines[name].verdict)
    console_out.print(table)
    table = Table(
        "judge", "judge", "rank correlation", "repeatability", "pairs", "choose alike", box=None
    )
    for pair in comparison.agreements:
        alike = "-" if pair.share is None else interval(pair.share, 3)
        ranks = interval(pair.rank_correlation, 3), f"{pair.repeatability:.3f}"
        table.add_row(pair.first, pair.second, *ranks, str(pair.pairs), alike)
    console_out.print(table)
    console_out.print(
        "Rank correlations are of the utilities over λ; two judges who agree completely reach "
        "the repeatability. These numbers do not depend on the sharpness of the beliefs; those "
        "below do."
    )
    table = Table("judge", "judge", "distance", "floor", "differ in", box=None)
    for difference in comparison.differences:
        named = ", ".join(difference.differing_features) or "no significant difference"
        distance, floor = interval(difference.distance, 3), f"{difference.floor:.3f}"
        table.add_row(difference.first, difference.second, distance, floor, named)
    console_out.print(table)
    if comparison.ranking is None:
        console_out.print("The space has no table, so judges are not ranked by distance from data.")
        return
    names = ("rank", "judge", "distance from its data", "λ", "floor", "")
    table = Table(*names, box=None)
    for line in (*comparison.ranking, *comparison.unranked):
        rank = "-" if line.best is None else f"{line.best}"
        if line.best != line.worst:
            rank = f"{line.best}-{line.worst}"
        distance = "-" if line.distance is None else interval(line.distance, 3)
        numbers = [
            "-" if value is None else f"{value:.3f}" for value in (line.sampling, line.floor)
        ]
        table.add_row(rank, line.judge, distance, *numbers, line.remark)
    console_out.print(table)
    console_out.print(
        "Distances are Wasserstein-1 of the marginals in standard deviations of the data, "
        "averaged over features, with 90 % intervals. The floor is the distance between two "
        "halves of the data. Judges who share ranks are tied (5 %, Holm-adjusted). A judge "
        "without a rank has no preference, or is no nearer to the data than λ. See "
        "docs/how-to/compare.md."
    )
