from pathlib import Path

import pytest

from fuzz.oracle import SHARES, TALLY


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that relative paths do not lead out of; no keys are set."""
    folder = tmp_path / "a" / "b" / "c" / "d"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def pytest_terminal_summary(terminalreporter) -> None:
    """How many inputs there were, and what became of them."""
    for kind in SHARES:
        counts = {end: TALLY[kind, end] for end in ("success", "clear error", "failure")}
        if any(counts.values()):
            words = ", ".join(f"{count} {end}" for end, count in counts.items())
            terminalreporter.write_line(f"fuzzing, {kind}: {sum(counts.values())}: {words}")
