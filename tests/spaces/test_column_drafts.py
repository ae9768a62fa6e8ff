"""What columns of people's tables become, each of a form that was once misread or left out."""

import numpy as np
import pandas as pd
import pytest

from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

RNG = np.random.default_rng(0)
N = 240


def drafted(values, name="x", **options):
    """The space of a column beside another one without surprises."""
    frame = pd.DataFrame({name: values, "noise": RNG.normal(size=len(values)).round(3)})
    return FeatureSpace.from_frame(frame, "t", **options)


def feature(values, name="x"):
    return drafted(values, name).features[0]


def reason(values, name="x"):
    return drafted(values, name).draft.columns[0].range


@pytest.mark.parametrize(
    ("values", "name", "kind", "ends"),
    [
        ([20200101 + k % 28 for k in range(N)], "day", "date",
         ("1 January 2020", "28 January 2020")),
        (["NA", *(f"202001{k % 28 + 1:02d}" for k in range(N))], "day", "date",
         ("1 January 2020", "28 January 2020")),
        ([f"2020-{k % 12 + 1:02d}" for k in range(N)], "ym", "date",
         ("1 January 2020", "1 December 2020")),
        ([f"2020年3月{k % 28 + 1}日" for k in range(N)], "日付", "date",
         ("1 March 2020", "28 March 2020")),
        ([1950 + k for k in range(61)], "YEAR", "integer", ("1950", "2010")),
        ([f"{150 + k % 40} cm" for k in range(N)], "height", "integer", ("150 cm", "189 cm")),
        ([f"({k}.5)" if k % 2 else f"{k}.25" for k in range(1, 241)], "profit", "continuous",
         ("-240", "241")),
        (pd.to_timedelta(np.linspace(1, 9, N), unit="D"), "stay", "continuous",
         ("1.00 days", "9.00 days")),
        (pd.to_timedelta(np.arange(N) % 40, unit="s"), "pause", "integer",
         ("0 seconds", "39 seconds")),
        ([*np.linspace(2.0, 4.0, N)], "pH", "continuous", ("2.00", "4.00")),
        (np.exp(np.linspace(0, 9, N)).astype("float32") / np.float32(100), "area", "continuous",
         ("0.00999", "81.1")),
    ],
)  # fmt: skip
def test_a_column_is_kept_as_what_it_is(values, name, kind, ends):
    found = feature(values, name)
    assert found.kind == kind
    assert (found.word(found.low), found.word(found.high)) == ends


def test_hours_are_a_circle_where_some_are_missing_and_opening_hours_are_none():
    assert feature([k * 3 % 24 for k in range(N)], "hour").periodic
    assert feature([k % 23 for k in range(N)], "hour").periodic
    assert not feature([8 + k % 12 for k in range(N)], "hour").periodic
    assert not feature([6 + k % 3 for k in range(N)], "month").periodic


def test_all_months_and_all_days_in_words_are_a_circle():
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    found = feature([days[k % 7] for k in range(N)])
    assert (found.kind, found.periodic, found.categories) == ("ordered", True, tuple(days))
    assert not feature([days[k % 5] for k in range(N)]).periodic


@pytest.mark.parametrize(
    "words",
    [
        ["2019Q4", "2020Q1", "2020Q2"],
        ["High school", "Bachelor's degree", "Master's degree", "PhD"],
        ["Never", "Monthly", "Weekly", "Daily"],
    ],
)
def test_more_words_have_an_order(words):
    found = feature([words[-1 - k % len(words)] for k in range(N)])
    assert (found.kind, found.categories) == ("ordered", tuple(words))


@pytest.mark.parametrize("dtype", ["bool", "boolean", "object"])
def test_truth_values_are_yes_and_no_whatever_their_type(dtype):
    values = pd.array([True, False, True] * 80, dtype=dtype)
    found = feature(values)
    assert found.categories == ("no", "yes")
    assert drafted(values).read_table()["x"].tolist()[:3] == [1.0, 0.0, 1.0]


def test_few_numbers_far_apart_are_asked_about_as_they_are():
    """λ, belief and data live on the same values: nobody has a tax of 13 per cent."""
    space = drafted([[7, 19][k % 2] for k in range(N)], "tax_pct")
    found = space.features[0]
    assert (found.kind, found.categories) == ("ordered", ("7 %", "19 %"))
    np.testing.assert_array_equal(space.read_table()["tax_pct"][:2], [0, 1])
    assert feature([[0, 0.5][k % 2] for k in range(N)]).categories == ("0", "0.5")
    assert feature([[4, 6, 8][k % 3] for k in range(N)]).categories == ("4", "6", "8")
    assert feature(np.float32([0.1, 0.25])[np.arange(N) % 2]).categories == ("0.1", "0.25")
    assert feature([[0, 1, 2, 3, 4, 9, 20][k % 7] for k in range(N)]).kind == "integer"
    assert feature([1952 + 5 * (k % 12) for k in range(N)], "year").kind == "integer"


