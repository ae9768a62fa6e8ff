"""Caps on cost and tokens: the worst case of a request is reserved before it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_elicit._util.settings import read_yaml
from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.journal.connection import FILE, JournalLocation, RunLock
from llm_elicit.orchestrator.journal.questions import reading, spent_or_reserved
from llm_elicit.orchestrator.tokens import PICO, Price


@dataclass(frozen=True)
class Amount:
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


class BudgetLedger:
    """What is spent and reserved, in whole picodollars and tokens, so that sums are exact.

    Spent and reserved amounts together never exceed the caps, provided that no request costs
    more than was reserved for it.

    Args:
        limits: the caps; None for no cap.
        spent: the amount spent in earlier runs on the same journal.

    Examples:
        >>> ledger = BudgetLedger(Limits(max_cost=1.0), Amount(usd=0.5))
        >>> ledger.try_reserve(Amount(usd=0.4)), ledger.try_reserve(Amount(usd=0.2))
        (True, False)
        >>> ledger.settle(Amount(usd=0.4), Amount(usd=0.1)); ledger.spent.usd
        0.6
    """

    def __init__(self, limits: Limits, spent: Amount) -> None:
        max_cost = None if limits.max_cost is None else round(limits.max_cost * PICO)
        self._caps = (max_cost, limits.max_tokens)
        self._spent = _whole(spent)
        self._reserved = (0, 0)

    @property
    def spent(self) -> Amount:
        """The amount spent, earlier runs included."""
        usd, tokens = self._spent
        return Amount(usd / PICO, tokens)

    @property
    def idle(self) -> bool:
        """Whether nothing is reserved, so that waiting cannot help."""
        return self._reserved == (0, 0)

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

    def settle(self, worst: Amount, paid: Amount) -> None:
        """Replace a reservation by the amount that was paid."""
        self._reserved = _add(self._reserved, _whole(worst), -1)
        self._spent = _add(self._spent, _whole(paid))


class Budget:
    """A ledger shared by concurrent requests, which wait for room under the caps.

    Args:
        limits: the caps.
        spent: the amount spent in earlier runs on the same journal.
        ceiling: the budget of several runs together, in which every amount is reserved as well.
    """

    def __init__(self, limits: Limits, spent: Amount, ceiling: Budget | None = None) -> None:
        self._limits = limits
        self._ceiling = ceiling
        self._ledger = BudgetLedger(limits, spent)
        self._changed = asyncio.Event()

    @property
    def spent(self) -> Amount:
        """The amount spent, earlier runs included."""
        return self._ledger.spent

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
        while not self._ledger.try_reserve(worst):
            if self._ledger.idle:
                cap, limit, spent = self._limits.max_cost, self._limits.max_tokens, self.spent
                if cap is not None and worst.usd and spent.usd + worst.usd > cap:
                    raise CapError(
                        f"limits.max_cost of {cap:g} USD: {spent.usd:.4f} is spent and the next "
                        f"request may cost {worst.usd:.4f}; raise the cap and run again"
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
        self._ledger.settle(worst, paid)
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
