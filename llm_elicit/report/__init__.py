"""The report: figures and one self-contained HTML page from an audit."""

from llm_elicit.report.figures import Samples
from llm_elicit.report.page import Study, write_report

__all__ = ["Samples", "Study", "write_report"]
