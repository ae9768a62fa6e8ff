"""`llm-elicit compare`: judges side by side, of one run or of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from llm_elicit._util.console import console
from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    from llm_elicit import orchestrator
    from llm_elicit.audit import Versus
    from llm_elicit.audit.inference import Interval
    from llm_elicit.pipeline import run_folder as runs
    from llm_elicit.pipeline import stages
else:
    orchestrator = LazyModule("llm_elicit.orchestrator")
    runs = LazyModule("llm_elicit.pipeline.run_folder")
    stages = LazyModule("llm_elicit.pipeline.stages")

_out = console()

Where = Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs: folders, or names.")]
Out = Annotated[Path | None, typer.Option(help="Write the whole record here, as JSON.")]


def compare_command(where: Where, out: Out = None) -> None:
    """Judges side by side: do they prefer alike, believe alike, and which is nearer to the data?"""
    if out is not None and out.suffix != ".json":
        raise InputError(f"--out {out}: the record is JSON; name a file that ends in .json")
    if out is not None and not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}; make it first")
    found = [cell for name in where for cell in runs.open_runs(name)]
    with orchestrator.Display() as progress:
        versus = stages.compare(found, progress)
    _show(versus)
    if out is not None:
        out.write_text(versus.model_dump_json(indent=1) + "\n", encoding="utf-8")
        _out.print(f"record: {out}")


def _show(versus: Versus) -> None:
    table = Table(
        "judge", "judge", "rank correlation", "at most", "pairs", "choose alike", box=None
    )
    for said in versus.agreements:
        alike = "-" if said.share is None else _interval(said.share)
        ranks = _interval(said.rank_correlation), f"{said.rank_ceiling:.3f}"
        table.add_row(said.first, said.second, *ranks, str(said.pairs), alike)
    _out.print(table)
    _out.print(
        "Rank correlations are of the utilities over λ, at most as high as between two draws of "
        "one judge's own. None of this depends on how sharp a belief is; what follows does."
    )
    table = Table("judge", "judge", "apart", "floor", "differ in", box=None)
    for gap in versus.gaps:
        named = ", ".join(gap.separated_by) or "nothing shown at 5 %"
        apart = _interval(gap.distance)
        table.add_row(gap.first, gap.second, apart, f"{gap.floor:.3f}", named)
    _out.print(table)
    if versus.standings is None:
        _out.print("The space has no table: there are no data to be near to.")
        return
    table = Table("place", "judge", "from the data", box=None)
    for standing in versus.standings:
        tied = standing.best != standing.worst
        place = f"{standing.best}-{standing.worst}" if tied else f"{standing.best}"
        table.add_row(place, standing.judge, _interval(standing.distance))
    table.add_row("", "λ", f"{versus.sampling:.3f}")
    table.add_row("", "half of the data", f"{versus.data_floor:.3f}")
    _out.print(table)
    _out.print(
        "Distances are Wasserstein-1 of the marginals in standard deviations of the data, averaged "
        "over features, with 90 % intervals; judges who share places are tied (Holm, 5 %). See "
        "docs/how-to/compare.md."
    )


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
