"""The cost of a request: the tokens of its prompt and its reply, their price, and the caps on them.

Prompts to OpenAI's models are counted by their own tokenizer if the extra `tokens` is installed
(its vocabularies are bundled, nothing is fetched). Anthropic publishes no tokenizer, and another
server may run any model. The tokens of their prompts are estimated, with a margin.

The tokens charged for a reply are the provider's count if it is plausible, else the worst case. A
cap on costs holds because the worst case of a request is reserved before it is sent. This relies on
two things that a provider may get wrong: the token counts of its replies, and the token limit of
the request. Prices come from the campaign or from the price list of genai-prices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from genai_prices import Usage, calc_price

from llm_elicit._util.settings import read_yaml
from llm_elicit.backends import Reply, provider_of
from llm_elicit.backends.base import ignore_note
from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.config.judges import Judge, TokenPrice
from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.journal.connection import FILE, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.questions import reading, spent_or_reserved
from llm_elicit.questions.template import Prompt

MAX_TOKENS = 10_000_000
"""More tokens than any model reads or writes at once; a larger count is implausible."""

PICO = 10**12
"""Picodollars in a dollar. Every listed price of a token is a whole number of picodollars, so that
sums are exact in any order."""

_CHARACTERS_PER_TOKEN = 2.7
"""For estimates. The templates' questions have 3.5 to 3.7 characters per token in OpenAI's newest
vocabulary, so that estimates are about a third too high there."""

_TOKENS_PER_TURN = 5
"""Tokens of a message besides its text, for estimates."""

_MAX_TOKENS_PER_TURN = 32
"""Upper bound of the tokens of a message besides its text."""

_HEADROOM = 2
"""A reply that takes more than the worst case raises it to this multiple of what it took."""

_MIN_CACHED, _CACHED_STEP = 1024, 128
"""OpenAI caches a common prefix of at least 1024 tokens, in steps of 128."""

_UNIT_USAGE = Usage(input_tokens=1, output_tokens=1)
"""The token counts for which genai-prices looks up the rates."""

Counter = Callable[[Prompt], int]
"""A function that returns the number of tokens of a prompt."""


def counter(judge: Judge) -> tuple[Counter, bool]:
    """Return how to count the tokens of a judge's prompts, and whether the count is exact.

    Examples:
        >>> from llm_elicit.config.judges import SimulatedJudge
        >>> from llm_elicit.questions.template import Message
        >>> count, exact = counter(SimulatedJudge(name="expert", backend="simulated"))
        >>> count(Prompt((Message("user", "A or B?"),))), exact
        (9, False)
    """
    vocabulary = provider_of(judge).vocabulary(judge)
    if vocabulary is None:
        return _estimate, False
    try:
        library = import_module("bpe_openai")
    except ImportError:
        return _estimate, False
    encode: Callable[[str], Sequence[int]] = library.get_encoding(vocabulary).encode_ordinary

    def chat(prompt: Prompt) -> int:
        # OpenAI adds the role and three tokens per message, and three for the answer.
        turns = (3 + len(encode(m.role)) + len(encode(m.content)) for m in prompt.messages)
        return 3 + sum(turns)

    return chat, True


def max_prompt_tokens(prompt: Prompt) -> int:
    """Return an upper bound of a prompt's tokens, for any tokenizer.

    A token holds at least one byte of text; each message has a few further tokens.
    """
    return prompt.byte_count + _MAX_TOKENS_PER_TURN * (len(prompt.messages) + 1)


def cached_prefix_tokens(prompts: Sequence[Prompt], judge: Judge, count: Counter) -> int:
    """Return the number of tokens of the common prefix of prompts that is billed as cached."""
    if len(prompts) < 2 or not provider_of(judge).caches_prompts(judge):
        return 0
    shared = 0
    for turns in zip(*(prompt.messages for prompt in prompts), strict=False):
        if len({turn.content for turn in turns}) > 1:
            break
        shared += 1
    length = count(Prompt(prompts[0].messages[:shared])) if shared else 0
    return length // _CACHED_STEP * _CACHED_STEP if length >= _MIN_CACHED else 0


def _estimate(prompt: Prompt) -> int:
    texts = sum(len(message.content) for message in prompt.messages)
    return round(texts / _CHARACTERS_PER_TOKEN) + _TOKENS_PER_TURN * len(prompt.messages) + 1


class Tokens(NamedTuple):
    """The tokens of a request: of its prompt and of its answer."""

    prompt: int = 0
    completion: int = 0

    def max(self, other: Tokens) -> Tokens:
        """Return the elementwise maximum."""
        return Tokens(max(self.prompt, other.prompt), max(self.completion, other.completion))


class UsageCheck:
    """Compares the token counts of one judge's replies with the worst case of their requests.

    **An implausible count** (missing, zero, negative, not a whole number, above `MAX_TOKENS`) is
    replaced by the worst case. **A count above the worst case** is accepted, and raises the worst
    case of the judge's further requests to twice its value. Requests already in flight have
    reserved less, so they may exceed a cap.

    Args:
        notify: called with one line on the first implausible count and on each rise.

    Attributes:
        raised: the raised worst case, earlier runs included.

    Examples:
        >>> check = UsageCheck()
        >>> check.worst_case(Tokens(100, 8))
        Tokens(prompt=100, completion=8)
        >>> reply = Reply("A", "stop", "m", None, None, 60, 900, 0, {})
        >>> check.with_charges(reply, Tokens(100, 8)).completion_tokens
        900
        >>> check.worst_case(Tokens(100, 8))
        Tokens(prompt=100, completion=1800)
        >>> mute = Reply("A", "stop", "m", None, None, 0, 0, 0, {})
        >>> check.with_charges(mute, Tokens(100, 8)).completion_tokens
        1800
    """

    def __init__(self, notify: Callable[[str], None] = ignore_note) -> None:
        self.raised = Tokens()
        self._notify = notify
        self._notified = False

    def worst_case(self, bound: Tokens) -> Tokens:
        """Return the worst case of a request: its `bound`, or more if earlier replies took more."""
        return bound.max(self.raised)

    def with_charges(self, reply: Reply, bound: Tokens | None) -> Reply:
        """Return the reply with the tokens charged.

        Args:
            reply: the reply as the provider sent it.
            bound: the most tokens that its request should take; None if the judge is not a language
                model.
        """
        if not _is_plausible(reply):
            charged = self.worst_case(bound) if bound else Tokens()
            if bound and not self._notified:
                self._notified = True
                self._notify(
                    "replies report no plausible token count: each of them is charged as the worst "
                    f"case ({sum(charged):,} tokens)"
                )
            return replace(
                reply, prompt_tokens=charged.prompt, completion_tokens=charged.completion,
                cached_tokens=0,
            )  # fmt: skip
        used, worst = (
            Tokens(reply.prompt_tokens, reply.completion_tokens),
            self.worst_case(bound or Tokens(MAX_TOKENS, MAX_TOKENS)),
        )
        raised = Tokens(
            _HEADROOM * used.prompt if used.prompt > worst.prompt else 0,
            _HEADROOM * used.completion if used.completion > worst.completion else 0,
        )
        if raised != Tokens():
            self.raised = self.raised.max(raised)
            reserve = self.worst_case(worst)
            self._notify(
                f"a reply took {used.prompt:,} + {used.completion:,} tokens (prompt + answer) "
                f"where {worst.prompt:,} + {worst.completion:,} was the expected maximum: "
                f"requests now reserve at least {reserve.prompt:,} + {reserve.completion:,}; "
                "requests in flight may exceed a cap"
            )
        cached = reply.cached_tokens if _is_count(reply.cached_tokens) else 0
        return replace(reply, cached_tokens=min(cached, reply.prompt_tokens))


def plausible_tokens(reply: Reply) -> tuple[float, float]:
    """Return the plausible token counts of prompt and answer; zeros if they are implausible."""
    if not _is_plausible(reply):
        return 0.0, 0.0
    return float(reply.prompt_tokens), float(reply.completion_tokens)


def _is_plausible(reply: Reply) -> bool:
    """Return whether a reply's token counts are plausible."""
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    if not (_is_count(prompt) and _is_count(completion)) or prompt == 0:
        return False
    return completion > 0 or not (reply.text or reply.thinking)


