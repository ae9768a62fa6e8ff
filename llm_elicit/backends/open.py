"""From a judge in a campaign to the backend that asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_elicit._util.lazy_module import LazyModule
from llm_elicit.backends.anthropic import AnthropicBackend
from llm_elicit.backends.base import Backend, Notify, silent
from llm_elicit.backends.local import LocalBackend
from llm_elicit.backends.openai import OpenAIBackend
from llm_elicit.config.judges import (
    AnthropicJudge,
    Judge,
    LocalJudge,
    OpenAIJudge,
    PluginJudge,
    plugin_backend,
)
from llm_elicit.spaces.features import FeatureSpace

if TYPE_CHECKING:
    from llm_elicit.backends import simulated
else:
    # The expert's noise is the density core's: PyTorch and SciPy, which no other judge needs.
    simulated = LazyModule("llm_elicit.backends.simulated")


def open_backend(judge: Judge, space: FeatureSpace, notify: Notify = silent) -> Backend:
    """The backend for a judge, ready for `async with`; nothing is sent or loaded yet.

    Args:
        judge: the judge, as the campaign names it.
        space: the feature space; the simulated expert's belief comes from its table.
        notify: told in a line what takes time (weights being fetched).

    Raises:
        InputError: a key is missing, a local model unknown, a package not installed or broken.

    Example:
        >>> from llm_elicit.config.judges import SimulatedJudge
        >>> judge = SimulatedJudge(name="expert", backend="simulated", belief="uniform")
        >>> open_backend(judge, FeatureSpace.load("penguins")).capabilities.seed
        True
    """
    match judge:
        case AnthropicJudge():
            return AnthropicBackend(judge)
        case OpenAIJudge():
            return OpenAIBackend(judge)
        case LocalJudge():
            return LocalBackend(judge, notify)
        case PluginJudge():
            backend: Backend = plugin_backend(judge.backend)(judge, space)
            return backend
        case _:
            return simulated.SimulatedBackend(judge, space)
