"""A PostgreSQL server of one's own, where the machine has the programs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DEBIAN = Path("/usr/lib/postgresql")
"""Debian keeps the server's programs here, by version, off the PATH."""


def _programs() -> Path:
    for folder in sorted(DEBIAN.glob("*/bin"), reverse=True):
        if (folder / "initdb").is_file():
            return folder
    found = shutil.which("initdb")
    if found is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt install postgresql)")
    return Path(found).resolve().parent


def _user() -> str | None:
    """Whom to run the server as: it refuses root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user 'postgres' here")


@contextmanager
def server() -> Iterator[str]:
    """A running server; yields its address. A socket is all it listens on."""
    pytest.importorskip("psycopg", reason="PostgreSQL's driver psycopg is not installed")
    programs, user = _programs(), _user()
    # A socket's path may have some hundred characters: pytest's own folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    if user:
        shutil.chown(folder, user)

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, "-D", folder / "data", *arguments],
            user=user, cwd=folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program} failed"

    try:
        call("initdb", "--auth=trust", "--username=elicit", "--encoding=UTF8", "--no-sync")
        options = f"-c listen_addresses='' -k {folder} -c max_connections=40"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://elicit@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
