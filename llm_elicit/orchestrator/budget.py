"""Money: what a request costs, and a cap that is never passed."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from genai_prices import Usage, calc_price

from llm_elicit.campaign import AnthropicJudge, Judge, OpenAIJudge
from llm_elicit.errors import InputError, JudgeError

_OPENAI_URL_VARIABLE = "OPENAI_BASE_URL"


@dataclass(frozen=True)
class Price:
    """What a judge's tokens cost. Without a model they are free.

    Attributes:
        model: the model's name in the price list.
        provider: the provider's name there.
        url: the server's address, by which the list knows other providers.
    """

    model: str = ""
    provider: str | None = None
    url: str | None = None

    def cost(self, prompt: int, completion: int, cached: int = 0) -> float:
        """USD for these tokens; `cached` tokens are a part of the prompt's.

        Example:
            >>> Price().cost(1000, 10)
            0.0
        """
        if not self.model:
            return 0.0
        usage = Usage(input_tokens=prompt, output_tokens=completion, cache_read_tokens=cached)
        if self.provider is not None:
            price = calc_price(usage, self.model, provider_id=self.provider)
        else:
            price = calc_price(usage, self.model, provider_api_url=self.url)
        return float(price.total_price)


def price_of(judge: Judge) -> Price | None:
    """The price of a judge's tokens; None where no price is known.

    Local and simulated judges are free. A server of one's own has no known price.
    """
    match judge:
        case AnthropicJudge():
            price = Price(judge.model, provider="anthropic")
        case OpenAIJudge():
            url = judge.base_url or os.environ.get(_OPENAI_URL_VARIABLE)
            provider = None if url else "openai"
            price = Price(judge.model, provider=provider, url=url)
        case _:
            return Price()
    try:
        price.cost(1, 1)
    except LookupError:
        return None
    return price


def check_cap(cap: float | None, judges: dict[str, Price | None]) -> None:
    """Refuse a cap that could not be held.

    Raises:
        InputError: there is a cap, and a judge whose price is unknown.
    """
    unknown = [name for name, price in judges.items() if price is None]
    if cap is not None and unknown:
        raise InputError(
            f"limits.max_cost: no price is known for the model of judge {unknown[0]!r}, so a cap "
            "cannot be held; remove the cap, or that judge"
        )


def worst_case(price: Price | None, text_bytes: int, turns: int, max_tokens: int) -> float:
    """The most that a request can cost, in USD; 0 where no price is known.

    A token holds at least a byte of text; each turn has a few tokens of its own.
    """
    return price.cost(text_bytes + 32 * (turns + 1), max_tokens) if price else 0.0


class Budget:
    """What may still be spent. Each request reserves its worst case before it is sent.

    Args:
        cap: USD; None for no cap.
        spent: USD spent in earlier runs on the same journal.
    """

    def __init__(self, cap: float | None, spent: float) -> None:
        self._cap = cap
        self._spent = spent
        self._reserved = 0.0
        self._changed = asyncio.Condition()

    @property
    def spent(self) -> float:
        """USD spent so far, in earlier runs too."""
        return self._spent

    async def reserve(self, worst: float) -> None:
        """Set `worst` USD aside; waits while answers in flight may still free enough.

        Raises:
            JudgeError: the cap leaves no room for this request.
        """
        async with self._changed:
            while not self._fits(worst):
                if self._reserved <= 0.0:
                    raise JudgeError(
                        f"limits.max_cost of {self._cap:g} USD: {self._spent:.4f} is spent and the "
                        f"next request may cost {worst:.4f}; raise the cap and run again"
                    )
                await self._changed.wait()
            self._reserved += worst

    async def settle(self, worst: float, paid: float) -> None:
        """Turn a reservation into what was paid."""
        async with self._changed:
            self._reserved = max(self._reserved - worst, 0.0)
            if self._reserved < 1e-12:
                self._reserved = 0.0
            self._spent += paid
            self._changed.notify_all()

    def _fits(self, worst: float) -> bool:
        if self._cap is None or worst == 0.0:
            return True
        return self._spent + self._reserved + worst <= self._cap
