"""A campaign over HTTP, from its YAML to its report and its end."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import httpx2
import jsonschema
import numpy as np
import pandas as pd
import pytest
from openapi_spec_validator import validate
from typer.testing import CliRunner

from llm_elicit._util.settings import to_yaml
from llm_elicit.cli.main import app
from llm_elicit.client import AsyncClient, ServiceError, ServiceRun
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import CancelledRunError, ConflictError
from llm_elicit.pipeline.snapshot import RunSnapshot
from llm_elicit.service.calls import Call
from tests.report.browser import CHROMIUM, opened
from tests.service.serving import Served, has_done, is_in, refused, serving, start, until
from tests.service.test_pages_browser import display, findings, goto
from tests.service.test_security import problem

EXPERT = {"name": "expert", "backend": "simulated", "belief": "uniform"}


def campaign(name: str = "birds", **more: Any) -> dict[str, Any]:
    """A small campaign without cost."""
    design = {"pairs": 20, **more.pop("design", {})}
    fit = {"method": "utility", "samples": 100}
    return {
        "name": name, "space": "penguins_kinds", "design": design, "judges": [EXPERT], "fit": fit,
        **more,
    }  # fmt: skip


def slow(name: str, pairs: int = 500, latency: float = 0.1) -> dict[str, Any]:
    """A campaign that asks for 100 seconds, and waits for most of them."""
    judge = EXPERT | {"concurrency": 1, "latency": latency}
    return campaign(name, design={"pairs": pairs}, judges=[judge])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that starts with a campaign of its operator, which then waits for Ada."""
    folder = tmp_path_factory.mktemp("service")
    ada = {"name": "panel", "backend": "human", "experts": ["ada"]}
    (folder / "operators.yaml").write_text(to_yaml(campaign("operators", judges=[EXPERT, ada])))
    with serving(folder, "--start", "operators.yaml") as one:
        yield one


@pytest.fixture(scope="module")
def done(served: Served) -> httpx.Client:
    """A client of a service with a campaign that is done."""
    (served.folder / "birds.yaml").write_text(to_yaml(campaign()))
    with served.api() as client:
        assert client.start(served.folder / "birds.yaml").wait().state == "done"
    return served.client()


@pytest.fixture(scope="module")
def birds(served: Served, done: httpx.Client) -> Iterator[ServiceRun]:
    """The run of this campaign, as a client of the API sees it."""
    with served.api() as client:
        yield client.run("birds")


@pytest.fixture(scope="module")
def beasts(served: Served) -> Iterator[ServiceRun]:
    """The run of another campaign that is done, of another judge."""
    with served.api() as client:
        run = client.start(campaign("beasts", judges=[EXPERT | {"name": "other", "seed": 9}]))
        assert run.wait().state == "done"
        yield run


def test_results_of_a_campaign(served: Served, birds: ServiceRun) -> None:
    snapshot = birds.snapshot()
    assert (snapshot.judges["expert"].done, snapshot.cost, snapshot.report) == (40, 0.0, True)
    assert "penguins_kinds" in birds.campaign()
    assert birds.estimate().judges[0].requests == 0
    assert birds.label("seen", "new").tags == ("new", "seen")
    with served.api() as client:
        assert "birds" in {run.name for run in client.runs(q="bir", limit=10).runs}
        assert client.health().status == "ok"
        assert {judge.backend for judge in client.models().judges} == {"simulated", "human"}
        assert "v1/zero-shot" in {template.name for template in client.templates()}
        assert "another name" in refused(409, client.start, campaign())


