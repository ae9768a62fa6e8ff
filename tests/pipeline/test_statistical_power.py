"""The number of pairs by simulated campaigns: against closed forms, and against itself."""

import math

import numpy as np
import pytest
from scipy import stats

import llm_elicit as le
from llm_elicit.audit.inference import size_by_margins, size_by_probit
from llm_elicit.audit.responses import build_response
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline.pilot import AssumedJudge, assumed_of, run_pilot, split_half
from llm_elicit.pipeline.statistical_power import QUESTIONS, Simulator


def simulator(answers="log-odds", reliability=0.5, **fields) -> Simulator:
    campaign = Campaign.load("simulated")
    judge = AssumedJudge("expert", answers, reliability, **fields)
    return Simulator(campaign, campaign.load_space(), judge)


def test_the_size_of_a_t_test_is_that_of_its_closed_form():
    effect, target = 0.4, 0.8
    sizes = (25, 36, 52, 75)

    def closed(n: float) -> float:
        return float(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, effect * math.sqrt(n)))

    rng = np.random.default_rng(0)
    outcomes = {}
    for n in sizes:
        draws = rng.normal(effect, 1.0, (400, n))
        outcomes[n] = (stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05).astype(float).tolist()
    size = size_by_probit(outcomes, target, 52.0)
    assert abs(closed(size.value) - target) < 0.04
    assert closed(size.low) < target < closed(size.high)
    margins = {n: rng.normal(0.5 * math.log(n / 50), 0.3, 400).tolist() for n in sizes}
    exact = 50 * math.exp(0.3 * stats.norm.ppf(target) / 0.5)
    by_margins = size_by_margins(margins, target, 75.0)
    assert by_margins.low < exact < by_margins.high


@pytest.mark.parametrize(("answers", "position"), [("log-odds", 2.0), ("choices", 0.2)])
def test_a_pilot_of_the_assumed_judge_would_find_what_is_assumed(answers, position):
    campaigns = simulator(answers, 0.4, position=position, described=0.7)
    rng = np.random.default_rng(1)
    response = build_response(campaigns.answers(campaigns.preference(4000, rng), rng), "expert")
    apart = response.position - response.position.mean()
    single = split_half(response.value + apart, response.value - apart)
    assert single.low - 0.02 < 0.4 < single.high + 0.02
    assert abs(response.mean_position - position) < 0.1


@pytest.mark.parametrize("question", [name for name in QUESTIONS if name != "auc"])
def test_more_pairs_have_more_power_and_no_preference_is_found_at_the_level(question):
    def share(pairs: int, reliability: float) -> float:
        trial = simulator(reliability=reliability).trial(question, 0.5)
        return float(np.mean([trial(pairs, seed) > 0 for seed in range(12)]))

    assert share(12, 0.3) < share(60, 0.5) <= 1.0
    assert share(20, 0.0) <= 0.25


def test_the_recommended_size_has_the_promised_power_in_other_campaigns():
    result = le.power(
        "simulated", questions=["verdict"], reliability=0.4, answers="choices", simulations=40
    )
    (verdict,) = result.questions
    assert verdict.low <= verdict.pairs <= verdict.high
    assert verdict.cost == 0.0
    assert result.frame["own"].sum() == 1
    trial = simulator("choices", 0.4).trial("verdict", None)
    power = np.mean([trial(verdict.pairs, 10_000 + seed) > 0 for seed in range(60)])
    assert abs(power - 0.8) < 0.17  # three standard errors of both


def test_the_auc_is_measured_on_a_fitted_belief():
    half = 0.1 / math.exp(simulator(reliability=0.6).trial("auc", 0.1)(40, 1))
    assert 0.02 < half < 0.3


def test_of_a_pilot_reliability_position_and_answers_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = Campaign.load("simulated")
    with pytest.raises(InputError, match="no pilot of simulated whose answers repeat; run"):
        le.power(campaign, questions=["verdict"], simulations=10)
    pilot, _ = run_pilot(campaign.model_copy(update={"pilot": ("v1/zero-shot",)}), 20)
    judge = assumed_of(campaign, "expert", 0.8)
    protocol = next(protocol for protocol in pilot.protocols if protocol.judge == "expert")
    assert judge.reliability == pytest.approx(protocol.reliability.value)
    assert judge.source == "pilot of 20 pairs"
    assert judge.answers == protocol.response
    assert judge.position == pytest.approx(protocol.position)
