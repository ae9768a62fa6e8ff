import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from llm_elicit._util.files import available
from llm_elicit._util.settings import read_yaml, validate
from llm_elicit.errors import InputError
from llm_elicit.spaces.feature import Locale
from llm_elicit.spaces.features import Feature, FeatureSpace

SPACES = available("datasets", ".yaml")


def feature(**changes):
    return Feature(**{"name": "x", "label": "x", "low": 0.5, "high": 20.0} | changes)


@pytest.mark.parametrize("name", SPACES)
def test_shipped_spaces_agree_with_their_tables(name):
    space = FeatureSpace.load(name)
    table = space.read_table()
    assert len(table) == space.table.rows
    assert list(table.columns) == space.names
    # Ranges are robust quantiles: each column keeps nearly all rows, none reaches an outlier.
    inside = ((table >= space.low) & (table <= space.high)).mean()
    assert inside.between(0.97, 1.0).all()
    assert 0.8 < len(space.table_points()) / len(table) < 1.0


def test_different_worlds_are_shipped():
    assert {"california_housing", "cars", "countries", "penguins"} <= set(SPACES)


@pytest.mark.parametrize("name", SPACES)
def test_questions_and_records_agree_to_the_last_digit(name):
    space = FeatureSpace.load(name)
    points = space.sample(200, np.random.default_rng(3))
    assert space.contains(points).all()
    np.testing.assert_array_equal(space.round(points), points)
    for point in points[:20]:
        for (_, text), value, f in zip(space.word(point), point, space.features, strict=True):
            if f.categories:
                assert f.code(text) == value
                continue
            number = float(text.replace(",", "").removesuffix(f.unit))
            assert f.value_of(number) == value


def test_sampling_is_uniform_on_each_features_scale():
    space = FeatureSpace.load("california_housing")
    points = space.to_scale(space.sample(20_000, np.random.default_rng(0)))
    low, high = space.to_scale(space.low), space.to_scale(space.high)
    cube = (points - low) / (high - low)
    # Half a rounding step of house age is about 0.01 of its range.
    np.testing.assert_allclose(cube.mean(axis=0), 0.5, atol=0.015)
    np.testing.assert_allclose(cube.std(axis=0), 12**-0.5, atol=0.015)


@given(st.floats(0.5, 20.0), st.sampled_from(["linear", "log"]), st.integers(1, 6))
def test_rounding_is_idempotent_and_stays_close(value, scale, digits):
    f = feature(scale=scale, digits=digits)
    once = f.round(np.asarray(value))
    assert f.round(once) == once
    extent = value if scale == "log" else 19.5
    # Clipping moves towards the value; rounding moves by at most half a unit of the last digit.
    assert abs(once - value) <= 0.5 * 10.0 ** (np.floor(np.log10(extent)) - digits + 1) * 1.001


@given(st.lists(st.floats(0.6, 19.0), min_size=2, max_size=2))
def test_scale_maps_are_inverse(values):
    space = FeatureSpace(
        name="s",
        title="t",
        subject="u",
        features=(feature(scale="log"), feature(name="y", label="y")),
    )
    np.testing.assert_allclose(space.from_scale(space.to_scale(values)), values, rtol=1e-12)


@pytest.mark.parametrize(
    ("changes", "value", "text"),
    [
        ({"unit": "years", "kind": "integer", "low": 0, "high": 90}, 41.7, "42 years"),
        ({"unit": "USD", "factor": 10_000, "scale": "log"}, 3.5348, "35,300 USD"),
        ({"scale": "log", "low": 80, "high": 5810, "kind": "integer"}, 1166, "1,170"),
        ({"unit": "°N", "digits": 2, "low": 32.6, "high": 40.7}, 34.0522, "34.1 °N"),
        ({"prefix": "$", "digits": 4, "low": 0, "high": 10}, 2.5, "$2.50"),
    ],
)
def test_values_are_worded_as_a_person_would(changes, value, text):
    assert feature(**changes).word(value) == text


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


