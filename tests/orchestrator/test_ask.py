"""Whole campaigns against loopback providers."""

import asyncio
import contextlib
import json
import logging
import math
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import IncompleteError, InputError, JudgeError
from llm_elicit.orchestrator.batches import ask_in_batches
from llm_elicit.orchestrator.journal.store import Journal
from llm_elicit.orchestrator.judgments import answer_summaries, status
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.testing.provider import (
    Action,
    Answer,
    Error,
    Hangs,
    Provider,
    Resets,
    Sends,
    completion,
)
from orchestrator.conftest import EXPERT, KEY, claude, gpt
from orchestrator.running import campaign, plan_of, run, space_of, table


class Notes:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.dones: list[int] = []

    def tally(self, judge: str, tally: Any) -> None:
        self.dones.append(tally.done)

    def stage(self, label: str, step: str, done: int, total: int) -> None: ...

    def note(self, judge: str, line: str) -> None:
        self.lines.append(f"{judge}: {line}")


def test_all_judges_answer_all_questions(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("B")) as provider:
        study = campaign([claude(provider.url), gpt(provider.url), EXPERT])
        summary = run(study, tmp_path / "try")
    assert summary.complete
    assert not summary.problems
    assert len(provider.seen) == 40
    frame = table(study, tmp_path / "try").frame
    assert frame.groupby("judge").size().to_dict() == {"claude": 20, "expert": 20, "gpt": 20}
    always_second = frame[frame["judge"] == "claude"]
    assert (always_second["verdict"] == "B").all()
    # The order is undone: a judge that always says B prefers b in "ab" and a in "ba".
    expected = (always_second["order"] == "ba").astype(float)
    assert (always_second["probability"].to_numpy() == expected.to_numpy()).all()
    assert (frame[frame["judge"] == "gpt"]["model_answered"] == "gpt-4o-mini-2026-01-01").all()


def test_soft_judgments_undo_the_order_and_the_bias(tmp_path: Path) -> None:
    top = {"A": math.log(0.9), "B": math.log(0.1)}
    with Provider(lambda n, body: Answer("A", logprobs=top)) as provider:
        study = campaign([gpt(provider.url)])
        run(study, tmp_path / "try")
    comparisons = table(study, tmp_path / "try")
    assert comparisons.frame["soft"].all()
    assert set(comparisons.frame["probability"].round(6)) == {0.9, 0.1}
    assert comparisons.choices("gpt").preference == pytest.approx(np.full(10, 0.5))


def test_points_in_the_table_are_those_that_were_asked(tmp_path: Path) -> None:
    study = campaign([EXPERT])
    run(study, tmp_path / "try")
    plan, frame = plan_of(study), table(study, tmp_path / "try").frame
    for column, name in enumerate(study.load_space().names):
        assert (frame[f"a_{name}"] == plan.a[frame["pair"], column]).all()
        assert (frame[f"b_{name}"] == plan.b[frame["pair"], column]).all()


def test_the_simulated_expert_recovers_its_preferences(tmp_path: Path) -> None:
    study = campaign([{**EXPERT, "noise_level": 0.01}], pairs=40)
    run(study, tmp_path / "try")
    from llm_elicit.backends import SimulatedBackend

    expert = SimulatedBackend(study.judges[0], study.load_space())
    choices = table(study, tmp_path / "try").choices("expert")
    truth = expert.log_belief(choices.a) > expert.log_belief(choices.b)
    assert ((choices.preference > 0.5) == truth).mean() > 0.95


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    with Provider() as provider:
        study = campaign([claude(provider.url)])
        run(study, tmp_path / "try")
        before = table(study, tmp_path / "try").frame
        summary = run(study, tmp_path / "try")
        assert len(provider.seen) == 20
    assert summary.complete
    assert summary.judges["claude"].tally.requests == 0
    assert table(study, tmp_path / "try").frame.equals(before)


