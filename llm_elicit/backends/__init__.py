"""Backends: one file a provider, behind one small protocol."""

from typing import TYPE_CHECKING, Any

from llm_elicit.backends.base import (
    Backend,
    Capabilities,
    Notify,
    Reply,
    Request,
    answer_schema,
    limit_headers,
    read_key,
    scrubbed,
)
from llm_elicit.backends.failures import Failure, MalformedReplyError
from llm_elicit.backends.providers import PROVIDERS, Provider, open_backend, provider_of
from llm_elicit.backends.sdk import Keyless
from llm_elicit.backends.weights import KNOWN, LocalModel, cache_folder, kept, pull

if TYPE_CHECKING:
    from llm_elicit.backends.simulated import SimulatedBackend

__all__ = [
    "KNOWN",
    "PROVIDERS",
    "Backend",
    "Capabilities",
    "Failure",
    "Keyless",
    "LocalModel",
    "MalformedReplyError",
    "Notify",
    "Provider",
    "Reply",
    "Request",
    "SimulatedBackend",
    "answer_schema",
    "cache_folder",
    "kept",
    "limit_headers",
    "open_backend",
    "provider_of",
    "pull",
    "read_key",
    "scrubbed",
]


def __getattr__(name: str) -> Any:
    """Load the simulated expert when it is first asked for: it brings in the density core."""
    if name != "SimulatedBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from llm_elicit.backends.simulated import SimulatedBackend  # noqa: PLC0415

    return SimulatedBackend