def test_every_answer_is_as_the_document_says(done: httpx.Client, birds: ServiceRun) -> None:
    """By raw HTTP: the client leaves out what it does not know."""
    document = done.get("/api/v1/openapi.json").json()
    validate(document)
    checked = set()
    for path, operations in document["paths"].items():
        if "get" not in operations or path.endswith(("/spaces/{name}", "/compare")):
            continue
        answer = done.get(path.format(name="birds", judge="expert"))
        kind = answer.headers["content-type"].partition(";")[0]
        content = operations["get"]["responses"][str(answer.status_code)]["content"]
        assert kind in content, path
        if kind == "application/json":
            assert content[kind]["schema"], path
            schema = content[kind]["schema"] | {"components": document["components"]}
            jsonschema.validate(answer.json(), schema, jsonschema.Draft202012Validator)
        checked.add(path.rpartition("/")[2])
    assert checked >= {"audit", "comparisons", "answers", "beliefs", "samples", "report", "events"}


def test_the_same_creation_is_repeated_by_its_key(served: Served) -> None:
    """By raw HTTP: the client makes a key for each creation."""
    sent = campaign("keyed")
    path, key = "/api/v1/campaigns?start=false", {"Idempotency-Key": "one"}
    with served.client(headers=key) as client:
        first, again = (client.post(path, json=sent) for _ in range(2))
        assert first.status_code == again.status_code == 201, again.text
        assert again.json()["name"] == "keyed"
        assert again.headers["location"] == first.headers["location"]
        other = client.post(path, json=sent | {"name": "other"})
        assert "came with another request" in problem(other, 422)
        problem(client.post(path, json=sent, headers={"Idempotency-Key": "two"}), 409)
        client.delete("/api/v1/campaigns/keyed?purge=true")


def test_commands_with_a_service(
    served: Served, birds: ServiceRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(served.folder)
    there = ["--service", served.address]

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, *there])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "report: runs/birds.html" in said("run", "birds.yaml")  # which is done there
    assert Path("runs/birds.html").read_text() == birds.report()
    assert "40" in said("status", "birds")
    for suffix in ("csv", "jsonl", "parquet"):
        assert f"exported.{suffix}" in said("export", "birds", f"exported.{suffix}")
    assert len(pd.read_parquet("exported.parquet")) == len(pd.read_csv("exported.csv")) == 40
    result = CliRunner().invoke(app, ["status", "nothing", *there])
    assert isinstance(result.exception, ServiceError)
    assert result.exception.exit_code == 2


def test_an_asynchronous_client(served: Served, birds: ServiceRun) -> None:
    async def follow() -> None:
        async with AsyncClient(served.address) as client:
            run = client.run("birds")
            assert (await run.wait()).state == "done"
            assert [event async for event in run.events()] == list(birds.events())
            drawn = await run.belief("expert").sample(3)
            assert drawn.equals(birds.belief("expert").sample(3))
            with pytest.raises(ServiceError, match="no campaign 'nothing'"):
                await client.run("nothing").snapshot()

    asyncio.run(follow())
    assert Call("POST", "campaigns", bytes, repeatable=True).is_worth_repeating(
        httpx2.ReadError("broken off")
    )
    assert not Call("POST", "campaigns", bytes).is_worth_repeating(httpx2.ReadError("broken off"))


def test_answers_that_the_belief_expects_least_come_first(birds: ServiceRun) -> None:
    table = birds.comparison_page(limit=40).rows
    features = [key[2:] for key in table[0] if key.startswith("a_")]
    points = ([[row[f"{side}_{name}"] for name in features] for row in table] for side in "ab")
    log_a, log_b = (np.array(birds.belief("expert").log_prob(side), float) for side in points)
    sign = np.array([2.0 * row["probability"] - 1.0 for row in table])
    places = [(row["pair"], row["order"]) for row in table]
    margins = dict(zip(places, sign * (log_a - log_b), strict=True))
    ranked: list[float] = []
    for after in (0, 15):
        page = birds.answers(judge="expert", sort="residual", limit=15, after=after)
        ranked += [
            min(margins[item.pair, answer.order] for answer in item.orders)
            for item in page.questions
        ]
    assert len(ranked) == 20
    assert ranked == pytest.approx(sorted(ranked))
    assert "name one judge" in refused(422, birds.answers, sort="residual")