def _is_count(value: object) -> bool:
    """Return whether a value is a number of tokens; plug-ins may return anything."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


@dataclass(frozen=True)
class Rates:
    """Prices in picodollars, for prompts of more than `above` tokens.

    Attributes:
        input, output, cached: price of one token of the prompt, of the answer, and of the prompt
            if read from the provider's cache.
        request: price of one request, whatever its length.
        above: the rates apply to whole requests whose prompt has more tokens than this.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    request: int = 0
    above: int = 0

    def cost(self, prompt: int, completion: int, cached: int) -> int:
        """Return the cost of one request in picodollars."""
        fresh = (prompt - cached) * self.input + cached * self.cached
        return self.request + fresh + completion * self.output


@dataclass(frozen=True)
class Price:
    """The price of a judge's requests; free by default.

    Attributes:
        tiers: rates by increasing prompt length; `above` is 0 in the first.
    """

    tiers: tuple[Rates, ...] = (Rates(),)

    def cost(self, prompt: int, completion: int, cached: int = 0) -> float:
        """Return the cost of one request in USD; `cached` tokens are part of the prompt's.

        Examples:
            >>> Price((Rates(input=1_000_000, output=5_000_000),)).cost(1000, 10)
            0.00105
        """
        rates = next(r for r in reversed(self.tiers) if prompt > r.above or r.above == 0)
        return rates.cost(prompt, completion, min(cached, prompt)) / PICO

    def max_cost(self, prompt: int, completion: int) -> float:
        """Return the highest cost in USD of a request with at most these numbers of tokens."""
        applicable = (r for r in self.tiers if prompt > r.above or r.above == 0)
        return max(r.cost(prompt, completion, 0) for r in applicable) / PICO


