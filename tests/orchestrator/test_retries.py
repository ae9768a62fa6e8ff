"""What failures of the real SDKs mean, and that none of them can hold a run up."""

import asyncio
import random
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest

from llm_elicit.backends import Request, open_backend
from llm_elicit.backends.failures import Failure, UpstreamError, read_failure
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError, JudgeError
from llm_elicit.orchestrator.judgments import status
from llm_elicit.orchestrator.retries import Decision, History, RetryPolicy, classify, decide
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.testing.provider import (
    Action,
    Answer,
    Error,
    Hangs,
    Provider,
    Resets,
    Sends,
    Trickles,
)
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, run, stopped_clock, table, undisturbed

DAYS_49 = 49 * 86400


def _decide(make: Any, behave: Any, **settings: Any) -> Decision:
    """What one request's failure means, asked of a loopback server through the real SDK."""

    async def go(study: Campaign) -> Decision:
        space = study.load_space()
        a, b = space.sample(2, np.random.default_rng(0))
        request = Request(render(space, a, b, Template.load("v1/zero-shot")), (a, b))
        async with open_backend(study.judges[0], space) as backend:
            with pytest.raises(Exception, match=r".*") as raised:
                async with asyncio.timeout(study.judges[0].timeout):
                    await backend.ask(request)
            failure = backend.failure(raised.value)
        assert failure is not None, repr(raised.value)
        return classify(failure)

    with Provider(behave) as provider:
        study = campaign([make(provider.url, **settings)])
        decision = asyncio.run(go(study))
        while not provider.seen:  # the machine stalled for the whole timeout
            decision = asyncio.run(go(study))
    return decision


RESPONSES = [
    (Error(400, "bad"), "no", None),
    (Error(413, "too large"), "no", None),
    (Error(422, "bad"), "no", None),
    (Error(401, "no"), "backend is down", InputError),
    (Error(402, "pay"), "backend is down", JudgeError),
    (Error(403, "no"), "backend is down", InputError),
    (Error(404, "no such model"), "backend is down", InputError),
    (Error(429, "Rate limit reached for gpt-4o-mini: limit 500. Visit "
                "https://platform.openai.com/account/billing to add a payment method.",
           code="rate_limit_exceeded"), "rate limited", None),
    (Error(429, "insufficient_quota? check your plan and billing details, retry in 1s"),
     "rate limited", None),
    (Error(400, "Your credit balance is too low"), "no", None),
    (Error(405, "POST is not allowed"), "backend is down", InputError),
    (Error(407, "a login"), "backend is down", InputError),
    (Error(410, "gone"), "backend is down", InputError),
    (Error(501, "not implemented"), "no", None),
    (Error(502), "transient", None),
    (Sends(b"", status=302, headers=(("location", "https://new.example/v1"),)), "backend is down",
     InputError),
    (Sends(b"", status=304), "backend is down", InputError),
    (Sends(b"", status=204), "transient", None),
    (Error(429, "slow down"), "rate limited", None),
    (Error(408), "transient", None),
    (Error(409), "transient", None),
    (Error(500), "transient", None),
    (Error(503), "transient", None),
    (Error(529), "transient", None),
    (Sends(b'{"half": '), "transient", None),
    (Sends(b"{}"), "transient", None),
    (Sends(b"\xff\xfe"), "transient", None),
    (Resets(), "transient", None),
    (Hangs(), "transient", None),
    (Trickles(), "transient", None),
]  # fmt: skip


@pytest.mark.parametrize("make", [claude, gpt])
@pytest.mark.parametrize(("action", "kind", "stops"), RESPONSES, ids=lambda x: str(x)[:40])
def test_what_a_response_means(make: Any, action: Action, kind: str, stops: Any) -> None:
    # Only what never comes to an end runs into the timeout, on however slow a machine.
    timeout = 0.4 if isinstance(action, Hangs | Trickles) else 60.0
    decision = _decide(make, lambda n, body: action, timeout=timeout)
    assert (decision.kind, decision.stops) == (kind, stops)
    assert "\n" not in decision.reason
    # Whether it may have been charged: only what may have been answered.
    answered = isinstance(action, Resets | Hangs | Trickles) or (
        isinstance(action, Sends) and action.status < 300
    )
    assert decision.maybe_paid == answered


