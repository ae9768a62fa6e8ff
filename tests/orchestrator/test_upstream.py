"""Failures inside answers with status 200, and answers that nobody can read, in whole runs."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from fakes.batches import BatchProvider
from pydantic import ValidationError

from llm_elicit.comparisons.table import Comparisons, evidence_of
from llm_elicit.config.campaign import Campaign, Fit
from llm_elicit.config.judges import HumanJudge, SimulatedJudge
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import judgments
from llm_elicit.orchestrator.journal.connection import JournalLocation
from llm_elicit.orchestrator.log_odds import LogOdds
from llm_elicit.testing.provider import Answer, Error, Provider, Sends
from orchestrator.conftest import claude, gpt
from orchestrator.running import Notes, campaign, run, table
from orchestrator.test_batches import _do, _study

MALFORMED = {
    "another shape": b'{"choices": []}',
    "a page": b"<html>Log in</html>",
    "nothing": b"",
}


def line_of(study: Campaign, folder: Path) -> str:
    """Return what the only judge of a run was found to give."""
    (summary,) = judgments.answer_summaries(folder, study).values()
    return summary.log_odds.line


@pytest.mark.parametrize("judge", [claude, gpt], ids=["anthropic", "openai"])
@pytest.mark.parametrize("text", ["", "A"])
def test_an_interrupted_answer_is_asked_again(judge: Any, text: str, tmp_path: Path) -> None:
    """However often it happens to one question: it says nothing about it."""

    def behave(number: int, body: dict[str, Any]) -> Answer:
        return Answer("B") if number > 4 else Answer(text, stop="error")

    with Provider(behave) as provider:
        study = campaign([judge(provider.url, concurrency=1)], pairs=4)
        summary = run(study, tmp_path)
        assert len(provider.seen) == 12
    assert summary.complete
    assert list(table(study, tmp_path).frame["verdict"]) == ["B"] * 8


@pytest.mark.parametrize("judge", [claude, gpt], ids=["anthropic", "openai"])
def test_an_interrupted_answer_in_a_batch_is_asked_again(judge: Any, tmp_path: Path) -> None:
    broken: list[int] = []

    def answer(body: dict[str, Any]) -> Answer:
        return Answer("A", stop="error") if broken else Answer("A")

    with BatchProvider(answer) as provider:
        study = _study(judge, provider.url, pairs=4)
        broken.append(1)
        _do("submit", study, tmp_path)
        provider.end()
        assert not _do("collect", study, tmp_path).complete
        broken.clear()
        _do("submit", study, tmp_path)
        provider.end()
        assert _do("collect", study, tmp_path).complete
    assert list(table(study, tmp_path).frame["verdict"]) == ["A"] * 8


@pytest.mark.parametrize("shape", MALFORMED)
def test_a_judge_that_nobody_can_read_stops_after_two_answers(shape: str, tmp_path: Path) -> None:
    with Provider(lambda n, body: Sends(MALFORMED[shape])) as provider:
        study, notes = campaign([gpt(provider.url, concurrency=1)]), Notes()
        summary = run(study, tmp_path, notes)
        assert len(provider.seen) == 2
    assert not summary.complete
    (line,) = (line for line in notes.lines if "malformed" in line)
    assert "the same failure twice: malformed answer" in line


def test_a_question_whose_answers_are_unreadable_is_not_asked_six_times(tmp_path: Path) -> None:
    """Others are answered meanwhile, so that it is no outage."""

    def behave(number: int, body: dict[str, Any]) -> Answer | Sends:
        return Sends(b"{}") if body["messages"][-1]["content"] == odd[0] else Answer("A")

    odd: list[str] = []
    with Provider(behave) as provider:
        study = campaign([gpt(provider.url, concurrency=1)], pairs=5)
        provider.behave = lambda n, body: odd.append(body["messages"][-1]["content"]) or Answer("A")
        run(study, tmp_path / "first")
        odd[:] = odd[4:5]
        provider.behave, provider.seen = behave, []
        summary = run(study, tmp_path / "second", reuse="off")
        asked = [seen.question for seen in provider.seen]
    assert not summary.complete
    assert asked.count(odd[0]) == 3
    assert len(asked) == 9 + 3


def test_log_probabilities_of_another_token_are_counted_and_said_once(tmp_path: Path) -> None:
    """They were those of the thinking's first token, and P(first) = .98 in every row."""
    soft = {"A": math.log(0.98), "B": math.log(0.01)}

    def behave(number: int, body: dict[str, Any]) -> Answer:
        return Answer("B", logprobs=soft, thinking="A larger bird is usual", before=("Well",))

    with Provider(behave) as provider:
        study, notes = campaign([gpt(provider.url, effort="low")], pairs=4), Notes()
        run(study, tmp_path, notes)
    frame = table(study, tmp_path).frame
    assert not frame["soft"].any()
    assert list(frame["probability"]) == [0.0, 1.0] * 4
    (line,) = (line for line in notes.lines if "token" in line)
    why = "the log-probabilities belong to another token"
    assert line.startswith(f"gpt: log-odds: none, because {why}")
    assert "they may return with effort: none" in line


