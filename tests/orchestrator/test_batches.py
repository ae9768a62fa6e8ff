"""Batch mode against loopback providers: split, killed, lost, expired, and never sent twice."""

import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.batches import BatchProvider
from fakes.warm import WarmPopen
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.backends.anthropic import AnthropicBatchClient
from llm_elicit.backends.batches import BatchLimits, BatchRequest
from llm_elicit.backends.openai import OpenAIBatchClient
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CapError, InputError, JudgeError, VersionChangedError
from llm_elicit.orchestrator import batches
from llm_elicit.orchestrator.batches import (
    Entry,
    Step,
    ask_in_batches,
    batch_statuses,
    group_entries,
)
from llm_elicit.orchestrator.budget import Amount, price_of
from llm_elicit.orchestrator.engine import AskSummary
from llm_elicit.orchestrator.journal.schema import Question
from llm_elicit.orchestrator.judgments import direct_answers, status
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import Progress, Silent
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.testing.provider import Answer, Error, Provider
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, plan_of, run, space_of, table

PRICE = {"input": 1.0, "output": 4.0, "batch": 0.5}
WIRES = pytest.mark.parametrize("judge", [claude, gpt], ids=["anthropic", "openai"])


def _letter(body: dict[str, Any]) -> str:
    """Each question has an answer of its own, so that a mix-up shows."""
    digest = hashlib.sha256(str(body["messages"][-1]["content"]).encode()).digest()
    return "AB"[digest[0] % 2]


def _judge(body: dict[str, Any]) -> Answer:
    return Answer(_letter(body))


def _study(judge: Any, url: str, pairs: int = 10, **rest: Any) -> Campaign:
    """Without log-probabilities, so that every question is in a batch."""
    settings = {"logprobs": False} if judge is gpt else {}
    return campaign([judge(url, price=PRICE, **settings)], pairs=pairs, **rest)


def _do(
    step: Step,
    study: Campaign,
    folder: Path,
    resend: bool = False,
    progress: Progress | None = None,
) -> AskSummary:
    whole = Study(study, space_of(study), plan_of(study), folder)
    shown = progress or Silent()
    return asyncio.run(ask_in_batches(whole, step, shown, every=0.02, resend=resend))


class Notes(Silent):
    """A progress that stores its notes."""

    said = ""

    def note(self, judge: str, line: str) -> None:
        self.said += f"{judge}: {line}\n"


def _lines(study: Campaign, folder: Path) -> list[tuple[str, int | None, int | None]]:
    whole = Study(study, space_of(study), plan_of(study), folder)
    return [(line.state, line.total, line.done) for line in asyncio.run(batch_statuses(whole))]


def _right(study: Campaign, folder: Path) -> int:
    """How many answers there are; each must be its own question's."""
    frame = table(study, folder).frame
    plan = plan_of(study)
    space, template = space_of(study), Template.load("v1/zero-shot")
    asked = [render(space, *plan.points_in_order(query), template) for query in plan]
    expected = {
        prompt.hash: _letter({"messages": [{"content": prompt.messages[-1].content}]})
        for prompt in asked
    }
    assert all(row.reply == expected[row.prompt_hash] for row in frame.itertuples())
    return len(frame)


def _small(monkeypatch: pytest.MonkeyPatch, limits: BatchLimits) -> None:
    for kind in (AnthropicBatchClient, OpenAIBatchClient):
        monkeypatch.setattr(kind, "limits", limits)


@WIRES
def test_direct_questions_go_in_batches_too(judge: Any, tmp_path: Path) -> None:
    with BatchProvider(lambda body: Answer("34; 36; 40; 44; 50"), at_once=True) as provider:
        study = campaign(
            [judge(provider.url, price=PRICE)], pairs=5, direct={"quantiles": 1, "samples": 3}
        )
        assert _do("wait", study, tmp_path / "try").complete
        assert len(provider.batches) == 1
    answers = direct_answers(Study(study, space_of(study), plan_of(study), tmp_path / "try"))
    assert answers["kind"].tolist() == ["quantiles"] * 4 + ["sample"] * 3
    assert set(answers["reply"]) == {"34; 36; 40; 44; 50"}


