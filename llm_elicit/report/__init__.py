"""The report: figures, tables and one self-contained HTML page from an audit."""

from llm_elicit.report.figures import Samples
from llm_elicit.report.page import Condition, Study, render_panel, write_conditions, write_report
from llm_elicit.report.tables import write_tables

__all__ = [
    "Condition",
    "Samples",
    "Study",
    "render_panel",
    "write_conditions",
    "write_report",
    "write_tables",
]