@pytest.mark.parametrize("make", [claude, gpt])
def test_a_gateway_that_gave_up_may_have_been_answered(make: Any) -> None:
    for gateway in (504, 524):
        decision = _decide(make, lambda n, body, s=gateway: Error(s))
        assert (decision.kind, decision.maybe_paid) == ("transient", True)


@pytest.mark.parametrize("make", [claude, gpt])
def test_nobody_there_is_told_from_a_broken_connection(make: Any) -> None:
    study = campaign([make("http://127.0.0.1:9")])

    async def go() -> Failure | None:
        space = study.load_space()
        a, b = space.sample(2, np.random.default_rng(0))
        request = Request(render(space, a, b, Template.load("v1/zero-shot")), (a, b))
        async with open_backend(study.judges[0], space) as backend:
            with pytest.raises(UpstreamError, match="Cannot connect") as raised:
                await backend.ask(request)
            return backend.failure(raised.value)

    failure = asyncio.run(go())
    assert failure is not None
    assert failure.kind == "refused"
    assert not classify(failure).maybe_paid


def test_the_http_clients_own_exceptions_are_read() -> None:
    whats = {
        httpx.ConnectError("x"): "refused",
        httpx.ReadTimeout("x"): "timeout",
        httpx.RemoteProtocolError("x"): "connection",
        httpx.DecodingError("x"): "malformed",
        httpx.InvalidURL("x"): "unusable",
        httpx.UnsupportedProtocol("x"): "unusable",
        httpx.LocalProtocolError("x"): "unusable",
        httpx.TooManyRedirects("x"): "connection",
        aiohttp.InvalidURL("x"): "unusable",
        aiohttp.http_exceptions.LineTooLong(b"x"): "connection",
        ConnectionRefusedError(): "refused",
        ConnectionResetError(): "connection",
        ssl.SSLError(): "connection",
        asyncio.IncompleteReadError(b"", 1): "connection",
        RecursionError(): "malformed",
        aiohttp.ConnectionTimeoutError(): "refused",
        aiohttp.SocketTimeoutError(): "timeout",
        aiohttp.ServerDisconnectedError(): "connection",
        aiohttp.ClientPayloadError(): "connection",
    }
    for error, what in whats.items():
        failure = read_failure(error)
        assert failure is not None
        assert failure.kind == what
    assert read_failure(ValueError("a bug")) is None


def test_the_last_straw() -> None:
    patience = RetryPolicy(total=100.0)
    server, limit = Failure("status", "boom", 500), Failure("status", "slow", 429)
    history = History(began=0.0)
    for number in range(1, 6):
        # However often, and whether or not others are answered: no server error sets it aside.
        history.add(classify(server), server, answered=10 * number)
        assert decide(classify(server), history, 6, patience, float(number)).kind == "transient"
    history.add(classify(server), server, answered=70)
    last = decide(classify(server), history, 6, patience, 6.0)
    assert (last.kind, last.reason) == ("no", "given up after 6 attempts: server error 500: boom")
    patient = History(began=0.0)
    for number in range(99):
        patient.add(classify(limit), limit, answered=number)
        # A rate limit is not the question's fault: only time ends it.
        assert decide(classify(limit), patient, 6, patience, float(number)).kind == "rate limited"
    assert decide(classify(limit), patient, 6, patience, 100.0).kind == "no"


@pytest.mark.parametrize("status", [503, 529])
def test_an_overload_costs_no_attempt_once_the_judge_has_answered(status: int) -> None:
    busy, patience = Failure("status", "overloaded", status), RetryPolicy(total=100.0)
    history = History(began=0.0)
    for number in range(50):
        history.add(classify(busy), busy, answered=1)
        assert decide(classify(busy), history, 3, patience, float(number)).kind == "transient"
    assert decide(classify(busy), history, 3, patience, 100.0).kind == "no"
    never = History(began=0.0)
    for _ in range(3):
        never.add(classify(busy), busy, answered=0)
    assert decide(classify(busy), never, 3, patience, 1.0).kind == "no"


