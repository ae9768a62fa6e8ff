"""`llm-elicit compare`: judges side by side, of one run or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from llm_elicit._util.text import visible
from llm_elicit.audit.judge_comparison import JudgeComparison
from llm_elicit.audit.repeats import RepeatComparison
from llm_elicit.cli.options import AsJson, interval, print_json
from llm_elicit.cli.options import out as console_out
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import progress as displays
from llm_elicit.pipeline import repeats, run_folder, stages

Where = Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders or names.")]
Out = Annotated[
    Path | None, typer.Option(help="File for the results: .json, or .html for repeats of a run.")
]


def compare_command(where: Where, out: Out = None, as_json: AsJson = False) -> None:
    """Compare judges with each other and the data, or a run with its repeats."""
    if out is not None and out.suffix not in (".json", ".html"):
        raise InputError(
            f"--out {out}: the results are written as JSON, or for repeats also as a page; name a "
            ".json or .html file"
        )
    if out is not None and not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}; create it first")
    cells = [cell for name in where for cell in run_folder.open_runs(name)]
    series = repeats.series_of(cells)
    if series is None and out is not None and out.suffix != ".json":
        raise InputError(f"--out {out}: only repeats of a run have a page; name a .json file")
    comparison: JudgeComparison | RepeatComparison
    with displays.Display() as progress:
        if series is None:
            comparison = stages.compare(cells, progress)
        else:
            comparison = stages.compare_repeats(series, progress)
    if out is not None:
        text = f"{comparison.model_dump_json(indent=1)}\n"
        if isinstance(comparison, RepeatComparison) and out.suffix == ".html":
            from llm_elicit.report.page import render_repeats  # noqa: PLC0415 - with Matplotlib

            text = render_repeats(comparison)
        out.write_text(text, encoding="utf-8")
    if as_json:
        print_json(comparison)
        return
    if isinstance(comparison, JudgeComparison):
        _show(comparison)
    else:
        _show_repeats(comparison)
    if out is not None:
        console_out.print(f"record: {out}")


def _show_repeats(comparison: RepeatComparison) -> None:
    for judge in comparison.judges:
        console_out.print(judge.judge, style="bold")
        effects = list(dict.fromkeys(name for run in judge.runs for name in run.effects))
        table = Table(
            "run", "from", "version", "verdict", "AUC", "position effect", *effects, box=None
        )
        for run in judge.runs:
            versions = ", ".join(visible(name, 80) for name in run.versions) or "-"
            numbers = [interval(e) for e in (run.auc, run.position)]
            numbers += [interval(run.effects.get(name)) for name in effects]
            table.add_row(run.run, run.first[:10], versions, run.verdict, *numbers)
        console_out.print(table)
        for line in judge.sentences:
            console_out.print(line)
    console_out.print(
        "Effects are log-odds over the middle half of a feature's range, with 95 % intervals. The "
        "tests are exact permutations of the runs within each pair. See docs/how-to/compare.md."
    )


def _show(comparison: JudgeComparison) -> None:
    lines = {line.judge: line for line in [*(comparison.ranking or ()), *comparison.unranked]}
    table = Table("judge", "verdict", box=None)
    for name in comparison.judges:
        table.add_row(name, lines[name].verdict)
    console_out.print(table)
    table = Table(
        "judge", "judge", "rank correlation", "self-correlation", "pairs", "choose alike",
        "p alike", box=None,
    )  # fmt: skip
    for pair in comparison.agreements:
        alike = "-" if pair.same_choice_share is None else interval(pair.same_choice_share, 3)
        ranks = interval(pair.rank_correlation, 3), f"{pair.self_correlation:.3f}"
        p_alike = "-" if pair.p_alike is None else f"{pair.p_alike:.2g}"
        table.add_row(pair.first, pair.second, *ranks, str(pair.pairs), alike, p_alike)
    console_out.print(table)
    console_out.print(
        "Rank correlations are of the utilities over λ; two judges who agree completely reach "
        "the self-correlation. p alike: exact, unadjusted, that both answer the same questions "
        "alike. These numbers do not depend on the sharpness of the beliefs; the distances below "
        "do."
    )
    table = Table("judge", "judge", "distance", "floor", "differ in", box=None)
    for difference in comparison.differences:
        named = ", ".join(difference.differing_features) or "no significant difference"
        if different := difference.asked_in_different:
            named += f" (asked in different {different}, which may be why)"
        distance, floor = interval(difference.distance, 3), f"{difference.floor:.3f}"
        table.add_row(difference.first, difference.second, distance, floor, named)
    console_out.print(table)
    if comparison.ranking is None:
        console_out.print("The space has no table, so judges are not ranked by distance from data.")
        return
    names = ("rank", "judge", "distance from its data", "λ", "floor", "")
    table = Table(*names, box=None)
    for line in (*comparison.ranking, *comparison.unranked):
        rank = "-" if line.best_rank is None else f"{line.best_rank}"
        if line.best_rank != line.worst_rank:
            rank = f"{line.best_rank}-{line.worst_rank}"
        distance = "-" if line.distance is None else interval(line.distance, 3)
        numbers = [
            "-" if value is None else f"{value:.3f}"
            for value in (line.sampling_distance, line.floor)
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
