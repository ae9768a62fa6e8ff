"""What models take, and answers that come structured, thought over, refused or cut off."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from orchestrator.running import campaign, run

from llm_elicit.backends import Reply, Request, open_backend
from llm_elicit.backends.providers import unsupported_settings
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.errors import InputError
from llm_elicit.questions.parse import parse
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Provider


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-canary-0123456789")
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def _judge(backend: str, model: str, **settings: Any) -> Any:
    kind = AnthropicJudge if backend == "anthropic" else OpenAIJudge
    return kind(name="judge", backend=backend, model=model, **settings)


LACKS = [
    ("anthropic", "claude-opus-4-7", {"temperature": 0.0}, ["temperature"]),
    ("anthropic", "claude-sonnet-5-5", {"temperature": 0.0}, ["temperature"]),
    ("anthropic", "claude-haiku-4-5-20251001", {"temperature": 0.0, "structured": True}, []),
    ("anthropic", "claude-opus-4-6", {"temperature": 0.5}, []),
    ("anthropic", "claude-3-5-haiku-20241022", {"structured": True}, ["structured"]),
    ("anthropic", "claude-sonnet-4-20250514", {"structured": True}, ["structured"]),
    ("anthropic", "claude-opus-4-7", {"temperature": None}, []),
    ("openai", "o3", {"temperature": 0.0, "logprobs": True}, ["temperature", "logprobs"]),
    ("openai", "gpt-5-mini-2025-08-07", {"temperature": 0.0}, ["temperature"]),
    ("openai", "gpt-5", {}, []),
    ("openai", "gpt-5-chat-latest", {"temperature": 0.0}, []),
    ("openai", "gpt-4.1-mini", {"temperature": 0.0, "structured": True}, []),
    ("openai", "gpt-3.5-turbo", {"structured": True}, ["structured"]),
    ("openai", "o3", {"temperature": 0.0, "base_url": "http://127.0.0.1:9/v1"}, []),
]


@pytest.mark.parametrize(("backend", "model", "settings", "expected"), LACKS)
def test_what_a_model_lacks(
    backend: str, model: str, settings: dict[str, Any], expected: list[str]
) -> None:
    assert unsupported_settings(_judge(backend, model, **settings)) == expected


def test_a_setting_that_models_lack_fails_before_anything_is_sent(tmp_path: Path) -> None:
    with Provider() as provider:
        able = {"name": "able", "backend": "anthropic", "model": "claude-haiku-4-5",
                "base_url": provider.url, "temperature": 0.5}  # fmt: skip
        opus = {**able, "name": "opus", "model": "claude-opus-4-8"}
        o3 = {"name": "o3", "backend": "openai", "model": "o3", "temperature": 1.0}
        with pytest.raises(InputError) as raised:
            run(campaign([able, opus, o3]), tmp_path / "try")
        assert not provider.seen
    assert str(raised.value) == (
        "temperature: not supported by claude-opus-4-8 (judge 'opus'), o3 (judge 'o3'); "
        "remove the setting from these judges"
    )
    assert not (tmp_path / "try").exists()


def _ask(judge: Any, request: Request, space: FeatureSpace) -> Reply:
    async def go() -> Reply:
        async with open_backend(judge, space) as backend:
            return await backend.ask(request)

    return asyncio.run(go())


def test_answers_are_held_to_a_schema(space: FeatureSpace, request_: Request) -> None:
    with Provider(lambda n, body: Answer('{"choice": "B"}')) as provider:
        claude = _judge("anthropic", "claude-haiku-4-5", base_url=provider.url, structured=True)
        gpt = _judge("openai", "gpt-4.1", base_url=f"{provider.url}/v1", structured=True)
        replies = [_ask(judge, request_, space) for judge in (claude, gpt)]
        sent = [seen.body for seen in provider.seen]
    schema = sent[0]["output_config"]["format"]["schema"]
    assert sent[1]["response_format"]["json_schema"]["schema"] == schema
    assert schema["properties"]["choice"]["enum"] == ["A", "B"]
    assert [parse(reply.text) for reply in replies] == ["B", "B"]


def test_a_structured_answer_is_soft_by_the_letter_in_it(
    space: FeatureSpace, request_: Request
) -> None:
    top = {"A": math.log(0.75), "B": math.log(0.25)}
    says = Answer('{"choice":"A"}', logprobs=top, before=('{"', "choice", '":"'))
    with Provider(lambda n, body: says) as provider:
        gpt = _judge("openai", "gpt-4.1", base_url=f"{provider.url}/v1", structured=True)
        assert _ask(gpt, request_, space).first == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ('{"choice": "A"}', "A"),
        (' {"choice": "B"}\n', "B"),
        ('{"choice": "C"}', "unparsable"),
        ('{"choice": ["A"]}', "unparsable"),
        ('{"choice": "', "unparsable"),
    ],
)
def test_a_structured_answer_is_read_strictly(reply: str, verdict: str) -> None:
    assert parse(reply) == verdict
    assert parse(reply, finish="refusal") == "refusal"


def test_a_structured_answer_that_is_cut_off_is_truncated() -> None:
    assert parse('{"choice": "', finish="length") == "truncated"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "tags"])
def test_thinking_is_kept_apart(field: str, space: FeatureSpace, request_: Request) -> None:
    thought = "B looks odd, and A is more plausible. Or is B better?"
    says = Answer("B", thinking=thought, thinking_in=field)
    with Provider(lambda n, body: says) as provider:
        gpt = _judge("openai", "deepseek-r1", base_url=f"{provider.url}/v1", logprobs=False)
        claude = _judge("anthropic", "claude-haiku-4-5", base_url=provider.url)
        replies = [_ask(judge, request_, space) for judge in (gpt, claude)]
    for reply in replies:
        assert (reply.text, reply.thinking) == ("B", thought)


def test_a_model_cut_off_while_it_thinks_has_said_nothing(
    space: FeatureSpace, request_: Request
) -> None:
    says = Answer("<think>A is more plausible", stop="length")
    with Provider(lambda n, body: says) as provider:
        gpt = _judge("openai", "deepseek-r1", base_url=f"{provider.url}/v1")
        reply = _ask(gpt, request_, space)
    assert (reply.text, reply.thinking) == ("", "A is more plausible")
    assert parse(reply.text, finish=reply.finish) == "truncated"
