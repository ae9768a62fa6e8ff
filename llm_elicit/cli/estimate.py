"""`llm-elicit estimate` and `run --dry-run`: what a campaign would ask, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.rule import Rule

from llm_elicit._util.text import visible
from llm_elicit.cli.options import (
    AsJson,
    CampaignName,
    cell_name,
    cell_table,
    out,
    print_json,
    run_facts,
)
from llm_elicit.orchestrator import estimates
from llm_elicit.pipeline import run_folder
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.planning import detectable
from llm_elicit.questions import Prompt


def estimate_command(campaign: CampaignName, as_json: AsJson = False) -> None:
    """Questions, tokens and USD by judge and model, before anything is sent."""
    print_estimate(run_folder.open_runs(campaign), as_json)


def print_estimate(cells: Sequence[Run], as_json: bool, *, with_examples: bool = False) -> None:
    """Print questions, tokens and cost of the questions that have no answer yet.

    Args:
        with_examples: whether some questions are printed as they would be sent.
    """
    estimates_of_cells = [_Estimate.of(cell, with_examples) for cell in cells]
    if as_json:
        print_json({"runs": [estimate.facts() for estimate in estimates_of_cells]})
        return
    for estimate in estimates_of_cells:
        _print_examples(estimate.examples)
    names = ("judge", "model", "questions", "prompt tokens", "cached", "answer tokens")
    table = cell_table(cells, *names, "USD", "at most", "in batch mode")
    for estimate in estimates_of_cells:
        for line in estimate.judges:
            table.add_row(*cell_name(cells, estimate.cell), *_row(line))
    out.print(table)
    lines = [line for estimate in estimates_of_cells for line in estimate.judges]
    priced = [line for line in lines if line.cost is not None]
    total, most = (sum(getattr(line, key) for line in priced) for key in ("cost", "most"))
    unknown = "" if len(priced) == len(lines) else ", without the models of unknown price"
    out.print(f"In all {_usd(total)} USD, at most {_usd(most)}{unknown}. Nothing was sent.")
    done = sum(estimate.answered for estimate in estimates_of_cells)
    for note in dict.fromkeys(estimate.note for estimate in estimates_of_cells if estimate.note):
        out.print(note)
    if done:
        out.print(f"{done:,} questions are answered already and left out.")


@dataclass(frozen=True)
class _Estimate:
    """What a run would ask, by judge, what is answered already, and what the pairs can show."""

    cell: Run
    judges: list[estimates.JudgeEstimate]
    answered: int
    examples: list[Prompt]
    note: str

    @classmethod
    def of(cls, cell: Run, with_examples: bool) -> _Estimate:
        answered = cell.answered
        arguments = cell.campaign, cell.space, cell.plan
        return cls(
            cell,
            estimates.estimate(*arguments, answered),
            sum(sum(counts.values()) for counts in answered.values()),
            estimates.examples(*arguments) if with_examples else [],
            detectable.detectable_note(cell.campaign, cell.space),
        )

    def facts(self) -> dict[str, Any]:
        facts = {"judges": self.judges, "answered": self.answered, "note": self.note}
        examples = [prompt.messages for prompt in self.examples]
        return run_facts(self.cell) | facts | ({"examples": examples} if examples else {})


def _print_examples(prompts: Sequence[Prompt]) -> None:
    """Print questions as they would be sent."""
    for prompt in prompts:
        for message in prompt.messages:
            out.print(f"[{message.role}]", style="bold")
            out.print(visible(message.content, 9999))
        out.print(Rule(), width=80)


def _row(line: estimates.JudgeEstimate) -> list[str]:
    near = "" if line.exact else "~"
    counts = [f"{near}{line.prompt_tokens:,}", f"~{line.cached_tokens:,}"]
    answers = f"~{line.completion_tokens:,}"
    prices = [_usd(line.cost), _usd(line.most), _usd(line.batch) if line.batch else "-"]
    return [line.judge, line.model, f"{line.requests:,}", *counts, answers, *prices]


def _usd(amount: float | None) -> str:
    return "unknown price" if amount is None else f"{amount:.4f}"
