"""Money: what a request costs, and a cap that is never passed."""

from __future__ import annotations

import asyncio

from llm_elicit.errors import InputError, JudgeError
from llm_elicit.orchestrator.prices import Price


def check_cap(cap: float | None, judges: dict[str, Price | None]) -> None:
    """Refuse a cap that could not be held.

    Raises:
        InputError: there is a cap, and a judge whose price is unknown.
    """
    unknown = [name for name, price in judges.items() if price is None]
    if cap is not None and unknown:
        raise InputError(
            f"limits.max_cost: no price is known for the model of judge {unknown[0]!r}, so a cap "
            "cannot be held; state its `price`, or remove the cap or that judge"
        )


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
