"""The real SDKs against loopback servers that speak the real wire formats.

Tests import the SDKs, not this file, which every process of a test run imports: they take three
seconds.
"""

import asyncio
import json
import math
from typing import Any

import pytest

from llm_elicit.backends import Reply, Request, open_backend
from llm_elicit.backends.anthropic import read_message
from llm_elicit.backends.base import SettingDroppedError, bare_url
from llm_elicit.backends.failures import MalformedReplyError, UpstreamError
from llm_elicit.backends.openai import read_completion
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Error, Hangs, Provider, Sends, completion, message

KEY = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def _claude(url: str | None, **settings: Any) -> AnthropicJudge:
    return AnthropicJudge(
        name="claude", backend="anthropic", model="claude-haiku-4-5", base_url=url, **settings
    )


def _openai(url: str | None, **settings: Any) -> OpenAIJudge:
    base = f"{url}/v1" if url else None
    return OpenAIJudge(name="gpt", backend="openai", model="gpt-4o-mini", base_url=base, **settings)


def _ask(judge: Any, request: Request, space: FeatureSpace, times: int = 1) -> list[Reply]:
    async def go() -> list[Reply]:
        async with open_backend(judge, space) as backend:
            return [await backend.ask(request) for _ in range(times)]

    return asyncio.run(go())


def test_anthropic_sends_what_it_says_and_reads_the_answer(
    space: FeatureSpace, request_: Request
) -> None:
    with Provider(lambda n, body: Answer("B", cached=7)) as provider:
        (reply,) = _ask(_claude(provider.url), request_, space)
        (seen,) = provider.seen
    assert seen.path == "/v1/messages"
    assert seen.body == reply.body
    assert seen.body["system"] == request_.prompt.system
    assert [turn["role"] for turn in seen.body["messages"]] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert KEY in (seen.headers.get("authorization", "") + seen.headers.get("x-api-key", ""))
    assert (reply.text, reply.finish, reply.model) == ("B", "stop", "claude-haiku-4-5-20260101")
    assert (reply.completion_tokens, reply.cached_tokens) == (2, 7)
    assert reply.prompt_tokens > 7
    assert reply.first is None


def test_anthropic_leaves_room_to_think_unless_told_otherwise(
    space: FeatureSpace, request_: Request
) -> None:
    with Provider() as provider:
        _ask(_claude(provider.url), request_, space)
        _ask(_claude(provider.url, max_tokens=5), request_, space)
    assert [seen.body["max_tokens"] for seen in provider.seen] == [2048, 5]


def test_a_temperature_goes_by_the_api_version_that_takes_one(
    space: FeatureSpace, request_: Request
) -> None:
    with Provider() as provider:
        _ask(_claude(provider.url), request_, space)
        _ask(_claude(provider.url, temperature=0.5), request_, space)
    without, with_one = provider.seen
    assert "temperature" not in without.body
    assert with_one.body["temperature"] == 0.5
    assert with_one.headers["anthropic-version"] == "2023-06-01"


def test_anthropic_refusal_and_truncation(space: FeatureSpace, request_: Request) -> None:
    answers = [Answer("", stop="refusal"), Answer("Let me", stop="length")]
    with Provider(lambda n, body: answers[n - 1]) as provider:
        replies = _ask(_claude(provider.url), request_, space, times=2)
    assert [(r.text, r.finish) for r in replies] == [("", "refusal"), ("Let me", "length")]


def test_openai_soft_choice_from_log_probabilities(space: FeatureSpace, request_: Request) -> None:
    top = {"A": math.log(0.6), " B": math.log(0.2), "To": math.log(0.1)}
    with Provider(lambda n, body: Answer("A", logprobs=top)) as provider:
        (reply,) = _ask(_openai(provider.url, seed=3, temperature=0.0), request_, space)
        (seen,) = provider.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.body == reply.body
    assert (seen.body["seed"], seen.body["temperature"], seen.body["max_tokens"]) == (3, 0.0, 8)
    assert (seen.body["logprobs"], seen.body["top_logprobs"]) == (True, 20)
    assert reply.first == pytest.approx(0.75)
    assert reply.letter_mass == pytest.approx(0.8)
    assert reply.model == "gpt-4o-mini-2026-01-01"


