import numpy as np
import pandas as pd
import pytest
import yaml

from llm_elicit.comparisons.row_completion import RowCompletion
from llm_elicit.errors import InputError
from llm_elicit.spaces.drafting import draft_space
from llm_elicit.spaces.features import FeatureSpace


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    n = 500
    frame = pd.DataFrame(
        {
            "row": np.arange(n),
            "species": rng.choice(["cat", "dog"], n),
            "name": [f"pet {i}" for i in rng.permutation(n)],
            "weight kg": rng.lognormal(1.0, 1.0, n),
            "age": rng.integers(0, 15, n),
            "height": rng.normal(30.0, 5.0, n),
            "constant": 1.0,
        }
    )
    path = tmp_path / "my pets.csv"
    frame.to_csv(path, index=False)
    return path


def test_a_csv_becomes_a_space_that_loads(table):
    space, text = draft_space(table)
    assert space.names == ["species", "weight_kg", "age", "height"]
    assert [f.scale for f in space.features] == ["linear", "log", "linear", "linear"]
    kinds = ["categorical", "continuous", "integer", "continuous"]
    assert [f.kind for f in space.features] == kinds
    assert space.features[0].categories == ("cat", "dog")
    assert "left out: row, name, constant" in text
    path = table.parent / "my_pets.yaml"
    path.write_text(text)
    assert FeatureSpace.load(str(path)).features == space.features


def test_words_are_drafted_as_they_are_written(tmp_path):
    """What YAML or pandas would take for something else stays a word, and the table is read."""
    path = tmp_path / "t.csv"
    path.write_text("kept,grade,x\nTRUE, A ,1\nFALSE,NO,5\nTRUE,NO,2\n" + "FALSE,A,3\n,A,8\n")
    space, text = draft_space(path)
    assert [f.categories for f in space.features] == [("FALSE", "TRUE"), ("A", "NO"), ()]
    (tmp_path / "t.yaml").write_text(text)
    table = FeatureSpace.load(str(tmp_path / "t.yaml")).read_table()
    np.testing.assert_array_equal(table["kept"], [1, 0, 1, 0, np.nan])
    np.testing.assert_array_equal(table["grade"], [0, 1, 1, 0, 0])


def test_ranges_are_robust_quantiles_rounded_outwards(tmp_path):
    values = np.append(np.linspace(0.0123, 9.876, 999), 1e6)
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": values}).to_csv(path, index=False)
    (feature,) = draft_space(path)[0].features
    low, high = np.quantile(values, [0.01, 0.99])
    assert low - 0.05 < feature.low <= low
    assert high <= feature.high < high + 0.05


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("x\n1\n2\ntwo\n4\n", r"column 'x', line 4: 'two' is not a number"),
        ("name\na\nb\n", r"no column of numbers, or of few words"),
        ("", r"not a CSV that can be read"),
        ("x\n1\ninf\n", r"infinite value"),
        ("x\n1\n2e300\n-1e300\n", r"column 'x' holds a value beyond 1e\+100"),
        ("x,y\n1,2,3\n4,5,6\n", r"rows have more cells than the header line has names"),
        ("x,y\n1,2,\n4,5,\n", r"delete a comma at the end of rows"),
    ],
)
def test_an_unusable_table_gets_one_clear_line(tmp_path, content, match):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=match) as caught:
        draft_space(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file"):
        draft_space(tmp_path / "nowhere.csv")


def test_columns_keep_their_headings_where_names_cannot(tmp_path):
    """Whatever the headings, the drafted space finds its columns again, each its own."""
    headings = ["weight kg", "weight_kg", "weight-kg", "2nd", "größe", "%", " fat ", "température"]
    values = np.random.default_rng(0).normal(size=(60, len(headings))).round(2)
    path = tmp_path / "t.csv"
    pd.DataFrame(values, columns=headings).to_csv(path, index=False)
    space, text = draft_space(path)
    assert space.names[:4] == ["weight_kg_2", "weight_kg", "weight_kg_3", "_2nd"]
    assert space.features[6].label == "fat"
    (tmp_path / "t.yaml").write_text(text, encoding="utf-8")
    read = FeatureSpace.load(str(tmp_path / "t.yaml")).read_table()
    assert list(read) == space.names
    np.testing.assert_array_equal(read, values)
    fewer = yaml.safe_load(text)
    del fewer["features"][0]  # and its heading stays
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(fewer), encoding="utf-8")
    read = FeatureSpace.load(str(tmp_path / "t.yaml")).read_table()
    np.testing.assert_array_equal(read, values[:, 1:])


def test_rows_are_asked_for_under_the_tables_own_headings(tmp_path):
    values = np.random.default_rng(0).normal(size=(60, 2)).round(2)
    path = tmp_path / "t.csv"
    pd.DataFrame(values, columns=["body length", "body mass"]).to_csv(path, index=False)
    completion = RowCompletion.of(draft_space(path)[0], seed=1)
    assert completion.header == "body length,body mass"
    assert sorted(map(float, completion.hidden)) == sorted(values[:, 1])