def test_judges_are_compared_and_a_deletion_is_undone(
    done: httpx.Client, served: Served, birds: ServiceRun, beasts: ServiceRun
) -> None:
    beasts.delete()
    refused(404, beasts.snapshot)
    beasts.restore()
    assert beasts.snapshot().judges["other"].done == 40
    with served.api() as client:
        assert client.compare("birds", "beasts")["judges"] == ["expert", "other"]
        assert "at least two different judges" in refused(422, client.compare, "birds")
        assert "no audit yet" in refused(404, client.compare, "operators")
    page = done.get("/compare", params={"run": ["birds", "beasts"]})
    assert page.status_code == 200, page.text
    for text in ("expert, other", "Wasserstein-1", "Rank correlation"):
        assert text in page.text


def test_a_campaign_that_has_ended_is_repeated(
    done: httpx.Client, served: Served, birds: ServiceRun
) -> None:
    assert 'action="/campaigns/birds/repeat"' in done.get("/campaigns/birds").text
    with served.api() as client:
        at_work = refused(409, client.run("operators").repeat)
        assert "is running; repeat it when it has ended" in at_work
    again = birds.repeat("birds-again")
    assert again.name == "birds-again"
    until(again, has_done(39))
    assert again.snapshot().judges["expert"].cached == 0
    again.cancel()
    refused(422, birds.repeat, "operators")
    refused(422, birds.repeat, "../x")


def test_comparisons_in_every_format(done: httpx.Client, birds: ServiceRun, served: Served) -> None:
    page = birds.comparison_page(offset=35, limit=10)
    assert page.total == 40
    assert len(page.rows) == 5
    assert page.rows[0]["judge"] == "expert"
    lines = birds.export("jsonl").decode().splitlines()
    assert len(lines) == 40
    assert [json.loads(line) for line in lines[35:]] == page.rows
    tables = pd.read_csv(io.BytesIO(birds.export("csv"))), birds.comparisons()
    for column in ("a_species", "b_bill_length_mm", "probability"):
        values = [row[column] for row in page.rows]
        assert [table[column].tolist()[35:] for table in tables] == [values, values]
    assert {row["a_species"] for row in page.rows} <= {"Adelie", "Chinstrap", "Gentoo"}
    path = "/api/v1/campaigns/birds/comparisons"
    parquet = done.get(path, params={"format": "parquet"})
    assert 'filename="birds.parquet"' in parquet.headers["content-disposition"]
    until, exports = time.monotonic() + 10.0, served.runs / ".service" / "exports"
    while list(exports.iterdir()):  # a file goes once its last part is sent
        assert time.monotonic() < until
        time.sleep(0.05)
    problem(done.get(path, params={"format": "xlsx"}), 422)


def test_a_belief(birds: ServiceRun) -> None:
    assert birds.beliefs() == ["expert"]
    belief = birds.belief("expert")
    marginals = {line.feature: line for line in belief.marginals()}
    assert sum((marginals["species"].shares or {}).values()) == pytest.approx(1.0)
    numeric = next(line for line in marginals.values() if line.quantiles)
    assert (numeric.sd or 0.0) > 0.0
    drawn = belief.sample(20, seed=3)
    assert len(drawn) == 20
    assert set(drawn.columns) == set(marginals)
    assert drawn.equals(belief.sample(20, seed=3))
    by_name = belief.log_prob(drawn)
    assert by_name == belief.log_prob(drawn.to_numpy().tolist())
    assert np.isfinite(np.array(by_name, dtype=float)).all()
    beyond = dict(zip(drawn.columns, drawn.iloc[0], strict=True)) | {numeric.feature: 1e9}
    assert belief.log_prob([beyond]) == [None]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([[1.0]], "points[0]: 1 values"),
        ([{"species": 1.0}], "points[0]: 1 values"),
        ([], "points"),
        ("text", "points"),
        ([[True, None]], "points"),
    ],
)
def test_points_that_are_none(done: httpx.Client, points: Any, said: str) -> None:
    """By raw HTTP: most of these bodies the client cannot send."""
    answer = done.post("/api/v1/campaigns/birds/beliefs/expert/log-prob", json={"points": points})
    assert said in problem(answer, 422)


