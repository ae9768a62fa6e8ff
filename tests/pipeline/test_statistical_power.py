"""The number of pairs by simulated campaigns: against closed forms, and against itself."""

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

import llm_elicit as le
from llm_elicit.audit.inference import size_by_margins, size_by_probit
from llm_elicit.audit.responses import build_response
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.pipeline import statistical_power
from llm_elicit.pipeline.pilot import AssumedJudge, assumed_of, run_pilot, split_half
from llm_elicit.pipeline.statistical_power import QUESTIONS, Search, Simulator
from llm_elicit.planning.pairs import make_plan


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
    questions = campaigns.questions(4000, seed=1)
    table = campaigns.answers(questions, campaigns.preference(questions, rng), rng)
    response = build_response(table, "expert")
    apart = response.position - response.position.mean()
    single = split_half(response.value + apart, response.value - apart)
    assert single.low - 0.02 < 0.4 < single.high + 0.02
    assert abs(response.mean_position - position) < 0.1


@pytest.mark.parametrize("question", [name for name in QUESTIONS if name != "auc"])
def test_more_pairs_have_more_power_and_no_preference_is_found_at_the_level(question):
    def share(pairs: int, reliability: float) -> float:
        trial = simulator(reliability=reliability).trial(question, 0.5)
        return float(np.mean([trial(pairs, seed) > 0 for seed in range(8)]))

    assert share(12, 0.2) < share(60, 0.6) <= 1.0
    assert share(20, 0.0) <= 0.25


def test_every_campaign_draws_its_pairs(monkeypatch):
    """With one plan a size, power rose and fell with the plan."""
    plans = []

    def draw(*arguments):
        plans.append(make_plan(*arguments))
        return plans[-1]

    trial = simulator().trial("verdict", None)
    monkeypatch.setattr(statistical_power, "make_plan", draw)
    for seed in (0, 1, 0):
        trial(8, seed)
    first, second, again = (plan.a for plan in plans)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)


@cache
def chi_square_power(pairs: int, share: float) -> float:
    """The power of a χ² test of eight rules, as the test of a verdict nearly is."""
    return float(stats.ncx2.sf(stats.chi2.isf(0.05, 8), 8, share * pairs))


@pytest.mark.parametrize(("share", "own"), [(1.0, 120), (0.25, 120), (0.25, 7), (0.04, 120)])
def test_the_recommended_size_has_the_promised_power(share, own):
    """Within ± .05 in every search, and in the mean of eight by a standard error of .006."""

    def trial(pairs: int, seed: int) -> float:
        power = chi_square_power(pairs, share)
        return float(np.random.default_rng([seed, pairs]).random() < power)

    realized, held = [], 0
    for seed in range(8):
        found = Search(trial, 7, own, 0.8, 200, seed, lambda *_: None).run("verdict", None)
        realized.append(chi_square_power(found.pairs, share))
        ends = (chi_square_power(n, share) for n in (found.low, found.high))
        held += next(ends) <= 0.8 <= next(ends)
        assert sum(point.campaigns for point in found.curve) < 1_300
    assert np.abs(np.array(realized) - 0.8).max() < 0.05
    assert abs(np.mean(realized) - 0.8) < 0.02
    assert held >= 6


def test_where_no_size_is_enough_few_campaigns_say_so():
    found = Search(lambda *_: 0.0, 7, 120, 0.8, 200, 0, lambda *_: None).run("verdict", None)
    assert found.pairs is None
    assert found.most == 5_000
    assert sum(point.campaigns for point in found.curve) < 200


def test_more_pairs_narrow_the_interval_of_the_auc():
    """They did not where the features leave a part undescribed, which more pairs show."""
    trial = simulator(reliability=0.6, described=0.6).trial("auc", 0.1)
    few, many = (np.array([trial(pairs, seed) for seed in range(3)]) for pairs in (12, 60))
    assert few.mean() < many.mean() - 0.2
    assert (0.1 / np.exp(many) < 0.12).all()


def test_of_a_pilot_reliability_position_and_answers_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = Campaign.load("simulated")
    with pytest.raises(InputError, match="no pilot of simulated has repeatable answers; run"):
        le.power(campaign, questions=["verdict"], simulations=10)
    pilot, _ = run_pilot(campaign.model_copy(update={"pilot": ("v1/zero-shot",)}), 20)
    judge = assumed_of(campaign, "expert", 0.8)
    protocol = next(protocol for protocol in pilot.protocols if protocol.judge == "expert")
    assert judge.reliability == pytest.approx(protocol.reliability.value)
    assert judge.source == "pilot of 20 pairs"
    assert judge.answers == protocol.response
    assert judge.position == pytest.approx(protocol.position)