def price_of(judge: Judge, batch: bool = False) -> Price | None:
    """Return the price of a judge's tokens; None if it is unknown.

    A price in the campaign takes precedence over the price list. Local and simulated judges are
    free, and so are plug-ins that declare it. The price of other servers and plug-ins is unknown.

    Args:
        judge: the judge.
        batch: whether to return the price in the provider's batch mode.
    """
    price: TokenPrice | None = getattr(judge, "price", None)
    if price is not None:
        factor = Decimal(str(price.batch if batch else 1.0))
        cached = price.input if price.cached is None else price.cached
        rates = (
            _picodollars(Decimal(str(usd)) * factor) for usd in (price.input, price.output, cached)
        )
        return Price((Rates(*rates),))
    provider = provider_of(judge)
    if provider.free:
        return Price()
    lookup = provider.price_list(judge)
    if lookup is None:
        return None
    context = {"processing": "batch"} if batch else None
    model: str = getattr(judge, "model", "")
    try:
        calculated = calc_price(_UNIT_USAGE, model, price_context=context, **lookup)
    except LookupError:
        return None
    return _list_price(calculated.model_price)


def _list_price(entry: Any) -> Price:
    """Return the price of an entry of the price list, whose prices are numbers or tiers."""
    prices = {
        "input": entry.input_mtok,
        "output": entry.output_mtok,
        "cached": entry.input_mtok if entry.cache_read_mtok is None else entry.cache_read_mtok,
    }
    starts = {0}
    for price in prices.values():
        starts.update(tier.start for tier in getattr(price, "tiers", ()))
    # `_picodollars` expects a price per million; this one is per thousand requests.
    request = _picodollars(Decimal(entry.requests_kcount or 0) * 1000)
    return Price(
        tuple(
            Rates(
                **{name: _picodollars(_price_at(price, start)) for name, price in prices.items()},
                request=request,
                above=start,
            )
            for start in sorted(starts)
        )
    )


