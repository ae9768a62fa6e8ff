"""The preferential normalizing flow, a baseline of the benchmarks: ``method="flow"``.

Source: Mikkola, Acerbi and Klami (2024), "Preferential normalizing flows".
"""

from llm_elicit.benchmarks.flow.density import FlowDensity
from llm_elicit.benchmarks.flow.fit import FlowSettings, fit_flow
from llm_elicit.density.methods import ExternalMethod

__all__ = ["METHOD", "FlowSettings"]

METHOD = ExternalMethod(fit_flow, FlowDensity.restore)
