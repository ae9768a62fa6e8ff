"""Answers in unusual shapes: what a reply can do without costs no answer, and a failure is none."""

import json
import math
from typing import Any

import pytest

from llm_elicit.backends import Reply
from llm_elicit.backends.anthropic import read_message
from llm_elicit.backends.chat_completions import read_completion
from llm_elicit.backends.failures import Failure, MalformedReplyError, UpstreamError, read_failure
from llm_elicit.backends.wire import parse_json
from llm_elicit.testing.provider import Answer, completion, message

AB = ("A", "B")
SOFT = {"A": math.log(0.75), "B": math.log(0.25)}


def _whole(text: str = "A", **says: Any) -> dict[str, Any]:
    asked = {"model": "m", "messages": [], "logprobs": True}
    return completion(Answer(text, **says), asked)


def _with(**changes: Any) -> dict[str, Any]:
    """A chat completion with fields of its message, choice or itself replaced by name."""
    whole = _whole(logprobs=SOFT)
    choice = whole["choices"][0]
    choice["message"].setdefault("tool_calls", None)
    for part in (choice["message"], choice, whole):
        part.update({name: changes.pop(name) for name in list(changes) if name in part})
    return {**whole, **changes}


def _message(**changes: Any) -> dict[str, Any]:
    """An answer of the Messages API with fields replaced by name."""
    return {**message(Answer("A"), {"model": "m", "messages": []}), **changes}


def _read(answer: object) -> Reply:
    return read_completion(answer, {}, AB)


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
TEXT = {"type": "text", "text": "A"}
CONTENTS = {
    "parts": ([TEXT], "A", ""),
    "thinking as parts": ([THOUGHT, TEXT], "A", "hm"),
    "thinking as text": ([{"type": "thinking", "thinking": "hm"}, TEXT], "A", "hm"),
    "reasoning": ([{"type": "reasoning", "summary": [{"text": "hm"}]}, TEXT], "A", "hm"),
    "output text": ([{"type": "output_text", "text": "A", "annotations": []}], "A", ""),
    "several": ([{"type": "text", "text": "The answer"}, {"type": "text", "text": " is A."}],
                "The answer is A.", ""),
    "plain texts": (["A"], "A", ""),
    "one part": (TEXT, "A", ""),
    "an image beside it": ([{"type": "image_url", "image_url": {}}, TEXT], "A", ""),
    "thinking of an unknown kind": ([{"type": "pondering", "text": "B?"}, TEXT], "A", ""),
    "redacted": ([{"type": "redacted_thinking", "data": "x"}, TEXT], "A", ""),
    "thinking without text": ([{"type": "thinking", "thinking": None}, TEXT], "A", ""),
    "text without text beside it": ([{"type": "text", "text": None}, TEXT], "A", ""),
    "a part without a kind": ([{"text": "A"}], "A", ""),
    "thinking in the text": ([{"type": "text", "text": "<think>hm</think> A"}], "A", "hm"),
    "text alone": ("A", "A", ""),
}  # fmt: skip


@pytest.mark.parametrize("shape", CONTENTS)
def test_content_is_read_from_its_parts(shape: str) -> None:
    content, text, thinking = CONTENTS[shape]
    for reply in (_read(_with(content=content)), read_message(_message(content=content), {})):
        assert (reply.text, reply.thinking) == (text, thinking)


NO_TEXTS = [
    7, [7], [None], [[TEXT]], [{"type": "image_url"}], {"x": 1}, [{"type": "text", "text": None}],
    [{"type": "pondering", "pondering": "hm"}],
]  # fmt: skip


@pytest.mark.parametrize("content", NO_TEXTS)
def test_content_that_is_no_text_is_malformed(content: object) -> None:
    """Unless the answer was cut off or refused, which needs no text."""
    with pytest.raises(MalformedReplyError, match=r"choices\.0\.message\.content: no text part"):
        _read(_with(content=content))
    with pytest.raises(MalformedReplyError, match=r"^content: no text part"):
        read_message(_message(content=content), {})
    cut = _with(content=content, finish_reason="length")
    assert (_read(cut).text, _read(cut).finish) == ("", "length")
    for stop, finish in (("max_tokens", "length"), ("refusal", "refusal"), ("tool_use",) * 2):
        reply = read_message(_message(content=content, stop_reason=stop), {})
        assert (reply.text, reply.finish) == ("", finish)


def test_a_refusal_among_the_parts_is_one() -> None:
    content = [{"type": "refusal", "refusal": "No."}]
    for reply in (_read(_with(content=content)), read_message(_message(content=content), {})):
        assert (reply.text, reply.finish) == ("No.", "refusal")


