"""Runs that an earlier version wrote: every stage works on them, and no question is asked again."""

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from llm_elicit import density
from llm_elicit.backends.simulated import SimulatedBackend
from llm_elicit.cli import main as cli
from llm_elicit.errors import InputError
from llm_elicit.orchestrator import Silent, kept_answers, status
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.run_folder import Run

SAVED = Path(__file__).with_name("saved") / "runs.tar.xz"
TABLE = Path(__file__).parents[2] / "datasets" / "penguins.csv.gz"
ANSWERS = {"plain": 101, "rounds": 40}


@pytest.fixture(params=["plain", "rounds"])
def run(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A saved run, in a folder of its own; asking a question or fitting a belief fails."""

    def refuse(*_, **__):
        raise AssertionError("the answers and beliefs are there already")

    with tarfile.open(SAVED) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.copy(TABLE, tmp_path)
    # The seed was 0 by default then; now it follows from the judge's name.
    rounds = (tmp_path / "rounds.yaml").read_text()
    (tmp_path / "rounds.yaml").write_text(
        rounds.replace("backend: simulated}", "backend: simulated, seed: 0}")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SimulatedBackend, "ask", refuse)
    monkeypatch.setattr(density, "fit_evidence", refuse)
    found = Run.open(request.param)
    before = kept_answers(found.location)
    yield found
    assert kept_answers(found.location) == before == ANSWERS[request.param]


def test_its_counts_answers_and_beliefs_are_read(run: Run, tmp_path: Path) -> None:
    name = run.campaign.name
    (counts,) = status(run.folder, run.campaign).values()
    assert counts.done == counts.total == ANSWERS[name]
    table = pd.read_csv(stages.export(run, tmp_path / "judgments.csv"))
    assert len(table) == len(run.comparisons) == sum(run.judgments.values())
    assert run.missing == {}
    belief = run.beliefs["expert"]
    points = belief.sample(100, seed=1)
    assert run.space.contains(run.space.round(points)).all()
    for method in run.campaign.fit.methods:
        density.BeliefDensity.load(run.belief_folder("expert", method)).log_prob(points)


def test_it_is_resumed_to_its_report(run: Run) -> None:
    again = stages.run(f"{run.campaign.name}.yaml", progress=Silent())
    assert again.problems == ()
    assert again.report_path.is_file()
    assert [judge.name for judge in again.audit.judges] == ["expert"]


def test_its_fit_has_nothing_to_do_and_its_report_is_made_again(run: Run) -> None:
    audit = (run.folder / "audit.json").read_bytes()
    stages.fit(run)
    stages.report(run)
    assert run.report_path.is_file()
    assert (run.folder / "audit.json").read_bytes() == audit


def test_another_campaign_is_still_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / f"{run.campaign.name}.yaml"
    file.write_text(file.read_text().replace("seed: ", "seed: 1", 1))
    with pytest.raises(InputError, match="its seed differs"):
        stages.plan(file)


def test_commands_name_the_keys_that_were_renamed_since(run: Run, monkeypatch, capsys) -> None:
    for command, name, warned in (
        ("status", run.campaign.name, False),
        ("plan", f"{run.campaign.name}.yaml", True),
    ):
        monkeypatch.setattr("sys.argv", ["llm-elicit", command, name])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert not ended.value.code
        assert run.campaign.name in shown.out or "expert" in shown.out
        lines = shown.err.splitlines()
        assert bool(lines) == warned
        assert all(line.startswith(f"warning: {name}: ") for line in lines)
