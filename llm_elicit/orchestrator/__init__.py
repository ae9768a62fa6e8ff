"""The orchestrator: asks a campaign's questions and records every answer before it counts it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_elicit.orchestrator.batch_mode import BatchStatus, Step, ask_in_batches, batch_statuses
    from llm_elicit.orchestrator.budget import Amount, Budget, within_grid_caps
    from llm_elicit.orchestrator.cache import CacheUse
    from llm_elicit.orchestrator.engine import AskSummary, JudgeSummary, ask
    from llm_elicit.orchestrator.estimates import JudgeEstimate, estimate, examples, prompts
    from llm_elicit.orchestrator.journal import (
        ENDED,
        SILENCE,
        Control,
        JournalError,
        JournalLocation,
        RunEvent,
        RunState,
        Totals,
        Wanted,
        drop_journal,
        is_active,
        is_begun,
        kept_answers,
        kept_identity,
        planned_rounds,
        read_control,
        read_events,
        record_events,
        record_rounds,
        request,
        settled,
        sign_of_life,
        spent_in,
        visible_state,
        write_control,
    )
    from llm_elicit.orchestrator.journal import FILE as JOURNAL
    from llm_elicit.orchestrator.judgments import (
        OldPlanError,
        answered,
        check_answers,
        comparisons,
        direct_answers,
        people_cards,
        status,
        write_judgments,
    )
    from llm_elicit.orchestrator.open_run import Study, in_thread, worded_identity
    from llm_elicit.orchestrator.people import People, PeopleProgress
    from llm_elicit.orchestrator.progress import Display, Progress, Silent, Tally
    from llm_elicit.orchestrator.question_cards import Card, Choice
    from llm_elicit.orchestrator.rate_sharing import RateLimiters
    from llm_elicit.orchestrator.retries import Patience

_HOMES = {
    "Amount": "budget",
    "Budget": "budget",
    "within_grid_caps": "budget",
    "BatchStatus": "batch_mode",
    "Step": "batch_mode",
    "ask_in_batches": "batch_mode",
    "batch_statuses": "batch_mode",
    "CacheUse": "cache",
    "AskSummary": "engine",
    "JudgeSummary": "engine",
    "ask": "engine",
    "JudgeEstimate": "estimates",
    "estimate": "estimates",
    "examples": "estimates",
    "prompts": "estimates",
    "JOURNAL": "journal",
    "JournalError": "journal",
    "JournalLocation": "journal",
    "Totals": "journal",
    "OldPlanError": "judgments",
    "answered": "judgments",
    "check_answers": "judgments",
    "comparisons": "judgments",
    "direct_answers": "judgments",
    "people_cards": "judgments",
    "status": "judgments",
    "write_judgments": "judgments",
    "Study": "open_run",
    "in_thread": "open_run",
    "worded_identity": "open_run",
    "People": "people",
    "PeopleProgress": "people",
    "Card": "question_cards",
    "Choice": "question_cards",
    "Display": "progress",
    "Progress": "progress",
    "Silent": "progress",
    "Tally": "progress",
    "kept_answers": "journal",
    "kept_identity": "journal",
    "planned_rounds": "journal",
    "record_rounds": "journal",
    "ENDED": "journal",
    "SILENCE": "journal",
    "Control": "journal",
    "RunEvent": "journal",
    "RunState": "journal",
    "Wanted": "journal",
    "is_begun": "journal",
    "read_control": "journal",
    "read_events": "journal",
    "record_events": "journal",
    "write_control": "journal",
    "request": "journal",
    "drop_journal": "journal",
    "is_active": "journal",
    "settled": "journal",
    "sign_of_life": "journal",
    "spent_in": "journal",
    "visible_state": "journal",
    "Patience": "retries",
    "RateLimiters": "rate_sharing",
}

__all__ = [
    "ENDED",
    "JOURNAL",
    "SILENCE",
    "Amount",
    "AskSummary",
    "BatchStatus",
    "Budget",
    "CacheUse",
    "Card",
    "Choice",
    "Control",
    "Display",
    "JournalError",
    "JournalLocation",
    "JudgeEstimate",
    "JudgeSummary",
    "OldPlanError",
    "Patience",
    "People",
    "PeopleProgress",
    "Progress",
    "RateLimiters",
    "RunEvent",
    "RunState",
    "Silent",
    "Step",
    "Study",
    "Tally",
    "Totals",
    "Wanted",
    "answered",
    "ask",
    "ask_in_batches",
    "batch_statuses",
    "check_answers",
    "comparisons",
    "direct_answers",
    "drop_journal",
    "estimate",
    "examples",
    "in_thread",
    "is_active",
    "is_begun",
    "kept_answers",
    "kept_identity",
    "people_cards",
    "planned_rounds",
    "prompts",
    "read_control",
    "read_events",
    "record_events",
    "record_rounds",
    "request",
    "settled",
    "sign_of_life",
    "spent_in",
    "status",
    "visible_state",
    "within_grid_caps",
    "worded_identity",
    "write_control",
    "write_judgments",
]


def __getattr__(name: str) -> Any:
    """Import a name from its module on first use, so that `status` imports no SDK."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    found = globals()[name] = getattr(home, "FILE" if name == "JOURNAL" else name)
    return found
