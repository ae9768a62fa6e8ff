"""What of a preference belongs to the content, the presentation, and the surface of the text."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.planted import ANSWER
from audit.verdict_campaigns import SPACE, scale
from llm_elicit.audit.inference import AdjustedTest, Interval
from llm_elicit.audit.judge_comparison import _different_facets
from llm_elicit.audit.preference import Doubt, _apply_doubt
from llm_elicit.audit.presentations import (
    PresentationAudit,
    PresentedResponse,
    measure_presentations,
)
from llm_elicit.audit.randomization import PresentedRows
from llm_elicit.audit.record import Audit, JudgeEvidence, audit_run
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.responses import build_response
from llm_elicit.audit.surface import ShownText, measure_surface
from llm_elicit.comparisons.table import Comparisons, evidence_of
from llm_elicit.config.campaign import Fit
from llm_elicit.density.utility.interaction import SHARES, Interaction
from llm_elicit.report.page import template_environment
from llm_elicit.report.sentences import (
    presentation_sentence,
    study_sentence,
    surface_sentence,
)
from llm_elicit.spaces.features import FeatureSpace

SETTINGS = AuditSettings(flips=199, size=50, marginal_size=50, repeats=2)
WORDINGS = 6


def text_length(point):
    return sum(len(text) for _, text in SPACE.word(point))


def longer_text(a, b):
    lengths = [np.array([text_length(point) for point in points]) for points in (a, b)]
    return 0.3 * np.subtract(*lengths)


def asked(common=0.0, own=0.0, *, seed=0, pairs=84, noise=0.1, content=None, soft=True):
    """The answers to pairs in six wordings, in both orders; a sixth of the pairs in two.

    The log-odds are by ``common`` times the mass, and ``own`` times mass or age, by the wording.
    """
    rng = np.random.default_rng([seed, 39])
    numbers = np.concatenate([np.arange(pairs), np.arange(pairs // 6)])
    a, b = (SPACE.sample(pairs, rng)[numbers] for _ in "ab")
    wording = np.arange(len(numbers)) % WORDINGS
    wording[pairs:] = (wording[pairs:] + 1 + np.arange(len(numbers) - pairs) // WORDINGS) % WORDINGS
    wording[pairs:] += wording[pairs:] == wording[: len(numbers) - pairs]
    wording %= WORDINGS
    slope = np.column_stack([np.full(WORDINGS, common), np.zeros(WORDINGS)])
    slope += own * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
    difference = ((scale(a) - scale(b)) * slope[wording]).sum(1)
    if content is not None:
        difference = content(a, b)
    position = rng.normal(0.2, 0.5, WORDINGS)[wording]
    shown = position + np.stack([difference, -difference])
    shown = shown + noise * rng.normal(size=shown.shape)
    first = 1.0 / (1.0 + np.exp(-shown))
    first = first if soft else (shown > 0).astype(float)
    frames = [
        pd.DataFrame({
            **ANSWER, "judge": "judge", "pair": np.arange(len(numbers)), "order": order,
            "replicate": 0, "soft": soft, "letter_mass": 1.0 if soft else None,
            "verdict": np.where(first[side] > 0.5, "A", "B"), "reply": "A",
            "probability": first[side] if order == "ab" else 1.0 - first[side],
            "presentation": [f"v2/{number}" for number in wording],
            **{f"{x}_{name}": points[:, j] for x, points in (("a", a), ("b", b))
               for j, name in enumerate(SPACE.names)},
        })
        for side, order in enumerate(("ab", "ba"))
    ]  # fmt: skip
    frame = pd.concat(frames).sort_values(["pair", "order"], kind="stable")
    return Comparisons(frame, SPACE.names)


def measured(log, fit=None):
    rng = np.random.default_rng(1)
    response = PresentedResponse.of(log, "judge")
    return measure_presentations(response, "judge", SPACE, SETTINGS, rng, fit or {})


def test_the_column_of_presentations_reaches_the_evidence():
    evidence = evidence_of(asked(0.3), "judge", Fit())
    assert evidence.presentations == tuple(f"v2/{number}" for number in range(WORDINGS))
    assert np.bincount(evidence.measurements.presentation).tolist() == [
        2 * len(part) for part in PresentedResponse.of(asked(0.3), "judge").parts
    ]


def test_position_effects_of_presentations_are_no_spread_over_pairs():
    log = asked(0.3, noise=0.0)
    response = build_response(log, "judge")
    assert response.position.std() < 1e-9  # of equal effects, once each presentation's is taken off
    plain = Comparisons(log.frame.drop(columns="presentation"), SPACE.names)
    unaware = build_response(plain, "judge")
    assert unaware.position.std() > 0.2
    np.testing.assert_allclose(response.value, unaware.value, atol=1e-9)
    assert response.mean_position == pytest.approx(unaware.mean_position)
    # Answers to a pair agree, which different position effects hide.
    assert np.nanmean(response.agreement) > np.nanmean(unaware.agreement)


def test_a_preference_in_common_holds_over_wordings():
    audit = measured(asked(0.3, 0.0))
    assert audit.interaction.p_value > 0.05
    assert audit.over_presentations.p_value == pytest.approx(1 / 32)  # the least of six
    assert audit.has_common_preference(0.05)
    assert (audit.pairs, audit.twice) == (84, 14)
    assert audit.effects["mass"] > 4 * abs(audit.effects["age"])
    positions = [presentation.position.value for presentation in audit.presentations]
    assert np.std(positions) > 0.2


@pytest.mark.parametrize("soft", [True, False])
def test_a_preference_of_single_wordings_is_not_one_over_wordings(soft):
    audit = measured(asked(0.0, 0.4 if soft else 2.0, soft=soft))
    assert audit.interaction.p_value < 0.02
    assert not audit.has_common_preference(0.05)
    first, second, *_ = audit.presentations
    assert first.pairs + second.pairs < audit.pairs


def test_the_verdict_is_that_a_preference_depends_on_the_wording():
    rng = np.random.default_rng(0)
    reference = Reference(SPACE, SPACE.sample(100, rng))
    verdicts = {}
    for name, log in {
        "common": asked(0.3), "wording": asked(0.0, 0.4), "text": asked(content=longer_text),
    }.items():  # fmt: skip
        record = audit_run([JudgeEvidence("judge", log)], reference, settings=SETTINGS)
        assert Audit.model_validate_json(record.model_dump_json()) == record
        verdicts[name] = record.judges[0].preference
    assert {name: preference.verdict for name, preference in verdicts.items()} == {
        "common": "consistent preference",
        "wording": "depends on the wording",
        "text": "surface of the text",
    }
    assert "how the question is put (p" in verdicts["wording"].reason
    assert "length and digits of the text (p" in verdicts["text"].reason


def test_a_report_says_what_wordings_have_in_common_and_what_the_text_predicts():
    asked_in = audit_of(0.18, 0.1, 6, 80).model_copy(
        update={"generalizability": Interval(value=0.91, low=0.8, high=0.96)}
    )
    assert presentation_sentence(asked_in, "consistent preference") == (
        "82% of its preference is common to wordings like these (generalizability .91 [.80, .96])."
    )
    assert study_sentence(asked_in) == (
        "With 6 wordings and 80 pairs, the generalizability over wordings and pairs is 0.88; "
        "2 of these wordings or 38 pairs in 6 wordings would reach .80."
    )
    response = PresentedResponse.of(asked(content=longer_text), "judge")
    text = measure_surface(response, SPACE, ShownText({}), SETTINGS, np.random.default_rng(2))
    assert "the content is not shown to add anything" in surface_sentence(text)
    assert presentation_sentence(None, "consistent preference") == surface_sentence(None) == ""
    # A judge without a preference prefers nothing that wordings could share.
    assert presentation_sentence(asked_in, "no consistent preference") == ""


UNITS, LABELS = ("units 1", "units 2"), ("labels A/B", "labels 1/2")
BOTH = ("v2/typical, labels A/B", "v2/common, labels 1/2")


@pytest.mark.parametrize(
    ("names", "facets", "noun", "verdict"),
    [
        (("v2/typical", "v2/common"), "wordings", "wording", "depends on the wording"),
        (UNITS, "units", "presentation", "depends on the presentation"),
        (LABELS, "labels", "presentation", "depends on the presentation"),
        (("features 1, digits 2", "features 2, digits 3"), "orders of features and numbers of "
         "digits", "presentation", "depends on the presentation"),
        (BOTH, "wordings and labels", "presentation", "depends on the wording"),
        (("examples none", "examples cup-and-train"), "sets of worked examples", "presentation",
         "depends on the presentation"),
    ],
)  # fmt: skip
def test_sentences_name_the_facets_that_vary(names, facets, noun, verdict):
    audit = audit_of(0.5, 0.2, len(names), 80)
    lines = [
        line.model_copy(update={"name": name})
        for line, name in zip(audit.presentations, names, strict=True)
    ]
    tested = audit.interaction.model_copy(update={"p_holm": 0.01})
    changes = {"presentations": lines, "generalizability": audit.common, "interaction": tested}
    asked_in = audit.model_copy(update=changes)
    assert f"common to {facets} like these" in presentation_sentence(asked_in, verdict)
    needs = study_sentence(asked_in)
    assert f"With 2 {noun}s and 80 pairs" in needs
    assert f"of these {noun}s" in needs
    doubt = Doubt(AdjustedTest(p_value=0.001, p_holm=0.001), facets=asked_in.facets)
    decided, reason = _apply_doubt("consistent preference", doubt, 0.05)
    assert decided == verdict
    assert f"no preference common to all {facets} is shown" in reason
    text = shown(asked_in)
    assert f"<h3>{noun.capitalize()}s</h3>" in text
    # Of choices, whose variance has no shares, the tests are shown, too.
    assert f"<p>Hypothesis that no {noun} matters: p = 0.01.</p>" in text
    for said in (needs, reason, text, presentation_sentence(asked_in, verdict)):
        assert "wordings" in facets or "wording" not in said.lower()


def shown(asked_in):
    """Return the section of a report about presentations."""
    source = (
        "{% macro stacked(value, kind='') %}{% endmacro %}"
        "{% macro term(name, text='') %}{{ text }}{% endmacro %}"
        "{% macro scroll(title) %}{{ title }}{{ caller() }}{% endmacro %}"
        "{% include 'presentations.html.jinja' %}"
    )
    item = {"presentations": asked_in, "name": "judge"}
    space = {"features": ()}
    return template_environment().from_string(source).render(item=item, space=space)


@pytest.mark.parametrize(
    ("first", "second", "different"),
    [
        ([("v2/typical", "")], [("v2/common", "")], "wordings"),
        ([("v2/typical", name) for name in UNITS], [("v2/typical", "")], "units"),
        ([("v2/typical", name) for name in UNITS], [("v2/common", "labels A/B")],
         "wordings, units and labels"),
        ([(name.split(",")[0], name) for name in BOTH], [("v2/typical", BOTH[0])],
         "wordings and labels"),
        ([("v2/typical", name) for name in LABELS], [("v2/typical", name) for name in LABELS], ""),
        ([("v2/typical", "units 1, digits 2"), ("v2/typical", "units 2, digits 3")],
         [("v2/typical", "units 1, digits 3"), ("v2/typical", "units 2, digits 2")],
         "presentations"),
    ],
)  # fmt: skip
def test_judges_who_are_compared_were_asked_in_different_facets(first, second, different):
    assert _different_facets(frozenset(first), frozenset(second)) == different
    assert _different_facets(frozenset(second), frozenset(first)) == different


def test_one_presentation_has_no_audit_of_presentations():
    log = asked(0.3)
    plain = Comparisons(log.frame.drop(columns="presentation"), SPACE.names)
    assert measured(plain) is None


@pytest.mark.parametrize(
    ("content", "relation"),
    [
        (longer_text, "surface"),
        (lambda a, b: 0.3 * (scale(a) - scale(b))[:, 1], "content"),
        (lambda a, b: np.zeros(len(a)), "not shown"),
    ],
)
def test_what_predicts_the_answers_is_told(content, relation):
    response = PresentedResponse.of(asked(content=content), "judge")
    rng = np.random.default_rng(2)
    audit = measure_surface(response, SPACE, ShownText({}), SETTINGS, rng)
    assert audit.relation == relation
    assert audit.facets == ("units", "digits")
    varied = ShownText({}, frozenset({"units"}))
    assert measure_surface(response, SPACE, varied, SETTINGS, rng).facets == ("digits",)


def test_words_of_a_presentation_are_those_that_were_shown():
    response = PresentedResponse.of(asked(content=longer_text), "judge")
    silent = ShownText({name: lambda point: [("mass", "?")] for name in response.names})
    rng = np.random.default_rng(0)
    assert measure_surface(response, SPACE, silent, SETTINGS, rng) is None  # no text differs


def audit_of(share, error, presentations, pairs):
    test = AdjustedTest(p_value=0.01)
    line = {"gain": 1.0, "position": None, "reliability": None, "effects": {}}
    common = Interval(value=1.0 - share, low=0.0, high=1.0)
    lines = [{"name": str(z), "pairs": 1, **line} for z in range(presentations)]
    return PresentationAudit(
        presentations=lines, pairs=pairs, twice=0, common=common, error=error,
        interaction=test, effects={},
    )  # fmt: skip


@given(
    st.floats(0.0, 0.9), st.floats(0.0, 1.0), st.integers(2, 12), st.integers(10, 300)
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_what_a_study_needs_is_the_least_that_reaches_four_fifths(share, error, count, pairs):
    audit = audit_of(share, error, count, pairs)
    needed = audit.presentations_needed
    if needed is None:
        assert error >= 0.25 - 1e-9
    else:
        assert audit.generalizability_of(needed, pairs) >= 0.8 - 1e-9
        assert needed == 1 or audit.generalizability_of(needed - 1, pairs) < 0.8 + 1e-9
    needed = audit.pairs_needed
    if needed is None:
        assert audit.generalizability_of(count, 10**9) <= 0.8 + 1e-6
    else:
        assert audit.generalizability_of(count, needed) >= 0.8 - 1e-9


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_scores_of_presentations_do_not_depend_on_their_numbers(seed):
    rng = np.random.default_rng(seed)
    columns, value, label = rng.normal(size=(30, 4)), rng.normal(size=30), np.arange(30) % 3
    pair = np.concatenate([np.arange(24), np.arange(6)])
    rows = PresentedRows(columns, value, np.full(30, 0.5), label, pair, 0.2)
    others = rng.permutation(3)[label]
    scores = rows.interaction_scores(np.column_stack([label, others]))
    assert scores[0] == pytest.approx(scores[1])
    permuted = rows._permuted_labels(20, rng)
    for labels in permuted.T:
        assert sorted(labels.tolist()) == sorted(label.tolist())
        # Pairs that were asked twice keep labels of such pairs.
        twice = [tuple(sorted(labels[pair == number])) for number in range(6)]
        assert sorted(twice) == sorted(tuple(sorted(label[pair == number])) for number in range(6))
    signs = np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    of_signs = rows.common_scores(signs)
    assert of_signs[0] == pytest.approx(of_signs[1])


def test_the_interval_of_the_share_is_from_0_where_the_test_does_not_reject_it():
    profile = -((SHARES - 0.2) ** 2) / 0.001  # normal, once its square root is taken
    interaction = Interaction.from_profile(profile, 6)
    assert interaction.share_interval[0] == pytest.approx(0.2 - 1.645 * 0.001**0.5, abs=0.01)
    assert np.mean(interaction.quantiles) == pytest.approx(interaction.share, abs=0.005)
    fit = {"response": {"interaction": asdict(interaction)}}
    kept, rejected = (measured(log, fit) for log in (asked(0.3), asked(0.0, 0.4)))
    assert rejected.interaction.p_value < 0.05 < kept.interaction.p_value
    assert kept.common.high == kept.generalizability.high == 1.0
    assert rejected.common.high == 1.0 - interaction.share_interval[0]
    assert rejected.generalizability.high == interaction.generalizability_interval[1]
    assert kept.common.low == rejected.common.low == 1.0 - interaction.share_interval[1]


def test_categories_have_effects_by_wording():
    space = FeatureSpace(**SPACE.model_dump(exclude={"sampling"}))
    assert set(measured(asked(0.3)).presentations[0].effects) == set(space.names)
