"""The audit of a run: one entry, what it refuses, what it keeps."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from audit.planted import ask, box, circle, constant, contrarian, gaussian_expert
from llm_elicit.audit.consistency import find_triads
from llm_elicit.audit.record import Audit, JudgeEvidence, audit_run, is_cross_check
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.audit.utility import evaluate_utility
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.density import Evidence, Uniform, fit_evidence
from llm_elicit.errors import InputError
from llm_elicit.report.sentences import verdict_sentence
from tests.density.targets import QUADRATIC

pytestmark = pytest.mark.usefixtures("few_particles")

SPACE = box(2)
SMALL = AuditSettings(size=200, marginal_size=500, repeats=2, flips=199)


def evidence_and_reference():
    rng = np.random.default_rng(0)
    expert = ask(SPACE, gaussian_expert(SPACE), rng, 100, name="expert").frame
    stuck = ask(SPACE, constant(1.0), rng, 100, name="stuck").frame
    log = Comparisons(pd.concat([expert, stuck]), SPACE.names)
    sampling, data = SPACE.sample(2000, rng), np.clip(rng.normal(size=(2000, 2)), -3, 3)
    belief = np.clip(rng.normal(size=(2000, 2)), -3, 3)
    evidence = [
        JudgeEvidence(
            "expert",
            log,
            {"utility": belief, "score": belief * 0.9},
            {"utility": {"held_out_log_likelihood": -0.4, "loss": np.array([1.0, np.nan])}},
        ),
        JudgeEvidence("stuck", log, {"utility": SPACE.sample(2000, rng)}),
    ]
    return evidence, Reference(SPACE, sampling, data)


@pytest.fixture(scope="module")
def audit():
    evidence, reference = evidence_and_reference()
    return audit_run(evidence, reference, seed=1, settings=SMALL)


def test_an_expert_has_a_preference_and_is_near_the_data(audit):
    expert = audit.of("expert")
    assert expert.verdict == "consistent preference"
    assert expert.preference.p_value == 1 / (1 + SMALL.flips)
    assert expert.preference.p_holm == 2 * expert.preference.p_value
    floor = audit.reference.data_floor.wasserstein.mean
    assert expert.data_distance.wasserstein.mean < 1.5 * floor
    assert expert.sampling_distance.wasserstein.mean > 2 * floor
    assert audit.reference.sampling_data_distance.wasserstein.mean > 2 * floor
    assert set(expert.method_distances) == {"score"}


def test_a_judge_who_always_says_a_has_a_position_effect_only(audit):
    stuck = audit.of("stuck")
    assert stuck.verdict == "position only"
    assert stuck.preference.position.mean.value == 0.5
    assert stuck.preference.position.explained_share == 1.0
    assert stuck.consistency.order_bias.value == 0.5


def test_a_contrarian_has_a_preference_and_lies_farther_from_the_data_than_lambda():
    """Found, and said to be so, in three of three studies of 100 pairs."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        log = ask(SPACE, contrarian(gaussian_expert(SPACE)), rng, 100)
        choices = log.choices("judge")
        fitted = fit_evidence(
            Evidence.comparisons(choices.a, choices.b, choices.preference),
            sampling=Uniform([-3, -3], [3, 3]), method="utility", settings=QUADRATIC,
        )  # fmt: skip
        data = np.clip(rng.normal(size=(2000, 2)), -3, 3)
        evidence = JudgeEvidence(
            "judge", log, {"utility": fitted.sample(2000, seed=1)},
            utility_draws=evaluate_utility(fitted, SPACE, data, 0),
        )  # fmt: skip
        reference = Reference(SPACE, SPACE.sample(2000, rng), data)
        audit = audit_run([evidence], reference, seed=1, settings=SMALL)
        judge = audit.of("judge")
        assert judge.verdict == "consistent preference"
        away = audit.reference.sampling_data_distance.wasserstein.mean
        assert judge.data_distance.wasserstein.mean > 1.2 * away
        assert judge.discrimination.auc.high < 0.3
        assert "is opposite to the data" in verdict_sentence(judge, audit)


def test_an_audit_survives_its_file(audit, tmp_path):
    loaded = Audit.load(audit.save(tmp_path / "audit.json"))
    assert loaded.model_dump() == audit.model_dump()
    kept = json.loads((tmp_path / "audit.json").read_text())["judges"][0]["diagnostics"]
    assert kept["utility"]["loss"] == [1.0, None]


def test_every_distance_says_that_an_expert_is_near_the_data(audit):
    expert, reference = audit.of("expert"), audit.reference
    for name in ("sliced", "energy", "classifier", "pqmass"):
        near, floor, far = (
            getattr(distance.joint, name).mean
            for distance in (
                expert.data_distance,
                reference.data_floor,
                reference.sampling_data_distance,
            )
        )
        assert abs(near - floor) < 0.3 * (far - floor), name


def test_a_belief_s_shape_stands_beside_the_data_s(audit):
    shape = audit.of("expert").shape
    assert [(pair.first, pair.second) for pair in shape.correlations] == [("x0", "x1")]
    assert abs(shape.correlations[0].belief - shape.correlations[0].data.value) < 0.1
    assert all(abs(t.below.value - 0.05) < 0.02 > abs(t.above.value - 0.05) for t in shape.tails)
    spread = audit.of("stuck").shape
    assert all(t.below.value < 0.02 > t.above.value for t in spread.tails)


