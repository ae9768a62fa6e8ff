"""The sentences of the first screen: true of the record, and none against another."""

import dataclasses

import numpy as np
import pytest

from llm_elicit.audit.inference import Interval
from llm_elicit.audit.preference import (
    REPEATABLE,
    Ceiling,
    PairAgreement,
    PositionEffect,
    PositionInteraction,
    Reliability,
    decide_verdicts,
)
from llm_elicit.audit.utility import Discrimination, Effect
from llm_elicit.report import sentences
from llm_elicit.report.formatting import power_labels
from llm_elicit.report.page import render_page
from llm_elicit.report.tables import audit_table
from report.conftest import band


def with_judge(audit, judge):
    others = [one if one.name != judge.name else judge for one in audit.judges]
    return audit.model_copy(update={"judges": others})


FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


@pytest.fixture
def expert(study):
    return study.audit.of("expert")


def changed(judge, **preference):
    return judge.model_copy(update={"preference": judge.preference.model_copy(update=preference)})


def identified(judge, **changes):
    source = "ranges + ratios" if changes.pop("used", True) else "convention"
    of = {
        "identified_power": dataclasses.replace(judge.powers.identified_power, **changes),
        "saved_source": source,
    }
    return judge.model_copy(update={"powers": judge.powers.model_copy(update=of)})


def reliable(judge, value, ceiling):
    known = Reliability(value=value, low=value - 0.1, high=value + 0.1, source="belief")
    most = Ceiling(value=ceiling, low=ceiling - 0.1, high=ceiling + 0.1, source="orders")
    return changed(judge, reliability=known, ceiling=most)


def test_what_is_reached_is_never_above_its_ceiling_without_a_word(study, expert):
    said = sentences.verdict_sentence(reliable(expert, 0.77, 0.93), study.audit)
    assert "(77% of the variation of held-out choices is predicted; ceiling 93%; p" in said
    low = sentences.verdict_sentence(reliable(expert, 0.06, -1.35), study.audit)
    assert "at most" not in low
    assert "6% of the variation" in low
    at = reliable(expert, 0.88, 0.86)
    said = sentences.verdict_sentence(at, study.audit)
    assert (
        "(88% of the variation of held-out choices is predicted, which is at its ceiling;" in said
    )
    page = render_page(dataclasses.replace(study, audit=with_judge(study.audit, at)), {})
    cell = '86%<br><span class="soft small">76% to 96%</span><br><span class="soft small">reached'
    assert cell in page
    row = audit_table(with_judge(study.audit, at)).iloc[0]
    assert (row["R²"], row["Ceiling"]) == ("88% (78% to 98%)", "86% (76% to 96%), reached")
    none = sentences.verdict_sentence(reliable(expert, -0.2, 0.5), study.audit)
    assert "predicts none of the variation of held-out choices" in none
    assert "-20%" not in none


def test_the_table_shows_no_ceiling_far_below_what_is_reached(expert):
    assert sentences.usable_ceiling(reliable(expert, 0.86, 0.84).preference).value == 0.84
    assert sentences.usable_ceiling(reliable(expert, 0.49, -0.57).preference) is None


def test_what_a_fit_leaves_out_is_reported(study, expert):
    log_odds = changed(reliable(expert, 0.4, 0.9), response="log-odds")
    assert log_odds.preference.explained_share == pytest.approx(0.4 / 0.9)
    said = sentences.remarks(log_odds, 0.05)[0]
    assert "(90% repeats) is not captured by the fit: the intervals above account for this" in said
    none = changed(reliable(expert, -0.2, 0.9), response="log-odds")
    assert (
        "its relation to the data and the effects of features are not given"
        in sentences.remarks(none, 0.05)[0]
    )
    # A linear rule predicts at most 64 % of choices: 60 is no misfit, 30 is.
    assert reliable(expert, 0.6, 1.0).preference.explained_share == 1.0
    assert reliable(expert, 0.3, 1.0).preference.explained_share == pytest.approx(0.3 * np.pi / 2)
    few = changed(expert, reliability=None, pairs=9)
    said = sentences.verdict_sentence(few, study.audit)
    assert "(reliability is not given for fewer than 10 pairs; p" in said


