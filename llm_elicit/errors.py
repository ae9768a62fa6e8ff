"""The errors of this package, all subclasses of `ElicitError`.

A message is one line that names the value, the rule that it breaks and the way out. The command
line prints it and exits with `exit_code`; a script catches the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches


class ElicitError(Exception):
    """The base class of all errors that this package raises."""

    exit_code = 1


class InputError(ElicitError):
    """A file, a setting, a key or an argument cannot be used."""

    exit_code = 2


class ConflictError(InputError):
    """What was asked is not possible now, such as to pause a run that has ended."""


class UnknownNameError(InputError, KeyError):
    """There is nothing of that name; a `KeyError`, too, as mappings raise."""

    __str__ = Exception.__str__  # KeyError's would put the line in quotes

    @classmethod
    def of(cls, where: str, kind: str, name: object, choices: Iterable[str]) -> UnknownNameError:
        """Return the error of an unknown name, with the known ones and the nearest of them.

        Examples:
            >>> str(UnknownNameError.of("study", "belief of", "qwn", ["qwen", "expert"]))
            "study: no belief of 'qwn'; did you mean 'qwen'? known: qwen, expert"
        """
        names = list(choices)
        guess, listed = did_you_mean(str(name), names), ", ".join(names) or "none"
        return cls(f"{where}: no {kind} {str(name)[:80]!r}; {guess}known: {listed}")


def did_you_mean(name: str, names: Sequence[str], max_count: int = 1) -> str:
    """Return the question for the nearest names, with a space at its end; empty without any.

    Examples:
        >>> did_you_mean("qwn", ["qwen", "expert"])
        "did you mean 'qwen'? "
    """
    matches = get_close_matches(name, names, n=max_count)
    return f"did you mean {' or '.join(map(repr, matches))}? " if matches else ""


class Refusals:
    """Collects the errors of several checks, which are raised together.

    Examples:
        >>> refusals = Refusals()
        >>> for name in ("a", "b"):
        ...     with refusals.collected():
        ...         raise InputError(f"{name} is missing")
        >>> refusals.check()
        Traceback (most recent call last):
        llm_elicit.errors.InputError: 2 settings cannot be used:
        - a is missing
        - b is missing
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Collect the `InputError` that ends the block, instead of raising it."""
        try:
            yield
        except InputError as error:
            self._lines.append(str(error))

    def check(self) -> None:
        """Raise the collected errors.

        Raises:
            InputError: something was refused; several refusals have a line each.
        """
        if len(self._lines) > 1:
            lines = (f"- {line}" for line in self._lines)
            raise InputError("\n".join((f"{len(self._lines)} settings cannot be used:", *lines)))
        if self._lines:
            raise InputError(self._lines[0])


class JudgeError(ElicitError):
    """A judge cannot be asked further; its answers so far are kept."""

    exit_code = 3


class CapError(JudgeError):
    """A cap of the campaign leaves no room for another request."""

    exit_code = 4


class VersionChangedError(JudgeError):
    """Another version of a model answers than before, and the run is to have one only."""

    exit_code = 6


class IncompleteError(ElicitError):
    """Questions have no answer although every judge was asked; the other answers are kept."""

    exit_code = 5


class UnusableError(IncompleteError):
    """A judge was asked, and none of its answers is usable."""


class CancelledRunError(ElicitError):
    """A run was cancelled by another process; every answer received is kept."""

    exit_code = 130


STOPPED = 130
"""The exit code after Ctrl-C: 128 plus the number of the signal, as in shells. After SIGTERM it is
143, after SIGHUP 129."""
