"""A key that a provider echoes, in whatever field and form, is in no file of a run."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fakes.provider import Action, Fails, Provider, Says, Sends

from llm_elicit.testing.provider import completion, message
from orchestrator.conftest import KEY, claude, gpt
from orchestrator.running import campaign, run, table

LONG = "x" * 250
FORMS = (KEY, quote(KEY, safe=""), base64.b64encode(f"user:{KEY}".encode()).decode())


def _echo(make: Any, body: dict[str, Any], form: str) -> dict[str, Any]:
    """An answer with the key in every field that is text."""
    if make is claude:
        whole = message(Says("A", thinking=form), body)
        return {**whole, "model": f"m {form}", "stop_reason": form}
    whole = completion(Says("A", thinking=form), body)
    whole["choices"][0]["finish_reason"] = form
    return {**whole, "model": f"m {form}", "system_fingerprint": form}


def _files_with(folder: Path, forms: tuple[str, ...]) -> list[tuple[str, str]]:
    whole = [(path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    return [(path.name, form) for path, kept in whole for form in forms if form.encode() in kept]


@pytest.mark.parametrize("make", [claude, gpt])
def test_a_key_in_any_field_of_a_reply_is_kept_nowhere(make: Any, tmp_path: Path) -> None:
    def behave(number: int, body: dict[str, Any]) -> Action:
        form = FORMS[number % 3]
        # Cut at 300 characters before the key is blotted out, a message would keep its beginning.
        if number % 4 == 1:
            return Fails(500, f"{LONG}{'y' * (number % 24)} {form} {LONG}")
        return Sends(json.dumps(_echo(make, body, form)).encode())

    with Provider(behave) as provider:
        study = campaign([make(provider.url, attempts=20)], pairs=10)
        summary = run(study, tmp_path / "try")
    assert summary.complete
    kept = table(study, tmp_path / "try", thinking=True)
    kept.write(tmp_path / "try" / "comparisons.parquet")
    kept.write(tmp_path / "try" / "comparisons.csv")
    assert all("[key]" in model for model in kept.frame["model_answered"])
    beginnings = tuple(form[:length] for form in FORMS for length in (12, len(form)))
    assert _files_with(tmp_path, beginnings) == []
