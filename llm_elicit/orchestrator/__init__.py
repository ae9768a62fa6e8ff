"""The orchestrator: asks a campaign's questions, keeps every answer, pays for none twice."""

from llm_elicit.orchestrator.allowance import allowed
from llm_elicit.orchestrator.batch_mode import BatchLine, Step, ask_in_batches, batch_lines
from llm_elicit.orchestrator.cache import CacheUse
from llm_elicit.orchestrator.engine import AskSummary, JudgeSummary, ask
from llm_elicit.orchestrator.estimate import JudgeEstimate, estimate, examples, prompts
from llm_elicit.orchestrator.journal import FILE as JOURNAL
from llm_elicit.orchestrator.journal import JournalError, Place, Totals
from llm_elicit.orchestrator.judgments import (
    OldPlanError,
    answered,
    comparisons,
    direct_answers,
    status,
    write_judgments,
)
from llm_elicit.orchestrator.opening import Study, in_thread, worded_identity
from llm_elicit.orchestrator.progress import Display, Progress, Silent, Tally
from llm_elicit.orchestrator.recorded import (
    kept_answers,
    kept_identity,
    planned_rounds,
    record_rounds,
    settled,
)
from llm_elicit.orchestrator.retries import Patience

__all__ = [
    "JOURNAL",
    "AskSummary",
    "BatchLine",
    "CacheUse",
    "Display",
    "JournalError",
    "JudgeEstimate",
    "JudgeSummary",
    "OldPlanError",
    "Patience",
    "Place",
    "Progress",
    "Silent",
    "Step",
    "Study",
    "Tally",
    "Totals",
    "allowed",
    "answered",
    "ask",
    "ask_in_batches",
    "batch_lines",
    "comparisons",
    "direct_answers",
    "estimate",
    "examples",
    "in_thread",
    "kept_answers",
    "kept_identity",
    "planned_rounds",
    "prompts",
    "record_rounds",
    "settled",
    "status",
    "worded_identity",
    "write_judgments",
]
