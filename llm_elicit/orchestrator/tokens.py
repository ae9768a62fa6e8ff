"""Count the tokens of a prompt before it is sent.

Prompts to OpenAI's models are counted by their own tokenizer if the extra `tokens` is installed
(its vocabularies are bundled, nothing is fetched). Anthropic publishes no tokenizer, and a server
of one's own may run any model: their prompts are estimated, and rather over than under.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from llm_elicit.backends import provider_of
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

    Example:
        >>> from llm_elicit.config.judges import SimulatedJudge
        >>> from llm_elicit.questions import Message
        >>> count, exact = counter(SimulatedJudge(name="expert", backend="simulated"))
        >>> count(Prompt((Message("user", "A or B?"),))), exact
        (9, False)
    """
    encode = _encoder(judge)
    if encode is None:
        return _estimated, False
    return lambda prompt: _chat(prompt, encode), True


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


def _chat(prompt: Prompt, encode: Callable[[str], Sequence[int]]) -> int:
    """Count a chat as OpenAI does: the role and three tokens per message, three for the answer."""
    turns = (3 + len(encode(m.role)) + len(encode(m.content)) for m in prompt.messages)
    return 3 + sum(turns)


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
