"""Faults of the client: processes killed or stopped, full disks, and a restarted database."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults.postgres import PostgreSQL
from benchmarks.faults.result_row import ResultRow, Size, add, completed, faults_of
from benchmarks.faults.trial import Ended, Trial
from benchmarks.provider_process import ProviderProcess
from llm_elicit.orchestrator.cache import FILE as CACHE
from llm_elicit.orchestrator.journal.connection import RESERVE_BYTES as RESERVE

LATENCY = 0.05
_SLOTS = 16

Row = Callable[[Size, Path], ResultRow]


def killed(size: Size, folder: Path) -> ResultRow:
    """SIGKILL at random moments, also before the journal exists."""
    rng = random.Random(1)
    with ProviderProcess(LATENCY) as server:
        trial = Trial(folder, server.url, 2 * _SLOTS * size.kills, _SLOTS)
        began, under_way = time.monotonic(), 0
        for _ in range(size.kills):
            wanted = server.counts().requests + rng.randint(0, 3 * _SLOTS)
            client = trial.start()
            client.until(lambda: server.counts().requests >= wanted)  # noqa: B023
            time.sleep(rng.uniform(0.0, LATENCY))
            client.signal(signal.SIGKILL)
            client.wait()
            under_way += trial.totals.in_flight
        ended = trial.run()
        time.sleep(2 * LATENCY)
        counts, seconds = server.counts(), time.monotonic() - began
    unmet = [*faults_of(trial, counts, ended, under_way), *completed(trial, ended)]
    must = "complete; what was under way may be paid twice"
    return ResultRow(
        "SIGKILL", f"{size.kills} kills", trial.questions, counts, seconds, must, unmet,
        bound=under_way,
    )  # fmt: skip


def terminated(size: Size, folder: Path) -> ResultRow:
    """SIGTERM: requests in flight are waited for, and their answers kept."""
    rng, said = random.Random(2), []
    with ProviderProcess(LATENCY) as server:
        trial = Trial(folder, server.url, 4 * _SLOTS * size.signals, _SLOTS)
        began = time.monotonic()
        for number in range(size.signals):
            wanted = server.counts().requests + rng.randint(1, 3 * _SLOTS)
            client = trial.start()
            client.until(lambda: server.counts().requests >= wanted)  # noqa: B023
            client.signal((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[number % 3])
            said.append(client.wait(60.0))
        ended = trial.run()
        counts, seconds = server.counts(), time.monotonic() - began
    unmet = [*faults_of(trial, counts, ended), *completed(trial, ended)]
    silent = [each for each in said if "kept" not in each.said or not each.clean]
    if silent:
        unmet.append(f"{len(silent)} ended without a line that says what is kept: "
                     f"{silent[0].code} {silent[0].line[:100]}")  # fmt: skip
    return ResultRow(
        "SIGTERM", f"{size.signals} of SIGTERM, SIGINT, SIGHUP", trial.questions, counts, seconds,
        "drained, and said so", unmet,
    )  # fmt: skip


_FULL = """
set -u
mount -t tmpfs -o size="$1"k none "$2"
shift 2
"$@" 2> "$FULL_SAID"; echo $? > "$FULL_CODE"
mount -o remount,size=1g "$FULL_DISK"
"$@"; code=$?
cp -r "$FULL_DISK" "$FULL_KEPT"
exit $code
"""
"""With its own namespaces a process can mount a small disk without privileges. The disk is filled
and enlarged, and the same command runs again."""

_LIMITED = """
set -u
blocks="$1"
shift 2
(ulimit -f "$blocks"; exec "$@" 2> "$FULL_SAID"); echo $? > "$FULL_CODE"
exec "$@"
"""
"""Without namespaces: the size of files is limited."""


def own_namespaces() -> bool:
    """Return whether a process can have its own namespaces here."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(
            ["unshare", "-Urm", "true"], check=False, capture_output=True
        ).returncode
    )