VALID = """
name: s
title: t
subject: a thing
features:
  - {name: x, label: x, low: 0, high: 1}
"""
TWO = (
    VALID
    + "  - {name: y, label: y, low: 0, high: 1}\n"
    + f"table: {{file: t, sha256: {'a' * 64}, source: s, licence: x, rows: 1, columns: COLUMNS}}\n"
)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (VALID.replace("low: 0", "low: 2"), ["features.0", "low 2 must be below high 1"]),
        (VALID.replace("high: 1", "high: 1, colour: red"), ["features.0.colour", "unknown key"]),
        (VALID + "sise: 3\n", ["sise", "unknown key", "known: name, title"]),
        (VALID.replace("low: 0", "low: -1, scale: log"), ["log scale needs low > 0", "-1"]),
        (VALID.replace("low: 0", "low: many"), ["features.0.low", "'many'"]),
        (VALID + "  - {name: x, label: y, low: 0, high: 1}\n", ["'x' appears twice"]),
        (VALID.replace("subject: a thing\n", ""), ["subject", "required"]),
        (TWO.replace("COLUMNS", "{x: y}"), ["the column 'y' is used by two features"]),
        ("- 1\n- 2\n", ["expected a mapping (key: value), got list"]),
        ("a: [1\n", ["not valid YAML"]),
    ],
)
def test_a_bad_yaml_gets_one_clear_line(tmp_path, text, parts):
    path = write(tmp_path / "s.yaml", text)
    with pytest.raises(InputError) as caught:
        FeatureSpace.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "s.yaml" in message
    for part in parts:
        assert part in message


def test_an_unknown_space_lists_the_known_ones():
    with pytest.raises(InputError, match=r"california_housing, cars, countries, "):
        FeatureSpace.load("calfornia")


def space_with_table(tmp_path, rows, sha256=None):
    import hashlib

    table = tmp_path / "t.csv"
    table.write_text("x\n" + "\n".join(rows) + "\n")
    digest = sha256 or hashlib.sha256(table.read_bytes()).hexdigest()
    text = VALID + (
        f"table: {{file: t.csv, sha256: '{digest}', source: s, licence: l, rows: {len(rows)}}}\n"
    )
    return FeatureSpace.load(write(tmp_path / "s.yaml", text))


def test_a_changed_table_is_refused(tmp_path):
    space = space_with_table(tmp_path, ["0.5"], sha256="0" * 64)
    line = r"t\.csv: checksum .* restore the file, or update `sha256` to [0-9a-f]{64}"
    with pytest.raises(InputError, match=line):
        space.read_table()


def test_text_in_a_numeric_column_is_named_with_its_line(tmp_path):
    space = space_with_table(tmp_path, ["0.5", "oops", "0.25"])
    with pytest.raises(InputError, match=r"column 'x', line 3: 'oops' is not a number"):
        space.read_table()


def test_rows_outside_the_range_and_gaps_are_left_out(tmp_path):
    space = space_with_table(tmp_path, ["0.5", "7", '""', "0.25"])
    np.testing.assert_array_equal(space.table_points(), [[0.5], [0.25]])


def test_the_users_own_folder_comes_first(tmp_path, monkeypatch):
    own = tmp_path / "datasets"
    own.mkdir()
    write(own / "penguins.yaml", VALID)
    monkeypatch.chdir(tmp_path)
    assert FeatureSpace.load("penguins").title == "t"


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(tmp_path)


def test_validation_counts_further_findings():
    with pytest.raises(InputError, match=r"here: name: Field required; .*: Field required"):
        validate(Feature, {}, "here")


def kind(words, **more):
    return {"name": "k", "label": "kind", "kind": "categorical", "categories": words} | more


WORDS = st.lists(
    st.text(min_size=1, max_size=8).map(str.strip).filter(lambda w: w and w.isprintable()),
    min_size=2,
    max_size=9,
    unique=True,
)


@given(WORDS, st.data())
def test_words_and_codes_are_inverse(words, data):
    f = Feature(**kind(words))
    assert (f.low, f.high) == (0.0, len(words) - 1.0)
    code = data.draw(st.integers(0, len(words) - 1))
    assert f.word(float(code)) == words[code]
    assert f.code(f" {words[code]} ") == code
    near = code + data.draw(st.floats(-0.49, 0.49))
    assert f.round(np.asarray(near)) == code
    assert not np.signbit(f.round(np.asarray(-0.3)))
    assert Feature.model_validate_json(f.model_dump_json()) == f


