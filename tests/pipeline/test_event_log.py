"""Events of a run as watchers see them, with other processes that write into the same journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from orchestrator.postgres import server

from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.control import (
    Control,
    RunEvent,
    begin_control,
    read_control,
    read_events,
    record_events,
    write_control,
)
from llm_elicit.pipeline import run_progress
from llm_elicit.pipeline.run_progress import EventLog


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server."""
    with server() as address:
        yield address


def _happened(*kinds: str) -> list[RunEvent]:
    return [RunEvent(kind=kind) for kind in kinds]


async def _next(log: EventLog, since: int, count: int) -> list[tuple[int, str]]:
    found = []
    async with asyncio.timeout(60.0):
        async for event in log.events(since):
            found.append((event.seq, event.kind))
            if len(found) == count:
                break
    return found


def test_a_watcher_sees_the_events_of_other_workers_of_a_shared_journal(
    postgres: str, tmp_path: Path
) -> None:
    """Also while this process itself has nothing to say."""
    location = JournalLocation(tmp_path / "shared", postgres)
    begin_control(location)

    async def go() -> None:
        log = EventLog(location)
        log.add("own")
        await log.record()
        watching = [asyncio.create_task(_next(log, since, 4 - since)) for since in (0, 1)]
        await asyncio.sleep(0.2)
        record_events(location, _happened("other", "other"))
        await asyncio.sleep(0.2)
        log.add("own")
        await log.record()
        every = [(1, "own"), (2, "other"), (3, "other"), (4, "own")]
        assert await asyncio.gather(*watching) == [every, every[1:]]
        record_events(location, _happened("last"))
        assert await _next(log, 4, 1) == [(5, "last")]
        assert await _next(log, 0, 5) == [*every, (5, "last")]

    asyncio.run(go())


def test_the_events_of_a_run_of_another_process_are_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process records that the run has ended before its last event."""
    location = JournalLocation(tmp_path)
    begin_control(location, state="running")
    record_events(location, _happened("planned"))
    known: list[str] = []  # to the watcher

    def control(location: JournalLocation) -> Control | None:
        found = read_control(location)
        assert found is not None
        known.append(found.state)
        return found

    def events(location: JournalLocation, since: int) -> list[RunEvent]:
        found = read_events(location, since)
        if not found and since == 1:
            if known[-1] == "running":
                write_control(location, state="done")
            else:
                record_events(location, _happened("state"))
        return found

    monkeypatch.setattr(run_progress.journal, "read_control", control)
    monkeypatch.setattr(run_progress.journal, "read_events", events)
    seen = asyncio.run(_next(EventLog(location, here=False), 0, 99))
    assert seen == [(1, "planned"), (2, "state")]


def test_a_journal_that_is_deleted_while_it_is_watched_ends_the_stream(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path)
    begin_control(location, state="running")
    record_events(location, _happened("planned"))

    async def go() -> list[tuple[int, str]]:
        watching = asyncio.create_task(_next(EventLog(location, here=False), 0, 99))
        await asyncio.sleep(0.3)
        for file in tmp_path.glob("journal*"):
            file.unlink()
        return await watching

    assert asyncio.run(go()) == [(1, "planned")]