def full_disk(size: Size, folder: Path) -> ResultRow:
    """A disk with a few hundred kilobytes beyond a run's reserve, which is enlarged afterwards.

    A tmpfs in a user's own namespace where the system has them; elsewhere a limit on the size of
    files, which the system refuses in another way.
    """
    rng, counts, unmet, began = random.Random(3), [], list[str](), time.monotonic()
    questions, mounted, filled = 400, own_namespaces(), 0
    for number in range(size.points):
        with ProviderProcess(LATENCY / 5) as server:
            # From too small for the first pages of the journal to almost enough for the run.
            kilobytes = RESERVE // 1024 + 64 + round(1_300 * (number + rng.random()) / size.points)
            trial = Trial(folder / str(number), server.url, questions, _SLOTS)
            ended, first, middle = _filled(trial, kilobytes, mounted)
            seen = server.counts()
        counts.append(seen)
        filled += middle != 0
        unmet += [f"{kilobytes} kB: {fault}" for fault in (
            *faults_of(trial, seen, ended), *completed(trial, ended), *_clear(first, middle),
        )]  # fmt: skip
    how = "small disks" if mounted else "limits on the size of files"
    injected = f"{size.points} {how}, {filled} full"
    return ResultRow("disk-full", injected, questions * size.points, add(counts),
                time.monotonic() - began, "all that was paid is kept", unmet)  # fmt: skip


def _filled(trial: Trial, kilobytes: int, mounted: bool) -> tuple[Ended, str, int]:
    """Return how the second run ended, and the message and exit code of the first."""
    runs = trial.path.parent / "runs"
    runs.mkdir()
    said, code = trial.folder / "said", trial.folder / "code"
    command = ["env", f"FULL_SAID={said}", f"FULL_CODE={code}", f"FULL_DISK={runs}",
               f"FULL_KEPT={trial.folder / 'kept'}"]  # fmt: skip
    command += ["unshare", "-Urm"] if mounted else []
    script = _FULL if mounted else _LIMITED
    command += ["sh", "-c", script, "sh", str(kilobytes), str(runs), *trial.command]
    ended = trial.start(command).wait()
    if mounted and (trial.folder / "kept").is_dir():
        runs.rmdir()
        (trial.folder / "kept").rename(runs)
    return ended, said.read_text(), int(code.read_text())


def _clear(said: str, code: int) -> list[str]:
    """Return what is wrong with the message of a process whose disk was full."""
    if "Traceback" in said:
        return [f"traceback: {said.strip().splitlines()[-1][:160]}"]
    return [f"exit code {code} without a line"] if code and "error:" not in said else []


def restarted(workers: int) -> Row:
    """Return the row for restarts of PostgreSQL with this number of workers."""

    def row(size: Size, folder: Path) -> ResultRow:
        latency, began = 0.2, time.monotonic()
        with PostgreSQL() as postgres, ProviderProcess(latency) as server:
            slots = _SLOTS // workers
            # Half a second of questions for each restart, and as many again.
            questions = 2 * round(0.5 * size.restarts * _SLOTS / latency)
            trial = Trial(folder, server.url, questions, slots, rest={"journal": postgres.address})
            clients = []
            for number in range(workers):
                clients.append(trial.start())
                # A run that is opened while the server is down ends with one line; nothing is lost.
                clients[-1].until(lambda: trial.workers > number)  # noqa: B023
            done = 0
            for _ in range(size.restarts):
                wanted = server.counts().requests + _SLOTS
                clients[0].until(lambda: server.counts().requests >= wanted)  # noqa: B023
                if not any(client.alive() for client in clients):
                    break
                postgres.restart()
                done += 1
            ends = [client.wait(120.0) for client in clients]
            # A worker that gave up is started again, as a user would do.
            again = trial.run(120.0) if trial.totals.done < questions else ends[0]
            counts = server.counts()
            unmet = [*faults_of(trial, counts, again), *completed(trial, again)]
            unmet += [f"a worker ended: {end.line[:160]}" for end in ends if end.code]
        if done < size.restarts:
            unmet.append(f"only {done} restarts")
        return ResultRow(
            f"postgres-{workers}", f"{done} restarts, {workers} at work", questions, counts,
            time.monotonic() - began, "goes on, nothing paid twice", unmet,
        )  # fmt: skip

    return row


