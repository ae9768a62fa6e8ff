"""The preferential normalizing flow: ``method="flow"``, with the ``flow`` extra.

Source: Mikkola, Acerbi and Klami (2024), "Preferential normalizing flows".
"""

from llm_elicit.baselines.flow.density import FlowDensity
from llm_elicit.baselines.flow.fit import FlowSettings, fit_flow
from llm_elicit.density.methods import ExternalMethod

__all__ = ["METHOD", "FlowSettings"]

METHOD = ExternalMethod(fit_flow, FlowDensity.restore)
