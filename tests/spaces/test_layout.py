"""Rows of a table's file that are no cases, and files in other formats, dialects and archives."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

RNG = np.random.default_rng(0)
CITIES = ["Oslo", "Bergen", "Tromsø"]
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, 60),
        "income": RNG.normal(30_000, 9_000, 60).round(1),
        "score": RNG.normal(50, 10, 60).round(1),
        "city": [CITIES[k % 3] for k in range(60)],
    }
)
LINES = TABLE.to_csv(index=False).splitlines()
HEADER, ROWS = LINES[0], LINES[1:]
SUM = f"{TABLE['income'].sum():.1f}"
PLAIN = FeatureSpace.from_frame(TABLE, "t")


def drafted(path: Path, content: str | bytes) -> FeatureSpace:
    """Return the space of a file, drafted and then read from its YAML."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    draft = FeatureSpace.from_file(path)
    space = FeatureSpace.load(str(draft.save(replace=True)))
    np.testing.assert_array_equal(space.table_points(), draft.table_points())
    assert (space.features, space.table) == (draft.features, draft.table)
    return draft


def lines(*parts: str | list[str]) -> str:
    rows = [row for part in parts for row in ([part] if isinstance(part, str) else part)]
    return "\n".join(rows) + "\n"


def notes(space: FeatureSpace) -> str:
    assert space.draft is not None
    return "; ".join(space.draft.notes)


