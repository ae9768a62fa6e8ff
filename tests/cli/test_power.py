"""`llm-elicit power`."""

import json

import pytest


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "no pilot of simulated"),
        (("--reliability", "1.5"), "reliability 1.5; give a number from 0 to 0.99"),
        (("--reliability", "0.5", "--judge", "exprt"), "exprt"),
        (("--reliability", "0.5", "--wording", "-1"), "wording -1; give a number from 0 to 1"),
        (("--reliability", "0.5", "--power", "1"), "a power of 1 by 200 simulations"),
        (("--reliability", "0.5", "--effect", "2"), "effect 2; give a number above 0"),
        (("--reliability", "0.5", "--questions", "auk"), "no question 'auk'; known: verdict"),
        (
            ("--reliability", "0.9", "--answers", "choices", "--position", "0.4"),
            "choices that are so often the first shown have at most 0.11; state less",
        ),
    ],
)
def test_bad_input_gives_one_line_and_code_2(llm_elicit, options, line):
    done = llm_elicit("power", "simulated", *options)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_prints_a_table_and_json(llm_elicit):
    command = ("power", "simulated", "--questions", "verdict", "--reliability", "0.6",
               "--simulations", "10")  # fmt: skip
    text, record = llm_elicit(*command), llm_elicit(*command, "--json")
    assert "a consistent preference" in text.stdout
    assert "the campaign's" in text.stdout
    data = json.loads(record.stdout)
    assert data["judge"]["reliability"] == 0.6
    assert f"{data['questions'][0]['pairs']} [" in text.stdout
