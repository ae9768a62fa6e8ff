"""A campaign that is killed again and again, and the books kept of it.

The full form: `python -m orchestrator.chaos --kills 50` with tests/ on PYTHONPATH; `--journal
postgresql` starts a server of its own. Children are real processes, forked from one that has the
package loaded and no threads, killed with SIGKILL at random moments and started again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from sqlalchemy import func, select

from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.journal.questions import reading
from llm_elicit.orchestrator.journal.schema import answers, questions
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.conftest import KEY, SWIFT, claude
from orchestrator.postgres import server
from orchestrator.running import campaign, plan_of, run

for name in ("anthropic", "aiohttp", "jinja2", "genai_prices.data"):
    import_module(name)  # what asking imports when it is needed first, in no child then

SLOTS = 16
LEASE = 0.5
"""Seconds; short, so that the next process need not wait long after a kill."""


def study(url: str, pairs: int, address: str | None = None, **rest: object) -> Campaign:
    """A campaign of one judge; two questions a pair."""
    return campaign([claude(url, concurrency=SLOTS)], pairs=pairs, journal=address, **rest)


def _nobody() -> None:
    """Root may write anywhere; nobody may not."""
    os.setgid(65534)
    os.setuid(65534)


TROUBLES: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "nobody": _nobody,
}


class Nursery:
    """Forks children at work on campaigns. Enter it before anything starts a thread."""

    def __enter__(self) -> Self:
        self._pipe, theirs = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._pipe.close()
            try:
                _nurse(theirs)
            finally:
                os._exit(0)
        theirs.close()
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        os.waitpid(self._pid, 0)

    def start(
        self, what: Campaign, folder: Path, trouble: str = "none", lease: float = LEASE
    ) -> int:
        """The process id of a child that asks a campaign."""
        self._pipe.send((what, folder, trouble, lease))
        return int(self._pipe.recv())

    def end(self, pid: int, kill: bool = False) -> str:
        """Kill a child, or let it end; what it said of its problems, empty where it had none."""
        if kill:
            os.kill(pid, signal.SIGKILL)
        self._pipe.send(pid)
        return str(self._pipe.recv())


def _nurse(orders: Connection) -> None:
    """Start a child or wait for one, as ordered, until the orders end."""
    mouths: dict[int, int] = {}
    while True:
        try:
            order = orders.recv()
        except EOFError:
            for pid in mouths:
                os.kill(pid, signal.SIGKILL)
            return
        if isinstance(order, int):
            os.waitpid(order, 0)
            with open(mouths.pop(order), "rb") as pipe:  # noqa: PTH123 - a file descriptor
                orders.send(pipe.read().decode())
            continue
        ear, mouth = os.pipe()
        pid = os.fork()
        if pid == 0:
            _work(*order, mouth)
        os.close(mouth)
        mouths[pid] = ear
        orders.send(pid)


def _work(what: Campaign, folder: Path, trouble: str, lease: float, mouth: int) -> None:
    """What a child does; it does not return."""
    said = "defect"
    try:
        os.environ["ANTHROPIC_API_KEY"] = KEY
        TROUBLES[trouble]()
        summary = run(what, folder, patience=replace(SWIFT, lease=lease))
        said = "".join(str(problem) for problem in summary.problems[:1])
    except ElicitError as error:
        said = str(error)
    except BaseException as error:
        said = f"defect: {error!r}"
    finally:
        os.write(mouth, said.encode())
        os._exit(0)


@dataclass(frozen=True)
class Account:
    """What was seen of a campaign that was killed.

    Attributes:
        questions, answers: of the plan; rows of answers at the end.
        requests: that reached the server.
        in_flight: by the journal, summed over the kills.
        again: questions that were asked again after their answer was on the disk.
        kept: answers on the disk at each kill.
    """

    questions: int
    answers: int
    requests: int
    in_flight: int
    again: int
    kept: list[int]

    @property
    def held(self) -> bool:
        """Whether nothing was lost and nothing paid twice."""
        return (
            self.answers == self.questions
            and self.again == 0
            and self.requests <= self.questions + self.in_flight
            and self.kept == sorted(self.kept)
        )


def torment(kills: int, location: JournalLocation, pairs: int = 400, seed: int = 1) -> Account:
    """Kill a campaign so many times at random moments, then let it end."""
    rng = random.Random(seed)
    in_flight, again, kept = 0, 0, [0]
    with Nursery() as nursery, Provider(lambda n, body: Answer("A", delay=0.02)) as provider:
        what = study(provider.url, pairs, location.address)
        hashes = _hashes(what)
        done: set[str] = set()
        for _ in range(kills):
            seen = len(provider.seen)
            child = nursery.start(what, location.folder)
            # From before it opens the journal to well into the asking.
            more, until = seen + rng.randint(0, 3 * SLOTS), time.monotonic() + 60.0
            while len(provider.seen) < more and time.monotonic() < until:
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.05))
            nursery.end(child, kill=True)
            time.sleep(0.05)  # what was sent reaches the server
            again += len({request.question for request in provider.seen[seen:]} & done)
            flying, answered = _on_disk(location)
            in_flight += flying
            kept.append(len(answered))
            done = {question for question, prompt in hashes.items() if prompt in answered}
        seen = len(provider.seen)
        assert nursery.end(nursery.start(what, location.folder)) == ""
        again += len({request.question for request in provider.seen[seen:]} & done)
        asked = Counter(request.question for request in provider.seen)
        with reading(location) as db:
            total = db.execute(select(func.count()).select_from(answers)).scalar_one()
    assert len(asked) == 2 * pairs
    return Account(2 * pairs, total, len(provider.seen), in_flight, again, kept)


def _on_disk(location: JournalLocation) -> tuple[int, set[str]]:
    """Requests in flight and the hashes of answered prompts; nothing if there is no journal yet."""
    flying = select(func.count()).where(questions.c.state == "in flight")
    try:
        with reading(location) as db:
            hashes = set(db.execute(select(answers.c.prompt_hash)).scalars())
            return db.execute(flying).scalar_one(), hashes
    except InputError as error:
        if "no journal" in str(error) or "no such table" in str(error):
            return 0, set()  # killed before the tables were there
        raise


def _hashes(what: Campaign) -> dict[str, str]:
    """Each question's last turn and its prompt's hash."""
    plan = plan_of(what)
    space, template = what.load_space(), Template.load("v1/zero-shot")
    asked = [render(space, *plan.points_in_order(query), template) for query in plan]
    return {prompt.messages[-1].content: prompt.hash for prompt in asked}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=1500)
    parser.add_argument("--journal", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "try"
        address = stack.enter_context(server()) if given.journal == "postgresql" else None
        account = torment(given.kills, JournalLocation(folder, address), given.pairs, given.seed)
    sys.stdout.write(f"{account}\nheld: {account.held}\n")
    sys.exit(not account.held)


if __name__ == "__main__":
    main()
