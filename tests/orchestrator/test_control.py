"""What a run should do and does, in its journal: asked for, recorded, taken over and replayed."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation, RunInUseError
from llm_elicit.orchestrator.journal.control import (
    Control,
    RunEvent,
    RunState,
    Wanted,
    begin_control,
    drop_journal,
    is_active,
    read_control,
    read_events,
    record_events,
    record_heartbeat,
    request,
    take_over,
    visible_state,
    write_control,
)


def test_what_is_asked_of_a_run_and_its_events_survive_in_either_database(
    location: JournalLocation,
) -> None:
    assert request(location, "paused", max_cost=2.0).state == "planned"
    asked = request(location, concurrency=3)
    assert (asked.wanted, asked.max_cost, asked.concurrency) == ("paused", 2.0, 3)
    assert read_control(location) == asked
    first = record_events(
        location,
        [RunEvent(kind="planned"), RunEvent(kind="answered", judge="gpt", data={"count": 3})],
    )
    second = record_events(location, [RunEvent(kind="state", data={"state": "paused"})])
    assert [event.seq for event in first + second] == [1, 2, 3]
    assert read_events(location, since=1) == [first[1], *second]
    assert read_events(location, since=3) == []
    assert read_events(location, limit=2) == first
    assert record_events(location, []) == []


def test_two_processes_number_the_events_of_a_run_together(location: JournalLocation) -> None:
    request(location, "running")  # the tables exist
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(
            lambda k: record_events(location, [RunEvent(kind=f"{k}")] * 2), range(20)
        ):
            pass
    assert [event.seq for event in read_events(location)] == list(range(1, 41))


def _silent(location: JournalLocation) -> None:
    """Let the last sign of life be long ago."""
    write_control(location, alive=0.0)


def test_of_many_services_one_takes_a_run_over_once_its_own_is_silent(
    location: JournalLocation,
) -> None:
    """The database decides, and the process that was only suspended changes nothing any more."""
    begun = begin_control(location, state="running", owner="service")
    assert not take_over(location)  # it gave a sign of life
    _silent(location)
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(lambda _: take_over(location), range(8))) == 1
    found = read_control(location)
    assert found is not None
    assert found.at_work
    assert found.takeovers == begun.takeovers + 1
    for late in (
        lambda: record_heartbeat(location, begun.takeovers),
        lambda: write_control(location, takeovers=begun.takeovers, state="failed"),
    ):
        with pytest.raises(RunInUseError, match="another process took over the run"):
            late()
    assert read_control(location) == found


@pytest.mark.parametrize(
    "recorded", [{"owner": "process"}, {"owner": "service", "state": "cancelled"}]
)
def test_runs_of_commands_and_ended_ones_are_not_taken_over(
    location: JournalLocation, recorded: dict[str, str]
) -> None:
    begin_control(location, **{"state": "running", **recorded})
    _silent(location)
    assert not take_over(location)


def test_a_run_whose_process_is_gone_is_interrupted(location: JournalLocation) -> None:
    assert visible_state(begin_control(location, state="running")) == "running"
    _silent(location)
    found = read_control(location)
    assert found is not None
    assert visible_state(found) == "interrupted"
    assert not is_active(location)
    record_heartbeat(location, found.takeovers)
    assert is_active(location)
    assert visible_state(write_control(location, state="done")) == "done"
    assert not is_active(location)


@pytest.mark.parametrize(
    ("state", "wanted", "seen"),
    [
        ("planned", "running", "planned"),
        ("planned", "paused", "paused"),
        ("running", "running", "running"),
        ("running", "paused", "pausing"),
        ("running", "cancelled", "cancelling"),
        ("paused", "running", "paused"),
        ("paused", "paused", "paused"),
        ("paused", "cancelled", "cancelling"),
        ("done", "cancelled", "done"),
        ("failed", "paused", "failed"),
        ("cancelled", "running", "cancelled"),
    ],
)
def test_what_is_wanted_shows_until_it_is_so(
    state: RunState, wanted: Wanted, seen: RunState
) -> None:
    assert visible_state(Control(state=state, wanted=wanted, at_work=True)) == seen
    gone = visible_state(Control(state=state, wanted=wanted))
    assert gone == (state if state in ("done", "failed", "cancelled") else "interrupted")


def test_a_start_replaces_what_was_asked_of_the_run_before(tmp_path: Path) -> None:
    """Also while the process before gave its last sign of life just now, as on a quick restart."""
    location = JournalLocation(tmp_path / "runs" / "try")
    begin_control(location, state="running", max_cost=5.0)
    request(location, "paused", max_cost=2.0, concurrency=3)
    asks = {"wanted": "running", "state": "running", "max_cost": None, "concurrency": None}
    again = begin_control(location, **asks)
    assert (again.wanted, again.max_cost, again.concurrency) == ("running", None, None)


def test_who_joins_a_run_leaves_its_limits_as_they_are(postgres: str, tmp_path: Path) -> None:
    """A second worker of a shared journal must not lift a cap that was set meanwhile."""
    location = JournalLocation(tmp_path, postgres)
    asks = {"wanted": "running", "state": "running", "max_cost": None, "concurrency": None}
    begin_control(location, **asks)
    request(location, "paused", max_cost=2.0, concurrency=3)
    joined = begin_control(location, **asks)
    assert (joined.wanted, joined.max_cost, joined.concurrency) == ("paused", 2.0, 3)
    assert begin_control(location, **{**asks, "max_cost": 1.0}).max_cost == 1.0
    _silent(location)  # nobody is at work: this is a start
    assert begin_control(location, **asks).max_cost is None


def test_a_late_write_does_not_bring_a_deleted_run_back(tmp_path: Path) -> None:
    location = JournalLocation(tmp_path / "gone")
    begin_control(location)
    shutil.rmtree(location.folder)
    for write in (
        lambda: record_heartbeat(location, 0),
        lambda: request(location, "paused"),
        lambda: record_events(location, [RunEvent(kind="state")]),
    ):
        with pytest.raises(InputError, match="no such run"):
            write()
    assert not location.folder.exists()


def test_a_journal_is_removed_from_a_server_alone(postgres: str, tmp_path: Path) -> None:
    """In a folder it is removed with the folder; other runs on the server stay."""
    file = JournalLocation(tmp_path)
    one, other = (JournalLocation(tmp_path / name, postgres) for name in ("one", "other"))
    for location in (file, one, other):
        begin_control(location)
        drop_journal(location)
        assert (read_control(location) is None) is location.shared
        drop_journal(location)
        begin_control(location, stage="ask")
    drop_journal(one)
    assert read_control(one) is None
    for location in (file, other):
        control = read_control(location)
        assert control is not None
        assert control.stage == "ask"
