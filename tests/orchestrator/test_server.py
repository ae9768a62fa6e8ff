"""A journal on a server that restarts or is away, and workers that sleep."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from benchmarks.faults.postgres import PostgreSQL
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal import questions as sql
from llm_elicit.orchestrator.journal.connection import JournalError, JournalLocation
from llm_elicit.orchestrator.journal.questions import SPENT, amounts, reading
from llm_elicit.orchestrator.journal.schema import (
    answers,
    clock,
    questions,
    record_answer,
    record_sending,
    workers,
)
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import status
from llm_elicit.orchestrator.writer import Writer
from llm_elicit.planning.pairs import Plan
from llm_elicit.testing.provider import Action, Answer, Hangs, Provider
from orchestrator.chaos import Nursery, study
from orchestrator.conftest import EXPERT, claude
from orchestrator.postgres import running
from orchestrator.running import campaign, plan_of, undisturbed, until
from orchestrator.test_journal import ANSWER


@pytest.fixture(scope="module")
def own() -> Iterator[PostgreSQL]:
    """A server that is nobody else's."""
    with running() as server:
        yield server


def _plan() -> Plan:
    return plan_of(campaign([EXPERT], pairs=10))


def _sums(location: JournalLocation) -> tuple[float, float]:
    """USD as the workers counted it, and as the rows add up."""
    with reading(location) as db:
        cost = db.execute(select(func.sum(answers.c.cost))).scalar_one() or 0.0
        lost = db.execute(select(func.sum(questions.c.lost))).scalar_one() or 0.0
        return amounts(db, SPENT)[0], float(cost) + float(lost)


def _at_work(location: JournalLocation) -> int:
    """How many workers have claimed something."""
    try:
        with reading(location) as db:
            claimed = select(func.count(func.distinct(questions.c.worker)))
            return int(db.execute(claimed).scalar_one())
    except InputError:
        return 0  # there is no journal yet


def _expires(location: JournalLocation, from_now: bool = False) -> float:
    """When the lease of the only worker expires, by the server's clock."""
    at = workers.c.expires - clock() if from_now else workers.c.expires
    with reading(location) as db:
        return float(db.execute(select(at)).scalar_one())


def test_a_server_that_restarts_costs_nothing(own: PostgreSQL, tmp_path: Path) -> None:
    folder = tmp_path / "restarts"
    with Nursery() as nursery, Provider(lambda n, body: Answer("A", delay=0.3)) as provider:
        # Fewer than a worker must have answered before it takes others' requests for slow.
        what = study(provider.url, 49, own.address)
        both = [nursery.start(what, folder, lease=30.0) for _ in range(2)]
        until(lambda: _at_work(JournalLocation(folder, own.address)) == 2)
        for more in (10, 40, 70):
            until(lambda: len(provider.seen) >= more)  # noqa: B023
            own.restart("immediate" if more == 40 else "fast")
        assert [nursery.end(worker) for worker in both] == ["", ""]
        asked = Counter(request.question for request in provider.seen)
    assert len(asked) == 98
    assert set(asked.values()) == {1}
    assert status(folder, what)["claude"].done == 98
    counted, added = _sums(JournalLocation(folder, own.address))
    assert counted == pytest.approx(added)


class Held(Provider):
    """The first eight requests are answered once `answers` is set, and the connections of the
    others are closed once `closes` is set."""

    def __init__(self) -> None:
        super().__init__(lambda n, body: Answer("A") if n <= 8 else Hangs(0.0))
        self.answers, self.closes = threading.Event(), threading.Event()

    async def _act(self, action: Action, *more: Any) -> bool:
        event = self.answers if isinstance(action, Answer) else self.closes
        while not event.is_set():
            await asyncio.sleep(0.01)
        return await super()._act(action, *more)


def test_a_worker_that_slept_undoes_nothing(own: PostgreSQL, tmp_path: Path) -> None:
    """It is stopped with all its requests under way; another asks again; it wakes up before that
    one's requests have come to nothing."""
    folder = tmp_path / "asleep"
    with Nursery() as nursery, Held() as provider:
        judge = claude(provider.url, concurrency=8, attempts=1)
        what = campaign([judge], pairs=4, journal=own.address)
        sleeper = nursery.start(what, folder, lease=1.0)
        until(lambda: len(provider.seen) == 8)
        os.kill(sleeper, signal.SIGSTOP)
        provider.answers.set()
        until(lambda: _expires(JournalLocation(folder, own.address), from_now=True) < 0.0)
        other = nursery.start(what, folder, lease=60.0)
        until(lambda: len(provider.seen) == 16)
        os.kill(sleeper, signal.SIGCONT)
        assert "lost its lease" in nursery.end(sleeper)
        provider.closes.set()
        assert nursery.end(other) == ""
        assert len(provider.seen) == 16
    totals = status(folder, what)["claude"]
    assert (totals.done, totals.failed, totals.in_flight) == (8, 0, 0)
    counted, added = _sums(JournalLocation(folder, own.address))
    assert counted == pytest.approx(added)