def test_the_same_seed_gives_the_same_numbers_whoever_else_is_judged(audit):
    evidence, reference = evidence_and_reference()
    alone = audit_run(evidence[1:], reference, seed=1, settings=SMALL)
    others = {"preference": alone.of("stuck").preference}
    assert alone.of("stuck") == audit.of("stuck").model_copy(update=others)
    here, there = (one.of("stuck").preference for one in (alone, audit))
    assert (here.p_value, here.position.p_value) == (there.p_value, there.position.p_value)


def test_cycles_are_recorded_if_pairs_form_triads(audit, tmp_path):
    assert audit.of("expert").transitivity is None
    log = ask(SPACE, circle(), np.random.default_rng(1), 90, triads=30)
    half = JudgeEvidence(
        "judge", log, triads=find_triads(log, "judge"), triad_predictions=np.full((4, 30, 3), 0.5)
    )
    _, reference = evidence_and_reference()
    made = audit_run([half], reference, settings=SMALL)
    found = made.of("judge").transitivity
    assert found.triads == 30
    assert found.p_value < 0.01
    assert Audit.load(made.save(tmp_path / "audit.json")).of("judge").transitivity == found
    old = json.loads(made.model_dump_json())
    del old["judges"][0]["transitivity"]
    assert Audit.model_validate(old).of("judge").transitivity is None


def test_progress_ends_at_the_last_step():
    evidence, reference = evidence_and_reference()
    steps = []
    audit_run(evidence, reference, 1, lambda done, total: steps.append((done, total)), SMALL)
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_the_summary_is_a_row_a_feature_and_sample(audit):
    table = audit.summary("expert")
    assert list(table["sample"][:3]) == ["data", "belief", "λ"]
    assert list(table.columns[2:]) == ["mean", "sd", "q05", "q25", "q50", "q75", "q95"]
    assert len(table) == 6


def test_without_a_table_and_without_a_belief(tmp_path):
    evidence, reference = evidence_and_reference()
    bare = Reference(SPACE, reference.sampling)
    nothing = JudgeEvidence("stuck", evidence[0].comparisons)
    audit = audit_run([evidence[0], nothing], bare, settings=SMALL)
    assert audit.of("expert").data_distance is None
    assert audit.of("expert").verdict == "consistent preference"
    assert audit.of("stuck").belief_summary is None
    assert audit.of("stuck").verdict == "position only"
    assert Audit.load(audit.save(tmp_path / "audit.json")).reference.rows is None


def test_a_small_table_is_split_in_half_and_says_so():
    evidence, reference = evidence_and_reference()
    small = Reference(SPACE, reference.sampling, reference.data[:50])
    audit = audit_run(evidence, small, settings=SMALL)
    assert audit.reference.half_split
    assert audit.reference.data_floor.size == audit.of("expert").data_distance.size == 25


@pytest.mark.parametrize(
    ("points", "rule"),
    [
        (np.zeros((5, 3)), r"shape \(5, 3\); give \(n, 2\)"),
        (np.zeros(5), "shape"),
        (np.zeros((1, 2)), "at least 2"),
        (np.array([[0.0, 0.0], [np.nan, 1.0]]), "row 2, x0 = nan"),
    ],
)
def test_points_that_cannot_be_used_are_named(points, rule):
    with pytest.raises(InputError, match=rule):
        Reference(SPACE, points)


def test_unknown_judges_and_files_are_named(audit, tmp_path):
    evidence, _ = evidence_and_reference()
    with pytest.raises(InputError, match="no judgments by 'nobody'"):
        JudgeEvidence("nobody", evidence[0].comparisons)
    with pytest.raises(InputError, match="no judge 'nobody'"):
        audit.of("nobody")
    with pytest.raises(InputError, match="write it with llm-elicit audit"):
        Audit.load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match="not an audit"):
        Audit.load(tmp_path / "other.json")


def test_the_published_schema_is_that_of_the_record() -> None:
    """Written by: json.dumps(Audit.model_json_schema(mode="serialization"), indent=1)."""
    published = Path(__file__).parents[2] / "docs" / "audit.schema.json"
    schema = Audit.model_json_schema(mode="serialization")
    assert json.loads(published.read_text(encoding="utf-8")) == schema


def test_methods_check_each_other_only_without_a_shared_fitted_part(audit):
    """A score that was added to a fitted utility contains it."""
    added = {"score": {"network_share": 0.3}}
    for one, other, diagnostics, expected in (
        ("auto", "score", {}, True),
        ("utility", "score-constant", {}, True),
        ("auto", "flow", {}, True),
        ("auto", "utility", {}, False),
        ("score", "score-constant", {}, False),
        ("auto", "score", added, False),
        ("score", "utility", added, False),
    ):
        assert is_cross_check(one, other, diagnostics) is expected
        assert is_cross_check(other, one, diagnostics) is expected
    expert = audit.of("expert")
    assert expert.cross_checks == ("score",)
    assert expert.model_copy(update={"diagnostics": added}).cross_checks == ()
