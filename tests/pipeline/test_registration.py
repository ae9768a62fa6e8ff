"""A registered study: what differs from its registration is listed, and nothing else is."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from llm_elicit.audit.hypotheses import RegisteredResults
from llm_elicit.cli import main as cli
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.progress import Silent
from llm_elicit.pipeline import registration, stages
from llm_elicit.pipeline.manifest import Manifest
from llm_elicit.pipeline.registration import Registered, Registration
from llm_elicit.pipeline.results import compare_runs
from llm_elicit.pipeline.run_folder import Run

pytestmark = pytest.mark.usefixtures("quick_fits")

ROOT = Path(__file__).parents[2]
CAMPAIGN: dict[str, Any] = {
    "name": "tiny", "space": "mine", "seed": 3,
    "design": {"pairs": 12, "presentations": {"wordings": ["mine/one", "mine/two"]}},
    "judges": [
        {"name": "expert", "backend": "simulated", "belief": "table", "log_odds": {"noise": 0.1}},
        {"name": "second", "backend": "simulated", "belief": "uniform", "log_odds": {"noise": 0.1}},
    ],
    "fit": {"samples": 100},
}  # fmt: skip
STUDY: dict[str, Any] = {
    "name": "trial", "campaigns": ["tiny"], "models": {"expert": "simulated/*"},
    "hypotheses": [
        {"claim": "consistent preference", "judge": "*"},
        {"claim": "follows the data", "judge": "expert", "space": "mine"},
        {"claim": "effect", "judge": "expert", "feature": "body_mass_g", "sign": "higher"},
        {"claim": "differs", "judge": "expert", "other": "second", "family": "judges"},
        {"claim": "depends on the wording", "judge": "expert", "family": "wording"},
    ],
}  # fmt: skip


def write(name: str, data: Any) -> Path:
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(data))
    return path


def check() -> RegisteredResults:
    return Registered.open(Path("study.yaml")).check(lambda run: compare_runs([run], Silent()))


def deviations() -> list[str]:
    study = Registered.open(Path("study.yaml"))
    return study.deviations(Registration.load(study.record))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was registered, asked and audited as it was registered."""
    folder = tmp_path_factory.mktemp("registered")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("datasets").mkdir()
        Path("prompts/mine").mkdir(parents=True)
        shutil.copy(ROOT / "datasets" / "penguins.csv.gz", "datasets")
        space = yaml.safe_load((ROOT / "datasets" / "penguins.yaml").read_text())
        space["features"] = [space["features"][0], space["features"][3]]
        Path("datasets/mine.yaml").write_text(yaml.safe_dump(space))
        for name, source in (("one", "typical"), ("two", "met")):
            text = (ROOT / "prompts" / "v2" / f"{source}.md").read_text()
            Path(f"prompts/mine/{name}.md").write_text(text.replace(f"v2/{source}", f"mine/{name}"))
        write("tiny", CAMPAIGN)
        stages.plan_grid("tiny.yaml")
        Registered.open(write("study", STUDY)).register()
        run = asyncio.run(stages.ask(Run.open("tiny.yaml")))
        for stage in (stages.fit, stages.audit):
            stage(run)
    return folder


