"""Many jobs side by side, each in a process of its own: here or on a cluster.

One door, `run_jobs`, for whatever is done many times over: fits of many models, seeds, bootstraps,
benchmark rows. What it guarantees: **every job is told of exactly once**, whatever becomes of the
others. A job whose process dies (the out-of-memory killer, a crash) is tried once more and
then reported as failed; a job that raises is reported with its error. Ctrl-C stops
everything at once; what was reported before is the caller's to keep.

Every job gets a fresh Python interpreter with one numerical thread. That costs the imports (about
two seconds with PyTorch) and buys: memory that is given back, a peak that belongs to the job, and
no damage from a crash. `concurrent.futures` and `loky` share one pool, which a dead worker
breaks for all; `pebble` keeps the others alive, but as every `multiprocessing` spawn it
imports the calling script again in each child, so the whole command line would count
into each job's memory.

A cluster is a `Dask distributed <https://distributed.dask.org>`_ scheduler, with the ``cluster``
extra. It was chosen over Ray: pure Python and about 1 MB where Ray's wheel has 79 MB, an object
store and daemons of its own; a scheduler that gives a lost worker's jobs to the others without
being asked; and workers that start under SSH, Slurm or Kubernetes by its sister packages.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeVar

from llm_elicit.errors import InputError

Job = TypeVar("Job")
Result = TypeVar("Result")
# How to submit a packed job, and how to wait for the futures that gives.
Engine = tuple[Callable[[bytes], Any], Callable[[Iterable[Any]], Iterable[Any]]]
_ATTEMPTS = 2
_PATIENCE = "15s"
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@dataclass(frozen=True)
class Workers:
    """Where jobs run.

    Attributes:
        count: jobs side by side on this machine; at least 1.
        cluster: address of a Dask scheduler, ``"tcp://host:8786"``; its workers are used then,
            each started with ``--nthreads 1`` for one job at a time and with this package
            installed. Whoever reaches a scheduler can run code on it: keep it in a trusted network.

    Raises:
        InputError: the count is less than 1.
    """

    count: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"workers = {self.count}; at least one process must work")


@dataclass(frozen=True)
class Outcome(Generic[Job, Result]):
    """What became of a job: its result, or one line that says why there is none."""

    job: Job
    result: Result | None = None
    error: str | None = None


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    workers: Workers | None = None,
    on_result: Callable[[Outcome[Job, Result]], None],
) -> None:
    """Call `function(job)` for every job, each in a process of its own.

    Args:
        function: importable by name; not a lambda, not from `__main__`.
        jobs: picklable, as are the results.
        workers: one local process by default.
        on_result: called in this thread once for every job, in the order they end.

    Raises:
        InputError: the function cannot be imported elsewhere, a job cannot be pickled, or the
            cluster is not there.
        KeyboardInterrupt: the user stopped it. Local jobs are killed; on a cluster those under way
            run to their end unheard.

    Example:
        >>> import math
        >>> found = []
        >>> run_jobs(math.sqrt, [4.0, 9.0], on_result=lambda one: found.append(one.result))
        >>> found
        [2.0, 3.0]
    """
    workers = workers or Workers()
    payloads = [(job, _packed(function, job)) for job in jobs]
    place = _local(workers.count) if workers.cluster is None else _dask(workers.cluster)
    with place as (submit, in_order_of_end):
        waiting = {submit(payload): job for job, payload in payloads}
        for future in in_order_of_end(waiting):
            result, error = _unpacked(future)
            on_result(Outcome(waiting[future], result, error))


def _packed(function: Callable[[Job], Result], job: Job) -> bytes:
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    try:
        if inner.__module__ == "__main__":
            raise AttributeError("it lives in the script that runs; move it to a module")
        return pickle.dumps((function, job))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(inner, "__qualname__", repr(inner))
        raise InputError(
            f"a job for {name} cannot be sent to another process: {_one_line(error)}"
        ) from error


def _as_they_end(futures: Iterable[Future[bytes]]) -> Iterator[Future[bytes]]:
    """Wait in short turns, so that Ctrl-C is heard at once."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        yield from done


