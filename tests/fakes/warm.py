"""Processes of this package, forked from one that has imported it.

A fresh Python takes one to four seconds for the imports of a command, a service or a stage, and the
tests start some two hundred, the workers of xdist among them. What is forked here is a process like
any other, with a pid, streams, an environment and a death of its own, and a child of who started
it; it only finds its modules imported. Commands that are not of `MODULES`, or whose environment a
fresh Python reads otherwise, start as ever, and so does everything in a test with the fixture
`fresh_processes`.

A process asks its nursery, a child, to fork. The nursery forks twice, so that the new process
becomes a child of the nearest ancestor that adopts orphans: the one that asked. Each new process
has a nursery of its own, forked from it before it runs, since it may have threads later.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from fakes.fits import fit_quickly, report_quickly

MODULES = (
    "anyio.to_process",
    "benchmarks",
    "benchmarks.asking.client",
    "benchmarks.band_stability",
    "benchmarks.faults.trial",
    "llm_elicit",
    "llm_elicit.pipeline.stage_process",
    "mkdocs",
)
# As execnet starts a worker of xdist.
_WORKER = "import sys;exec(eval(sys.stdin.readline()))"
# What these start is a process of its own that starts no others.
_CHILDLESS = ("anyio.to_process", "llm_elicit.pipeline.stage_process")
# Read by Python, by a library at its import, or by the loader.
_READ_AT_START = (
    "PYTHON", "MPL", "LANG", "LC_", "TZ", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "TORCH",
    "NO_COLOR", "FORCE_COLOR", "HF_", "XDG_", "HOME",
)  # fmt: skip
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
# What these variables say where they are not set: a command in this process sets the last one.
_UNSET = {**_ONE_THREAD, "MPLBACKEND": "agg"}
_HARMLESS = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING")
# A process begins ignoring those of them that its parent ignores.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux
_NAME_PROCESS = 15  # PR_SET_NAME of Linux

# Set where a belief only has to be there: forks, and the forks of those, fit quickly.
QUICK_FITS = "TESTS_FIT_QUICKLY"

enabled = sys.platform == "linux"

_fresh = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_lock = threading.Lock()
_environment: dict[str, str] = {}


class _Nursery:
    """The nursery of the process `owner`: forks of that process have none yet."""

    owner = 0
    connection: socket.socket
    process: subprocess.Popen[Any]


_PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]


class WarmPopen(subprocess.Popen[Any]):
    """A process that runs a script of a test, a file or `-c`, in a fork."""


def install() -> None:
    """Let `subprocess` and what builds on it fork where a command is of `MODULES`."""
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _execute_child(  # noqa: PLR0917 - as `subprocess` has it
    popen: subprocess.Popen[Any], args: Any, executable: Any, preexec_fn: Any, close_fds: bool,
    pass_fds: Any, cwd: Any, env: Any, startupinfo: Any, creationflags: int, shell: bool,
    p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
    restore_signals: bool, gid: Any, gids: Any, uid: Any, umask: int, start_new_session: bool,
    process_group: int,
) -> None:  # fmt: skip
    """Fork where that is alike, and else do what `subprocess` does."""
    environment = dict(os.environ if env is None else env)
    special = preexec_fn or pass_fds or shell or gid or gids or uid or not close_fds
    if not (
        enabled
        and not (special or umask != -1 or process_group != -1)
        and isinstance(args, (list, tuple))
        and (executable or args[0]) == sys.executable
        and (isinstance(popen, WarmPopen) or _module_of(args) in MODULES or args[-1] == _WORKER)
        and _starts_alike(environment)
    ):
        _fresh(
            popen, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
            creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
            restore_signals, gid, gids, uid, umask, start_new_session, process_group,
        )  # fmt: skip
        return
    request = {
        "command": [os.fspath(word) for word in args[1:]],
        "folder": os.fspath(cwd or Path.cwd()),
        "environment": environment,
        "session": start_new_session,
        "ignored": [s for s in _ENDING_SIGNALS if signal.getsignal(s) == signal.SIG_IGN],
    }
    ends = [
        number if end == -1 else end for number, end in enumerate((p2cread, c2pwrite, errwrite))
    ]
    popen.pid = _fork(request, ends)
    popen._child_created = True  # type: ignore[attr-defined]
    popen._close_pipe_fds(  # type: ignore[attr-defined]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
    )


def _module_of(command: Any) -> str | None:
    words = [word for word in command[1:4] if word != "-u"]
    return words[1] if len(words) > 1 and words[0] == "-m" else None


def _starts_alike(environment: Mapping[str, str]) -> bool:
    """Whether Python and the libraries start in this environment as the nursery did."""
    mine = _environment or _own_environment()
    names = {*mine, *environment} - {*_HARMLESS}
    return all(
        mine.get(name, _UNSET.get(name)) == environment.get(name, _UNSET.get(name))
        for name in names
        if name.startswith(_READ_AT_START)
    )


def _own_environment() -> dict[str, str]:
    return {**os.environ, **_ONE_THREAD}


def _fork(request: dict[str, Any], streams: list[int]) -> int:
    """Return the pid of a new child of this process."""
    with _lock:
        if _Nursery.owner != os.getpid():
            _start()
        message = json.dumps(request).encode()
        # Only meanwhile: orphans of other programs are not to become zombies of this process.
        _adopt(True)
        try:
            socket.send_fds(_Nursery.connection, [len(message).to_bytes(8, "big")], streams)
            _Nursery.connection.sendall(message)
            return int.from_bytes(_exactly(_Nursery.connection, 8), "big")
        finally:
            _adopt(False)


def _adopt(orphans: bool) -> None:
    """Let orphans among the descendants become children of this process, or no longer."""
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, int(orphans), 0, 0, 0)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the nursery has ended")
        data += part
    return data


def _start() -> None:
    """Start the first nursery, in a fresh Python."""
    _Nursery.connection, theirs = socket.socketpair()
    _environment.update(_own_environment())
    begin = (
        f"import sys; sys.path[:1] = {_PATHS!r}; "
        f"from fakes import warm; warm.main({theirs.fileno()})"
    )
    _Nursery.process = subprocess.Popen(
        [sys.executable, "-c", begin],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment,
        start_new_session=True,
    )  # fmt: skip
    theirs.close()
    _Nursery.owner = os.getpid()


def _serve(connection: socket.socket) -> None:
    """Fork whenever asked, until who asks is gone."""
    while True:
        try:
            head, streams, _, _ = socket.recv_fds(connection, 8, 3)
            if not head:
                os._exit(0)
            head += _exactly(connection, 8 - len(head))
            request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        except (EOFError, OSError):
            os._exit(0)
        read, write = os.pipe()
        middle = os.fork()
        if not middle:
            child = os.fork()
            if not child:
                _run(request, streams)
            os.write(write, child.to_bytes(8, "big"))
            os._exit(0)
        os.waitpid(middle, 0)
        connection.sendall(os.read(read, 8))
        for end in (read, write, *streams):
            os.close(end)


def _run(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Become the process that was asked for."""
    status = 1
    try:
        # By numbers that none of the three overwrites.
        for number, end in enumerate([fcntl.fcntl(end, fcntl.F_DUPFD, 3) for end in streams]):
            os.dup2(end, number)
        os.closerange(3, 65_536)
        if request["session"]:
            os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in _ENDING_SIGNALS:
            ignored = number in request["ignored"]
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        if QUICK_FITS in os.environ:
            fit_quickly(pytest.MonkeyPatch())
            report_quickly(pytest.MonkeyPatch())
        words = request["command"]
        _open_streams(unbuffered="-u" in words[:1] or "PYTHONUNBUFFERED" in os.environ)
        words = words[words[:1] == ["-u"] :]
        if words[:1] != ["-m"] or words[1] not in _CHILDLESS:
            _fork_nursery()
        if words[:1] == ["-m"]:
            # Its command line is that of the nursery: the module is its name.
            name = words[1].rpartition(".")[2].encode()
            ctypes.CDLL(None).prctl(_NAME_PROCESS, name, 0, 0, 0)
        status = _execute(words)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _fork_nursery() -> None:
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        os.setsid()
        for number in range(3):
            os.close(number)
            os.open(os.devnull, os.O_RDWR)
        _serve(theirs)
    theirs.close()
    _Nursery.connection, _Nursery.owner = ours, os.getpid()