def test_wrong_words_of_points_are_named(birds: ServiceRun) -> None:
    belief = birds.belief("expert")
    [point] = belief.sample(1).to_dict("records")
    assert "Dodo" in refused(422, belief.log_prob, [point | {"species": "Dodo"}])
    answer = refused(422, belief.log_prob, [point | {"species": 1.0}])
    assert "species: got 1.0; give the name of a category" in answer
    assert "no belief of 'nobody'" in refused(404, birds.belief("nobody").marginals)
    refused(422, belief.sample, 10**9)


def test_audit_and_report(done: httpx.Client, birds: ServiceRun) -> None:
    """The report by raw HTTP, for its headers."""
    assert birds.audit()["judges"][0]["name"] == "expert"
    report = done.get("/api/v1/campaigns/birds/report")
    assert report.headers["content-type"].startswith("text/html")
    policy = report.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert "script-src 'unsafe-inline'" not in policy


def test_campaigns_on_one_panel(done: httpx.Client, served: Served) -> None:
    assert 'formaction="/selection/panel"' in done.get("/").text
    before = served.computed()
    page = done.get("/panel", params={"run": ["birds", "birds"]})
    assert page.status_code == 200, page.text
    assert "Worth in rows" in page.text
    computed = served.computed()
    again = done.get("/panel", params={"run": ["birds", "birds"]})
    assert again.text == page.text
    assert served.computed() - computed < (computed - before) / 2  # it is computed once
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "script-src 'sha256-" in policy
    for names, status in (
        (["nowhere"], 404),
        (["../birds"], 422),
        ([f"a{i}" for i in range(9)], 422),
    ):
        assert done.get("/panel", params={"run": names}).status_code == status


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_power_slider_of_a_served_report_moves(
    done: httpx.Client, served: Served, tmp_path: Path
) -> None:
    """By real keys, in the sandbox of the service."""
    with opened(CHROMIUM, "about:blank", tmp_path / "profile") as tab:
        tab.watch()
        address = f"{served.address}/api/v1/campaigns/birds/report"
        tab.send("Page.navigate", url=address)
        end = time.monotonic() + 60.0
        while not tab.run(f"location.href === {address!r} && document.readyState === 'complete'"):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert tab.faults() == []
        slider = "document.querySelector('.power input')"
        assert tab.run(f"getComputedStyle({slider}.closest('.power')).display") != "none"
        tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        tab.run(f"{slider}.focus()")
        seen = set()
        for _ in range(2):
            tab.press("ArrowRight", 39)
            words = tab.run("document.querySelector('.power output').textContent")
            assert words == tab.run(f"{slider}.getAttribute('aria-valuetext')")
            seen.add(words)
        assert len(seen) == 2
        shown = "document.querySelectorAll('.figures [data-step]:not(.off)')"
        assert tab.run(f"[...{shown}].every((e) => e.dataset.step === {slider}.value)")
        assert tab.run(f"{shown}.length") > 0


@pytest.mark.usefixtures("beasts")
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_pages_of_results_are_accessible_and_lead_to_answers(
    done: httpx.Client, served: Served, tmp_path: Path
) -> None:
    with opened(CHROMIUM, "about:blank", tmp_path / "profile") as tab:
        for path in ("/compare?run=birds&run=beasts", "/panel?run=birds&run=beasts",
                     "/campaigns/birds/answers?judge=expert", "/campaigns/birds"):  # fmt: skip
            for width in (390, 1280):
                display(tab, width)
                goto(tab, f"{served.address}{path}")
                assert tab.run("document.documentElement.scrollWidth") <= width, path
            assert findings(tab) == [], path
        address = tab.run("document.querySelector('#belief .bins a').getAttribute('href')")
    page = done.get(address)
    assert page.status_code == 200
    assert 'aria-labelledby="q' in page.text


