"""A campaign in which two people and a model answer: one audit and one report of all."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

import llm_elicit as le
from llm_elicit.audit.record import Audit
from llm_elicit.orchestrator.journal.questions import is_begun
from llm_elicit.orchestrator.people import People
from llm_elicit.pipeline.results import audit_reads as reads

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

CAMPAIGN = """
name: people
space: penguins
design: {pairs: 20, replicates: 2}
judges:
  - {name: panel, backend: human, experts: [ben, cleo], repeats: 0.2, attention: 0.1}
  - {name: model, backend: simulated}
fit: {method: utility, samples: 300}
"""


def answer_all(run: le.Run) -> None:
    """Both prefer the heavier animal; Cleo says "equal" or fails attention now and then."""
    space = run.space
    with People(run.location, run.campaign, space, run.plan) as people:
        left = {"ben", "cleo"}
        while left:
            for expert in sorted(left):
                card = people.next("panel", expert)
                if card is None:
                    left.discard(expert)
                    continue
                heavier = [max(numbers(side), default=0) for side in (card.a, card.b)]
                choice = "a" if heavier[0] > heavier[1] else "b"
                if card.instruction:
                    choice = card.instruction[-2].lower()
                if expert == "cleo" and card.number % 5 == 0:
                    choice = "equal"
                people.answer("panel", expert, card.id, choice, seconds=0.5 + card.number % 3)


def numbers(side: tuple[tuple[str, str], ...]) -> list[float]:
    found = re.findall(r"[\d,.]*\d", " ".join(value for _, value in side))
    return [float(text.replace(",", "")) for text in found]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> le.Run:
    folder = tmp_path_factory.mktemp("people")
    (folder / "c.yaml").write_text(CAMPAIGN + f"runs: {folder}/runs\n")
    opened = le.Run.open(folder / "c.yaml")

    async def both() -> le.Run:
        asking = asyncio.create_task(le.arun(folder / "c.yaml", progress=le.Silent()))
        while not is_begun(opened.location):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(answer_all, opened)
        return await asking

    return asyncio.run(both())


def test_the_audit_compares_people_with_each_other_and_with_the_model(run: le.Run) -> None:
    found = run.audit.people
    assert found is not None
    assert [(one.name, one.answers) for one in found.people] == [("ben", 40), ("cleo", 40)]
    ben, cleo = found.people
    assert ben.retest is not None
    assert ben.retest.share.value == 1.0
    assert ben.attention_share is not None
    assert ben.attention_share.value == 1.0
    assert ben.median_seconds == 1.5
    assert 0.2 < cleo.fast_share < 0.5
    assert [(one.first, one.second) for one in found.agreements] == [
        ("ben", "cleo"), ("ben", "model"), ("cleo", "model"),
    ]  # fmt: skip
    assert all(one.pairs == 20 for one in found.agreements)
    assert found.agreements[0].share.value > 0.6
    assert len(run.comparisons.of("panel")) == 80


def test_a_record_without_people_is_read(run: le.Run, tmp_path: Path) -> None:
    stored = json.loads((run.folder / "audit.json").read_text())
    del stored["people"]
    old = tmp_path / "audit.json"
    old.write_text(json.dumps(stored))
    assert Audit.load(old).people is None


def test_cards_that_changed_since_make_the_audit_again(run: le.Run) -> None:
    assert not run.manifest.stale(reads(run))
    (run.folder / "people.parquet").unlink()
    assert run.people_cards is None
    assert run.manifest.stale(reads(run)) == {"audit"}