def _price_at(price: Any, start: int) -> Decimal:
    """Return a price for prompts just longer than `start`, in USD per million tokens."""
    if price is None:
        return Decimal(0)
    if not hasattr(price, "tiers"):
        return Decimal(price)
    applicable = [tier.price for tier in price.tiers if tier.start <= start]
    return Decimal(applicable[-1] if applicable else price.base)


def _picodollars(usd_per_million: Decimal) -> int:
    """Return the price in picodollars per token, rounded up."""
    return int((usd_per_million * 10**6).to_integral_value(ROUND_CEILING))


class Amount(NamedTuple):
    """The cost of requests.

    Attributes:
        usd: US dollars; 0 if no price is known.
        tokens: tokens of prompts and answers together.
    """

    usd: float = 0.0
    tokens: int = 0


def check_cap(limits: Limits, judges: Mapping[str, Price | None]) -> None:
    """Check that a cap can be held.

    Raises:
        InputError: there is a cap in USD and a judge whose price is unknown.
    """
    unknown = [repr(name) for name, price in judges.items() if price is None]
    if limits.max_cost is not None and unknown:
        raise InputError(
            f"limits.max_cost: no price is known for the model of judge {', '.join(unknown)}, so a "
            "cap cannot be held; state its `price`, or remove the cap or that judge"
        )


class Budget:
    """What is spent and reserved, in whole picodollars and tokens, so that sums are exact.

    Spent and reserved amounts together never exceed the caps, provided that no request costs
    more than was reserved for it. Concurrent requests wait for room under the caps.

    Args:
        limits: the caps; None for no cap.
        spent: the amount spent in earlier runs on the same journal.
        ceiling: the budget of several runs together, in which every amount is reserved as well.
        uncounted: names of runs whose amounts are unknown.

    Examples:
        >>> budget = Budget(Limits(max_cost=1.0), Amount(usd=0.5))
        >>> budget.try_reserve(Amount(usd=0.4)), budget.try_reserve(Amount(usd=0.2))
        (True, False)
        >>> budget.settle(Amount(usd=0.4), Amount(usd=0.1)); budget.spent.usd
        0.6
    """

    def __init__(
        self,
        limits: Limits,
        spent: Amount,
        ceiling: Budget | None = None,
        uncounted: Sequence[str] = (),
    ) -> None:
        max_cost = None if limits.max_cost is None else round(limits.max_cost * PICO)
        self._limits = limits
        self._ceiling, self._uncounted = ceiling, uncounted
        self._caps = (max_cost, limits.max_tokens)
        self._spent = _whole(spent)
        self._reserved = (0, 0)
        self._changed = asyncio.Event()

    @property
    def spent(self) -> Amount:
        """The amount spent, earlier runs included."""
        usd, tokens = self._spent
        return Amount(usd / PICO, tokens)

    def try_reserve(self, worst: Amount) -> bool:
        """Reserve `worst`; return False if a cap has no room for it now."""
        needed = _whole(worst)
        sums = (s + r + a for s, r, a in zip(self._spent, self._reserved, needed, strict=True))
        # A cap does not hold up requests that cost nothing of its kind, as a free judge's.
        if any(a and cap is not None and total > cap
               for a, cap, total in zip(needed, self._caps, sums, strict=True)):  # fmt: skip
            return False
        self._reserved = _add(self._reserved, needed)
        return True

    async def reserve(self, worst: Amount) -> None:
        """Reserve `worst`; wait while requests in flight may still leave enough room.

        Raises:
            CapError: the cap leaves no room for this request.
        """
        await self._reserve(worst)
        if self._ceiling is not None:
            try:
                await self._ceiling.reserve(worst)
            except BaseException:
                self._settle(worst, Amount())
                raise

    async def _reserve(self, worst: Amount) -> None:
        while not self.try_reserve(worst):
            if self._reserved == (0, 0):  # waiting cannot help
                cap, limit, spent = self._limits.max_cost, self._limits.max_tokens, self.spent
                if cap is not None and worst.usd and spent.usd + worst.usd > cap:
                    names = ", ".join(self._uncounted[:5])
                    more = ", …" if len(self._uncounted) > 5 else ""
                    besides = f" (not counted, since unreadable: {names}{more})" if names else ""
                    raise CapError(
                        f"limits.max_cost of {cap:g} USD: {spent.usd:.4f} is spent{besides} and "
                        f"the next request may cost {worst.usd:.4f}; raise the cap and run again"
                    )
                raise CapError(
                    f"limits.max_tokens of {limit:,}: {spent.tokens:,} are used and the next "
                    f"request may take {worst.tokens:,}; raise the cap and run again"
                )
            await self._changed.wait()

    def settle(self, worst: Amount, paid: Amount) -> None:
        """Replace a reservation by the amount paid, at once, also for cancelled requests."""
        self._settle(worst, paid)
        if self._ceiling is not None:
            self._ceiling.settle(worst, paid)

    def _settle(self, worst: Amount, paid: Amount) -> None:
        self._reserved = _add(self._reserved, _whole(worst), -1)
        self._spent = _add(self._spent, _whole(paid))
        # All who wait now look again; those who come later wait for the next change.
        self._changed.set()
        self._changed.clear()