def test_categories_are_drawn_alike_and_are_whole():
    """Rounding a uniform code would give the two at the ends half as often."""
    space = FeatureSpace(
        name="s", title="t", subject="u", features=(Feature(**kind(list("abcd"))), feature())
    )
    points = space.sample(20_000, np.random.default_rng(0))
    shares = np.bincount(points[:, 0].astype(int)) / len(points)
    np.testing.assert_allclose(shares, 0.25, atol=0.015)
    assert space.contains(points).all()
    assert space.contains([[1.0, 3.0], [1.5, 3.0], [4.0, 3.0]]).tolist() == [True, False, False]
    assert space.categorical.tolist() == [True, False]
    assert space.numeric.tolist() == [1]
    assert space.word(points[0])[0][1] in "abcd"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (kind(["a"]), "needs at least two categories"),
        (kind(None), "needs at least two categories"),
        (kind("ab"), "needs at least two categories"),
        (kind(["a", " a"]), "'a' appears twice"),
        (kind(["a", " "]), "control character"),
        (kind(["a", "b\nc"]), "control character"),
        (kind([True, False]), "True is not text; put it in quotes"),
        (kind(["a", "b"], low=1), "takes no low; remove low"),
        (kind(["a", "b"], high=3), "takes no high; remove high"),
        (kind(["a", "b"], scale="log"), "takes no scale"),
        (kind(["a", "b"], unit="m"), "takes no unit"),
        (kind(["a", "b"], prefix="$"), "takes no prefix"),
        (kind(["a", "b"], factor=10), "takes no factor"),
        (kind(["a", "b"], digits=2), "takes no digits"),
        (
            {"name": "x", "label": "x", "low": 0, "high": 2, "categories": ["a", "b"]},
            "only kind: categorical or ordered takes categories",
        ),
    ],
)
def test_what_does_not_go_with_categories_is_refused_in_one_line(given, match):
    with pytest.raises(InputError, match=match) as caught:
        validate(Feature, given, "f.yaml")
    assert "\n" not in str(caught.value)


def test_a_word_that_is_no_category_is_refused():
    with pytest.raises(InputError, match=r"k: no category 'c'; known: a, b"):
        Feature(**kind(["a", "b"])).code("c")


def test_spaces_of_numbers_are_written_down_as_before_there_were_categories():
    """Their JSON is part of a run's identity, so that what was paid for is found again."""
    keys = list(FeatureSpace.load("penguins").model_dump(mode="json")["features"][0])
    assert keys == [
        "name", "label", "unit", "prefix", "kind", "scale", "low", "high", "digits", "factor",
        "note",
    ]  # fmt: skip
    dumped = FeatureSpace.load("penguins").model_dump_json()
    digest = hashlib.sha256(dumped.encode()).hexdigest()
    assert digest == "4d7910484f679f3b7bd8160967eb3985ef7cef8cce533b8bdb99456c510e172c"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"low": 0, "high": 1e-300}, ["below 1e-30", "smaller unit"]),
        ({"low": 1e-300, "high": 1, "scale": "log"}, ["below 1e-30"]),
        ({"low": 1e15, "high": 1e15 + 1}, ["too close together", "another origin"]),
        ({"low": 1e15, "high": 1e15 + 1, "kind": "integer"}, ["too close together"]),
        ({"low": 1, "high": 2, "scale": "log", "periodic": True}, ["periodic needs a linear"]),
        (kind(["a", "b"], periodic=True), ["periodic"]),
        (
            {"kind": "date", "low": "2020-02-30", "high": "2021-01-01"},
            ["low '2020-02-30' is not a d"],
        ),
        ({"kind": "date", "low": 0, "high": 1e9}, ["high 1000000000.0 is not a date"]),
        (
            {"kind": "date", "unit": "days", "low": 0, "high": 9},
            ["date takes no unit; remove unit"],
        ),
        (
            {"locale": {"decimal": ",", "thousands": ","}},
            ["both the decimal mark and the thousands separator"],
        ),
        ({"low": 0.1, "high": 0.4, "kind": "integer"}, ["'0'"]),
        ({"low": -1e300, "high": 1e300}, ["beyond 1e+30"]),
        ({"low": 0, "high": 1e20, "factor": 1e20}, ["beyond 1e+30"]),
        ({"label": ""}, ["label", "printable text"]),
        ({"label": "  "}, ["label", "printable text"]),
        ({"label": "a\nb"}, ["label", "printable text"]),
        ({"unit": "kg\n"}, ["unit", "printable text"]),
    ],
)
def test_a_feature_that_cannot_be_asked_about_is_refused(changes, named):
    with pytest.raises(ValidationError) as refused:
        feature(**changes)
    assert all(words in str(refused.value) for words in named), str(refused.value)