def test_events_can_be_replayed_from_any_number(done: httpx.Client, birds: ServiceRun) -> None:
    every = list(birds.events())
    assert [event.seq for event in every] == list(range(1, len(every) + 1))
    assert every[-1].data["state"] == "done"
    assert {"planned", "answered", "fitted", "audited", "reported", "state"} <= {
        event.kind for event in every
    }
    assert list(birds.events(every[3].seq)) == every[4:]
    # By raw HTTP, what the client does not send: numbers of no event, for which all are sent.
    path = "/api/v1/campaigns/birds/events"
    problem(done.get(path, params={"since": 10**30}), 422)
    for number in ("9" * 5_000, "x"):
        stream = done.get(path, headers={"last-event-id": number})
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.text.count("\nid: ") == len(every)
    assert done.get(path, headers={"last-event-id": str(every[-1].seq)}).status_code == 204


def seen_until(run: ServiceRun, state: str) -> list[int]:
    """Return the numbers of the events of a run until it is in a state."""
    numbers = []
    for event in run.events():
        numbers.append(event.seq)
        if event.data.get("state") == state:
            break
    return numbers


def test_what_does_not_exist_is_404(served: Served) -> None:
    with served.api() as client:
        run = client.run("nothing")
        for call in (
            run.snapshot, run.audit, run.report, run.comparisons, run.beliefs, run.pause,
            run.resume, run.cancel, run.start, run.delete, run.restore,
        ):  # fmt: skip
            refused(404, call)
        refused(404, lambda: list(run.events()))
        refused(404, client.space, "../penguins")


def test_a_dry_run_keeps_and_sends_nothing(served: Served) -> None:
    with served.api() as client:
        dry = client.dry_run(Campaign.model_validate(campaign("dry")))
        assert dry.pairs == 20
        assert dry.judges[0].requests == 40
        assert dry.examples[0][-1].role == "user"
        refused(404, client.run("dry").snapshot)
        assert not (served.runs / "dry").exists()


def test_pause_resume_retune_cancel_delete(served: Served) -> None:
    with served.api() as client:
        run = client.start(slow("long"))
        until(run, has_done(5))
        paused = run.pause()
        assert paused.state == "paused"
        asked = paused.judges["expert"].done
        time.sleep(0.5)
        assert run.snapshot().judges["expert"].done == asked
        assert run.comparison_page(limit=1).total == len(run.comparisons()) == asked
        assert run.retune(concurrency=2).concurrency == 2
        refused(422, run.retune, concurrency=0)
        refused(422, run.retune, concurrency=10**6)
        run.resume()
        until(run, has_done(asked))
        asked = run.comparison_page(limit=1).total
        cancelled = run.cancel()
        assert cancelled.state == "cancelled"
        total = run.comparison_page(limit=1).total
        assert total == cancelled.judges["expert"].done >= asked
        with pytest.raises(CancelledRunError):
            run.wait()
        with pytest.raises(ConflictError):
            run.pause()
        run.delete()
        refused(404, run.snapshot)
        assert not (served.runs / "long").exists()


def test_commands_steer_a_run_of_a_service(served: Served) -> None:
    there = ["--service", served.address]

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, *there])
        assert result.exit_code == 0, result.output
        return result.stdout

    with served.api() as client:
        run = client.start(slow("steered"))
        until(run, has_done(5))
        assert said("pause", "steered").startswith("steered: paused; ")
        assert ["steered", "paused"] in [line.split()[:2] for line in said("status").splitlines()]
        assert "steered" in {run["name"] for run in json.loads(said("status", "--json"))["runs"]}
        facts = json.loads(said("resume", "steered", "--concurrency", "2", "--json"))
        assert (facts["state"], run.snapshot().concurrency) == ("running", 2)
        assert said("cancel", "steered").startswith("steered: cancelled; ")
        result = CliRunner().invoke(app, ["pause", "steered", *there])
        assert isinstance(result.exception, ServiceError)
        assert result.exception.status == 409
    result = CliRunner().invoke(app, ["status"])
    assert str(result.exception) == "name a run, or list those of a service with --service URL"