@pytest.mark.parametrize("word", ["refused", "k.A.", "Unknown"])
def test_words_for_no_answer_leave_a_column_of_numbers(word):
    values = [word if k % 5 == 0 else str(20_000 + 317 * k) for k in range(N)]
    space = drafted(values, "income")
    assert space.features[0].kind == "integer"
    assert space.table_rows().missing == {"income": N // 5}
    asked = drafted(values, "income", not_stated=["income"])
    assert asked.features[0].categories[-1] == "not stated"
    assert np.isfinite(asked.read_table()["income"]).all()


def test_a_code_for_no_value_is_no_value():
    values = [-99 if k % 5 == 0 else 20_000 + 317 * k for k in range(N)]
    space = drafted(values, "income")
    assert space.features[0].low > 0
    assert "low: 20300  # -99 counts as a missing value" in space.draft.text
    assert space.draft.columns[0].kept == "whole numbers, -99 counts as missing"
    assert space.table_rows().missing == {"income": N // 5}
    asked = drafted(values, "income", not_stated=["income"])
    shares = np.bincount(asked.read_table()["income"].astype(int)) / N
    assert shares[-1] == pytest.approx(0.2)
    assert feature([-9, *range(-8, 9)] * 15).low == -9  # a number among others below 0


def test_what_cannot_be_kept_says_why():
    days = pd.date_range("2020-01-01", periods=N)
    mixed = [day.strftime(["%Y-%m-%d", "%d/%m/%Y"][k % 2]) for k, day in enumerate(days)]
    assert reason(mixed) == (
        "dates written in several ways, such as '2020-01-01' and '02/01/2020'; write them alike"
    )
    times = [f"{k % 24:02d}:{k % 60:02d}" for k in range(N)]
    assert reason(times) == (
        "times of day, such as '00:00'; give the hour as a number, from 0 to 23"
    )


def test_a_column_that_most_rows_lack_is_left_out_unless_it_is_named():
    values = [float(k) if k % 3 == 0 else None for k in range(N)]
    space = drafted(values, "speed")
    assert space.names == ["noise"]
    assert space.draft.columns[0].range.startswith("67% of its cells are empty; to keep it")
    assert space.table_rows().used > 0.9 * N
    assert drafted(values, "speed", columns=["speed", "noise"]).names == ["speed", "noise"]
    assert drafted(values, "speed", not_stated=["speed"]).names == ["speed", "noise"]


def test_many_categories_are_kept_where_the_column_is_named():
    """Each costs a column of the fit, and has few of the questions."""
    states = [f"state {k % 51}" for k in range(N)]
    assert reason(states, "state") == (
        "51 categories are left out by default; to keep them, name the column in --columns"
    )
    kept = drafted(states, "state", columns=["state", "noise"]).features[0]
    assert len(kept.categories) == 51
    with pytest.raises(InputError, match="120; at most 100 are possible, and 30 unless"):
        drafted([f"town {k % 120}" for k in range(N)], "town", columns=["town"])


def test_a_dropped_column_that_is_asked_for_says_why_it_was_dropped():
    with pytest.raises(
        InputError, match="not a column of the feature space: text: 240 different values in"
    ):
        drafted([f"remark {k}" for k in range(N)], not_stated=["x"])


def test_shares_of_a_whole_are_kept_but_the_last_with_a_constraint():
    shares = np.random.default_rng(0).dirichlet([3, 4, 2], N).round(3)
    frame = pd.DataFrame(shares, columns=["food", "the rent", "other"])
    space = FeatureSpace.from_frame(frame, "t")
    assert space.names == ["food", "the_rent"]
    assert space.constraints == ("food + the_rent <= 1",)
    assert space.draft.columns[2].range == (
        "1 minus food, the rent, which are kept with a constraint"
    )
    assert space.table_rows().used >= 0.95 * N
    assert space.sample(500, np.random.default_rng(1)).sum(axis=1).max() <= 1.0


@pytest.mark.filterwarnings("error")
def test_a_column_that_begins_with_many_gaps_is_drafted():
    values = np.append(np.full(1500, np.nan), RNG.random(2500))
    frame = pd.DataFrame({"late": values, "a": RNG.random(4000), "b": RNG.random(4000)})
    assert FeatureSpace.from_frame(frame, "t").names == ["late", "a", "b"]


@pytest.mark.parametrize("n", [5, 20, 50, 200])
def test_small_tables_keep_their_rows(n):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    assert FeatureSpace.from_frame(frame, "t").table_rows().used >= 0.9 * n


def test_an_extreme_that_is_far_is_outside_and_a_near_one_inside():
    found = feature(np.append(np.linspace(-5.0, 5.0, 199), 1e6))
    assert (found.low, found.high) == (-5.0, 4.95)


def test_what_is_left_out_is_counted_by_the_tables_own_headings():
    space = drafted(np.append(np.linspace(-5.0, 5.0, 999), 1e6), "größe (m)")
    assert "outside the range of größe (m)" in str(space.table_rows())