REFUSED_PROMPTS = [
    # Azure OpenAI, OpenAI (two codes), Kimi, Alibaba
    (400, "content_filter", "The response was filtered due to the prompt"),
    (400, "ResponsibleAIPolicyViolation", "x"),
    (400, "content_policy_violation", "Your request was rejected"),
    (400, "invalid_prompt invalid_request_error", "x"),
    (400, "content_filter", "The request was rejected because it was considered high risk"),
    (400, "data_inspection_failed", "Input data may contain inappropriate content."),
    # Anthropic, DeepSeek, LiteLLM, a gateway of Bedrock, Gemini, Cloudflare: in words alone
    (400, "invalid_request_error", "Output blocked by content filtering policy"),
    (400, "invalid_request_error", "Content Exists Risk"),
    (400, "400", "litellm.ContentPolicyViolationError: AzureException - filtered"),
    (400, "", "{'error': 'Violated guardrail policy'}"),
    (400, "", "The prompt was blocked due to PROHIBITED_CONTENT"),
    (424, "", "Prompt blocked due to security configurations"),
    # OpenRouter and xAI: 403, which is otherwise about the key
    (403, "", "openai/gpt-4o requires moderation on OpenAI. Your input was flagged for violence."),
    (403, "", "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"),
    # An error object in the place of an answer, with any status
    (502, "content_filter", "blocked"),
]

OTHER_REFUSALS = [
    (400, "invalid_request_error", "temperature is deprecated for this model", "no"),
    (400, "context_length_exceeded", "maximum context length is 8192 tokens", "no"),
    (400, "unsupported_parameter", "unknown content type", "no"),
    (403, "permission_denied", "This key has no access to the model", "backend is down"),
    (403, "", "Your account was flagged for unsafe content and is blocked", "backend is down"),
    (401, "content_filter", "no key", "backend is down"),
    (429, "content_filter", "slow down", "rate limited"),
    (500, "server_error", "the content filter crashed", "transient"),
]


def test_a_prompt_that_is_refused_for_its_content_is_no_failure() -> None:
    for status_, code, said in REFUSED_PROMPTS:
        decision = classify(Failure("status", said, status_, code))
        assert (decision.kind, decision.stops) == ("prompt refused", None), (status_, code, said)
    for status_, code, said, kind in OTHER_REFUSALS:
        assert classify(Failure("status", said, status_, code)).kind == kind, (status_, said)


def test_a_wait_of_49_days_does_not_hold_a_run_up(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        wait = ("retry-after", str(DAYS_49))
        return Error(429, headers=(wait,)) if number <= 2 else Answer()

    began = undisturbed()
    with Provider(behave) as provider:
        assert run(campaign([claude(provider.url)]), tmp_path / "try").complete
    assert undisturbed() - began < 120


def test_a_provider_that_only_refuses_stops_the_judge(tmp_path: Path) -> None:
    patience = RetryPolicy(base=0.01, longest=0.05, provider=0.1, stall_timeout=1.0)
    began = undisturbed()
    with Provider(lambda n, body: Error(429, headers=(("retry-after", "86400"),))) as provider:
        summary = run(campaign([claude(provider.url), EXPERT]), tmp_path / "try", patience=patience)
        assert len(provider.seen) < 40
    assert undisturbed() - began < 120
    assert "no answer for" in str(summary.problems[0])
    assert summary.judges["expert"].complete


@pytest.mark.parametrize(
    "action", [Error(529, "Overloaded"), Error(503), Error(500), Error(502), Error(504), Resets()],
    ids=lambda action: f"{type(action).__name__} {getattr(action, 'status', '')}",
)  # fmt: skip
@pytest.mark.parametrize("times", [3, 1000], ids=["thrice", "whole run"])
def test_what_the_servers_fault_is_is_never_held_against_a_question(
    action: Action, times: int, tmp_path: Path
) -> None:
    """It is asked until the trouble is over, or by the next run."""
    unlucky, well = "", False

    def behave(number: int, body: dict[str, Any]) -> Action:
        nonlocal unlucky
        question = body["messages"][-1]["content"]
        unlucky = unlucky or (question if number == 4 else "")
        seen = sum(request.question == unlucky for request in provider.seen)
        return action if question == unlucky and seen <= times and not well else Answer()

    # Patient enough for three in any case, and for an overload of a fifth of a second.
    patience = RetryPolicy(base=0.005, longest=0.02, total=0.2 if times > 3 else 60.0)
    with Provider(behave) as provider:
        study = campaign([claude(provider.url, attempts=4, concurrency=2)])
        summary = run(study, tmp_path / "try", patience=patience)
        assert summary.complete == (times == 3)
        if not summary.complete:
            (line,) = status(tmp_path / "try", study).values()
            assert (line.done, line.failed, line.quarantined) == (19, 1, 0)
            run(study, tmp_path / "try", patience=patience)
            (line,) = status(tmp_path / "try", study).values()
            assert (line.failed, line.quarantined) == (1, 0), "nor by the second run"
            well = True
            assert run(study, tmp_path / "try", patience=patience).complete


BROKEN = [Error(400, "this prompt breaks the tokenizer"), Error(413), Sends(b'{"half": ')]


@pytest.mark.parametrize("action", BROKEN, ids=["400", "413", "malformed"])
def test_a_question_that_fails_in_two_runs_is_set_aside(action: Action, tmp_path: Path) -> None:
    """The first question of all: the run goes on with the others."""
    broken = ""

    def behave(number: int, body: dict[str, Any]) -> Action:
        nonlocal broken
        question = body["messages"][-1]["content"]
        broken = broken or question
        return action if question == broken else Answer(delay=0.02)

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, attempts=2)])
        sent = [0]
        for states in ((19, 1, 0), (19, 0, 1), (19, 0, 1)):
            assert not run(study, tmp_path / "try").problems
            (line,) = status(tmp_path / "try", study).values()
            assert (line.done, line.failed, line.quarantined) == states
            sent.append(len(provider.seen))
    assert sent[1] < sent[2] == sent[3], "the third run sends nothing"


