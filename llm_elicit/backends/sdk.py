"""What the backends share that ask through a provider's SDK: the client's life, the key, the wire.

A body that is whole need not go through the SDK's own methods, which put options, headers and the
address together anew for each request, a quarter of the time that asking takes. `Sender` sends
it over the SDK's HTTP client with the SDK's headers, and what goes wrong is the SDK's exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import bare_url, scrubbed
from llm_elicit.backends.failures import (
    Failure,
    MalformedReplyError,
    one_line,
    read_failure,
    shortened,
)
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = LazyModule("httpx2")


LARGEST = 16 * 2**20
"""The most bytes of a response's body that are read: answers have a few thousand."""

_SERVER = 500
_REDIRECTS = range(300, 400)
_ERRORS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
"""Both SDKs come from one generator: their exceptions have the same names."""


class Client(Protocol):
    """An SDK's asynchronous client, as far as its life and its headers are concerned."""

    @property
    def default_headers(self) -> Mapping[str, Any]:
        """Sent with every request; a value that is no text stands for none."""
        ...

    @property
    def auth_headers(self) -> Mapping[str, str]:
        """Those that hold the key."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


@dataclass(frozen=True)
class Answer:
    """A response of a server that accepted the request: its JSON, parsed, and its headers."""

    content: object
    headers: Mapping[str, str]


class Sender:
    """Sends bodies to one address, each once; redirects are not followed.

    Args:
        sdk: whose exceptions are raised, `anthropic` or `openai`.
        client: the SDK's client, for its headers.
        http: the HTTP client that it was made with.
        address: the whole URL.
        timeout: of each read, in seconds.
    """

    def __init__(
        self,
        sdk: ModuleType,
        client: Client,
        http: httpx2.AsyncClient,
        address: str,
        timeout: float,
    ) -> None:
        self._sdk = sdk
        self._http = http
        every = {**client.default_headers, **client.auth_headers}
        said = {name: value for name, value in every.items() if isinstance(value, str)}
        self._form = http.build_request("POST", address, headers=said, timeout=timeout)
        # Each request has a length of its own.
        self._form.headers.pop("content-length", None)
        # Said here, it is not guessed again for every header.
        self._form.headers.encoding = "ascii"

    async def send(self, body: dict[str, Any]) -> Answer:
        """The answer to a body.

        Raises:
            APIStatusError, APITimeoutError, APIConnectionError: of the SDK; there is no response,
                or it is an error or a redirect.
            MalformedReplyError: it is not JSON, or too long.
        """
        form = self._form
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        request = httpx2.Request(
            form.method, form.url, headers=form.headers, content=content,
            extensions=form.extensions,
        )  # fmt: skip
        try:
            # A redirected POST may become a GET without a body.
            response = await self._http.send(request, stream=True, follow_redirects=False)
            content = await _content(response)
        except MalformedReplyError:
            raise
        except httpx2.TimeoutException as error:
            raise self._sdk.APITimeoutError(request=request) from error
        except Exception as error:
            # As the SDKs do: their transports let exceptions of several libraries through.
            raise self._sdk.APIConnectionError(request=request) from error
        response.headers.encoding = "latin-1"
        if not response.is_success:
            said, body = _complaint(response, content)
            name = _ERRORS.get(response.status_code, "APIStatusError")
            kind = "InternalServerError" if response.status_code >= _SERVER else name
            raise getattr(self._sdk, kind)(said, response=response, body=body)
        return Answer(wire.parsed(content), response.headers)


async def _content(response: httpx2.Response) -> bytes:
    """The body of a streamed response, decompressed.

    Raises:
        MalformedReplyError: it is longer than `LARGEST`.
    """
    parts, size = [], 0
    try:
        async for part in response.aiter_bytes():
            size += len(part)
            if size > LARGEST:
                raise MalformedReplyError(f"more than {LARGEST >> 20} MiB")
            parts.append(part)
    finally:
        await response.aclose()
    return b"".join(parts)


def _complaint(response: httpx2.Response, content: bytes) -> tuple[str, Any]:
    """What an error response says: a line of words, and its body."""
    status = f"Error code: {response.status_code}"
    if response.status_code in _REDIRECTS:
        target = bare_url(str(response.headers.get("location", "")))
        return f"{status} - redirects to {target or 'nowhere'}", None
    text = content.decode("utf-8", "replace").strip()
    try:
        body = wire.parsed(text)
        return f"{status} - {body}", body
    except (MalformedReplyError, RecursionError):
        return text or status, text


@contextmanager
def opening(judge: str) -> Iterator[None]:
    """Turn what an SDK's client cannot be made of into one line.

    Raises:
        InputError: an environment variable that the SDK or its HTTP client reads is at fault.
    """
    try:
        yield
    except (ImportError, InputError):
        raise
    except Exception as error:
        raise InputError(
            f"judge {judge!r}: its client cannot be set up ({type(error).__name__}: "
            f"{one_line(error)}); look at the variables of the SDK, of proxies and of certificates "
            "in the environment"
        ) from None


class Keyless:
    """A backend without a key: nothing to hide, and nobody's account."""

    account = ""

    def scrub(self, text: str) -> str:
        """`text`, as it is: there is no key."""
        return text

    def failure(self, error: Exception) -> Failure | None:
        """What an exception says of the request, without the key."""
        found = read_failure(error)
        return found and replace(found, said=shortened(self.scrub(found.said)))

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