def test_replicates_have_seeds_of_their_own(space: FeatureSpace, request_: Request) -> None:
    backend = open_backend(_openai("http://127.0.0.1:9", seed=3), space)
    other = Request(request_.prompt, request_.points, replicate=1)
    assert backend.body(request_)["seed"] != backend.body(other)["seed"]


def test_a_server_without_log_probabilities_gives_hard_answers(
    space: FeatureSpace, request_: Request
) -> None:
    def behave(number: int, body: dict[str, Any]) -> Answer | Error:
        if "logprobs" in body:
            return Error(400, "This model does not support the 'logprobs' parameter.")
        return Answer("B")

    async def go() -> Reply:
        async with open_backend(_openai(provider.url), space) as backend:
            with pytest.raises(SettingDroppedError, match="no log-probabilities"):
                await backend.ask(request_)
            return await backend.ask(request_)

    with Provider(behave) as provider:
        reply = asyncio.run(go())
    assert (reply.text, reply.first) == ("B", None)
    assert "logprobs" not in reply.body


def _adapted(judge: Any, request: Request, space: FeatureSpace) -> tuple[list[str], Reply]:
    """The changes that a server makes the judge make, and then its reply."""

    async def go() -> tuple[list[str], Reply]:
        changes: list[str] = []
        async with open_backend(judge, space) as backend:
            while len(changes) < 9:
                try:
                    return changes, await backend.ask(request)
                except SettingDroppedError as change:
                    changes.append(str(change))
        raise AssertionError(changes)

    return asyncio.run(go())


def _details(**changes: Any) -> bytes:
    """An error of servers made with FastAPI, after one about another setting."""
    what = {"loc": ["body", "top_logprobs"], "msg": "Input should be less than or equal to 5",
            "input": 20, "ctx": {"le": 5},
            "url": "https://errors.pydantic.dev/2.5/v/less_than_equal"}  # fmt: skip
    other = {"loc": ["body", "max_tokens"], "msg": "Input should be 16 or more", "input": 8}
    return json.dumps({"detail": [other, {**what, **changes}]}).encode()


def _sends(status: int, **body: Any) -> Sends:
    return Sends(json.dumps(body).encode(), status=status)


TOO_MANY = "top_logprobs must be <= 5"
ECHO = {"model": "m", "max_tokens": 8, "messages": ["from 3 to 12 mm, at most 7"]}
WORDED = [
    TOO_MANY, "must be between 0 and 5", "maximum of 5 logprobs", "Llama 4 gives at most 5 here",
    "expected 0 <= top_logprobs <= 5 at line 1 column 12", "one of 0, 1, 2, 3, 4 or 5, got 20",
    "must be less than 6 (request 7)", "no more than 5", "20 exceeds 5", "5 log probs at most",
    "values in 0-5", "only 5 are supported", "values above 5 are not supported", "top_logprobs < 6",
    "Maximal 5.0", f"{TOO_MANY} [type=value_error, input_value={ECHO}, input_type=dict]",
]  # fmt: skip
"""How servers say that they list at most five alternatives."""