def test_a_repeatable_preference_without_a_trend_is_no_effect_of_position(study, expert):
    agreement = PairAgreement(source="orders", p_value=0.001, p_holm=0.001, p_is_bound=False)
    lost = {"p_value": 0.4, "p_holm": 0.4, "p_is_bound": False, "agreement": agreement}
    (found,) = decide_verdicts([changed(expert, **lost).preference], [None], 0.05)
    assert found.verdict == REPEATABLE
    said = sentences.verdict_sentence(changed(expert, **dict(found)), study.audit)
    assert "prefers the same option of a pair in both orders (" in said
    assert "p = 0.001), but no linear or quadratic rule" in said
    # At a fifth of the level, and of repeats in one order it is a remark only.
    for change in ({"p_value": 0.02}, {"source": "repeats"}):
        other = {**lost, "agreement": agreement.model_copy(update=change)}
        (found,) = decide_verdicts([changed(expert, **other).preference], [None], 0.05)
        assert found.verdict == "no consistent preference"
        assert found.reason.startswith("The answers are not shown to depend on the points")
    assert (
        "to the same question agree" in sentences.remarks(changed(expert, **dict(found)), 0.05)[0]
    )


def test_no_effect_of_width_is_reported_as_such(expert):
    unsure = dataclasses.replace(expert.powers.coherence, width=(-0.002, -0.008, 0.004))
    said = sentences.coherence_sentence(identified(expert, coherence=unsure).powers)
    assert "are not shown to depend on their width" in said
    assert said.endswith("compatible only with a very sharp density.")


def test_large_powers_have_no_exponent(expert):
    open_ = identified(expert, low=26.0, high=660.0, used=False)
    assert "13 to 330 times the saved power" in sentences.power_sentence(open_.powers)


def related(auc, rank, ceiling=0.88, rows=600):
    """Of a preference with an AUC and a rank correlation, each (value, low, high)."""
    auc, rank = (
        Interval(**dict(zip(("value", "low", "high"), x, strict=True))) for x in (auc, rank)
    )
    return Discrimination(
        rows=rows, auc=auc, ceiling=ceiling, rank_correlation=rank, level_set=band(0.1, 0.02),
        level_set_ceiling=0.5,
    )  # fmt: skip


def test_the_words_of_the_demo_follow_its_numbers():
    said = sentences.data_clause(related((0.54, 0.503, 0.57), (-0.01, -0.12, 0.08)), "a country")
    assert said == (
        "the preference ranks real rows slightly above random ones: a real country ranks above "
        "a random one 54% of the time (95 % interval 50.3% to 57.0%; ceiling 88%), 11% of the "
        "way from one half to the ceiling; but the utility is not shown to be higher where the "
        "data are dense: rank correlation with a kernel density of the data −0.01 (−0.12 to "
        "+0.08)"
    )


ABOVE, NONE, BELOW = (0.63, 0.6, 0.66), (0.53, 0.35, 0.69), (0.4, 0.38, 0.42)
UP, FLAT, DOWN = (0.4, 0.3, 0.5), (0.01, -0.2, 0.2), (-0.4, -0.5, -0.3)