Whole = tuple[int, int]
"""Picodollars and tokens."""


def _whole(amount: Amount) -> Whole:
    return round(amount.usd * PICO), amount.tokens


def _add(first: Whole, second: Whole, sign: int = 1) -> Whole:
    return first[0] + sign * second[0], first[1] + sign * second[1]


@contextmanager
def within_grid_caps(campaign: Campaign, folder: Path) -> Iterator[Campaign]:
    """Yield a cell's campaign with the part of its grid's caps that other cells leave.

    While inside, no other cell of the grid can be asked. A campaign without a grid or without a
    cap is yielded unchanged.

    Args:
        campaign: the cell's campaign, with the caps of the whole grid.
        folder: the folder of the cell's run, beside those of the other cells.

    Raises:
        InputError: another process asks a cell of this grid, or might on another machine.
    """
    limits = campaign.limits
    if campaign.part_of is None or (limits.max_cost is None and limits.max_tokens is None):
        yield campaign
        return
    if campaign.journal is not None:
        raise InputError(
            f"{campaign.part_of}: a cap over the cells of a grid is not supported with a journal "
            "on PostgreSQL; leave out `journal`, or the cap"
        )
    with RunLock(folder.parent / campaign.part_of):
        usd, tokens = 0.0, 0  # that the other cells spent, reserved or submitted
        for journal in sorted(folder.parent.glob(f"{campaign.part_of}.*/{FILE}")):
            cell_folder = journal.parent  # cells that are no longer in the grid count as well
            grid = read_yaml(cell_folder / "campaign.yaml").get("part_of")
            if cell_folder != folder and grid == campaign.part_of:
                with reading(JournalLocation(cell_folder)) as db:
                    cell_usd, cell_tokens = spent_or_reserved(db)
                usd, tokens = usd + cell_usd, tokens + cell_tokens
        remaining = {
            "max_cost": None if limits.max_cost is None else max(limits.max_cost - usd, 0.0),
            "max_tokens": None if limits.max_tokens is None else max(limits.max_tokens - tokens, 0),
        }
        yield campaign.model_copy(update={"limits": limits.model_copy(update=remaining)})
