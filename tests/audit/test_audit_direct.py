"""Direct answers of judges whose truth is known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from llm_elicit.audit.direct_answers import (
    DirectEvidence,
    _find_neighbours,
    equals_printed,
    measure_direct,
    measure_generated,
    measure_row_completion,
    measure_stated_quantiles,
    quantile_distance,
)
from llm_elicit.audit.reference import AuditSettings, Reference
from llm_elicit.planning.direct_questions import RowCompletion
from llm_elicit.questions.numbers import LEVELS, UNREAD
from llm_elicit.spaces.features import Feature, FeatureSpace

SHARES = np.array(LEVELS) / 100
NODES = np.array([0.0, *SHARES, 1.0])
SETTINGS = AuditSettings(size=200)


def world(features: int = 6) -> FeatureSpace:
    """Wide ranges, so that none of the beliefs below touches an end."""
    made = [Feature(name=f"x{j}", label=f"x{j}", low=-50, high=50, digits=6)
            for j in range(features - 1)]  # fmt: skip
    made.append(Feature(name="income", label="income", scale="log", low=1e-9, high=1e9, digits=6))
    return FeatureSpace(name="w", title="w", subject="w", features=tuple(made))


def draw(space: FeatureSpace, n: int, rng: np.random.Generator, wide=1.0, at=0.0) -> np.ndarray:
    """Standardizer normal on each feature's scale, or as wide and where else it is stated."""
    return space.from_scale(at + wide * rng.normal(size=(n, space.dimension)))


@pytest.fixture(scope="module")
def reference() -> Reference:
    space, rng = world(), np.random.default_rng(0)
    return Reference(space, space.sample(2000, rng), draw(space, 800, rng))


@given(st.lists(st.floats(-3, 3), min_size=7, max_size=7), st.lists(st.floats(-3, 3), min_size=7,
       max_size=7))  # fmt: skip
def test_the_distance_of_quantile_functions_is_the_integral(x, y) -> None:
    at = (np.arange(20_000) + 0.5) / 20_000
    gap = np.abs(np.interp(at, NODES, x) - np.interp(at, NODES, y)).mean()
    assert quantile_distance(np.array(x), np.array(y)) == pytest.approx(gap, abs=1e-4)


def test_stated_quantiles_are_as_far_off_as_they_were_planted(reference: Reference) -> None:
    space, rng = reference.space, np.random.default_rng(1)
    truth = np.quantile(reference.data, SHARES, axis=0).T
    off = space.from_scale(space.to_scale(truth.T) + 0.5).T
    stated = measure_stated_quantiles(np.stack([truth, truth, off]), reference, reference.data, rng)
    for feature in stated:
        # Of three statements the median is the one made twice.
        assert feature.data == pytest.approx(0.0, abs=1e-3)
        assert feature.times == 3
        assert feature.spread == pytest.approx(0.475 / 3, abs=0.01)  # 0.5, less at both ends
        assert 0.0 < feature.floor < 0.1
    stated = measure_stated_quantiles(off[None], reference, reference.data, rng)
    assert [f.data for f in stated] == pytest.approx([0.475] * 6, abs=0.02)
    assert [f.belief for f in stated] == [f.data for f in stated]
    assert all(f.spread is None for f in stated)


def test_numbers_outside_the_range_and_missing_statements_are_counted(reference) -> None:
    quantiles = np.full((2, 6, 5), np.nan)
    quantiles[1, 2] = [-80.0, -1.0, 0.0, 1.0, 99.0]
    stated = measure_stated_quantiles(quantiles, reference, None, np.random.default_rng(0))
    third, first = stated[2], stated[0]
    assert (third.times, third.outside, third.quantiles[0]) == (1, 2, -50.0)
    assert (first.times, first.quantiles, first.data) == (0, None, None)
    none = np.full((2, 6, 5), np.nan)
    assert measure_stated_quantiles(none, reference, None, np.random.default_rng(0)) is None


def test_true_draws_pass_and_shifted_ones_are_found(reference: Reference) -> None:
    space, rng = reference.space, np.random.default_rng(4)
    p_values = []
    for _ in range(20):
        found = measure_generated(draw(space, 20, rng), reference, None, SETTINGS, rng)
        p_values.append(found.data.p_value)
    assert 0.2 < np.mean(p_values) < 0.8
    assert np.mean(np.array(p_values) <= 0.05) < 0.2
    shifted = draw(space, 20, rng, 1.0, np.array([1.5, 0, 0, 0, 0, 0]))
    found = measure_generated(shifted, reference, reference.data, SETTINGS, rng)
    assert (found.points, found.outside_range, found.distinct) == (20, 0, 20)
    assert found.data.p_value == found.features[0].data.p_value == 0.01
    assert found.features[0].data.distance == pytest.approx(1.5, abs=0.5)
    assert found.features[3].data.p_value > 0.02


def test_points_outside_the_range_are_left_out_and_counted(reference: Reference) -> None:
    points = draw(reference.space, 10, np.random.default_rng(0))
    points[0, 0], points[1, 5] = 51.0, -1.0
    found = measure_generated(points, reference, None, SETTINGS, np.random.default_rng(0))
    assert (found.points, found.outside_range, found.belief) == (8, 2, None)
    few = measure_generated(points[:3], reference, None, SETTINGS, np.random.default_rng(0))
    assert few is None


SETS = ("penguins", "cars", "countries")


@pytest.fixture(scope="module", params=SETS)
def completion(request: pytest.FixtureRequest) -> RowCompletion:
    return RowCompletion.of(FeatureSpace.load(request.param), seed=1)