LIMITS = [
    (5, [5], lambda: Error(400, "top_logprobs must be at most 5", "invalid_value", "top_logprobs")),
    (5, [5], lambda: Error(400, "Requested sample logprobs of 20, greater than max allowed: 5")),
    (8, [8], lambda: Error(422, "top_logprobs: must be between 0 and 8, got 20")),
    (5, [5], lambda: Error(400, "top_logprobs must be less than 6", param="top_logprobs")),
    (5, [5], lambda: Error(400, "invalid top_logprobs")),
    (1, [5, 1], lambda: Error(400, "no", "invalid_value", "top_logprobs")),
    (5, [5], lambda: Sends(_details(), status=422)),
    (5, [5], lambda: Sends(_details(msg="bad", ctx={"lt": 6.0}), status=422)),
    (5, [5], lambda: Sends(_details(msg="bad", ctx={"limit_value": 5}), status=400)),
    (0, [0], lambda: Sends(_details(msg="not supported", ctx={}, input=ECHO), status=422)),
    *((5, [5], lambda text=text: Error(400, text, param="top_logprobs")) for text in WORDED),
    *((5, [5], lambda status=status: _sends(status, detail=TOO_MANY)) for status in (200, 400)),
    *((5, [5], lambda status=status: _sends(status, message=TOO_MANY)) for status in (200, 400)),
    *((5, [5], lambda status=status: _sends(status, error=TOO_MANY)) for status in (200, 500)),
    (5, [5], lambda: _sends(200, error={"code": 400, "message": "at most 5", "param": "logprobs"})),
    (5, [5], lambda: _sends(422, message="Maximum of 5 log probabilities", code=20012)),
    (0, [0], lambda: Error(400, "logprobs is not supported with reasoning models")),
    (0, [0], lambda: Error(400, "logprobs are incompatible with reasoning models")),
    (0, [0], lambda: Error(400, "m-7b-v3 does not support logprobs", param="None")),
    (0, [0], lambda: Error(400, "no", "unsupported_parameter", "top_logprobs")),
    (0, [0], lambda: Error(404, "No endpoints found that support logprobs")),
    (0, [0], lambda: Error(500, "UnsupportedParamsError: drop ['logprobs']", param="None")),
    (0, [0], lambda: Sends(b'{"error": {"code": 400, "message": "logprobs is not supported"}}')),
    (0, [5, 1, 0], lambda: Error(400, "bad logprobs")),
]  # fmt: skip


@pytest.mark.parametrize(("most", "tried", "fails"), LIMITS)
def test_as_many_alternatives_are_asked_for_as_the_server_lists(
    most: int, tried: list[int], fails: Any, space: FeatureSpace, request_: Request
) -> None:
    """A bad value is no refused setting."""
    soft = Answer("A", logprobs={"A": math.log(0.6), "B": math.log(0.3)})

    def behave(number: int, body: dict[str, Any]) -> Answer | Error | Sends:
        return fails() if body.get("top_logprobs", 0) > most else soft

    with Provider(behave) as provider:
        changes, reply = _adapted(_openai(provider.url), request_, space)
        sent = [seen.body.get("top_logprobs", 0) for seen in provider.seen]
    assert sent == [20, *tried]
    assert len(changes) == len(tried)
    assert (reply.first is not None) == (most > 0)


def test_requests_in_flight_change_a_setting_once(space: FeatureSpace, request_: Request) -> None:
    """All are refused before the first change; the last of them must not go a step further."""

    async def behave_together() -> tuple[set[str], int]:
        async with open_backend(_openai(provider.url), space) as backend:
            asked = (backend.ask(request_) for _ in range(4))
            changes = await asyncio.gather(*asked, return_exceptions=True)
            return {str(change) for change in changes}, backend.body(request_)["top_logprobs"]

    with Provider(lambda n, body: Error(400, "bad top_logprobs")) as provider:
        changes, top = asyncio.run(behave_together())
    assert changes == {"gpt-4o-mini: the server returns 5 log-probabilities per token, not 20"}
    assert top == 5


def test_the_name_of_the_token_limit_follows_the_server(
    space: FeatureSpace, request_: Request
) -> None:
    complaint = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )

    def behave(number: int, body: dict[str, Any]) -> Answer | Error:
        return Error(400, complaint) if "max_tokens" in body else Answer("B")

    async def go() -> Reply:
        async with open_backend(_openai(provider.url), space) as backend:
            with pytest.raises(SettingDroppedError, match="max_completion_tokens"):
                await backend.ask(request_)
            return await backend.ask(request_)

    with Provider(behave) as provider:
        assert asyncio.run(go()).body["max_completion_tokens"] == 8


