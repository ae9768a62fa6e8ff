"""Count the tokens of a prompt before it is sent.

Prompts to OpenAI's models are counted by their own tokenizer if the extra `tokens` is installed
(its vocabularies are bundled, nothing is fetched). Anthropic publishes no tokenizer, and a server
of one's own may run any model: their prompts are estimated, and rather over than under.

The tokens charged for a reply: the provider's count if it is plausible, else the worst case.

A cap holds because the worst case of a request is reserved before it is sent. This relies on two
things that a provider may get wrong: the token counts of its replies, and the token limit of the
request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from llm_elicit.backends import Reply, provider_of
from llm_elicit.backends.base import silent
from llm_elicit.config.judges import Judge
from llm_elicit.questions import Prompt

_CHARACTERS_A_TOKEN = 2.7
"""The templates' questions have 3.5 to 3.7 in OpenAI's newest vocabulary; this adds a third."""

_TOKENS_A_TURN = 5
_ROOM_A_TURN = 32
_CACHED_FROM, _CACHED_STEP = 1024, 128
"""OpenAI caches a shared beginning of at least 1024 tokens, in steps of 128."""

Counter = Callable[[Prompt], int]
"""Return the number of tokens of a prompt."""


def counter(judge: Judge) -> tuple[Counter, bool]:
    """Return how to count the tokens of a judge's prompts, and whether the count is exact.

    Examples:
        >>> from llm_elicit.config.judges import SimulatedJudge
        >>> from llm_elicit.questions import Message
        >>> count, exact = counter(SimulatedJudge(name="expert", backend="simulated"))
        >>> count(Prompt((Message("user", "A or B?"),))), exact
        (9, False)
    """
    encode = _encoder(judge)
    if encode is None:
        return _estimated, False

    def chat(prompt: Prompt) -> int:
        # As OpenAI does: the role and three tokens per message, three for the answer.
        turns = (3 + len(encode(m.role)) + len(encode(m.content)) for m in prompt.messages)
        return 3 + sum(turns)

    return chat, True


def most(prompt: Prompt) -> int:
    """Return an upper bound of a prompt's tokens, for any tokenizer.

    A token holds at least one byte of text; each message has a few tokens of its own.
    """
    texts = sum(len(message.content.encode()) for message in prompt.messages)
    return texts + _ROOM_A_TURN * (len(prompt.messages) + 1)


def cached_beginning(prompts: Sequence[Prompt], judge: Judge, count: Counter) -> int:
    """Return the tokens at the beginning of every prompt that the provider bills as cached."""
    if len(prompts) < 2 or not provider_of(judge).caches_prompts(judge):
        return 0
    shared = 0
    for turns in zip(*(prompt.messages for prompt in prompts), strict=False):
        if len({turn.content for turn in turns}) > 1:
            break
        shared += 1
    length = count(Prompt(prompts[0].messages[:shared])) if shared else 0
    return length // _CACHED_STEP * _CACHED_STEP if length >= _CACHED_FROM else 0


def _estimated(prompt: Prompt) -> int:
    texts = sum(len(message.content) for message in prompt.messages)
    return round(texts / _CHARACTERS_A_TOKEN) + _TOKENS_A_TURN * len(prompt.messages) + 1


def _encoder(judge: Judge) -> Callable[[str], Sequence[int]] | None:
    """Return the tokenizer of a judge's model; None if unknown or not installed."""
    name = provider_of(judge).vocabulary(judge)
    if name is None:
        return None
    try:
        library = import_module("bpe_openai")
    except ImportError:
        return None
    encode: Callable[[str], Sequence[int]] = library.get_encoding(name).encode_ordinary
    return encode


MOST = 10_000_000
"""More tokens than any model reads or writes at once; a larger count is implausible."""

_HEADROOM = 2
"""The worst case is raised to this multiple of what a reply took, in case the next takes more."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a request: of its prompt and of its answer."""

    prompt: int = 0
    completion: int = 0

    def max(self, other: Tokens) -> Tokens:
        """Return the elementwise maximum."""
        return Tokens(max(self.prompt, other.prompt), max(self.completion, other.completion))


