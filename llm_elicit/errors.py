"""The errors of this package, all subclasses of `ElicitError`.

A message is one line that names the value, the rule that it breaks and the way out. The command
line prints it and exits with `exit_code`; a script catches the class.
"""


class ElicitError(Exception):
    """The base class of all errors that this package raises."""

    exit_code = 1


class InputError(ElicitError):
    """A file, a setting, a key or an argument cannot be used."""

    exit_code = 2


class ConflictError(InputError):
    """What was asked is not possible now, such as to pause a run that has ended."""


class JudgeError(ElicitError):
    """A judge cannot be asked further; its answers so far are kept."""

    exit_code = 3


class CapError(JudgeError):
    """A cap of the campaign leaves no room for another request."""

    exit_code = 4


class IncompleteError(ElicitError):
    """Questions have no answer although every judge was asked; the other answers are kept."""

    exit_code = 5


class CancelledRunError(ElicitError):
    """A run was cancelled by another process; every answer received is kept."""

    exit_code = 130


STOPPED = 130
"""The exit code after Ctrl-C: 128 plus the number of the signal, as in shells. After SIGTERM it is
143, after SIGHUP 129."""


class RenamedKeyWarning(FutureWarning):
    """A settings file uses the former name of a key."""
