"""Twenty people answer at once, in browsers of their own."""

from __future__ import annotations

from pathlib import Path

from tests.service.people_load import PEOPLE, answer_all

QUESTIONS = 100


def test_twenty_people_at_once_answer_every_question_once(tmp_path: Path) -> None:
    load = answer_all(tmp_path, QUESTIONS)
    assert min(load.answered.values()) >= 1
    assert len(load.answered) == PEOPLE
    # A second until a question is shown and another until its answer is kept, on average, though
    # all ask without a pause; with one, a page takes a fraction of this.
    assert load.seconds < 2.0 * QUESTIONS / PEOPLE
