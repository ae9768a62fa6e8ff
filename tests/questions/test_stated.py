"""Stated probabilities and ratios: read strictly, or counted as unparsable."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.questions.parse import Reading, read_answer, read_probability, read_ratio

PROBABILITIES = [
    ("73", 0.73),
    ("73%", 0.73),
    ("73 %", 0.73),
    ("**73 %**", 0.73),
    ("73 per cent", 0.73),
    ("73.", 0.73),
    ("72.5", 0.725),
    ("72.5 %", 0.725),
    ("0.73", 0.73),
    (".73", 0.73),
    ("0.5 %", 0.005),
    ("0", 0.0),
    ("100", 1.0),
    ("1.0", 1.0),
    ("A, 73 %", 0.73),
    ("A: 73%", 0.73),
    ("A (73%)", 0.73),
    ("B, 73 %", 0.27),
    ("(B) 73%", 0.27),
    ("73% A", 0.73),
    ("73 % for B", 0.27),
    ("Probability: 73%", 0.73),
    ("probability that A is more plausible: 73%", 0.73),
    ("The probability that A is the more plausible one is 0.73.", 0.73),
    ("P(A) = 0.73", 0.73),
    ("A is more plausible: 73%", 0.73),
    ("73%\n\nThe first has the more usual income.", 0.73),
    ('{"percent": 73}', 0.73),
    ('{"percent": 72.5}', 0.725),
]

NO_PROBABILITIES = [
    "", "likely", "A", "101", "150 %", "1e2", "-5", "70-80", "70 to 80 %", "about 70", "~70 %",
    "70 or 30", "73\n27", "A 73 % B 27 %", "AB 73%", "P(B is less plausible) = 73", "7 3",
    "more than 70%", "73 km", "The first: 73", '{"percent": 173}', '{"percent": "73"}',
    '{"percent": true, "other": 1}x', '{"choice": "A"}', "nan", "inf", "C, 73 %",
    "Let me think.\n73%",
]  # fmt: skip

RATIOS = [
    ("3", 3.0), ("3.", 3.0), ("3x", 3.0), ("3 x", 3.0), ("3×", 3.0), ("3 times", 3.0),
    ("3 times as plausible", 3.0), ("1/4", 0.25), ("1 / 4", 0.25), ("0.25", 0.25), (".25", 0.25),
    ("**10**", 10.0), ("1", 1.0), ('{"ratio": 2.5}', 2.5), ("2\n\nBecause of the income.", 2.0),
]  # fmt: skip

NO_RATIOS = [
    "", "0", "-3", "1/0", "0/1", "three", "about 3", "2-3", "2 or 3", "3\n4", "1:4", "3 %", "1,000",
    "twice", "A", "A is 3 times as plausible", "1/2/3", "x3", "inf", "nan", "1e3", '{"ratio": 0}',
    '{"ratio": -1}', '{"ratio": "3"}', '{"percent": 3}',
]  # fmt: skip


@pytest.mark.parametrize(("reply", "expected"), PROBABILITIES)
def test_a_stated_probability_is_read(reply: str, expected: float) -> None:
    assert read_probability(reply) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("reply", NO_PROBABILITIES)
def test_what_states_no_probability_is_unparsable(reply: str) -> None:
    assert read_answer(reply, "probability") == Reading("unparsable")


@pytest.mark.parametrize(("reply", "expected"), RATIOS)
def test_a_stated_ratio_is_read(reply: str, expected: float) -> None:
    assert read_ratio(reply) == pytest.approx(expected)
    share = read_answer(reply, "ratio").first
    assert share is not None
    assert share / (1.0 - share) == pytest.approx(expected)


@pytest.mark.parametrize("reply", NO_RATIOS)
def test_what_states_no_ratio_is_unparsable(reply: str) -> None:
    assert read_answer(reply, "ratio") == Reading("unparsable")


def test_the_verdict_is_the_likelier_option() -> None:
    said = [read_answer(reply, "probability").verdict for reply in ("73", "27", "50", "B, 90 %")]
    assert said == ["A", "B", "tie", "B"]
    said = [read_answer(reply, "ratio").verdict for reply in ("3", "1/3", "1")]
    assert said == ["A", "B", "tie"]


def test_refusals_and_cut_answers_are_told_apart() -> None:
    for answer in ("probability", "ratio"):
        assert read_answer("I can't say.", answer) == Reading("refusal")
        assert read_answer("7", answer, finish="refusal") == Reading("refusal")
        assert read_answer("Let us compare", answer, finish="length") == Reading("truncated")


def test_a_letter_keeps_its_measured_probability_and_nan_is_none() -> None:
    assert read_answer("A", "letter", soft=0.8) == Reading("A", 0.8)
    assert read_answer("A", "letter", soft=math.nan) == Reading("A", None)
    assert read_answer("A", "letter", soft=math.nan).preference == 1.0
    assert read_answer("I can't say.", "letter", soft=0.8).preference is None


def test_other_letters_are_read_by_their_place() -> None:
    assert read_probability("Y, 80 %", ("X", "Y")) == pytest.approx(0.2)
    assert read_probability("A, 80 %", ("X", "Y")) is None


@given(
    st.text(alphabet='0123456789.%/ABx \n-,:()percentims{}"', max_size=30),
    st.sampled_from(["probability", "ratio", "letter"]),
    st.sampled_from(["stop", "length", "refusal", "other"]),
)
def test_any_reply_is_read_or_is_none(reply: str, answer: str, finish: str) -> None:
    read = read_answer(reply, answer, finish=finish)  # type: ignore[arg-type]
    if read.first is not None:
        assert 0.0 <= read.first <= 1.0
        assert read.verdict in ("A", "B", "tie")


@given(st.integers(0, 100), st.integers(0, 100))
def test_two_different_numbers_are_never_one_answer(one: int, other: int) -> None:
    for between in (" ", "\n", ", ", " or ", " - ", "/"):
        read = read_probability(f"{one}{between}{other}")
        assert read is None or one == other