def test_openai_itself_takes_max_completion_tokens(space: FeatureSpace, request_: Request) -> None:
    body = open_backend(_openai(None), space).body(request_)
    assert body["max_completion_tokens"] == 2048
    assert "max_tokens" not in body


def test_a_setting_the_user_asked_for_is_never_dropped(
    space: FeatureSpace, request_: Request
) -> None:

    complaint = "Unsupported value: 'temperature' does not support 0.5 with this model."
    with (
        Provider(lambda n, body: Error(400, complaint, param="temperature")) as provider,
        pytest.raises(UpstreamError),
    ):
        _ask(_openai(provider.url, temperature=0.5), request_, space)


def test_openai_refusal_is_kept_apart(space: FeatureSpace, request_: Request) -> None:
    answers = [
        Answer("", refusal="I'm sorry, no."),
        Answer("", stop="content_filter"),
        Answer("Well", stop="length"),
    ]
    with Provider(lambda n, body: answers[n - 1]) as provider:
        replies = _ask(_openai(provider.url), request_, space, times=3)
    assert [r.finish for r in replies] == ["refusal", "refusal", "length"]


@pytest.mark.parametrize("make", [_claude, _openai])
@pytest.mark.parametrize("payload", [b"{}", b"[]", b'{"choices": []}', b'{"content": null}'])
def test_json_that_is_no_answer(
    make: Any, payload: bytes, space: FeatureSpace, request_: Request
) -> None:
    with (
        Provider(lambda n, body: Sends(payload)) as provider,
        pytest.raises(MalformedReplyError),
    ):
        _ask(make(provider.url), request_, space)


@pytest.mark.parametrize("make", [_claude, _openai])
def test_the_sdk_does_not_retry_by_itself(
    make: Any, space: FeatureSpace, request_: Request
) -> None:
    with Provider(lambda n, body: Error(500)) as provider:
        with pytest.raises(Exception, match="500"):
            _ask(make(provider.url), request_, space)
        assert len(provider.seen) == 1


@pytest.mark.parametrize("make", [_claude, _openai])
def test_a_timeout_is_the_judges(make: Any, space: FeatureSpace, request_: Request) -> None:
    with (
        Provider(lambda n, body: Hangs()) as provider,
        pytest.raises(UpstreamError, match="no answer within the timeout"),
    ):
        _ask(make(provider.url, timeout=0.2), request_, space)


@pytest.mark.parametrize(
    ("make", "variable"), [(_claude, "ANTHROPIC_API_KEY"), (_openai, "OPENAI_API_KEY")]
)
def test_a_missing_key_is_one_line(
    make: Any, variable: str, space: FeatureSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable)
    with pytest.raises(InputError, match=variable):
        open_backend(make("http://127.0.0.1:9"), space)


def test_a_server_that_wants_no_key_gets_none_of_ours(
    space: FeatureSpace, request_: Request
) -> None:
    with Provider() as provider:
        _ask(_openai(provider.url, api_key_env=None), request_, space)
        assert KEY not in str(provider.seen[0].headers)


def test_an_endpoint_is_written_down_without_credentials() -> None:
    url = "https://user:secret@host.example:8443/v1/?token=secret"
    assert bare_url(url) == "https://host.example:8443/v1"