class UsageCheck:
    """Compares the token counts of one judge's replies with the worst case of their requests.

    **An implausible count** (missing, zero, negative, not a whole number, above `MOST`) is
    replaced by the worst case. **A count above the worst case** is accepted, and raises the worst
    case of the judge's further requests to twice its value. Requests already in flight have
    reserved less, so that what they take beyond it may exceed a cap.

    Args:
        notify: called with one line on the first implausible count and on each rise.
        raised: the least to reserve for a request, as earlier runs found.

    Examples:
        >>> check = UsageCheck()
        >>> check.worst(Tokens(100, 8))
        Tokens(prompt=100, completion=8)
        >>> reply = Reply("A", "stop", "m", None, None, 60, 900, 0, {})
        >>> check.counted(reply, Tokens(100, 8)).completion_tokens, check.worst(Tokens(100, 8))
        (900, Tokens(prompt=100, completion=1800))
        >>> mute = Reply("A", "stop", "m", None, None, 0, 0, 0, {})
        >>> check.counted(mute, Tokens(100, 8)).completion_tokens
        1800
    """

    def __init__(self, notify: Callable[[str], None] = silent, raised: Tokens = Tokens()) -> None:
        self.raised = raised
        self._notify = notify
        self._noted = False

    def worst(self, bound: Tokens) -> Tokens:
        """Return the worst case of a request: its own `bound`, or more if others took more."""
        return bound.max(self.raised)

    def counted(self, reply: Reply, bound: Tokens | None) -> Reply:
        """Return the reply with the tokens charged.

        Args:
            reply: the reply as the provider sent it.
            bound: the most that its request should take; None if the judge is not a language
                model.
        """
        if not _credible(reply):
            charged = self.worst(bound) if bound else Tokens()
            if bound and not self._noted:
                self._noted = True
                self._notify(
                    "replies do not say how many tokens they took, or not credibly: each such "
                    f"reply counts as its worst case ({sum(vars(charged).values()):,} tokens)"
                )
            return replace(
                reply, prompt_tokens=charged.prompt, completion_tokens=charged.completion,
                cached_tokens=0,
            )  # fmt: skip
        if bound:
            self._compare(Tokens(reply.prompt_tokens, reply.completion_tokens), self.worst(bound))
        cached = reply.cached_tokens if _is_count(reply.cached_tokens) else 0
        return replace(reply, cached_tokens=min(cached, reply.prompt_tokens))

    def _compare(self, used: Tokens, worst: Tokens) -> None:
        """Raise the worst case if a reply took more."""
        over = Tokens(
            _HEADROOM * used.prompt if used.prompt > worst.prompt else 0,
            _HEADROOM * used.completion if used.completion > worst.completion else 0,
        )
        if over == Tokens():
            return
        self.raised = self.raised.max(over)
        reserve = self.worst(worst)
        self._notify(
            f"a reply took {used.prompt:,} + {used.completion:,} tokens (prompt + answer) where "
            f"{worst.prompt:,} + {worst.completion:,} was the most that was expected: requests now "
            f"reserve at least {reserve.prompt:,} + {reserve.completion:,}; "
            "those in flight may pass a cap"
        )


def known(reply: Reply) -> tuple[float, float]:
    """Return the plausible token counts of prompt and answer; zeros if they are implausible."""
    if not _credible(reply):
        return 0.0, 0.0
    return float(reply.prompt_tokens), float(reply.completion_tokens)


def _credible(reply: Reply) -> bool:
    """Return whether a reply's token counts are plausible."""
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    if not (_is_count(prompt) and _is_count(completion)) or prompt == 0:
        return False
    return completion > 0 or not (reply.text or reply.thinking)


def _is_count(value: object) -> bool:
    """Return whether a value is a number of tokens; plug-ins may return anything."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
