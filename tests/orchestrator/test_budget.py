"""Budgets by themselves: what is reserved, who waits, and what a grid's cells leave each other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from llm_elicit.config.campaign import Campaign, Limits
from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.budget import (
    Amount,
    Budget,
    Price,
    check_cap,
    within_grid_caps,
)
from llm_elicit.orchestrator.journal.connection import JournalLocation, RunLock
from llm_elicit.orchestrator.journal.schema import record_answer, record_sending, record_submission
from llm_elicit.orchestrator.journal.store import Journal
from orchestrator.conftest import EXPERT
from orchestrator.running import campaign, plan_of
from orchestrator.test_journal import ANSWER

NOTHING = Amount()


def test_a_cap_in_usd_needs_every_price() -> None:
    check_cap(Limits(max_cost=1.0), {"known": Price()})
    check_cap(Limits(max_tokens=10), {"unknown": None})
    with pytest.raises(InputError, match="judge 'second'"):
        check_cap(Limits(max_cost=1.0), {"first": Price(), "second": None, "third": None})


def test_a_ledger_is_filled_to_the_cap_exactly() -> None:
    ledger = Budget(Limits(max_cost=0.3, max_tokens=30), Amount(0.1, 10))
    assert ledger.try_reserve(Amount(0.1, 10))
    assert not ledger.try_reserve(Amount(0.1, 11))
    assert not ledger.try_reserve(Amount(0.1 + 1e-12, 10))
    assert ledger.try_reserve(Amount(0.1, 10))  # in floats, 0.1 + 0.1 + 0.1 is more than 0.3
    assert not ledger.try_reserve(Amount(1e-12, 0))
    assert not ledger.try_reserve(Amount(0.0, 1))
    ledger.settle(Amount(0.1, 10), Amount(0.025, 4))
    assert ledger.spent == Amount(0.125, 14)
    assert ledger.try_reserve(Amount(0.075, 6))
    ledger.settle(Amount(0.1, 10), NOTHING)
    ledger.settle(Amount(0.075, 6), NOTHING)
    assert ledger.try_reserve(Amount(0.175, 16)), "nothing else is reserved any more"


def test_a_cap_does_not_hold_up_what_costs_nothing_of_its_kind() -> None:
    ledger = Budget(Limits(max_cost=1.0), Amount(2.0, 10))
    assert ledger.try_reserve(Amount(0.0, 1000))
    assert not ledger.try_reserve(Amount(0.5, 0))
    assert Budget(Limits(max_tokens=1), Amount(0.0, 2)).try_reserve(Amount(100.0, 0))


async def _soon(waiting: asyncio.Task[None]) -> bool:
    """Whether a task is done after everybody has had several turns."""
    for _ in range(10):
        await asyncio.sleep(0)
    return waiting.done()


def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, seconds))


def test_a_request_waits_while_those_in_flight_may_leave_room() -> None:
    async def go() -> None:
        budget = Budget(Limits(max_cost=1.0), NOTHING)
        await budget.reserve(Amount(0.4))
        await budget.reserve(Amount(0.4))
        waiting = asyncio.create_task(budget.reserve(Amount(0.7)))
        assert not await _soon(waiting)
        budget.settle(Amount(0.4), Amount(0.1))
        assert not await _soon(waiting)
        budget.settle(Amount(0.4), Amount(0.1))
        assert await _soon(waiting)
        await waiting
        assert budget.spent == Amount(0.2)
        budget.settle(Amount(0.7), Amount(0.7))
        with pytest.raises(CapError, match=r"1 USD: 0\.9000 is spent .* may cost 0\.2000"):
            await budget.reserve(Amount(0.2))
        await budget.reserve(Amount(0.1))

    _within(30, go())


def test_all_that_wait_are_refused_once_nothing_is_in_flight() -> None:
    async def go() -> None:
        budget = Budget(Limits(max_tokens=10), NOTHING)
        await budget.reserve(Amount(tokens=10))
        waiting = [asyncio.create_task(budget.reserve(Amount(tokens=4))) for _ in range(3)]
        assert not await _soon(waiting[0])
        budget.settle(Amount(tokens=10), Amount(tokens=8))
        for task in waiting:
            with pytest.raises(CapError, match=r"max_tokens of 10: 8 are used .* may take 4;"):
                await task
        await budget.reserve(Amount(tokens=2))

    _within(30, go())


@pytest.mark.parametrize(
    ("limits", "spent", "asks", "cap"),
    [
        (Limits(max_cost=1.0, max_tokens=10), Amount(1.0, 10), Amount(0.5, 5), "max_cost"),
        (Limits(max_cost=1.0, max_tokens=10), Amount(0.5, 10), Amount(0.5, 5), "max_tokens"),
        (Limits(max_cost=1.0, max_tokens=10), Amount(2.0, 10), Amount(0.0, 5), "max_tokens"),
        (Limits(max_tokens=10), Amount(2.0, 10), Amount(0.5, 5), "max_tokens"),
    ],
)
def test_the_cap_that_leaves_no_room_is_named(
    limits: Limits, spent: Amount, asks: Amount, cap: str
) -> None:
    with pytest.raises(CapError, match=f"^limits.{cap} of .*raise the cap"):
        _within(30, Budget(limits, spent).reserve(asks))


def test_a_ceiling_counts_what_its_runs_reserve_and_pay() -> None:
    async def go() -> None:
        ceiling = Budget(Limits(max_cost=1.0), Amount(0.25))
        runs = [Budget(Limits(), NOTHING, ceiling) for _ in range(2)]
        for run in runs:
            await run.reserve(Amount(0.25))
        waiting = asyncio.create_task(runs[0].reserve(Amount(0.375)))
        assert not await _soon(waiting)
        runs[1].settle(Amount(0.25), Amount(0.125))
        assert await _soon(waiting)
        assert (ceiling.spent, runs[0].spent) == (Amount(0.375), NOTHING)

    _within(30, go())


def test_what_a_ceiling_refuses_is_not_reserved_in_the_run_either() -> None:
    async def go() -> None:
        ceiling = Budget(Limits(max_cost=0.5), NOTHING)
        run = Budget(Limits(max_cost=1.0), NOTHING, ceiling)
        with pytest.raises(CapError, match=r"max_cost of 0\.5 USD"):
            await run.reserve(Amount(0.75))
        await run.reserve(Amount(0.5))  # nothing of the run's cap is reserved
        waiting = asyncio.create_task(run.reserve(Amount(0.25)))
        assert not await _soon(waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        run.settle(Amount(0.5), Amount(0.125))
        assert run.spent == ceiling.spent == Amount(0.125)
        await run.reserve(Amount(0.375))
        with pytest.raises(CapError, match=r"max_cost of 1 USD"):
            await Budget(Limits(max_cost=1.0), Amount(0.75), ceiling).reserve(Amount(0.5))

    _within(30, go())


def _cell(folder: Path, grid: str = "grid") -> Path:
    """A cell that has spent 0.25 USD and 12 tokens, and reserved 0.5 USD and 50 tokens."""
    folder.mkdir()
    (folder / "campaign.yaml").write_text(f"part_of: {grid}\n")
    journal = Journal(JournalLocation(folder), {"fingerprint": "x"})
    journal.prepare(["expert"], plan_of(campaign([EXPERT], pairs=4)))
    first, second, third = (question.id for question in journal.claim("expert", 3))
    journal.commit([record_answer(first, ANSWER), record_sending(second, 0.125, 20)])
    journal.commit([record_submission(third, 0.375, 30, "batch")])
    journal.close()
    return folder


def _study(**rest: Any) -> Campaign:
    return campaign([EXPERT], **{"part_of": "grid", **rest})


def test_cells_share_the_caps_of_their_grid(tmp_path: Path) -> None:
    """What every other cell of the grid spent, reserved or handed in, and nothing else."""
    mine = _cell(tmp_path / "grid.mine")
    for name in ("grid.one", "grid.two"):
        _cell(tmp_path / name)
    _cell(tmp_path / "grid.copied", grid="another")
    (tmp_path / "grid.new").mkdir()
    study = _study(limits={"max_cost": 2.0, "max_tokens": 150})
    with within_grid_caps(study, mine) as cell:
        assert cell.limits == Limits(max_cost=0.5, max_tokens=26)
        assert cell.model_copy(update={"limits": study.limits}) == study
        with (
            pytest.raises(InputError, match="another process is running"),
            within_grid_caps(study, tmp_path / "grid.one"),
        ):
            pass
    with RunLock(tmp_path / "grid"):
        pass  # it is released


@pytest.mark.parametrize(
    ("caps", "left"),
    [
        ({"max_cost": 1.0}, (0.25, None)),
        ({"max_tokens": 100}, (None, 38)),
        ({"max_cost": 0.5, "max_tokens": 50}, (0.0, 0)),
    ],
)
def test_a_cap_that_was_not_given_stays_so_and_none_is_below_zero(
    tmp_path: Path, caps: dict[str, Any], left: tuple[float | None, int | None]
) -> None:
    _cell(tmp_path / "grid.one")
    with within_grid_caps(_study(limits=caps), tmp_path / "grid.mine") as cell:
        assert (cell.limits.max_cost, cell.limits.max_tokens) == left


def test_without_a_grid_or_a_cap_nothing_is_locked(tmp_path: Path) -> None:
    for study in (campaign([EXPERT], limits={"max_cost": 1.0}), _study()):
        with within_grid_caps(study, tmp_path / "grid.mine") as cell:
            assert cell is study
        assert not list(tmp_path.iterdir())


def test_a_cap_over_cells_on_several_machines_is_refused(tmp_path: Path) -> None:
    study = _study(limits={"max_tokens": 10}, journal="postgresql://me@db.example/x")
    with (
        pytest.raises(
            InputError,
            match=r"^grid: a cap over the cells .* is not supported",
        ),
        within_grid_caps(study, tmp_path / "grid.mine"),
    ):
        pass
