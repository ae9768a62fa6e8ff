"""Agreement of people with themselves, with others and with models; attention and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from audit.planted import ask, box, constant
from benchmarks.people import measure
from llm_elicit.audit.people import (
    PairAnswers,
    PeopleAudit,
    PeopleEvidence,
    Ratings,
    audit_people,
    choice_indicators,
    cohen_kappa,
    estimate_people_preference,
    krippendorff_alpha,
    measure_group_agreement,
    measure_rater_agreement,
)
from llm_elicit.audit.reference import Reference
from llm_elicit.comparisons.table import Comparisons

SPACE = box(2)
RNG = np.random.default_rng

# Krippendorff (2011), Computing Krippendorff's alpha-reliability, example C: nominal data of four
# observers, with missing values; and example A: two observers, two categories.
FOUR = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")
TWO = ("0100000010", "1110010000")


def coded(lines: tuple[str, ...]) -> Ratings:
    """Ratings from one line an observer, a character a unit, "." where there is none."""
    values = sorted(set("".join(lines)) - {"."})
    shares = [[[float(cell == value) for value in values] for cell in line] for line in lines]
    return Ratings([f"observer {number}" for number in range(len(lines))], np.array(shares))


@pytest.mark.parametrize(("lines", "pairs", "expected"), [(FOUR, 11, 0.743), (TWO, 10, 0.095)])
def test_alpha_is_that_of_the_published_examples(lines, pairs, expected):
    found = measure_group_agreement(coded(lines), RNG(0))
    assert found.pairs == pairs
    assert round(found.alpha.value, 3) == expected
    assert found.alpha.low < expected < found.alpha.high


def test_kappa_is_that_of_the_published_example():
    """Fleiss, Levin and Paik (2003), Statistical Methods for Rates and Proportions, table 18.1."""
    table = np.array([[75.0, 1, 4], [5, 4, 1], [0, 0, 10]])
    assert round(float(cohen_kappa(table)), 2) == 0.68
    units = [(i, j) for i in range(3) for j in range(3) for _ in range(int(table[i, j]))]
    one, other = (np.eye(3)[list(side)] for side in zip(*units, strict=True))
    found = measure_rater_agreement(("A", "B"), one, other, RNG(0))
    assert (found.pairs, found.share.value) == (100, 0.89)
    # Their standard error is 0.087.
    assert found.kappa.low == pytest.approx(0.676 - 1.96 * 0.087, abs=0.06)
    assert found.kappa.high == pytest.approx(0.676 + 1.96 * 0.087, abs=0.06)


def test_independent_raters_agree_by_chance_in_most_intervals():
    covered = {"kappa": 0, "alpha": 0}
    for seed in range(100):
        rng = RNG(seed)
        shares = np.eye(3)[rng.choice(3, size=(3, 60), p=[0.45, 0.1, 0.45])]
        two = measure_rater_agreement(("a", "b"), shares[0], shares[1], rng).kappa
        all_three = measure_group_agreement(Ratings(["a", "b", "c"], shares), rng).alpha
        covered["kappa"] += two.low <= 0.0 <= two.high
        covered["alpha"] += all_three.low <= 0.0 <= all_three.high
    assert min(covered.values()) >= 88, covered


def test_kappa_and_alpha_are_undefined_if_all_answers_are_equal():
    same = choice_indicators(np.ones(5))
    found = measure_rater_agreement(("a", "b"), same, same, RNG(0))
    assert (found.share.value, found.kappa) == (1.0, None)
    assert np.isnan(krippendorff_alpha(np.array([[4.0, 0.0], [0.0, 0.0]])))


def test_agreement_is_the_expectation_over_one_of_several_answers():
    """A rater with both answers about a pair agrees with a steady one half the time."""
    torn = Ratings.from_preferences(
        ["x"] * 16 + ["y"] * 8, [*np.repeat(range(8), 2), *range(8)], np.array([0.0, 1.0] * 12)
    )
    found = measure_rater_agreement(("x", "y"), *torn.shares, RNG(0))
    assert (found.share.value, found.kappa.value) == (0.5, 0.0)
    assert measure_group_agreement(torn, RNG(0)).alpha.value == pytest.approx(0.0625)


def test_agreement_of_a_few_pairs_has_no_kappa_or_alpha():
    few = Ratings.from_preferences(["x", "y"] * 4, np.repeat(range(4), 2), np.array([0.0, 1.0] * 4))
    assert measure_rater_agreement(("x", "y"), *few.shares, RNG(0)).kappa is None
    assert measure_group_agreement(few, RNG(0)).alpha is None


def person(name: str, rows: list[tuple[int, str, float]], judge: str = "panel") -> pd.DataFrame:
    """The judgments of one person: pair, order and P(a preferred)."""
    frame = ask(SPACE, constant(1.0), RNG(0), 40, name=judge).frame
    parts = []
    for pair, order, preference in rows:
        row = frame[(frame["pair"] == pair) & (frame["order"] == order)].copy()
        first = preference if order == "ab" else 1.0 - preference
        verdict = {1.0: "A", 0.0: "B", 0.5: "tie"}[first]
        parts.append(row.assign(model_answered=name, probability=preference, verdict=verdict))
    return pd.concat(parts)


def card(expert: str, kind: str, pair: int, order: str, choice: str, **rest: Any) -> dict[str, Any]:
    known = {"judge": "panel", "question": float(pair), "state": "answered", "expected": None}
    shown = {"expert": expert, "kind": kind, "pair": pair, "order": order, "choice": choice}
    return known | {"confidence": np.nan, "seconds": 3.0} | shown | rest


def audited(frames: list[pd.DataFrame], cards: list[dict[str, Any]]) -> PeopleAudit:
    table = Comparisons(pd.concat(frames), SPACE.names)
    found = audit_people(PeopleEvidence(table, pd.DataFrame(cards)), seed=1)
    assert found is not None
    return found


def test_people_and_models_are_compared_by_the_point_over_common_pairs():
    """Ben sees a first and Cleo b; they prefer the same points. The model contradicts them."""
    points = [float(pair % 2) for pair in range(20)]
    ben = person("ben", [(pair, "ab", points[pair]) for pair in range(15)])
    cleo = person("cleo", [(pair, "ba", points[pair]) for pair in range(10, 20)])
    model = person("m-1", [(pair, "ab", 1.0 - points[pair]) for pair in range(20)], judge="gpt")
    cards = [card("ben", "question", 0, "ab", "b"), card("cleo", "question", 10, "ba", "a")]
    found = audited([model, ben, cleo], cards)
    measured = {
        (one.first, one.second): (one.pairs, one.share.value, round(one.kappa.value, 3))
        for one in found.agreements
    }
    assert measured == {
        ("ben", "cleo"): (5, 1.0, 1.0),
        ("ben", "gpt"): (15, 0.0, round(float(cohen_kappa(np.array([[0.0, 8], [7, 0]]))), 3)),
        ("cleo", "gpt"): (10, 0.0, -1.0),
    }
    assert (found.people_agreement.raters, found.people_agreement.pairs) == (["ben", "cleo"], 5)
    assert found.people_agreement.alpha.value == 1.0
    assert (found.overall_agreement.raters, found.overall_agreement.pairs) == (
        ["ben", "cleo", "gpt"],
        20,
    )
    assert found.overall_agreement.alpha.value < 0.0


def test_a_repeat_in_the_other_order_is_the_same_choice():
    cards = [card("ben", "question", pair, "ab", "a") for pair in range(10)]
    cards += [card("ben", "repeat", pair, "ba", "b") for pair in range(4)]
    cards += [card("ben", "repeat", 4, "ba", "a"), card("ben", "repeat", 5, "ab", "cannot say")]
    found = audited([person("ben", [(pair, "ab", 1.0) for pair in range(10)])], cards)
    (ben,) = found.people
    assert (ben.retest.pairs, ben.retest.share.value) == (5, 0.8)
    assert (ben.answers, ben.first_shown_share.value) == (10, 1.0)
    assert found.agreements == []
    assert found.people_agreement is None
    assert found.overall_agreement is None


def test_replicates_by_one_person_are_repeats_too():
    rows = person("ben", [(pair, "ab", 1.0) for pair in range(6)])
    again = rows.assign(replicate=1)
    again.loc[again["pair"] == 0, ["probability", "verdict"]] = [0.0, "B"]
    found = audited([rows, again], [card("ben", "question", 0, "ab", "a")])
    assert (found.people[0].retest.pairs, found.people[0].retest.share.value) == (6, 5 / 6)


def test_attention_response_times_and_undone_answers():
    cards = [
        card("ben", "question", pair, "ab", "a", seconds=seconds, confidence=0.8)
        for pair, seconds in enumerate([0.5, 2.0, 4.0])
    ]
    cards += [card("ben", "question", 3, "ab", "b", state="undone", seconds=99.0)]
    for choice in ("a", "a", "b"):
        checks = {"expected": "a", "question": np.nan, "seconds": 3.0}
        cards.append(card("ben", "attention", 0, "ab", choice, **checks))
    found = audited([person("ben", [(pair, "ab", 1.0) for pair in range(3)])], cards)
    (ben,) = found.people
    assert (ben.answers, ben.undone_answers, ben.attention_questions) == (3, 1, 3)
    assert ben.attention_share.value == pytest.approx(2 / 3)
    assert (ben.median_seconds, ben.fast_share, ben.mean_confidence) == (
        3.0,
        1 / 6,
        pytest.approx(0.8),
    )
    assert ben.retest is None


def test_a_person_without_a_choice_has_no_agreement():
    rows = person("ben", [(0, "ab", 1.0)]).assign(probability=np.nan, verdict="refusal")
    found = audited([rows], [card("ben", "question", 0, "ab", "cannot say")])
    (ben,) = found.people
    assert (ben.first_shown_share, ben.retest, found.agreements) == (None, None, [])


def test_experts_of_one_name_are_named_with_their_judge():
    one = person("ben", [(0, "ab", 1.0)], judge="panel")
    other = person("ben", [(0, "ab", 1.0)], judge="board")
    cards = [card("ben", "question", 0, "ab", "a")]
    cards += [card("ben", "question", 0, "ab", "a", judge="board")]
    found = audited([one, other], cards)
    assert [each.name for each in found.people] == ["panel/ben", "board/ben"]


def test_without_answers_of_people_there_is_no_record():
    table = Comparisons(person("ben", [(0, "ab", 1.0)]), SPACE.names)
    undone = pd.DataFrame([card("ben", "question", 0, "ab", "a", state="undone")])
    assert audit_people(PeopleEvidence(table, undone)) is None


@pytest.mark.parametrize("model", ["good", "useless"])
def test_a_model_narrows_intervals_that_still_hold_the_truth(model):
    own, corrected, ratio = measure(model, "decided", 40, studies=100)
    assert 0.84 < corrected.mean() < 0.95
    assert abs(corrected.mean() - own.mean()) < 0.05
    assert np.quantile(ratio, 0.95) < 1.02, "hardly ever wider than people alone"
    assert (ratio.mean() < 0.75) == (model == "good")


def study(n=200):
    """What people and a model answer to the same pairs: both prefer high values of x0."""
    model = ask(SPACE, lambda a, b: expit(3.0 * (a - b)[:, 0]), RNG(5), n, name="model", soft=True)
    panel = ask(SPACE, lambda a, b: expit(3.0 * (a - b)[:, 0]), RNG(5), n, name="panel")
    return PairAnswers("panel", (panel, "panel"), n), PairAnswers("model", (model, "model"), n)


def test_people_are_corrected_by_a_model_at_the_pairs_they_share():
    panel, model = study()
    table, name = panel.answers
    data = RNG(1).normal([1.0, 0.0], 0.5, (300, 2))
    reference = Reference(SPACE, SPACE.sample(500, RNG(2)), data)
    few = Comparisons(table.frame[table.frame["pair"] < 30], SPACE.names)
    panel = replace(panel, answers=(few, name))
    found = estimate_people_preference(panel, model, reference)
    assert (found.pairs, found.model_pairs, found.reason) == (30, 200, "")
    assert found.next_pairs == tuple(range(30, 200))
    high, none, towards_data = found.effects
    assert [high.name, none.name, towards_data.name] == ["x0", "x1", "data"]
    assert high.corrected.low > 0.3
    assert none.corrected.low < 0.0 < none.corrected.high
    assert towards_data.corrected.low > 0.6
    assert max(high.width_ratio, towards_data.width_ratio) < 0.9

    swapped = few.frame.rename(
        columns=lambda c: {"a": "b", "b": "a"}[c[0]] + c[1:] if c[:2] in ("a_", "b_") else c
    )
    swapped = swapped.assign(
        probability=1.0 - swapped["probability"],
        order=swapped["order"].map({"ab": "ba", "ba": "ab"}),
    )
    again = replace(panel, answers=(Comparisons(swapped, SPACE.names), name))
    assert estimate_people_preference(again, model, reference) == found, "whichever point is a"


def test_people_who_chose_their_pairs_are_not_corrected():
    panel, model = study()
    table, name = panel.answers
    reference = Reference(SPACE, SPACE.sample(500, RNG(2)))

    def found(pairs, drawn):
        rows = table.frame[table.frame["pair"].isin(pairs)]
        side = PairAnswers("panel", (Comparisons(rows, SPACE.names), name), drawn)
        return estimate_people_preference(side, model, reference)

    assert found(range(20), None).effects, "the first pairs of a plan are drawn at random"
    assert found(range(20, 40), None).reason == (
        "it is unknown if the pairs of panel are a random sample or the first of a plan"
    )
    assert found(range(20, 40), 200).effects
    assert found(range(9), 200).reason == "9 common pairs drawn at random; at least 10 are needed"
    assert found(range(0, 200, 5), 40).pairs == 8, "pairs of later rounds are not drawn from λ"
