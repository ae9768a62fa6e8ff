"""The version that answered: kept for each answer, a change said, and the cache's key."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_elicit.backends import Request
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import without_folders
from llm_elicit.errors import VersionChangedError
from llm_elicit.orchestrator import engine
from llm_elicit.orchestrator.journal.schema import Question
from llm_elicit.orchestrator.judgments import (
    answer_summaries,
    direct_answers,
    version_changes,
    write_judgments,
)
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.orchestrator.progress import Tally
from llm_elicit.orchestrator.request_builder import RequestBuilder
from llm_elicit.pipeline.snapshot import read_snapshot
from llm_elicit.report.page import version_lines
from llm_elicit.testing.provider import Action, Answer, Provider, Sends, completion
from orchestrator.conftest import SWIFT, gpt
from orchestrator.running import Notes, campaign, plan_of, run, space_of, table

LOCAL = "/home/ada/models/qwen.gguf"


def served(*parts: tuple[int, str, str]) -> Callable[[int, dict[str, Any]], Action]:
    """A server whose answers have another model and fingerprint from some number on."""

    def behave(number: int, body: dict[str, Any]) -> Action:
        model, print_ = [(m, f) for first, m, f in parts if number >= first][-1]
        said = completion(Answer("A"), body) | {"model": model, "system_fingerprint": print_}
        return Sends(json.dumps(said).encode())

    return behave


class StopAfter(Notes):
    """Stops a run after so many answers."""

    def __init__(self, count: int, stopping: asyncio.Event) -> None:
        super().__init__()
        self._count, self._stopping = count, stopping

    def tally(self, judge: str, tally: Tally) -> None:
        if tally.done >= self._count:
            self._stopping.set()


def strictly(study: Campaign, folder: Path, notes: Notes | None = None) -> engine.AskSummary:
    asked = Study(study, space_of(study), plan_of(study), folder, strict_version=True)
    return asyncio.run(engine.ask(asked, notes, SWIFT))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LOCAL, "qwen.gguf"),
        ("C:\\Users\\ada\\llama\\", "llama"),
        ("~/weights/llama", "llama"),
        ("./llama.bin", "llama.bin"),
        ("models/q4/llama.GGUF", "llama.GGUF"),
        ("file:///home/ada/llama", "llama"),
        ("/c/hub/models--org--llama/snapshots/0a1b/", "org/llama@0a1b"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("accounts/fireworks/models/llama", "accounts/fireworks/models/llama"),
        ("", ""),
    ],
)
def test_a_model_is_named_without_the_folders_of_a_machine(model: str, name: str) -> None:
    assert without_folders(model) == name


def test_no_path_of_a_served_model_is_exported_and_fingerprints_are(tmp_path: Path) -> None:
    with Provider(served((1, LOCAL, "b42"))) as provider:
        study = campaign([gpt(provider.url, model=LOCAL)], pairs=4, direct={"samples": 1})
        run(study, tmp_path / "try")
        assert {request.body["model"] for request in provider.seen} == {LOCAL}, (
            "the server wants its path"
        )
    asked = Study(study, space_of(study), plan_of(study), tmp_path / "try")
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        path = write_judgments(asked, tmp_path / name)
        assert b"/home" not in path.read_bytes()
    frames = [table(study, tmp_path / "try").frame, direct_answers(asked)]
    for frame in frames:
        assert set(frame["model_answered"]) == {"qwen.gguf"}
        assert set(frame["fingerprint"]) == {"b42"}
    assert set(frames[0]["model_asked"]) == {"qwen.gguf"}
    assert answer_summaries(tmp_path / "try", study)["gpt"].models == {"qwen.gguf (b42)": 9}
    assert "/home" not in json.dumps(asked.identity)


@pytest.mark.parametrize(
    "parts", [((1, "m-1", "f"), (8, "m-2", "f")), ((1, "m", "f"), (8, "m", "g"))]
)
def test_a_change_within_a_run_is_said_and_stops_a_strict_one(
    tmp_path: Path, parts: tuple[tuple[int, str, str], ...]
) -> None:
    old, new = (f"{model} ({print_})" for _, model, print_ in parts)
    with Provider(served(*parts)) as provider:
        study = campaign([gpt(provider.url, concurrency=1)])
        notes = Notes()
        assert run(study, tmp_path / "loose", notes).complete
        (change,) = version_changes(tmp_path / "loose", study)
        assert [(s.version, s.answers) for s in change.versions] == [(old, 7), (new, 13)]
        assert version_lines(table(study, tmp_path / "loose").frame, study) == [
            f"gpt: {change.line}"
        ]
        snapshot = read_snapshot(tmp_path / "loose", study, dict)
        assert snapshot.judges["gpt"].change == change.line
    assert (
        sum(
            f"the model version changed during the run: {old} (7 answers, 20" in x
            for x in notes.lines
        )
        == 1
    )
    with Provider(served(*parts)) as provider:
        study = campaign([gpt(provider.url, concurrency=1)])
        (problem,) = strictly(study, tmp_path / "strict").problems
        assert isinstance(problem, VersionChangedError)
        assert old in str(problem)
        assert new in str(problem)
        assert len(provider.seen) == 8, "the answer that shows it is kept, and is the last"
        assert len(table(study, tmp_path / "strict")) == 8
        (again,) = strictly(study, tmp_path / "strict").problems
        assert str(again) == str(problem)
        assert len(provider.seen) == 8, "what was seen is not paid for again"


def test_a_change_over_resumption_stops_a_strict_run(tmp_path: Path) -> None:
    model = "m-1"

    def behave(number: int, body: dict[str, Any]) -> Action:
        return Sends(json.dumps(completion(Answer("A"), body) | {"model": model}).encode())

    with Provider(behave) as provider:
        study, stopping = campaign([gpt(provider.url, concurrency=1)]), asyncio.Event()
        asked = Study(study, space_of(study), plan_of(study), tmp_path, strict_version=True)
        asyncio.run(engine.ask(asked, StopAfter(10, stopping), SWIFT, stopping=stopping))
        before, model = len(provider.seen), "m-2"
        (problem,) = strictly(study, tmp_path).problems
        assert isinstance(problem, VersionChangedError)
        assert len(provider.seen) == before + 1


def test_judges_that_share_a_model_are_expected_to_be_answered_by_one_version(
    tmp_path: Path,
) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        model = "m-2" if body.get("temperature") else "m-1"
        return Sends(json.dumps(completion(Answer("A"), body) | {"model": model}).encode())

    with Provider(behave) as provider:
        judges = [gpt(provider.url, name="cold"), gpt(provider.url, name="warm", temperature=1.0)]
        other = gpt(f"{provider.url}/", name="else", model="another", temperature=1.0)
        study = campaign([*judges, other], pairs=4)
        assert run(study, tmp_path / "loose").complete
        (change,) = version_changes(tmp_path / "loose", study)
        assert change.judges == ("cold", "warm")
        assert strictly(study, tmp_path / "loose").problems, "also if nothing is left to ask"


def test_answers_of_another_version_are_not_taken_from_the_cache(tmp_path: Path) -> None:
    with Provider(served((1, "m-1", ""), (11, "m-2", ""))) as provider:
        judge = gpt(provider.url, concurrency=4)
        run(campaign([judge], pairs=5), tmp_path / "first")
        notes = Notes()
        more = campaign([judge], pairs=8)
        assert run(more, tmp_path / "more", notes).complete
        assert len(provider.seen) == 26, "none of the ten old answers is used"
        assert "gpt: m-2 answers now; cached answers of m-1 are not used" in notes.lines
        assert set(table(more, tmp_path / "more").frame["model_answered"]) == {"m-2"}
        notes = Notes()
        assert run(more, tmp_path / "again", notes).complete
        assert len(provider.seen) == 26
        (line,) = [line for line in notes.lines if "nothing is sent" in line]
        assert line.startswith("gpt: all 16 open questions are answered from the cache, by m-2")
        assert "llm-elicit repeat" in line
        notes = Notes()
        assert run(campaign([judge], pairs=5), tmp_path / "both", notes).complete
        assert len(provider.seen) == 26
        frame = table(campaign([judge], pairs=5), tmp_path / "both").frame
        assert set(frame["model_answered"]) == {"m-2"}, "the newest of two complete versions"


def test_answers_of_the_version_that_answers_now_are_reused(tmp_path: Path) -> None:
    with Provider(served((1, "m-1", ""))) as provider:
        judge = gpt(provider.url, concurrency=4)
        run(campaign([judge], pairs=5), tmp_path / "first")
        notes = Notes()
        run(campaign([judge], pairs=8), tmp_path / "more", notes)
        assert len(provider.seen) == 16
        assert not any("cache" in line for line in notes.lines)


def test_a_long_rerun_without_a_request_and_one_that_lacks_its_last_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are longer than the page of questions that a worker claims at a time."""
    prepared, request = [], RequestBuilder.request

    def counted(builder: RequestBuilder, question: Question) -> Request:
        prepared.append(question.id)
        return request(builder, question)

    monkeypatch.setattr(RequestBuilder, "request", counted)
    with Provider(served((1, "m-1", ""), (301, "m-2", ""))) as provider:
        judge = gpt(provider.url, concurrency=16, logprobs=False)
        run(campaign([judge], pairs=150), tmp_path / "first")
        prepared.clear()
        run(campaign([judge], pairs=150), tmp_path / "again")
        assert len(provider.seen) == 300
        assert len(prepared) == 300, "each is worded once, though the cache is read twice"
        run(campaign([judge], pairs=151), tmp_path / "more")
        assert len(provider.seen) == 602, (
            "the first reply says that the cache is of another version"
        )