def test_a_small_range_is_asked_about_in_a_smaller_unit():
    f = feature(low=0, high=1e-9, factor=1e9, unit="nm")
    assert (f.word(0), f.word(1e-9)) == ("0.00 nm", "1.00 nm")


def test_labels_differ():
    with pytest.raises(ValidationError, match="the label 'x' appears twice"):
        FeatureSpace(
            name="s", title="t", subject="u",
            features=(feature(name="a", label="x"), feature(name="b", label="x ")),
        )  # fmt: skip


def test_a_space_speaks_the_language_of_its_locale():
    """A feature's own locale comes first, and the space survives its JSON."""
    space = FeatureSpace(
        name="s", title="t", subject="u", locale={"decimal": ","},
        features=(
            feature(low=0, high=5000.5, digits=6, unit="€"),
            {"name": "y", "label": "y", "kind": "integer", "low": 1900, "high": 2030,
             "locale": {"thousands": ""}},
        ),
    )  # fmt: skip
    assert [text for _, text in space.word([1234.5, 2020])] == ["1.234,50 €", "2020"]
    again = FeatureSpace.model_validate_json(space.model_dump_json())
    assert again.features == space.features
    assert "locale" not in FeatureSpace.load("penguins").model_dump()
    assert Locale().model_dump(exclude_defaults=True) == {}  # as runs have recorded it


EVERY_KIND = FeatureSpace(
    name="s", title="t", subject="u",
    features=(
        {"name": "count", "label": "count", "kind": "integer", "low": 1, "high": 4},
        {"name": "many", "label": "many", "kind": "integer", "scale": "log", "low": 1, "high": 9},
        {"name": "grade", "label": "grade", "kind": "ordered", "categories": ["lo", "mid", "hi"]},
        {"name": "kind", "label": "kind", "kind": "categorical", "categories": ["a", "b"]},
        {"name": "day", "label": "day", "kind": "date", "low": "2020-02-27", "high": "2020-03-02"},
        {"name": "month", "label": "month", "kind": "integer", "low": 1, "high": 12,
         "periodic": True},
        {"name": "wind", "label": "wind", "low": 0, "high": 360, "periodic": True},
    ),
)  # fmt: skip


def test_every_kind_is_drawn_from_its_stated_law():
    """A whole value has the width of its cell on the scale: {1, 2, 3, 4} a quarter each."""
    n = 40_000
    points = EVERY_KIND.sample(n, np.random.default_rng(0))
    assert EVERY_KIND.contains(points).all()
    for j, f in enumerate(EVERY_KIND.features[:-1]):
        values = np.arange(f.low, f.high + 1)
        edges = np.append(values - 0.5, f.high + 0.5)
        widths = np.diff(np.log(edges) if f.scale == "log" else edges)
        counts = (points[:, j, None] == values).sum(axis=0)
        assert stats.chisquare(counts, n * widths / widths.sum()).pvalue > 0.001
    degrees = np.bincount(points[:, -1].astype(int), minlength=360)
    assert stats.chisquare(degrees).pvalue > 0.001  # 0 and 360 are one


def test_masks_name_what_the_core_must_know():
    assert EVERY_KIND.integer.tolist() == [True, True, True, False, True, True, False]
    assert EVERY_KIND.categorical.tolist() == [False, False, False, True, False, False, False]
    assert EVERY_KIND.periodic.tolist() == [False] * 5 + [True] * 2
    assert EVERY_KIND.numeric.tolist() == [0, 1, 4, 5, 6]
    # An integer in thousands is whole only as it is worded.
    assert not feature(kind="integer", factor=1000).whole