def test_answers_serve_other_runs_for_nothing(tmp_path: Path) -> None:
    with Provider() as provider:
        first = campaign([claude(provider.url)])
        run(first, tmp_path / "first")
        wider = campaign([claude(provider.url, name="other", concurrency=3)])
        summary = run(wider, tmp_path / "second")
        assert len(provider.seen) == 20
        tally = summary.judges["other"].tally
        assert (tally.cached, tally.requests, tally.cost) == (20, 0, 0.0)
        frame = table(wider, tmp_path / "second").frame
        assert frame["cached"].all()
        assert (frame["cost"] == 0).all()
        warmer = campaign([claude(provider.url, temperature=0.9)])
        run(warmer, tmp_path / "third")
        assert len(provider.seen) == 40


def test_twins_in_flight_are_sent_once(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A", delay=0.05)) as provider:
        study = campaign([claude(provider.url), claude(provider.url, name="twin")])
        summary = run(study, tmp_path / "try")
        assert len(provider.seen) == 20
    assert summary.complete
    assert len(table(study, tmp_path / "try")) == 40


def test_replicates_are_asked_separately(tmp_path: Path) -> None:
    with Provider() as provider:
        study = campaign([claude(provider.url)], design={"pairs": 4, "replicates": 3})
        run(study, tmp_path / "try")
        assert len(provider.seen) == 24


def _faults(number: int, body: dict[str, Any]) -> Action:
    """Each kind of fault, now and then."""
    faults: dict[int, Action] = {
        3: Error(429, "slow down", headers=(("retry-after", "0.2"),)),
        5: Error(500),
        8: Error(529, "overloaded"),
        11: Sends(b'{"half": '),
        13: Hangs(),
        17: Resets(),
        19: Sends(b"{}"),
        23: Sends(b"<html>bad gateway</html>", "text/html"),
    }
    return faults.get(number, Answer("A"))


@pytest.mark.parametrize("make", [claude, gpt])
def test_passing_faults_are_outlived(make: Any, tmp_path: Path) -> None:
    with Provider(_faults) as provider:
        study = campaign([make(provider.url, timeout=2.0)])
        summary = run(study, tmp_path / "try")
        sent = len(provider.seen)
    assert summary.complete
    (judge,) = summary.judges.values()
    assert judge.tally.errors == sent - 20
    # Where the machine stalls, answers are late as well: only the hang is no answer in any case.
    late = (tmp_path / "try" / "log.jsonl").read_text().count("no answer within the timeout")
    assert late >= 1
    assert 8 <= judge.tally.errors <= 8 + late - 1
    frame = table(study, tmp_path / "try").frame
    assert frame["attempts"].sum() == sent
    assert frame["attempts"].max() > 1


def test_the_provider_says_how_long_to_wait(tmp_path: Path) -> None:
    import time

    times: list[float] = []

    def behave(number: int, body: dict[str, Any]) -> Action:
        times.append(time.monotonic())
        return Error(429, headers=(("retry-after", "0.4"),)) if number == 1 else Answer()

    with Provider(behave) as provider:
        run(campaign([claude(provider.url, concurrency=1)], pairs=4), tmp_path / "try")
        questions = [seen.question for seen in provider.seen]
    again = questions.index(questions[0], 1)
    assert times[again] - times[0] >= 0.4


def test_attempts_have_a_ceiling_and_the_next_run_tries_again(tmp_path: Path) -> None:
    broken = True
    failing = ""

    def behave(number: int, body: dict[str, Any]) -> Action:
        nonlocal failing
        question = body["messages"][-1]["content"]
        failing = failing or question
        return Error(500, "boom") if broken and question == failing else Answer()

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, attempts=3)])
        summary = run(study, tmp_path / "try")
        assert not summary.complete
        assert not summary.problems
        assert sum(seen.question == failing for seen in provider.seen) == 3
        line = status(tmp_path / "try", study)["claude"]
        assert (line.done, line.failed, line.total) == (19, 1, 20)
        broken = False
        assert run(study, tmp_path / "try").complete
        assert sum(seen.question == failing for seen in provider.seen) == 4
    with sqlite3.connect(tmp_path / "try" / "journal.sqlite") as db:
        assert db.execute("SELECT MAX(attempts) FROM questions").fetchone() == (4,)


STOPS = [
    (Error(401, f"invalid key {KEY}"), InputError, "key is not accepted"),
    (Error(404, "model: no-such-model"), InputError, "no such model"),
    (Error(402, "pay first"), JudgeError, "no credit left"),
    (Error(400, "Your credit balance is too low"), JudgeError, "credit balance is too low"),
    (Error(400, "temperature is deprecated for this model"), JudgeError, "request refused"),
]


