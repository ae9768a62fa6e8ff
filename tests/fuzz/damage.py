"""Files of a finished run, damaged: bytes changed, cut, emptied, left out, exchanged."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path


def flip(path: Path, rng: random.Random) -> None:
    """One to forty bytes are others."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 3, 40])):
        if data:
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    """The end is missing."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def zeros(path: Path, rng: random.Random) -> None:
    """A block is zero, as after a power cut."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data) + 1)
    length = min(rng.choice([16, 512, 4096]), len(data) - at)
    data[at : at + length] = bytes(length)
    path.write_bytes(data)


def grow(path: Path, rng: random.Random) -> None:
    """Something is put in."""
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at] + rng.randbytes(rng.choice([1, 7, 300])) + data[at:])


def empty(path: Path, rng: random.Random) -> None:
    """Nothing is left of it but its name."""
    path.write_bytes(b"")


def gone(path: Path, rng: random.Random) -> None:
    """It is not there."""
    path.unlink()


def folder(path: Path, rng: random.Random) -> None:
    """A folder stands in its place."""
    path.unlink()
    path.mkdir()


def other(path: Path, rng: random.Random) -> None:
    """Another file of the run stands in its place."""
    beside = sorted(p for p in path.parent.iterdir() if p.is_file() and p != path)
    if beside:
        shutil.copy(rng.choice(beside), path)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip, flip, flip, cut, cut, zeros, grow, empty, gone, folder, other,
)  # fmt: skip

CHEAP = (("status", "small"), ("export", "small", "new.csv"), ("ask", "small"),
         ("estimate", "small"), ("plan", "small.yaml"))  # fmt: skip
DEAR = (("fit", "small"), ("audit", "small"), ("report", "small"), ("run", "small.yaml"))
"""Seconds each."""

READ_BY = {
    "journal.sqlite": (*CHEAP[:3], CHEAP[0], CHEAP[1], DEAR[3]),
    "cache.sqlite": (("ask", "small"), ("cache", "verify"), ("cache", "list"), DEAR[3]),
    "campaign.yaml": (*CHEAP, *DEAR),
    "plan.parquet": (CHEAP[2], CHEAP[1], CHEAP[4], DEAR[0]),
    "comparisons.parquet": (DEAR[0], DEAR[1], DEAR[2]),
    "audit.json": (DEAR[2],),
    "log.jsonl": CHEAP[:3],
}
"""What reads a file; all else is the belief's."""


def commands(path: Path) -> tuple[tuple[str, ...], ...]:
    """The command lines that read a file of a run."""
    return READ_BY.get(path.name, DEAR)