@WIRES
def test_handed_in_and_collected_apart(judge: Any, tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with BatchProvider(_judge) as provider:
        study = _study(judge, provider.url)
        handed = _do("submit", study, folder)
        assert not handed.problems
        assert (handed.complete, len(provider.batches)) == (False, 1)
        assert len(provider.submitted) == len(set(provider.submitted)) == 20
        assert _lines(study, folder) == [("in_progress", 20, 0)]
        assert not _do("collect", study, folder).complete
        (totals,) = status(folder, study).values()
        assert (totals.submitted, totals.done, totals.requests) == (20, 0, 20)
        # What is handed in is handed in once, and nobody else asks it.
        _do("submit", study, folder)
        assert len(provider.batches) == 1
        provider.end()
        assert _lines(study, folder) == [("completed" if judge is gpt else "ended", 20, 20)]
        done = _do("collect", study, folder)
        assert done.complete
        assert _right(study, folder) == 20
        assert _lines(study, folder) == [("collected", None, None)]
        assert _do("wait", study, folder).complete
        assert len(provider.batches) == 1
    frame = table(study, folder).frame
    price = price_of(study.judges[0])
    assert price is not None
    whole = sum(price.cost(p, 2) for p in frame["prompt_tokens"])
    assert frame["cost"].sum() == pytest.approx(whole / 2)
    assert done.spent == pytest.approx(whole / 2)


@WIRES
def test_a_second_version_stops_a_strict_judge_before_it_submits_more(
    judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _small(monkeypatch, BatchLimits(10, 10**9))
    versions: dict[str, str | None] = {}

    def answer(body: dict[str, Any]) -> Answer | None:
        """Seven of one version, ten of the next, and three that expire."""
        version = "m-1" if len(versions) < 7 else "m-2" if len(versions) < 17 else None
        version = versions.setdefault(str(body["messages"][-1]["content"]), version)
        if version is None:
            return None
        body["model"] = version
        return Answer(_letter(body))

    with BatchProvider(answer, at_once=True) as provider:
        study = _study(judge, provider.url)
        folder, notes = tmp_path / "try", Notes()
        asked = Study(study, space_of(study), plan_of(study), folder, strict_version=True)
        for _ in range(2):
            summary = asyncio.run(ask_in_batches(asked, "wait", notes, every=0.02))
            (problem,) = summary.problems
            assert isinstance(problem, VersionChangedError)
            assert len(provider.batches) == 2, "what was submitted is collected, and nothing more"
    assert notes.said.count("the model version changed during the run: m-1") == 1
    assert len(table(study, folder)) == 17, "and every answer is kept"


@WIRES
def test_batches_keep_to_the_provider_s_limits(
    judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_count, by_size = BatchLimits(7, 10**9), BatchLimits(1000, 4000)
    for number, limits in enumerate((by_count, by_size)):
        _small(monkeypatch, limits)
        folder = tmp_path / str(number) / "try"
        with BatchProvider(_judge, limits.count, limits.size, at_once=True) as provider:
            assert _do("wait", _study(judge, provider.url), folder).complete
            assert len(provider.batches) > 2
            assert len(provider.submitted) == len(set(provider.submitted)) == 20
            assert _right(_study(judge, provider.url), folder) == 20


@given(st.lists(st.integers(0, 400), max_size=40), st.integers(1, 10), st.integers(700, 2000))
def test_packs_hold_everything_in_order_within_the_limits(
    sizes: list[int], count: int, size: int
) -> None:
    entries = [
        Entry(Question(n, 0, "ab", 0, 0, "x"), BatchRequest(str(n), {"x": "y" * length}), Amount())
        for n, length in enumerate(sizes)
    ]
    made = list(group_entries(entries, BatchLimits(count, size)))
    assert [entry for pack in made for entry in pack] == entries
    for pack in made:
        assert 0 < len(pack) <= count
        assert sum(entry.request.size for entry in pack) <= size
    for pack, following in pairwise(made):
        both = sum(entry.request.size for entry in [*pack, following[0]])
        assert len(pack) == count or both > size, "a batch could have held one more"


@WIRES
def test_what_expired_is_handed_in_again_and_nothing_else(judge: Any, tmp_path: Path) -> None:
    folder, late = tmp_path / "try", True

    def answer(body: dict[str, Any]) -> Answer | None:
        return None if late and _letter(body) == "B" else _judge(body)

    with BatchProvider(answer) as provider:
        study = _study(judge, provider.url)
        _do("submit", study, folder)
        provider.end()
        first = _do("collect", study, folder)
        kept = _right(study, folder)
        assert 0 < kept < 20
        assert not first.complete
        late = False
        _do("submit", study, folder)
        provider.end()
        assert _do("collect", study, folder).complete
        assert _right(study, folder) == 20
        assert [len(batch.requests) for batch in provider.batches] == [20, 20 - kept]


@WIRES
def test_a_request_that_is_refused_is_given_up(judge: Any, tmp_path: Path) -> None:
    bad: list[str] = []

    def answer(body: dict[str, Any]) -> Answer | Error:
        text = str(body["messages"][-1]["content"])
        if not bad:
            bad.append(text)
        return Error(400, "not this one") if text in bad else _judge(body)

    with BatchProvider(answer, at_once=True) as provider:
        study = _study(judge, provider.url)
        summary = _do("wait", study, tmp_path / "try")
        (totals,) = status(tmp_path / "try", study).values()
        assert (totals.done, totals.failed) == (19, 1)
        assert not summary.complete
        assert len(provider.batches) == 1, "it is not handed in again by the same command"


@WIRES
def test_a_filtered_prompt_is_a_refusal(judge: Any, tmp_path: Path) -> None:
    bad: list[str] = []

    def answer(body: dict[str, Any]) -> Answer | Error:
        text = str(body["messages"][-1]["content"])
        if not bad:
            bad.append(text)
        if text not in bad:
            return _judge(body)
        return Error(400, "Output blocked by content filtering policy")

    with BatchProvider(answer, at_once=True) as provider:
        study = _study(judge, provider.url)
        assert _do("wait", study, tmp_path / "try").complete
        assert len(provider.batches) == 1
    verdicts = table(study, tmp_path / "try").frame["verdict"]
    assert (verdicts == "refusal").sum() == 1


@WIRES
def test_one_malformed_answer_keeps_no_other_back(judge: Any, tmp_path: Path) -> None:
    """It may have been billed, and counts; its question is open again."""
    first = True

    class Broken(BatchProvider):
        def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
            status_, content = super().get(path, query)
            if first and isinstance(content, bytes):
                rows = [json.loads(line) for line in content.splitlines()]
                if judge is gpt:
                    rows[3]["response"]["body"] = {"object": "surprise"}
                else:
                    rows[3]["result"]["message"]["content"] = None
                content = "\n".join(json.dumps(row) for row in rows).encode()
            return status_, content

    with Broken(_judge) as provider:
        study = _study(judge, provider.url)
        _do("submit", study, tmp_path / "try")
        provider.end()
        part = _do("collect", study, tmp_path / "try")
        assert _right(study, tmp_path / "try") == 19
        (totals,) = status(tmp_path / "try", study).values()
        assert totals.lost > 0
        assert part.spent == pytest.approx(totals.cost + totals.lost)
        first = False
        _do("submit", study, tmp_path / "try")
        provider.end()
        assert _do("collect", study, tmp_path / "try").complete
        assert [len(batch.requests) for batch in provider.batches] == [20, 1]


@WIRES
def test_lines_that_cannot_be_read_keep_no_other_back(judge: Any, tmp_path: Path) -> None:
    """It is unknown whose they were: as many of the remaining questions count as charged."""
    odd = [b"[" * 100_000, b'{"half": ', b"\xff\xfe", b"[7]", b'{"custom_id": 7}']

    class Broken(BatchProvider):
        def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
            status_, content = super().get(path, query)
            if isinstance(content, bytes):
                content = b"\n".join([*content.splitlines()[len(odd) :], *odd])
            return status_, content

    with Broken(_judge) as provider:
        study, notes = _study(judge, provider.url), Notes()
        _do("submit", study, tmp_path / "try")
        provider.end()
        part = _do("collect", study, tmp_path / "try", progress=notes)
    assert _right(study, tmp_path / "try") == 20 - len(odd)
    (totals,) = status(tmp_path / "try", study).values()
    assert (totals.planned, totals.submitted) == (len(odd), 0)
    assert totals.lost > 0
    assert part.spent == pytest.approx(totals.cost + totals.lost)
    assert "5 lines of its results cannot be read" in notes.said


@WIRES
@pytest.mark.parametrize(
    "answer", [(302, b""), (200, b"{"), (200, b"[]"), (200, {"id": 7}), (200, b"[" * 100_000)]
)
def test_an_endpoint_that_answers_with_something_else_is_one_line(
    judge: Any, answer: tuple[int, Any], tmp_path: Path
) -> None:
    class Other(BatchProvider):
        broken = False

        def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
            return answer if self.broken else super().get(path, query)

    with Other(_judge) as provider:
        study = _study(judge, provider.url, pairs=4)
        _do("submit", study, tmp_path / "try")
        provider.broken = True
        (problem,) = _do("collect", study, tmp_path / "try").problems
        assert isinstance(problem, JudgeError)
        assert "its batches are recorded" in str(problem)
        assert "\n" not in str(problem)
        provider.broken = False
        provider.end()
        assert _do("collect", study, tmp_path / "try").complete


@WIRES
@pytest.mark.parametrize("odd", [b"{", b"null", b"[7]", b'{"id": 7}', b'{"data": 7}', b""])
def test_a_batch_without_a_name_is_looked_for(judge: Any, odd: bytes, tmp_path: Path) -> None:
    """It may have been taken up: nothing of it is sent again before it is found."""

    class Odd(BatchProvider):
        broken = True

        def post(self, path: str, kind: str, raw: bytes) -> tuple[int, Any] | None:
            found = super().post(path, kind, raw)
            return (200, odd) if self.broken and path.endswith("/batches") else found

        def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
            if self.broken and path.endswith("/batches"):
                return 200, odd
            return super().get(path, query)

    with Odd(_judge, at_once=True) as provider:
        study = _study(judge, provider.url, pairs=4)
        (problem,) = _do("submit", study, tmp_path / "try").problems
        assert "it is unknown whether batch" in str(problem)
        problems = _do("submit", study, tmp_path / "try").problems
        assert all(isinstance(problem, JudgeError) for problem in problems)
        provider.broken = False
        assert _do("collect", study, tmp_path / "try").complete
        assert len(provider.batches) == 1


@WIRES
def test_a_batch_is_handed_in_to_no_other_address(judge: Any, tmp_path: Path) -> None:
    class Moved(BatchProvider):
        def post(self, path: str, kind: str, raw: bytes) -> tuple[int, Any] | None:
            return 307, b""

    with Moved(_judge) as provider:
        study = _study(judge, provider.url, pairs=4)
        (problem,) = _do("submit", study, tmp_path / "try").problems
        assert "307" in str(problem)
        assert len(provider.requests) == 1
        (totals,) = status(tmp_path / "try", study).values()
        assert totals.planned == 8


def test_lost_between_handing_in_and_the_record_openai_finds_it_by_its_tag(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with BatchProvider(_judge, resets_after=0) as provider:
        study = _study(gpt, provider.url)
        (problem,) = _do("submit", study, folder).problems
        assert "unknown whether batch" in str(problem)
        assert _lines(study, folder) == [("intended", None, None)]
        provider.resets_after = None
        # Others of the account's batches stand before it in the list.
        other = _study(gpt, provider.url, seed=2)
        for name in ("one", "two", "three"):
            _do("submit", other, tmp_path / name / "try")
        before = len(provider.batches)
        again = _do("submit", study, folder)
        assert not again.problems
        assert len(provider.batches) == before
        provider.end()
        assert _do("collect", study, folder).complete
        assert _right(study, folder) == 20


def test_lost_between_handing_in_and_the_record_anthropic_knows_it_when_it_ended(
    tmp_path: Path,
) -> None:
    """No metadata there: it waits, and asks nothing again, until the results say whose they are."""
    folder = tmp_path / "try"
    with BatchProvider(_judge, resets_after=0) as provider:
        study = _study(claude, provider.url)
        assert _do("submit", study, folder).problems
        provider.resets_after = None
        other = _study(claude, provider.url, seed=2)
        _do("submit", other, tmp_path / "other" / "try")
        for step in ("submit", "collect", "submit"):
            assert not _do(step, study, folder).complete  # type: ignore[arg-type]
            assert len(provider.batches) == 2
        provider.end()
        assert _do("collect", study, folder).complete
        assert _right(study, folder) == 20
        assert _do("collect", other, tmp_path / "other" / "try").complete
        assert len(provider.batches) == 2


@WIRES
def test_a_batch_that_is_not_listed_is_sent_again_only_when_told(
    judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "try"
    with BatchProvider(_judge, refuses=Error(503, "overloaded")) as provider:
        study = _study(judge, provider.url)
        (problem,) = _do("submit", study, folder).problems
        assert "unknown" in str(problem), "the 503 may come from a machine on the way"
        provider.refuses = None
        _do("submit", study, folder)
        assert not provider.batches, "too early to tell"
        monkeypatch.setattr(batches, "LISTING_DELAY", 0.0)
        steps: list[Step] = ["submit", "collect", "wait"]
        for step in steps:
            notes = Notes()
            assert not _do(step, study, folder, progress=notes).complete
            assert not provider.batches, "that it is not listed proves nothing"
            assert "does not list it; to send its questions again, use" in notes.said
        (totals,) = status(folder, study).values()
        assert totals.submitted == 20
        assert _lines(study, folder) == [("intended", None, None)]
        _do("submit", study, folder, resend=True)
        assert len(provider.submitted) == 20
        provider.end()
        assert _do("collect", study, folder).complete
        states = [state for state, _, _ in _lines(study, folder)]
        assert sorted(states) == ["collected", "released"]


@WIRES
def test_a_batch_that_is_refused_is_open_again(judge: Any, tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with BatchProvider(_judge, refuses=Error(400, "no batches today"), at_once=True) as provider:
        study = _study(judge, provider.url)
        (problem,) = _do("submit", study, folder).problems
        assert isinstance(problem, JudgeError)
        assert "no batches today" in str(problem)
        provider.refuses = None
        assert _do("wait", study, folder).complete
        assert len(provider.batches) == 1


CHILD = """
import asyncio, sys
from pathlib import Path
from llm_elicit.orchestrator.batches import ask_in_batches
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import Silent
from orchestrator.conftest import claude, gpt
from orchestrator.running import plan_of
from orchestrator.test_batches import _study
study = _study({"claude": claude, "gpt": gpt}[sys.argv[1]], sys.argv[2])
whole = Study(study, study.load_space(), plan_of(study), Path(sys.argv[3]))
asyncio.run(ask_in_batches(whole, "submit", Silent()))
"""


def test_killed_while_it_hands_in(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with BatchProvider(_judge, stalls=threading.Event()) as provider:
        child = WarmPopen(
            [sys.executable, "-c", CHILD, "gpt", provider.url, str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        )
        until = time.monotonic() + 240
        while not provider.batches:
            assert child.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        child.kill()
        child.wait()
        assert provider.stalls is not None
        provider.stalls.set()
        study = _study(gpt, provider.url)
        _do("submit", study, folder)
        assert len(provider.batches) == 1
        provider.end()
        assert _do("collect", study, folder).complete
        assert _right(study, folder) == 20


@WIRES
def test_a_cap_holds_in_batch_mode(judge: Any, tmp_path: Path) -> None:
    with BatchProvider(lambda body: Answer("A", completion_tokens=body["max_tokens"])) as provider:
        limits = {"max_cost": 0.002}
        study = campaign([judge(provider.url, price=PRICE, max_tokens=50)], pairs=20, limits=limits)
        folder = tmp_path / "try"
        (problem,) = _do("submit", study, folder).problems
        assert isinstance(problem, CapError)
        sent = len(provider.submitted)
        assert 0 < sent < 40
        _do("submit", study, folder)
        assert len(provider.submitted) == sent, "what is out counts"
        provider.end()
        _do("collect", study, folder)
        summary = _do("submit", study, folder)
        assert len(provider.submitted) > sent, "what was not billed is free again"
        provider.end()
        assert _do("collect", study, folder).spent <= 0.002
        assert summary.spent <= 0.002


def test_plain_asking_leaves_what_is_handed_in_alone(tmp_path: Path) -> None:
    folder = tmp_path / "try"
    with BatchProvider(_judge) as provider, Provider() as plain:
        study = _study(gpt, provider.url)
        _do("submit", study, folder)
        moved = study.judges[0].model_copy(update={"base_url": provider.url + "/v1"})
        summary = run(study.model_copy(update={"judges": (moved,)}), folder)
        assert summary.judges["gpt"].tally.done == 0
        assert not plain.seen
        assert Counter(method for method, _ in provider.requests)["POST"] == 2


def test_judges_without_a_batch_mode_are_left_out(tmp_path: Path) -> None:
    with BatchProvider(_judge, at_once=True) as provider:
        mixed = campaign([gpt(provider.url, price=PRICE), EXPERT])
        summary = _do("wait", mixed, tmp_path / "try")
        assert summary.judges["gpt"].complete
        assert summary.judges["expert"].tally.done == 0
    with pytest.raises(InputError, match="no judge has a batch mode"):
        _do("wait", campaign([EXPERT]), tmp_path / "other")


def _limited(body: dict[str, Any]) -> Answer | Error:
    """A server that lists five alternatives and knows one name of the token limit."""
    if "max_tokens" in body:
        return Error(400, "Unsupported parameter: 'max_tokens'", param="max_tokens")
    if body.get("top_logprobs", 0) > 5:
        return Error(400, "top_logprobs must be between 0 and 5", param="top_logprobs")
    return Answer("A", logprobs={"A": -0.2, "B": -1.8} if body.get("logprobs") else None)


def test_a_batch_has_the_settings_that_the_server_takes_of_one_question(tmp_path: Path) -> None:
    """All requests of a batch would be refused; what one question learns, later processes use."""
    notes = Notes()
    with BatchProvider(_limited) as provider:
        study = campaign([gpt(provider.url, price=PRICE)], pairs=10)
        for _ in range(2):
            assert not _do("submit", study, tmp_path / "try", progress=notes).problems
        assert [len(batch.requests) for batch in provider.batches] == [19]
        assert len(provider.direct) == 3, "two settings are refused once each"
        provider.end()
        assert _do("collect", study, tmp_path / "try", progress=notes).complete
    assert table(study, tmp_path / "try").frame["soft"].all()
    assert notes.said.count("returns 5 log-probabilities per token, not 20") == 1


def _without_log_probabilities(body: dict[str, Any]) -> Answer | Error:
    return Error(400, "logprobs is not supported") if body.get("logprobs") else Answer("A")


@pytest.mark.parametrize(
    ("answer", "soft"),
    [
        (_without_log_probabilities, 0),
        (lambda body: Answer("A"), 0),
        (lambda body: Answer("A", logprobs={"A": -0.2, "B": -1.8}), 20),
    ],
    ids=["refused", "ignored", "taken"],
)
def test_a_batch_is_complete_whatever_the_server_makes_of_log_probabilities(
    answer: Any, soft: int, tmp_path: Path
) -> None:
    with BatchProvider(answer, at_once=True) as provider:
        study = campaign([gpt(provider.url, price=PRICE)], pairs=10)
        assert _do("wait", study, tmp_path / "try").complete
        assert len(provider.batches) == 1
    assert table(study, tmp_path / "try").frame["soft"].sum() == soft


def test_an_overloaded_server_gets_its_batch_without_the_question_before(tmp_path: Path) -> None:
    with BatchProvider(lambda body: None) as provider:
        study = campaign([gpt(provider.url, price=PRICE)], pairs=10)
        assert not _do("submit", study, tmp_path / "try").problems
        assert (len(provider.direct), len(provider.submitted)) == (1, 20)
        provider.answer = _judge
        provider.end()
        assert _do("collect", study, tmp_path / "try").complete


def test_a_judge_that_cannot_be_asked_is_handed_nothing_in(tmp_path: Path) -> None:
    with BatchProvider(lambda body: Error(401, "no such key")) as provider:
        study = campaign([gpt(provider.url, price=PRICE)], pairs=10)
        (problem,) = _do("wait", study, tmp_path / "try").problems
        assert "no such key" in str(problem)
        assert not provider.batches
