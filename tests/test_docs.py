"""Every command and every script in the documents is executed here, in order, as written."""

import html
import http.server
import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Thread

import pytest
import typer.main
from fakes import warm
from fakes.fits import fit_quickly, report_quickly
from fakes.plugins import install
from report.browser import CHROMIUM, opened

import llm_elicit as le
import llm_elicit.density
from benchmarks import __main__ as benchmarks
from llm_elicit.cli import main as cli
from llm_elicit.config.campaign import Campaign
from llm_elicit.report.page import GLOSSARY
from llm_elicit.spaces.features import FeatureSpace

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {*TUTORIALS})
# Of the beliefs of these, verdicts are printed, and no numbers.
VERDICTS = ("adaptive-rounds", "hosted-models")
NOTEBOOKS = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))
# Set-up is what the reader's machine runs once and what this test runs in: `make -n` shows that
# the target exists without running the tests inside the tests.
SETUP = ("git clone", "cd ", "python3 -m venv", ". .venv", "pip install")
LOCAL_PACKAGE = "pip install ./"
# tests/benchmarks/test_asking.py runs the benchmark, tests/config/test_plugins.py the contract.
ELSEWHERE = ("python -m benchmarks orchestrator", "python -m pytest examples/backend")
LOCAL = re.compile(
    r"(?<!make )\b(california|demo|gallery|smollm2|study)(\b|_direct)(?!_)(?!.*--dry-run)"
)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def commands(page: Path) -> list[str]:
    return commands_of("\n".join(blocks(page, "bash")))