IMPORT_IDS = ",".join(f'"{{""ImportId"":""QID{k}""}}"' for k in range(4))
FILES = {
    "blank rows at the end": (lines(LINES, [","] * 30, ",,,"), "31 rows without any value"),
    "blank rows between": (lines(HEADER, ROWS[:9], "NA,n/a,,.", " , ,,", ROWS[9:]), "2 rows"),
    "blank rows above": (lines(",,,", "", LINES), "line 3 is read as the header"),
    "blank columns": (lines([f"{line},," for line in LINES]), ""),
    "total": (lines(LINES, f"Total,{SUM},,"), "line 62 left out: a total"),
    "total and note": (lines(LINES, f"Итого:,{SUM},,", "", "Source: own survey"), "a note"),
    "total without a name": (lines(LINES, f",{SUM},,"), "line 62 left out: a total"),
    "total of words": (lines(LINES, f"{TABLE['age'].sum()},{SUM},,合计"), "a total"),
    "total first": (lines(HEADER, f"Gesamt,{SUM},,", ROWS), "line 2 left out: a total"),
    "mean": (lines(LINES, f"{TABLE['age'].mean():.2f},30000.0,,Average"), "a total"),
    "subtotals": (lines(LINES[:31], "Subtotal,9e5,,", LINES[31:], "Total,2e6,,"), "lines 32, 63"),
    "footnotes": (lines(LINES, "", "Source: Statistics Norway", "* preliminary"), "lines 63, 64"),
    "header again": (lines(LINES[:30], HEADER, LINES[30:]), "line 31 left out: the header line"),
    "comments": (lines("# instrument X", "# 2026-01-01", LINES), "line 3 is read as the header"),
    "title": (lines("Household survey 2026", "", LINES), "line 3"),
    "title with separators": (lines("Household survey 2026,,,", LINES), "line 2"),
    "metadata": (lines('"Source","World Bank",', "", '"Updated","2026",', "", LINES), "line 5"),
    "stated separator": (lines("sep=;", [line.replace(",", ";") for line in LINES]), ""),
    "stated tab": (lines("sep=\t", [line.replace(",", "\t") for line in LINES]), ""),
    "title, semicolons": (lines("A title", "", [x.replace(",", ";") for x in LINES]), "line 3"),
    "units": (lines(HEADER, "years,USD,-,", ROWS), "line 2 left out"),
    "units in brackets": (lines(HEADER, "(years),[USD],(points),()", ROWS), "line 2 left out"),
    "wordings": (lines(HEADER, "How old are you?,Your income,Score,City", ROWS), "line 2 left out"),
    "Qualtrics": (lines(HEADER, '"How old?","Income, gross",Score,City', IMPORT_IDS, ROWS), "2, 3"),
    "old Mac": ("\r".join(LINES) + "\r", ""),
    "Windows": ("\r\n".join(LINES) + "\r\n", ""),
    "marks inside": ("\ufeff\ufeff" + lines(LINES[:20], "\ufeff" + LINES[20], LINES[21:]), ""),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_is_no_case_does_not_change_the_space(kind: str, tmp_path: Path) -> None:
    content, said = FILES[kind]
    space = drafted(tmp_path / "t.csv", content)
    assert said in notes(space)
    assert space.features == PLAIN.features
    assert space.table is not None
    assert (len(space.table_points()), space.table.rows) == (60, 60)
    assert space.printed_rows()[-1][:4] == ROWS[-1].split(",")
    np.testing.assert_array_equal(space.table_points(), PLAIN.table_points())


def test_two_header_lines_are_put_together(tmp_path: Path) -> None:
    content = lines(
        "Respondent,How old are you?,Which do you use?,,", ",Open-ended,Bus,Train,Car",
        [f"{1000 + 7 * k},{20 + 7 * k % 50},{k % 3},{k % 5},{k % 4}" for k in range(40)],
    )  # fmt: skip
    space = drafted(tmp_path / "t.csv", content)
    assert space.headings[1:] == [
        "How old are you?", "Which do you use? Bus", "Which do you use? Train",
        "Which do you use? Car",
    ]  # fmt: skip
    assert len(space.table_points()) == 40


ERRORS = ["#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "#N/A", "#SPILL!", "#WERT!",
          "#NV", "#¡VALOR!", "#ДЕЛ/0!", "Err:502"]  # fmt: skip


def test_errors_of_formulas_are_missing_in_every_format(tmp_path: Path) -> None:
    frame = TABLE.astype(object)
    for k, error in enumerate(ERRORS):
        frame.loc[k, "income"] = frame.loc[k + 20, "city"] = error
    frame = frame.astype({"income": str})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_json(tmp_path / "a.json", orient="records")
    spaces = [FeatureSpace.from_file(tmp_path / f"a.{end}") for end in ("csv", "parquet", "json")]
    for space in spaces:
        assert space.features == spaces[0].features
        np.testing.assert_array_equal(space.table_points(), spaces[0].table_points())
        assert space.features[3].categories == (*sorted(CITIES), "not stated")
        assert space.table_rows().missing == {"income": len(ERRORS)}


def test_ranges_come_from_the_rows_that_are_used(tmp_path: Path) -> None:
    odd = lines(LINES, "41,9999999,,Oslo", "-5,30000,,Bergen")
    space = drafted(tmp_path / "t.csv", odd)
    assert [(one.low, one.high, one.scale) for one in space.features] == [
        (one.low, one.high, one.scale) for one in PLAIN.features
    ]
    assert str(space.table_rows()) == "60 of 62 rows used: 2 with a missing score"


def test_one_word_among_numbers_holds_no_value(tmp_path: Path) -> None:
    space = drafted(tmp_path / "t.csv", lines(LINES, "unsure,31000,50.5,Oslo"))
    assert space.features == PLAIN.features
    assert space.table is not None
    assert space.table.words["age"] == {"unsure": ""}
    assert (
        "'unsure' counts as a missing value"
        in FeatureSpace.from_file(tmp_path / "t.csv").draft.text
    )


@pytest.mark.parametrize(
    "content",
    [
        lines("brand,price,x", [f"{'Shell' if k % 2 else 'BP'},{k % 9}.5,{k}" for k in range(40)],
              "Total,4.1,7"),
        lines("name,x,y", [f"n{k},{k % 7},{k % 5}.5" for k in range(40)], "Max,3,2.5"),
        lines("a,b", [f"{k % 7},{k % 5}" for k in range(40)], "0,"),
    ],
)  # fmt: skip
def test_a_case_that_only_looks_like_a_total_stays(content: str, tmp_path: Path) -> None:
    space = drafted(tmp_path / "t.csv", content)
    assert space.table is not None
    assert space.table.rows == 41


@pytest.mark.parametrize(
    "make",
    [
        lambda frame: frame.to_json(orient="records"),
        lambda frame: frame.to_json(orient="records", lines=True),
        lambda frame: frame.to_json(orient="split"),
        lambda frame: frame.to_json(orient="columns"),
        lambda frame: frame.to_json(orient="index"),
        lambda frame: json.dumps({"meta": 1, "data": frame.to_dict("records")}),
        lambda frame: json.dumps(frame.to_dict("list")),
        lambda frame: json.dumps([list(frame.columns), *frame.to_numpy().tolist()]),
    ],
)
def test_json_is_read_as_the_table_that_it_holds(make, tmp_path: Path) -> None:
    space = drafted(tmp_path / "t.json", make(TABLE))
    assert space.features == PLAIN.features
    np.testing.assert_array_equal(space.table_points(), PLAIN.table_points())


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("0", "."), content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.zip", {"t0csv": b"", "____MACOSX__0_t0csv": b"\0\5\26", "0DS_Store": b"\0"}),
        ("t.zip", {"data__t0csv": b"", "README0txt": b"about", "Metadata_country0csv": b"a,b\n"}),
        ("t.csv", None),
        ("t.csv.gz", None),
    ],
)
def test_what_a_table_is_packed_in_does_not_matter(
    name: str, content: dict[str, bytes] | None, tmp_path: Path
) -> None:
    table = lines(LINES).encode()
    if content is None:
        packed = gzip.compress(table)
    else:
        packed = zipped(**{key: value or table for key, value in content.items()})
    assert drafted(tmp_path / name, packed).features == PLAIN.features


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "t.sav",
            b"$FL2",
            "is SPSS format, which is not supported; save the table as CSV or Parquet",
        ),
        ("t.rds", b"\x1f\x8b", "R format"),
        ("t.html", b"<table>", "a web page's format"),
        ("t.csv", b"<!DOCTYPE html><html>", "a web page's format"),
        ("t.csv", b'[{"age": 1}]', "holds JSON; save it as CSV, or name it .json"),
        ("t.json", b'"text"', "cannot be read as a json file"),
        ("t.json", b'{"a": [[1,', "cannot be read as a json file"),
        ("t.numbers", b"PK", "Numbers' format"),
        (
            "t.zip",
            zipped(a0csv=b"a", b0csv=b"b"),
            "holds 2 files; unpack it and give one of them: a.csv",
        ),
        ("t.zip", zipped(), "holds 0 files"),
        ("t.csv", b"sep=:\na:b\n", "the first line states the separator ':'"),
        (
            "t.csv",
            b"age,\n" + b"\n".join(b"%d,%d" % (k, k % 7) for k in (3, 9, 13, 9)),
            "no heading",
        ),
    ],
)
def test_what_is_not_read_is_one_line_that_helps(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    try:
        message = FeatureSpace.from_file(path).draft.columns[1].range
    except InputError as refused:
        message = str(refused)
    assert said in message
    assert "\n" not in message
