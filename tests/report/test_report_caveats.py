"""Caveats say what was done in this run, not what is done in most."""

import pytest

from llm_elicit.config.campaign import Fit
from llm_elicit.config.design import Design, Rounds, Stop
from llm_elicit.report.page import caveats
from llm_elicit.spaces.features import FeatureSpace

POWER = "Comparisons identify the shape of a belief, not its sharpness"


def said(study, heading, **changes):
    """A caveat of the study, of a campaign with these changes."""
    campaign = study.campaign.model_copy(update=changes)
    return dict(caveats(study.audit, campaign, {}, {}))[heading]


def of_one(study, name):
    """The study with one judge: "expert" gives choices, the other log-odds."""
    audit = study.audit.model_copy(update={"judges": [study.audit.of(name)]})
    return type(study)(audit, study.campaign, study.comparisons, study.samples)


@pytest.mark.parametrize(
    ("noise", "shape"), [("gumbel", "p^(1/s)"), ("normal", "p^(1/s)"), ("exponential", "p^s")]
)
def test_a_level_that_is_a_rate_acts_the_other_way_round(study, noise, shape):
    text = said(
        study,
        POWER,
        fit=Fit(methods=("utility",), noise=noise, noise_level=2),
    )
    assert f"the same choices as {shape}, renormalized" in text
    assert "at level 2" in text


def test_the_caveats_of_log_odds_do_not_mention_an_assumed_noise_level(study):
    choices, log_odds = of_one(study, "expert"), of_one(study, "stuck <b>judge</b>")
    assert "do not identify the power" not in said(choices, POWER)
    text = said(log_odds, POWER)
    assert "do not identify the power" in text
    assert "The assumed noise" not in text


def test_the_caveats_state_how_the_two_orders_are_used(study):
    heading, expert = "Design of the questions", of_one(study, "expert")
    averaged = said(expert, heading, fit=Fit(methods=("utility",)))
    assert "choices in the two orders are averaged" in averaged
    estimated = said(expert, heading, fit=Fit(methods=("utility",), position_effect="estimated"))
    assert "averaged" not in estimated
    assert "estimated with the belief" in estimated
    soft = said(of_one(study, "stuck <b>judge</b>"), heading)
    assert "averaged" not in soft
    assert "half their sum the position effect" in soft


def test_no_more_order_bias_is_removed_than_what_is_the_same_for_all_pairs(study):
    for text in (
        said(study, "Design of the questions"),
        said(study, "Design of the questions", fit=Fit(methods=("auto",))),
    ):
        assert "as far as it is the same for all pairs" in text
    alone = said(study, "Design of the questions", design=Design(pairs=60, both_orders=False))
    assert "removes" not in alone


def test_the_caveats_state_that_later_pairs_were_chosen(study):
    heading = "Design of the questions"
    assert "Both points of a pair were drawn independently" in said(study, heading)
    text = said(study, heading, design=Design(pairs=100, rounds=Rounds(count=4)))
    assert "Both points" not in text
    assert "the 25 pairs of the first round were drawn independently" in text
    assert text.startswith("100 pairs")
    stopped = Design(pairs=100, rounds=Rounds(count=4, stop=Stop(max_band_width=0.2)))
    assert said(study, heading, design=stopped).startswith("Up to 100 pairs")


def test_the_caveats_state_that_candidates_are_from_the_table(study):
    heading = "The density is per unit of each feature's scale"
    assert "drawn uniformly" in said(study, heading)
    space = study.audit.space.model_copy(update={"sampling": "empirical"})
    audit = study.audit.model_copy(update={"space": space})
    text = dict(caveats(audit, study.campaign, {}, {}))[heading]
    assert "uniformly" not in text
    assert "kernel density of the table" in text


@pytest.mark.parametrize(("name", "follows"), [("cars", True), ("penguins_kinds", False)])
def test_the_caveats_state_that_a_belief_spreads_beyond_the_questions(study, name, follows):
    space = FeatureSpace.load(name).with_sampling("empirical")
    audit = study.audit.model_copy(update={"space": space})
    found = dict(caveats(audit, study.campaign, {}, {}))
    text = found["The density is per unit of each feature's scale"]
    assert ("rank correlations of the table" in text) is follows
    assert ("combinations of values that are not in the table" in text) is not follows
    assert "without a preference is uniform over the ranges" in text