def test_a_change_of_settings_is_noted_once(tmp_path: Path) -> None:
    """Eight requests in flight learn the same."""
    fails = Sends(b'{"error": {"code": 400, "message": "top_logprobs: at most 5"}}')

    def behave(number: int, body: dict[str, Any]) -> Answer | Sends:
        soft = Answer("A", logprobs={"A": -0.2, "B": -1.8})
        return fails if body["top_logprobs"] > 5 else soft

    with Provider(behave) as provider:
        study, notes = campaign([gpt(provider.url, concurrency=8)], pairs=12), Notes()
        assert run(study, tmp_path, notes).complete
        assert len(provider.seen) == len(study.judges) * study.design.questions + 1
    assert table(study, tmp_path).frame["soft"].all()
    assert sum("log-probabilities" in line for line in notes.lines) == 1
    assert line_of(study, tmp_path) == "log-odds: yes, 5 alternatives"


def test_a_letter_that_is_not_listed_bounds_the_log_odds(
    location: JournalLocation, tmp_path: Path
) -> None:
    """From the answer through journal, table and file to the evidence, in either order."""

    def behave(number: int, body: dict[str, Any]) -> Answer:
        letter, other = ("A", "B") if number % 3 else ("B", "A")
        far = {letter: math.log(0.999), "C": math.log(1e-6)}
        near = {letter: math.log(0.75), other: math.log(0.25)}
        return Answer(letter, logprobs=far if number % 2 else near)

    with Provider(behave) as provider:
        study = campaign([gpt(provider.url, concurrency=1)], pairs=4, journal=location.address)
        run(study, location.folder)
    asked = table(study, location.folder)
    path = asked.write(tmp_path / "answers.csv")
    for comparisons in (asked, Comparisons.read(path)):
        frame = comparisons.frame
        # Answers by number, every second one bounded, towards a or b by letter and order.
        assert frame["censored"].tolist() == [1, 0, -1, 0, 1, 0, 1, 0]
        assert frame["order"].tolist() == ["ab", "ba"] * 4
        measured = evidence_of(comparisons, "gpt", Fit(methods=("utility",))).measurements
        assert measured.censored.tolist() == [1, 0, -1, 0, 1, 0, 1, 0]
        ends = np.abs(measured.value[measured.censored != 0])
        np.testing.assert_allclose(ends, math.log(0.999e6), rtol=1e-4)
        others = np.abs(measured.value[measured.censored == 0])
        np.testing.assert_allclose(others, math.log(3.0))
    with location.writable().connect() as db, db.begin():
        db.execute(sa.text("UPDATE answers SET censored = 0 WHERE censored = 1"))
    with pytest.raises(InputError, match="has changed since it was received"):
        table(study, location.folder)


class _Counted(Notes):
    """Notes, with the number of requests that the provider had seen at each."""

    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self._provider = provider
        self.requests: list[int] = []

    def note(self, judge: str, line: str) -> None:
        super().note(judge, line)
        self.requests.append(len(self._provider.seen))


def test_log_probabilities_that_were_not_sent_are_said_before_the_second_question(
    tmp_path: Path,
) -> None:
    """A server that ignores `logprobs` costs most of what its answers could say."""
    with Provider(lambda number, body: Answer("A")) as provider:
        study = campaign([gpt(provider.url, concurrency=8)], pairs=4)
        notes = _Counted(provider)
        run(study, tmp_path, notes)
    assert not table(study, tmp_path).frame["soft"].any()
    (line,) = (line for line in notes.lines if "log-odds: none" in line)
    assert line.startswith("gpt: log-odds: none, because the server ignores logprobs; ")
    assert notes.requests[notes.lines.index(line)] == 1
    assert f"gpt: {line_of(study, tmp_path)}" == line