@pytest.mark.parametrize("value", [None, 7, [], {}, ...])
@pytest.mark.parametrize("name", ["model", "id", "object", "usage", "created", "finish_reason"])
def test_fields_that_a_reply_can_do_without(name: str, value: Any) -> None:
    whole = _with(**{name: value})
    if value is ...:
        (whole if name in whole else whole["choices"][0]).pop(name)
    reply = _read(whole)
    assert (reply.text, reply.first) == ("A", pytest.approx(0.75))
    assert isinstance(reply.model, str)


def _listed(logprob: Any = SOFT["A"], top: Any = ...) -> dict[str, Any]:
    alternatives = [{"token": token, "logprob": value} for token, value in SOFT.items()]
    return {"token": "A", "logprob": logprob, "top_logprobs": alternatives if top is ... else top}


LEGACY = {"tokens": ["A"], "token_logprobs": [SOFT["A"]], "top_logprobs": [SOFT]}
AS_TEXT = [{"token": token, "logprob": str(value)} for token, value in SOFT.items()]


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [_listed(top=SOFT)]}, [_listed()], LEGACY, {"content": [_listed(top=AS_TEXT)]},
        {"content": [_listed(logprob=None)]}, {**LEGACY, "token_logprobs": None},
    ],
    ids=["mapping", "list of tokens", "legacy", "texts", "no own value", "legacy without values"],
)  # fmt: skip
def test_log_probabilities_of_other_shapes_are_read(logprobs: Any) -> None:
    assert _read(_with(logprobs=logprobs)).first == pytest.approx(0.75)


NOTHING = [
    None, [], {}, 7, "none", [7], {"content": 7}, {"content": [7]}, {"tokens": 7},
    {"tokens": ["A"]},
    {"content": [{"token": None}]}, {"content": [_listed(top=7)]}, {"content": [_listed(top=[7])]},
    {"content": [_listed(top=[{"token": "A", "logprob": None}, {"token": "B", "logprob": -1}])]},
    {"content": [_listed(top=[{"token": "A", "logprob": {}}])]},
    {"content": [_listed(top=[{"token": "A", "logprob": int("1" + "0" * 400)}])]},
]  # fmt: skip


@pytest.mark.parametrize("logprobs", NOTHING, ids=[str(shape)[:60] for shape in NOTHING])
def test_log_probabilities_that_cannot_be_read_leave_a_choice(logprobs: Any) -> None:
    reply = _read(_with(logprobs=logprobs))
    assert (reply.text, reply.first) == ("A", None)


def _chunk(**choice: Any) -> str:
    return "data: " + json.dumps({"model": "m", "choices": [{"index": 0, **choice}]})


WHOLE = json.dumps(_whole())
STREAM = [
    _chunk(delta={"role": "assistant", "content": ""}), _chunk(delta={"reasoning": "hm"}),
    _chunk(delta={"content": "A"}, logprobs={"content": [_listed()]}),
    _chunk(delta={}, finish_reason="stop"), 'data: {"choices": [], "usage": {"prompt_tokens": 9}}',
]  # fmt: skip
BODIES = {
    "tail": WHOLE + "\n\ndata: [DONE]\n\n",
    "one event": f"data: {WHOLE}\n\ndata: [DONE]\n\n",
    "named event": f"event: completion\r\nid: 7\r\ndata: {WHOLE}\r\n\r\n",
    "comments": f": PROCESSING\n\n: PROCESSING\n\ndata:{WHOLE}\n\n",
    "blank lines": "\n\n   \n" + WHOLE + "\n",
    "byte order mark": "\ufeff" + WHOLE,
    "stream": "\n\n".join([*STREAM, "data: [DONE]"]),
    "stream without a mark": "\n".join(STREAM),
}


@pytest.mark.parametrize("body", BODIES)
def test_an_answer_within_a_frame_is_read(body: str) -> None:
    reply = _read(parse_json(BODIES[body].encode()))
    assert (reply.text, reply.finish, reply.model[:1]) == ("A", "stop", "m")
    if "stream" in body:
        assert (reply.first, reply.thinking) == (pytest.approx(0.75), "hm")
        assert reply.prompt_tokens == 9


@pytest.mark.parametrize("tail", [WHOLE, "x", "\x00", "\n\ndata: {", "\n\ndone"])
def test_an_answer_and_something_else_is_malformed(tail: str) -> None:
    with pytest.raises(MalformedReplyError, match="not JSON"):
        parse_json((WHOLE + tail).encode())


