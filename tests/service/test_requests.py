"""What a request may say: keys and parameters that the API does not know are refused by name.

Such keys, formats and pages are raw HTTP: the client cannot send them, and reads no page.
"""

from __future__ import annotations

import asyncio
import html
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from llm_elicit._util import files
from llm_elicit.client import Client
from llm_elicit.config.campaign import Campaign
from llm_elicit.orchestrator.journal.connection import AT_WORK, RunLock
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import campaign_run, stages
from llm_elicit.service.calls import Blocking
from llm_elicit.service.server import create_app
from llm_elicit.service.settings import ServerSettings
from llm_elicit.testing.provider import Answer, Error, Provider
from tests.service.serving import is_in, refused, until
from tests.service.test_security import problem

EXPERT = {"name": "expert", "backend": "simulated", "belief": "uniform"}
CAMPAIGN = {"name": "birds", "space": "penguins_kinds", "design": {"pairs": 6}, "judges": [EXPERT]}


class InProcess(Client):
    """A client of the API of a service in this process."""

    def __init__(self, http: TestClient) -> None:
        Blocking.__init__(self, http)


def in_process(folder: Path, **settings: Any) -> TestClient:
    """A client of a service in this process; enter it to start the service."""
    app = create_app(ServerSettings.model_validate({"runs": folder / "runs", **settings}))
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a service with one run, which is planned by no service."""
    folder = tmp_path_factory.mktemp("requests")
    stages.plan(Campaign.model_validate({**CAMPAIGN, "runs": str(folder / "runs")}))
    with in_process(folder) as one:
        yield one


BIRDS = "/api/v1/campaigns/birds"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            f"{BIRDS}/retune",
            {"concurency": 2},
            "body.concurency: unknown key; known: concurrency, max_cost",
        ),
        (
            f"{BIRDS}/retune",
            {"max_cost": 1.0, "max-cost": 2.0, "x\n": 1},
            "body.max-cost: unknown key; known: concurrency, max_cost (and 1 more)",
        ),
        (f"{BIRDS}/retune", {}, "nothing to change; give concurrency, max_cost, or both"),
        (f"{BIRDS}/retune", {"max_cost": None}, "nothing to change"),
        (f"{BIRDS}/links", {"judge": "a", "expret": "b"}, "known: judge, expert, days"),
        (f"{BIRDS}/beliefs/expert/log-prob", {"points": [[1.0]], "n": 2}, "known: points"),
        ("/api/v1/session", {"token": "x", "remember": True}, "known: token"),
        ("/api/v1/campaigns", {**CAMPAIGN, "judgs": []}, "judgs: unknown key"),
        ("/api/v1/campaigns/dry-run", {**CAMPAIGN, "desing": {}}, "desing: unknown key"),
    ],
)
def test_an_unknown_key_is_named_with_those_that_are_known(
    client: TestClient, path: str, body: dict[str, Any], said: str
) -> None:
    assert said in problem(client.post(path, json=body), 422)


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/api/v1/campaigns?strat=false", "query.strat: unknown parameter; known: start"),
        ("POST", "/api/v1/campaigns/dry-run?wait=1", "query.wait: unknown parameter; known: none"),
        ("POST", f"{BIRDS}/cancel?drian=false", "known: drain, wait"),
        ("POST", f"{BIRDS}/pause?waits=1", "known: wait"),
        ("DELETE", f"{BIRDS}?force=1", "known: wait"),
        ("GET", f"{BIRDS}/comparisons?fromat=csv", "known: format, offset, limit"),
        ("GET", f"{BIRDS}/events?from=3", "known: since"),
        ("GET", f"{BIRDS}/beliefs/expert/samples?size=3", "known: n, seed, format"),
        ("GET", "/api/v1/campaigns?states=done", "known: q, state, tag, since"),
        ("POST", "/api/v1/spaces?name=x&colums=a", "known: name, columns, not_stated"),
    ],
)
def test_an_unknown_parameter_is_named_with_those_that_are_known(
    client: TestClient, method: str, path: str, said: str
) -> None:
    answer = client.request(method, path, json=CAMPAIGN if method == "POST" else None)
    assert said in problem(answer, 422)
    assert [run.name for run in InProcess(client).runs().runs] == ["birds"]


def test_a_page_may_be_called_with_any_parameter(client: TestClient) -> None:
    assert client.get("/?from=nothing&utm_source=mail").status_code == 200


def test_a_format_that_does_not_exist_is_named(client: TestClient) -> None:
    said = problem(client.get(f"{BIRDS}/comparisons?format=xlsx"), 422)
    assert said.startswith("query.format: ")
    assert "'xlsx'" in said
    assert all(form in said for form in ("json", "jsonl", "csv", "parquet"))


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "parquet"])
def test_before_the_first_answer_every_format_is_an_empty_table(
    client: TestClient, form: str
) -> None:
    answer = client.get(f"{BIRDS}/comparisons?format={form}")
    assert answer.status_code == 200, answer.text
    if form == "json":
        assert answer.json() == {"total": 0, "offset": 0, "rows": []}
    elif form == "jsonl":
        assert answer.content == b""


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "runs" / "broken"
    broken.mkdir(parents=True)
    (broken / "campaign.yaml").write_text("name: '<b>x</b>'\nspace: 3\n")
    with in_process(tmp_path) as client:
        api = InProcess(client)
        [listed] = api.runs().runs
        assert (listed.name, listed.state) == ("broken", "unreadable")
        assert "name: String should match pattern" in listed.problems[0]
        page = client.get("/").text
        assert "cannot be read" in page
        assert "got &#39;&lt;b&gt;x&lt;/b&gt;&#39;" in page
        assert client.get("/campaigns/broken").status_code == 422
        assert "name: String should match" in client.get("/campaigns/broken").text
        assert "name: String should match" in refused(422, api.run("broken").snapshot)


UNREADABLE = {
    "settings": ("campaign.yaml", "name: ["),
    "changed by hand": ("campaign.yaml", "# mine\n"),
    "journal": ("journal.sqlite", "no database" * 500),
    "space": ("../../mine.yaml", "name: other"),
}


def own_space(folder: Path) -> Path:
    """A feature space without a table."""
    text = files.find("datasets", "penguins_kinds", ".yaml").read_text("utf-8")
    space = folder / "mine.yaml"
    space.write_text(text.split("table:")[0].replace("penguins_kinds", "mine", 1))
    return space


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_run_that_cannot_be_read_can_be_deleted_unless_someone_is_at_work(
    kind: str, tmp_path: Path
) -> None:
    space = own_space(tmp_path)
    own = {**CAMPAIGN, "space": str(space), "runs": str(tmp_path / "runs")}
    run = stages.plan(Campaign.model_validate(own))
    file, broken = UNREADABLE[kind]
    (run.folder / file).write_text(broken)
    with in_process(tmp_path) as http:
        client = InProcess(http)
        birds = client.run("birds")
        with RunLock(run.folder, name=AT_WORK):
            assert "another process is running" in refused(409, birds.delete)
        assert (run.folder / "campaign.yaml").is_file()
        birds.delete()
        assert not run.folder.exists()
        assert client.runs().runs == []
        refused(404, birds.delete)


def test_what_was_set_aside_is_asked_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        """Fit nothing after asking."""

    monkeypatch.setattr(campaign_run.CampaignRun, "_after_asking", nothing)
    broken = ""

    def behave(_number: int, body: dict[str, Any]) -> Error | Answer:
        nonlocal broken
        question = body["messages"][-1]["content"]
        broken = broken or question
        return Error(400, "this breaks the tokenizer") if question == broken else Answer("A")

    free = {"price": {"input": 0.0, "output": 0.0}}
    with Provider(behave) as provider:
        port = int(urlsplit(provider.url).port or 0)
        campaign = asked_of(port, api_key_env=None, attempts=1, **free)
        run = stages.plan(Campaign.model_validate({**campaign, "runs": str(tmp_path / "runs")}))
        for _ in range(2):
            asyncio.run(stages.ask(run, progress=Silent()))
        with with_servers(tmp_path, port) as client:
            served = InProcess(client).run("served")
            served.start()
            assert "1 set aside" in until(served, is_in("done")).problems[0]
            assert len(provider.seen) == 12 + 1
            broken = "mended"
            served.start(retry_failed=True)
            assert until(served, is_in("done")).problems == ()
            assert len(provider.seen) == 12 + 2
            start = "/api/v1/campaigns/served/start"
            problem(client.post(f"{start}?retry_failed=maybe"), 422)


def asked_of(port: int, **more: Any) -> dict[str, Any]:
    """A campaign of a model on a server of this machine."""
    model = {"name": "gpt", "backend": "openai", "model": "m", **more}
    model |= {"base_url": f"http://127.0.0.1:{port}/v1"}
    return {**CAMPAIGN, "name": "served", "judges": [model], "limits": {"max_cost": 1.0}}


def with_servers(folder: Path, port: int) -> TestClient:
    """A service that allows a server with a key, and one without."""
    server = {"backend": "openai", "base_url": f"http://127.0.0.1:{port}/v1"}
    free = {"price": {"input": 0.0, "output": 0.0}}
    judges = [{**server, **free, "api_key_env": "ELICIT_TEST_KEY"}, {**server, **free}]
    return in_process(folder, judges=judges, bounds={"max_cost": 2.0}, live=3600.0)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_missing_key_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELICIT_TEST_KEY", raising=False)
    port = closed_port()
    campaign = asked_of(port, api_key_env="ELICIT_TEST_KEY")
    why = "the environment variable ELICIT_TEST_KEY holds no key"
    with with_servers(tmp_path, port) as client:
        api = InProcess(client)
        assert why in refused(422, api.start, campaign)
        assert api.runs().runs == []
        # One that waits is created, and refused when it is to start.
        served = api.start(campaign, paused=True)
        for call in (served.start, served.resume):
            assert why in refused(422, call)
        page = client.get("/campaigns/served")
        csrf = re.findall(r'name="csrf" value="([^"]+)"', page.text)[0]
        answer = client.post("/campaigns/served/resume", data={"csrf": csrf})
        assert answer.status_code in (409, 422)
        assert why in answer.text
        assert served.snapshot().state == "paused"


def test_a_dead_server_fails_a_campaign_with_the_reason(tmp_path: Path) -> None:
    port = closed_port()
    with with_servers(tmp_path, port) as client:
        served = InProcess(client).start(asked_of(port, api_key_env=None, attempts=2))
        failed = until(served, is_in("failed"))
        assert any(f"127.0.0.1:{port}" in line or "connect" in line for line in failed.problems)
        assert failed.judges["gpt"].errors > 0
        page = client.get("/campaigns/served").text
        assert html.escape(failed.problems[0], quote=True).replace("&#x27;", "&#39;") in page
        assert "Start again" in page
        assert "api_key_env: null" in client.get("/new?clone=served").text
    with with_servers(tmp_path, port) as client:  # another service knows it as well
        assert InProcess(client).run("served").snapshot().problems == failed.problems


def test_a_run_whose_space_is_gone_is_listed_and_its_page_says_why(tmp_path: Path) -> None:
    space = own_space(tmp_path)
    stages.plan(
        Campaign.model_validate({**CAMPAIGN, "space": str(space), "runs": str(tmp_path / "runs")})
    )
    space.unlink()
    with in_process(tmp_path) as client:
        api = InProcess(client)
        [listed] = api.runs().runs
        assert (listed.state, listed.judges["expert"].total) == ("planned", 12)
        page = client.get("/campaigns/birds", headers={"accept": "text/html"})
        assert page.status_code == 422
        assert "mine.yaml" in page.text
        birds = api.run("birds")
        for call in (birds.snapshot, birds.comparisons, birds.estimate, birds.beliefs):
            assert "mine.yaml" in refused(422, call)
