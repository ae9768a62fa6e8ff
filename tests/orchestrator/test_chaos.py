"""Real processes killed, full disks, torn files: what was paid is there, and paid once."""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.provider_process import Gate, Limit
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.judgments import status
from llm_elicit.testing.provider import Answer, Hangs, Provider
from orchestrator.chaos import SLOTS, Nursery, study, torment
from orchestrator.conftest import claude
from orchestrator.running import campaign, run, table, until

KILLS = int(os.environ.get("ELICIT_KILLS", "8"))
"""The full form has 50."""


def test_killed_at_random_moments_every_question_is_answered_once(
    location: JournalLocation,
) -> None:
    inside = JournalLocation(location.folder / "try", location.address)
    account = torment(KILLS, inside, pairs=30 * KILLS)
    assert account.held, account
    assert account.kept[-1] > 0, "no kill came late enough to find an answer"


def test_two_workers_share_a_campaign(postgres: str, tmp_path: Path) -> None:
    """Both ask, no question is asked twice, and one that is killed is taken over."""
    folder = tmp_path / "shared"
    with Nursery() as nursery, Provider(lambda n, body: Answer("A", delay=0.05)) as provider:
        what = study(provider.url, 200, postgres)
        # The second is not killed, and a busy machine must not take it for gone.
        first, second = nursery.start(what, folder), nursery.start(what, folder, lease=30.0)
        until(lambda: len(provider.seen) > 150)
        nursery.end(first, kill=True)
        assert nursery.end(second) == ""
        asked = Counter(request.question for request in provider.seen)
    assert len(asked) == 400
    assert sum(asked.values()) <= 400 + SLOTS
    assert status(folder, what)["claude"].done == 400
    with reading(JournalLocation(folder, postgres)) as db:
        assert db.exec_driver_sql("SELECT COUNT(*) FROM workers").scalar_one() == 2


def test_a_cap_holds_over_workers(postgres: str, tmp_path: Path) -> None:
    """Each by itself would stay under the cap; together they must."""
    says = Answer("A", delay=0.03, prompt_tokens=300)
    with Nursery() as nursery, Provider(lambda n, body: says) as provider:
        price = {"input": 10.0, "output": 50.0}
        judge = claude(provider.url, concurrency=8, price=price, max_tokens=50)
        limits = {"max_cost": 0.5}
        what = campaign([judge], pairs=300, journal=postgres, limits=limits)
        workers = [nursery.start(what, tmp_path / "capped", lease=30.0) for _ in range(3)]
        said = [nursery.end(worker) for worker in workers]
        billed = len(provider.seen) * (300 * 10.0 + 2 * 50.0) / 1e6
    assert all("raise the cap" in line for line in said)
    assert 0.95 * 0.5 <= billed <= 0.5
    assert status(tmp_path / "capped", what)["claude"].cost == pytest.approx(billed)


def test_a_fixed_limit_holds_over_workers(postgres: str, tmp_path: Path) -> None:
    """Each by itself would ask ten a second; together they must, in any order."""
    # Room for what is in flight if the server stalls, and for what makes up for timers then.
    gate = Gate(Limit(600, burst=3 * 4 + 6), dialect="none")
    says = Answer("A", delay=0.02)
    with Nursery() as nursery, Provider(lambda n, body: says, gate) as provider:
        judge = claude(provider.url, concurrency=4, requests_per_minute=600)
        what = campaign([judge], pairs=40, journal=postgres)
        # None is killed, and a busy machine must not take one for gone.
        began = time.monotonic()
        workers = [nursery.start(what, tmp_path / "slow", lease=30.0) for _ in range(3)]
        assert [nursery.end(worker) for worker in workers] == ["", "", ""]
        assert time.monotonic() - began >= (80 - 6) / 10
    assert (gate.admitted, gate.refused) == (80, 0)
    with reading(JournalLocation(tmp_path / "slow", postgres)) as db:
        shares = db.exec_driver_sql("SELECT tokens FROM workers").scalars().all()
    assert len([share for share in shares if share > 0]) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user to be refused")
@pytest.mark.parametrize("begun", [False, True])
def test_a_folder_that_cannot_be_written_is_one_line(begun: bool) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        with Nursery() as nursery, Provider(lambda n, body: Answer("A")) as provider:
            what = study(provider.url, 5)
            if begun:
                run(what, folder / "try")
            before = len(provider.seen)
            said = nursery.end(nursery.start(what, folder / "try", "nobody"))
            assert "cannot be written" in said
            assert "permissions" in said
            assert "\n" not in said
            assert len(provider.seen) == before
            assert run(what, folder / "try").complete
            assert len(provider.seen) == 10
    finally:
        shutil.rmtree(folder)


def test_a_torn_file_loses_the_last_commits_at_most(tmp_path: Path) -> None:
    """The write-ahead log is cut or scrambled near its end, as by a crash of the machine."""
    rng = random.Random(5)
    held = True
    with (
        Nursery() as nursery,
        # The child is not to end before it is killed.
        Provider(lambda n, body: Hangs(60.0) if held and n > 80 else Answer("A")) as provider,
    ):
        what = study(provider.url, 60)
        child = nursery.start(what, tmp_path / "whole")
        until(lambda: len(provider.seen) > 60)
        nursery.end(child, kill=True)
        held = False
        log = tmp_path / "whole" / "journal.sqlite-wal"
        size = log.stat().st_size
        assert size > 20_000
        for trial in range(4):
            folder = tmp_path / f"torn{trial}"
            shutil.copytree(tmp_path / "whole", folder)
            torn = bytearray(log.read_bytes())
            at = size - rng.randint(1, 12_000)
            torn = torn[:at] if trial % 2 else torn[:at] + bytes(b ^ 0x5A for b in torn[at:])
            (folder / log.name).write_bytes(torn)
            kept = len(table(what, folder))
            assert kept > 0
            seen = len(provider.seen)
            assert run(what, folder).complete
            assert len(table(what, folder)) == 120
            assert len(provider.seen) - seen <= 120 - kept


def test_a_file_that_is_no_journal_any_more_is_one_line(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        what = study(provider.url, 60)
        run(what, tmp_path / "try")
    journal = tmp_path / "try" / "journal.sqlite"
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 2 + 100])
    with pytest.raises(InputError, match=r"cannot be used .*malformed") as caught:
        run(what, tmp_path / "try")
    assert "\n" not in str(caught.value)
