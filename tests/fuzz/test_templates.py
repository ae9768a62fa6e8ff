"""Fuzzed question templates: they are rendered, or refused in one line."""

from pathlib import Path

from fuzz.inputs import as_yaml, templates
from fuzz.oracle import Outcome, command, fuzz
from fuzz.test_settings import CAMPAIGNS, NUMBERS, ROOT


def test_templates(deep: Path) -> None:
    folder = ROOT / "prompts" / "v1"
    valid = [(folder / f"{name}.md").read_bytes() for name in ("zero-shot", "few-shot")]

    def tried(text: bytes) -> Outcome:
        number = next(NUMBERS)
        (deep / f"q{number}.md").write_bytes(text)
        campaign = {**CAMPAIGNS[0], "name": f"q{number}",
                    "design": {"pairs": 12, "template": f"q{number}.md"}}  # fmt: skip
        (deep / f"q{number}.yaml").write_bytes(as_yaml(campaign))
        planned = command("plan", f"q{number}.yaml")
        if planned.kind != "success":
            return planned
        return command("run", "--dry-run", f"q{number}.yaml")

    fuzz("templates", templates(valid), tried)
