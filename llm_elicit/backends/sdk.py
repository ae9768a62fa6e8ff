"""Common parts of the backends that use a provider's SDK: clients, keys and sending.

The SDK's own methods build options, headers and the address again for each request, which is a
quarter of the time of asking. `SDKBackend` sends complete bodies over the SDK's HTTP client with
the SDK's headers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from llm_elicit._util.packages import LazyModule
from llm_elicit.backends import wire
from llm_elicit.backends.base import (
    Reply,
    Request,
    answer_schema,
    bare_url,
    limit_headers,
    merge_fields,
    read_headers,
    read_key,
    scrub_secrets,
    secrets_of,
    server_url,
)
from llm_elicit.backends.failures import (
    Failure,
    MalformedReplyError,
    UpstreamError,
    describe,
    error_fields,
    one_line,
    read_failure,
    response_failure,
    shorten,
)
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.config.profiles import Client, filled
from llm_elicit.errors import InputError

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = LazyModule("httpx2")

SDKJudge = AnthropicJudge | OpenAIJudge
Headers = dict[str, str] | None

MAX_BODY_BYTES = 16 * 2**20
"""The limit on the bytes of a response's body; answers have a few thousand."""

_REDIRECTS = range(300, 400)


async def _read_body(response: httpx2.Response) -> bytes:
    """Return the decompressed body of a streamed response.

    Raises:
        MalformedReplyError: it is longer than `MAX_BODY_BYTES`.
    """
    parts, size = [], 0
    try:
        async for part in response.aiter_bytes():
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise MalformedReplyError(f"more than {MAX_BODY_BYTES >> 20} MiB")
            parts.append(part)
    finally:
        await response.aclose()
    return b"".join(parts)


def _error_message(response: httpx2.Response, content: bytes) -> tuple[str, Any]:
    """Return the message of an error response, and its body."""
    status = f"Error code: {response.status_code}"
    if response.status_code in _REDIRECTS:
        target = bare_url(str(response.headers.get("location", "")))
        return f"{status} - redirects to {target or 'nowhere'}", None
    text = content.decode("utf-8", "replace").strip()
    try:
        body = wire.parse_json(text)
        return f"{status} - {body}", body
    except (MalformedReplyError, RecursionError):
        return text or status, text


@contextmanager
def opening_client(judge: SDKJudge) -> Iterator[None]:
    """Turn errors from creating an SDK's client into an `InputError` of one line.

    Raises:
        InputError: probably an environment variable of the SDK or its HTTP client is invalid.
    """
    try:
        yield
    except (ImportError, InputError):
        raise
    except Exception as error:
        raise InputError(
            f"judge {judge.name!r}: its client cannot be set up ({type(error).__name__}: "
            f"{one_line(error)}); check the environment variables of the SDK, of proxies and of "
            "certificates"
        ) from None


def open_client(
    judge: SDKJudge, sdk: ModuleType, http: Any, timeout: float, headers: Headers, model: str = ""
) -> Any:
    """Return the SDK's client of a judge's provider, without retries.

    Args:
        judge: the judge.
        sdk: the SDK.
        http: the HTTP client.
        timeout: seconds.
        headers: further headers of every request.
        model: the model in the address of every request, where the provider has it there.

    Raises:
        InputError: the key or the address is missing or not valid.
    """
    wire_format = judge.wire_format
    client = wire_format.client
    arguments = {client.address: server_url(judge.base_url, wire_format.base_url_env, judge.name)}
    if judge.api_key_env:
        arguments[client.key] = read_key(judge.api_key_env, judge.name)
    elif client == Client():
        arguments[client.key] = "none"
    if client.model and model:
        arguments[client.model] = model
    return getattr(sdk, client.name)(
        **{name: value for name, value in arguments.items() if value is not None},
        timeout=timeout,
        max_retries=0,
        default_headers={**(headers or {}), **read_headers(judge)},
        http_client=http,
    )


