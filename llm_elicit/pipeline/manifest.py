"""The manifest of a run: digests of what its stages read and wrote, in `manifest.json`.

A stage writes its entry last, so an entry means that its files are complete. Files without an
entry are accepted as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llm_elicit._util.files import unfinished
from llm_elicit.errors import InputError

FILE = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """The manifest's entry of a stage.

    Attributes:
        read: digests of its inputs, by name.
        written: digests of the files that it wrote, by path below the run's folder.
    """

    read: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)


class Manifest:
    """The manifest of a run's folder; a missing or damaged file has no entries.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> size = (folder / "a.txt").write_text("1")
        >>> Manifest(folder).record("count", {"seed": "1"}, [folder / "a.txt"])
        >>> Manifest(folder).changed("count")
        []
        >>> size = (folder / "a.txt").write_text("2")
        >>> Manifest(folder).changed("count")
        ['a.txt']
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def identity(self) -> dict[str, str]:
        """The identity that the run was started with (`identity_of`); empty if unknown."""
        return dict(self._read()["identity"])

    def record_identity(self, identity: Mapping[str, str]) -> None:
        """Record the identity that the run is started with."""
        self._write(self._read() | {"identity": dict(identity)})

    @property
    def log_odds(self) -> dict[str, str]:
        """Whether each judge gives log-odds or choices, in one line for each."""
        return dict(self._read().get("log_odds", {}))

    def record_answers(
        self, models: Mapping[str, Mapping[str, int]], lines: Mapping[str, str]
    ) -> None:
        """Record how many questions each model answered for each judge, and the line on log-odds.

        Judges without a line are left out of the latter.
        """
        answered = {name: dict(counts) for name, counts in models.items()}
        log_odds = {name: line for name, line in lines.items() if line}
        self._write(self._read() | {"models": answered, "log_odds": log_odds})

    def entry(self, stage: str) -> Entry | None:
        """Return the entry of a stage; None without one."""
        stored = self._read()["stages"].get(stage)
        return None if stored is None else Entry(**stored)

    def record(self, stage: str, read: Mapping[str, str], written: Iterable[Path]) -> None:
        """Record what a stage read and the files that it wrote, without those that do not exist.

        Raises:
            InputError: the folder cannot be written.
        """
        files = {
            path.relative_to(self._folder).as_posix(): digest_of_file(path)
            for path in written
            if path.is_file()
        }
        contents = self._read()
        entries = {**contents["stages"], stage: asdict(Entry(dict(read), files))}
        self._write(contents | {"stages": entries})

    def changed(self, stage: str) -> list[str]:
        """Return the files of a stage that are missing or were changed since."""
        written = (self.entry(stage) or Entry()).written.items()
        return [name for name, digest in written if not self._is(name, digest)]

    def stale(
        self,
        reads: Mapping[str, Mapping[str, str]],
        *,
        unknown: bool = False,
        ignoring: Collection[str] = (),
    ) -> set[str]:
        """Return the entries made from other inputs than the present, or with changed files.

        Args:
            reads: digests of the present inputs by the name of the entry.
            unknown: whether entries that were never recorded count, too.
            ignoring: names of inputs that do not count.
        """

        def is_stale(name: str, present: Mapping[str, str]) -> bool:
            entry = self.entry(name)
            if entry is None:
                return unknown
            same = (entry.read.get(part) == present[part] for part in present.keys() - ignoring)
            return not all(same) or bool(self.changed(name))

        return {name for name, present in reads.items() if is_stale(name, present)}

    def as_written(self, stage: str, name: str) -> bool:
        """Return whether a file is unchanged since a stage wrote it; True without a digest."""
        digest = (self.entry(stage) or Entry()).written.get(name)
        return digest is None or self._is(name, digest)

    def _is(self, name: str, digest: str) -> bool:
        return digest_of_file(self._folder / name) == digest

    def _read(self) -> dict[str, Any]:
        nothing: dict[str, Any] = {"identity": {}, "stages": {}}
        try:
            contents = json.loads((self._folder / FILE).read_text(encoding="utf-8"))
            digest = contents.pop("digest")
        except (OSError, ValueError, KeyError, AttributeError, RecursionError):
            return nothing
        return contents if digest == digest_of(contents) else nothing

    def _write(self, content: dict[str, Any]) -> None:
        text = json.dumps(content | {"digest": digest_of(content)}, indent=1) + "\n"
        write_atomically(self._folder / FILE, text)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value as JSON.

    Examples:
        >>> digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})
        True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check it") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside a file, and replace the file by it at the end, or leave it unchanged.

    Raises:
        InputError: the file cannot be written.
    """
    temporary = unfinished(path)
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); check it"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file completely, or leave the present one unchanged.

    Raises:
        InputError: the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
