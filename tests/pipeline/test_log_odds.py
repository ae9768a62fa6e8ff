"""What a judge was found to give stands with the run: in status, its pages and the manifest."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_elicit.cli import main as cli
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.snapshot import stored_snapshot
from llm_elicit.testing.provider import Answer, Error, Provider

LINE = "log-odds: yes, 5 alternatives"


def _printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
    with pytest.raises(SystemExit):
        cli.main()
    return " ".join(capsys.readouterr().out.split())


def test_the_line_stands_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-b")

    def behave(_number: int, body: dict[str, Any]) -> Answer | Error:
        if body["top_logprobs"] > 5:
            return Error(400, "top_logprobs must be at most 5", param="top_logprobs")
        return Answer("A", logprobs={"A": -0.2, "B": -1.8})

    with Provider(behave) as provider:
        judge = {"name": "gpt", "backend": "openai", "model": "m"}
        judge |= {"base_url": f"{provider.url}/v1"}
        data = {"name": "study", "space": "penguins", "judges": [judge]}
        data |= {"design": {"pairs": 12, "replicates": "auto"}, "require": "log_odds"}
        Path("study.yaml").write_text(yaml.safe_dump(data))
        before = _printed(monkeypatch, capsys, "run", "study.yaml", "--dry-run")
        assert "gpt: replicates: 1, because a new pair costs the same" in before
        run = asyncio.run(stages.ask(stages.plan("study.yaml")))
        assert len(provider.seen) == 25
    assert run.comparisons.frame["soft"].all()
    assert run.manifest.log_odds == {"gpt": LINE}
    assert stored_snapshot(run).judges["gpt"].log_odds == LINE
    assert f"gpt: {LINE}" in _printed(monkeypatch, capsys, "status", "study")
    (facts,) = json.loads(_printed(monkeypatch, capsys, "status", "study", "--json"))["runs"]
    assert facts["judges"]["gpt"]["log_odds"] == LINE
    assert "asking again gives the same log-odds" in run.replicates["gpt"]
