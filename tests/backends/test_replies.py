"""Replies that are none: whatever a server sends, one question fails and nothing else."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from llm_elicit.backends import Reply, Request, open_backend
from llm_elicit.backends.base import SettingDroppedError
from llm_elicit.backends.failures import Failure
from llm_elicit.backends.sdk import MAX_BODY_BYTES
from llm_elicit.config.judges import AnthropicJudge, OpenAIJudge
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Error, Provider, Sends, completion, message

KEY = "sk-canary-0123456789"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)


def _claude(url: str, **settings: Any) -> AnthropicJudge:
    return AnthropicJudge(name="claude", backend="anthropic", model="m", base_url=url, **settings)


def _gpt(url: str, **settings: Any) -> OpenAIJudge:
    return OpenAIJudge(name="gpt", backend="openai", model="m", base_url=f"{url}/v1", **settings)


def _asked(judge: Any, request: Request, space: FeatureSpace, times: int = 1) -> list[Any]:
    """The reply to each request, or what its failure means."""

    async def go() -> list[Reply | Failure | None]:
        found: list[Reply | Failure | None] = []
        async with open_backend(judge, space) as backend:
            for _ in range(times):
                try:
                    found.append(await backend.ask(request))
                except Exception as error:
                    failure = backend.failure(error)
                    if failure is None:
                        raise
                    found.append(failure)
        return found

    return asyncio.run(go())


def _shapes() -> dict[str, Sends]:
    asked = {"model": "m", "messages": []}
    whole = [json.dumps(make(Answer("A"), asked)) for make in (completion, message)]
    texts = {
        "brackets": "[" * 200_000,
        "objects": '{"a":' * 200_000,
        "a long number": '{"choices": ' + "9" * 5000 + "}",
        "a list": "[]",
        "a number": "7",
        "null": "null",
        "no content": '{"choices": [{"message": null}], "content": [null]}',
        "text of another type": '{"choices": [{"message": {"content": 7}}], "content": [7]}',
        "an answer and more": whole[0] + whole[1],
        "half an answer": whole[0][:80],
        "nothing": "",
        "a page": "<html>Bad gateway</html>",
    }
    shapes = {name: Sends(text.encode()) for name, text in texts.items()}
    squeezed = gzip.compress(whole[0].encode())
    zipped = (("content-encoding", "gzip"),)
    return shapes | {
        "invalid UTF-8": Sends(b'{"choices": "\xff\xfe\xc3"}'),
        "UTF-16": Sends(b"\xff\xfe" + "[7]".encode("utf-16-le")),
        "zeros": Sends(b"\0" * 1000),
        "no gzip": Sends(b"plain", headers=zipped),
        "half a gzip": Sends(squeezed[:40], headers=zipped),
    }


SHAPES = _shapes()


def _bomb() -> Sends:
    squeezed = gzip.compress(b" " * 200_000_000, 1)
    return Sends(squeezed, headers=(("content-encoding", "gzip"),))


# Made by the test that sends them: every process of a test run imports this file.
LARGE = {"a gzip of 200 MB": _bomb, "too long": lambda: Sends(b" " * (MAX_BODY_BYTES + 1))}


@pytest.mark.parametrize("make", [_claude, _gpt])
@pytest.mark.parametrize("shape", [*SHAPES, *LARGE])
def test_a_reply_that_is_none_is_one_question_s_failure(
    make: Any, shape: str, space: FeatureSpace, request_: Request
) -> None:
    sent = LARGE[shape]() if shape in LARGE else SHAPES[shape]
    with Provider(lambda n, body: sent) as provider:
        (failure,) = _asked(make(provider.url), request_, space)
    assert isinstance(failure, Failure), failure
    assert failure.kind == "malformed"
    assert "\n" not in failure.message
    assert len(failure.message) <= 300


@pytest.mark.parametrize("make", [_claude, _gpt])
def test_a_length_that_is_not_true_breaks_one_connection(
    make: Any, space: FeatureSpace, request_: Request
) -> None:
    asked = {"model": "m", "messages": []}
    says = message if make is _claude else completion
    whole = json.dumps(says(Answer("A"), asked)).encode()
    lies = [Sends(whole, length=len(whole) - 9), Sends(whole, length=len(whole) + 9)]
    behave = [*lies, Answer("A")]
    with Provider(lambda n, body: behave[min(n, 3) - 1]) as provider:
        judge = make(provider.url, timeout=0.3)
        short, long, *others = _asked(judge, request_, space, times=6)
    for failure in (short, long):
        assert isinstance(failure, Failure)
        assert failure.kind in ("malformed", "timeout", "connection")
    # What the first ones left breaks the next one at most; a stall of the machine is a timeout.
    assert any(isinstance(reply, Reply) for reply in others)
    broken = [reply.kind for reply in others if isinstance(reply, Failure)]
    assert set(broken) <= {"connection", "timeout", "malformed", "refused"}


def test_thinking_that_is_no_text_is_left_out(space: FeatureSpace, request_: Request) -> None:
    deep = "[" * 900 + "]" * 900
    whole = f'{{"choices": [{{"message": {{"content": "B", "reasoning": {deep}}}}}]}}'
    with Provider(lambda n, body: Sends(whole.encode())) as provider:
        (reply,) = _asked(_gpt(provider.url), request_, space)
    assert (reply.text, reply.thinking) == ("B", "")


@pytest.mark.parametrize("make", [_claude, _gpt])
def test_a_redirect_is_not_followed(make: Any, space: FeatureSpace, request_: Request) -> None:
    """A POST that follows one arrives as a GET without its body."""
    for status in (301, 302, 303, 307, 308):
        target = (("location", f"https://user:{KEY}@new.example/v1?key={KEY}"),)
        with Provider(lambda n, body, s=status, t=target: Sends(b"", "", s, t)) as provider:
            (failure,) = _asked(make(provider.url), request_, space)
            assert len(provider.seen) == 1
        assert (failure.kind, failure.status) == ("status", status)
        assert "redirects to https://new.example/v1" in failure.message
        assert KEY not in failure.message


def test_a_refused_setting_is_read_from_its_field(space: FeatureSpace, request_: Request) -> None:
    """Words decide nothing where the API names the setting and what is wrong with it."""
    chatty = "mind your max_tokens and logprobs"
    mine = Error(400, chatty, code="unsupported_value", param="temperature")
    value = Error(400, chatty, code="integer_above_max_value", param="max_tokens")
    for fails in (mine, value):
        with Provider(lambda n, body, f=fails: f) as provider:
            (failure,) = _asked(_gpt(provider.url), request_, space)
            assert (failure.status, len(provider.seen)) == (400, 1)
    for param in ("max_tokens", "logprobs", "top_logprobs"):
        fails = Error(400, "no", code="unsupported_parameter", param=param)
        with Provider(lambda n, body, f=fails: f) as provider, pytest.raises(SettingDroppedError):
            _asked_raw(_gpt(provider.url), request_, space)


def test_a_limit_of_neither_name_is_not_tried_for_ever(
    space: FeatureSpace, request_: Request
) -> None:
    said = Error(400, "'max_tokens' or 'max_completion_tokens' is too large: this model has 4096")

    async def go() -> list[str]:
        kinds = []
        async with open_backend(_gpt(provider.url), space) as backend:
            for _ in range(4):
                try:
                    await backend.ask(request_)
                except Exception as error:
                    kinds.append(type(error).__name__)
        return kinds

    with Provider(lambda n, body: said) as provider:
        kinds = asyncio.run(go())
    assert kinds[-2:] == ["UpstreamError"] * 2


def _asked_raw(judge: Any, request: Request, space: FeatureSpace) -> None:
    async def go() -> None:
        async with open_backend(judge, space) as backend:
            await backend.ask(request)

    asyncio.run(go())


@pytest.mark.parametrize("make", [_claude, _gpt])
def test_an_error_with_status_200_is_told(
    make: Any, space: FeatureSpace, request_: Request
) -> None:
    whole = json.dumps({"error": {"code": 502, "message": f"upstream is gone, {KEY}"}}).encode()
    with Provider(lambda n, body: Sends(whole)) as provider:
        (failure,) = _asked(make(provider.url), request_, space)
    assert (failure.kind, failure.status) == ("status", 502)
    assert failure.message == "an error in place of an answer: upstream is gone, [key]"
