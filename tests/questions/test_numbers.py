"""Numbers of replies: read where they are stated, and never guessed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.questions.numbers import LEVELS, UNREAD, read_numbers, read_point, read_quantiles
from llm_elicit.spaces.features import Feature, FeatureSpace

VALUES = st.floats(-1e12, 1e12).map(lambda x: float(f"{x:.6g}"))
LISTS = st.lists(VALUES, min_size=1, max_size=9)
SEPARATORS = st.sampled_from(["; ", " ; ", "\n", ", ", " and ", " | "])
MASS = Feature(name="m", label="body mass", unit="g", low=0, high=9000)


@given(LISTS, SEPARATORS, st.sampled_from(["", " mm", "mm", " °N", " km2", " USD"]))
def test_numbers_come_back_whatever_separates_and_follows_them(values, separator, unit) -> None:
    text = separator.join(f"{value!r}{unit}" for value in values)
    assert read_numbers(text, len(values)) == values


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=9))
def test_thousands_separators_and_list_places_are_taken_for_what_they_are(values) -> None:
    assert read_numbers("; ".join(f"{value:,}" for value in values), len(values)) == values
    lines = "\n".join(f"{place}. {value}" for place, value in enumerate(values, start=1))
    if len(values) > 1:
        assert read_numbers(lines, len(values)) == values


@given(st.text(max_size=300), st.integers(1, 9), st.sampled_from(["stop", "length", "refusal"]))
def test_any_text_is_finite_numbers_as_many_as_asked_for_or_a_reason(text, count, finish) -> None:
    found = read_numbers(text, count, finish)
    if isinstance(found, str):
        assert found in UNREAD
    else:
        assert len(found) == count
        assert all(map(math.isfinite, found))


@given(st.text(alphabet="0123456789.,;-−+eE%$ kKnaif\n", max_size=400), st.integers(1, 9))
def test_number_like_garbage_does_no_harm(text, count) -> None:
    found = read_numbers(text, count)
    assert found in UNREAD or all(map(math.isfinite, found))


@given(st.lists(st.floats(0, 9000), min_size=5, max_size=5))
def test_quantiles_are_read_in_order_and_refused_out_of_it(values) -> None:
    found = read_quantiles("; ".join(map(repr, values)), MASS)
    assert found == (values if values == sorted(values) else "not in order")
    labelled = "\n".join(f"{q} %: {v!r} g" for q, v in zip(LEVELS, sorted(values), strict=True))
    assert read_quantiles(labelled, MASS) == sorted(values)


@pytest.mark.parametrize(
    ("reply", "count", "reason"),
    [
        ("I'm sorry, I can't.", 1, "no numbers"),
        ("", 1, "no numbers"),
        ("3-5", 1, "other count"),
        ("12 thousand", 1, "other count"),
        ("$12k", 1, "other count"),
        ("10,20,30", 3, "other count"),
        ("1,2345", 1, "other count"),
        ("1.2.3", 1, "other count"),
        ("1 234 567", 1, "other count"),
        ("1e999", 1, "not finite"),
        ("9" * 5000, 1, "not finite"),
        ("NaN; 3", 1, "not finite"),
        ("7 " * 30_000, 1, "other count"),
    ],
)
def test_what_can_be_read_two_ways_or_not_at_all_stays_unread(reply, count, reason) -> None:
    assert read_numbers(reply, count) == reason


def test_a_cut_off_answer_and_a_refusal_say_so() -> None:
    assert read_numbers("3; 4", 3, "length") == "truncated"
    assert read_numbers("3; 4; 5", 3, "length") == [3.0, 4.0, 5.0]
    assert read_numbers("3; 4; 5", 3, "refusal") == "refusal"


def test_a_point_is_in_natural_units_whatever_the_labels_hold() -> None:
    space = FeatureSpace.load("california_housing")
    point = space.sample(1, np.random.default_rng(0))[0]
    worded = "; ".join(f"{label}: {value}" for label, value in space.word(point))
    assert read_point(worded, space.features) == pytest.approx(point.tolist(), rel=0.01)
    cars = FeatureSpace.load("cars")
    point = cars.sample(1, np.random.default_rng(0))[0]
    worded = "\n".join(f"{label} {value}" for label, value in cars.word(point))
    assert "60" in worded
    assert read_point(worded, cars.features) == pytest.approx(point.tolist(), rel=0.01)


KIND = Feature(name="k", label="kind of tree", kind="categorical", categories=["Oak", "oak x", "4"])


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("Oak; 4,200 g", [0.0, 4200.0]),
        ("kind of tree: oak\nbody mass: 4200", [0.0, 4200.0]),
        ("1. **OAK X**\n2. 3.5e3", [1.0, 3500.0]),
        ("4; 4", [2.0, 4.0]),
        ("Oak", "other count"),
        ("oak, 4200", "other count"),
        ("elm; 4200", "no category"),
        ("oak or elm; 4200", "no category"),
        ("oak; heavy", "no numbers"),
        ("oak; 3-5", "other count"),
    ],
)
def test_categories_are_read_by_their_words(reply, read) -> None:
    assert read_point(reply, [KIND, MASS]) == read


def test_an_unfinished_or_refused_case_says_so() -> None:
    assert read_point("Oak", [KIND, MASS], "length") == "truncated"
    assert read_point("Oak; 3", [KIND, MASS], "refusal") == "refusal"


@given(st.text(max_size=60))
def test_any_text_about_a_category_is_its_code_or_a_reason(text) -> None:
    found = read_point(text, [KIND, KIND])
    assert found in UNREAD or set(found) <= {0.0, 1.0, 2.0}


def numeric(**changes):
    return Feature(**{"name": "x", "label": "x", "low": 0.5, "high": 20.0} | changes)


GERMAN, FRENCH = {"decimal": ","}, {"decimal": ",", "thousands": " "}
EVERY_KIND = [
    numeric(),
    numeric(low=-5e3, high=5e5, unit="kg", digits=5),
    numeric(low=1e-9, high=1e-3, scale="log", unit="mol"),
    numeric(low=0.123456, high=987.654321, digits=4),
    numeric(low=0, high=1e-9),
    numeric(low=1, high=1e20, scale="log"),
    numeric(low=0.3, high=9, factor=10_000, prefix="$"),
    numeric(low=-5e3, high=5e5, locale=GERMAN, unit="€", digits=6),
    numeric(low=1e-9, high=1e6, scale="log", locale=FRENCH),
    numeric(low=-5e3, high=5e5, locale={"thousands": "'"}),
    numeric(low=154_000, high=632_000_000, kind="integer", scale="log"),
    numeric(low=1771, high=4999, kind="integer"),
    numeric(low=1900, high=2030, kind="integer", locale={"thousands": ""}),
    numeric(low=1, high=12, kind="integer", periodic=True),
    numeric(low=0, high=360, periodic=True, unit="°"),
    numeric(low="1875-01-01", high="2020-12-31", kind="date"),
    Feature(name="x", label="x", kind="categorical", categories=["NA", "None", "a b"]),
    Feature(name="x", label="x", kind="ordered", categories=["low", "middle", "high"]),
]


@pytest.mark.parametrize("feature", EVERY_KIND, ids=lambda f: f"{f.kind}-{f.low:g}-{f.scale}")
@given(st.floats(0, 1), st.floats(0, 1))
def test_wording_round_trips_and_different_points_read_differently(feature, share, other):
    space = FeatureSpace(name="s", title="t", subject="u", features=(feature,))
    low, high = (space.to_scale([end])[0] for end in (feature.low, feature.high))
    values = [space.from_scale([low + part * (high - low)])[0] for part in (share, other)]
    rounded = [float(feature.round(np.asarray(value))) for value in values]
    texts = [feature.word(value) for value in values]
    assert [read_point(text, [feature]) for text in texts] == [[value] for value in rounded]
    assert (texts[0] == texts[1]) == (rounded[0] == rounded[1])
    assert [feature.word(value) for value in rounded] == texts


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("14 March 2020; 3.5", [18335.0, 3.5]),
        ("March 14th, 2020\n3.5", [18335.0, 3.5]),
        ("1. 2020-03-14\n2. 3.5 kg", [18335.0, 3.5]),
        ("3/4/2020; 3.5", "unparsable"),
        ("31 February 2020; 3.5", "unparsable"),
        ("1 May 2020 or 2 May 2020; 3.5", "other count"),
        ("yesterday; 3.5", "no numbers"),
    ],
)
def test_dates_of_one_meaning_are_read(reply, expected):
    day = numeric(name="d", label="d", kind="date", low="2000-01-01", high="2030-01-01")
    assert read_point(reply, [day, numeric(unit="kg")]) == expected


def test_quantiles_of_dates_are_read_in_their_order():
    day = numeric(kind="date", low="2000-01-01", high="2030-01-01")
    days = [f"{k} May 2020" for k in (1, 5, 9, 13, 20)]
    assert np.diff(read_quantiles("; ".join(days), day)).tolist() == [4, 4, 4, 7]
    labelled = "\n".join(f"{p}%: {k}" for p, k in zip(LEVELS, days, strict=True))
    assert np.diff(read_quantiles(labelled, day)).tolist() == [4, 4, 4, 7]
    assert read_quantiles("; ".join(days[::-1]), day) == "not in order"
    assert read_quantiles("; ".join(days[1:]), day) == "other count"


def test_a_reply_in_the_locale_of_the_features_is_read():
    money = numeric(low=0, high=9000, locale=GERMAN)
    assert read_point("1.234,5; 0,25", [money, numeric(locale=GERMAN)]) == [1234.5, 0.25]
    year = numeric(low=1900, high=2030, kind="integer", locale={"thousands": ""})
    assert read_point("2020, 3.5", [year, numeric()]) == [2020, 3.5]
    assert read_point("12.6", [numeric(kind="integer")]) == [13.0]
