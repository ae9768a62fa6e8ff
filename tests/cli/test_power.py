"""`llm-elicit power`."""

import json
import sys

import numpy as np
import pytest

import llm_elicit as le
from llm_elicit.cli import main as cli
from llm_elicit.errors import InputError
from llm_elicit.pipeline.statistical_power import Simulator


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"reliability": 1.5}, "reliability 1.5; give a number from 0 to 0.99"),
        ({"judge": "exprt"}, "exprt"),
        ({"wording": -1}, "wording -1; give a number from 0 to 1"),
        ({"power": 1}, "power 1, 200 simulations: a power must be"),
        ({"sizes": {"effect": 2}}, "effect 2; give a number above 0"),
        ({"questions": ["auk"]}, "no question 'auk'; known: verdict"),
        (
            {"reliability": 0.9, "answers": "choices", "position": 0.4},
            "choices then have at most 0.11; give a smaller one",
        ),
    ],
)
def test_bad_input_is_an_error_of_one_line(options, line):
    with pytest.raises(InputError, match=line) as raised:
        le.power("simulated", **{"reliability": 0.5, **options})
    assert "\n" not in str(raised.value)


def test_without_a_pilot_the_command_ends_with_one_line_and_code_2(llm_elicit):
    done = llm_elicit("power", "simulated")
    assert done.returncode == 2
    assert "no pilot of simulated" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_prints_a_table_and_json(monkeypatch, capsys):
    """Of all questions but the AUC, which takes minutes."""

    def trial(*_):
        return lambda pairs, seed: float(np.random.default_rng([seed, pairs]).random() < pairs / 80)

    monkeypatch.setattr(Simulator, "trial", trial)
    command = ["llm-elicit", "power", "simulated", "--reliability", "0.6", "--simulations", "40"]
    printed = []
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", [*command, *options])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        printed.append(capsys.readouterr().out)
    text, data = printed[0], json.loads(printed[1])
    assert data["judge"]["reliability"] == 0.6
    assert [each["question"] for each in data["questions"]] == ["verdict", "effect", "difference"]
    for each in data["questions"]:
        assert each["low"] <= each["pairs"] <= each["high"]
        assert 50 < each["pairs"] < 76
        assert each["cost"] == 0.0
        assert f"{each['pairs']} [" in text
    assert text.count("the campaign's") == 3
    assert "a consistent preference" in text
