"""Every job is reported exactly once, if its process, a cluster's worker or this process dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.workers import Workers, run_jobs
from llm_elicit.errors import InputError

pytestmark = pytest.mark.usefixtures("fresh_processes_of_module")

# Jobs: importable by the children, which know this folder.


def square(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is\nnegative")
    return number**2


def die_once(folder: Path, number: int) -> int:
    """Square the number; number 3 is killed at its first attempt."""
    marker = folder / str(number)
    if number == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def meet(folder: Path, number: int) -> int:
    """Square the number once another job is at work as well."""
    (folder / str(number)).touch()
    wait_for(lambda: len(list(folder.iterdir())) == 2)
    return number**2


def note_and_stay_once(folder: Path, number: int) -> int:
    """Leave a file that says who works on the number; its first attempt at 0 takes for ever."""
    first = not list(folder.glob(f"{number}-*"))
    (folder / f"{number}-{os.getpid()}-{os.getppid()}").touch()
    if number == 0 and first:
        time.sleep(600)
    return number**2


def end_first(folder: Path, number: int) -> int:
    """Number 0 ends once all others have begun, which take long."""
    (folder / str(number)).touch()
    if number == 0:
        wait_for(lambda: len(list(folder.iterdir())) == 4)
    else:
        time.sleep(600)
    return number


def speak(number: int) -> int:
    sys.stdout.write("a job may print\n")
    sys.stderr.write("or warn\n")
    return number


def threads(_: int) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def outcomes(function, jobs, workers=None):
    found = []
    run_jobs(function, jobs, workers=workers, on_result=found.append)
    return {one.job: (one.result, one.error) for one in found}, len(found)


def wait_for(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return value


@pytest.mark.parametrize("count", [1, 2])
def test_every_job_is_told_of_once_with_its_result_or_its_error(count):
    found, calls = outcomes(square, [1, -2, 3], Workers(count))
    assert calls == 3
    assert found == {1: (1, None), 3: (9, None), -2: (None, "ValueError: -2 is negative")}


def test_a_killed_process_is_replaced_once_and_harms_no_other(tmp_path):
    found, calls = outcomes(partial(die_once, tmp_path), range(5), Workers(2))
    assert calls == 5
    assert found == {number: (number**2, None) for number in range(5)}
    assert (tmp_path / "3").exists()


def test_a_job_that_kills_its_process_again_is_reported_as_failed():
    found, _ = outcomes(die, [7])
    result, error = found[7]
    assert result is None
    assert "SIGKILL" in error


def test_two_local_workers_work_side_by_side(tmp_path):
    found, _ = outcomes(partial(meet, tmp_path), [1, 2], Workers(2))
    assert found == {1: (1, None), 2: (4, None)}


def test_what_a_job_prints_does_not_mix_with_its_answer():
    assert outcomes(speak, [4])[0] == {4: (4, None)}


def test_a_job_has_one_numerical_thread():
    assert outcomes(threads, [0])[0] == {0: ("1", None)}


def test_a_function_that_cannot_be_imported_is_refused_in_one_line(monkeypatch):
    with pytest.raises(InputError, match=r"lambda") as caught:
        run_jobs(lambda x: x, [1], on_result=print)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(square, "__module__", "__main__")
    with pytest.raises(InputError, match="move it to a module"):
        run_jobs(partial(square), [1], on_result=print)


def test_an_unpicklable_job_is_refused_before_any_starts():
    with pytest.raises(InputError, match="square"):
        run_jobs(square, [threading.Lock()], on_result=print)


def test_no_workers_are_refused():
    with pytest.raises(InputError, match="at least 1"):
        Workers(0)


CALLER = """
import sys
from functools import partial
from pathlib import Path
from benchmarks.workers import Workers, run_jobs
from test_workers import note_and_wait_long
run_jobs(partial(note_and_wait_long, Path(sys.argv[1])), [1, 2, 3],
         workers=Workers(2), on_result=print)
"""


def note_and_wait_long(folder: Path, number: int) -> int:
    (folder / f"{number}-{os.getpid()}-{os.getppid()}").touch()
    time.sleep(600)
    return number


@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_the_caller(tmp_path, signal_sent):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, tmp_path], env=environment, stderr=subprocess.PIPE
    )
    notes = wait_for(lambda: len(found := list(tmp_path.iterdir())) == 2 and found)
    children = [int(note.name.split("-")[1]) for note in notes]
    assert all(psutil.pid_exists(child) for child in children)
    caller.send_signal(signal_sent)
    said = caller.communicate(timeout=120)[1].decode()
    wait_for(lambda: not any(psutil.pid_exists(child) for child in children))
    assert len(list(tmp_path.iterdir())) == 2, "the third job must not have started"
    if signal_sent == signal.SIGINT:
        assert said.strip().endswith("KeyboardInterrupt")


def test_a_child_that_ends_while_all_are_killed_does_no_harm(tmp_path, monkeypatch):
    """Each kill takes so long that the thread of the killed child has gone on."""
    kill = subprocess.Popen.kill

    def slow(child):
        kill(child)
        time.sleep(0.3)

    monkeypatch.setattr(subprocess.Popen, "kill", slow)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(partial(end_first, tmp_path), range(4), workers=Workers(4), on_result=interrupt)


@pytest.fixture(scope="module")
def cluster():
    before = dict(os.environ)
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
    ) as started:
        yield started
    # It leaves its workers' variables here: threads, and a seed of hashes.
    os.environ.clear()
    os.environ.update(before)


def test_a_cluster_survives_a_killed_worker(cluster, tmp_path):
    """Two workers, one killed in the middle of a job: all results still come, each once."""
    found = []
    thread = threading.Thread(
        target=run_jobs,
        args=(partial(note_and_stay_once, tmp_path), range(6)),
        kwargs={
            "workers": Workers(cluster=cluster.scheduler_address),
            "on_result": found.append,
        },
    )
    thread.start()
    (first,) = wait_for(lambda: list(tmp_path.glob("0-*")))
    os.kill(int(first.name.split("-")[2]), signal.SIGKILL)
    thread.join(timeout=200)
    assert sorted((one.job, one.result, one.error) for one in found) == [
        (k, k**2, None) for k in range(6)
    ]
    started = [int(note.name.split("-")[0]) for note in tmp_path.iterdir()]
    assert started.count(0) == 2, "the job of the killed worker is done again"


def test_an_error_on_a_cluster_is_the_jobs_own(cluster):
    found, calls = outcomes(square, [2, -2], Workers(cluster=cluster.scheduler_address))
    assert calls == 2
    assert found == {2: (4, None), -2: (None, "ValueError: -2 is negative")}


def test_a_cluster_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("benchmarks.workers._CONNECT_TIMEOUT", "1s")
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        run_jobs(square, [1], workers=Workers(cluster="tcp://127.0.0.1:9"), on_result=print)
