"""Words from outside do nothing: a planted attack for each place they reach."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from audit.planted import ask, box, constant
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit._util.settings import read_yaml
from llm_elicit._util.text import guard, unguard, visible
from llm_elicit.cli import main as cli
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.provider import Answer, Error, Provider

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"
FORMULAS = ('=HYPERLINK("http://evil.example","A")', "+1", "-1+1", "@SUM(1)", "\t=1", "'=1", "＝1")


def _log() -> Comparisons:
    space = box(1)
    log = ask(space, constant(1.0), np.random.default_rng(0), len(FORMULAS))
    frame = log.frame.copy()
    frame["reply"] = [FORMULAS[i % len(FORMULAS)] for i in range(len(frame))]
    frame["model_answered"] = FORMULAS[0]
    return Comparisons(frame, space.names)


def test_a_reply_is_no_formula_in_a_spreadsheet_and_comes_back_as_it_was(tmp_path: Path) -> None:
    log = _log()
    path = log.write(tmp_path / "log.csv")
    raw = pd.read_csv(path, dtype=str, keep_default_na=False)
    for column in ("reply", "model_answered"):
        assert not raw[column].str.match(r"[=+\-@\t\r\n＝＋－＠]").any()
    assert Comparisons.read(path).frame["reply"].tolist() == log.frame["reply"].tolist()


@given(st.text())
def test_a_guard_can_be_taken_off_again(text: str) -> None:
    assert unguard(guard(text)) == text
    assert guard(text)[:1] not in tuple("=+-@\t\r\n")


@given(st.text())
def test_what_is_visible_acts_on_no_terminal(text: str) -> None:
    shown = visible(text, 10_000)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not any(0x7F <= ord(c) < 0xA0 for c in shown)


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["llm-elicit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def _campaign(folder: Path, judge: dict[str, object], **design: object) -> str:
    path = folder / "c.yaml"
    path.write_text(
        yaml.safe_dump({
            "name": "try", "space": "penguins", "judges": [judge],
            "design": {"pairs": 4, **design}, "runs": str(folder / "runs"),
        })
    )  # fmt: skip
    return str(path)


def test_what_a_provider_says_sends_nothing_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    refusal = Error(400, {"error": {"message": f"no {ESCAPE} [bold]markup[/bold]"}})

    def behave(number: int, body: dict[str, object]) -> Answer | Error:
        return refusal

    with Provider(behave) as provider:
        judge = {
            "name": "gpt", "backend": "openai", "model": "gpt", "base_url": f"{provider.url}/v1",
            "attempts": 1,
        }  # fmt: skip
        assert _main(monkeypatch, "ask", _campaign(tmp_path, judge)) != 0
    shown = capsys.readouterr()
    assert "owned" in shown.err, "the message is shown"
    assert "\x1b]" not in shown.err + shown.out
    assert "\x1b[2J" not in shown.err + shown.out
    assert "\u202e" not in shown.err + shown.out


def test_a_template_or_a_table_sends_nothing_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space = FeatureSpace.load("penguins").model_dump(mode="json", exclude={"table"})
    space["subject"] = f"a penguin{ESCAPE}"
    path = tmp_path / "hostile.yaml"
    path.write_text(yaml.safe_dump(space))
    text = (tmp_path / _campaign(tmp_path, {"name": "e", "backend": "simulated"})).read_text()
    (tmp_path / "c.yaml").write_text(text.replace("penguins", str(path)))
    assert _main(monkeypatch, "run", "--dry-run", str(tmp_path / "c.yaml")) == 0
    shown = capsys.readouterr().out
    assert "a penguin" in shown
    assert "\x1b]" not in shown
    assert "\u202e" not in shown


def test_a_campaign_runs_no_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = tmp_path / "c.yaml"
    path.write_text(f"name: !!python/object/apply:pathlib.Path.touch [{made}]\n")
    with pytest.raises(InputError):
        read_yaml(path)
    assert not made.exists()


@pytest.mark.parametrize("name", ["../up", "/tmp/x", "a/b", "..", "a\x00b"])
@pytest.mark.parametrize("what", ["name", "judge"])
def test_no_name_leads_out_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    data = {"name": "try", "space": "penguins", "judges": [{"name": "e", "backend": "simulated"}]}
    if what == "name":
        data["name"] = name
    else:
        data["judges"][0]["name"] = name
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(data))
    monkeypatch.chdir(tmp_path)
    assert _main(monkeypatch, "plan", "c.yaml") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