def test_a_server_that_stops_sending_log_probabilities_is_noticed_at_once(tmp_path: Path) -> None:
    soft = {"A": -0.2, "B": -1.8}
    with Provider(lambda n, body: Answer("A", logprobs=soft if n < 4 else None)) as provider:
        study = campaign([gpt(provider.url, concurrency=1)], pairs=4)
        notes = _Counted(provider)
        run(study, tmp_path, notes)
    assert table(study, tmp_path).frame["soft"].sum() == 3
    (line,) = (line for line in notes.lines if "no longer" in line)
    assert notes.requests[notes.lines.index(line)] == 4
    assert (
        notes.lines[-1]
        == f"gpt: {line_of(study, tmp_path)}"
        == (
            "gpt: log-odds: 3 of 8 choices, 20 alternatives; none for the others, because the "
            "server ignores logprobs"
        )
    )


def test_a_server_that_refuses_log_probabilities_in_the_middle_is_noticed(tmp_path: Path) -> None:
    """A gateway that routes to another provider; also under `require`, and in a resumed run."""
    soft = {"A": -0.2, "B": -1.8}
    refuses = Sends(b'{"error": {"code": 400, "message": "logprobs is not supported"}}')

    def behave(number: int, body: dict[str, Any]) -> Answer | Sends:
        if number <= 3:
            return Answer("A", logprobs=soft)
        return refuses if body.get("logprobs") else Answer("A")

    with Provider(behave) as provider:
        judges = [gpt(provider.url, concurrency=1)]
        study = campaign(judges, pairs=4, require="log_odds")
        assert "require: log_odds" in str(run(study, tmp_path).problems)
        assert len(table(study, tmp_path)) == 4
        notes = Notes()
        assert run(campaign(judges, pairs=4), tmp_path, notes).complete
    assert not any("no longer" in line or "log-odds: none" in line for line in notes.lines)
    assert line_of(study, tmp_path) == (
        "log-odds: 3 of 8 choices, 20 alternatives; none for the others, because the server "
        "refuses logprobs"
    )


