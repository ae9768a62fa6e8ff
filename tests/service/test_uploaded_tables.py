"""Uploaded tables are read as those of the command line, and none takes long to be refused."""

import time
from pathlib import Path

import pytest

from llm_elicit.errors import InputError
from llm_elicit.service.spaces import TableReading, draft

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
