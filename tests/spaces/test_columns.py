"""A table's columns as numbers: words by codes, as they are written."""

import pandas as pd
import pytest

from llm_elicit.errors import InputError
from llm_elicit.spaces.csv_columns import read_columns

WORDS = {"area": ("NA", "SA", "4"), "x": ()}


def write(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_words_are_taken_as_they_are_written(tmp_path):
    """ "NA" is a category where it is listed, a number is a word, blanks around are nothing."""
    path = write(tmp_path, "x,area,other\n1,NA,a\n2, SA ,b\n3,4,c\n4,,d\n,SA,e\n")
    found = read_columns(path, WORDS)
    assert list(found.columns) == ["area", "x"]
    pd.testing.assert_series_equal(
        found["area"], pd.Series([0.0, 1.0, 2.0, None, 1.0], name="area", dtype=float)
    )
    assert found["x"].isna().tolist() == [False, False, False, False, True]


def test_what_stands_for_nothing_in_a_table_is_missing_where_it_is_no_category(tmp_path):
    path = write(tmp_path, "sex,x\nmale,1\nNA,2\nfemale,3\n,4\n")
    found = read_columns(path, {"sex": ("female", "male"), "x": ()})
    assert found["sex"].dropna().tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x,area\n1,SA\n2,Europe\n", r"'area', line 3: 'Europe' is none.*known: NA, SA, 4$"),
        ("x,area\n1,4.0\n", r"line 2: '4.0' is none of its categories"),
        ("x,place\n1,SA\n", r"no column 'area'; it has x, place"),
        ("x,area\none,SA\n", r"column 'x', line 2: 'one' is not a number"),
    ],
)
def test_a_cell_that_cannot_be_used_is_named_in_one_line(tmp_path, text, match):
    with pytest.raises(InputError, match=match) as caught:
        read_columns(write(tmp_path, text), WORDS)
    assert "\n" not in str(caught.value)
