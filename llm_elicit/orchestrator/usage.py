"""What a reply took: the provider's own count where it can be true, else the worst case.

A cap holds because the worst case of a request is set aside before it leaves. That stands on two
things that a provider may get wrong: it counts the tokens of its replies, and it keeps to the
token limit that it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llm_elicit.backends import Reply
from llm_elicit.backends.base import silent

MOST = 10_000_000
"""Tokens: more than any model reads or writes at once. A larger count is no count."""

_HEADROOM = 2
"""The worst case is raised to so many times what a reply took: the next may take a little more."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a request: of its prompt and of its answer."""

    prompt: int = 0
    completion: int = 0

    def max(self, other: Tokens) -> Tokens:
        """The larger of each."""
        return Tokens(max(self.prompt, other.prompt), max(self.completion, other.completion))


class UsageCheck:
    """Holds what one judge's replies say they took against what their requests may take.

    **A count that cannot be true** (missing, zero, negative, no whole number, beyond `MOST`) is
    replaced by the worst case. **One beyond the worst case** is what it is, and raises the worst
    case of this judge's further requests to twice of it. Requests in flight were reserved for
    less: all that they take beyond it may pass a cap.

    Args:
        notify: told in a line of counts that cannot be true, once, and of each rise.
        raised: the least that a request must reserve, as earlier runs found.

    Example:
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
        """The most that a request can take, by its own `bound` and by what others took."""
        return bound.max(self.raised)

    def counted(self, reply: Reply, bound: Tokens | None) -> Reply:
        """The reply with the tokens that it is charged.

        Args:
            reply: as the provider sent it.
            bound: what its request may take by itself; None for a judge that is no language model.
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

    def _compare(self, taken: Tokens, worst: Tokens) -> None:
        """Raise the worst case where a reply took more."""
        over = Tokens(
            _HEADROOM * taken.prompt if taken.prompt > worst.prompt else 0,
            _HEADROOM * taken.completion if taken.completion > worst.completion else 0,
        )
        if over == Tokens():
            return
        self.raised = self.raised.max(over)
        now = self.worst(worst)
        self._notify(
            f"a reply took {taken.prompt:,} + {taken.completion:,} tokens (prompt + answer) where "
            f"{worst.prompt:,} + {worst.completion:,} was the most that was expected: requests now "
            f"reserve at least {now.prompt:,} + {now.completion:,}; those in flight may pass a cap"
        )


def known(reply: Reply) -> tuple[float, float]:
    """Tokens of the prompt and of the answer as the provider counted them; zeros if it did not."""
    if not _credible(reply):
        return 0.0, 0.0
    return float(reply.prompt_tokens), float(reply.completion_tokens)


def _credible(reply: Reply) -> bool:
    """Whether a reply's count of tokens can be true."""
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    if not (_is_count(prompt) and _is_count(completion)) or prompt == 0:
        return False
    return completion > 0 or not (reply.text or reply.thinking)


def _is_count(value: object) -> bool:
    """Whether a value is a number of tokens; plug-ins may put anything there."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
