"""Adaptive rounds of several workers: each asks what it knows, and learns what others planned."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orchestrator.postgres import running
from orchestrator.test_journal import ANSWER
from planning.test_rounds import Told, _gpt, _letter, _plan

from benchmarks.faults.postgres import PostgreSQL
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.engine import ask
from llm_elicit.orchestrator.journal.connection import retry_transient
from llm_elicit.orchestrator.journal.schema import record_answer, record_sending, with_digest
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import StalePlanError, comparisons
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import ask as ask_stage
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Provider


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgreSQL]:
    """A server that is nobody else's."""
    with running() as server:
        yield server


def _no_gaps(result: Any) -> None:
    points = result.comparisons.frame.filter(regex="^[ab]_")
    assert not points.isna().to_numpy().any()


def test_a_worker_with_an_old_plan_asks_nothing_of_a_new_round(
    postgres: PostgreSQL, tmp_path: Path
) -> None:
    """It slept while another one planned the second round and took a part of it."""
    with Provider(lambda _n, body: Answer(_letter(body))) as provider:
        old = _plan(tmp_path, [_gpt(provider.url)], journal=postgres.address)
        assert len(old.plan) == 12
        asyncio.run(ask(old.study))
        longer = ask_stage._next_round(old, Told(), Silent())
        assert longer is not None
        assert len(longer.plan) == 20
        study = Study(longer.campaign, longer.space, longer.plan, longer.folder)
        other = Journal(longer.location, study.identity, longer.campaign.limits)
        other.prepare(["gpt"], longer.plan)
        (held,) = other.claim("gpt", 1)
        other.commit([record_sending(held.id, 0.0)])
        answer = with_digest(held, ANSWER)
        other.commit([record_answer(held.id, answer)])
        # It ends its part without waiting for what it does not know.
        summary = asyncio.run(ask(old.study))
        assert not summary.problems
        assert len(provider.seen) == 12
        with pytest.raises(StalePlanError, match=r"1 answers .*another process planned"):
            comparisons(old.study)
        other.close()
        # Then it learns of the round, joins in, and plans the last one itself.
        done = asyncio.run(ask_stage.ask(old, design=Told()))
        assert not done.problems
        assert len(provider.seen) == 12 + 7 + 8
        assert not any("nan" in request.question.split() for request in provider.seen)
        _no_gaps(done)


def test_a_round_waits_for_a_server_that_restarts(postgres: PostgreSQL, tmp_path: Path) -> None:
    with Provider(lambda _n, body: Answer(_letter(body))) as provider:
        run = _plan(tmp_path, [_gpt(provider.url)], journal=postgres.address, name="away")
        asyncio.run(ask(run.study))
    postgres.stop()
    back = threading.Timer(0.5, postgres.start)
    back.start()
    longer = retry_transient(lambda: ask_stage._next_round(run, Told(), Silent()), 60.0)
    back.join()
    assert longer is not None
    assert len(longer.plan) == 20


def test_what_is_not_a_number_reaches_no_prompt() -> None:
    space, template = FeatureSpace.load("penguins"), Template.load("v1/zero-shot")
    points = space.sample(2, np.random.default_rng(0))
    for column in range(space.dimension):
        gap = points.copy()
        gap[1, column] = np.nan
        with pytest.raises(InputError, match="a missing value cannot be worded"):
            render(space, gap[0], gap[1], template)