def test_a_stream_of_another_kind_is_named() -> None:
    events = [{"type": "message_start", "message": {}}, {"type": "message_stop"}]
    body = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events)
    with pytest.raises(MalformedReplyError, match=r"streams its answers.* turn streaming off"):
        read_message(parse_json(body), {})


def _failure(answer: object, read: Any = read_completion) -> Failure:
    with pytest.raises(UpstreamError) as raised:
        read(answer, {}, *([AB] if read is read_completion else []))
    failure = read_failure(raised.value)
    assert failure is not None
    assert failure.in_answer
    return failure


GONE = {"code": 502, "message": "upstream is gone"}
ERRORS = [
    ({"error": GONE}, 502), ({"error": {**GONE, "code": "503"}}, 503), ({"error": "gone"}, 502),
    ({"error": {**GONE, "code": "server_error"}}, 500), ({"error": {**GONE, "code": 429}}, 429),
    (_with(error=GONE), 502), ({"error": {"type": "rate_limit_exceeded", "message": "x"}}, 429),
    ({"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}, 429),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "status"), ERRORS)
def test_an_error_with_status_200_is_that_error(answer: Any, status: int) -> None:
    failure = _failure(answer)
    assert (failure.kind, failure.status) == ("status", status)


@pytest.mark.parametrize("text", ["", "A"])
def test_an_error_of_the_choice_is_no_answer(text: str) -> None:
    """Also beside text, which may be cut off."""
    whole = _whole(text)
    whole["choices"][0]["error"] = GONE
    failure = _failure(whole)
    assert "upstream is gone" in failure.message


@pytest.mark.parametrize(
    "reason",
    [
        "error", "ERROR", "abort", "aborted", "insufficient_system_resource", "engine_overloaded",
        "server_error", "network_error", "cancelled", "timeout", {"type": "abort", "message": "x"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", ["", "A"])
def test_an_interrupted_answer_is_no_answer(reason: Any, text: str) -> None:
    whole = _whole(text)
    whole["choices"][0]["finish_reason"] = reason
    failure = _failure(whole)
    overloaded = reason in ("insufficient_system_resource", "engine_overloaded")
    assert failure.status == (503 if overloaded else 502)


@pytest.mark.parametrize("reason", [None, "novel_reason"])
def test_an_unknown_reason_is_a_failure_only_without_an_answer(reason: str | None) -> None:
    empty, complete = _whole(""), _whole("A")
    for whole in (empty, complete):
        whole["choices"][0]["finish_reason"] = reason
    _failure(empty)
    assert _read(complete).text == "A"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("eos", "stop"), ("STOP", "stop"), ("model_length", "length"), ("MAX_TOKENS", "length"),
        ("content_filter", "refusal"), ("SAFETY", "refusal"), ("tool_calls", "tool_calls"),
    ],
)  # fmt: skip
def test_the_models_own_reasons_are_answers(reason: str, finish: str) -> None:
    whole = _whole("")
    whole["choices"][0]["finish_reason"] = reason
    assert _read(whole).finish == finish


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("overloaded_error", 529), ("api_error", 500), ("rate_limit_error", 429),
        ("invalid_request_error", 400), ("novel_error", 502),
    ],
)  # fmt: skip
def test_an_error_of_the_messages_api_with_status_200(kind: str, status: int) -> None:
    body = {"type": "error", "error": {"type": kind, "message": "no"}}
    assert _failure(body, read_message).status == status


@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [
        ("end_turn", "A", "stop"), ("model_context_window_exceeded", "Let", "length"),
        ("max_tokens", "", "length"), ("refusal", "", "refusal"), ("novel", "A", "novel"),
        ("pause_turn", "Let", None), ("error", "A", None), ("novel", "", None), (None, "", None),
        ("pause_turn", "", None), ("end_turn", "", "stop"), ("refusal", "No", "refusal"),
        ("model_context_window_exceeded", "", "length"),
        (None, "A", "unknown"),
    ],
)  # fmt: skip
def test_stop_reasons_of_the_messages_api(stop: str, text: str, finish: str | None) -> None:
    whole = {**message(Answer(text), {"model": "m", "messages": []}), "stop_reason": stop}
    empty = ([], "", *([None] if stop in ("max_tokens", "refusal") else []))
    for content in [whole["content"]] if text else empty:
        whole["content"] = content
        if finish is None:
            _failure(whole, read_message)
        else:
            assert read_message(whole, {}).finish == finish


@pytest.mark.parametrize("usage", [..., None, 7, [], {}, {"input_tokens": None}])
def test_a_message_without_a_model_and_usage_is_read(usage: Any) -> None:
    whole = _message(model=None, usage=usage)
    if usage is ...:
        del whole["usage"]
    for answer in (whole, [whole]):
        reply = read_message(answer, {})
        assert (reply.text, reply.model, reply.prompt_tokens) == ("A", "", 0)


@pytest.mark.parametrize("begun", [True, False])
def test_an_error_in_a_stream_of_the_messages_api(begun: bool) -> None:
    """Sent with status 200, whether an answer has begun or not."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    start = [{"type": "message_start", "message": _message(content=[])}, {"type": "ping"}]
    events = [*(start if begun else ()), error]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    failure = _failure(parse_json(body), read_message)
    assert (failure.status, "Overloaded" in failure.message) == (529, True)


@pytest.mark.parametrize("part", [7, "A", None, [], {}, {"type": "message", "role": "assistant"}])
def test_what_is_no_message_is_malformed_in_one_line(part: Any) -> None:
    with pytest.raises(MalformedReplyError, match=r"^[^\n]+$"):
        read_message(part, {})


def test_a_choice_of_another_kind_is_read() -> None:
    whole = _whole()
    del whole["choices"][0]["message"]
    whole["choices"][0]["text"] = "A"
    assert _read(whole).text == "A"


@pytest.mark.parametrize("message", [{"message": None}, {}])
def test_a_choice_without_a_message_is_a_failure_if_it_says_why(message: dict[str, Any]) -> None:
    for reason, error in (("error", None), ("stop", GONE)):
        _failure({"choices": [{**message, "finish_reason": reason, "error": error}]})
    with pytest.raises(MalformedReplyError, match=r"choices\.0\.message"):
        _read({"choices": [{**message, "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    "form",
    [
        "<think>{}</think>{}", "<Thinking>\n{}\n</Thinking>\n{}", "{}</think>\n{}",
        "<seed:think>{}</seed:think>{}", "<thought>{}</thought>{}", "<reasoning>{}</reasoning> {}",
        "[THINK]{}[/THINK]{}", "\u25c1think\u25b7{}\u25c1/think\u25b7{}",
        "<|channel|>analysis<|message|>{}<|channel|>final<|message|>{}",
    ],
)  # fmt: skip
def test_thinking_in_the_text_is_no_answer(form: str) -> None:
    reply = _read(_with(content=form.format("B looks odd.", "A")))
    assert (reply.text, reply.thinking) == ("A", "B looks odd.")
    cut = _read(_whole(form.format("B looks odd.", "|").partition("odd.")[0], stop="length"))
    assert cut.text == "" or not form.startswith(("<", "[", "\u25c1"))


def test_the_answer_comes_after_the_last_thought() -> None:
    assert _read(_with(content="<think>B?</think>B!<think>No.</think>A")).text == "A"


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        ({"object": "error", "message": "overloaded", "code": 503}, "overloaded", 503),
        ([{"error": {"message": "no capacity", "code": 429}}], "no capacity", 429),
        ({"detail": "no capacity"}, "no capacity", 502),
        ({"detail": [{"message": "no capacity"}]}, "no capacity", 502),
        ({"errors": [{"message": "no capacity", "code": 503}]}, "no capacity", 503),
        ({"code": 503, "message": "no capacity", "data": None}, "no capacity", 503),
    ],
)
def test_an_error_of_any_shape_in_place_of_an_answer(body: Any, message: str, status: int) -> None:
    with pytest.raises(UpstreamError, match=message) as raised:
        _read(body)
    assert raised.value.failure.status == status


def test_an_answer_in_a_list_after_comments_as_a_call_or_with_counts_of_its_own() -> None:
    assert _read([_whole()]).text == "A"
    assert _read(parse_json(": waiting\n\n: waiting\n" + json.dumps(_whole()))).text == "A"
    call = {"type": "function", "function": {"name": "answer", "arguments": '{"choice": "A"}'}}
    assert _read(_with(content=None, tool_calls=[call])).text == '{"choice": "A"}'
    for usage in (
        {"prompt_tokens": 12.0, "completion_tokens": "3"},
        {"input_tokens": 12, "output_tokens": 3},
    ):
        reply = _read(_with(usage=usage))
        assert (reply.prompt_tokens, reply.completion_tokens) == (12, 3)
    server = {"completion_probabilities": [_listed()]}
    assert _read(_with(logprobs=None, **server)).first == pytest.approx(0.75)
