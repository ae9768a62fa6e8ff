"""Fuzzed files of settings: campaigns, feature spaces, tables."""

import itertools
import subprocess
import sys
from pathlib import Path

import yaml
from hypothesis import strategies as st

from fuzz.inputs import as_yaml, tables, yaml_files
from fuzz.oracle import Outcome, clear, command, fuzz

ROOT = Path(__file__).parents[2]

EXPERT = {"name": "expert", "backend": "simulated", "belief": "table", "seed": 3}
CAMPAIGNS = [
    {"name": "small", "space": "penguins", "seed": 1, "design": {"pairs": 24, "replicates": 1},
     "judges": [EXPERT], "fit": {"methods": ["utility"], "samples": 100}, "runs": "runs",
     "limits": {"max_cost": 1.0, "max_tokens": 10_000, "deadline": 60.0}},
    {"name": "soft", "space": "penguins", "design": {"pairs": 20, "template": "v1/zero-shot"},
     "direct": {"quantiles": 2, "samples": 4, "rows": 4}, "judges": [EXPERT],
     "fit": {"method": "utility"}},
    {"name": "rounds", "space": "penguins", "design": {"pairs": 60, "rounds": {"count": 3}},
     "judges": [EXPERT, {"name": "soft", "backend": "simulated", "log_odds": {"gain": 0.1}}]},
    {"name": "hosted", "space": "penguins", "design": {"pairs": 20},
     "judges": [{"name": "gpt", "backend": "openai", "model": "gpt-4o-mini", "temperature": 1.0,
                 "base_url": "http://127.0.0.1:9/v1", "price": {"input": 1.0, "output": 2.0},
                 "concurrency": 4, "timeout": 5.0, "max_tokens": 8, "requests_per_minute": 60},
                {"name": "claude", "backend": "anthropic", "model": "claude-haiku-4-5"}]},
    {"name": "grid", "design": {"pairs": 12}, "judges": [EXPERT],
     "grid": {"spaces": ["penguins", "cars"], "templates": ["v1/zero-shot", "v1/few-shot"]}},
]  # fmt: skip
SPACES = [
    {"name": "small", "title": "A title", "subject": "a thing", "ranges": "made up", "features": [
        {"name": "a", "label": "length", "unit": "mm", "low": 0, "high": 10.5, "digits": 2},
        {"name": "b", "label": "mass", "unit": "g", "kind": "integer", "low": 1, "high": 900},
        {"name": "c", "label": "price", "unit": "USD", "low": 1, "high": 1e5, "scale": "log"},
        {"name": "d", "label": "colour", "kind": "categorical", "categories": ["red", "blue",
        "green"]}]},
    yaml.safe_load((ROOT / "datasets" / "penguins.yaml").read_text("utf-8")),
]  # fmt: skip
SETTINGS = ("grid", "direct", "journal", "pilot", "limits", "deadline", "rounds", "template",
            "replicates", "price", "scale", "kind", "digits", "table", "setting")  # fmt: skip
NUMBERS = itertools.count()


def test_campaigns(deep: Path) -> None:
    ways = (("plan",), ("plan",), ("estimate",), ("run", "--dry-run"))

    def tried(value: tuple[bytes, tuple[str, ...]]) -> Outcome:
        text, way = value
        path = deep / f"c{next(NUMBERS)}.yaml"
        path.write_bytes(text)
        return command(*way, path.name)

    fuzz("campaigns", st.tuples(yaml_files(CAMPAIGNS, SETTINGS), st.sampled_from(ways)), tried)


def test_feature_spaces(deep: Path) -> None:
    (deep / "penguins.csv.gz").write_bytes((ROOT / "datasets" / "penguins.csv.gz").read_bytes())

    def tried(text: bytes) -> Outcome:
        number = next(NUMBERS)
        (deep / f"s{number}.yaml").write_bytes(text)
        return _planned(deep, f"f{number}", f"s{number}.yaml")

    fuzz("spaces", yaml_files(SPACES, SETTINGS), tried)


def test_tables(deep: Path) -> None:
    """A space drafted from a table can be asked about, or the reason why not is one line."""

    def tried(raw: bytes) -> Outcome:
        number = next(NUMBERS)
        (deep / f"t{number}.csv").write_bytes(raw)
        drafted = command("space", "init", f"t{number}.csv")
        made = deep / f"t{number}.yaml"
        if drafted.kind != "success" or not made.is_file():
            return drafted
        return _planned(deep, f"u{number}", made.name)

    fuzz("tables", tables(), tried)


def _planned(folder: Path, name: str, space: str) -> Outcome:
    campaign = {**CAMPAIGNS[0], "name": name, "space": space, "limits": {}}
    (folder / f"{name}.yaml").write_bytes(as_yaml(campaign))
    outcome = command("plan", f"{name}.yaml")
    return outcome if outcome.kind != "success" else command("run", "--dry-run", f"{name}.yaml")


def test_a_process_ends_with_one_line(deep: Path) -> None:
    """What the other tests see in this process is what a process of its own says and does."""
    (deep / "bad.yaml").write_bytes(b"[" * 20_000)
    done = subprocess.run(
        [sys.executable, "-m", "llm_elicit", "plan", "bad.yaml"], capture_output=True, text=True,
        timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: bad.yaml")
    assert clear(done.stderr.strip()).kind == "clear error"
