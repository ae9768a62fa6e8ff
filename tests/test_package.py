"""The wheel carries all it needs: it works from an empty directory, without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("fresh_processes_of_module")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel) -> Path:
    site = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_a_wheel_works_in_an_empty_directory(installed, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "llm_elicit", "run", "california", "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "median household income" in done.stdout
    where = [sys.executable, "-c", "import llm_elicit; print(llm_elicit.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(
        where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(installed))


def test_a_wheel_holds_no_paths_or_caches(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for name in ("v1/zero-shot.md", "v2/zh/typical.md", "v2/examples.yaml"):
        assert f"llm_elicit/_data/prompts/{name}" in names
    assert "llm_elicit/_data/datasets/california_housing.csv.gz" in names
    assert "llm_elicit/py.typed" in names
    assert "llm_elicit/backends/models.yaml" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


HEAVY = "{'anthropic', 'openai', 'torch', 'pandas', 'pyarrow', 'scipy', 'matplotlib', 'ot'}"


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> tuple[Path, str]:
    """A folder with a run whose questions were asked, and what the process printed that asked."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "c.yaml").write_text(
        "name: c\nspace: penguins\ndesign: {pairs: 5}\n"
        "judges: [{name: j, backend: simulated, belief: uniform}]\n"
    )
    script = (
        "import contextlib, sys, llm_elicit, llm_elicit.cli.main as cli\n"
        f"heavy = {HEAVY}\n"
        "with contextlib.suppress(SystemExit):\n"
        "    cli.app(['--help'])\n"
        "print('help loaded:', sorted(heavy & set(sys.modules)))\n"
        "import llm_elicit.pipeline.stages\n"
        "print('stages loaded:', sorted(heavy & set(sys.modules)))\n"
        "import llm_elicit.service.server\n"
        "print('service loaded:', sorted(heavy & set(sys.modules)))\n"
        "with contextlib.suppress(SystemExit):\n"
        "    cli.app(['ask', 'c.yaml'])\n"
        "print('asking loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    return folder, printed(script, folder)


def printed(script: str, folder: Path) -> str:
    """What a script prints in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_help_and_a_service_wait_for_no_sdk_and_asking_for_no_pytorch(asked):
    """What takes seconds to import is imported by what needs it."""
    _, said = asked
    assert "estimate" in said
    for what in ("help", "stages", "service"):
        assert f"{what} loaded: []" in said
    assert "10 judgments" in said
    assert "asking loaded: ['pandas', 'pyarrow']" in said


def test_a_look_waits_for_nothing_heavy(asked):
    """What `status` and the lists take is their imports; pandas alone took half of it."""
    folder, _ = asked
    script = (
        "import contextlib, sys\n"
        "from llm_elicit.cli import main as cli\n"
        f"heavy = {HEAVY} | {{'genai_prices', 'httpx', 'jinja2'}}\n"
        "for command in ('status c', 'backends', 'models', 'cache list', '--help'):\n"
        "    sys.argv = ['llm-elicit', *command.split()]\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        cli.main()\n"
        "    print(command, 'loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    said = printed(script, folder)
    assert said.count("loaded: []") == 5, said
    assert "j      10" in said
