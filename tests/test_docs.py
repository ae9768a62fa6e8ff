"""Every command and every script in the documents is executed here, in order, as written."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.plugins import install

from llm_elicit.cli import main as cli

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
# Set-up is what the reader's machine runs once and what this test runs in: `make -n` shows that
# the target exists without running the tests inside the tests.
SETUP = ("git clone", "cd ", "python3 -m venv", ". .venv", "pip install")
LOCAL_PACKAGE = "pip install ./"
LOCAL = re.compile(r"(?<!make )\b(california|demo|smollm2|study)(\b|_direct)(?!_)(?!.*--dry-run)")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def commands(page: Path) -> list[str]:
    return commands_of("\n".join(blocks(page, "bash")))


def commands_of(block: str) -> list[str]:
    lines = block.splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and line[0] != "#"]


def in_order(page: Path) -> list[tuple[str, str]]:
    """Every block of a page with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout's folders, writable; runs made by one page are resumed by the next."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "datasets", "prompts"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "runs").mkdir()
    (folder / "site").mkdir()
    rows = "\n".join(f"{20 + i},{(7 * i) % 31}" for i in range(40))
    (folder / "my.csv").write_text(f"age,score\n{rows}\n")
    return folder


Run = Callable[[list[str]], None]


@pytest.fixture
def assert_runs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a command in the workplace.

    This package's own and Python's run in this process: importing PyTorch for each takes longer
    than most of them. One of each kind runs as a reader's does, with what pip installed.
    """
    monkeypatch.chdir(workplace)

    def call(arguments: list[str]) -> None:
        program, *rest = arguments
        monkeypatch.setattr(sys, "argv", list(arguments))
        if program == "llm-elicit" and rest != ["models"]:
            with pytest.raises(SystemExit) as ended:
                cli.main()
            assert not ended.value.code, f"{shlex.join(arguments)}\n{capsys.readouterr()}"
        elif program == "python" and rest[0] != "-m":
            monkeypatch.setattr(sys, "argv", rest)
            runpy.run_path(rest[0], run_name="__main__")
        else:
            assert_runs_outside(arguments, workplace)

    return call


def assert_runs_outside(arguments: list[str], folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page, workplace, assert_runs, monkeypatch):
    for command in commands(page):
        if command.startswith(LOCAL_PACKAGE):
            install(workplace / command.removeprefix(LOCAL_PACKAGE), workplace / "site")
            monkeypatch.syspath_prepend(workplace / "site")
        if command.startswith(SETUP):
            continue
        arguments = shlex.split(command)
        if arguments[0] == "make":
            arguments.insert(1, "--dry-run")
        if LOCAL.search(command):
            # tests/pipeline/test_main_job.py runs the main job; the study asks for an hour.
            continue
        assert_runs(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_scripts_of_a_page_run(page, workplace, assert_runs):
    for script in blocks(page, "python"):
        (workplace / "script.py").write_text(script)
        assert_runs(["python", "script.py"])


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed_from_an_empty_folder(
    page, assert_runs, tmp_path, monkeypatch, capsys
):
    """Block after block; one of YAML is saved under the name in its first line.

    Text after a script is what the script prints.
    """
    monkeypatch.chdir(tmp_path)
    before, printed = "", ""
    for language, block in in_order(page):
        capsys.readouterr()
        if language == "yaml":
            (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
        elif language == "python":
            (tmp_path / "script.py").write_text(block)
            assert_runs(["python", "script.py"])
            printed = capsys.readouterr().out
        elif language == "text" and before == "python":
            assert alike(printed, block), f"{page.name} prints\n{printed}"
        elif language == "bash":
            for command in commands_of(block):
                assert_runs(shlex.split(command))
        before = language


NUMBER = re.compile(r"\d+(?:\.(\d+))?")


def alike(printed: str, shown: str) -> bool:
    """The same words, and numbers within a tenth or two of the last digit of those shown.

    Another processor rounds otherwise, and walks then part.
    """
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return False
    for one, other in zip(NUMBER.finditer(printed), NUMBER.finditer(shown), strict=True):
        last = 10.0 ** -len(other[1] or "")
        if abs(float(one[0]) - float(other[0])) > max(2.001 * last, 0.1 * float(other[0])):
            return False
    return True


# tests/comparisons/test_exports.py runs those that need a package of their own.
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {*(ROOT / "examples").glob("prior_*.py")})


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_the_example_scripts_run(script, workplace, assert_runs):
    if script.name == "density_only.py":
        assert_runs_outside([sys.executable, str(script)], workplace)
    else:
        assert_runs(["python", str(script)])


def test_the_readme_begins_with_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert 0 < text.index("![") < text.index("make demo") < text.index("make test") < 3000