@pytest.fixture
def study(asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that study, to be changed."""
    shutil.copytree(asked, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def edit(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def restate(**changes: Any) -> None:
    stated = yaml.safe_load(Path("study.yaml").read_text())
    write("study", stated | changes)


def replan(**changes: Any) -> None:
    write("tiny", CAMPAIGN | changes)


def change_row() -> None:
    path = Path("datasets/penguins.csv.gz")
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines[5] = lines[5].replace("1", "2", 1)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def change_answers(change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the table of answers as if it had been written so."""
    folder = Path("runs/tiny")
    path, manifest = folder / "comparisons.parquet", Manifest(folder)
    change(pd.read_parquet(path)).to_parquet(path)
    entry = manifest.entry("ask")
    assert entry is not None
    manifest.record("ask", entry.read, [path])


def other_version(answers: pd.DataFrame) -> pd.DataFrame:
    return answers.assign(
        model_answered=answers["model_answered"].mask(answers.index == 2, "simulated-2")
    )


def older(answers: pd.DataFrame) -> pd.DataFrame:
    return answers.assign(
        asked_at=answers["asked_at"].mask(answers["judge"] == "second", "2020-01-01T00:00:00.000")
    )


CHANGES: dict[str, tuple[Callable[[], None], str]] = {
    "a comma of a template": (
        lambda: edit("prompts/mine/one.md", "You compare", "You, compare"),
        "tiny: templates.mine/one: changed",
    ),
    "a row of the table": (change_row, "tiny: table: changed"),
    "a range of the space": (
        lambda: edit("datasets/mine.yaml", "high: 5980", "high: 5990"),
        "tiny: space.features.body_mass_g.high: 5980.0 registered, 5990.0 now",
    ),
    "the pairs": (
        lambda: replan(design=CAMPAIGN["design"] | {"pairs": 18}),
        "tiny: design.pairs: 12 registered, 18 now",
    ),
    "the seed": (lambda: replan(seed=4), "tiny: plan: changed"),
    "a setting of a judge": (
        lambda: replan(judges=[CAMPAIGN["judges"][0], CAMPAIGN["judges"][1] | {"seed": 8}]),
        "tiny: judges.second.settings.seed: 2597908330 registered, 8 now",
    ),
    "one more judge": (
        lambda: replan(judges=[*CAMPAIGN["judges"], CAMPAIGN["judges"][1] | {"name": "third"}]),
        "tiny: judges.third: not registered",
    ),
    "the fit": (
        lambda: replan(fit={"samples": 200}),
        "tiny: fit.samples: 100 registered, 200 now",
    ),
    "α": (lambda: restate(alpha=0.1), "alpha: 0.05 registered, 0.1 now"),
    "the correction": (
        lambda: restate(correction="none"),
        "correction: holm registered, none now",
    ),
    "a hypothesis": (
        lambda: edit("study.yaml", "sign: higher", "sign: lower"),
        "hypotheses.number 4.sign: higher registered, lower now",
    ),
    "the versions that may answer": (
        lambda: restate(models={"expert": ["simulated/*", "other"]}),
        "tiny: judges.expert.versions: ['simulated/*'] registered, "
        "['simulated/*', 'other'] now",
    ),
    "the version that answered": (
        lambda: change_answers(other_version),
        "tiny: expert: 1 answers by version simulated-2, which is not registered",
    ),
    "three answers": (
        lambda: change_answers(lambda answers: answers.iloc[3:]),
        "tiny: expert: 3 of 24 answers missing",
    ),
    "the time of the answers": (
        lambda: change_answers(older),
        "tiny: second: 24 answers are older than the registration",
    ),
    "the file of the pairs": (
        lambda: shutil.copy("runs/tiny/comparisons.parquet", "runs/tiny/plan.parquet") and None,
        "tiny: plan.parquet is missing, or changed since it was written",
    ),
    "a campaign": (
        lambda: replan(name="other"),
        "tiny: registered, but missing now",
    ),
}  # fmt: skip


def test_a_study_that_was_asked_as_registered_has_no_deviations(study: Path) -> None:
    results = check()
    assert results.deviations == ()
    assert [test.outcome for test in results.hypotheses].count("not tested") == 0
    audit = Run.open("tiny").audit
    for test, judge in zip(results.hypotheses, ("expert", "second"), strict=False):
        assert test.p_value == audit.of(judge).preference.p_value
    record = json.loads(Path("study.registration.json").read_text())
    texts = [text for text in str(record).split("'") if text.startswith("/")]
    assert texts == []
    assert str(study.parent) not in json.dumps(record)


@pytest.mark.usefixtures("study")
def test_templates_may_be_called_as_other_parts_of_the_page() -> None:
    registered = registration.Registration.load(Path("study.registration.json"))
    run = registered.runs["tiny"].model_copy(update={"templates": {"pairs": "1" * 64}})
    page = registration.page_of(registered.model_copy(update={"runs": {"tiny": run}}))
    assert f"- tiny: pairs `{run.plan[:12]}`, table `" in page
    assert "`, pairs `111111111111`\n" in page


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("study")
def test_each_change_is_listed_as_a_deviation(name: str) -> None:
    change, line = CHANGES[name]
    change()
    assert line in deviations()


@pytest.mark.usefixtures("study")
def test_another_version_of_the_code_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = registration.software_versions()
    changed = versions | {"llm-elicit": "0.2", "sources": "0" * 64}
    monkeypatch.setattr(registration, "software_versions", lambda: changed)
    now = versions["llm-elicit"]
    expected = (f"software.llm-elicit: {now} registered, 0.2 now", "software.sources: changed")
    assert deviations() == list(expected)


@pytest.mark.usefixtures("study")
def test_a_changed_study_and_a_changed_record_are_refused() -> None:
    restate(alpha=0.01)
    with pytest.raises(InputError, match=r"registered already.*alpha: 0.05 registered, 0.01 now"):
        Registered.open(Path("study.yaml")).register()
    edit("study.registration.json", '"alpha": 0.05', '"alpha": 0.5')
    with pytest.raises(InputError, match="changed since it was written; restore it"):
        deviations()


def test_the_study_of_the_documentation_can_be_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "register.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    Path("study.yaml").write_text(text)
    frozen = Registered.open(Path("study.yaml")).freeze()
    assert [hypothesis.claim for hypothesis in frozen.hypotheses] == [
        "consistent preference", "consistent preference", "follows the data", "effect", "differs",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 2}, "alpha: Input should be less than 0.5"),
        ({"correction": "bonferroni"}, "correction: Input should be 'holm' or 'none'"),
        ({"campaigns": ["nothing"]}, "no campaign 'nothing'"),
        ({"models": {"nobody": "x"}}, "models: no judge 'nobody'"),
        ({"hypotheses": [{"claim": "differs", "judge": "expert"}]}, "'differs' needs `other`"),
        ({"hypotheses": [{"claim": "effect", "judge": "expert", "feature": "x", "sign": "lower"}]},
         "no feature 'x'"),
        ({"hypotheses": [{"claim": "follows the data", "judge": "exprt"}]}, "no judge 'exprt'"),
        ({"hypotheses": [{"claim": "follows the data", "judge": "*", "space": "cars"}]},
         "no space 'cars'"),
        ({"hypotheses": [{"claim": "follows the data", "judge": ["*", "expert"]}]},
         "appears twice"),
        ({"hypothesis": []}, "hypothesis: unknown key; did you mean 'hypotheses'?"),
    ],
)  # fmt: skip
def test_a_study_that_cannot_be_registered_is_one_line(
    changes: dict[str, Any], message: str, study: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    Path("study.registration.json").unlink()
    restate(**changes)
    monkeypatch.setattr(sys, "argv", ["llm-elicit", "register", "study.yaml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not Path("study.registration.json").exists()


@pytest.mark.usefixtures("study")
def test_the_command_registers_once_and_a_run_and_its_report_say_what_was_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    before = Registration.load(Path("study.registration.json"))
    assert before.digest in command("register", "study.yaml")
    assert Registration.load(Path("study.registration.json")) == before
    assert "no deviations." in command("register", "study.yaml", "--check")
    assert json.loads(command("register", "study.yaml", "--check", "--json"))["deviations"] == []
    assert "registered: no deviations" in command("run", "tiny")
    page = Path("runs/tiny/report.html").read_text()
    assert "None: files, settings, software" in page
    for hypothesis in before.hypotheses:
        assert str(hypothesis) in page
    made_from = registration.reads(Run.open("tiny"))
    changed = registration.software_versions() | {"sources": "0" * 64}
    monkeypatch.setattr(registration, "software_versions", lambda: changed)
    run = Run.open("tiny")
    assert registration.reads(run) != made_from
    assert registration.notes_of(run)[1:] == ["  deviation: software.sources: changed"]
    results = registration.results_of(run, lambda run: compare_runs([run], Silent()))
    assert results is not None
    assert results.deviations == ("software.sources: changed",)