def commands_of(block: str) -> list[str]:
    lines = block.splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and line[0] != "#"]


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
        elif rest[:2] == ["-m", "benchmarks"]:
            monkeypatch.setattr(sys, "argv", rest[1:])
            with pytest.raises(SystemExit) as ended:
                benchmarks.main()
            assert not ended.value.code, f"{shlex.join(arguments)}\n{capsys.readouterr()}"
        elif rest[0] == "-m" and rest[1].startswith("benchmarks."):
            monkeypatch.setattr(sys, "argv", rest[1:])
            runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
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
    fit_quickly(monkeypatch)
    report_quickly(monkeypatch)
    monkeypatch.setenv(warm.QUICK_FITS, "1")
    for command in commands(page):
        if command.startswith(LOCAL_PACKAGE):
            install(workplace / command.removeprefix(LOCAL_PACKAGE), workplace / "site")
            monkeypatch.syspath_prepend(workplace / "site")
        if command.startswith(SETUP):
            continue
        arguments = shlex.split(command)
        if arguments[0] == "make":
            arguments.insert(1, "--dry-run")
        if LOCAL.search(command) or command in ELSEWHERE:
            # tests/pipeline/test_main_job.py runs the main job; the study asks for an hour.
            continue
        assert_runs(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_scripts_of_a_page_run(page, workplace, assert_runs, monkeypatch):
    fit_quickly(monkeypatch)
    report_quickly(monkeypatch)
    for script in blocks(page, "python"):
        (workplace / "script.py").write_text(script)
        assert_runs(["python", "script.py"])


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed_from_an_empty_folder(
    page, assert_runs, tmp_path, monkeypatch, capsys
):
    """Its notebook is made from the page, and every cell runs and prints what it shows.

    The three kinds of cells that notebooks.py writes are run as Jupyter would.
    """
    notebook = json.loads(page.with_suffix(".ipynb").read_text())
    assert notebook == NOTEBOOKS["notebook"](page.read_text()), "run python docs/notebooks.py"
    monkeypatch.chdir(tmp_path)
    report_quickly(monkeypatch)
    if page.stem in VERDICTS:
        fit_quickly(monkeypatch)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= len(blocks(page, "python")) > 0
    for cell in cells:
        source = "".join(cell["source"])
        capsys.readouterr()
        if source.startswith("%%writefile "):
            name, _, text = source.partition("\n")
            (tmp_path / name.removeprefix("%%writefile ")).write_text(text)
        elif source.startswith("%env "):
            monkeypatch.setenv(*source.removeprefix("%env ").split("="))
        elif source.startswith("%%bash -e\n"):
            for command in commands_of(source.partition("\n")[2]):
                assert_runs(shlex.split(command))
        else:
            (tmp_path / "script.py").write_text(source)
            assert_runs(["python", "script.py"])
        for shown in cell["outputs"]:
            printed = capsys.readouterr().out
            assert alike(printed, "".join(shown["text"])), f"{page.name} prints\n{printed}"


NUMBER = re.compile(r"\d+(?:\.(\d+))?")


def alike(printed: str, shown: str) -> bool:
    """The same words, and numbers within a tenth or two of the last digit of those shown.

    Another processor rounds otherwise, and random moves then differ.
    """
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return False
    for one, other in zip(NUMBER.finditer(printed), NUMBER.finditer(shown), strict=True):
        last = 10.0 ** -len(other[1] or "")
        if abs(float(one[0]) - float(other[0])) > max(2.001 * last, 0.1 * float(other[0])):
            return False
    return True


# tests/comparisons/test_exports.py runs those that need a package of their own, and a page others.
OF_A_PAGE = {
    ROOT / command.split()[1]
    for page in PAGES
    for command in commands(page)
    if command.startswith("python examples/") and not LOCAL.search(command)
}
EXAMPLES = sorted(
    {*(ROOT / "examples").glob("*.py")} - {*(ROOT / "examples").glob("prior_*.py")} - OF_A_PAGE
)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_the_example_scripts_run(script, workplace, assert_runs):
    if script.name == "density_only.py":
        assert_runs_outside([sys.executable, str(script)], workplace)
    else:
        assert_runs(["python", str(script)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def words_of(page: Path) -> str:
    article = re.search(r"<article.*?</article>", page.read_text(), re.S)
    assert article is not None
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", article[0])).split())


def test_the_site_shows_every_page_and_loads_nothing_from_elsewhere(site):
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in site.rglob("*.html"))
    for page in pages:
        assert (site / page.with_suffix(".html")).exists(), page
        assert f'{page.name.removesuffix(".md")}.html"' in text, f"{page} is not in the navigation"
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text)


def test_the_glossary_of_the_site_has_the_terms_of_a_report(site):
    shown = words_of(site / "glossary.html")
    for entry in GLOSSARY.values():
        assert " ".join(entry.definition.split()) in shown, entry.term
        for reference in entry.references:
            assert reference in shown, entry.term


def test_the_reference_of_the_site_has_every_command_key_and_public_name(site):
    shown = words_of(site / "reference" / "cli.html")
    for command in typer.main.get_command(cli.app).commands.values():
        assert f"llm-elicit {command.name}" in shown
    shown = words_of(site / "reference" / "campaign.html")
    assert all(key in shown for key in [*Campaign.model_fields, *FeatureSpace.model_fields])
    for module, page in ((le, "llm_elicit"), (le.density, "density")):
        shown = words_of(site / "reference" / f"{page}.html")
        assert [name for name in module.__all__ if name not in shown] == []


def test_every_page_is_also_markdown_with_all_of_the_reference(site):
    for page in (ROOT / "docs").rglob("*.md"):
        text = (site / page.relative_to(ROOT / "docs")).read_text()
        assert "<!--" not in text, page
        assert "\n::: " not in text, page
    assert "`max_cost`" in (site / "reference" / "campaign.md").read_text()
    assert "## llm-elicit run" in (site / "reference" / "cli.md").read_text()
    for module, page in ((le, "llm_elicit"), (le.density, "density")):
        text = (site / "reference" / f"{page}.md").read_text()
        assert [name for name in module.__all__ if f"\n## {name}\n" not in text] == []
    for parameter in inspect.signature(le.density.fit_belief).parameters:
        assert f"\n- `{parameter}`: " in text, parameter


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Leave standard error to the tests."""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_reader_finds_a_page_by_the_search_and_the_next_by_its_link(site, tmp_path):
    served = partial(SilentHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/index.html"
        with opened(CHROMIUM, address, tmp_path) as tab:
            assert version("llm-elicit") in tab.run("document.querySelector('header').innerText")
            sidebar = "document.querySelector('.md-sidebar--primary').innerText"
            assert "Troubleshooting" in tab.run(sidebar)
            following = "document.querySelector('.md-footer__link--next').getAttribute('href')"
            assert tab.run(following) == "installation.html"
            search = "document.querySelector('.md-search__input')"
            tab.run(f"{search}.focus(); {search}.value = 'position only'")
            tab.run(f"{search}.dispatchEvent(new Event('keyup', {{bubbles: true}}))")
            results = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
            until = time.monotonic() + 20
            while not any("troubleshooting.html" in link for link in tab.run(results)):
                assert time.monotonic() < until, tab.run(results)
                time.sleep(0.1)
        server.shutdown()


def test_the_readme_begins_with_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert 0 < text.index("![") < text.index("make demo") < text.index("make test") < 3000


def test_the_files_that_contributing_names_exist():
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("*/**/*.py")]
    assert len(named) > 20
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
