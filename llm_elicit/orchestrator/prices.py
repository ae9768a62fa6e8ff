"""The price of tokens: from the price list of genai-prices, or as stated in the campaign."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

from genai_prices import Usage, calc_price

from llm_elicit.backends import provider_of
from llm_elicit.config.judges import Judge, TokenPrice

PICO = 10**12
"""Picodollars in a dollar. Every listed price of a token is a whole number of picodollars, so that
sums are exact in any order."""


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
        tiers: rates by the prompt's length, the shortest first, whose `above` is 0.
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

    def most(self, prompt: int, completion: int) -> float:
        """Return the highest cost in USD of a request with at most these numbers of tokens."""
        reached = (r for r in self.tiers if prompt > r.above or r.above == 0)
        return max(r.cost(prompt, completion, 0) for r in reached) / PICO


def price_of(judge: Judge, batch: bool = False) -> Price | None:
    """Return the price of a judge's tokens; None if it is unknown.

    A price in the campaign takes precedence over the price list. Local and simulated judges are
    free, as are plug-ins that declare it; the price of another server, or of another
    plug-in, is unknown.

    Args:
        judge: the judge.
        batch: whether to return the price in the provider's batch mode.
    """
    stated: TokenPrice | None = getattr(judge, "price", None)
    if stated is not None:
        return _stated(stated, batch)
    provider = provider_of(judge)
    if provider.free:
        return Price()
    lookup = provider.price_list(judge)
    if lookup is None:
        return None
    context = {"processing": "batch"} if batch else None
    model: str = getattr(judge, "model", "")
    try:
        calculated = calc_price(_ONE, model, price_context=context, **lookup)
    except LookupError:
        return None
    return _listed(calculated.model_price)


_ONE = Usage(input_tokens=1, output_tokens=1)


def _stated(price: TokenPrice, batch: bool) -> Price:
    """Return a price stated in the campaign, in USD per million tokens."""
    share = price.batch if batch else 1.0
    cached = price.input if price.cached is None else price.cached
    numbers = (_pico(Decimal(str(v)) * Decimal(str(share))) for v in (price.input, price.output))
    input_, output = numbers
    return Price((Rates(input_, output, _pico(Decimal(str(cached)) * Decimal(str(share)))),))


def _listed(entry: Any) -> Price:
    """Return the price of an entry of the price list, whose prices are numbers or tiers."""
    prices = {
        "input": entry.input_mtok,
        "output": entry.output_mtok,
        "cached": entry.input_mtok if entry.cache_read_mtok is None else entry.cache_read_mtok,
    }
    starts = {0}
    for price in prices.values():
        starts.update(tier.start for tier in getattr(price, "tiers", ()))
    # `_pico` expects a price per million; this one is per thousand requests.
    request = _pico(Decimal(entry.requests_kcount or 0) * 1000)
    return Price(
        tuple(
            Rates(
                **{name: _pico(_at(price, start)) for name, price in prices.items()},
                request=request,
                above=start,
            )
            for start in sorted(starts)
        )
    )


def _at(price: Any, start: int) -> Decimal:
    """Return a price for prompts just longer than `start`, in USD per million tokens."""
    if price is None:
        return Decimal(0)
    if not hasattr(price, "tiers"):
        return Decimal(price)
    reached = [tier.price for tier in price.tiers if tier.start <= start]
    return Decimal(reached[-1] if reached else price.base)


def _pico(usd_per_million: Decimal) -> int:
    """Return the price in picodollars per token, rounded up."""
    return int((usd_per_million * 10**6).to_integral_value(ROUND_CEILING))