def near(completion: RowCompletion, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What a judge says that knows the subject, not the table: a value like those of like rows."""
    hidden = np.array([float(cell) for cell in completion.hidden])
    shown = np.nan_to_num(completion.predictors)
    shown = (shown - shown.mean(axis=0)) / shown.std(axis=0)
    found = cKDTree(shown).query(shown[rows], k=9)[1]
    said = [
        hidden[rng.choice(like[like != row][:8], 3)].mean()
        for row, like in zip(rows, found, strict=True)
    ]
    decimals = 2 if hidden.max() < 100 else -1
    return np.round(said, decimals)


def test_memorization_is_found_and_knowledge_of_the_subject_is_not(
    completion: RowCompletion,
) -> None:
    """Power: of 20 rows, a judge that completes two in five is found in 19 of 20 campaigns."""
    rng = np.random.default_rng(5)
    hidden = np.array([float(cell) for cell in completion.hidden])
    found = {"memorizer": 0, "knowing": 0}
    for _ in range(40):
        rows = rng.choice(len(completion), 20, replace=False)
        ignorant = near(completion, rows, rng)
        planted = np.where(rng.random(20) < 0.4, hidden[rows], ignorant)
        for who, said in (("memorizer", planted), ("knowing", ignorant)):
            found[who] += measure_row_completion(
                completion, rows.tolist(), said, 999, rng
            ).memorized
    assert found["memorizer"] >= 38
    assert found["knowing"] <= 2


def test_one_exact_completion_is_not_significant_and_unparsed_ones_are_not_exact(
    completion: RowCompletion,
) -> None:
    said = np.full(20, np.nan)
    said[0] = float(completion.hidden[0])
    result = measure_row_completion(
        completion, list(range(20)), said, 999, np.random.default_rng(0)
    )
    assert result.exact_share.value == 0.05
    assert not result.memorized
    assert result.p_value > 0.01


def test_a_row_is_completed_at_the_precision_of_the_table_or_four_digits() -> None:
    said, printed = np.array([6.9841, 6.98, 7.0, 5_499_000.0]), np.array([6.984127] * 3 + [5498955])
    assert equals_printed(said[:3], printed[:3], 6).tolist() == [True, False, False]
    assert equals_printed(said[3:], printed[3:], 0).tolist() == [True]


def test_a_rows_value_is_not_in_its_beginning(completion: RowCompletion) -> None:
    header, first = completion.header.split(","), completion.beginnings[0]
    assert len(set(completion.beginnings)) > 0.9 * len(completion)
    assert first.count(",") == len(header) - 2
    again, other = (RowCompletion.of(FeatureSpace.load("penguins"), seed) for seed in (1, 2))
    assert again.beginnings != other.beginnings
    assert sorted(again.beginnings) == sorted(other.beginnings)


def test_neighbours_of_rows_include_both_ends_of_a_circle(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{hour:.2f},{rng.integers(10_000)}" for hour in rng.uniform(0, 24, 200)]
    (tmp_path / "t.csv").write_text("hour,count\n" + "\n".join(lines) + "\n")
    drafted = FeatureSpace.from_file(tmp_path / "t.csv")
    hour = drafted.features[0].model_copy(update={"low": 0.0, "high": 24.0, "periodic": True})
    space = drafted.model_copy(update={"features": (hour, drafted.features[1])})
    completion = RowCompletion.of(space, seed=1)
    assert completion.columns == (0, 0)
    hours = np.array([float(beginning) for beginning in completion.beginnings])
    found = hours[_find_neighbours(completion.predictors, np.arange(200))]
    apart = np.abs(np.mod(found - hours[:, None] + 12, 24) - 12)
    assert apart.max() < 4
    assert (apart < 2).mean() > 0.9
    assert set(map(len, found)) == {20}


def test_all_replies_are_parsed_or_counted() -> None:
    space = FeatureSpace.load("penguins")
    replies = {
        "quantiles": ["3000; 3500; 4000; 4500; 5000", "no idea", "5; 4; 3; 2; 1"],
        "sample": ["40; 17; 200; 4000", "I'm sorry", "1; 2", "41; 17; 200; 99999"],
        "row": ["4000", "4,000 or 5,000", "nan"],
    }
    rows = [
        {"judge": "x", "kind": kind, "number": place if kind == "row" else 3, "replicate": place,
         "reply": reply, "finish": "stop"}
        for kind, some in replies.items()
        for place, reply in enumerate(some)
    ]  # fmt: skip
    table = pd.DataFrame([row | {"number": 0} if row["kind"] == "sample" else row for row in rows])
    evidence = DirectEvidence.from_table(table, "x", space, seed=1)
    assert DirectEvidence.from_table(table, "y", space, seed=1) is None
    assert evidence.quantiles[0, 3].tolist() == [3000, 3500, 4000, 4500, 5000]
    assert np.isfinite(evidence.quantiles).sum() == 5
    assert evidence.points.tolist() == [[40, 17, 200, 4000], [41, 17, 200, 99999]]
    data = space.table_points()
    reference = Reference(space, space.sample(500, np.random.default_rng(0)), data)
    audit = measure_direct(evidence, reference, data, SETTINGS, np.random.default_rng(0))
    assert [(a.kind, a.answers, a.parsed) for a in audit.answer_counts] == [
        ("quantiles", 3, 1), ("sample", 4, 2), ("row", 3, 1)
    ]  # fmt: skip
    assert audit.answer_counts[0].unparsed == dict.fromkeys(UNREAD, 0) | {
        "no numbers": 1,
        "not in order": 1,
    }
    assert audit.generated_points is None
    assert audit.row_completion.rows == 3
