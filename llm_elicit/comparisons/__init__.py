"""The typed table of judgments, its files, and what the fit takes from it."""

from llm_elicit.comparisons.table import Comparisons

__all__ = ["Comparisons"]
