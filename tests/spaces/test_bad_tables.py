"""Tables that cannot be meant: one line that names file, column, row and rule."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit.planted import ask, box, constant

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import InputError
from llm_elicit.spaces.drafting import draft_space

LOG = ask(box(1), constant(1.0), np.random.default_rng(0), 6)
SUFFIXES = ["csv", "jsonl", "parquet"]
CELLS = [
    ("order", "aa", "none of ab, ba"),
    ("verdict", "maybe", "none of A, B"),
    ("probability", 1.5, "no probability"),
    ("probability", -0.1, "no probability"),
    ("a_x0", None, "no number"),
    ("b_x0", "far", "no number"),
    ("pair", 1.5, "no whole number"),
    ("pair", "one", "no number"),
    ("replicate", None, "number"),
    ("soft", "perhaps", "neither true nor false"),
]


def changed(column: str, value: object) -> pd.DataFrame:
    frame = LOG.frame.copy()
    cells = frame[column].astype(object).tolist()
    cells[2] = value
    return frame.assign(**{column: pd.Series(cells, dtype=object)})


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize(("column", "value", "rule"), CELLS)
def test_a_bad_cell_of_a_log_is_named(
    column: str, value: object, rule: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"c.{suffix}"
    frame = changed(column, value)
    if suffix == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    with pytest.raises(InputError) as refused:
        Comparisons.read(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: column '{column}', row 3: ")
    assert rule in message
    assert "\n" not in message


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_answer_twice_is_named(suffix: str, tmp_path: Path) -> None:
    twice = pd.concat([LOG.frame, LOG.frame.iloc[:1]])
    path = Comparisons(twice, LOG.features).write(tmp_path / f"c.{suffix}")
    with pytest.raises(InputError, match=f"column 'pair', row {len(twice)}: .* answered twice"):
        Comparisons.read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["empty", "cut", "bytes", "foreign"])
def test_a_file_that_is_no_log_is_one_line(suffix: str, damage: str, tmp_path: Path) -> None:
    path = LOG.write(tmp_path / f"c.{suffix}")
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "cut": whole[: len(whole) // 2 - 7],
        "bytes": bytes(range(256)) * 8,
        "foreign": b"a,b\n1,2\n" if suffix == "csv" else b'{"a": 1}\n',
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(InputError) as refused:
        Comparisons.read(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_whole_log_is_read_as_before(suffix: str, tmp_path: Path) -> None:
    read = Comparisons.read(LOG.write(tmp_path / f"c.{suffix}"))
    assert read.frame["probability"].equals(LOG.frame["probability"])


GOOD = "x,y\n" + "".join(f"{i % 7}.5,{(i * i) % 11}.25\n" for i in range(40))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not a CSV"),
        (b"\n\n", "not a CSV"),
        (b"x,y\n", "at least two values"),
        (b"x,y\n1,2\n", "at least two values"),
        (b"x,y\n" + b"1,2\n" * 30, "at least two values"),
        (GOOD.replace("x", "Gr\xf6\xdfe").encode("latin-1"), "UTF-8"),
        (GOOD.encode("utf-16"), "UTF-8"),
        (gzip.compress(GOOD.encode(), mtime=0)[:40], "not a CSV"),
        (GOOD.replace("x,y", "x,x").encode(), "two columns are called 'x'"),
        (GOOD.replace("x,y", "x, x").encode(), "two columns are called 'x'"),
        (GOOD.replace("x,y", ",").encode(), "two columns are called ''"),
        (GOOD.replace(",", ";").encode(), "commas between cells"),
        (GOOD.replace(",", "\t").encode(), "commas between cells"),
        (GOOD.replace("\n", ",\n").replace("y,", "y", 1).encode(), "more cells"),
        (b'x\n"1,5"\n"2,5"\n"3,5"\n', "column 'x', line 2: '1,5' has a comma"),
        (GOOD.encode() + b"1,2,3\n", "line 42"),
        (GOOD.encode() + b'1,"open\n', "not a CSV"),
        (b"x\n1e300\n-1e300\n", "beyond"),
        (b"x\n1\n" + b"9" * 400 + b"\n", "too many digits"),
        (b"x\ninf\n1\n2\n", "infinite"),
        (b"x,y\n1,2\n3\n4,5\n", "line 3 has 1 cells, where the header line has 2 names"),
        (b'x,y\n1,"a\nb"\n\n3\n', "line 5 has 1 cells"),
        (bytes(range(256)) * 20, "c.csv"),
    ],
)
def test_a_table_that_cannot_become_a_space_is_one_line(
    content: bytes, named: str, tmp_path: Path
) -> None:
    path = tmp_path / ("c.csv.gz" if content[:2] == b"\x1f\x8b" else "c.csv")
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        draft_space(path)
    assert named in str(refused.value), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("y\n", '"y"\n').encode(),
    ],
)
def test_a_table_by_another_program_is_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(content)
    assert draft_space(path)[0].names == ["x", "y"]
