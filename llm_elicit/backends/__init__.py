"""Backends: one file a provider, behind one small protocol."""

from llm_elicit.backends.base import Backend, Capabilities, Notify, Reply, Request
from llm_elicit.backends.open import open_backend
from llm_elicit.backends.simulated import SimulatedBackend
from llm_elicit.backends.weights import KNOWN, LocalModel, cache_folder, kept, pull

__all__ = [
    "KNOWN",
    "Backend",
    "Capabilities",
    "LocalModel",
    "Notify",
    "Reply",
    "Request",
    "SimulatedBackend",
    "cache_folder",
    "kept",
    "open_backend",
    "pull",
]
