import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from llm_elicit.audit.responses import build_response
from llm_elicit.comparisons.table import Comparisons, evidence_of
from llm_elicit.config.campaign import Fit
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

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


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_every_pair_weighs_one_comparison(preferences):
    frame = rows([(i, "ab", p) for i, p in enumerate(preferences)]).assign(soft=False)
    evidence = evidence_of(Comparisons(frame, FEATURES), "j", Fit())
    assert evidence.winners.shape == evidence.losers.shape == (len(evidence.weights), 2)
    assert evidence.weights.sum() == pytest.approx(len(preferences))
    assert (evidence.weights > 0).all()


SUFFIXES = [".parquet", ".jsonl", ".csv"]
WORDS = ["=1+1", "'-3", "4", "6", 'é, "ö"', "2020-03-14"]
SPACE = FeatureSpace.model_validate(
    {
        "name": "s", "title": "s", "subject": "s",
        "features": [
            {"name": "x", "label": "x", "low": -1e30, "high": 1e30},
            {"name": "kind", "label": "kind", "kind": "categorical", "categories": WORDS},
            {"name": "size", "label": "size", "kind": "ordered", "categories": ["s", "m", "l"]},
            {"name": "day", "label": "day", "kind": "date", "low": "0900-01-01",
             "high": "2199-12-31"},
        ],
    }
)  # fmt: skip
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
EDGES = [5e-324, -2.2250738585072014e-308, -0.0, 1.72e-11, 0.1 + 0.2, 1.7976931348623157e308]
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
CODES = st.tuples(
    NUMBERS | st.sampled_from(EDGES), st.integers(0, 5), st.integers(0, 2), st.integers(-390000, 0)
)