def test_a_slot_is_given_back_while_a_question_waits(tmp_path: Path) -> None:
    """With one slot, others are answered while the first waits for its next attempt."""
    times: list[float] = []

    def behave(number: int, body: dict[str, Any]) -> Action:
        times.append(time.monotonic())
        return Error(500) if number == 1 else Answer()

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, concurrency=1)])
        patience = RetryPolicy(base=0.4, longest=0.4)
        clock = stopped_clock(times, lambda: len(provider.seen) >= 20)
        assert run(study, tmp_path / "try", patience=patience, clock=clock).complete
        questions = [seen.question for seen in provider.seen]
    assert questions[20] == questions[0], "all others came before its time"
    assert times[20] - times[0] >= 0.2, "it waited"
    assert len(questions) == 21


def test_a_server_that_trickles_is_cut_off(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        return Trickles() if number == 1 else Answer()

    began = undisturbed()
    with Provider(behave) as provider:
        study = campaign([claude(provider.url, timeout=0.4)], pairs=4)
        assert run(study, tmp_path / "try").complete
    assert undisturbed() - began < 25, "it trickles for thirty seconds"


def test_a_run_has_a_deadline_and_goes_on_another_time(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer(delay=0.1)) as provider:
        hurried = campaign([claude(provider.url, concurrency=1)], limits={"deadline": 1.0})
        done = 0
        while not done:  # where the machine stalls, a second is over before the first answer
            summary = run(hurried, tmp_path / "try")
            (problem,) = summary.problems
            assert "limits.deadline" in str(problem)
            done = summary.judges["claude"].tally.done
        assert done < 20
        assert len(provider.seen) == done
        free = campaign([claude(provider.url)])
        assert run(free, tmp_path / "try").complete


def _faulty(seed: int) -> Any:
    """2 % 429, 1 % 500, 0.5 % each of hangs, resets and malformed answers, as they come."""
    rng = random.Random(seed)
    faults = Counter[str]()

    def behave(number: int, body: dict[str, Any]) -> Action:
        draw = rng.random()
        for edge, name, action in (
            (0.02, "429", Error(429, headers=(("retry-after", "0.1"),))),
            (0.03, "500", Error(500)),
            (0.035, "hang", Hangs()),
            (0.04, "reset", Resets()),
            (0.045, "malformed", Sends(b'{"half": ')),
        ):
            if draw < edge:
                faults[name] += 1
                return action
        return Answer("A", delay=0.01)

    behave.faults = faults  # type: ignore[attr-defined]
    return behave


@pytest.mark.parametrize("make", [claude, gpt])
def test_faults_of_every_kind_cost_only_themselves(make: Any, tmp_path: Path) -> None:
    pairs = 300
    behave = _faulty(3)
    with Provider(behave) as provider:
        study = campaign([make(provider.url, timeout=2.0, concurrency=32)], pairs=pairs)
        summary = run(study, tmp_path / "try")
        sent = len(provider.seen)
    assert set(behave.faults) == {"429", "500", "hang", "reset", "malformed"}
    (judge,) = summary.judges.values()
    assert judge.tally.done + judge.tally.failed == 2 * pairs
    assert not summary.problems
    assert (sent - sum(behave.faults.values())) / (2 * pairs) < 1.1
    assert len(table(study, tmp_path / "try")) == judge.tally.done
