"""A model's own density beside its choices: asked for, measured, and a source of the power."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fakes.number_model import NumberModel, log_density, write_space

from llm_elicit import density
from llm_elicit.audit.own_density import OwnDensity, measure_own_density
from llm_elicit.audit.responses import build_response
from llm_elicit.comparisons.table import evidence_of
from llm_elicit.errors import InputError
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.power_sources import estimate_power, read_sources
from llm_elicit.pipeline.run_folder import Run
from llm_elicit.testing.provider import Provider


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")


def _ask(judge: dict[str, Any], likelihood: int = 20, **rest: Any) -> Run:
    write_space(Path())
    data = {"name": "own", "space": "sticks.yaml", "judges": [{"name": "m", **judge}]}
    data |= {"design": {"pairs": 30, "template": "v1/zero-shot"}}
    data |= {"direct": {"likelihood": likelihood}}
    Path("own.yaml").write_text(yaml.safe_dump(data | rest))
    return asyncio.run(stages.ask(stages.plan("own.yaml")))


def _own(run: Run) -> OwnDensity:
    own = OwnDensity.read(run.direct, "m", run.space, run.campaign.seed, run.first_round)
    assert own is not None
    return own


def test_a_judge_that_answers_by_half_its_own_density_has_power_two() -> None:
    model = NumberModel(gain=0.5, noise=0.1)
    with Provider(model.behave) as provider:
        judge = {"backend": "openai", "model": "numbers", "base_url": f"{provider.url}/v1"}
        run = _ask(judge)
        assert len(model.prompts) == 2 * (2 * 20 + 20)
        _ask(judge)
        assert len(model.prompts) == 120, "answers are in the journal"
        run = _ask(judge, likelihood=21)
        assert len(model.prompts) == 126, "only what is new is asked"
    own = _own(run)
    assert own.of_a[:, 0] == pytest.approx(log_density(own.a))
    assert own.of_rows[:, 1] == pytest.approx(log_density(own.rows))
    evidence = evidence_of(run.comparisons, "m", run.campaign.fit)
    space, seed = run.space, run.campaign.seed
    belief = density.fit_evidence(
        evidence, sampling=density.Uniform(space.low, space.high), method="utility"
    )
    sources = read_sources(run.direct, "m", space, seed, run.first_round)
    power = estimate_power(belief, sources, seed)
    assert power.used
    response = build_response(run.comparisons, "m")
    audit = measure_own_density(
        own.with_belief(belief), response, power.power, space, np.random.default_rng(0)
    )
    assert (audit.pairs, audit.rows, audit.bounds) == (21, 21, 0)
    assert audit.order_correlation == pytest.approx(1.0)
    assert audit.slope is not None
    assert audit.slope.low < 2.0 < audit.slope.high < 2.5
    assert audit.correlation is not None
    assert audit.correlation.value > 0.99
    assert audit.agreement is not None
    assert audit.agreement.value > 0.9
    assert audit.auc is not None
    assert audit.belief_auc is not None
    assert min(audit.auc.low, audit.belief_auc.low) > 0.6
    assert audit.log_score is not None
    exact = log_density(own.rows).mean() + 2.0 * np.log(9.9)
    assert audit.log_score.value == pytest.approx(exact)


def test_a_table_of_bounds_determines_no_power() -> None:
    model = NumberModel(mode="next", most=2)
    with Provider(model.behave) as provider:
        judge = {"backend": "openai", "model": "numbers", "base_url": f"{provider.url}/v1"}
        run = _ask(judge, likelihood=6)
    own = _own(run)
    assert own.bounds > 6
    assert np.isfinite(own.of_a).all()
    sources = read_sources(run.direct, "m", run.space, run.campaign.seed, run.first_round)
    assert sources.likelihood is None
    assert sources.notes[0].startswith("likelihood: 6 pairs, ")
    audit = measure_own_density(
        own, build_response(run.comparisons, "m"), None, run.space, np.random.default_rng(0)
    )
    assert (audit.correlation, audit.slope, audit.belief_auc) == (None, None, None)


def test_a_backend_without_probabilities_of_texts_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
    with pytest.raises(InputError, match=r"direct.likelihood: judge 'm': backend 'anthropic'"):
        _ask({"backend": "anthropic", "model": "claude-haiku-4-5"})


def test_rows_are_not_asked_in_batches() -> None:
    run = _ask({"backend": "simulated"})
    judge = {"name": "m", "backend": "openai", "model": "gpt-4o-mini"}
    Path("own.yaml").write_text(
        yaml.safe_dump({**yaml.safe_load(Path("own.yaml").read_text()), "judges": [judge]}).replace(
            "own\n", "other\n"
        )
    )
    with pytest.raises(InputError, match=r"direct.likelihood: rows are not asked in batches"):
        asyncio.run(stages.ask_in_batches(stages.plan("own.yaml"), "submit"))
    assert (run.direct["kind"] == "likelihood").sum() == 120


def test_a_simulated_judge_answers_by_its_belief() -> None:
    run = _ask({"backend": "simulated", "belief": "uniform"}, likelihood=6)
    own = _own(run)
    assert own.of_a == pytest.approx(-2.0 * np.log(9.9))
    assert own.of_rows == pytest.approx(-2.0 * np.log(9.9))
