"""The loopback provider, which the package offers to writers of backends too."""

from llm_elicit.testing.provider import (
    Action,
    Fails,
    Hangs,
    Provider,
    Raw,
    Resets,
    Says,
    Seen,
    Sends,
    Trickles,
)

__all__ = [
    "Action",
    "Fails",
    "Hangs",
    "Provider",
    "Raw",
    "Resets",
    "Says",
    "Seen",
    "Sends",
    "Trickles",
]
