import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import InputError

FEATURES = ["x", "y"]


def rows(probabilities, judge="j"):
    """A row a (pair, order) with the given P(a preferred); None is an answer without a choice."""
    table = []
    for i, (pair, order, p) in enumerate(probabilities):
        table.append(
            {
                "judge": judge,
                "pair": pair,
                "order": order,
                "replicate": 0,
                "template": "v1/zero-shot",
                "prompt_hash": f"{i:064d}",
                "model_asked": "m",
                "model_answered": "m",
                "reply": 'B, "obviously"\n=1+1 é',
                "verdict": "refusal" if p is None else "A",
                "probability": p,
                "soft": p not in (0, 1, None),
                "letter_mass": None if p is None else 0.5,
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "cached_tokens": 0,
                "cost": None,
                "latency": 0.5,
                "attempts": 1,
                "cached": False,
                "asked_at": "2026-01-01T00:00:00+00:00",
                "a_x": float(pair),
                "a_y": 0.1,
                "b_x": -1.0,
                "b_y": 1 / 3,
            }
        )
    return pd.DataFrame(table)


def test_both_orders_are_averaged_and_the_order_bias_cancels():
    # A judge that adds 0.2 to whatever stands first, and believes 0.6.
    table = Comparisons(rows([(0, "ab", 0.8), (0, "ba", 0.4)]), FEATURES)
    assert table.choices("j").preference == pytest.approx([0.6])


def test_answers_without_a_choice_are_kept_in_the_table_and_left_out_of_the_choices():
    table = Comparisons(rows([(0, "ab", None), (0, "ba", 1.0), (1, "ab", None)]), FEATURES)
    assert len(table) == 3
    choices = table.choices("j")
    np.testing.assert_array_equal(choices.pair, [0])
    np.testing.assert_array_equal(choices.preference, [1.0])


def test_a_letter_whose_probability_is_no_number_is_a_choice_all_the_same():
    frame = rows([(0, "ab", float("nan")), (0, "ba", float("nan")), (1, "ba", 0.4)])
    table = Comparisons(frame, FEATURES)
    assert table.frame["probability"].tolist() == [1.0, 0.0, 0.4]
    assert table.judgments("j").soft.tolist() == [False, False, True]
    np.testing.assert_array_equal(table.choices("j").preference, [0.5, 0.4])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_every_pair_weighs_one_comparison(preferences):
    table = Comparisons(rows([(i, "ab", p) for i, p in enumerate(preferences)]), FEATURES)
    winners, losers, weights = table.choices("j").weighted()
    assert winners.shape == losers.shape == (len(weights), 2)
    assert weights.sum() == pytest.approx(len(preferences))
    assert (weights > 0).all()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_a_round_trip_keeps_every_cell(tmp_path, suffix):
    table = Comparisons(rows([(0, "ab", 0.25), (1, "ba", None)]), FEATURES)
    again = Comparisons.read(table.write(tmp_path / f"c{suffix}"))
    assert again.features == FEATURES
    pd.testing.assert_frame_equal(again.frame, table.frame)


def test_a_strange_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"use \.parquet, \.jsonl or \.csv"):
        Comparisons(rows([(0, "ab", 0.25)]), FEATURES).write(tmp_path / "c.xlsx")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column 'judge'"):
        Comparisons.read(tmp_path / "other.csv")
    with pytest.raises(InputError, match="no such file"):
        Comparisons.read(tmp_path / "nothing.parquet")
