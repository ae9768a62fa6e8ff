"""Backends from other packages: installed by pip, asked from the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.plugins import EXAMPLE, install, place

from llm_elicit._util.settings import validate
from llm_elicit.cli.main import app, run_app
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.judges import installed_backends, package_of
from llm_elicit.errors import InputError
from llm_elicit.testing.provider import Answer, Error, Provider

KEY = "sk-canary-plain-987"

pytestmark = pytest.mark.timeout(900)  # processes of their own, which import everything


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example's package is installed."""
    return install(EXAMPLE, tmp_path_factory.mktemp("site"))


def _environment(*paths: Path) -> dict[str, str]:
    here = [str(path) for path in paths] + [path or "." for path in sys.path]
    found = {"PYTHONPATH": os.pathsep.join(here), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **found, "PLAIN_API_KEY": KEY}


def _llm_elicit(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llm_elicit", *arguments],
        cwd=folder, env=_environment(site), capture_output=True, text=True, check=False,
    )  # fmt: skip


def _campaign(folder: Path, url: str, **rest: object) -> str:
    judge = {"name": "mine", "backend": "plain", "model": "m", "base_url": f"{url}/v1"}
    judge |= {"temperature": 0.5, "price": {"input": 1.0, "output": 2.0}}
    data = {"name": "try", "space": "penguins", "design": {"pairs": 10}, "judges": [judge], **rest}
    (folder / "c.yaml").write_text(json.dumps(data))
    return "c.yaml"


def test_a_campaign_asks_a_backend_of_another_package(site: Path, tmp_path: Path) -> None:
    fail_once = iter([Error(500, f"echo {KEY}")])
    with Provider(lambda _n, _body: next(fail_once, Answer("B", thinking="hm"))) as provider:
        path = _campaign(tmp_path, provider.url, limits={"max_cost": 1.0})
        done = _llm_elicit(site, tmp_path, "ask", path)
        assert done.returncode == 0, done.stderr
        assert "20 judgments" in done.stdout
        assert len(provider.seen) == 21
        assert {seen.body["temperature"] for seen in provider.seen} == {0.5}
        assert provider.seen[0].headers["authorization"] == f"Bearer {KEY}"
        again = _llm_elicit(site, tmp_path, "ask", "try")
        assert again.returncode == 0, again.stderr
        assert len(provider.seen) == 21, "the run is resumed from its folder"
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def test_it_keeps_the_contract(site: Path, tmp_path: Path) -> None:
    """As its author proves it: pytest, in a process of its own, in the package's own folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")],
        cwd=tmp_path, env=_environment(site), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.rsplit("passed", 1)[0].split()[-1])
    assert passed >= 20


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Calls the command line in this process; returns its exit code, output and errors."""

    def call(site: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.syspath_prepend(site)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
        try:
            code = run_app(app)
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capsys.readouterr())

    return call


def test_its_settings_are_checked_by_its_own_model(
    site: Path, tmp_path: Path, here: Callable[..., tuple[int, str, str]]
) -> None:
    path = _campaign(tmp_path, "http://127.0.0.1:9")
    text = (tmp_path / path).read_text()
    (tmp_path / path).write_text(text.replace('"temperature": 0.5', '"temperature": 3.5'))
    code, _, errors = here(site, "estimate", path)
    assert code == 2
    assert errors.count("\n") == 1
    assert "temperature: Input should be less than or equal to 2, got 3.5" in errors


def test_the_backends_are_listed(site: Path, here: Callable[..., tuple[int, str, str]]) -> None:
    code, output, errors = here(site, "backends")
    assert code == 0, errors
    rows = [line.split() for line in output.splitlines()]
    assert ["plain", "elicit-plain", "1.0", "ready"] in rows
    assert ["simulated", "llm-elicit", "ready"] in [[*row[:2], row[-1]] for row in rows]


BROKEN = "import nothing_of_this_name\n"
BARE = "class Mine:\n    pass\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (BROKEN, r"'mine' of p-module-mine 1\.0 cannot be loaded .*nothing_of_this_name"),
        (BARE, r"Mine has no class `Settings` .*docs/how-to/backend\.md"),
        ("", r"cannot be loaded \(AttributeError"),
    ],
    ids=["import", "no settings", "no class"],
)
def test_a_broken_plug_in_is_one_line(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place(tmp_path / "site", "mine", code))
    monkeypatch.delitem(sys.modules, "module_mine", raising=False)
    with pytest.raises(InputError, match=said) as caught:
        _judge("mine")
    assert "\n" not in str(caught.value)
    listed = dict(installed_backends())["mine"]
    assert package_of(listed[0]) == "p-module-mine 1.0"


def test_two_packages_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in "12":
        place(tmp_path / "site", "twice", BARE, module=f"module_{number}")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(
        InputError, match=r"provided by several packages: p-module-\d 1\.0 and p-module-\d 1\.0"
    ):
        _judge("twice")


def test_an_unknown_name_lists_what_there_is(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    with pytest.raises(InputError, match=r"'plian' is not installed; known: .*simulated, plain;"):
        _judge("plian")


NO_LIMIT = """
from llm_elicit.backends import Capabilities, WithoutKey
from llm_elicit.config.judges import PluginJudge

class Mine(WithoutKey):
    capabilities, endpoint, cacheable = Capabilities(), "here", False

    class Settings(PluginJudge):
        model: str = "m"

    def __init__(self, judge, space):
        self.model = judge.model

    def body(self, request):
        return {"prompt": request.prompt.text}

    async def ask(self, request):
        raise AssertionError("nothing may be sent")
"""


def test_a_cap_that_could_not_be_held_is_refused(
    tmp_path: Path, here: Callable[..., tuple[int, str, str]]
) -> None:
    site = place(tmp_path / "site", "endless", NO_LIMIT)
    no_price, endless = (
        "no price is known for the model of judge 'mine'",
        "set no limit on an answer's tokens",
    )
    for limits, reasons in (
        ({"max_cost": 1.0}, (no_price, endless)),
        ({"max_tokens": 100}, (endless,)),
    ):
        data = {"name": "try", "space": "penguins", "design": {"pairs": 10}, "limits": limits}
        data["judges"] = [{"name": "mine", "backend": "endless"}]
        (tmp_path / "c.yaml").write_text(json.dumps(data))
        code, _, errors = here(site, "ask", "c.yaml")
        assert code == 2
        lines = errors.splitlines()[-len(reasons) :]
        assert all(reason in line for reason, line in zip(reasons, lines, strict=True))
        assert errors.count("\n") == len(reasons) + (len(reasons) > 1), "a heading over several"


def _judge(backend: str) -> None:
    judge = {"name": "mine", "backend": backend, "model": "m"}
    validate(Campaign, {"name": "try", "space": "penguins", "judges": [judge]}, "c.yaml")