class WithoutKey:
    """Common base of backends without an API key."""

    account = ""

    def scrub(self, text: str) -> str:
        """Return `text` unchanged."""
        return text

    def failure(self, error: Exception) -> Failure | None:
        """Return what an exception means for the request, without the key; None for a bug."""
        failure = read_failure(error)
        return failure and replace(failure, message=shorten(self.scrub(failure.message)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


class SDKBackend(WithoutKey):
    """Common base of the backends with an SDK's client, which is closed on exit.

    Each request is sent once; redirects are not followed. The API key is removed from every
    message.

    Args:
        judge: the judge.
        sdk: its provider's SDK.
        path: path of the endpoint, below the client's base URL.
        headers: further headers of every request.

    Raises:
        InputError: the key's environment variable is not set, or no client can be made of the
            environment.
    """

    cacheable = True
    _client: Any
    _judge: Any

    def __init__(
        self, judge: SDKJudge, sdk: ModuleType, path: str, headers: Headers = None
    ) -> None:
        self._judge, self._sdk, self.model = judge, sdk, judge.model
        self._wire_format = judge.wire_format
        self._secrets = secrets_of(judge)
        self.headers = judge.extra_headers
        with opening_client(judge):
            self._http: httpx2.AsyncClient = sdk.DefaultAioHttpClient(follow_redirects=False)
            self._client = client = open_client(
                judge, sdk, self._http, judge.timeout, headers, judge.model
            )
            self.endpoint = bare_url(str(client.base_url))
            if not self._wire_format.client.signs:
                self._request_template = self._make_template(path)
            elif getattr(client, self._wire_format.client.key) is None:
                # The client finds its key by a package of its own.
                extra, package = self._wire_format.extra, self._wire_format.client.requires
                if package and find_spec(package.partition(".")[0]) is None:
                    raise InputError(
                        f"judge {judge.name!r}: {judge.profile} needs the package {package}; "
                        f"run: pip install 'llm-elicit[{extra}]'"
                    )
        # Python salts hashes in each process, so that the hash does not reveal the key.
        self.account = f"{hash(tuple(self._secrets)):x}" if self._secrets else ""

    def _with_settings(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        """Return a request body with the judge's settings, in the words of its provider."""
        judge, wire_format = self._judge, self._wire_format
        temperature = request.temperature(judge.temperature)
        if temperature is not None:
            body["temperature"] = temperature
        body |= wire_format.thinking(judge.effort, judge.thinking_tokens)
        schema = answer_schema(request) if judge.structured else None
        if schema is not None:
            body = merge_fields(body, filled(wire_format.structured or {}, schema))
        return merge_fields(body, judge.extra_body)

    def _make_template(self, path: str) -> httpx2.Request:
        """Return a request with the address and headers that all requests have in common."""
        client = self._client
        headers = {**client.default_headers, **client.auth_headers}
        template = self._http.build_request(
            "POST",
            str(client.base_url.join(path)),
            params=client.default_query or None,
            headers={name: value for name, value in headers.items() if isinstance(value, str)},
            timeout=self._judge.timeout,
        )
        # The length differs between requests.
        template.headers.pop("content-length", None)
        # Without it, httpx detects the encoding again for every header.
        template.headers.encoding = "ascii"
        return template

    async def _send(self, body: dict[str, Any], read: Callable[[object], Reply]) -> Reply:
        """Send a request body and return the reply that `read` makes of the parsed response.

        Raises:
            UpstreamError: there is no response, or it is an error or a redirect.
            MalformedReplyError: the response is not JSON, too long, or no answer.
        """
        send = self._send_signed if self._wire_format.client.signs else self._send_plain
        headers, content = await send(body)
        return replace(read(wire.parse_json(content)), headers=limit_headers(headers))

    async def _send_signed(self, body: dict[str, Any]) -> tuple[Mapping[str, str], bytes]:
        """Send a request that the SDK's client signs, to the address of the model."""
        arguments = {name: body[name] for name in ("model", "messages", "max_tokens")}
        # These providers have the version of the API in the body.
        version = self._client.default_headers.get("anthropic-version")
        extra_body = {"anthropic_version": version} if version else {}
        extra_body |= {name: value for name, value in body.items() if name not in arguments}
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
                    self._client.messages.with_streaming_response.create(
                        **arguments, extra_body=extra_body, timeout=self._judge.timeout
                    )
                )
            except self._sdk.AnthropicError:
                raise
            except Exception as error:  # of a library that finds or renews the key
                reason = f"{type(error).__name__}: {one_line(error)}"
                raise self._sdk.AnthropicError(f"no valid key ({reason})") from error
            return response.headers, await _read_body(response.http_response)

    async def _send_plain(
        self, body: dict[str, Any], path: str = ""
    ) -> tuple[Mapping[str, str], bytes]:
        """Send a request over the SDK's HTTP client, with the SDK's headers.

        Args:
            body: the body.
            path: path of another endpoint, relative to the client's base URL.
        """
        template = self._request_template
        url = self._client.base_url.join(path) if path else template.url
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        request = httpx2.Request(
            template.method, url, headers=template.headers, content=content,
            extensions=template.extensions,
        )  # fmt: skip
        try:
            # A redirected POST may become a GET without a body.
            response = await self._http.send(request, stream=True, follow_redirects=False)
            content = await _read_body(response)
        except MalformedReplyError:
            raise
        except Exception as error:
            # The transports raise exceptions of several libraries.
            failure = read_failure(error) or Failure("connection", describe(error))
            raise UpstreamError(failure) from error
        response.headers.encoding = "latin-1"
        if not response.is_success:
            message, error_body = _error_message(response, content)
            failure = response_failure(message, error_body, response)
            raise UpstreamError(failure, error_fields(error_body))
        return response.headers, content

    def scrub(self, text: str) -> str:
        """Return `text` without the key and other secrets."""
        token = getattr(getattr(self._client, "credentials", None), "token", None)
        return scrub_secrets(text, *self._secrets, *([token] if isinstance(token, str) else []))

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()
