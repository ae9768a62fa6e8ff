"""Runs of a folder whose service is gone, which another one may take over.

A run is taken over if a service began it, it has not ended, and no sign of life came for `SILENCE`
seconds. If its journal is in its folder, the lock of the folder must be free, too: a process that
was only suspended holds it. The journal's database decides which of several services takes it over.
"""

from __future__ import annotations

from pathlib import Path

from llm_elicit.errors import ElicitError
from llm_elicit.orchestrator.journal import (
    AT_WORK,
    ENDED,
    JournalLocation,
    RunLock,
    read_control,
    take_over,
)
from llm_elicit.orchestrator.journal import FILE as JOURNAL
from llm_elicit.pipeline.run_folder import CAMPAIGN, Run, find

_RARELY = 10
"""A run on a server that nobody can take over is looked at again so many looks later."""

Key = tuple[int, ...]
"""What changes with the journal of a run."""


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of the runs in a folder."""
    return sorted(path.parent for path in folder.glob(f"*/{CAMPAIGN}"))


class Recovery:
    """Finds and takes over the runs of a folder whose service is gone.

    Its methods block; call them in a thread, one at a time.

    Args:
        folder: the folder of the runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._campaigns: dict[Path, tuple[int, JournalLocation]] = {}
        self._left: dict[Path, Key] = {}
        self._order: dict[Path, tuple[bool, float]] = {}
        self._looks = 0

    def take(self, known: set[str]) -> tuple[list[Run], bool]:
        """Take over what can be taken over; the caller should begin to work on it at once.

        Args:
            known: names of runs that are left out.

        Returns:
            The runs, those that were at work first and then in the order in which they waited, and
            whether there are others whose service may be gone.
        """
        taken, unsure = [], False
        self._looks += 1
        for path in run_folders(self._folder):
            if path.name in known:
                continue
            try:
                silent = self._is_silent(path)
                # A run that cannot be opened must not look as if someone worked on it.
                run = Run.open(path) if silent else None
            except (ElicitError, OSError):
                continue  # it is being written or deleted, or cannot be read: it is left alone
            if run is not None and self._take(run.location):
                taken.append(run)
            elif silent is not False:
                unsure = True
        return sorted(taken, key=lambda run: self._order[run.folder]), unsure

    def _is_silent(self, path: Path) -> bool | None:
        """Whether a run's service gives no sign of life; None if it does, and may soon not."""
        location = self._location(path)
        key = self._key(location)
        if self._left.get(path) == key:
            return False
        control = read_control(location)
        if control is None or control.owner != "service" or control.state in ENDED:
            self._left[path] = key
            return False
        self._order[path] = control.state != "running", control.changed
        return None if control.at_work else True

    def _take(self, location: JournalLocation) -> bool:
        """Take a run over, unless a process holds its lock or another one is faster."""
        try:
            with RunLock(location.folder, shared=location.shared, name=AT_WORK):
                return take_over(location)
        except ElicitError:
            return False

    def _location(self, path: Path) -> JournalLocation:
        """Return where a run's journal is; its campaign is read again once it was changed."""
        changed = (path / CAMPAIGN).stat().st_mtime_ns
        kept = self._campaigns.get(path)
        if kept is None or kept[0] != changed:
            kept = changed, JournalLocation(path, find(path)[0].journal)
            self._campaigns[path] = kept
        return kept[1]

    def _key(self, location: JournalLocation) -> Key:
        """Return what changes with every write to a journal in its folder, else now and then."""
        if location.shared:
            return (self._looks // _RARELY,)
        files = [location.folder / name for name in (JOURNAL, f"{JOURNAL}-wal")]
        # Reading a journal makes an empty log of writes beside it.
        found = [file.stat() for file in files if file.is_file()]
        return tuple(stat.st_mtime_ns for stat in found if stat.st_size)