def test_a_campaign_can_wait_to_be_started(served: Served) -> None:
    with served.api() as client:
        run = client.start(campaign("waits"), paused=True)
        assert until(run, is_in("paused")).judges["expert"].done == 0
        run.start()
        until(run, has_done(0))
        run.cancel()


def test_a_stopped_service_takes_its_runs_up_again_and_so_does_a_killed_one(
    tmp_path: Path,
) -> None:
    served = start(tmp_path)
    with served.api() as client:
        run = client.start(slow("one"))
        waiting = client.start(slow("two"), paused=True)
        until(run, has_done(5))
        until(waiting, is_in("paused"))
        events = run.events()
        next(events)
        assert served.stop() == 0  # a reader does not keep it from stopping
    again = start(tmp_path)
    with again.api() as client:
        until(client.run("one"), is_in("running"))
        assert until(client.run("two"), is_in("paused")).judges["expert"].done == 0
        until(client.start(slow("killed", latency=0.03)), has_done(50))
    again.stop(signal.SIGKILL)
    with serving(tmp_path) as third, third.api() as client:
        # Nothing is asked twice, and nothing is lost.
        killed = client.run("killed")
        until(killed, has_done(100))
        killed.cancel()
        numbers = [event.seq for event in killed.events()]
        assert numbers == list(range(1, len(numbers) + 1))
    with sqlite3.connect(tmp_path / "runs" / "killed" / "journal.sqlite") as db:
        every = "SELECT count(*), count(DISTINCT question) FROM answers"
        (answers, questions), *_ = db.execute(every).fetchall()
        assert answers == questions > 100


def test_a_service_takes_over_the_runs_of_one_that_was_killed(served: Served) -> None:
    takes_over(served)


def takes_over(other: Served, *options: str) -> None:
    """While it serves: nothing is lost, nothing is asked twice, and what waited still waits."""
    with ExitStack() as stack:
        one = start(other.folder, *options)
        stack.callback(one.stop, signal.SIGKILL)
        here, there = (stack.enter_context(each.api()) for each in (one, other))
        own = here.start(slow("asks"))
        here.start(slow("waits-too"), paused=True)
        until(own, has_done(5))
        asks, waits = there.run("asks"), there.run("waits-too")
        until(waits, is_in("paused"))
        one.stop(signal.SIGKILL)
        killed = other.clock()
        snapshot = asks.snapshot()
        done, states = snapshot.judges["expert"].done, {snapshot.state}

        def goes_on(snapshot: RunSnapshot) -> bool:
            states.add(snapshot.state)
            return snapshot.judges["expert"].done > done + 5

        until(asks, goes_on)
        assert other.clock() - killed < 40.0  # six seconds until it counts as dead
        assert states <= {"running", "interrupted", "planned"}
        assert until(waits, is_in("paused")).judges["expert"].done == 0
        assert asks.pause().state == "paused"
        with other.client() as raw:  # a text for Prometheus, which the client does not read
            assert "llm_elicit_campaigns{" in raw.get("/metrics").text
        numbers = seen_until(asks, "paused")
        assert numbers == list(range(1, len(numbers) + 1))
        for run in (asks, waits):
            run.cancel()


def test_a_second_service_leaves_the_runs_of_a_living_one_alone(served: Served) -> None:
    """It shows them, and passes on what it is asked to do with them."""
    with ExitStack() as stack:
        other = stack.enter_context(serving(served.folder))
        first, second = (stack.enter_context(each.api()) for each in (served, other))
        own, passed_on = first.start(slow("shared")), second.run("shared")
        until(own, has_done(5))
        time.sleep(8.0)  # it takes six seconds to know whether a process lives
        for run in (own, passed_on):
            assert until(run, is_in("running")).problems == ()
        passed_on.retune(concurrency=2)
        until(own, lambda snapshot: snapshot.concurrency == 2)
        assert passed_on.start().state == "running"  # it is at work already
        assert own.snapshot().state == "running"
        passed_on.pause()
        until(own, is_in("paused"))
        passed_on.cancel()
        until(passed_on, is_in("cancelled"))