def stopped(size: Size, folder: Path) -> ResultRow:
    """SIGSTOP of one of two workers for longer than its lease, then SIGCONT."""
    began = time.monotonic()
    with PostgreSQL() as postgres, ProviderProcess(LATENCY) as server:
        rest, patience = {"journal": postgres.address}, {"lease": size.lease}
        questions = round(size.lease * 3 * _SLOTS / LATENCY / 4) * 2
        trial = Trial(folder, server.url, questions, _SLOTS, rest=rest, patience=patience)
        sleeper, other = trial.start(), trial.start()
        sleeper.until(lambda: server.counts().requests >= 4 * _SLOTS)
        sleeper.signal(signal.SIGSTOP)
        time.sleep(4 * LATENCY)
        under_way = trial.totals.in_flight
        time.sleep(2.0 * size.lease)
        sleeper.signal(signal.SIGCONT)
        ends = [client.wait(120.0) for client in (other, sleeper)]
        again = trial.run(120.0)
        counts = server.counts()
        # The lease of the stopped worker expired, so the other asks its questions again.
        bound = min(under_way, _SLOTS)
        unmet = [*faults_of(trial, counts, again, bound), *completed(trial, again)]
        unmet += [f"not clear: {end.line}" for end in ends if not end.clean]
    return ResultRow("SIGSTOP", f"one of two workers, {2 * size.lease:.0f} s, a lease of "
                f"{size.lease:.0f} s", questions, counts, time.monotonic() - began,
                "complete; what was under way may be paid twice", unmet, bound=bound)  # fmt: skip


def corrupted_cache(size: Size, folder: Path) -> ResultRow:
    """A cache that cannot be read: the run continues without it."""
    began, counts, unmet = time.monotonic(), [], []
    questions = min(size.questions, 400)
    for number, damage in enumerate((_garbage, _cut, _flipped, _a_folder, _under_way)):
        with ProviderProcess(LATENCY / 5) as server:
            trial = Trial(folder / str(number), server.url, questions, _SLOTS)
            cache = trial.path.parent / "runs" / CACHE
            if damage in (_cut, _flipped):
                _warm(trial, cache)
            if damage is _under_way:
                client = trial.start()
                client.until(lambda: server.counts().requests >= questions // 3)
                _flipped(cache)
                ended = client.wait()
            else:
                damage(cache)
                ended = trial.run()
            seen = server.counts()
        counts.append(seen)
        found = [*faults_of(trial, seen, ended), *completed(trial, ended)]
        unmet += [f"{damage.__name__.strip('_')}: {fault}" for fault in found]
    return ResultRow("cache", f"{len(counts)} damaged caches", questions * len(counts), add(counts),
                time.monotonic() - began, "complete without it", unmet)  # fmt: skip


def _warm(trial: Trial, cache: Path) -> None:
    """Fill a cache with another campaign's answers."""
    with ProviderProcess(0.0) as server:
        other = Trial(trial.folder / "other", server.url, 200, _SLOTS)
        other.run()
        cache.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(other.folder / "runs" / CACHE, cache)


def _garbage(cache: Path) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_bytes(b"no database " * 500)


def _cut(cache: Path) -> None:
    data = cache.read_bytes()
    cache.write_bytes(data[: len(data) // 2])


def _flipped(cache: Path) -> None:
    """Change ten bytes of every page."""
    data, rng = bytearray(cache.read_bytes()), random.Random(4)
    for page in range(0, len(data), 4096):
        for _ in range(10):
            at = min(page + rng.randrange(4096), len(data) - 1)
            data[at] ^= 0xFF
    with cache.open("r+b") as file:
        file.write(data)


def _a_folder(cache: Path) -> None:
    cache.mkdir(parents=True)


def _under_way(cache: Path) -> None:
    """Damage the cache during the run."""


PROCESS_ROWS: dict[str, Row] = {
    "SIGKILL": killed,
    "SIGTERM": terminated,
    "SIGSTOP": stopped,
    "disk-full": full_disk,
    "postgres-1": restarted(1),
    "postgres-2": restarted(2),
    "cache": corrupted_cache,
}