@pytest.mark.parametrize(("fault", "error", "reason"), STOPS)
@pytest.mark.parametrize("make", [claude, gpt])
def test_what_cannot_be_mended_stops_that_judge_alone(
    make: Any, fault: Error, error: type, reason: str, tmp_path: Path
) -> None:
    with Provider(lambda n, body: fault) as provider:
        judge = make(provider.url, concurrency=2)
        notes = Notes()
        summary = run(campaign([judge, EXPERT]), tmp_path / "try", notes)
        # Three refusals in the same words stop the judge; the request in flight beside them ends.
        assert len(provider.seen) <= (4 if fault.status == 400 else 2)
    (problem,) = summary.problems
    assert isinstance(problem, error)
    assert reason in str(problem)
    assert judge["name"] in str(problem)
    assert "\n" not in str(problem)
    assert summary.judges["expert"].complete
    assert not summary.complete


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("make", [claude, gpt])
def test_a_filtered_prompt_is_a_refusal_wherever_it_stands(
    make: Any, concurrency: int, tmp_path: Path
) -> None:
    """The first, and three more; the others are answered, and nothing is asked twice."""
    filtered = {1, 2, 5, 11}
    refused: set[str] = set()

    def behave(number: int, body: dict[str, Any]) -> Action:
        if number not in filtered:
            return Answer("A", delay=0.02)
        refused.add(body["messages"][-1]["content"])
        return Error(400, "Output blocked by content filtering policy", code="content_filter")

    with Provider(behave) as provider:
        study = campaign([make(provider.url, concurrency=concurrency)])
        summary = run(study, tmp_path / "try")
        assert summary.complete
        assert not summary.problems
        run(study, tmp_path / "try")
        assert len(provider.seen) == 20
    (judge,) = summary.judges.values()
    assert (judge.tally.errors, judge.tally.failed) == (0, 0)
    frame = table(study, tmp_path / "try").frame
    said = frame[frame["verdict"] == "refusal"]
    assert len(said) == 4
    assert said["reply"].str.contains("content filtering policy").all()
    assert said["probability"].isna().all()
    (line,) = status(tmp_path / "try", study).values()
    if make is claude:  # whose price is known
        assert line.lost > 0.0, "providers may charge for the prompt; the cap counts that"


BLOCKED = [
    {"choices": [], "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
    {"error": {"message": "Provider returned error", "code": 403,
               "metadata": {"reasons": ["violence"], "raw": "Your input was flagged"}}},
    {"error": {"message": "blocked", "code": "content_filter"}},
    {"model": "m", "choices": [{"index": 0, "finish_reason": "content_filter: PROHIBITED_CONTENT",
                                "message": {"role": "assistant"}}]},
]  # fmt: skip


@pytest.mark.parametrize("body", BLOCKED, ids=["feedback", "metadata", "code", "finish"])
def test_a_prompt_that_is_blocked_within_a_200_is_a_refusal(
    body: dict[str, Any], tmp_path: Path
) -> None:
    def behave(number: int, _: dict[str, Any]) -> Action:
        return Sends(json.dumps(body).encode()) if number in (1, 2) else Answer("A", delay=0.02)

    with Provider(behave) as provider:
        study = campaign([gpt(provider.url)], pairs=4)
        assert run(study, tmp_path / "try").complete
        assert len(provider.seen) == 8
    assert (table(study, tmp_path / "try").frame["verdict"] == "refusal").sum() == 2


def test_one_refused_question_is_no_fault_of_the_judge(tmp_path: Path) -> None:
    """Refusals come faster than answers: those in flight are awaited first."""

    def behave(number: int, body: dict[str, Any]) -> Action:
        return Error(400, "too long") if number <= 4 else Answer(delay=0.2)

    with Provider(behave) as provider:
        study = campaign([claude(provider.url, concurrency=8)])
        summary = run(study, tmp_path / "try")
        assert not summary.problems
        assert summary.judges["claude"].tally.done == 16
        assert run(study, tmp_path / "try").complete


def test_a_journal_without_answers_is_an_empty_table(tmp_path: Path) -> None:
    with Provider(lambda n, body: Error(401)) as provider:
        study = campaign([claude(provider.url)])
        run(study, tmp_path / "try")
    assert len(table(study, tmp_path / "try")) == 0


def test_a_disk_that_is_full_is_one_line_and_keeps_what_was_paid(tmp_path: Path) -> None:
    """SQLite limits the size of the file itself, so that the error is real."""
    with Provider(lambda n, body: Answer("A")) as provider:
        study = campaign([claude(provider.url, concurrency=2)], pairs=60)
        journal = tmp_path / "try" / "journal.sqlite"
        plain = Journal.prepare

        def prepare(self: Journal, *args: Any, **named: Any) -> int:
            lost = plain(self, *args, **named)
            with contextlib.closing(self._db.connection.cursor()) as db:
                (pages,) = db.execute("PRAGMA page_count").fetchone()
                db.execute(f"PRAGMA max_page_count = {pages + 3}")
            return lost

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "prepare", prepare)
            summary = run(study, tmp_path / "try")
        (problem,) = summary.problems
        assert "full" in str(problem)
        assert str(journal) in str(problem)
        kept = len(table(study, tmp_path / "try"))
        assert 0 < kept < 120
        assert run(study, tmp_path / "try").complete
        assert len(provider.seen) <= 120 + 2


