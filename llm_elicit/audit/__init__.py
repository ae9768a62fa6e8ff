"""The audit: how a judge answers, what it prefers, and how far its belief is from data."""

from llm_elicit.audit.belief_power import (
    PowerEvidence,
    at_powers,
    power_of,
    read_powers,
    write_powers,
)
from llm_elicit.audit.calibration import data_levels
from llm_elicit.audit.direct_answers import DirectEvidence, at_noise_levels
from llm_elicit.audit.judge_comparison import Side, Versus, compare_judges
from llm_elicit.audit.rankings import RankingAudit, audit_rankings
from llm_elicit.audit.record import Audit, JudgeAudit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.summaries import BeliefBands, measure_bands, read_draws, write_draws
from llm_elicit.audit.transitivity import Transitivity, find_triads, foretell_triads
from llm_elicit.audit.utility import Utility, utility_of

__all__ = [
    "Audit",
    "AuditSettings",
    "BeliefBands",
    "DirectEvidence",
    "JudgeAudit",
    "JudgeEvidence",
    "PowerEvidence",
    "RankingAudit",
    "Reference",
    "Side",
    "Transitivity",
    "Utility",
    "Versus",
    "at_noise_levels",
    "at_powers",
    "audit_rankings",
    "audit_run",
    "compare_judges",
    "data_levels",
    "find_triads",
    "foretell_triads",
    "measure_bands",
    "power_of",
    "read_draws",
    "read_powers",
    "utility_of",
    "write_draws",
    "write_powers",
]
