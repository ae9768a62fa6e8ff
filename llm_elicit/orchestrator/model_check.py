"""Check a judge by one question before a campaign: its server, its log-odds and its cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from llm_elicit.backends import Request, open_backend, provider_of
from llm_elicit.backends.base import Notify, SettingDroppedError, ignore_note, without_key
from llm_elicit.config.judges import Judge
from llm_elicit.errors import JudgeError
from llm_elicit.orchestrator.log_odds import LogOdds, unscored_because
from llm_elicit.orchestrator.rate_limiter import Allowance, allowances
from llm_elicit.orchestrator.retries import classify
from llm_elicit.orchestrator.tokens import price_of
from llm_elicit.questions import read_answer
from llm_elicit.spaces.features import FeatureSpace

_MAX_CHANGES = 5
"""Largest number of settings that may be dropped before the check gives up."""


@dataclass(frozen=True)
class ModelCheck:
    """What one answer shows about a judge's server, its log-odds and its cost.

    Attributes:
        judge: the judge's name.
        endpoint: the address, without credentials.
        model: the model asked.
        version: the model that answered, as the server reports it.
        fingerprint: the version of the serving system, if the server reports one.
        verdict: how the answer was read: a letter, "refusal", "truncated" or the like.
        log_odds: whether choices have log-odds, in one line; empty if the answer was no choice.
        prompt_tokens, cached_tokens: tokens of the prompt, and how many were read from a cache.
        thinking_tokens, answer_tokens: tokens of the thinking (0: not reported) and of the answer.
        seconds: time from the request to the answer.
        cost: USD; None if the price is unknown.
        limits: the rate limits in the response's headers.
        changes: the settings that the server refused, each with its replacement.
    """

    judge: str
    endpoint: str
    model: str
    version: str
    fingerprint: str
    verdict: str
    log_odds: str
    prompt_tokens: int
    cached_tokens: int
    thinking_tokens: int
    answer_tokens: int
    seconds: float
    cost: float | None
    limits: Sequence[Allowance]
    changes: Sequence[str]


async def check_model(
    judge: Judge, space: FeatureSpace, request: Request, notify: Notify = ignore_note
) -> ModelCheck:
    """Ask a judge one question, and return what its answer shows; nothing is stored.

    Args:
        judge: the judge.
        space: the feature space.
        request: the question, about a pair.
        notify: called with one line before anything slow, such as fetching weights.

    Raises:
        InputError: the settings, the key or the address are not accepted.
        JudgeError: there is no answer.
    """
    changes: list[str] = []
    async with open_backend(judge, space, notify) as backend:
        while True:
            body = backend.body(request)
            started = time.monotonic()
            try:
                reply = await asyncio.wait_for(backend.ask(request), judge.timeout)
                break
            except SettingDroppedError as change:
                changes.append(str(change))
                if len(changes) > _MAX_CHANGES:
                    raise JudgeError(
                        f"judge {judge.name!r}: too many settings refused: {change}"
                    ) from None
            except Exception as error:
                failure = backend.failure(error)
                if failure is None:
                    raise
                decision = classify(failure)
                reason = f"judge {judge.name!r}: {decision.reason}"
                raise (decision.stops or JudgeError)(reason) from None
        seconds = time.monotonic() - started
        limits = allowances(reply.headers)
        reply = without_key(reply, backend.scrub)
        offered = backend.capabilities.logprobs
    verdict = read_answer(reply.text, request.answer, request.options, reply.finish).verdict
    log_odds = LogOdds.of(judge)
    letters = request.answer == "letter" and verdict in ("A", "B")
    if letters and provider_of(judge).language_model:
        log_odds.add(unscored_because(judge, reply, body, offered=offered), json.dumps(body))
    price = price_of(judge)
    used = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
    return ModelCheck(
        judge=judge.name,
        endpoint=backend.endpoint,
        model=backend.model,
        version=reply.model,
        fingerprint=reply.fingerprint,
        verdict=verdict,
        log_odds=log_odds.line,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        thinking_tokens=reply.thinking_tokens,
        answer_tokens=max(reply.completion_tokens - reply.thinking_tokens, 0),
        seconds=seconds,
        cost=price.cost(*used) if price else None,
        limits=limits,
        changes=changes,
    )
