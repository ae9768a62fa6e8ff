"""`llm-elicit pilot`: the most reliable template for each judge, before a campaign is paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from llm_elicit._util.packages import LazyModule
from llm_elicit._util.sanitize import visible
from llm_elicit.cli.options import AsJson, CampaignName, MaxCost, interval, out, print_json

if TYPE_CHECKING:
    from llm_elicit.config import campaign as campaign_settings
    from llm_elicit.orchestrator import progress as displays
    from llm_elicit.pipeline import pilot
    from llm_elicit.planning import detectable
else:
    detectable = LazyModule("llm_elicit.planning.detectable")
    campaign_settings = LazyModule("llm_elicit.config.campaign")
    displays = LazyModule("llm_elicit.orchestrator.progress")
    pilot = LazyModule("llm_elicit.pipeline.pilot")

Pairs = Annotated[int, typer.Option(metavar="N", help="The campaign's first N pairs are asked.")]


def pilot_command(
    campaign: CampaignName, pairs: Pairs = 20, max_cost: MaxCost = None, as_json: AsJson = False
) -> None:
    """Ask each candidate template a few pairs, and compare their reliability and cost."""
    plan = campaign_settings.Campaign.load(campaign)
    with displays.Display() as progress:
        found, problems = pilot.run_pilot(plan, pairs, max_cost=max_cost, progress=progress)
    if as_json:
        print_json(found)
    else:
        _show(found)
    if problems:
        raise problems[0]


def _show(found: pilot.Pilot) -> None:
    names = (
        "judge", "template", "answer", "pairs", "one order", "both orders", "predicted",
        "position", "sd", "refused", "unparsable", "unanswered", "tokens", "USD per question",
        "ρ/(1−ρ) per cost",
    )  # fmt: skip
    table = Table(*names, box=None)
    for one in found.protocols:
        table.add_row(
            one.judge, one.template, one.answer, str(one.pairs), interval(one.reliability),
            interval(one.both_orders), interval(one.predicted),
            _number(one.position), _number(one.position_sd),
            str(one.refused), str(one.unparsable), str(one.unanswered), f"{one.tokens:.0f}",
            "unknown" if one.cost is None else f"{one.cost:.6f}", f"{one.rate:.3g}",
        )  # fmt: skip
    out.print(table)
    out.print(
        "Reliability of one order is the correlation of a pair's two answers, the mean position "
        "effect taken out, 0 if negative; of both, by Spearman-Brown: a lower bound where the "
        "position effect varies. Predicted is the share of the differences between the two orders "
        "that the features predict of pairs left out; negative if they predict worse than no rule. "
        "95 % intervals. Position effects are log-odds, of choices "
        "P(first shown) - 1/2. Cost is USD, of free judges a thousand tokens, and a question where "
        "there are none."
    )
    for best in found.recommended:
        if best.template is None:
            out.print(f"{best.judge}: {best.reason}")
        else:
            out.print(f"{best.judge}: {best.template}, both orders; {visible(best.reason, 9999)}")
    if found.protocols:
        pairs = max(one.pairs for one in found.protocols)
        out.print(
            f"A pilot compares templates; with {pairs} pairs its p-values would be at least "
            f"{detectable.smallest_p(pairs):.2g}."
        )
    out.print(f"{found.spent:.4f} USD spent; the campaign reuses these answers.")


def _number(found: float | None) -> str:
    return "-" if found is None else f"{found:+.3f}"
