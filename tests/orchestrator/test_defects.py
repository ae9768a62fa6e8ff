"""An exception that nobody expected ends its question with one line, and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest

from llm_elicit.orchestrator import request_builder
from llm_elicit.orchestrator.judgments import status
from llm_elicit.orchestrator.progress import Display, Silent, Tally
from llm_elicit.orchestrator.retries import RetryPolicy
from llm_elicit.questions.presentation import Presentation
from llm_elicit.testing.provider import Action, Answer, Error, Provider
from orchestrator.conftest import claude
from orchestrator.running import campaign, run, undisturbed


def _ends(pairs: int, folder: Path, behave: Any = lambda n, body: Answer()) -> Any:
    with Provider(behave) as provider:
        study = campaign([claude(provider.url, concurrency=4)], pairs=pairs)
        summary = run(study, folder)
        return summary, status(folder, study)["claude"], len(provider.seen)


@pytest.mark.parametrize("defect", [ZeroDivisionError("division by zero"), RecursionError("deep")])
def test_a_question_that_cannot_be_worded_is_given_up(
    defect: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render, count = Presentation.render, 0

    def broken(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        # The first wordings only size the campaign up.
        if count == 12:
            raise defect
        return render(*arguments)

    monkeypatch.setattr(Presentation, "render", broken)
    summary, totals, sent = _ends(10, tmp_path / "try")
    assert not summary.problems
    assert (totals.done, totals.failed) == (19, 1)
    assert sent == 19


def test_an_answer_that_cannot_be_read_is_given_up_and_was_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_answer = request_builder.read_answer

    def broken(text: str, *rest: Any) -> Any:
        if text == "boom":
            raise ValueError("two\nlines")
        return read_answer(text, *rest)

    monkeypatch.setattr(request_builder, "read_answer", broken)

    def behave(number: int, body: dict[str, Any]) -> Action:
        return Answer("boom" if number == 7 else "A")

    summary, totals, sent = _ends(10, tmp_path / "try", behave)
    assert not summary.problems
    assert (totals.done, totals.failed, sent) == (19, 1, 20)
    assert totals.lost == pytest.approx(totals.cost / 19, rel=0.2)


def test_the_same_defect_in_every_question_stops_the_judge_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("two\nlines")

    monkeypatch.setattr(request_builder, "read_answer", broken)
    summary, totals, sent = _ends(50, tmp_path / "try")
    (problem,) = summary.problems
    assert "unexpected ValueError: two lines; its answers so far are kept" in str(problem)
    assert "\n" not in str(problem)
    assert sent < 15
    assert totals.done == 0


def test_a_provider_that_refuses_for_ever_is_seen_at_once_and_ends_in_time(tmp_path: Path) -> None:
    shown: list[int | str] = []

    class Watch(Silent):
        def tally(self, judge: str, tally: Tally) -> None:
            shown.append(tally.errors)

        def note(self, judge: str, line: str) -> None:
            shown.append(line)

    with Provider(lambda n, body: Error(429, headers=(("retry-after", "600"),))) as provider:
        study = campaign([claude(provider.url, concurrency=4)])
        began = undisturbed()
        summary = run(study, tmp_path / "try", Watch(), RetryPolicy(stall_timeout=3.0))
        elapsed = undisturbed() - began
        assert len(provider.seen) < 10
    assert re.search(r"no answer for \d+ s: rate limited", str(summary.problems[0]))
    assert elapsed < 60.0, "the provider asks for two minutes at least"
    assert shown[-1] == str(summary.problems[0])
    assert sum(isinstance(one, int) and one > 0 for one in shown) >= 2, "not only at the end"


def test_plain_lines_come_at_once_and_tell_of_the_first_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Display() as display:
        for errors in (0, 0, 1, 2):
            display.tally("expert", Tally(total=10, errors=errors))
    lines = capsys.readouterr().err.splitlines()
    assert ["0 errors" in line for line in lines] == [True, False]
