"""Answers other than a letter, the whole way: asked, kept, read, and used in the fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_elicit.comparisons.table import Comparisons, evidence_of
from llm_elicit.config.campaign import Fit
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.estimates import estimate
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.conftest import EXPERT, claude, gpt
from orchestrator.running import campaign, plan_of, run, table

SOFT = {**EXPERT, "log_odds": {"gain": 0.5, "noise": 0.05}}


def _design(template: str, pairs: int = 6) -> dict[str, Any]:
    return {"design": {"pairs": pairs, "template": template}}


def _study(judges: list[dict[str, Any]], template: str, pairs: int = 6) -> Any:
    return campaign(judges, **_design(template, pairs))


def test_stated_probabilities_of_a_model_without_log_probabilities(tmp_path: Path) -> None:
    says = ["73 %", "B, 90 %", "0.5", "100", "I can't say.", "likely"]
    with Provider(lambda n, body: Answer(says[n % 6])) as provider:
        # The limit for letters is too short for a number.
        study = _study([claude(provider.url, concurrency=1, max_tokens=2)], "v1/probability")
        assert run(study, tmp_path / "try").complete
        bodies = [seen.body for seen in provider.seen]
    assert all(body["max_tokens"] == 16 for body in bodies)
    assert all("in per cent" in body["system"] for body in bodies)
    frame = table(study, tmp_path / "try").frame
    assert set(frame["format"]) == {"probability"}
    first = np.where(frame["order"] == "ab", frame["probability"], 1 - frame["probability"])
    found = dict(zip(frame["reply"], zip(frame["verdict"], first, strict=True), strict=True))
    assert found["73 %"] == ("A", pytest.approx(0.73))
    assert found["B, 90 %"] == ("B", pytest.approx(0.1))
    assert found["0.5"] == ("tie", pytest.approx(0.5))
    assert found["100"] == ("A", pytest.approx(1.0))
    assert [found[reply][0] for reply in says[4:]] == ["refusal", "unparsable"]
    assert frame["soft"].tolist() == frame["probability"].notna().tolist()


def test_they_reach_the_fit_rounded_and_censored(tmp_path: Path) -> None:
    says = ["73", "100", "0", "likely"]
    with Provider(lambda n, body: Answer(says[n % 4])) as provider:
        study = _study([claude(provider.url, concurrency=1)], "v1/probability")
        run(study, tmp_path / "try")
    evidence = evidence_of(table(study, tmp_path / "try"), "claude", Fit(methods=("utility",)))
    assert len(evidence.measurements) == 9
    assert set(evidence.measurements.censored) == {-1, 0, 1}
    inside = evidence.measurements.censored == 0
    assert evidence.measurements.value[inside] == pytest.approx(np.log(0.73 / 0.27))
    assert evidence.measurements.rounding_sd[inside] == pytest.approx(
        0.01 / np.sqrt(12) / (0.73 * 0.27)
    )


def test_stated_ratios_are_log_odds(tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer("1/4" if n % 2 else "3 times")) as provider:
        study = _study([gpt(provider.url, concurrency=1)], "v1/ratio")
        assert run(study, tmp_path / "try").complete
        assert all("logprobs" not in seen.body for seen in provider.seen)
    evidence = evidence_of(table(study, tmp_path / "try"), "gpt", Fit(methods=("utility",)))
    assert set(evidence.measurements.value.round(6)) == {round(np.log(3), 6), round(-np.log(4), 6)}
    assert not evidence.measurements.censored.any()


@pytest.mark.parametrize("judge", [claude, gpt])
def test_structured_numbers_are_held_to_a_schema(judge: Any, tmp_path: Path) -> None:
    with Provider(lambda n, body: Answer('{"percent": 80}')) as provider:
        study = _study([judge(provider.url, structured=True)], "v1/probability")
        assert run(study, tmp_path / "try").complete
        body = provider.seen[0].body
    form = body["output_config"]["format"] if judge is claude else body["response_format"]
    schema = form["schema"] if judge is claude else form["json_schema"]["schema"]
    assert schema["required"] == ["percent"]
    assert set(table(study, tmp_path / "try").frame["verdict"]) == {"A"}


def test_the_expert_states_what_it_would_answer_by_letters(tmp_path: Path) -> None:
    letters, stated = _study([SOFT], "v1/zero-shot", 40), _study([SOFT], "v1/probability", 40)
    run(letters, tmp_path / "one")
    run(stated, tmp_path / "two")
    one, two = (table(s, tmp_path / f).frame for s, f in ((letters, "one"), (stated, "two")))
    assert (two["soft"]).all()
    assert two["reply"].str.fullmatch(r"\d{1,3} %").all()
    odds = [np.log(frame["probability"].clip(0.005, 0.995).to_numpy()) for frame in (one, two)]
    assert np.corrcoef(*odds)[0, 1] > 0.95


def test_an_expert_of_choices_states_the_chance_of_its_choice(tmp_path: Path) -> None:
    study = _study([EXPERT], "v1/probability", 40)
    run(study, tmp_path / "try")
    said = table(study, tmp_path / "try")
    again = said.choices("expert")
    # Both orders state the same, whole per cents of P(a) and of 1 - P(a).
    assert again.preference == pytest.approx(
        said.frame[said.frame["order"] == "ab"]["probability"].to_numpy(), abs=0.006
    )
    assert 0.05 < again.preference.std() < 0.5


def test_an_estimate_counts_the_tokens_of_a_number() -> None:
    letters, stated = (
        _study([claude("http://127.0.0.1:9")], t) for t in ("v1/zero-shot", "v1/probability")
    )
    space = letters.load_space()
    one, two = (estimate(study, space, plan_of(study))[0] for study in (letters, stated))
    assert one.completion_tokens == 12 * 2
    assert two.completion_tokens == 12 * 4


def test_a_table_without_formats_holds_letters(tmp_path: Path) -> None:
    study = _study([SOFT], "v1/zero-shot")
    run(study, tmp_path / "try")
    before = table(study, tmp_path / "try")
    assert set(before.frame["format"]) == {"letter"}
    old = Comparisons(before.frame.drop(columns="format"), before.features)
    assert "format" not in old.frame.columns
    fit = Fit(methods=("utility",))
    for one, two in zip(
        evidence_of(old, "expert", fit).arrays(),
        evidence_of(before, "expert", fit).arrays(),
        strict=True,
    ):
        assert np.array_equal(one, two)


def test_a_template_of_words_is_none_for_pairs(tmp_path: Path) -> None:
    study = _study([EXPERT], "v1/sample")
    with pytest.raises(InputError, match=r"asks for a text, but a letter or probability or"):
        run(study, tmp_path / "try")