def _open_streams(*, unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        bare = unbuffered and number > 0
        raw = open(  # noqa: SIM115 - for the life of the process
            number, "wb" if number else "rb", 0 if bare else -1, closefd=False
        )
        stream = io.TextIOWrapper(
            raw, os.environ.get("PYTHONIOENCODING", old.encoding), old.errors, write_through=bare,
            line_buffering=number == 2 or os.isatty(number),
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _execute(words: list[str]) -> int:
    """Run a command as Python does; return the exit status."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    file = words[0] if words[0] not in ("-m", "-c") else None
    here = str(Path.cwd()) if words[0] == "-m" else ""
    first = str(Path(file).resolve().parent) if file else here
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[: len(_PATHS)] = [first, *filter(None, paths)]
    try:
        if words[0] == "-m":
            name = words[1]
            spec = importlib.util.find_spec(name)
            if spec and spec.submodule_search_locations:
                name = f"{name}.__main__"
                spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.loader is not None
            main.__dict__.update(__spec__=spec, __package__=name.rpartition(".")[0])
            main.__file__, arguments = spec.origin, words[2:]
            code = spec.loader.get_code(name)  # type: ignore[attr-defined]
            sys.argv = [str(spec.origin), *arguments]
        elif words[0] == "-c":
            code, sys.argv = compile(words[1], "<string>", "exec"), ["-c", *words[2:]]
        else:
            main.__file__ = words[0]
            code = compile(Path(words[0]).read_text(encoding="utf-8"), words[0], "exec")
            sys.argv = words
        exec(code, main.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, (int, type(None))):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if status < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def main(connection: int) -> None:
    """Be the first nursery: import this package, and fork whenever asked."""
    # What the package imports only when it first asks is half of a worker's collection, too.
    import anthropic  # noqa: F401
    import bpe_openai  # noqa: F401
    import genai_prices.data  # noqa: F401
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg  # noqa: F401
    import openai  # noqa: F401
    import pandas.io.formats.style  # noqa: F401
    import uvicorn.lifespan.on
    import uvicorn.loops.auto
    import uvicorn.protocols.http.auto  # noqa: F401

    import llm_elicit
    import llm_elicit.report.page

    for module in pkgutil.walk_packages(llm_elicit.__path__, "llm_elicit."):
        # A worker's pytest rewrites the assertions of its plug-ins when it imports them.
        if not module.name.endswith("__main__") and ".testing." not in module.name:
            importlib.import_module(module.name)
    templates = llm_elicit.report.page.template_environment()
    for name in templates.list_templates():
        templates.get_template(name)  # kept by the environment
    _environment.update(os.environ)
    install()
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=connection))