def test_a_commit_of_which_nobody_heard_is_not_counted_twice(
    own: PostgreSQL, tmp_path: Path
) -> None:
    """The server commits, and its connection is cut before it can say so."""
    journal = Journal(JournalLocation(tmp_path / "once", own.address), {"fingerprint": "x"})
    journal.prepare(["expert"], _plan())
    transactions, plain = journal._transactions, journal._db.dialect.do_commit

    def cut(connection: object) -> None:
        plain(connection)
        journal._db.dialect.do_commit = plain  # type: ignore[method-assign]
        driver = connection.dbapi_connection  # type: ignore[attr-defined]
        driver.close()
        driver.execute("SELECT 1")

    journal._db.dialect.do_commit = cut  # type: ignore[method-assign]
    (question,) = journal.claim("expert", 1)
    assert question.id == 1, "the first claim was committed, and is what it returned"
    for change in (record_sending(question.id, 0.5), record_answer(question.id, ANSWER)):
        journal._db.dialect.do_commit = cut  # type: ignore[method-assign]
        assert journal.commit([change]) == {}
    assert journal.read(sql.spent)[0] == pytest.approx(0.25)
    assert _sums(journal.location) == pytest.approx((0.25, 0.25))
    assert transactions.number > 3
    journal.close()


def test_answers_of_a_server_that_stays_away_are_kept(own: PostgreSQL, tmp_path: Path) -> None:
    """It is waited for while the lease lasts; then there is one line, and the next run has them."""
    location = JournalLocation(tmp_path, own.address)
    journal = Journal(location, {"fingerprint": "x"}, lease=1.0)
    journal.prepare(["expert"], _plan())
    (question,) = journal.claim("expert", 1)
    journal.commit([record_sending(question.id, 0.5)])
    own.stop()

    async def go() -> None:
        async with Writer(journal) as writer:
            with pytest.raises(JournalError, match="check that the server runs") as caught:
                await writer.write(record_answer(question.id, ANSWER))
            assert "\n" not in str(caught.value)
            pauses: list[float] = []
            journal._transactions._retrying.sleep = pauses.append
            with pytest.raises(JournalError):
                await writer.write(record_sending(2, 0.5))
            assert not pauses, "the lease is over: nothing is waited for"

    try:
        asyncio.run(go())
        journal.close()
    finally:
        own.start()
    again = Journal(location, {"fingerprint": "x"}, lease=1.0)
    assert again.prepare(["expert"], _plan()) == 1
    assert again.read(sql.totals, "expert").done == 1
    # What was set aside for it counts as well: nobody knew then.
    assert _sums(location) == pytest.approx((0.75, 0.75))
    again.close()
    assert not list(tmp_path.glob("unsaved*"))


def test_the_heartbeat_goes_on_after_a_restart(own: PostgreSQL, tmp_path: Path) -> None:
    location = JournalLocation(tmp_path, own.address)
    journal = Journal(location, {"fingerprint": "x"}, lease=1.0)
    journal.prepare(["expert"], _plan())

    async def go() -> None:
        async with Writer(journal):
            await asyncio.to_thread(own.restart)
            # Two renewals: the first may have been on its way when the server came back.
            await asyncio.to_thread(renewed)
            await asyncio.to_thread(renewed)

    def renewed() -> None:
        last = _expires(location)
        until(lambda: _expires(location) > last)

    asyncio.run(go())
    journal.close()


def test_who_stops_a_run_does_not_wait_for_a_server(own: PostgreSQL, tmp_path: Path) -> None:
    journal = Journal(JournalLocation(tmp_path, own.address), {"fingerprint": "x"}, lease=60.0)
    journal.prepare(["expert"], _plan())
    (question,) = journal.claim("expert", 1)

    async def go() -> None:
        async with Writer(journal) as writer:
            await asyncio.wait_for(writer.write(record_sending(question.id, 0.5)), 0.5)

    own.stop()
    try:
        began = undisturbed()
        with pytest.raises(TimeoutError):
            asyncio.run(go())
        journal.close()
        assert undisturbed() - began < 30.0, "the lease is a minute"
    finally:
        own.start()
