"""Backends: one file a provider, behind one small protocol."""

from llm_elicit.backends.base import (
    Backend,
    Capabilities,
    Reply,
    Request,
    answer_schema,
    limit_headers,
    read_key,
    scrub_secrets,
)
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.failures import Failure, MalformedReplyError, UpstreamError
from llm_elicit.backends.providers import PROVIDERS, Provider, open_backend, provider_of
from llm_elicit.backends.sdk import WithoutKey
from llm_elicit.backends.simulated import SimulatedBackend

__all__ = [
    "PROVIDERS",
    "Backend",
    "Capabilities",
    "Failure",
    "MalformedReplyError",
    "Provider",
    "Reply",
    "Request",
    "SimulatedBackend",
    "UpstreamError",
    "WithoutKey",
    "answer_schema",
    "limit_headers",
    "open_backend",
    "provider_of",
    "read_completion",
    "read_key",
    "scrub_secrets",
]
