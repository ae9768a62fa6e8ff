"""Tables that cannot be meant: one line that names file, column, row and rule."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit.planted import ask, box, constant

from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

LOG = ask(box(1), constant(1.0), np.random.default_rng(0), 6)
SUFFIXES = ["csv", "jsonl", "parquet"]
CELLS = [
    ("order", "aa", "none of ab, ba"),
    ("verdict", "maybe", "none of A, B"),
    ("probability", 1.5, "1.5 is not a probability"),
    ("probability", -0.1, "-0.1 is not a probability"),
    ("a_x0", None, "nan is not a number"),
    ("b_x0", "far", "not a number"),
    ("pair", 1.5, "1.5 is not a whole number"),
    ("pair", "one", "not a number"),
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
    with pytest.raises(InputError, match=f"column 'pair', row {len(twice)}: .* is a second answer"):
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


MANY = "c\n" + "\n".join(f"word {i % 5000}" for i in range(20_000)) + "\n"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "cannot be read as CSV"),
        (b"\n\n", "cannot be read as CSV"),
        (b"x,y\n", "no rows"),
        (b"x,y\n1,2\n", "at least two values"),
        (b"x,y\n" + b"1,2\n" * 30, "'x': constant: every cell with a value is '1'"),
        (b"x,y\n,\n,\n", "'x': every cell is empty"),
        (b"1,2\n3,4\n", "the first line holds numbers; add a header line"),
        (gzip.compress(GOOD.encode(), mtime=0)[:40], "cannot be read as CSV"),
        (GOOD.replace("x,y", "x,x").encode(), "two columns are called 'x'"),
        (GOOD.replace("x,y", "x, x").encode(), "two columns are called 'x'"),
        (GOOD.replace("x,y", ",").encode(), "two columns are called ''"),
        (GOOD.replace("\n", ",\n").replace("y,", "y", 1).encode(), "more cells"),
        (GOOD.encode() + b"1,2,3\n", "line 42"),
        (GOOD.encode() + b'1,"open\n', "cannot be read as CSV"),
        (b"x\n1e300\n-1e300\n", "beyond 1e+25; use a larger unit"),
        (b"x\n1e-300\n2e-300\n", "differ by less than 1e-25; use a smaller unit"),
        (
            b"x\n1e15\n1000000000000001\n",
            "too close together for floating-point",
        ),
        (b"x\n1\n" + b"9" * 400 + b"\n", "infinite"),
        (b"x\ninf\n1\n2\n", "infinite"),
        (b"x,y\n1,2\n3\n4,5\n", "line 3 has 1 cells, where the header line has 2 names"),
        (b'x,y\n1,"a\nb"\n\n3\n', "line 5 has 1 cells"),
        (bytes(range(256)) * 20, "c.csv"),
        (MANY.encode(), "too many categories: 5,000; at most 100 are possible"),
        (
            b"id\n4\n8\n15\n16\n",
            "its name suggests an identifier; rename the column if it is a quantity",
        ),
        (b"x\n5\n6\n7\n8\n", "it is a row number (5, 6, ...)"),
        (
            (",".join(f"c{i}" for i in range(3000)) + "\n").encode() + (b"1," * 2999 + b"2\n") * 3,
            "3,000 columns, but a question can show at most 60; name the columns to use: --columns "
            "a,b,c",
        ),
        (
            (",".join(f"c{i}" for i in range(61)) + "\n").encode()
            + b"".join((b"%d," % k * 60 + b"2%d\n" % k) for k in (1, 5, 3)),
            "61 columns",
        ),
    ],
)
def test_a_table_that_cannot_become_a_space_is_one_line(
    content: bytes, named: str, tmp_path: Path
) -> None:
    path = tmp_path / ("c.csv.gz" if content[:2] == b"\x1f\x8b" else "c.csv")
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        FeatureSpace.from_file(path)
    assert named in str(refused.value), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.encode("utf-16"),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("y\n", '"y"\n').encode(),
        GOOD.replace(",", "\t").encode(),
        GOOD.replace(",", ";").replace(".", ",").encode(),
    ],
)
def test_a_table_by_another_program_is_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_bytes(content)
    space = FeatureSpace.load(str(FeatureSpace.from_file(path).save()))
    assert space.names == ["x", "y"]
    assert space.read_table()["x"].tolist() == [i % 7 + 0.5 for i in range(40)]
