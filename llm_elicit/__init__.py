"""Estimate what a language model believes, as a probability density.

    import llm_elicit as le

    run = le.run("examples/california.yaml")  # `await le.arun(...)` in a notebook
    run.comparisons, run.beliefs["smollm2"], run.audit, run.report_path

The density core (`llm_elicit.density`) is importable without any of the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_elicit.comparisons.exports import to_arviz, to_numpyro, to_pymc
    from llm_elicit.comparisons.table import Comparisons
    from llm_elicit.config.campaign import Campaign
    from llm_elicit.errors import ElicitError, InputError, JudgeError
    from llm_elicit.orchestrator.progress import Display, Silent
    from llm_elicit.pipeline.campaign_run import CampaignRun
    from llm_elicit.pipeline.imports import import_judgments
    from llm_elicit.pipeline.run_folder import Run
    from llm_elicit.pipeline.runtime import Runtime, arun, repeat, run, run_grid
    from llm_elicit.pipeline.stages import compare, panel
    from llm_elicit.pipeline.statistical_power import power
    from llm_elicit.spaces.features import Feature, FeatureSpace

_NAMES = {
    "comparisons.exports": ("to_arviz", "to_numpyro", "to_pymc"),
    "comparisons.table": ("Comparisons",),
    "config.campaign": ("Campaign",),
    "errors": ("ElicitError", "InputError", "JudgeError"),
    "orchestrator.progress": ("Display", "Silent"),
    "pipeline.campaign_run": ("CampaignRun",),
    "pipeline.imports": ("import_judgments",),
    "pipeline.run_folder": ("Run",),
    "pipeline.runtime": ("Runtime", "arun", "repeat", "run", "run_grid"),
    "pipeline.stages": ("compare", "panel"),
    "pipeline.statistical_power": ("power",),
    "spaces.features": ("Feature", "FeatureSpace"),
}
"""The public names by module."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Campaign", "CampaignRun", "Comparisons", "Display", "ElicitError", "Feature", "FeatureSpace",
    "InputError", "JudgeError", "Run", "Runtime", "Silent", "arun", "compare", "import_judgments",
    "panel", "power", "repeat", "run", "run_grid", "to_arviz", "to_numpyro", "to_pymc",
]  # fmt: skip


def __dir__() -> list[str]:
    """Return the public names, for completion in a notebook."""
    return sorted({*__all__, "density", *(name for name in globals() if name[:2] == "__")})


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used.

    `import llm_elicit.density` therefore imports no SDK, no pandas and no plotting.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
