"""A campaign's caps are never passed: a request's worst case is set aside before it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_elicit.config.base_model import read_yaml
from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.journal import FILE, JournalLocation, RunLock, committed, reading
from llm_elicit.orchestrator.prices import PICO, Price


@dataclass(frozen=True)
class Amount:
    """What a request takes.

    Attributes:
        usd: dollars; 0 where no price is known.
        tokens: of the prompt and the answer together.
    """

    usd: float = 0.0
    tokens: int = 0


def check_cap(limits: Limits, judges: Mapping[str, Price | None]) -> None:
    """Refuse a cap that could not be held.

    Raises:
        InputError: there is a cap in USD, and a judge whose price is unknown.
    """
    unknown = [name for name, price in judges.items() if price is None]
    if limits.max_cost is not None and unknown:
        raise InputError(
            f"limits.max_cost: no price is known for the model of judge {unknown[0]!r}, so a cap "
            "cannot be held; state its `price`, or remove the cap or that judge"
        )


class BudgetLedger:
    """What may still be spent, in whole picodollars and tokens: sums are exact in any order.

    At any moment spent and set aside together are no more than the caps, provided that nothing
    costs more than was set aside for it.

    Args:
        limits: the caps; a cap that is None is no cap.
        spent: in earlier runs on the same journal.

    Example:
        >>> ledger = BudgetLedger(Limits(max_cost=1.0), Amount(usd=0.5))
        >>> ledger.take(Amount(usd=0.4)), ledger.take(Amount(usd=0.2))
        (True, False)
        >>> ledger.settle(Amount(usd=0.4), Amount(usd=0.1)); ledger.spent.usd
        0.6
    """

    def __init__(self, limits: Limits, spent: Amount) -> None:
        self._caps = (_pico(limits.max_cost), limits.max_tokens)
        self._spent = _whole(spent)
        self._held = (0, 0)

    @property
    def spent(self) -> Amount:
        """Spent so far, in earlier runs too."""
        usd, tokens = self._spent
        return Amount(usd / PICO, tokens)

    @property
    def idle(self) -> bool:
        """Whether nothing is set aside, so that nothing more can become free."""
        return self._held == (0, 0)

    def take(self, worst: Amount) -> bool:
        """Set `worst` aside; False if a cap has no room for it now."""
        asked = _whole(worst)
        sums = (s + h + a for s, h, a in zip(self._spent, self._held, asked, strict=True))
        # What takes nothing of a cap's kind is not held up by it: a free judge goes on.
        if any(a and cap is not None and total > cap
               for a, cap, total in zip(asked, self._caps, sums, strict=True)):  # fmt: skip
            return False
        self._held = _add(self._held, asked)
        return True

    def settle(self, worst: Amount, paid: Amount) -> None:
        """Turn what was set aside into what was paid."""
        self._held = _add(self._held, _whole(worst), -1)
        self._spent = _add(self._spent, _whole(paid))


class Budget:
    """A ledger that many requests share: each waits for its turn.

    Args:
        limits: the caps.
        spent: in earlier runs on the same journal.
    """

    def __init__(self, limits: Limits, spent: Amount) -> None:
        self._limits = limits
        self._ledger = BudgetLedger(limits, spent)
        self._changed = asyncio.Condition()
        self._waiting = 0

    @property
    def spent(self) -> Amount:
        """Spent so far, in earlier runs too."""
        return self._ledger.spent

    async def reserve(self, worst: Amount) -> None:
        """Set `worst` aside; waits while answers in flight may still free enough.

        Raises:
            CapError: a cap leaves no room for this request.
        """
        if not self._waiting and self._ledger.take(worst):
            return
        async with self._changed:
            self._waiting += 1
            try:
                while not self._ledger.take(worst):
                    if self._ledger.idle:
                        raise self._refusal(worst)
                    await self._changed.wait()
            finally:
                self._waiting -= 1

    async def settle(self, worst: Amount, paid: Amount) -> None:
        """Turn a reservation into what was paid."""
        self._ledger.settle(worst, paid)
        if self._waiting:
            async with self._changed:
                self._changed.notify_all()

    def _refusal(self, worst: Amount) -> CapError:
        cap, spent = self._limits.max_cost, self.spent
        if cap is not None and worst.usd and spent.usd + worst.usd > cap:
            return CapError(
                f"limits.max_cost of {cap:g} USD: {spent.usd:.4f} is spent and the next request "
                f"may cost {worst.usd:.4f}; raise the cap and run again"
            )
        return CapError(
            f"limits.max_tokens of {self._limits.max_tokens:,}: {spent.tokens:,} are used and the "
            f"next request may take {worst.tokens:,}; raise the cap and run again"
        )


Whole = tuple[int, int]
"""Picodollars and tokens."""


def _pico(usd: float | None) -> int | None:
    return None if usd is None else round(usd * PICO)


def _whole(amount: Amount) -> Whole:
    return round(amount.usd * PICO), amount.tokens


def _add(one: Whole, other: Whole, sign: int = 1) -> Whole:
    return one[0] + sign * other[0], one[1] + sign * other[1]


@contextmanager
def within_grid_caps(campaign: Campaign, folder: Path) -> Iterator[Campaign]:
    """The campaign under what its grid's caps leave it; other cells wait outside meanwhile.

    A campaign that is in no grid, or has no cap, is as it is.

    Args:
        campaign: a cell, with the caps of the whole grid.
        folder: the cell's run; the others' lie beside it.

    Raises:
        InputError: another process asks for a cell of this grid, or may do so elsewhere.
    """
    limits = campaign.limits
    if campaign.part_of is None or (limits.max_cost is None and limits.max_tokens is None):
        yield campaign
        return
    if campaign.journal is not None:
        raise InputError(
            f"{campaign.part_of}: a cap over the cells of a grid holds on one machine alone; "
            "leave out `journal`, or the cap"
        )
    with RunLock(folder.parent / campaign.part_of):
        usd, tokens = _spent_beside(campaign.part_of, folder)
        left = {
            "max_cost": None if limits.max_cost is None else max(limits.max_cost - usd, 0.0),
            "max_tokens": None if limits.max_tokens is None else max(limits.max_tokens - tokens, 0),
        }
        yield campaign.model_copy(update={"limits": limits.model_copy(update=left)})


def _spent_beside(grid: str, folder: Path) -> tuple[float, int]:
    """USD and tokens of a grid's other cells: spent, set aside, and handed in.

    Cells that the grid names no more count as well: what they spent is spent.
    """
    usd, tokens = 0.0, 0
    for journal in sorted(folder.parent.glob(f"{grid}.*/{FILE}")):
        beside = journal.parent
        if beside == folder or read_yaml(beside / "campaign.yaml").get("part_of") != grid:
            continue
        with reading(JournalLocation(beside)) as db:
            some, more = committed(db)
        usd, tokens = usd + some, tokens + more
    return usd, tokens