def test_values_beyond_a_circle_go_around_it_and_others_to_the_end():
    rounded = EVERY_KIND.round([9.0, 0.0, -1.0, 5.0, 1e6, 13.0, 359.9])
    assert rounded.tolist() == [4, 1, 0, 1, EVERY_KIND.high[4], 1, 0]
    assert EVERY_KIND.contains([1, 1, 0, 0, EVERY_KIND.low[4], 1, 359.9])
    assert not EVERY_KIND.contains([1, 1, 0, 0, EVERY_KIND.low[4], 1, 360])
    assert not EVERY_KIND.contains([1.5, 1, 0, 0, EVERY_KIND.low[4], 1, 0])
    words = [text for _, text in EVERY_KIND.word([1, 2, 1, 0, EVERY_KIND.low[4] + 2, 12, 360])]
    assert words == ["1", "2", "mid", "a", "29 February 2020", "12", "0"]


@pytest.mark.parametrize(
    "changes",
    [
        {"low": 0, "high": 6.283185},
        {"low": -3.14159, "high": 3.14159, "digits": 2},
        {"low": 1, "high": 366, "kind": "integer", "digits": 2},
        {"low": 0, "high": 2770, "kind": "integer", "factor": 0.001},
    ],
)
def test_a_circle_of_no_whole_number_of_steps_is_worded_as_it_is_recorded(changes):
    """A direction in radians: 6.283 was asked about as 0.01 and recorded as 0.0068."""
    circle = feature(periodic=True, scale="linear", **changes)
    rounded = np.unique(circle.round(np.linspace(circle.low, circle.high, 20_001)))
    np.testing.assert_array_equal(circle.round(rounded), rounded)
    assert len({circle.word(value) for value in rounded}) == len(rounded)


def test_rounding_up_to_a_power_of_ten_is_that_number():
    size = feature(low=2.73e8, high=1.17e12, scale="log")
    rounded = size.round(9.9951e11)
    assert (rounded, size.round(rounded), size.word(rounded)) == (1e12, 1e12, "1,000,000,000,000")


@pytest.mark.parametrize("quote", ["", "'"])
def test_dates_are_written_in_yaml_as_dates(tmp_path, quote):
    bounds = f"kind: date, low: {quote}1969-12-31{quote}, high: {quote}2020-03-14{quote}"
    text = VALID.replace("low: 0, high: 1", bounds)
    (day,) = FeatureSpace.load(write(tmp_path / "s.yaml", text)).features
    assert (day.low, day.word(day.low), day.word(day.high)) == (
        -1.0, "31 December 1969", "14 March 2020",
    )  # fmt: skip
    assert Feature.model_validate_json(day.model_dump_json()) == day


def test_text_is_no_number_but_where_it_is_a_date(tmp_path):
    for keys in ("low: '0', high: 1", "kind: date, low: '20200101', high: 2021-01-01"):
        with pytest.raises(InputError, match=r"features\.0\.low: must be a number, got the text"):
            FeatureSpace.load(write(tmp_path / "s.yaml", VALID.replace("low: 0, high: 1", keys)))


def test_bounds_of_integers_are_integers():
    f = feature(kind="integer")
    assert (f.low, f.lowest, f.highest, f.word(0.0)) == (0.5, 1.0, 20.0, "1")


@pytest.mark.parametrize(
    ("changes", "value", "text"),
    [
        ({"low": 0, "high": 1e-9}, 0.0, "0"),
        ({"low": 0, "high": 5e-4}, 0.0, "0"),
        ({"low": 0, "high": 1e-9}, 4.56e-10, "4.6e-10"),
        ({"low": 1e-9, "high": 1e-8, "scale": "log"}, 1.2345e-9, "1.23e-9"),
        ({"low": -1, "high": 1}, -0.001, "0.00"),
        ({"low": 1, "high": 1e20, "scale": "log"}, 1.234e18, "1.23e18"),
    ],
)
def test_small_and_large_values_are_worded_with_their_digits(changes, value, text):
    assert feature(**changes).word(value) == text


def test_rows_that_are_left_out_are_counted_with_the_reason(tmp_path):
    space = space_with_table(tmp_path, ["0.5", "7", '""', "0.25", "-3"])
    rows = space.table_rows()
    assert (rows.total, rows.used) == (5, 2)
    assert str(rows) == "2 of 5 rows used: 2 outside the range of x, 1 with a missing x"
