"""The probability that a model writes the text of a row, from log-probabilities of its tokens.

The prompt is a plain text without a chat's roles, which the row continues. The probability of a
value is that of its tokens, given the labels, from the space before it to the mark after it, so
that 3 is not read as the beginning of 35. The probability of a category is divided by the sum over
all categories.

A number that is worded with three digits, such as 12,300, stands for all that are rounded to it.
Few models round as the questions do, and the others give the larger numbers, with more zeros, too
small a probability. Wherever rounding put a 0, the probabilities of all digits are added: at the
first one this is exact, and at later ones it is that of any digit after zeros.

A text has several tokenizations, and its probability is the sum over them. The probability of one
of them is a lower bound. All others leave it at some token, so the probabilities of the tokens by
which they do, as far as they are listed, bound what they can add (`RowLikelihood.others`).

A server either returns the log-probabilities of a prompt (`echo`), or it is asked for the next
token again and again, from a prompt that ends with the text so far. Its tokens are then among the
alternatives that are listed. If none of them fits, the probability is at most that of the least
likely alternative, and the result is a bound (`RowLikelihood.is_bound`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from llm_elicit.backends import wire
from llm_elicit.backends.base import Reply, Request
from llm_elicit.backends.chat_completions import CLIPPED, MAX_ROUNDING_LOSS, bytes_of
from llm_elicit.backends.failures import MalformedReplyError
from llm_elicit.questions.numbers import RowLikelihood
from llm_elicit.spaces.feature import ANY_DIGIT

Complete = Callable[[dict[str, Any]], Awaitable[wire.Completion]]
"""Sends a body to the completions endpoint."""

_UNIT = re.compile(r"\s?(?:\d|\w+|.)", re.DOTALL)
"""The text of a token that is not listed: a digit, a word or a mark, with the blank before it."""

_ANY_DIGIT = ord(ANY_DIGIT)


class NoEchoError(Exception):
    """The server does not return the log-probabilities of a prompt."""


@dataclass
class _Score:
    """The log-probability of a text, by one of its tokenizations.

    Attributes:
        path: the log-probability of the tokens so far.
        ends: the log-probability of every path by which the text is complete; a token may go on
            beyond it.
        exits: that of every other path by which another tokenization leaves this one.
        is_bound: whether a token was not listed, so that its probability is only a bound.
    """

    path: float = 0.0
    ends: list[float] = field(default_factory=list)
    exits: list[float] = field(default_factory=list)
    is_bound: bool = False

    def add(self, length: int, remaining: bytes, listed: Mapping[bytes, float]) -> None:
        """Add a token of this length; `remaining` is the form of the text from it on.

        `listed` has the token and its alternatives.
        """
        fitting = {
            token: logprob for token, logprob in listed.items() if _begins_text(token, remaining)
        }
        for token, logprob in fitting.items():
            if len(token) >= len(remaining):
                self.ends.append(self.path + logprob)
            elif len(token) != length:
                self.exits.append(self.path + logprob)
        same = [logprob for token, logprob in fitting.items() if len(token) == length]
        self.path += float(np.logaddexp.reduce(same))

    def skip(self, remaining: bytes, listed: Mapping[bytes, float]) -> int:
        """Add a token that is not listed, and return its length."""
        match = _UNIT.match(remaining.decode("utf-8", "replace"))
        length = len(match[0].encode()) if match else len(remaining)
        unlisted = 1.0 - sum(math.exp(logprob) for logprob in listed.values())
        self.path += min(*listed.values(), math.log(max(unlisted, 0.0) + MAX_ROUNDING_LOSS), 0.0)
        self.is_bound = True
        if length >= len(remaining):
            self.ends.append(self.path)
        return length

    @property
    def log_prob(self) -> float:
        """The log-probability of the text, a lower bound where it is not an upper one."""
        return float(np.logaddexp.reduce(self.ends))

    @property
    def others(self) -> float:
        """An upper bound on the probability of all other tokenizations."""
        return float(np.logaddexp.reduce([*self.ends, *self.exits])) - self.log_prob


def row_body(request: Request, model: str, *, echo: bool, listed: int) -> dict[str, Any]:
    """Return the completions body for the row of a request, with its whole text."""
    prompt = row_prefix(request) + request.prompt.messages[-1].content
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0}
    return body | {"logprobs": listed} | ({"echo": True} if echo else {})


def row_prefix(request: Request) -> str:
    """Return the text before the row of a request."""
    return "\n\n".join(message.content for message in request.prompt.messages[:-1]) + "\n"


def request_count(request: Request, body: dict[str, Any]) -> int:
    """Return the most requests that a question takes: 1, or one a text or a token of a row."""
    values = () if request.direct is None else request.direct.row
    if body.get("echo"):
        return 1 + sum(len(value.alternatives) for value in values)
    texts = (text for value in values for text in (value.text, *value.alternatives))
    return sum(len(text.encode()) for text in texts) or 1


async def ask_row(complete: Complete, request: Request, body: dict[str, Any]) -> Reply:
    """Return the likelihood of a row as the text of a reply.

    Args:
        complete: sends a body.
        request: the request.
        body: as `row_body` makes it.

    Raises:
        NoEchoError: the body asks for an echo, and there is none.
        MalformedReplyError: the tokens have no log-probabilities, or do not spell the text.
    """
    assert request.direct is not None
    asker = _Asker(complete, body)
    prefix, scores, log_probs = row_prefix(request), list[_Score](), list[float]()
    echoed = await asker.echo(body["prompt"]) if body.get("echo") else None
    for value in request.direct.row:
        prefix += value.label
        row_score = await asker.score(prefix, value.text, value.form, echoed)
        of_others = [await asker.score(prefix, text, text) for text in value.alternatives]
        total = np.logaddexp.reduce([row_score.log_prob, *(other.log_prob for other in of_others)])
        scores += [row_score, *of_others]
        log_probs.append(row_score.log_prob - (float(total) if of_others else 0.0))
        prefix += value.text
    likelihood = RowLikelihood(
        log_probs=tuple(log_probs),
        others=max(sum(score.others for score in scores), 0.0),
        is_bound=any(score.is_bound for score in scores),
    )
    last, usages = asker.completions[-1], [c.usage for c in asker.completions if c.usage]
    details = [usage.prompt_tokens_details for usage in usages]
    return Reply(
        text=likelihood.model_dump_json(),
        finish="stop",
        model=last.model,
        fingerprint=last.system_fingerprint,
        prompt_tokens=sum(usage.prompt_tokens or 0 for usage in usages),
        completion_tokens=sum(usage.completion_tokens or 0 for usage in usages),
        cached_tokens=sum(part.cached_tokens or 0 for part in details if part),
        body=body,
    )


@dataclass
class _Asker:
    """Asks a server for the log-probabilities of texts.

    Attributes:
        complete: sends a body.
        body: the body, whose prompt is replaced.
        completions: the answers so far.
    """

    complete: Complete
    body: dict[str, Any]
    completions: list[wire.Completion] = field(default_factory=list)

    async def score(
        self, prefix: str, text: str, form: str, echoed: Sequence[wire.Token] | None = None
    ) -> _Score:
        """Return the log-probability of all texts of a form after another text."""
        if not self.body.get("echo"):
            return await self._score_by_steps(prefix, text.encode(), form.encode())
        return _score_echo(prefix, text, form.encode(), echoed or await self.echo(prefix + text))

    async def echo(self, prompt: str) -> Sequence[wire.Token]:
        """Return the tokens of a prompt, perhaps with others before and after them.

        Raises:
            NoEchoError: the answer does not have them.
        """
        tokens = await self._tokens(prompt)
        if prompt.encode() not in b"".join(map(bytes_of, tokens)):
            raise NoEchoError
        return tokens

    async def _score_by_steps(self, prefix: str, text: bytes, form: bytes) -> _Score:
        """Ask for one token after another, of the length of the most probable one that fits."""
        score, position = _Score(), 0
        while position < len(text):
            tokens = await self._tokens(prefix + text[:position].decode())
            listed = _alternatives(tokens[0])
            fitting = [token for token in listed if _fits(token, form[position:])]
            if fitting:
                length = len(max(fitting, key=listed.__getitem__))
                score.add(length, form[position:], listed)
                position += length
            else:
                position += score.skip(text[position:], listed)
        return score

    async def _tokens(self, prompt: str) -> Sequence[wire.Token]:
        completion = await self.complete({**self.body, "prompt": prompt})
        self.completions.append(completion)
        logprobs = completion.choices[0].logprobs if completion.choices else None
        tokens = (logprobs or completion.completion_probabilities or wire.Logprobs()).content
        if not tokens:
            raise MalformedReplyError(
                "the completion has no log-probabilities; leave out direct.likelihood, or that "
                "judge"
            )
        return tokens


def _begins_text(token: bytes, form: bytes) -> bool:
    """Return whether a token begins a text of a form, or contains one."""
    of_both = zip(token, form, strict=False)
    return all(a == b or (b == _ANY_DIGIT and a in b"0123456789") for a, b in of_both)


def _fits(token: bytes, form: bytes) -> bool:
    """Return whether a token begins a text of a form, and does not end within a character."""
    following = form[len(token) : len(token) + 1]
    return bool(token) and _begins_text(token, form) and not b"\x80" <= following < b"\xc0"


def _alternatives(token: wire.Token) -> dict[bytes, float]:
    """Return the log-probabilities of a token and its alternatives by their text.

    Raises:
        MalformedReplyError: they are not numbers.
    """
    # Two tokens may have one text, but a token no two values.
    listed = {(bytes_of(item), item.logprob) for item in (*(token.top_logprobs or ()), token)}
    logprobs: dict[bytes, float] = {}
    for text, logprob in listed:
        if logprob > CLIPPED and text:
            logprobs[text] = min(float(np.logaddexp(logprobs.get(text, -math.inf), logprob)), 0.0)
    if not logprobs:
        raise MalformedReplyError("a token has no log-probability")
    return logprobs


def _score_echo(prefix: str, text: str, form: bytes, tokens: Sequence[wire.Token]) -> _Score:
    """Return the log-probability of all texts of a form, from the tokens of one after another text.

    A token that has a part of the text is one of the text.
    """
    pieces = [bytes_of(token) for token in tokens]
    stream, target = b"".join(pieces), (prefix + text).encode()
    end = stream.find(target) + len(target)
    begin, score = end - len(text.encode()), _Score()
    for first, piece, token in zip(
        accumulate(map(len, pieces), initial=0), pieces, tokens, strict=False
    ):
        if first < end and first + len(piece) > begin:
            listed = _alternatives(token)
            if piece not in listed:
                raise MalformedReplyError("a token of the prompt has no log-probability")
            remaining = stream[first : max(first, begin)] + form[max(first - begin, 0) :]
            score.add(len(piece), remaining, listed)
    return score
