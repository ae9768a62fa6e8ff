"""The answers that a page shows: every verdict, evenly through the run, labelled."""

import numpy as np
import pandas as pd
import pytest
from audit.planted import ask, box, constant, gaussian_expert

from llm_elicit.comparisons.table_files import VERDICTS
from llm_elicit.report.answers import (
    EXPANDED_ANSWERS,
    MAX_ANSWERS,
    build_filters,
    orders_agree,
    sample_answers,
    select_rows,
)


@pytest.fixture
def rows() -> pd.DataFrame:
    """1,200 answers, three of them refused, one truncated."""
    space, rng = box(2), np.random.default_rng(0)
    frame = ask(space, gaussian_expert(space), rng, 600).frame
    frame.loc[[5, 6, 7], "verdict"] = "refusal"
    frame.loc[900, "verdict"] = "truncated"
    return frame


def test_shown_answers_hold_every_verdict(study):
    rows = study.comparisons.of("stuck <b>judge</b>")
    shown = select_rows(rows, 4)
    assert len(shown) == 4
    assert "refusal" in set(shown["verdict"])
    assert len(select_rows(rows.head(2), 6)) == 2
    assert list(shown.index) == sorted(shown.index)


def test_picked_answers_are_even_through_the_run(rows):
    for count in (EXPANDED_ANSWERS, 50, MAX_ANSWERS):
        picked = select_rows(rows, count)
        assert len(picked) == count
        assert set(picked["verdict"]) == {"A", "B", "refusal", "truncated"}
        assert picked.index.is_unique
        assert picked.index[-1] > 1100, "to the end of the run"
    gaps = np.diff(picked.index)
    assert gaps.max() <= 2 * len(rows) / MAX_ANSWERS + 1
    assert (picked["verdict"] == "refusal").sum() == 3, "all of the few there are"


def test_at_most_the_given_number_of_answers_is_shown_each_once(rows):
    shown = sample_answers(rows, box(2))
    assert (len(shown.expanded), len(shown.answers), shown.total) == (
        EXPANDED_ANSWERS,
        MAX_ANSWERS,
        1200,
    )
    assert {answer.verdict for answer in shown.expanded} == {"A", "B", "refusal", "truncated"}
    few = sample_answers(rows.head(4), box(2))
    assert (len(few.expanded), len(few.collapsed)) == (4, 0)


def test_orders_agree_without_and_differ_with_a_position_effect():
    space, rng = box(1), np.random.default_rng(0)
    larger = ask(space, lambda a, b: (a[:, 0] > b[:, 0]).astype(float), rng, 40)
    stuck = ask(space, constant(1.0), rng, 40)
    alone = ask(space, constant(1.0), rng, 40, both_orders=False)
    assert orders_agree(larger.frame).tolist() == [True] * 40
    assert orders_agree(stuck.frame).tolist() == [False] * 40
    assert orders_agree(alone.frame).empty
    unknown = sample_answers(alone.frame, space)
    assert {answer.orders for answer in unknown.answers} == {"unknown"}


def test_orders_differ_if_a_replicate_differs():
    rows = pd.DataFrame({"pair": 0, "order": ["ab", "ba", "ab"], "verdict": ["A", "B", "B"]})
    assert not orders_agree(rows)[0]
    assert orders_agree(rows.head(2))[0]


def test_options_are_listed_in_the_order_shown():
    space, rng = box(1), np.random.default_rng(0)
    frame = ask(space, lambda a, _: np.full(len(a), 0.75), rng, 3, soft=True).frame
    for answer, (_, row) in zip(
        sample_answers(frame, space).answers, frame.iterrows(), strict=True
    ):
        first = row["a_x0"] if row["order"] == "ab" else row["b_x0"]
        assert float(answer.rows[0][1].replace("−", "-")) == pytest.approx(first, rel=1e-4)
        assert answer.probability == pytest.approx(0.75), "of option A, whichever point it was"


@pytest.mark.parametrize(
    ("order", "probability", "censored", "words"),
    [
        ("ab", 0.7512, 0, "= 0.75"),
        ("ba", 0.7512, 0, "= 0.25"),
        ("ab", 0.99966, 1, "at least 0.999"),
        ("ba", 0.99966, 1, "at most 0.001"),
        ("ab", 0.0123, -1, "at most 0.013"),
        ("ba", 0.0123, -1, "at least 0.987"),
    ],
)
def test_a_probability_known_as_a_bound_is_one(order, probability, censored, words):
    """Rounded to where the bound still holds, of the option that was shown first."""
    space = box(1)
    frame = ask(space, lambda a, _: np.full(len(a), 0.5), np.random.default_rng(0), 1, soft=True)
    row = frame.frame.head(1).assign(order=order, probability=probability, censored=censored)
    (answer,) = sample_answers(row, space).answers
    assert answer.probability_text == words


def test_filters_count_what_is_shown(rows):
    shown = sample_answers(rows, box(2))
    found = build_filters([("<b>", shown), ("other", shown)])
    assert [(c.index, c.label, c.count) for c in found["judge"]] == [
        (0, "<b>", MAX_ANSWERS), (1, "other", MAX_ANSWERS),
    ]  # fmt: skip
    verdicts = {c.label: c.count for c in found["verdict"]}
    assert list(verdicts) == ["A", "B", "refusal", "truncated"]
    assert sum(verdicts.values()) == sum(c.count for c in found["orders"]) == 2 * MAX_ANSWERS
    assert [VERDICTS[c.index] for c in found["verdict"]] == list(verdicts)