def test_a_server_that_is_down_stops_the_judge(tmp_path: Path) -> None:
    judge = claude("http://127.0.0.1:9", attempts=2, concurrency=1)
    summary = run(campaign([judge], pairs=50), tmp_path / "try")
    (problem,) = summary.problems
    assert "connection failed" in str(problem)
    assert summary.judges["claude"].tally.failed == 5


VERDICTS = [
    (Answer("", stop="refusal"), "refusal"),
    (Answer("Let me think", stop="length"), "truncated"),
    (Answer("banana"), "unparsable"),
    (Answer("I'm unable to say."), "refusal"),
    (Answer("Both are equally plausible."), "tie"),
]


@pytest.mark.parametrize(("says", "verdict"), VERDICTS)
def test_answers_without_a_choice_are_kept(says: Answer, verdict: str, tmp_path: Path) -> None:
    with Provider(lambda n, body: says) as provider:
        study = campaign([claude(provider.url)], pairs=4)
        assert run(study, tmp_path / "try").complete
        run(study, tmp_path / "try")
        assert len(provider.seen) == 8
    frame = table(study, tmp_path / "try").frame
    assert set(frame["verdict"]) == {verdict}
    assert set(frame["reply"]) == {says.text}
    if verdict == "tie":
        assert (frame["probability"] == 0.5).all()
    else:
        assert frame["probability"].isna().all()


UNUSABLE = [
    (
        Answer("", stop="length"),
        r"truncated at max_tokens=8 before any visible text; raise the judge",
    ),
    (
        Answer("Let me think", stop="length"),
        r"truncated at max_tokens=8; raise the judge's max_tok",
    ),
    (Answer("", stop="refusal"), "refused; use another design.template, or another model"),
    (Error(400, "Output blocked by content filtering policy"), "refused; use another design"),
    (
        Answer("ba\x1b[1mnana"),
        r"unparsable \(such as 'ba.+nana'\); use another design.template, or str",
    ),
]


@pytest.mark.parametrize(("action", "line"), UNUSABLE)
def test_a_judge_without_a_usable_answer_is_stopped_before_all_is_paid(
    action: Action, line: str, tmp_path: Path
) -> None:
    with Provider(lambda n, body: action) as provider:
        judge = claude(provider.url, max_tokens=8, concurrency=2)
        summary = run(campaign([judge, EXPERT], pairs=30), tmp_path / "try")
        assert 10 <= len(provider.seen) <= 12
        (problem,) = summary.problems
        assert isinstance(problem, IncompleteError)
        number = len(provider.seen)
        assert re.search(f"no usable answers: {number} of {number} {line}", str(problem))
        assert "\x1b" not in str(problem)
        assert summary.judges["expert"].complete
        free = campaign([judge, EXPERT], pairs=30, limits={"unusable": None})
        assert run(free, tmp_path / "try").complete, "on request it is asked everything"