@pytest.mark.parametrize(
    ("auc", "rank", "ceiling", "relation", "said"),
    [
        (ABOVE, UP, 0.88, "follows", "the preference follows the data: "),
        ((0.53, 0.51, 0.55), UP, 0.88, "follows", "the preference weakly follows the data: "),
        (BELOW, DOWN, 0.88, "opposite", "the preference is opposite to the data: "),
        (NONE, FLAT, 0.88, "not shown", "the preference is not shown to be related to the data: "),
        (
            (0.51, 0.48, 0.53),
            (0.0, -0.05, 0.05),
            0.88,
            "practically unrelated",
            "within 15% of what",
        ),
        ((0.51, 0.48, 0.53), (0.0, -0.05, 0.05), 0.65, "not shown", "is not shown to be related"),
        (ABOVE, UP, 0.52, "not measurable", "is not measurable: even the data's own density ranks"),
        (NONE, FLAT, 0.5, "not measurable", "above a random one only 50% of the time"),
        (
            ABOVE,
            FLAT,
            0.88,
            "partly",
            "but the utility is not shown to be higher where the data are dense",
        ),
        (ABOVE, DOWN, 0.88, "partly", "but the utility is lower where the data are dense"),
        (BELOW, FLAT, 0.88, "partly", "below random ones: a real place ranks above"),
        (NONE, UP, 0.88, "partly", "is not shown to rank real rows above random ones: a real"),
        (
            (0.9, 0.89, 0.91),
            UP,
            0.88,
            "follows",
            "at least as often as under the data's own density",
        ),
    ],
)
def test_words_about_the_data_follow_both_intervals(auc, rank, ceiling, relation, said):
    found = related(auc, rank, ceiling)
    assert found.relation == relation
    assert said in sentences.data_clause(found, "a place on the map")


def test_a_scale_is_claimed_only_if_it_is_identified(study, expert):
    known = sentences.verdict_sentence(expert, study.audit)
    assert known.endswith("the scale of its belief is identified by ranges and ratios.")
    unknown = changed(expert, verdict="consistent preference")
    assert sentences.verdict_sentence(unknown, study.audit).endswith("belief is not identified.")


def test_incoherent_ranges_do_not_identify_the_scale(study, expert):
    width = dataclasses.replace(expert.powers.coherence, width=(0.0, -0.02, 0.02), p_value=1e-6)
    alone = identified(expert, source="ranges", sources=(), agreement=None, coherence=width)
    assert "so the scale is not identified" in sentences.power_sentence(alone.powers)
    assert "they are not shown to depend on the width" in sentences.remarks(alone, 0.05)[0]
    points = identified(expert, source="points", sources=(), agreement=None, coherence=None)
    assert points.powers.scale_sources is None
    said = sentences.power_sentence(points.powers)
    assert "at which this fit is nearest to the points sampled" in said
    assert "points alone do not identify the sharpness" in said
    assert "90 % interval" in said
    assert "{" not in said
    assert "nearest to the points" not in sentences.power_sentence(expert.powers)
    with_ratios = identified(expert, coherence=width)
    said = sentences.verdict_sentence(with_ratios, study.audit)
    assert "by ranges and ratios, though its answers about ranges are not coherent" in said


def test_a_source_that_does_not_identify_the_power_is_reported(expert):
    said = sentences.power_sentence(identified(expert, used=False).powers)
    assert "do not identify the sharpness of the belief (90 % interval 0.75 to 1.4" in said
    assert "identified by" not in said
    odd = identified(expert, agreement=0.01).powers
    assert "The sources disagree (p = 0.01)" in sentences.power_sentence(odd)


def test_disagreement_of_the_sources_is_reported(study, expert):
    said = sentences.verdict_sentence(identified(expert, agreement=0.001), study.audit)
    assert said.endswith("identified by ranges and ratios, though these disagree.")


def test_ranges_are_not_mentioned_without_a_preference(study, expert):
    lost = changed(expert, verdict="no consistent preference")
    assert sentences.remarks(lost, 0.05) == ()
    assert len(sentences.remarks(expert, 0.05)) == 1


def effect(name, value, half, p_holm):
    return Effect(
        name=name, value=value, low=value - half, high=value + half, sd=abs(value), loo_r2=0.1,
        direction="higher" if value > 0 else "lower", p_value=p_holm, p_holm=p_holm,
        p_is_bound=False,
    )  # fmt: skip


def test_significant_features_are_named(study):
    effects = [
        effect("income", 0.2, 0.1, 0.01),
        effect("age", -0.4, 0.3, 0.04),
        effect("Latitude", 0.9, 0.01, 0.06),
        effect("Longitude", 0.1, 0.3, 0.8),
    ]
    assert (
        sentences.preferred_features(effects, study.audit.space, 0.05)
        == "lower age and higher income"
    )
    assert "no single feature is significant" in sentences.preferred_features(
        effects[2:], study.audit.space, 0.01
    )