def test_letters_that_are_not_listed_are_named_as_the_reason(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A", logprobs={"A": -9.0, "To": -0.1})) as provider:
        study = campaign([gpt(provider.url)], pairs=4)
        run(study, tmp_path)
    assert "letters are not among the alternatives" in line_of(study, tmp_path)


_LISTED = {"A": math.log(0.98), "To": math.log(0.01)}
_NAMED = {32: "A", 362: " A", 33: "B", 425: " B"}
_EXACT = {"A": 0.98, " A": 1e-3, "B": 1e-5, " B": 1e-6}


def _vllm(behaviour: str) -> Any:
    """Return a vLLM server on which the other letter is not among the alternatives."""

    def behave(_number: int, body: dict[str, Any]) -> Answer | Sends | Error:
        if "prompt" in body:  # of /tokenize
            texts = ["\u010a", "A", "\u0120A", "\u010a", "B", "\u0120B"]
            tokens = {"count": 6, "tokens": [198, 32, 362, 198, 33, 425], "token_strs": texts}
            known = behaviour != "names none"
            return Sends(json.dumps(tokens).encode()) if known else Error(404, "Not Found")
        ids = body.get("logprob_token_ids", [])
        if ids and behaviour == "refuses":
            return Error(400, "logprob_token_ids: Extra inputs are not permitted")
        if ids and behaviour == "takes":
            exact = {_NAMED[number]: math.log(_EXACT[_NAMED[number]]) for number in ids}
            return Answer("A", logprobs={"A": _LISTED["A"]} | exact)
        return Answer("A", logprobs=_LISTED)

    return behave


@pytest.mark.parametrize(
    ("behaviour", "exact", "requests", "note"),
    [
        ("takes", 7, 9, "its token is asked for from now on (logprob_token_ids)"),
        ("refuses", 0, 10, "the server refuses logprob_token_ids"),
        ("ignores", 0, 9, "not even by logprob_token_ids; its log-probability is taken as a bound"),
        ("names none", 0, 9, "the server names no tokens for logprob_token_ids"),
    ],
)
def test_a_letter_that_is_not_listed_is_asked_for_by_its_token(
    behaviour: str, exact: int, requests: int, note: str, tmp_path: Path
) -> None:
    with Provider(_vllm(behaviour)) as provider:
        study = campaign([gpt(provider.url, profile="vllm", concurrency=1)], pairs=4)
        notes = Notes()
        assert run(study, tmp_path, notes).complete
        assert len(provider.seen) == requests
        assert sum(seen.path == "/tokenize" for seen in provider.seen) == 1
    assert sum(note in line for line in notes.lines) == 1
    frame = table(study, tmp_path).frame
    assert frame["soft"].all()
    assert (frame["censored"] == 0).sum() == exact
    first = frame[frame["censored"] == 0]["probability"]
    likelier = np.maximum(first, 1.0 - first)
    assert likelier.to_numpy() == pytest.approx(0.981 / (0.981 + 1.1e-5), abs=1e-9)


def test_a_server_that_lists_both_letters_is_asked_for_no_token(tmp_path: Path) -> None:
    soft = {"A": -0.2, "B": -1.8}
    with Provider(lambda n, body: Answer("A", logprobs=soft)) as provider:
        study = campaign([gpt(provider.url, profile="vllm")], pairs=4)
        assert run(study, tmp_path).complete
        assert len(provider.seen) == 8


@pytest.mark.parametrize(
    ("judge", "line"),
    [
        (claude, "log-odds: none, because Anthropic's API has no log-probabilities"),
        (partial(gpt, logprobs=False), "log-odds: none, because logprobs: false is set"),
    ],
)
def test_a_judge_that_gives_no_log_odds_is_known_without_a_question(judge: Any, line: str) -> None:
    (judge,) = campaign([judge("http://127.0.0.1:1")]).judges
    assert LogOdds.of(judge).line.startswith(line)


def test_people_and_simulated_judges_have_no_line_but_may_not_be_required() -> None:
    judges = [
        SimulatedJudge(name="one", backend="simulated"),
        HumanJudge(name="two", backend="human", experts=("ada",)),
    ]
    assert [LogOdds.of(judge).line for judge in judges] == ["", ""]
    for judge in judges:
        with pytest.raises(ValidationError, match="gives choices without log-odds"):
            campaign([judge.model_dump(exclude_unset=True)], require="log_odds")


def test_answers_from_the_cache_count_as_those_of_the_judge(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("A")) as provider:
        judges = [gpt(provider.url, concurrency=1)]
        run(campaign(judges, pairs=4, name="first"), tmp_path / "first")
        study, notes = campaign(judges, pairs=4, name="second", require="log_odds"), Notes()
        summary = run(study, tmp_path / "second", notes)
        assert len(provider.seen) == 8
    assert "; it is from the cache: --cache fresh asks again" in str(summary.problems)
    line = line_of(study, tmp_path / "second")
    assert line.startswith("log-odds: none, because the server ignores")


@pytest.mark.parametrize("scored", [True, False])
def test_a_batch_may_require_log_odds_before_it_is_submitted(scored: bool, tmp_path: Path) -> None:
    soft = {"A": -0.2, "B": -1.8}
    with BatchProvider(lambda body: Answer("A", logprobs=soft if scored else None)) as provider:
        study = campaign([gpt(provider.url)], pairs=4, require="log_odds")
        summary = _do("submit", study, tmp_path)
        assert bool(summary.problems) is not scored
        assert len(provider.direct) == 1
        assert len(provider.submitted) == (7 if scored else 0)
        if not scored:
            assert "require: log_odds, but an answer" in str(summary.problems)
            again = _do("submit", study, tmp_path)
            assert "no answer with log-odds was received yet" in str(again.problems)
            return
        provider.end()
        assert _do("collect", study, tmp_path).complete


def test_log_odds_are_not_required_of_a_template_without_letters(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("73 %")) as provider:
        judges, design = [gpt(provider.url)], {"pairs": 4, "template": "v1/probability"}
        with pytest.raises(InputError, match="are not letters, so they have no log-odds"):
            run(campaign(judges, require="log_odds", design=design), tmp_path)
        assert not provider.seen


@pytest.mark.parametrize("scored", [0, 3])
def test_a_campaign_may_require_log_odds(scored: int, tmp_path: Path) -> None:
    soft = {"A": -0.2, "B": -1.8}
    with Provider(lambda n, body: Answer("A", logprobs=soft if n <= scored else None)) as provider:
        study = campaign([gpt(provider.url, concurrency=1)], pairs=4, require="log_odds")
        summary = run(study, tmp_path)
        assert len(provider.seen) == scored + 1
    problem = "require: log_odds, but an answer came without log-probabilities"
    assert problem in str(summary.problems)
    assert len(table(study, tmp_path)) == scored + 1, "what was paid for is kept"
    with pytest.raises(ValidationError, match="gives choices without log-odds"):
        campaign([claude(provider.url)], require="log_odds")
