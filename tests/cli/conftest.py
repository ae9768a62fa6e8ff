"""The command line in this process, and a small campaign."""

import sys
from types import SimpleNamespace

import pytest

from llm_elicit.cli import main as cli

CAMPAIGN = """
name: tiny
space: penguins
design: {pairs: 60}
judges:
  - {name: expert, backend: simulated}
fit: {method: utility, samples: 500}
"""


@pytest.fixture
def llm_elicit(tmp_path, monkeypatch, capsys, quick_fits):
    """The command, run in `tmp_path`; in this process, since importing it takes seconds."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
        with pytest.raises(SystemExit) as exit_code:
            cli.main()
        shown = capsys.readouterr()
        return SimpleNamespace(
            returncode=exit_code.value.code or 0, stdout=shown.out, stderr=shown.err
        )

    return call
