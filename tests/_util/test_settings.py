"""Files of settings: what cannot be meant is refused, with the line or the key."""

import math
import time
from pathlib import Path

import pytest
import yaml

from llm_elicit._util.settings import read_yaml, to_yaml, validate
from llm_elicit.audit.inference import Interval
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError

JUDGE = {"name": "expert", "backend": "simulated"}
BOMB = "a: &a [" + "x, " * 100 + "x]\n"
for _a, _b in zip("abcdef", "bcdefg", strict=True):
    BOMB += f"{_b}: &{_b} [" + f"*{_a}, " * 100 + f"*{_a}]\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name: a\nspace: b\nname: c\n", ["line 3", "duplicate key 'name', first in line 1"]),
        ("a:\n  b: 1\n  b: 2\n", ["line 3", "duplicate key 'b'"]),
        ("a: {b: 1, b: 2}\n", ["line 1", "duplicate key 'b'"]),
        ("a: .nan\n", ["line 1", "'.nan' is not a finite number"]),
        ("a: [1, -.inf]\n", ["'-.inf' is not a finite number"]),
        ("a: 1e999\n", ["'1e999' is not a finite number"]),
        (BOMB, ["more than 100,000 values", "line 3"]),
        ("a: &a [*a]\n", ["recursive alias"]),
        ("a: &a {b: *a}\n", ["recursive alias"]),
        ("[" * 20_000, ["nested too deeply; use fewer levels"]),
        ("- " * 20_000, ["nested too deeply; use fewer levels"]),
        ("a: " + "{b: " * 50, ["nested too deeply; use fewer levels"]),
        ("a: \x00\n", ["not valid YAML"]),
        ("a: 1\n---\nb: 2\n", ["not valid YAML"]),
        ("a: *nothing\n", ["undefined alias"]),
        ("a: !!python/object:os.system x\n", ["could not determine a constructor"]),
        ("? [1, 2]\n: 3\n", ["not valid YAML"]),
    ],
)
def test_what_no_settings_hold_is_refused_with_its_line(
    text: str, named: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(InputError) as refused:
        read_yaml(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert all(words in message for words in named), message
    assert time.process_time() - began < 2.0


def test_numbers_are_read_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: 1e3\nb: 1e-9\nc: 010\nd: 1:30\ne: 1_000\nf: 2.5\ng: -.5\nh: '7'\n")
    read = read_yaml(path)
    assert read == {
        "a": 1000, "b": 1e-9, "c": 10, "d": "1:30", "e": 1000, "f": 2.5, "g": -0.5, "h": "7",
    }  # fmt: skip
    assert isinstance(read["a"], int)


def test_merged_keys_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfbase: &b {x: 1, y: 2}\r\nmore: {<<: *b, y: 3}\r\n")
    assert read_yaml(path)["more"] == {"x": 1, "y": 3}


def test_what_is_written_is_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    data = {"texts": ["1e3", "010", "1:30", "no", "3", "é", ".nan", "=1"], "n": [1e-9, 3, True]}
    path.write_text(to_yaml(data), encoding="utf-8")
    assert read_yaml(path) == data
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    assert read_yaml(path)["n"] == data["n"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"design": {"pairs": "200"}}, ["design.pairs", "a number", "the text '200'"]),
        ({"design": {"replicates": True}}, ["design.replicates", "a number"]),
        ({"design": {"both_orders": 1}}, ["design.both_orders", "a truth value", "the number 1"]),
        ({"design": {"both_orders": "yes"}}, ["design.both_orders", "the text 'yes'"]),
        ({"seed": True}, ["seed", "a number", "truth value True"]),
        ({"seed": "1"}, ["seed", "the text '1'"]),
        ({"seed": 2**64}, ["seed"]),
        ({"limits": {"max_cost": "5"}}, ["limits.max_cost"]),
        ({"judges": [{**JUDGE, "bandwidth": "0.5"}]}, ["judges.0", "bandwidth"]),
        ({"judges": [{**JUDGE, "bandwidth": 1e300}]}, ["bandwidth", "less than or equal to 1000"]),
        ({"judges": [{**JUDGE, "bandwidth": 1e-300}]}, ["bandwidth", "greater than or equal"]),
        ({"judges": [{**JUDGE, "noise_level": 1e300}]}, ["noise_level", "less than or equal"]),
        ({"fit": {"methods": ["utility"], "noise_level": 1e-300}}, ["fit.noise_level"]),
        ({"fit": {"methods": ["utility", "utility"]}}, ["fit", "'utility' appears twice"]),
        ({"pilot": ["v1/zero-shot", "v1/zero-shot"]}, ["pilot", "appears twice"]),
        ({"grid": {"temperatures": [0, 0.0]}}, ["grid", "appears twice"]),
    ],
)
def test_one_kind_of_value_is_not_taken_for_another(
    changes: dict[str, object], named: list[str]
) -> None:
    data = {"name": "try", "space": "penguins", "judges": [JUDGE], **changes}
    with pytest.raises(InputError) as refused:
        validate(Campaign, data, "c.yaml")
    message = str(refused.value)
    assert all(words in message for words in named), message


def test_a_whole_number_in_another_notation_counts() -> None:
    data = {"name": "try", "space": "penguins", "judges": [JUDGE], "design": {"pairs": 200.0}}
    assert validate(Campaign, data, "c.yaml").design.pairs == 200


def test_every_number_of_a_record_comes_back_from_its_json() -> None:
    for low in (-math.inf, 5e-324, 1.72e-11, 0.1 + 0.2, -0.0, 1.7976931348623157e308):
        record = Interval(value=0.5, low=low, high=math.inf)
        again = Interval.model_validate_json(record.model_dump_json())
        assert math.copysign(1.0, again.low) == math.copysign(1.0, low)
        assert again == record
    assert math.isnan(Interval.model_validate_json('{"value": "NaN", "low": 0, "high": 1}').value)
