"""Runs in the formats of other tools, each checked by that format's own package or schema.

The schemas in schemas/ were taken on 2026-11-26 without their descriptions: that of Inspect from
its package (0.3.285; parts about agents are left out, and the package itself read the logs when
this was written), and those of Every Eval Ever from its package (0.3.0; it read the records then).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import mlcroissant
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

import llm_elicit as le
from llm_elicit.cli.main import app
from llm_elicit.errors import InputError
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.exchange import export_run

SCHEMAS = Path(__file__).parent / "schemas"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, quick_fits: None) -> le.Run:
    """An audited run over numbers and words."""
    del quick_fits
    folder = tmp_path_factory.mktemp("exchange")
    campaign = {
        "name": "exchange", "space": "penguins_kinds", "runs": str(folder / "runs"),
        "design": {"pairs": 12, "replicates": 2},
        "judges": [{"name": "expert", "backend": "simulated"}], "fit": {"method": "utility"},
    }  # fmt: skip
    path = folder / "exchange.yaml"
    path.write_text(yaml.safe_dump(campaign))
    return le.run(path)


def check(document: Any, schema: str) -> None:
    jsonschema.validate(document, json.loads((SCHEMAS / f"{schema}.json").read_text()))


def test_an_inspect_log_holds_every_question_and_the_results(run: le.Run, tmp_path: Path) -> None:
    paths = export_run(run, tmp_path / "logs", "inspect")
    assert [path.name for path in paths] == ["expert.json"]
    rows = run.comparisons.of("expert")
    log = json.loads(paths[0].read_text())
    check(log, "inspect-log")
    assert len(log["samples"]) == len(rows) == 48
    ids = [(sample["id"], sample["epoch"]) for sample in log["samples"]]
    assert len(set(ids)) == 48
    assert log["eval"]["config"] == {"epochs": 2}
    first = log["samples"][0]
    assert first["output"]["completion"] == rows["reply"].iloc[0]
    assert first["scores"]["preference"]["value"] == rows["probability"].iloc[0]
    asked = run.space.features[0].label
    assert asked in first["input"][-1]["content"]
    metrics = log["results"]["scores"][0]["metrics"]
    discrimination = run.audit.judges[0].discrimination
    assert discrimination is not None
    assert metrics["auc"]["value"] == discrimination.auc.value


def test_every_eval_ever_has_results_with_intervals_and_a_line_for_each_answer(
    run: le.Run, tmp_path: Path
) -> None:
    record, samples, *_ = export_run(run, tmp_path / "records", "eee")
    document = json.loads(record.read_text())
    check(document, "every-eval-ever")
    detail = document["detailed_evaluation_results"]
    assert tmp_path / "records" / detail["file_path"] == samples
    assert detail["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert len(lines) == detail["total_rows"] == 48
    for line in lines:
        check(line, "every-eval-ever-samples")
        assert line["evaluation_id"] == document["evaluation_id"]
    auc = document["evaluation_results"][-1]
    interval = auc["score_details"]["uncertainty"]["confidence_interval"]
    assert interval["lower"] <= auc["score_details"]["score"] <= interval["upper"]
    uncertainties = [r["score_details"]["uncertainty"] for r in document["evaluation_results"]]
    levels = [
        uncertainty["confidence_interval"]["confidence_level"] for uncertainty in uncertainties
    ]
    assert levels == [0.95, 0.95]  # the reliability and the AUC


def test_a_croissant_data_set_is_read_as_the_table(run: le.Run, tmp_path: Path) -> None:
    described, table = export_run(run, tmp_path / "data", "croissant", "CC-BY-4.0")
    dataset = mlcroissant.Dataset(jsonld=str(described))
    assert not dataset.metadata.ctx.issues.errors
    assert "CC-BY-4.0" in str(dataset.metadata.license)
    records = pd.DataFrame(dataset.records("judgments"))
    frame = run.comparisons.frame
    assert len(records) == len(frame) == len(pd.read_parquet(table))
    assert [bytes(judge).decode() for judge in records["judgments/judge"]] == list(frame["judge"])
    name = next(f.name for f in run.space.features if not f.categories)
    assert list(records[f"judgments/a_{name}"]) == list(frame[f"a_{name}"])


@pytest.mark.parametrize("format_", ["inspect", "eee", "croissant"])
def test_no_file_names_a_folder_of_this_machine(run: le.Run, tmp_path: Path, format_: Any) -> None:
    for path in export_run(run, tmp_path / "files", format_):
        assert str(run.folder.parent).encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "facets", [{}, {"presentations": {"wordings": "v2/*", "labels": ["A/B", "1/2"]}}]
)
def test_a_run_without_an_audit_has_its_questions(tmp_path: Path, facets: dict[str, Any]) -> None:
    campaign = {
        "name": "asked", "space": "penguins", "runs": str(tmp_path),
        "design": {"pairs": 16, **facets}, "judges": [{"name": "expert", "backend": "simulated"}],
    }  # fmt: skip
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(campaign))
    run = stages.plan(tmp_path / "asked.yaml")
    assert CliRunner().invoke(app, ["ask", str(tmp_path / "asked.yaml")]).exit_code == 0
    (path,) = export_run(run, tmp_path / "logs", "inspect")
    log = json.loads(path.read_text())
    check(log, "inspect-log")
    for sample in log["samples"]:  # in the wording in which each was sent
        assert run.space.features[0].label in sample["input"][-1]["content"]


def test_what_cannot_be_exported_is_said_in_one_line(run: le.Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="have no licence; use --format croissant"):
        export_run(run, tmp_path / "new", "inspect", "MIT")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="is not an empty folder; name a new one"):
        export_run(run, tmp_path / "full", "eee")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is not an empty folder"):
        export_run(run, tmp_path / "file", "croissant")


def test_the_command_writes_a_folder(run: le.Run, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    command = ["export", str(run.folder), str(folder), "--format", "inspect"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["expert.json"]
    again = CliRunner().invoke(app, command)
    assert isinstance(again.exception, InputError)
