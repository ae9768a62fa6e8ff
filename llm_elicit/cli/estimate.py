"""`llm-elicit estimate` and `run --dry-run`: what a campaign would ask, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.rule import Rule

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.cli.options import CampaignName, cell_name, cell_table, out

if TYPE_CHECKING:
    from llm_elicit import orchestrator
    from llm_elicit.pipeline import run_folder
    from llm_elicit.pipeline.run_folder import Run
else:
    orchestrator = LazyModule("llm_elicit.orchestrator")
    run_folder = LazyModule("llm_elicit.pipeline.run_folder")


def estimate_command(campaign: CampaignName) -> None:
    """Questions, tokens and USD by judge and model, before anything is sent."""
    print_estimate(run_folder.open_runs(campaign))


def print_examples(cells: Sequence[Run]) -> None:
    """Print some questions as they would be sent."""
    for cell in cells:
        for prompt in orchestrator.examples(cell.campaign, cell.space, cell.plan):
            for message in prompt.messages:
                out.print(f"[{message.role}]", style="bold")
                out.print(visible(message.content, 9999))
            out.print(Rule(), width=80)


def print_estimate(cells: Sequence[Run]) -> None:
    """Print questions, tokens and cost of the questions that have no answer yet."""
    names = ("judge", "model", "questions", "prompt tokens", "cached", "answer tokens")
    table = cell_table(cells, *names, "USD", "at most", "in batch mode")
    lines: list[orchestrator.JudgeEstimate] = []
    done = 0
    for cell in cells:
        answered = cell.answered
        done += sum(sum(counts.values()) for counts in answered.values())
        for line in orchestrator.estimate(cell.campaign, cell.space, cell.plan, answered):
            lines.append(line)
            table.add_row(*cell_name(cells, cell), *_row(line))
    out.print(table)
    known = [line for line in lines if line.cost is not None]
    total, most = (sum(getattr(line, key) for line in known) for key in ("cost", "most"))
    unknown = "" if len(known) == len(lines) else ", without the models of unknown price"
    out.print(f"In all {_usd(total)} USD, at most {_usd(most)}{unknown}. Nothing was sent.")
    if done:
        out.print(f"{done:,} questions are answered already and left out.")


def _row(line: orchestrator.JudgeEstimate) -> list[str]:
    near = "" if line.exact else "~"
    counts = [f"{near}{line.prompt_tokens:,}", f"~{line.cached_tokens:,}"]
    answers = f"~{line.completion_tokens:,}"
    prices = [_usd(line.cost), _usd(line.most), _usd(line.batch) if line.batch else "-"]
    return [line.judge, line.model, f"{line.requests:,}", *counts, answers, *prices]


def _usd(amount: float | None) -> str:
    return "unknown price" if amount is None else f"{amount:.4f}"
