"""The snapshots of all runs in a folder, for lists: neither spaces nor plans nor beliefs are read.

A run at which no process is at work stays as it is until one of its files changes. Its snapshot is
kept in memory, and in a file for the next start.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection
from pathlib import Path

from llm_elicit.config.base_model import StrictModel
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import ElicitError, InputError
from llm_elicit.orchestrator.journal import ENDED, Totals
from llm_elicit.orchestrator.journal import FILE as JOURNAL
from llm_elicit.pipeline.manifest import write_atomically
from llm_elicit.pipeline.recovery import run_folders
from llm_elicit.pipeline.run_folder import CAMPAIGN, REPORT, Run, find
from llm_elicit.pipeline.snapshot import RunSnapshot, read_snapshot

_LOG = f"{JOURNAL}-wal"
_FILES = (CAMPAIGN, REPORT, JOURNAL, _LOG)

_NONE = (0, 0, -1)
"""The state of a file that is not there."""

_SETTLED = 2.0
"""Seconds after which a change of a file is sure to have changed its time."""

_SETTLED_ELSEWHERE = 60.0
"""The same of a run whose journal is on a server: its start changes its campaign's file first."""

State = tuple[tuple[int, int, int], ...]
"""What changes with the files of a run."""


class _Entry(StrictModel):
    """A snapshot, and the state of the files that it was read from."""

    files: State
    run: RunSnapshot


class RunIndex:
    """The snapshots of the runs in a folder. Its methods block.

    Args:
        folder: the folder of the runs.
        kept: a folder for what is known of them; created if necessary.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder, self._kept = folder, kept
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def snapshots(self, left_out: Collection[str] = ()) -> list[RunSnapshot]:
        """Return what the runs do, or did last; one that cannot be read says why.

        Args:
            left_out: names of runs that are not looked at.
        """
        with self._lock:
            folders = [path for path in run_folders(self._folder) if path.name not in left_out]
            names = {path.name for path in folders}
            for name in self._entries.keys() - names - set(left_out):
                self._forget(name)  # it was deleted
            found = [self._snapshot(path) for path in folders]
        return [run for run in found if run is not None]

    def _snapshot(self, folder: Path) -> RunSnapshot | None:
        """Return the snapshot of one run; None if it was deleted, or is a grid of others."""
        files = _state(folder)
        entry = self._entries.get(folder.name) or self._stored(folder.name)
        if entry is not None and entry.files == files:
            self._entries[folder.name] = entry
            return entry.run
        try:
            campaign = find(folder)[0]
            if campaign.grid is not None:
                return None
            run = read_snapshot(folder, campaign, lambda: _empty(folder, campaign))
        except (ElicitError, OSError) as error:
            if not (folder / CAMPAIGN).is_file():
                return None
            run = RunSnapshot.unreadable(folder, str(error))
            if not getattr(error, "passes", False):
                self._entries[folder.name] = _Entry(files=files, run=run)
            return run
        if _stays(run, files, shared=campaign.journal is not None):
            self._keep(_Entry(files=files, run=run))
        return run

    def _stored(self, name: str) -> _Entry | None:
        """Return what an earlier process knew of a run; None for nothing that can be read."""
        try:
            return _Entry.model_validate_json(self._path(name).read_bytes())
        except (OSError, ValueError):
            return None

    def _keep(self, entry: _Entry) -> None:
        self._entries[entry.run.name] = entry
        with contextlib.suppress(InputError, OSError):  # it is only faster
            self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(entry.run.name), entry.model_dump_json())

    def _forget(self, name: str) -> None:
        del self._entries[name]
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._kept / f"{name}.json"


def _empty(folder: Path, campaign: Campaign) -> dict[str, Totals]:
    """Return the counts before the first question; only direct questions depend on the space."""
    if campaign.direct is not None:
        return Run.open(folder).empty_totals
    total = Totals(total=campaign.design.questions)
    return {judge.name: total for judge in campaign.judges}


def _state(folder: Path) -> State:
    return tuple(map(_file_state, (folder / name for name in _FILES)))


def _file_state(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except OSError:
        return _NONE
    # Reading a journal makes an empty log of writes beside it.
    if path.name == _LOG and not stat.st_size:
        return _NONE
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


def _stays(run: RunSnapshot, files: State, *, shared: bool) -> bool:
    """Whether a snapshot holds until one of the files changes."""
    settled = _SETTLED_ELSEWHERE if shared else _SETTLED
    changed = max(max(stat[:2]) for stat in files) / 1e9
    ended = run.state in ENDED if shared else run.state in (*ENDED, "interrupted")
    return ended and time.time() - changed > settled
