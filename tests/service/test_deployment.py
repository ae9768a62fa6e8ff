"""What `deploy/` holds works: image, unit and proxy; and a service comes back from its backup.

What passes the proxy is raw HTTP: it is about headers, and a certificate of the tests' own.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
from orchestrator.postgres import running

from llm_elicit._util.settings import read_yaml
from llm_elicit.service.settings import ServerSettings
from llm_elicit.testing.provider import Answer, Provider
from tests.service.proxy import certificate
from tests.service.serving import BEARER, KEYS, serving
from tests.service.test_access import issued

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HOST = "elicit.example.org"

needs = pytest.mark.skipif


def _docker_runs() -> bool:
    """Whether there is a daemon; the command alone builds nothing."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@needs(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_the_image_follows_the_rules_of_its_linter() -> None:
    subprocess.run(["hadolint", DEPLOY / "Dockerfile"], check=True)


def test_the_image_is_built_from_all_that_the_package_holds() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    packed = {"llm_elicit", *wheel["targets"]["wheel"]["force-include"]}
    assert packed <= sources
    assert all((ROOT / source).exists() for source in sources)


@needs(not _docker_runs(), reason="docker does not run")
def test_the_image_is_built_and_the_services_fit_together(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").touch()
    for name in ("compose.yaml", "server.yaml"):
        shutil.copy(DEPLOY / name, tmp_path)
    subprocess.run(["docker", "compose", "config", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["docker", "build", "--file", DEPLOY / "Dockerfile", ROOT], check=True)


@needs(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "llm-elicit.service").read_text()
    unit = tmp_path / "llm-elicit.service"
    unit.write_text(text.replace("/opt/llm-elicit/bin/llm-elicit", sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A browser's client of nginx, with a service behind it; both as `deploy/` has them."""
    if (nginx := shutil.which("nginx")) is None:
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("proxied")
    settings = read_yaml(DEPLOY / "server.yaml")
    keys = KEYS | {"ANTHROPIC_API_KEY": "a-key-of-the-tests"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with serving(folder, settings=settings, **keys) as served:
        public, private = certificate(folder)
        site = (DEPLOY / "nginx.conf").read_text()
        for written, own in {
            "listen 443": f"listen 127.0.0.1:{port}",
            "/etc/ssl/llm-elicit/fullchain.pem": str(public),
            "/etc/ssl/llm-elicit/privkey.pem": str(private),
            "http://127.0.0.1:8642": served.address,
        }.items():
            assert written in site
            site = site.replace(written, own)
        kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/nginx.pid; error_log stderr;\n"
            f"events {{}}\nhttp {{ access_log off; {paths}\n{site} }}\n"
        )
        process = subprocess.Popen(
            [nginx, "-p", folder, "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL
        )
        try:
            with httpx.Client(
                base_url=f"https://127.0.0.1:{port}",
                headers={"host": HOST},
                verify=False,
                timeout=120.0,
            ) as client:
                _until_it_answers(client)
                yield client
        finally:
            process.terminate()
            process.wait(30)


def _until_it_answers(client: httpx.Client) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            assert client.get("/health").status_code == 200
            return
        except httpx.ConnectError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_browsers_sign_in_through_the_proxy(proxied: httpx.Client) -> None:
    page = proxied.get("/login", headers={"x-forwarded-proto": "http"})
    assert page.headers["set-cookie"].endswith("Secure")
    assert "max-age" in page.headers["strict-transport-security"]
    evil = {"x-forwarded-host": "evil.example", "x-forwarded-prefix": "/evil",
            "forwarded": "host=evil.example"}  # fmt: skip
    answer = proxied.get("/", headers=evil | {"accept": "text/html"})
    assert answer.headers["location"] == "/login"
    asks = {
        "name": "panel", "space": "penguins", "design": {"pairs": 4},
        "judges": [{"name": "panel", "backend": "human", "experts": ["ada"]}],
    }  # fmt: skip
    created = proxied.post("/api/v1/campaigns", json=asks, headers=BEARER | evil)
    assert created.status_code == 201, created.text
    assert issued(proxied, **BEARER).startswith(f"https://{HOST}/judge/")


def test_an_address_is_that_of_the_client_whatever_it_states(proxied: httpx.Client) -> None:
    wrong = {"authorization": "Bearer x"}
    stated = [{"x-forwarded-for": f"198.51.100.{number}"} for number in range(11)]
    codes = [proxied.get("/metrics", headers=wrong | header).status_code for header in stated]
    assert codes == [401] * 10 + [429]


def test_events_pass_the_proxy_as_they_come(proxied: httpx.Client) -> None:
    slow = {"name": "e", "backend": "simulated", "belief": "uniform", "concurrency": 1,
            "latency": 0.1}  # fmt: skip
    campaign = {"name": "slow", "space": "penguins", "judges": [slow], "design": {"pairs": 5000}}
    created = proxied.post("/api/v1/campaigns", json=campaign, headers=BEARER)
    assert created.status_code == 201, created.text
    with proxied.stream("GET", "/api/v1/campaigns/slow/events", headers=BEARER) as events:
        lines = events.iter_lines()
        assert next(line for line in lines if line.startswith("data: "))
        running = proxied.get("/api/v1/campaigns/slow", headers=BEARER).json()
        assert running["state"] in ("planned", "running")
    proxied.delete("/api/v1/campaigns/slow", headers=BEARER)


@pytest.mark.parametrize("shared", [False, True], ids=["sqlite", "postgresql"])
def test_a_backup_comes_back_elsewhere_and_asks_nothing_twice(shared: bool, tmp_path: Path) -> None:
    pace, pairs = {"delay": 0.2}, 40
    with (
        running() if shared else nullcontext() as database,
        Provider(lambda _n, _b: Answer("A", **pace)) as provider,
    ):
        judge = {"backend": "openai", "base_url": f"{provider.url}/v1", "api_key_env": None}
        settings = {"judges": [judge | {"price": {"input": 0, "output": 0}}],
                    "bounds": {"max_cost": 5}}  # fmt: skip
        campaign = {
            "name": "birds", "space": "penguins", "design": {"pairs": pairs},
            "judges": [judge | {"name": "gpt", "model": "m", "concurrency": 4, "logprobs": False}],
            "fit": {"method": "utility", "samples": 100}, "limits": {"max_cost": 5},
        }  # fmt: skip
        options = ("--journal", database.address) if database else ()
        with serving(tmp_path / "old", *options, settings=settings) as old, old.api() as client:
            client.start(campaign)
            until = time.monotonic() + 120
            while len(provider.seen) < 20:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert old.stop() == 0
        with tarfile.open(tmp_path / "runs.tar", "w") as backup:
            backup.add(old.runs, "runs")
        shutil.rmtree(tmp_path / "old")
        if database:
            journals = tmp_path / "journals.dump"
            dump = ["pg_dump", "--format=custom", f"--file={journals}", database.address]
            subprocess.run(dump, check=True)
            lost = ["psql", database.address, "--command=DROP SCHEMA elicit_birds CASCADE"]
            subprocess.run(lost, check=True, capture_output=True)
            subprocess.run(["pg_restore", f"--dbname={database.address}", journals], check=True)
        (tmp_path / "new").mkdir()
        with tarfile.open(tmp_path / "runs.tar") as backup:
            backup.extractall(tmp_path / "new", filter="data")
        pace["delay"] = 0.0
        with serving(tmp_path / "new", *options, settings=settings) as new, new.api() as client:
            birds = client.run("birds")
            assert birds.wait().state == "done"
            assert birds.report()
        assert len(provider.seen) == 2 * pairs


def test_the_configuration_names_no_judge_without_a_limit() -> None:
    settings = ServerSettings.load(DEPLOY / "server.yaml")
    assert settings.needs_token
    assert settings.max_cost is not None
    assert settings.bounds.max_cost is not None
