"""What the backends share that ask through a provider's SDK: the client's life and the key."""

from __future__ import annotations

from typing import Protocol, Self

from llm_elicit.backends.base import scrubbed
from llm_elicit.backends.failures import Failure, read_failure


class Client(Protocol):
    """An SDK's asynchronous client, as far as its life is concerned."""

    async def close(self) -> None:
        """Close its connections."""
        ...


class Keyless:
    """A backend without a key: nothing to hide, and nobody's account."""

    account = ""

    def scrub(self, text: str) -> str:
        """`text`, as it is: there is no key."""
        return text

    def failure(self, error: Exception) -> Failure | None:
        """What an exception says of the request."""
        return read_failure(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


class Keyed(Keyless):
    """A backend with a key and an SDK's client.

    Args:
        client: closed when the backend is left.
        key: blotted out of whatever the provider says.
    """

    def __init__(self, client: Client, key: str | None) -> None:
        self._life = client
        self._secret = key
        # Python salts the hash anew in each process, so it says nothing of the key.
        self.account = f"{hash(key):x}" if key else ""

    def scrub(self, text: str) -> str:
        """`text` without the key."""
        return scrubbed(text, self._secret)

    async def __aexit__(self, *error: object) -> None:
        await self._life.close()