def test_runs_of_other_processes_are_shown(served: Served) -> None:
    (served.folder / "own.yaml").write_text(to_yaml(campaign("own")))
    with served.api() as client:
        subprocess.run(
            [sys.executable, "-m", "llm_elicit", "ask", "own.yaml"], cwd=served.folder, check=True
        )
        run = client.run("own")
        assert run.snapshot().judges["expert"].done == 40
        numbers = [event.seq for event in run.events()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert "start it" in refused(409, run.pause)
        run.start()
        until(run, lambda snapshot: snapshot.stage not in ("plan", "ask"))
        run.cancel()
        run.delete()


def test_a_run_whose_process_died_is_interrupted_and_can_be_resumed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the list, on its page, in a bundle and on the command line."""
    monkeypatch.chdir(served.folder)
    Path("died.yaml").write_text(to_yaml(slow("died")))
    with served.api() as client:
        run = client.run("died")
        with subprocess.Popen([sys.executable, "-m", "llm_elicit", "ask", "died.yaml"]) as asking:
            end = time.monotonic() + 60.0
            while "died" not in {listed.name for listed in client.runs(q="died").runs}:
                assert time.monotonic() < end
                time.sleep(0.2)
            assert until(run, has_done(5)).state == "running"
            asking.kill()
        until(run, is_in("interrupted"))
        with served.client() as browser:
            page = browser.get("/campaigns/died", headers={"accept": "text/html"}).text
        assert "interrupted: its process has ended" in page
        assert 'action="/campaigns/died/start"' in page
        assert "asking" not in page
        for words in (["status", "died"], ["bundle", "died", "died.html"]):
            said = CliRunner().invoke(app, words)
            assert said.exit_code == 0, said.output
            text = said.stdout if words[0] == "status" else Path("died.html").read_text()
            assert "interrupted" in text
            assert "llm-elicit run runs/died" in text
            assert "asking" not in text
        assert run.snapshot().state == "interrupted"  # a command's
        run.start()
        until(run, is_in("running"))
        run.cancel()


def test_a_campaign_is_deleted_once_and_its_name_is_free_again(served: Served) -> None:
    def delete(run: ServiceRun) -> int:
        try:
            run.delete()
        except ServiceError as error:
            return error.status
        return 204

    with served.api() as client:
        for _ in range(2):
            run = client.start(slow("again"))
            until(run, has_done(5))
            with ThreadPoolExecutor(3) as threads:
                codes = sorted(threads.map(delete, [run] * 3))
            assert codes[0] == 204
            assert set(codes) <= {204, 404, 422}
            refused(404, run.snapshot)
            assert not (served.runs / "again").exists()


def test_people_of_a_run_and_their_links(served: Served) -> None:
    with served.api() as client:
        run = client.run("operators")
        until(run, lambda snapshot: snapshot.stage == "ask")
        assert run.add_experts("panel", "cleo") == ["ada", "cleo"]
        issued = run.issue_link("panel", "cleo", days=2)
        assert issued.url.startswith(f"{served.address}/judge/")
        assert run.links() == [issued.link]
        ada, cleo = run.experts()
        assert (ada.expert, ada.links, cleo.links) == ("ada", [], [issued.link])
        assert cleo.progress is not None
        assert (cleo.progress.answered, cleo.progress.left) == (0, 40)
        run.revoke_link(issued.link.id)
        assert run.links()[0].revoked is not None
        run.remove_expert("panel", "cleo")
        assert [person.expert for person in run.experts()] == ["ada"]
        refused(404, run.revoke_link, "none")
        refused(422, run.issue_link, "panel", "cleo")
        assert "allows at most" in refused(422, run.add_experts, "panel", *map(str, range(1000)))


def test_an_operators_campaign_starts_with_the_service(served: Served) -> None:
    with served.api() as client:
        until(client.run("operators"), has_done(39))
