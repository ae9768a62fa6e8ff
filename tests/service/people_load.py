"""Simulated people who answer at the pages of a service, all at once.

`python -m tests.service.people_load 2000 0.5` has twenty people answer 2,000 questions, each after
half a second of thinking, and prints the times of pages.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from tests.service.serving import serving, until

PEOPLE = 20


@dataclass
class Load:
    """What the people saw.

    Attributes:
        answered: the answers that each gave.
        shown, kept: seconds until a question was shown, and until an answer was kept.
        seconds: from the first question to the last answer, without those in which the service or
            the people were ready to go on and others had the cores.
    """

    answered: dict[str, int] = field(default_factory=dict)
    shown: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    seconds: float = 0.0


def answer_all(folder: Path, questions: int, thinking: float = 0.0) -> Load:
    """Have twenty people answer all questions of a campaign at once.

    Raises:
        AssertionError: a question was answered twice or not at all.
    """
    names = [f"expert{number}" for number in range(PEOPLE)]
    campaign = {
        "name": "panel", "space": "penguins", "design": {"pairs": questions // 2},
        "judges": [{"name": "panel", "backend": "human", "experts": names}],
    }  # fmt: skip
    with serving(folder) as served, served.api() as client:
        run = client.start(campaign)
        links = {name: run.issue_link("panel", name).url for name in names}
        until(run, lambda snapshot: snapshot.stage == "ask")
        load = Load()

        async def all_of_them() -> None:
            await asyncio.gather(
                *(_judge(load, name, url, thinking) for name, url in links.items())
            )

        began = served.clock()
        asyncio.run(all_of_them())
        load.seconds = served.clock() - began
        run.cancel()
    with sqlite3.connect(folder / "runs" / "panel" / "journal.sqlite") as db:
        every = "SELECT count(*), count(DISTINCT question) FROM answers"
        assert db.execute(every).fetchone() == (questions, questions)
        (leased,) = db.execute("SELECT count(*) FROM people WHERE state = 'leased'").fetchone()
        assert leased == 0
    assert sum(load.answered.values()) == questions
    return load


async def _judge(load: Load, name: str, url: str, thinking: float) -> None:
    """Answer questions until there are none for this expert."""
    rng = np.random.default_rng(list(name.encode()))
    load.answered[name] = 0
    async with httpx.AsyncClient(timeout=60.0) as client:
        while True:
            began = time.perf_counter()
            page = (await client.get(f"{url}/question")).text
            card = re.search(r'name="card" value="(\d+)"', page)
            if card is None:
                return
            load.shown.append(time.perf_counter() - began)
            await asyncio.sleep(thinking * rng.uniform(0.5, 1.5))
            token = re.search(r'name="csrf" value="([^"]+)"', page)
            assert token is not None
            began = time.perf_counter()
            said = {"csrf": token[1], "card": card[1], "choice": rng.choice(["a", "b", "equal"])}
            sent = await client.post(f"{url}/answer", data=said)
            assert sent.status_code == 303, sent.text
            load.kept.append(time.perf_counter() - began)
            load.answered[name] += 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = answer_all(Path(place), int(sys.argv[1]), float(sys.argv[2]))
    for label, seconds in (("shown", found.shown), ("kept", found.kept)):
        middle, late = 1e3 * np.quantile(seconds, [0.5, 0.95])
        line = f"{label}: median {middle:.0f} ms, 95 % {late:.0f} ms of {len(seconds)}"
        sys.stdout.write(f"{line}\n")
