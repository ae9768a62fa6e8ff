"""Caps against providers that miscount, or take more than they were asked for."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.batches import BatchProvider

from llm_elicit.backends import Reply
from llm_elicit.errors import CapError
from llm_elicit.orchestrator.batches import ask_in_batches
from llm_elicit.orchestrator.budget import MAX_TOKENS, Tokens, UsageCheck, plausible_tokens
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.testing.provider import Action, Answer, Provider
from orchestrator.conftest import claude, gpt
from orchestrator.running import Notes, campaign, plan_of, run, table

PRICE = {"input": 1.0, "output": 1000.0}
"""USD per million: an answer of a hundred tokens is ten cents."""

CAP = 2.0


def _usage(make: Any, prompt: Any, completion: Any) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens")
    if make is gpt:
        names = ("prompt_tokens", "completion_tokens")
    return dict(zip(names, (prompt, completion), strict=True))


USAGES = {
    "missing": lambda make: None,
    "zero": lambda make: _usage(make, 0, 0),
    "no answer": lambda make: _usage(make, 100, 0),
    "negative": lambda make: _usage(make, 100, -300),
    "negative prompt": lambda make: _usage(make, -300, 2),
    "huge": lambda make: _usage(make, 10**19, 10**19),
    "floats": lambda make: _usage(make, 10.5, 2.5),
    "text": lambda make: _usage(make, "many", "2"),
    "true": lambda make: _usage(make, True, True),
    "a list": lambda make: [1, 2],
    "a number": lambda make: 7,
}


@pytest.mark.parametrize("make", [claude, gpt])
@pytest.mark.parametrize("usage", USAGES)
def test_a_cap_holds_whatever_replies_say_of_their_tokens(
    make: Any, usage: str, tmp_path: Path
) -> None:
    says, notes = Answer("A", usage=USAGES[usage](make)), Notes()
    with Provider(lambda n, body: says) as provider:
        judge = make(provider.url, price=PRICE, max_tokens=100, concurrency=10)
        study = campaign([judge], pairs=20, limits={"max_cost": CAP})
        summary = run(study, tmp_path / "try", notes)
        sent = len(provider.seen)
    # What each really costs: the whole answer, and less of a prompt than its bytes.
    assert sent * 0.1 <= summary.spent <= CAP
    assert sent >= 15
    assert isinstance(summary.problems[0], CapError)
    assert sum("report no plausible token count" in line for line in notes.lines) == 1
    assert (tmp_path / "try" / "log.jsonl").read_text().count(
        "report no plausible token count"
    ) == 1
    rows = table(study, tmp_path / "try").frame
    assert rows["cost"].sum() == pytest.approx(summary.spent)
    assert (rows["completion_tokens"] == 100).all()


@pytest.mark.parametrize("make", [claude, gpt])
def test_a_bill_beyond_the_worst_case_raises_it_at_once(make: Any, tmp_path: Path) -> None:
    """More than the cap is spent by the requests that were in flight at the first bill alone."""
    bill, in_flight, notes = 0.182, 30, Notes()

    def behave(number: int, body: dict[str, Any]) -> Action:
        return Answer("A", completion_tokens=182, delay=0.3)

    with Provider(behave) as provider:
        judge = make(provider.url, price=PRICE, max_tokens=2, concurrency=in_flight)
        study = campaign([judge], pairs=60, limits={"max_cost": CAP})
        summary = run(study, tmp_path / "try", notes)
        sent = len(provider.seen)
        assert sent * bill <= CAP + in_flight * bill
        assert isinstance(summary.problems[0], CapError)
        assert summary.spent >= sent * bill
        assert sum("was the expected maximum" in line for line in notes.lines) == 1
        # What was learned is on record: a rerun, and another after a higher cap, are right at once.
        again = run(study, tmp_path / "try")
        assert len(provider.seen) == sent
        assert isinstance(again.problems[0], CapError)
        higher = summary.spent + 1.0
        more = campaign([judge], pairs=60, limits={"max_cost": higher})
        assert run(more, tmp_path / "try").spent <= higher


def test_what_waits_for_its_turn_reserves_anew(tmp_path: Path) -> None:
    """Those that had set a small worst case aside, but had not left, are not sent for it."""
    says = Answer("A", completion_tokens=1900)
    with Provider(lambda n, body: says) as provider:
        judge = gpt(
            provider.url, price=PRICE, max_tokens=2, concurrency=12, requests_per_minute=200
        )
        study = campaign([judge], pairs=60, limits={"max_cost": CAP})
        run(study, tmp_path / "try")
        arrived = len(provider.seen)
    # They leave one at a time, each is billed nearly the whole cap, and its answer may take long.
    assert arrived <= 5


@pytest.mark.parametrize("make", [claude, partial(gpt, logprobs=False)])
def test_batches_count_alike(make: Any, tmp_path: Path) -> None:
    def collected(says: Answer, folder: Path, cap: float) -> tuple[Any, Notes, list[Any]]:
        notes = Notes()
        with BatchProvider(answer=lambda body: says, at_once=True) as provider:
            judge = make(provider.url, price=PRICE, max_tokens=100)
            judges = campaign([judge], pairs=5, limits={"max_cost": cap})
            space = judges.load_space()
            study = Study(judges, space, plan_of(judges), folder)
            summary = asyncio.run(ask_in_batches(study, "wait", notes, every=0.01))
            rows = table(judges, folder).frame if summary.spent else []
        return summary, notes, rows

    summary, notes, rows = collected(Answer("A", usage=None), tmp_path / "a" / "mute", cap=9.0)
    assert sum("report no plausible token count" in line for line in notes.lines) == 1
    assert (rows["completion_tokens"] == 100).all()
    assert 10 * 0.1 <= summary.spent <= 9.0
    summary, notes, rows = collected(
        Answer("A", completion_tokens=500), tmp_path / "b" / "over", cap=9.0
    )
    assert sum("was the expected maximum" in line for line in notes.lines) == 1
    assert summary.spent >= 10 * 0.5


def test_what_plug_ins_may_put_there() -> None:
    bound = Tokens(100, 8)
    reply = Reply("A", "stop", "m", None, None, 60, 2, 0, {})
    for name, value in (
        ("prompt_tokens", None), ("prompt_tokens", "60"), ("completion_tokens", 2.0),
        ("completion_tokens", MAX_TOKENS + 1), ("prompt_tokens", float("nan")),
    ):  # fmt: skip
        odd = Reply(**{**vars(reply), name: value})
        check = UsageCheck()
        counted = check.with_charges(odd, bound)
        assert (counted.prompt_tokens, counted.completion_tokens) == (100, 8)
        assert check.raised == Tokens()
        assert plausible_tokens(odd) == (0.0, 0.0)
        assert UsageCheck().with_charges(odd, None).prompt_tokens == 0
    for cached in (-5, "3", 10**19, None):
        odd = Reply(**{**vars(reply), "cached_tokens": cached})
        assert 0 <= UsageCheck().with_charges(odd, bound).cached_tokens <= 60
    refused = Reply("", "refusal", "m", None, None, 60, 0, 0, {})
    assert UsageCheck().with_charges(refused, bound) == refused
    hidden = Reply("A", "stop", "m", None, None, 5000, 2, 0, {})
    check = UsageCheck()
    assert check.with_charges(hidden, bound) == hidden, (
        "a server may put words of its own before ours"
    )
    assert check.worst_case(bound) == Tokens(10_000, 8)