def _unpacked(future: Any) -> tuple[Any, str | None]:
    """Result and error; an exception here is the cluster's, which gave the job up."""
    try:
        return pickle.loads(future.result())  # type: ignore[no-any-return]
    except Exception as error:
        return None, _one_line(error)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def _local(count: int) -> Iterator[Engine]:
    """Threads that each wait for one child; whatever ends the block ends the children."""
    children = _Children()
    with ThreadPoolExecutor(count) as threads:
        try:
            yield lambda payload: threads.submit(children.run, payload), _as_they_end
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            children.kill()


@contextmanager
def _dask(address: str) -> Iterator[Engine]:
    """The workers of a Dask cluster, of which each starts a child for each job."""
    try:
        dask = import_module("distributed")
    except ImportError as error:
        raise InputError(
            "a cluster needs Dask distributed: pip install 'llm-elicit[cluster]'"
        ) from error
    try:
        client = dask.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {_one_line(error)}") from error
    futures: list[Any] = []

    def submit(payload: bytes) -> Any:
        futures.append(client.submit(run_in_child, payload, pure=False))
        return futures[-1]

    try:
        yield submit, partial(dask.as_completed, loop=client.loop)
    finally:
        with suppress(Exception):
            client.cancel(futures)
        client.close()


def run_in_child(payload: bytes) -> bytes:
    """A packed job's packed (result, error), worked out in a child process of this one."""
    return _Children().run(payload)


class _Children:
    """Child processes, to be killed together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    def run(self, payload: bytes) -> bytes:
        """A packed job's packed (result, error); a child that dies is replaced once."""
        why = ""
        for _ in range(_ATTEMPTS):
            packed, why = self._attempt(payload)
            if packed:
                return packed
            if self._over:
                break
        return pickle.dumps((None, why))

    def _attempt(self, payload: bytes) -> tuple[bytes, str]:
        """What one child answers, or nothing and how it died."""
        with tempfile.TemporaryFile() as said, self._child(said) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with suppress(BrokenPipeError):
                child.stdin.write(len(payload).to_bytes(8, "big") + payload)
                child.stdin.flush()
            packed = child.stdout.read()
            # The child's input stays open until here: when this process dies, the child sees it.
            with suppress(BrokenPipeError):
                child.stdin.close()
            if child.wait() == 0 and packed:
                return packed, ""
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            return b"", f"{_cause_of_death(child.returncode)}{': ' + lines[-1] if lines else ''}"

    @contextmanager
    def _child(self, said: Any) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._lock:
            child = subprocess.Popen(
                [sys.executable, "-m", "llm_elicit._util.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                # Ctrl-C is for the parent, which then ends its children.
                start_new_session=True,
            )
            self._running.add(child)
        if self._over:
            child.kill()
        try:
            with child:
                yield child
        finally:
            self._running.discard(child)

    def kill(self) -> None:
        """End all children, and those that a thread is about to start."""
        self._over = True
        with self._lock:
            for child in self._running:
                child.kill()


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"the process exited with code {code}"
    name = signal.Signals(-code).name
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"the process was killed by {name}{hint}"


def _serve() -> None:
    """In the child: read a job, answer, end. End at once if the parent goes away."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the job prints must not mix with the answer
    size = int.from_bytes(sys.stdin.buffer.read(8), "big")
    payload = sys.stdin.buffer.read(size)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result, error = None, None
    try:
        function, job = pickle.loads(payload)
        result = function(job)
        answer = pickle.dumps((result, error))
    except Exception as problem:
        answer = pickle.dumps((None, _one_line(problem)))
    channel.write(answer)
    channel.flush()
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read(1)
    os._exit(1)


if __name__ == "__main__":
    _serve()
