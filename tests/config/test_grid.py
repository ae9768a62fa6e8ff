"""Grids: cells with names of their own, the same pairs for all, one cap, resumed one by one."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import llm_elicit as le
from llm_elicit._util.files import find
from llm_elicit._util.settings import validate
from llm_elicit.cli import main as cli
from llm_elicit.config.campaign import Campaign, cells
from llm_elicit.errors import CapError, InputError
from llm_elicit.orchestrator.journal.connection import RunLock
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.run_folder import Run, open_runs
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.testing.provider import Answer, Error, Provider

# Here a belief only has to be there.
pytestmark = pytest.mark.usefixtures("quick_fits")

TEMPLATES = ["v1/zero-shot", "v1/few-shot"]
KEYS = {"ANTHROPIC_API_KEY": "sk-a", "OPENAI_API_KEY": "sk-b"}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


def _judge(url: str, **settings: Any) -> dict[str, Any]:
    price = {"input": 1.0, "output": 1.0}
    judge = {"name": "gpt", "backend": "openai", "model": "m", "base_url": f"{url}/v1"}
    return {**judge, "price": price, "logprobs": False, "max_tokens": 4, **settings}


def _grid(url: str = "http://127.0.0.1:9", **rest: Any) -> dict[str, Any]:
    return {
        "name": "study",
        "design": {"pairs": 5},
        "judges": [_judge(url)],
        "grid": {"spaces": ["penguins"], "templates": TEMPLATES, "temperatures": [0, 0.7]},
        "fit": {"methods": ["utility"], "samples": 500},
        **rest,
    }


def _write(data: dict[str, Any]) -> str:
    Path("study.yaml").write_text(yaml.safe_dump(data))
    return "study.yaml"


def _ask(run: Run) -> Run:
    return asyncio.run(stages.ask(run))


def _call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_cells_have_stable_names_and_the_same_pairs() -> None:
    small = validate(Campaign, _grid(), "study.yaml")
    axes = {"spaces": ["penguins", "california_housing"], "templates": [*TEMPLATES, "v1/few-shot"]}
    with pytest.raises(InputError, match=r"two cells would be called 'study\.penguins\.v1-few-"):
        cells(validate(Campaign, _grid(grid=axes), "study.yaml"))
    axes["templates"] = TEMPLATES
    large = validate(Campaign, _grid(grid=axes, design={"pairs": 9}), "study.yaml")
    names = [cell.name for cell in cells(large)]
    assert names[:2] == [cell.name for cell in cells(small)]
    assert len(set(names)) == 4
    judges = [judge.name for judge in cells(small)[0].judges]
    assert judges == ["gpt-t0", "gpt-t0.7"]
    assert len(cells(large)[0].judges) == 1
    plans = [Run(cell.folder, cell, cell.load_space()).plan for cell in cells(large)]
    assert np.array_equal(plans[0].a, plans[1].a)
    assert plans[0].a.shape != plans[2].a.shape


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"judges": [{"name": "e", "backend": "simulated"}]},
            "'e' .simulated. does not support temp",
        ),
        ({"judges": [_judge("http://x", temperature=1)]}, "sets its own temperature"),
        ({"space": "iris"}, "is not among grid.spaces"),
        ({"grid": {"template": ["v1/few-shot"]}}, "unknown key"),
    ],
)
def test_a_grid_that_cannot_be_is_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        cells(validate(Campaign, {"space": "penguins", **_grid(), **change}, "study.yaml"))
    assert "\n" not in str(caught.value)


def test_a_grid_of_temperatures_alone_is_a_campaign_with_more_judges() -> None:
    data = _grid(grid={"temperatures": [0, 1]}, space="penguins")
    (cell,) = cells(validate(Campaign, data, "study.yaml"))
    assert (cell.name, cell.part_of, len(cell.judges)) == ("study", None, 2)


def test_cells_resume_on_their_own_and_a_grid_can_grow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Provider(lambda _n, _body: Answer("A")) as provider:
        path = _write(_grid(provider.url))
        assert _call(monkeypatch, "plan", path) == 0
        assert _call(monkeypatch, "ask", "runs/study.penguins.v1-few-shot") == 0
        assert len(provider.seen) == 20
        capsys.readouterr()
        assert _call(monkeypatch, "status", "study") == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        table, said = lines[1:5], lines[5:]
        done = {(row[0], row[1]): row[2] for row in table}
        assert done == {
            (f"study.penguins.v1-{cell}", f"gpt-t{t}"): count
            for cell, count in (("zero-shot", "0"), ("few-shot", "10"))
            for t in ("0", "0.7")
        }
        assert [line[:4] for line in said] == [
            [f"gpt-t{t}:", *words]
            for t in ("0", "0.7")
            for words in (["log-odds:", "none,", "because"], ["answers", "given", "by"])
        ]
        assert _call(monkeypatch, "ask", "runs/study") == 0
        assert len(provider.seen) == 40
        grown = _grid(provider.url)
        grown["grid"]["spaces"].append("california_housing")
        grown["design"] = {"pairs": 8}
        assert _call(monkeypatch, "ask", _write(grown)) == 2, "its cells ask other questions now"
        grown["design"] = {"pairs": 5}
        grown["grid"] = {**grown["grid"], "spaces": ["penguins"]}
        grown["grid"]["templates"] = [*TEMPLATES, _template_of_ones_own()]
        assert _call(monkeypatch, "ask", _write(grown)) == 0
        assert len(provider.seen) == 60
        temperatures = sorted(seen.body["temperature"] for seen in provider.seen)
        assert temperatures == [0.0] * 30 + [0.7] * 30
    with pytest.raises(InputError, match=r"is a grid, whose cells are study\.penguins\.v1-zero"):
        Run.open("study")


def _template_of_ones_own() -> str:
    text = find("prompts", "v1/zero-shot", ".md").read_text()
    Path("prompts/mine").mkdir(parents=True)
    changed = text.replace("id: v1/zero-shot", "id: mine/plain").replace("made-up", "invented")
    assert changed != text
    Path("prompts/mine/plain.md").write_text(changed + "Think well.\n")
    return "mine/plain"


def test_a_cap_holds_over_all_cells() -> None:
    billed = {"prompt_tokens": 200, "completion_tokens": 4}
    with Provider(lambda _n, _body: Answer("A", **billed)) as provider:
        each = 204 / 1e6
        limits = {"max_cost": 36 * each}
        path = _write(_grid(provider.url, limits=limits))
        first, second = stages.plan_grid(path)
        for _ in range(2):
            assert not _ask(first).problems
            with pytest.raises(CapError):
                _ask(second)
            assert 20 < len(provider.seen) < 40
            assert len(provider.seen) * each <= limits["max_cost"] + 1e-12
        held = RunLock(Path("runs/study"))
        with held, pytest.raises(InputError, match="another process is running"):
            _ask(second)
        path = _write(_grid(provider.url, limits={"max_cost": 1.0}))
        for cell in stages.plan_grid(path):
            assert not _ask(cell).problems
        assert len(provider.seen) == 40


def test_trouble_in_one_cell_leaves_the_others_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(_number: int, body: dict[str, Any]) -> Answer | Error:
        return Error(401, "no") if len(body["messages"]) > 2 else Answer("B")

    with Provider(behave) as provider:
        path = _write(_grid(provider.url))
        shots = [len(_first_prompt(cell)) for cell in open_runs(path)]
        assert min(shots) <= 2 < max(shots), "the templates' prompts tell the cells apart"
        assert _call(monkeypatch, "ask", path) == 2, "the provider refuses the key"
        done = [len(cell.comparisons) for cell in open_runs(path)]
        assert sorted(done) == [0, 20]
        found = le.run_grid(path, progress=le.Silent())
        assert list(found) == ["study.penguins.v1-zero-shot"]
        (cell,) = found.values()
        assert cell.report_path.is_file()
        assert list(cell.beliefs) == ["gpt-t0", "gpt-t0.7"]


def _first_prompt(cell: Run) -> tuple[Any, ...]:
    template = Template.load(cell.campaign.design.template)
    points = cell.plan.points_in_order(next(iter(cell.plan)))
    return render(cell.space, *points, template).messages


def test_efforts_and_thinking_tokens_are_axes() -> None:
    judge = {"name": "gpt", "backend": "openai", "model": "m"}
    axes = {"efforts": ["low", "high"], "thinking_tokens": [500, 16_000]}
    study = {"name": "study", "space": "penguins", "judges": [judge], "grid": axes}
    (cell,) = cells(validate(Campaign, study, "study.yaml"))
    names = ["gpt-low-thinking500", "gpt-low-thinking16000", "gpt-high-thinking500"]
    assert [judge.name for judge in cell.judges] == [*names, "gpt-high-thinking16000"]
    assert [getattr(judge, "effort", None) for judge in cell.judges] == ["low"] * 2 + ["high"] * 2
    simulated = {**study, "judges": [{"name": "s", "backend": "simulated"}]}
    with pytest.raises(
        InputError, match=r"grid.efforts: judge 's' \(simulated\) does not support effort"
    ):
        cells(validate(Campaign, simulated, "study.yaml"))
