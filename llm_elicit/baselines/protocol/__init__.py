"""The published score method, its mistakes corrected on request: ``method="protocol"``.

`llm_elicit.density` has the method as it is recommended.

Source: Mikkola, Acerbi and Klami (2026), "Score-based density estimation from pairwise
comparisons".
"""

from llm_elicit.baselines.protocol.density import (
    CORRECTIONS,
    ProtocolSettings,
    ScoreDensity,
    fit_protocol,
    paper_protocol,
)
from llm_elicit.density.methods import ExternalMethod

__all__ = ["CORRECTIONS", "METHOD", "ProtocolSettings", "paper_protocol"]

METHOD = ExternalMethod(fit_protocol, ScoreDensity.restore)
