"""Marks of numbers: thousands and decimals as languages write them, read alike in draft and run."""

import numpy as np
import pytest

from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace
from tests.spaces.test_drafting import write_sheet

HARVESTS = [130, 973, 1225, 2620, 2709, 356, 3380, 4010, 1000, 845] * 3
SCORES = [4.5, 2.0, 0.9, 7.5, 8.5, 1.5, 6.5, 9.0, 3.5, 2.5] * 3


def german(number, decimals=0, thousands="."):
    """Return a number with a decimal comma."""
    marks = str.maketrans({",": thousands, ".": ","})
    return f"{number:,.{decimals}f}".translate(marks)


def read(path, **options):
    """Return a drafted space's notes, and the first column of its table as a run reads it."""
    drafted = FeatureSpace.from_file(path, **options)
    again = FeatureSpace.load(str(drafted.save(replace=True)))
    return " ".join(drafted.draft.notes), again.read_table().iloc[:, 0].to_numpy()


def table(path, rows, sep=";"):
    """Write a table of two columns; return its path."""
    lines = ["harvest" + sep + "score", *(sep.join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


GERMAN = [german(x) for x in HARVESTS]
ENGLISH = [f"{x:,}" for x in HARVESTS]
COMMAS = [german(x, 1) for x in SCORES]
POINTS = [f"{x}" for x in SCORES]
WHOLE = [f"{10 * x:.0f}" for x in SCORES]


@pytest.mark.parametrize(
    ("harvests", "scores", "sep"),
    [
        (GERMAN, COMMAS, ";"),
        (GERMAN, COMMAS, "\t"),
        ([*GERMAN[:-1], "n.a."], COMMAS, ";"),
        ([*GERMAN[:-1], "ca. 1.5"], COMMAS, ";"),  # one odd cell is a missing value
        ([f"{x} kg" for x in GERMAN], COMMAS, ";"),
        ([f"{x} €" for x in GERMAN], [f"{x} %" for x in COMMAS], ";"),
        *(([german(x, 0, sign) for x in HARVESTS], COMMAS, ";") for sign in " \u202f\u00a0'’"),
        ([f"{german(x, 1, '’')} kg" for x in HARVESTS], COMMAS, ";"),
        (ENGLISH, POINTS, "\t"),
        (ENGLISH, POINTS, ";"),
        (ENGLISH, WHOLE, ";"),
        (ENGLISH, WHOLE, "\t"),
        ([f'"${x}"' for x in ENGLISH], [f"{x}%" for x in POINTS], ","),
    ],
)
def test_thousands_are_read_with_certainty(tmp_path, harvests, scores, sep):
    rows = list(zip(harvests, scores, strict=True))
    notes, values = read(table(tmp_path / "t.csv", rows, sep))
    expected = np.array(HARVESTS, dtype=float)
    if "." in harvests[-1] and harvests[-1][0].isalpha():
        expected[-1] = np.nan
    np.testing.assert_array_equal(values, expected)
    assert "guess" not in notes


@pytest.mark.parametrize("cell", ["{}.287.204", '"{},23,45,678"', "'{},123,456'"])
def test_groups_of_millions_and_of_lakhs_are_numbers(tmp_path, cell):
    sep = ";" if cell.startswith("'") else ","
    rows = [(cell.strip("'").format(k % 9 + 1), str(k)) for k in range(30)]
    notes, values = read(table(tmp_path / "t.csv", [*rows, ("17", "5"), ("245", "6")], sep))
    assert values[0] == float("".join(filter(str.isdigit, cell.format(1))))
    assert (values[-1], notes) == (245.0, "")


@pytest.mark.parametrize("sep", [",", ";", "\t"])
def test_points_beside_numbers_below_a_thousand_are_a_guess_that_is_said(tmp_path, sep):
    path = table(tmp_path / "t.csv", zip(GERMAN, WHOLE, strict=True), sep)
    notes, values = read(path)
    np.testing.assert_array_equal(values, HARVESTS)
    assert "harvest: '1.000' is read as 1000, a guess; if it means 1.000" in notes
    assert f"# - H{notes[1:]}.\n" in (tmp_path / "t.yaml").read_text(encoding="utf-8")
    assert notes.endswith('--decimal "."')
    notes, values = read(path, decimal=".")
    assert values[3] == 2.62
    assert not notes
    with pytest.raises(InputError, match="a point or a comma"):
        read(path, decimal="x")


def test_numbers_with_three_decimals_or_thousands_only(tmp_path):
    cells = [f"{k}.{k}50" for k in range(1, 10)] * 4
    path = table(tmp_path / "t.csv", [(cell, str(k)) for k, cell in enumerate(cells)])
    notes, values = read(path)
    assert values[0] == 1.15
    assert "'1.150' is read as 1.150, a guess; if it means 1150" in notes
    assert notes.endswith('--decimal ","')
    notes, values = read(path, decimal=",")
    assert (values[0], notes) == (1150.0, "")
    # Beside numbers that show what a point is, nothing is a guess.
    path = table(tmp_path / "t.csv", [(cell, "0.5" if k % 2 else "7.25") for k, cell in
                                      enumerate(cells)])  # fmt: skip
    assert read(path)[0] == ""
    # Beside decimal commas points separate thousands, which the file alone can change.
    path = table(tmp_path / "t.csv", [(cell, f"{k},5") for k, cell in enumerate(cells)])
    notes, values = read(path)
    assert values[0] == 1150.0
    assert "if it means 1.150, write it as 1,150 in the file" in notes


def test_thousands_that_begin_far_below_are_read(tmp_path):
    cells = [f"{k % 900 + 17}" for k in range(1040)] + ["1.250", "2.709"]
    rows = [(cell, f"{k % 90},5") for k, cell in enumerate(cells)]
    notes, values = read(table(tmp_path / "t.csv", rows))
    assert values[-2:].tolist() == [1250.0, 2709.0]
    assert notes == ""


def test_numbers_of_a_workbook_keep_their_value_beside_text(tmp_path):
    pytest.importorskip("python_calamine")
    path = tmp_path / "t.xlsx"
    rows = [(f"3.287.{k + 200}", k) if k % 2 else (973.125 + k, k) for k in range(40)]
    write_sheet(path, [("area", "k"), *rows])
    assert read(path)[1][:2].tolist() == [973.125, 3_287_201.0]
    write_sheet(path, [("harvest", "score"), *zip(GERMAN, SCORES, strict=True)])
    notes, values = read(path)
    np.testing.assert_array_equal(values, HARVESTS)
    assert "guess" in notes


def test_a_folder_and_what_is_no_text_are_said_with_a_way_out(tmp_path):
    (tmp_path / "birds.csv").write_text("a;b\n1;2\n")
    with pytest.raises(InputError, match=r"a folder, not a table.*its files: birds\.csv"):
        FeatureSpace.from_file(tmp_path)
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"name;k\ncaf\xe9\0;1\n")
    with pytest.raises(InputError, match="not a text file; save the table as CSV"):
        FeatureSpace.from_file(bad)
    bad.write_bytes(b"name;k\ncaf\xe9;1\n")
    with pytest.raises(InputError, match=r"line 2 is not utf-8 \(byte 0xe9\); give another --enc"):
        FeatureSpace.from_file(bad, encoding="utf-8")
