"""A private PostgreSQL server that can be restarted, if the machine has its programs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from llm_elicit.errors import InputError

DEBIAN = Path("/usr/lib/postgresql")
"""The server's programs in Debian, by version, which are not on the PATH."""


class PostgreSQL:
    """A server that runs while inside `with`. A socket is all it listens on.

    Raises:
        InputError: the server, its driver, or a user it may run as is missing.
    """

    def __init__(self) -> None:
        if find_spec("psycopg") is None:
            raise InputError("PostgreSQL's driver is not installed: pip install 'psycopg[binary]'")
        self._programs, self._user = _programs(), _user()

    def __enter__(self) -> Self:
        # The path of a socket is limited to about a hundred characters.
        self._folder = Path(tempfile.mkdtemp(prefix="pg"))
        if self._user:
            shutil.chown(self._folder, self._user)
        try:
            self._call("initdb", "--auth=trust", "--username=elicit", "--encoding=UTF8",
                       "--no-sync")  # fmt: skip
            self.start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    @property
    def address(self) -> str:
        """The value of a campaign's `journal`."""
        return f"postgresql://elicit@/postgres?host={self._folder}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = f"-c listen_addresses='' -k {self._folder} -c max_connections=40"
        self._call("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self, how: Literal["fast", "immediate"] = "immediate") -> None:
        """Stop the server and close its connections."""
        self._call("pg_ctl", "-w", "-m", how, "stop")

    def restart(self, how: Literal["fast", "immediate"] = "fast") -> None:
        """Restart the server; committed data is kept."""
        self.stop(how)
        self.start()

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, "-D", self._folder / "data", *arguments],
            user=self._user, cwd=self._folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed")

    def __exit__(self, *error: object) -> None:
        try:
            self.stop()
        except RuntimeError:
            pass  # a caller stopped it already
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def _programs() -> Path:
    """Return the folder of the server's programs."""
    for folder in sorted(DEBIAN.glob("*/bin"), reverse=True):
        if (folder / "initdb").is_file():
            return folder
    found = shutil.which("initdb")
    if found is None:
        raise InputError("PostgreSQL's server is not installed (Debian: apt install postgresql)")
    return Path(found).resolve().parent


def _user() -> str | None:
    """Return the user of the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise InputError(
            "PostgreSQL refuses to run as root, and there is no user 'postgres' here"
        ) from None