def test_a_share_of_unusable_answers_stops_no_judge(tmp_path: Path) -> None:
    """Four of five, and the first nine; nineteen of twenty do."""
    with Provider(lambda n, body: Answer("A" if n >= 10 and not n % 5 else "?")) as provider:
        judge = claude(provider.url, concurrency=1)
        assert run(campaign([judge], pairs=30), tmp_path / "try").complete
    with Provider(lambda n, body: Answer("A" if not n % 25 else "?")) as provider:
        judge = claude(provider.url, name="other", concurrency=1)
        study = campaign([judge], pairs=40, limits={"unusable": 30})
        (problem,) = run(study, tmp_path / "other").problems
        assert len(provider.seen) == 30
        assert "29 of 30 answers are unusable: 29 of 30 unparsable (such as '?')" in str(problem)


def test_another_model_that_answers_is_named_when_it_does(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        said = completion(Answer("A"), body) | {"model": "m-2" if number > 7 else "m-1"}
        return Sends(json.dumps(said).encode())

    notes = Notes()
    with Provider(behave) as provider:
        study = campaign([gpt(provider.url, concurrency=1)])
        run(study, tmp_path / "try", notes)
    line = "gpt: the model version changed during the run: m-1 (7 answers, "
    assert (
        sum(note.startswith(line) and ", then m-2 (1 answer, " in note for note in notes.lines) == 1
    )
    summary = answer_summaries(tmp_path / "try", study)["gpt"]
    assert summary.models == {"m-1": 7, "m-2": 13}
    assert summary.origin_line() == "answers given by m-1 (7), m-2 (13)"


def test_old_answers_of_the_cache_keep_their_time_and_model(tmp_path: Path) -> None:
    with Provider() as provider:
        study = campaign([claude(provider.url)])
        run(study, tmp_path / "first")
        with sqlite3.connect(tmp_path / "cache.sqlite") as db:
            db.execute("UPDATE replies SET kept_at = '2026-01-02' || substr(kept_at, 11)"
                       " WHERE rowid <= 12")  # fmt: skip
        notes = Notes()
        run(study, tmp_path / "second", notes)
        assert len(provider.seen) == 20
    frame = table(study, tmp_path / "second").frame
    assert frame["asked_at"].str.startswith("2026-01-02").sum() == 12
    summary = answer_summaries(tmp_path / "second", study)["claude"]
    (model,) = set(frame["model_answered"])
    assert summary.origin_line() == (
        "20 of 20 answers are from the cache; 12 of 20 are older than a day (since 2026-01-02); "
        f"answers given by {model} (20)"
    )
    assert answer_summaries(tmp_path / "first", study)["claude"].origin_line() is None


def test_a_truncated_answer_is_not_served_to_other_runs(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("Hm", stop="length")) as provider:
        study = campaign([claude(provider.url)], pairs=4)
        run(study, tmp_path / "first")
        run(study, tmp_path / "second")
        assert len(provider.seen) == 16


def test_a_server_without_log_probabilities_is_asked_without(tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        return Error(400, "logprobs is not supported") if "logprobs" in body else Answer("A")

    notes = Notes()
    with Provider(behave) as provider:
        study = campaign([gpt(provider.url, concurrency=4)])
        summary = run(study, tmp_path / "try", notes)
        assert len(provider.seen) <= 24
    assert summary.complete
    assert not table(study, tmp_path / "try").frame["soft"].any()
    assert any("answers count as choices" in line for line in notes.lines)


def test_the_folder_of_another_campaign_is_refused(tmp_path: Path) -> None:
    run(campaign([EXPERT]), tmp_path / "try")
    for other in (campaign([EXPERT], pairs=11), campaign([EXPERT], seed=2)):
        with pytest.raises(InputError, match="run of another campaign"):
            run(other, tmp_path / "try")
        with pytest.raises(InputError, match="run of another campaign"):
            table(other, tmp_path / "try")
    patient = campaign([{**EXPERT, "concurrency": 2}], limits={"max_cost": 1.0})
    assert run(patient, tmp_path / "try").complete


def test_an_edited_template_is_another_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "prompts" / "mine.md"
    own.parent.mkdir()
    own.write_text("---\nid: mine\nwording: x\n---\n# user\n{{ option_a }} or {{ option_b }}?\n")
    study = campaign([EXPERT], design={"pairs": 4, "template": "mine"})
    run(study, tmp_path / "try")
    own.write_text(own.read_text().replace("?", "??"))
    with pytest.raises(InputError, match="its template differs"):
        run(study, tmp_path / "try")


def test_a_missing_key_is_found_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with Provider() as provider:
        study = campaign([gpt(provider.url), claude(provider.url)])
        with pytest.raises(InputError, match="ANTHROPIC_API_KEY"):
            run(study, tmp_path / "try")
        assert not provider.seen
    assert not (tmp_path / "try").exists()


def test_all_that_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of servers of one's own: the prices and the keys of both judges, and a setting."""
    for name in ("OPENAI_API_KEY", "OTHER_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with Provider() as provider:
        judges = [
            gpt(provider.url, model="mine"),
            gpt(provider.url, model="mine", name="second", api_key_env="OTHER_KEY"),
            claude(provider.url, model="claude-opus-4-7", temperature=0.5),
        ]
        study = campaign(judges, limits={"max_cost": 1.0})
        whole = Study(study, space_of(study), plan_of(study), tmp_path / "try")
        batches = ask_in_batches(whole, "submit", Notes())
        for asking in (lambda: run(study, tmp_path / "try"), lambda: asyncio.run(batches)):
            with pytest.raises(InputError) as refused:
                asking()
            said = str(refused.value).splitlines()
            assert said[0] == "5 settings cannot be used:"
            assert "'gpt', 'second'" in said[2]
            assert [name in line for name, line in zip(
                ("temperature", "price", "OPENAI_API_KEY", "OTHER_KEY", "ANTHROPIC_API_KEY"),
                said[1:], strict=True)] == [True] * 5  # fmt: skip
        assert not provider.seen
    assert not (tmp_path / "try").exists()


def test_no_journal_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run the campaign first"):
        table(campaign([EXPERT]), tmp_path)


def test_the_key_is_written_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server echoes the key in errors and answers; everything that is written is searched."""
    caplog.set_level(logging.DEBUG)
    echoes: list[Action] = [
        Error(500, f"upstream said no to {KEY}"),
        Answer(f"A {KEY}"),
        Error(401, f"Incorrect API key provided: {KEY}"),
    ]
    notes = Notes()
    for make in (claude, gpt):
        with Provider(lambda n, body: echoes[min(n, 3) - 1]) as provider:
            study = campaign([make(provider.url, concurrency=1)], pairs=4)
            summary = run(study, tmp_path / make.__name__, notes)
            assert any(KEY in str(seen.headers) for seen in provider.seen)
        assert summary.problems
        assert KEY not in f"{summary!r} {summary.problems[0].__cause__!r}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in caplog.text
    assert KEY not in "".join(notes.lines)
    assert KEY not in "".join(capsys.readouterr())


@pytest.mark.parametrize("shown_in", ["a block", "reasoning_content", "reasoning", "tags"])
def test_thinking_is_kept_apart_and_never_read_as_the_answer(shown_in: str, tmp_path: Path) -> None:
    """It names the other letter, and echoes the key."""
    thought = f"The answer is A. A! ({KEY}, \ud83d)"
    kind = {} if shown_in == "a block" else {"thinking_in": shown_in}
    judge = claude if shown_in == "a block" else gpt
    folder = tmp_path / "try"
    with Provider(lambda n, body: Answer("B", thinking=thought, **kind)) as provider:
        study = campaign([judge(provider.url)])
        assert run(study, folder).complete
        again = campaign([judge(provider.url, name="twin")])
        run(again, tmp_path / "again")
        assert len(provider.seen) == 20
    for where, asked in ((folder, study), (tmp_path / "again", again)):
        plain = table(asked, where)
        assert set(plain.frame["verdict"]) == set(plain.frame["reply"]) == {"B"}
        assert "thinking" not in plain.frame
        frame = table(asked, where, thinking=True).frame
        assert set(frame["thinking"]) == {"The answer is A. A! ([key], \ufffd)"}
        for suffix in (".parquet", ".jsonl", ".csv"):
            back = Comparisons.read(Comparisons(frame, plain.features).write(where / f"t{suffix}"))
            assert (back.frame["thinking"] == frame["thinking"]).all()
