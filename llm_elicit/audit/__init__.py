"""The audit: a judge's consistency and preferences, and its belief compared with data."""

from llm_elicit.audit.belief_power import (
    PowerEvidence,
    at_powers,
    power_of,
    read_powers,
    write_powers,
)
from llm_elicit.audit.calibration import data_levels
from llm_elicit.audit.consistency import Transitivity, find_triads, predict_triads
from llm_elicit.audit.direct_answers import DirectEvidence
from llm_elicit.audit.judge_comparison import JudgeBelief, JudgeComparison, compare_judges
from llm_elicit.audit.people import PeopleAudit, PeopleEvidence, audit_people
from llm_elicit.audit.rankings import RankingAudit, audit_rankings
from llm_elicit.audit.record import Audit, JudgeAudit, JudgeEvidence, audit_run, is_cross_check
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.summaries import BeliefBands, measure_bands, read_draws, write_draws
from llm_elicit.audit.utility import Utility, utility_of

__all__ = [
    "Audit",
    "AuditSettings",
    "BeliefBands",
    "DirectEvidence",
    "JudgeAudit",
    "JudgeBelief",
    "JudgeComparison",
    "JudgeEvidence",
    "PeopleAudit",
    "PeopleEvidence",
    "PowerEvidence",
    "RankingAudit",
    "Reference",
    "Transitivity",
    "Utility",
    "at_powers",
    "audit_people",
    "audit_rankings",
    "audit_run",
    "compare_judges",
    "data_levels",
    "find_triads",
    "is_cross_check",
    "measure_bands",
    "power_of",
    "predict_triads",
    "read_draws",
    "read_powers",
    "utility_of",
    "write_draws",
    "write_powers",
]
