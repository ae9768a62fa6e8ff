"""Every profile against a loopback server of its wire format, over real HTTP and the real SDK.

`test_the_table_of_the_documentation` holds the table in docs/how-to/providers.md to what becomes of
each case here.
"""

import asyncio
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fakes.batches import BatchProvider
from orchestrator.running import campaign, run, table

from backends.profile_servers import SERVERS, Server
from llm_elicit.backends import Backend, Reply, Request, open_backend
from llm_elicit.backends.base import SettingDroppedError
from llm_elicit.backends.batches import BatchRequest, BatchResult
from llm_elicit.backends.providers import open_batch_client
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.config.profiles import PROFILES_VARIABLE, profile_named, profiles
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.retries import classify
from llm_elicit.questions.parse import parse
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import (
    Action,
    Answer,
    Error,
    Provider,
    Sends,
    completion,
    message,
)

KEY = "sk-canary-0123456789"
SOFT = {"B": math.log(0.75), "A": math.log(0.25)}
THOUGHT = "A looks odd. B, then?"
FILTERED = "content_filter"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for profile in profiles().values():
        if profile.api_key_env:
            monkeypatch.setenv(profile.api_key_env, KEY)
    for name in ("AZURE_OPENAI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "VERTEX_TOKEN"):
        monkeypatch.setenv(name, KEY)
    for name in ("AZURE_OPENAI_AD_TOKEN", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("CLOUD_ML_REGION", "us-east5")
    monkeypatch.setattr("anthropic.AsyncAnthropicVertex.project_id", "p")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as server:
        yield server


def _settings(name: str, url: str) -> dict[str, Any]:
    """The judge of a profile, at the loopback server."""
    profile = profile_named(name)
    key = {"api_key_env": "VERTEX_TOKEN"} if name == "vertex" else {}
    return {"name": name, "backend": profile.backend, "profile": name, "model": "m", **key,
            "base_url": url + SERVERS[name].below}  # fmt: skip


def _judge(name: str, url: str, **settings: Any) -> Any:
    kind: Any = OpenAIJudge if profile_named(name).backend == "openai" else AnthropicJudge
    return kind.model_validate(_settings(name, url) | settings)


def _strict(server: Server, action: Action) -> Any:
    """Answer as the server does, which refuses fields that it does not know."""

    def behave(_number: int, body: dict[str, Any]) -> Action:
        unknown = sorted(body.keys() - server.fields)
        if any("logprobs" in name for name in unknown):
            status, words = server.refusal
            return Error(status, words)
        if unknown:
            return Error(400, f"unknown field {unknown[0]}")
        return action

    return behave


class Asked:
    """A backend at the loopback server, asked under changing behaviour."""

    def __init__(self, name: str, provider: Provider, backend: Backend, request: Request) -> None:
        self.server, self.provider, self.backend = SERVERS[name], provider, backend
        self.request = request
        provider.error = self.server.error
        self.notes: list[str] = []

    async def reply(self, action: Action, behave: Any = None) -> Reply | str:
        """Return the reply, or what is to be done about the failure."""
        self.provider.behave = behave or _strict(self.server, action)
        self.notes = []
        while True:
            try:
                reply = await self.backend.ask(self.request)
            except SettingDroppedError as error:
                self.notes.append(str(error))
                assert len(self.notes) < 5
                continue
            except Exception as error:
                failure = self.backend.failure(error)
                if failure is None or KEY in failure.message:
                    raise
                return classify(failure).kind
            assert self.provider.seen[-1].path == self.server.path
            return reply


def _says(server: Server, **says: Any) -> Answer:
    return Answer(**{"text": "B", "logprobs": SOFT, "columns": server.columns} | says)


def _whole(server: Server, **changes: Any) -> dict[str, Any]:
    """An answer as JSON, with fields of its choice or itself replaced."""
    body = {"model": "m", "messages": []}
    if "system" in server.fields:
        return {**message(Answer("B"), body), **changes}
    whole = completion(Answer("B"), body)
    choice = whole["choices"][0]
    choice |= {name: changes.pop(name) for name in list(changes) if name in ("error", "message")}
    return {**whole, **changes}


def _sends(value: Any) -> Sends:
    return Sends(json.dumps(value).encode())


def _open(name: str, provider: Provider, **settings: Any) -> Backend:
    return open_backend(_judge(name, provider.url, **settings), FeatureSpace.load("penguins"))


async def _log_odds(name: str, provider: Provider, request: Request) -> dict[str, str]:
    """Return what becomes of log-odds: given, refused, ignored, and limited to five."""
    server, profile = SERVERS[name], profile_named(name)
    found = {}
    async with _open(name, provider, logprobs=True) as backend:
        asked = Asked(name, provider, backend, request)
        reply = await asked.reply(_says(server))
        assert isinstance(reply, Reply)
        assert reply.text == "B"
        found["log-odds"] = "soft" if reply.first else "choices"
        assert (reply.first is not None) == (profile.logprobs > 0)
        if reply.first is not None:
            assert reply.first == pytest.approx(0.25)
            ignored = await asked.reply(_says(server, logprobs=None))
            assert isinstance(ignored, Reply)
            assert (ignored.first, ignored.unscored) == (None, "none sent")
            found["ignored"] = "choices"

    def limited(_number: int, body: dict[str, Any]) -> Action:
        most = 2 if profile.logprobs == 5 else 5
        if body.get("top_logprobs", body.get("logprobs") or 0) > most:
            return Error(server.refusal[0] if server.refusal[0] == 422 else 400, server.too_many)
        return _says(server)

    def refusing(_number: int, body: dict[str, Any]) -> Action:
        return Error(*server.refusal) if body.get("logprobs") else _says(server)

    for column, behave in (("refused", refusing), ("limited", limited)):
        if column == "limited" and not profile.logprobs:
            continue
        async with _open(name, provider, logprobs=True) as backend:
            asked = Asked(name, provider, backend, request)
            reply = await asked.reply(Answer(), behave)
            assert isinstance(reply, Reply)
            assert len(asked.notes) == 1, "one refused request"
            assert reply.text == "B"
            found[column] = "soft" if reply.first else "choices"
    return found


async def _thinking(name: str, provider: Provider, request: Request) -> dict[str, str]:
    """Return what becomes of thinking in each of its places."""
    server, profile = SERVERS[name], profile_named(name)
    effort = "low" if profile.effort else None
    tokens = 2000 if profile.thinking_tokens and profile.backend == "openai" else None
    settings: dict[str, Any] = {"effort": effort, "thinking_tokens": tokens}
    async with _open(name, provider, **settings) as backend:
        asked = Asked(name, provider, backend, request)
        for place in server.thinking_in:
            reply = await asked.reply(_says(server, thinking=THOUGHT, thinking_in=place))
            assert isinstance(reply, Reply)
            assert (reply.text, reply.thinking) == ("B", THOUGHT), place
        seen = await asked.reply(_says(server))
        assert isinstance(seen, Reply)
        sent = provider.seen[-1].body
        assert profile.thinking(effort, tokens).items() <= sent.items()  # type: ignore[arg-type]
        place = (*server.thinking_in, "reasoning")[0]
        thought = _says(
            server, text="", stop="length", logprobs=None, thinking=THOUGHT, thinking_in=place
        )
        cut = await asked.reply(thought)
        assert isinstance(cut, Reply)
        assert parse(cut.text, finish=cut.finish) == "truncated"
    return {"thinking": "+".join(server.thinking_in) or "hidden", "cut off": "truncated"}


async def _faults(name: str, provider: Provider, request: Request) -> dict[str, str]:
    """Return what becomes of filters, overloads, errors and unusual answers."""
    server = SERVERS[name]
    found: dict[str, str] = {}
    error = {"code": 502, "message": "upstream is gone"}
    of_messages = "system" in server.fields
    empty = _whole(server, message={"role": "assistant", "content": ""}, error=error)
    if of_messages:
        empty = {"type": "error", "error": {"type": "api_error", "message": "gone"}}
    content = "B" if of_messages else {"content": [{"type": "text", "text": "B"}]}
    listed = _whole(server, **{"content" if of_messages else "message": content})
    stop = "refusal" if of_messages else FILTERED
    actions: dict[str, list[Action]] = {
        "filter": [
            Error(400, "The prompt was blocked by the content filter", FILTERED, "prompt"),
            _says(server, text="", stop=stop, logprobs=None),
            _sends({"choices": [], "promptFeedback": {"blockReason": "SAFETY"}}),
        ],
        "overload": [Error(server.overloaded, "Overloaded, try again later")],
        "rate limit": [Error(429, "Too many requests")],
        "error in 200": [_sends(empty), _sends({"error": error})],
        "list": [_sends(listed)],
        "no usage": [_says(server, usage=None), _says(server, usage={"prompt_tokens": "many"})],
        "no choices": [] if of_messages else [_sends({"choices": []})],
    }
    async with _open(name, provider) as backend:
        asked = Asked(name, provider, backend, request)
        for column, cases in actions.items():
            results = set()
            for action in cases:
                reply = await asked.reply(action)
                verdict = (
                    reply if isinstance(reply, str) else parse(reply.text, finish=reply.finish)
                )
                results.add("refusal" if verdict == "prompt refused" else verdict)
            assert len(results) <= 1, (column, results)
            found[column] = next(iter(results), "")
    return found


EXPECTED = {
    "filter": "refusal", "overload": "transient", "rate limit": "rate limited",
    "error in 200": "transient", "list": "B", "no usage": "B", "cut off": "truncated",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcome_of(provider: Provider, request_: Request) -> Callable[[str], dict[str, str]]:
    """What becomes of each case, by profile."""

    async def go(name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        if profile_named(name).backend == "openai":
            found |= await _log_odds(name, provider, request_)
        found |= await _thinking(name, provider, request_)
        return found | await _faults(name, provider, request_)

    return cache(lambda name: asyncio.run(go(name)))


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_profile_against_its_server(
    name: str, outcome_of: Callable[[str], dict[str, str]]
) -> None:
    found = outcome_of(name)
    assert EXPECTED.items() <= found.items()
    assert found["no choices"] in ("", "transient")


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "providers.md"
SHOWN = {"transient": "again", "rate limited": "again", "B": "read"}


def test_the_table_of_the_documentation(outcome_of: Callable[[str], dict[str, str]]) -> None:
    """With WRITE_TABLES=1 it writes the table instead."""
    columns = ["log-odds", "refused", "ignored", "limited", "thinking", *EXPECTED]
    rows = [["profile", *columns], ["---"] * (1 + len(columns))]
    for name in SERVERS:
        found = outcome_of(name)
        cells = [SHOWN.get(cell, cell) for cell in (found.get(c, "–") for c in columns)]
        rows.append([name, *cells])
    made = "".join("|" + "|".join(row).replace(" ", "-") + "|\n" for row in rows)
    page = PAGE.read_text("utf-8")
    begin, end = page.index("|profile|"), page.rindex("|\n") + 2
    if os.environ.get("WRITE_TABLES"):
        PAGE.write_text(page[:begin] + made + page[end:], "utf-8")
    assert made == page[begin:end] or os.environ.get("WRITE_TABLES")


@pytest.mark.parametrize(
    "name", [n for n, p in profiles().items() if n in SERVERS and p.structured]
)
def test_a_schema_is_sent_in_the_words_of_the_provider(
    name: str, provider: Provider, request_: Request
) -> None:
    async def go() -> Reply | str:
        async with _open(name, provider, structured=True) as backend:
            return await Asked(name, provider, backend, request_).reply(Answer('{"choice": "B"}'))

    reply = asyncio.run(go())
    assert isinstance(reply, Reply)
    assert parse(reply.text) == "B"
    assert '"enum": ["A", "B"]' in json.dumps(provider.seen[-1].body)


def test_names_of_the_seed_and_of_the_role_of_instructions(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "gemma: {like: vllm, system_role: user}\no: {like: openai, system_role: developer}"
    )
    monkeypatch.setenv(PROFILES_VARIABLE, str(own))
    space = FeatureSpace.load("penguins")

    def body(profile: str) -> dict[str, Any]:
        url = "http://127.0.0.1:9"
        settings = {"name": "j", "backend": "openai", "model": "m", "seed": 7, "base_url": url}
        judge = OpenAIJudge.model_validate({**settings, "profile": profile})
        return open_backend(judge, space).body(request_)

    assert (body("mistral")["random_seed"], "seed" in body("mistral")) == (7, False)
    assert body("vllm")["messages"][0]["role"] == "system"
    assert body("o")["messages"][0]["role"] == "developer"
    roles = [turn["role"] for turn in body("gemma")["messages"]]
    assert roles == [turn.role for turn in request_.prompt.turns]
    assert body("gemma")["messages"][0]["content"].startswith(request_.prompt.system)


def test_every_profile_has_a_server() -> None:
    assert set(SERVERS) == set(profiles()) - {"compatible"}


def _faulty(server: Server) -> Any:
    """Answer as the server does; once it is overloaded, and one prompt is filtered."""
    filtered: set[str] = set()

    def behave(number: int, body: dict[str, Any]) -> Action:
        question = json.dumps(body["messages"][-1])
        if number == 2:
            return Error(server.overloaded, "Overloaded, try again later")
        if number == 4:
            filtered.add(question)
        if question in filtered:
            return Error(400, "The prompt was blocked by the content filter", FILTERED)
        place = (*server.thinking_in, "reasoning")[0]
        return _strict(server, _says(server, thinking=THOUGHT, thinking_in=place))(number, body)

    return behave


def test_a_campaign_of_all_profiles_is_complete(tmp_path: Path) -> None:
    with ExitStack() as stack:
        judges = []
        for name, server in SERVERS.items():
            provider = stack.enter_context(Provider(_faulty(server), error=server.error))
            judges.append(_settings(name, provider.url) | {"concurrency": 1})
        study = campaign(judges, pairs=4)
        summary = run(study, tmp_path / "all")
    assert [str(problem) for problem in summary.problems] == []
    assert summary.complete
    verdicts = table(study, tmp_path / "all").frame.groupby("judge", observed=True)["verdict"]
    assert {name for name, found in verdicts if set(found) == {"B", "refusal"}} == set(SERVERS)


@pytest.mark.parametrize("profile", ["azure", "groq"])
def test_batches_of_a_profile(profile: str) -> None:
    endpoint = profile_named(profile).batch
    assert endpoint is not None
    with BatchProvider(at_once=True, endpoint=endpoint) as provider:
        judge = _judge(profile, provider.url)

        async def go() -> list[BatchResult]:
            async with open_batch_client(judge) as client:
                body = {"model": "m", "messages": [{"role": "user", "content": "A or B?"}]}
                batch = await client.submit([BatchRequest("q1", body)], "tag")
                assert (await client.state(batch)).ended
                assert [state.tag async for state in client.recent()] == ["tag"]
                return [row async for row in client.results(batch, lambda _: ("A", "B"))]

        (result,) = asyncio.run(go())
        assert result.reply is not None
        assert result.reply.text == "A"


@pytest.mark.parametrize("profile", ["mistral", "vllm", "bedrock"])
def test_a_profile_without_batches_says_so(profile: str) -> None:
    with pytest.raises(InputError, match=f"{profile} has no batch mode; ask it without --batch"):
        open_batch_client(_judge(profile, "http://127.0.0.1:9"))


def test_a_package_that_only_a_provider_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_BEARER_TOKEN_BEDROCK")
    monkeypatch.setattr("llm_elicit.backends.sdk.find_spec", lambda name: None)
    judge = AnthropicJudge(name="j", backend="anthropic", model="m", profile="bedrock")
    with pytest.raises(InputError, match=r"bedrock needs the package boto3; run: pip install"):
        open_backend(judge, FeatureSpace.load("penguins"))


@pytest.mark.parametrize(
    ("profile", "missing", "message"),
    [
        ("azure", "OPENAI_API_VERSION", "the `OPENAI_API_VERSION` environment variable"),
        ("azure", "AZURE_OPENAI_API_KEY", "Missing credentials"),
        ("bedrock", "AWS_REGION", "No AWS region was provided"),
        ("vertex", "CLOUD_ML_REGION", "No region was given"),
        ("groq", "GROQ_API_KEY", "the environment variable GROQ_API_KEY holds no key"),
    ],
)  # fmt: skip
def test_a_variable_that_a_provider_needs_is_named(
    profile: str, missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(InputError, match=message) as raised:
        open_backend(_judge(profile, "http://127.0.0.1:9"), FeatureSpace.load("penguins"))
    assert "\n" not in str(raised.value)


TOKEN = "ya29.canary-0123456789"


@pytest.fixture
def service_account(provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with which Google's own tools find a key, at the loopback server."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    path = tmp_path / "account.json"
    account = {
        "type": "service_account", "project_id": "p", "private_key": pem, "private_key_id": "1",
        "client_email": "a@p.example", "token_uri": f"{provider.url}/token",
    }  # fmt: skip
    path.write_text(json.dumps(account), "utf-8")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return path


def _vertex(provider: Provider, request: Request, action: Action, token: Action) -> Any:
    """Ask Claude at Google with the key of Google's own tools."""
    judge = _judge("vertex", provider.url, api_key_env=None)

    def behave(_number: int, body: dict[str, Any]) -> Action:
        return action if body else token

    async def go() -> Any:
        async with open_backend(judge, FeatureSpace.load("penguins")) as backend:
            return await Asked("vertex", provider, backend, request).reply(action, behave)

    return asyncio.run(go())


GRANTED = _sends({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})


@pytest.mark.usefixtures("service_account")
def test_google_s_own_credentials_are_found_and_hidden(
    provider: Provider, request_: Request
) -> None:
    reply = _vertex(provider, request_, Answer("B"), GRANTED)
    assert reply.text == "B"
    assert provider.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    judge = _judge("vertex", provider.url, api_key_env=None)

    async def go() -> str:
        async with open_backend(judge, FeatureSpace.load("penguins")) as backend:
            with pytest.raises(Exception, match="no") as raised:
                await backend.ask(request_)
            failure = backend.failure(raised.value)
            assert failure is not None
            return failure.message

    provider.behave = lambda _, body: Error(500, f"no {TOKEN}") if body else GRANTED
    assert TOKEN not in asyncio.run(go())


def test_google_s_own_credentials_that_are_not_valid_stop_the_judge(
    provider: Provider, request_: Request, service_account: Path
) -> None:
    refused = Error(401, "no such account")
    assert _vertex(provider, request_, Answer("B"), refused) == "backend is down"
    service_account.unlink()
    assert _vertex(provider, request_, Answer("B"), GRANTED) == "backend is down"