def test_an_sdk_s_object_reads_like_the_json_it_came_from() -> None:
    """Batches and local models hand those in."""
    import anthropic
    import openai

    says = Answer("A", logprobs={"A": -0.1, "B": -2.4}, thinking="hm", cached=3)
    asked = {"model": "m", "logprobs": True, "messages": []}
    body = completion(says, asked)
    whole = openai.types.chat.ChatCompletion.model_validate(body)
    reply = read_completion(body, asked, ("A", "B"))
    assert reply == read_completion(whole, asked, ("A", "B"))
    assert (reply.text, reply.thinking, reply.cached_tokens) == ("A", "hm", 3)
    assert reply.first == pytest.approx(1 / (1 + math.exp(-2.3)))
    sent = message(says, asked)
    reply = read_message(sent, asked)
    assert reply == read_message(anthropic.types.Message.model_validate(sent), asked)
    assert (reply.text, reply.thinking, reply.cached_tokens) == ("A", "hm", 3)


_THINKING_OF_CLAUDE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"effort": "high"},
        {
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "max_tokens": 16_392,
        },
    ),
    ({"effort": "none"}, {"thinking": {"type": "disabled"}, "max_tokens": 2048}),
    (
        {"thinking_tokens": 1024},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
    ),
    (
        {"thinking_tokens": 4000, "effort": "low"},
        {
            "thinking": {"type": "enabled", "budget_tokens": 4000},
            "output_config": {"effort": "low"},
            "max_tokens": 4008,
        },
    ),
    ({"effort": "low", "max_tokens": 700}, {"max_tokens": 700}),
    (
        {"extra_body": {"top_k": 5, "metadata": {"user_id": "audit"}}},
        {"top_k": 5, "metadata": {"user_id": "audit"}},
    ),
    (
        {
            "effort": "max",
            "extra_body": {"thinking": {"type": "adaptive", "display": "omitted"}},
        },
        {"thinking": {"type": "adaptive", "display": "omitted"}},
    ),
]
_THINKING_OF_CHAT_COMPLETIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"effort": "low"}, {"reasoning_effort": "low", "max_tokens": 4104}),
    ({"effort": "none"}, {"reasoning_effort": "none", "max_tokens": 8}),
    ({"thinking_tokens": 500}, {"max_tokens": 508}),
    ({"thinking_tokens": 500, "max_tokens": 900}, {"max_tokens": 900}),
    (
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ),
]


@pytest.mark.parametrize(
    ("judge_of", "settings", "sent"),
    [
        *((_claude, *case) for case in _THINKING_OF_CLAUDE),
        *((_openai, *case) for case in _THINKING_OF_CHAT_COMPLETIONS),
    ],
)
def test_settings_of_thinking_and_further_fields_are_sent(
    judge_of: Any,
    settings: dict[str, Any],
    sent: dict[str, Any],
    space: FeatureSpace,
    request_: Request,
) -> None:
    with Provider() as provider:
        _ask(judge_of(provider.url, **settings), request_, space)
    body = provider.seen[0].body
    assert {name: body.get(name) for name in sent} == sent


@pytest.mark.parametrize("judge_of", [_claude, _openai])
def test_further_headers_come_from_the_environment_and_are_never_shown(
    judge_of: Any, space: FeatureSpace, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"X-Title": "an audit", "X-Gateway-Key": "Bearer ${GATEWAY}"}
    monkeypatch.setenv("GATEWAY", "gateway-canary-42")
    with Provider(lambda n, body: Error(400, "no gateway-canary-42 here")) as provider:
        backend = open_backend(judge_of(provider.url, extra_headers=headers), space)

        async def go() -> None:
            async with backend:
                await backend.ask(request_)

        with pytest.raises(Exception, match="canary") as refused:
            asyncio.run(go())
    sent = provider.seen[0].headers
    assert (sent["x-title"], sent["x-gateway-key"]) == ("an audit", "Bearer gateway-canary-42")
    failure = backend.failure(refused.value)
    assert failure is not None
    assert "canary" not in failure.message
    monkeypatch.delenv("GATEWAY")
    with pytest.raises(InputError, match="variable GATEWAY holds no text"):
        open_backend(judge_of(provider.url, extra_headers=headers), space)