def test_of_five_significant_features_four_are_named(study):
    effects = [effect("age", 0.1 * k, 0.01, 0.01) for k in range(1, 7)]
    said = sentences.preferred_features(effects, study.audit.space, 0.05)
    assert said == "higher age, age, age and age and 2 more"


def test_a_direction_is_stated_only_where_the_interval_has_one(study):
    """p = .018 beside 0.00 (0.00 to 3.24): the test finds a dependence, the interval no sign."""
    unsure = effect("age", 0.1, 0.2, 0.018)
    assert sentences.preferred_features([unsure], study.audit.space, 0.05) == "some values of age"
    assert sentences.direction_cell(unsure, 0.05) == "not determined"
    assert sentences.direction_cell(effect("age", 0.4, 0.3, 0.04), 0.05) == "higher"
    assert sentences.direction_cell(effect("age", 0.4, 0.3, 0.06), 0.05) == "not shown"
    kinds = unsure.model_copy(update={"categories": ("red", "blue"), "direction": "category"})
    assert sentences.preferred_features([kinds], study.audit.space, 0.05) == "some values of age"


def test_a_small_effect_is_not_rounded_to_nothing():
    assert (
        sentences.effect_cell(effect("age", 0.004, 0.003, 0.01)) == "+0.0040 (+0.0010 to +0.0070)"
    )
    assert sentences.effect_cell(effect("age", 12.0, 5.0, 0.01)) == "+12 (+7 to +17)"
    ends = {"value": None, "open_ended": True}
    some = effect("age", 12.0, 5.0, 0.01).model_copy(update=ends | {"high": None})
    assert (some.has_direction, sentences.effect_cell(some)) == (True, "at least +7.00")
    some = effect("age", -12.0, 5.0, 0.01).model_copy(update=ends | {"low": None})
    assert (some.has_direction, sentences.effect_cell(some)) == (True, "at most −7.00")
    some = some.model_copy(update={"high": None})
    assert (some.has_direction, sentences.effect_cell(some)) == (False, "not measurable")


def test_a_position_effect_that_depends_on_the_content_is_reported():
    content = PositionInteraction(loo_r2=0.3, p_value=0.001, p_holm=0.002, p_is_bound=True)
    position = PositionEffect(
        orders="both", pairs=60, mean=band(0.1, 0.02), sd=0.1, explained_share=0.1, p_value=0.001,
        p_holm=0.001, p_is_bound=True, interaction=content,
    )  # fmt: skip
    said = sentences.position_sentence(position, 0.05)
    assert "removes only its mean" in said
    chance = position.model_copy(
        update={"interaction": content.model_copy(update={"p_holm": 0.06})}
    )
    assert sentences.position_sentence(chance, 0.05) == ""
    even = position.model_copy(update={"interaction": None})
    assert sentences.position_sentence(even, 0.05) == ""
    assert "40%" in sentences.position_sentence(
        even.model_copy(update={"explained_share": 0.4}), 0.05
    )


def test_labels_beyond_the_slider_are_at_its_end_and_on_no_column(expert):
    data = expert.powers.data_power.model_copy(update={"value": 30.0, "low": 28.0, "high": 32.0})
    powers = expert.powers.model_copy(update={"data_power": data})
    *_, last = power_labels(powers, FACTORS)
    assert (last.at, last.nearest) == (1.0, None)
    assert "15 times the saved power" in last.text
    first, *_ = power_labels(powers, FACTORS)
    assert (first.at, first.nearest) == (0.5, 2)
    none = expert.powers.data_power.model_copy(update={"value": 0.0, "low": 0.0})
    powers = expert.powers.model_copy(update={"data_power": none})
    assert not any("data" in label.text for label in power_labels(powers, FACTORS))
    assert power_labels(None, FACTORS) == power_labels(powers, (1.0,)) == ()
