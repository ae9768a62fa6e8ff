"""Fuzzed replies, sent to real requests: headers, status codes and bodies that are nearly right."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from orchestrator.conftest import KEY, SWIFT, claude, gpt
from orchestrator.running import campaign, plan_of

from fuzz.inputs import CALM, HARSH, responses
from fuzz.oracle import Outcome, attempt, fuzz
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.engine import AskSummary, ask
from llm_elicit.orchestrator.judgments import status
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.testing.provider import Action, Answer, Provider, Raw, completion, message

QUESTIONS = 10
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "logprobs": True}
SAID = Answer("A", logprobs={"A": -0.2, "B": -1.8}, thinking="because")
ANSWERS = [completion(SAID, BODY), completion(Answer("B"), BODY), message(Answer("A"), BODY),
           message(SAID, BODY)]  # fmt: skip
NUMBERS = itertools.count()


class Sender:
    """Answers each question's first request with the given bytes, and later ones well."""

    def __init__(self, given: list[bytes]) -> None:
        self._given = iter(given)
        self.requests: Counter[str] = Counter()

    def __call__(self, _number: int, body: dict[str, Any]) -> Action:
        question = str(body["messages"][-1]["content"])
        self.requests[question] += 1
        response = next(self._given, None) if self.requests[question] == 1 else None
        return Answer("A") if response is None else Raw(response)


def test_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)

    def tried(value: tuple[list[bytes], str]) -> Outcome:
        given, backend = value
        folder = tmp_path / f"{next(NUMBERS)}" / "run"
        price = {"input": 1.0, "output": 5.0}
        judge = {"timeout": 1.0, "concurrency": QUESTIONS, "price": price}
        with Provider(sender := Sender(given)) as provider:
            one = (claude if backend == "claude" else gpt)(provider.url, **judge)
            limits = {"max_cost": 1.0}
            study = campaign([one], pairs=QUESTIONS // 2, limits=limits)
            return _asked(study, folder, sender)

    mixed = st.sampled_from([CALM, CALM, CALM, CALM, HARSH]).flatmap(
        lambda statuses: st.lists(
            responses(ANSWERS, statuses), min_size=QUESTIONS, max_size=QUESTIONS
        )
    )
    fuzz("replies", st.tuples(mixed, st.sampled_from(["claude", "gpt"])), tried, QUESTIONS)


def _asked(study: Campaign, folder: Path, sender: Sender) -> Outcome:
    """Ask, and hold what the journal says against what was sent."""
    said: list[AskSummary] = []

    def work() -> None:
        space = study.load_space()
        said.append(
            asyncio.run(ask(Study(study, space, plan_of(study), folder), retry_policy=SWIFT))
        )

    outcome = attempt(work)
    if outcome.kind != "success":
        return outcome
    (summary,) = said
    totals = status(folder, study)[study.judges[0].name]
    settled = totals.done + totals.failed + totals.quarantined
    problem = next(iter(summary.problems), None)
    wrong = {
        "a question was asked five times": max(sender.requests.values(), default=0) > 4,
        "some are in flight at the end": totals.in_flight > 0,
        f"spent {summary.spent}": not 0.0 <= summary.spent <= 1.0,
        "questions are lost without a word": problem is None and settled != totals.total,
        f"not one line: {problem}": "\n" in str(problem),
    }
    for said_wrong, found in wrong.items():
        if found:
            return Outcome("failure", said_wrong)
    return Outcome("success" if problem is None else "clear error", str(problem))
