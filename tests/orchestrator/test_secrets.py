"""A key that a provider echoes, in whatever field and form, is in no file of a run."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fakes.batches import BatchProvider

from llm_elicit.backends import anthropic
from llm_elicit.orchestrator.batches import ask_in_batches
from llm_elicit.orchestrator.open_run import Study
from llm_elicit.testing.provider import Action, Answer, Error, Provider, Sends, completion, message
from orchestrator.conftest import KEY, SWIFT, claude, gpt
from orchestrator.running import Notes, campaign, plan_of, run, table

LONG = "x" * 250
FORMS = (KEY, quote(KEY, safe=""), base64.b64encode(f"user:{KEY}".encode()).decode())


def _echo(make: Any, body: dict[str, Any], form: str) -> dict[str, Any]:
    """An answer with the key in every field that is text."""
    if make is claude:
        whole = message(Answer("A", thinking=form), body)
        return {**whole, "model": f"m {form}", "stop_reason": form}
    whole = completion(Answer("A", thinking=form), body)
    whole["choices"][0]["finish_reason"] = form
    return {**whole, "model": f"m {form}", "system_fingerprint": form}


def _files_with(folder: Path, forms: tuple[str, ...]) -> list[tuple[str, str]]:
    whole = [(path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    return [(path.name, form) for path, kept in whole for form in forms if form.encode() in kept]


@pytest.mark.parametrize("make", [claude, gpt])
def test_a_key_in_any_field_of_a_reply_is_kept_nowhere(make: Any, tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        form = FORMS[number % 3]
        # Cut at 300 characters before the key is blotted out, a message would keep its beginning.
        if number % 4 == 1:
            return Error(500, f"{LONG}{'y' * (number % 24)} {form} {LONG}")
        return Sends(json.dumps(_echo(make, body, form)).encode())

    with Provider(behave) as provider:
        study = campaign([make(provider.url, attempts=20)], pairs=10)
        summary = run(study, tmp_path / "try", patience=SWIFT)
    assert summary.complete
    kept = table(study, tmp_path / "try", thinking=True)
    kept.write(tmp_path / "try" / "comparisons.parquet")
    kept.write(tmp_path / "try" / "comparisons.csv")
    assert all("[key]" in model for model in kept.frame["model_answered"])
    beginnings = tuple(form[:length] for form in FORMS for length in (12, len(form)))
    assert _files_with(tmp_path, beginnings) == []


@pytest.mark.parametrize("make", [claude, gpt])
def test_a_key_in_what_a_batch_says_is_kept_nowhere(make: Any, tmp_path: Path) -> None:
    class Echoing(BatchProvider):
        def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
            status, content = super().get(path, query)
            if isinstance(content, dict) and content.get("status") == "completed":
                content["errors"] = {"data": [{"message": f"{LONG}{'y' * 40} {KEY}"}]}
            return status, content

    def answer(body: dict[str, Any]) -> Answer | Error:
        if body["messages"][-1]["content"].count("7") % 3:
            return Error(400, f"{LONG}{'y' * 40} {KEY}\n" * 3)
        return Answer(f"A {KEY}", thinking=KEY)

    with Echoing(answer, at_once=True) as provider:
        study = campaign([make(provider.url, price={"input": 1.0, "output": 2.0})], pairs=10)
        whole = Study(study, study.load_space(), plan_of(study), tmp_path / "try")
        notes = Notes()
        summary = asyncio.run(ask_in_batches(whole, "submit", notes))
        summary = asyncio.run(ask_in_batches(whole, "collect", notes))
    assert 0 < summary.judges[study.judges[0].name].tally.done < 20
    said = "".join(notes.lines)
    assert KEY[:12] not in said
    assert _files_with(tmp_path, (KEY[:12],)) == []


def test_a_defect_stops_one_judge_s_batches_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError(f"said {KEY}")

    with BatchProvider(at_once=True) as provider:
        price = {"input": 1.0, "output": 2.0}
        judges = [claude(provider.url, price=price), gpt(provider.url, price=price)]
        study = campaign(judges, pairs=5)
        whole = Study(study, study.load_space(), plan_of(study), tmp_path / "try")
        asyncio.run(ask_in_batches(whole, "submit", Notes()))
        with monkeypatch.context() as patch:
            patch.setattr(anthropic, "read_message", broken)
            summary = asyncio.run(ask_in_batches(whole, "collect", Notes()))
        (problem,) = summary.problems
        assert "internal error (ZeroDivisionError" in str(problem)
        assert KEY not in str(problem)
        assert summary.judges["gpt"].complete
        assert asyncio.run(ask_in_batches(whole, "collect", Notes())).complete
    assert _files_with(tmp_path, (KEY,)) == []
    assert "Traceback" in (tmp_path / "try" / "log.jsonl").read_text()
