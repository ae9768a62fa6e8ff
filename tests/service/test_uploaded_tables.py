"""Uploaded tables are read as those of the command line, and none takes long to be refused."""

import time
from pathlib import Path

import pandas as pd
import pytest

from llm_elicit.errors import InputError
from llm_elicit.service.spaces import TableReading, draft
from tests.spaces.test_drafting import write_sheet

CITIES = ("北京", "广州", "上海")
ROWS = [f"{18 + 7 * k % 60},{k % 9}.5,{CITIES[k % 3]}" for k in range(40)]
TABLE = "\n".join(["age,x,city", *ROWS]) + "\n"


@pytest.mark.parametrize(
    ("text", "encoding", "note"),
    [
        (TABLE, "gb18030", "read as gb18030"),
        (TABLE, "utf-16-le", "read as utf-16-le"),
        (TABLE + ",,\n" * 9, "utf-8", "9 rows without any value left out"),
        (TABLE + "Total,180.0,\n", "utf-8", "line 42 left out: a total"),
        ("A title\n\n" + TABLE, "utf-8", "line 3 is read as the header"),
    ],
)
def test_a_table_is_read_as_on_the_command_line(
    text: str, encoding: str, note: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    drafted = draft(tmp_path / "t.csv", TableReading(), 10_000)
    assert drafted.rows == "40 of 40 rows used"
    assert note in drafted.notes[0]
    assert "北京" in drafted.yaml


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n1,\x00\n",
        b'a,b\n"' + b"x" * 1_000_000,
        b"a,b\n" + "é".encode() * 500_000 + b",1\n",
        b"a,b\n" + b"\xe9" * 1_000_000 + b",1\n",
        b"a,b\n" + b"." * 1_000_000 + b",1\n",
        b"#" * 1_000_000 + b"\na,b\n1,2\n",
    ],
)
def test_no_table_takes_long(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    began = time.process_time()
    with pytest.raises(InputError) as refused:
        draft(tmp_path / "t.csv", TableReading(), 10_000)
    assert str(refused.value).startswith("t.csv: ")
    assert time.process_time() - began < 10.0


def test_a_table_with_types_is_read_and_its_size_checked_before(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": range(40), "city": [CITIES[k % 3] for k in range(40)]})
    frame.to_parquet(tmp_path / "t.parquet")
    write_sheet(tmp_path / "s.xlsx", [tuple(frame.columns), *frame.itertuples(index=False)])
    for file in ("t.parquet", "s.xlsx"):
        table = tmp_path / file
        drafted = draft(table, TableReading(), 10_000)
        assert drafted.rows == "40 of 40 rows used"
        assert "北京" in drafted.yaml
        with pytest.raises(InputError, match=rf"^{file}: .*upload at most 2 cells"):
            draft(table, TableReading(), 2)
        table.write_bytes(b"age,city\n1,x\n")
        with pytest.raises(InputError, match=f"^{file}: not a file of the format"):
            draft(table, TableReading(), 10_000)


def test_a_reading_replaces_what_is_detected(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes(TABLE.replace(",", ";").replace(".5", ",5").encode("gb18030"))
    reading = TableReading(encoding="gb18030", sep=";", decimal=",")
    drafted = draft(table, reading, 10_000)
    assert "x" in drafted.yaml
    assert all("guess" not in note for note in drafted.notes)
    with pytest.raises(InputError, match="nothing to ask about"):
        draft(table, TableReading(encoding="gb18030", sep="|"), 10_000)