BRIEF = settings(
    max_examples=15,
    phases=[Phase.generate],  # a failing table says enough, and shrinking it takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def tables(draw) -> Comparisons:
    """A table with anything that its columns can hold."""
    probabilities = draw(st.lists(st.floats(0, 1) | st.none(), min_size=1, max_size=4))
    frame = rows([(pair, "ab", p) for pair, p in enumerate(probabilities)])
    frame = frame.drop(columns=[name for name in frame if name[:2] in ("a_", "b_")])
    cells = {
        "reply": TEXTS | st.none(), "model_answered": TEXTS | st.none(),
        "thinking": TEXTS | st.none(), "cost": NUMBERS | st.none(), "latency": NUMBERS,
        "prompt_tokens": st.integers(-(2**63), 2**63 - 1), "soft": st.booleans(),
        "censored": st.sampled_from([-1, 0, 1]), "presentation": TEXTS | st.none(),
    }  # fmt: skip
    for name, cell in cells.items():
        frame[name] = pd.Series([draw(cell) for _ in range(len(frame))], dtype=object)
    for side in "ab":
        points = np.array([draw(CODES) for _ in range(len(frame))], dtype=float)
        frame = frame.join(SPACE.table_of(points).add_prefix(f"{side}_"))
    return Comparisons(frame, SPACE.names)


@given(tables())
@BRIEF
def test_every_format_gives_back_every_bit(tmp_path, table):
    for suffix in SUFFIXES:
        again = Comparisons.read(table.write(tmp_path / f"c{suffix}"), SPACE)
        assert again.features == SPACE.names
        pd.testing.assert_frame_equal(again.frame, table.frame, check_exact=True)
        for here, there in zip(again.points(again.frame), table.points(table.frame), strict=True):
            assert here.tobytes() == there.tobytes(), "to the sign of zero"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_words_and_dates_are_written_as_such_and_codes_need_the_space(tmp_path, suffix):
    frame = rows([(0, "ab", 0.25)]).drop(columns=["a_x", "a_y", "b_x", "b_y"])
    for side in "ab":
        frame = frame.join(SPACE.table_of(np.array([[1.0, 4, 2, -365.0]])).add_prefix(f"{side}_"))
    path = Comparisons(frame, SPACE.names).write(tmp_path / f"c{suffix}")
    readers = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    plain = readers.get(suffix, lambda path: pd.DataFrame([json.loads(path.read_text())]))(path)
    assert plain.loc[0, ["a_kind", "a_size"]].tolist() == ['é, "ö"', "l"]
    assert str(plain["a_day"][0])[:10] == "1969-01-01"
    again = Comparisons.read(path)
    assert again.frame["a_kind"].tolist() == ['é, "ö"']
    assert again.frame["a_day"].dt.year.tolist() == [1969]
    if suffix == ".parquet":  # which holds the words' order
        assert again.choices("j").a.tolist() == [[1.0, 4.0, 2.0, -365.0]]
    else:
        with pytest.raises(InputError, match=r"'a_kind' holds category.*read\(path, space\)"):
            again.choices("j")
    other = SPACE.model_dump(mode="json")
    other["features"][2]["categories"] = ["s", "m", "xl"]
    with pytest.raises(InputError, match=rf"c\{suffix}: size: no category 'l'; known: s, m, xl"):
        Comparisons.read(path, FeatureSpace.model_validate(other))


def test_tables_with_codes_are_read_as_words(tmp_path):
    frame = rows([(0, "ab", 0.25)]).drop(columns=["a_x", "a_y", "b_x", "b_y"])
    codes = {"x": 1.0, "kind": 4.0, "size": 2.0, "day": -365.0}
    for side in "ab":
        frame = frame.assign(**{f"{side}_{name}": code for name, code in codes.items()})
    frame.to_parquet(tmp_path / "old.parquet")
    again = Comparisons.read(tmp_path / "old.parquet", SPACE)
    assert again.frame["b_size"].tolist() == ["l"]
    assert again.choices("j").b.tolist() == [list(codes.values())]


def test_bounds_are_those_of_the_first_shown_and_of_probabilities_at_the_ends():
    frame = rows([(0, "ab", 0.9), (0, "ba", 0.9), (1, "ab", 0.2), (2, "ba", 1e-12), (3, "ab", 1.0)])
    frame.loc[3:, "soft"] = [True, False]
    assert Comparisons(frame, FEATURES).judgments("j").censored.tolist() == [0, 0, 0, 1, 0]
    bounded = Comparisons(frame.assign(censored=[1, 1, -1, 0, 0]), FEATURES).judgments("j")
    assert bounded.censored.tolist() == [1, -1, -1, 1, 0]


def test_a_few_log_odds_do_not_take_the_place_of_all_choices():
    """Where the answer's own token is rarely found, the others would have been left out."""
    few = Comparisons(rows([(0, "ab", 0.9), (0, "ba", 0.0), (1, "ab", 1.0)]), FEATURES)
    most = Comparisons(rows([(0, "ab", 0.9), (0, "ba", 0.8), (1, "ab", 1.0)]), FEATURES)
    fit = Fit(methods=("utility",))
    assert [len(evidence_of(table, "j", fit).measurements) for table in (few, most)] == [0, 2]
    assert [build_response(table, "j").kind for table in (few, most)] == ["choices", "log-odds"]


def test_a_judgment_knows_its_presentation_and_a_table_without_any_has_one(tmp_path):
    asked = [(0, "ab", 0.9), (1, "ab", 0.8), (2, "ab", 0.7)]
    frame = rows(asked).assign(presentation=["v2/typical", "v2/common, labels 1/2", None])
    table = Comparisons(frame, FEATURES)
    names = Comparisons.read(table.write(tmp_path / "c.csv")).judgments("j").presentation
    assert names.tolist() == ["v2/typical", "v2/common, labels 1/2", ""]
    assert Comparisons(rows(asked), FEATURES).judgments("j").presentation.tolist() == [""] * 3


def test_a_question_is_answered_once_in_a_presentation(tmp_path):
    twice = rows([(0, "ab", 0.9), (0, "ab", 0.8)])
    Comparisons(twice.assign(presentation=["x", "y"]), FEATURES).write(tmp_path / "two.csv")
    assert len(Comparisons.read(tmp_path / "two.csv")) == 2
    Comparisons(twice.assign(presentation="x"), FEATURES).write(tmp_path / "one.csv")
    with pytest.raises(InputError, match="a second answer of one judge to the same pair"):
        Comparisons.read(tmp_path / "one.csv")


def test_a_bound_is_a_side(tmp_path):
    frame = rows([(0, "ab", 0.9)]).assign(censored=2)
    Comparisons(frame, FEATURES).write(tmp_path / "c.csv")
    with pytest.raises(InputError, match=r"column 'censored', row 1: .*none of -1, 0, 1"):
        Comparisons.read(tmp_path / "c.csv")


def test_a_strange_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"use \.parquet, \.jsonl or \.csv"):
        Comparisons(rows([(0, "ab", 0.25)]), FEATURES).write(tmp_path / "c.xlsx")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no column 'judge'; it has "):
        Comparisons.read(tmp_path / "other.csv")
    with pytest.raises(InputError, match="no such file"):
        Comparisons.read(tmp_path / "nothing.parquet")


def test_a_judge_that_is_not_in_the_table_is_an_error_and_one_without_answers_has_no_choices():
    table = Comparisons(rows([(0, "ab", 0.25)], judge="qwen"), FEATURES)
    with pytest.raises(InputError, match="comparisons: no judge 'qwn'; did you mean 'qwen'"):
        table.of("qwn")
    assert len(table.answers_of("late")) == 0
    assert len(table.choices("late")) == 0
