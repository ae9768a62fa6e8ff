"""Many jobs side by side, each in a process of its own: here or on a cluster.

`run_jobs` runs fits, seeds, bootstraps and rows of benchmarks. It guarantees that **every job is
reported exactly once**, whatever happens to the others. A job whose process dies (the out-of-memory
killer, a crash) is run once more and then reported as failed; a job that raises an exception is
reported with it. Ctrl-C stops all jobs at once; what was reported before remains valid.

Every job gets a fresh Python interpreter with one numerical thread. The price is the time of the
imports, about two seconds with PyTorch; the gain is that memory is returned, that the peak of the
memory is the job's own, and that a crash harms no other job. `concurrent.futures` and `loky` share
one pool, which a dead worker breaks for all jobs. `pebble` keeps the others alive but, like every
`multiprocessing` spawn, imports the calling script in each child, so the command line's memory
would count as the job's.

A cluster is a `Dask distributed <https://distributed.dask.org>`_ scheduler. Unlike Ray it is pure
Python (1 MB; Ray's wheel has 79 MB) and needs no object store or daemons; it moves the jobs of a
lost worker to others, and its workers start under SSH, Slurm or Kubernetes.
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
_CONNECT_TIMEOUT = "15s"
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}


@dataclass(frozen=True)
class Workers:
    """Where jobs run.

    Attributes:
        count: jobs side by side on this machine; at least 1.
        cluster: address of a Dask scheduler, ``"tcp://host:8786"``; its workers are used then,
            each started in the repository's folder with ``--nthreads 1``, for one job at a time.
            Anyone who reaches the scheduler can run code on it: keep it in a trusted network.

    Raises:
        InputError: the count is less than 1.
    """

    count: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"workers = {self.count}; at least 1 is needed")


@dataclass(frozen=True)
class Outcome(Generic[Job, Result]):
    """The outcome of a job: its result, or the error that prevented it in one line."""

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
        KeyboardInterrupt: the user stopped it. Local jobs are killed; on a cluster the running
            ones end unreported.

    Examples:
        >>> import math
        >>> found = []
        >>> run_jobs(math.sqrt, [4.0, 9.0], on_result=lambda one: found.append(one.result))
        >>> found
        [2.0, 3.0]
    """
    workers = workers or Workers()
    payloads = [(job, _pickled(function, job)) for job in jobs]
    place = _local(workers.count) if workers.cluster is None else _dask(workers.cluster)
    with place as (submit, as_completed):
        waiting = {submit(payload): job for job, payload in payloads}
        for future in as_completed(waiting):
            result, error = _unpickled(future)
            on_result(Outcome(waiting[future], result, error))


def _pickled(function: Callable[[Job], Result], job: Job) -> bytes:
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    try:
        if inner.__module__ == "__main__":
            raise AttributeError("it is defined in the main script; move it to a module")
        return pickle.dumps((function, job))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(inner, "__qualname__", repr(inner))
        raise InputError(
            f"a job for {name} cannot be sent to another process: {_one_line(error)}"
        ) from error


def _as_completed(futures: Iterable[Future[bytes]]) -> Iterator[Future[bytes]]:
    """Yield futures as they end; wait in short intervals so that Ctrl-C takes effect at once."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        yield from done


def _unpickled(future: Any) -> tuple[Any, str | None]:
    """Return the result and the error; an exception here means that the cluster lost the job."""
    try:
        return pickle.loads(future.result())  # type: ignore[no-any-return]
    except Exception as error:
        return None, _one_line(error)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def _local(count: int) -> Iterator[Engine]:
    """Run jobs in threads that each wait for one child; the children end with the block."""
    children = _Children()
    with ThreadPoolExecutor(count) as threads:
        try:
            yield lambda payload: threads.submit(children.run, payload), _as_completed
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            children.kill()


@contextmanager
def _dask(address: str) -> Iterator[Engine]:
    """Run jobs on the workers of a Dask cluster, each in a child process of its worker."""
    try:
        dask = import_module("distributed")
    except ImportError as error:
        raise InputError(
            "a cluster needs Dask distributed: pip install -r benchmarks/requirements.txt"
        ) from error
    try:
        client = dask.Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)
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
    """Run a pickled job in a child process; return its pickled (result, error)."""
    return _Children().run(payload)


class _Children:
    """Child processes that are killed together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    def run(self, payload: bytes) -> bytes:
        """Run a pickled job; return its pickled (result, error). A dead child is replaced once."""
        why = ""
        for _ in range(_ATTEMPTS):
            packed, why = self._attempt(payload)
            if packed:
                return packed
            if self._over:
                break
        return pickle.dumps((None, why))

    def _attempt(self, payload: bytes) -> tuple[bytes, str]:
        """Return a child's answer, or nothing and how it died."""
        with tempfile.TemporaryFile() as errors, self._child(errors) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with suppress(BrokenPipeError):
                child.stdin.write(len(payload).to_bytes(8, "big") + payload)
                child.stdin.flush()
            packed = child.stdout.read()
            # The child's input stays open until here, so that the child ends if this process dies.
            with suppress(BrokenPipeError):
                child.stdin.close()
            if child.wait() == 0 and packed:
                return packed, ""
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            return b"", f"{_cause_of_death(child.returncode)}{': ' + lines[-1] if lines else ''}"

    @contextmanager
    def _child(self, errors: Any) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._lock:
            child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                # Ctrl-C reaches only the parent, which ends its children.
                start_new_session=True,
            )
            self._running.add(child)
        if self._over:
            child.kill()
        try:
            with child:
                yield child
        finally:
            with self._lock:
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
    """In the child: read a job, answer, end. End at once if the parent dies."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the job's output must not mix with the answer
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
