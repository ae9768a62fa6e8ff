"""Twenty people answer at once, in browsers of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.service.people_load import PEOPLE, answer_all


def test_twenty_people_at_once_answer_every_question_once(tmp_path: Path) -> None:
    load = answer_all(tmp_path, 200)
    assert min(load.answered.values()) >= 1
    assert len(load.answered) == PEOPLE
    # Without a pause between answers; with one, a page takes a fraction of this.
    assert np.median(load.shown) < 1.0
    assert np.median(load.kept) < 1.0
