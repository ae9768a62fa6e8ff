"""The errors a user can meet: one tree, rooted at `ElicitError`.

A message is one line that names the value, the rule it breaks and the way out.
The command line prints it and exits with `exit_code`; a script catches the class.
"""


class ElicitError(Exception):
    """Anything this package reports on purpose; never raised itself."""

    exit_code = 1


class InputError(ElicitError):
    """What the user gave cannot be used: a file, a setting, a key, an argument."""

    exit_code = 2


class JudgeError(ElicitError):
    """A judge cannot be asked any further; the answers it gave so far are kept."""

    exit_code = 3


class CapError(JudgeError):
    """A cap of the campaign leaves no room for another request."""

    exit_code = 4


class IncompleteError(ElicitError):
    """Questions have no answer, though every judge was asked to the end; what there is is kept."""

    exit_code = 5


STOPPED = 130
"""The exit code when the user stopped it (Ctrl-C), as shells have it: 128 and the signal's number.
SIGTERM is 143, SIGHUP 129."""


class RenamedKeyWarning(FutureWarning):
    """A settings file uses the former name of a key."""
