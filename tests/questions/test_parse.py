import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.questions.parse import parse

CHOICES = [
    ("A", "A"),
    ("B", "B"),
    ("b", "B"),
    ("B.", "B"),
    (" B\n", "B"),
    ("**B**", "B"),
    ("`A`", "A"),
    ("(b)", "B"),
    ("[A]", "A"),
    ('"A"', "A"),
    ("\\boxed{B}", "B"),
    ("A: it is closer to the coast.", "A"),
    ("B) has the more usual household size", "B"),
    ("B - since the income is typical.", "B"),
    ("A\n\nThe income and the rooms fit together.", "A"),
    ("Answer: B", "B"),
    ("**Answer: B**", "B"),
    ("ANSWER: A.", "A"),
    ("My answer is A.", "A"),
    ("The answer is A because B has too many rooms.", "A"),
    ("The correct choice would be option B.", "B"),
    ("Option A is more plausible.", "A"),
    ("Description B seems much more likely.", "B"),
    ("Candidate A looks slightly more realistic than candidate B.", "A"),
    ("The more plausible description is B.", "B"),
    ("The more plausible one is option A.", "A"),
    ("I would choose B.", "B"),
    ("I'd go with option A, though it is close.", "A"),
    ("Looking at both, A has few rooms. Therefore, B is more plausible.", "B"),
    ("As an AI, I have no experience of it, but my answer is B.", "refusal"),
    ("Option B", "B"),
    ("option B.", "B"),
    ("Option B. It has the more usual income.", "B"),
    ("Definitely B", "B"),
    ("I think it is B.", "B"),
    ("Answer: definitely option B", "B"),
    ("More plausible: B", "B"),
    ("**More plausible:** Option A", "A"),
    ("A is wrong, B is right", "B"),
    ("Answer: A is wrong, B is right", "B"),
    ("B is correct.", "B"),
    ("I choose A over B.", "A"),
    ("A, as B is the more implausible", "A"),
]

NOT_CHOICES = [
    ("", "unparsable"),
    ("   ", "unparsable"),
    ("C", "unparsable"),
    ("A or B", "unparsable"),
    ("A and B", "unparsable"),
    ("A: 3 rooms. B: 4 rooms.", "unparsable"),
    ("A is more plausible than B, and B is more plausible than A.", "unparsable"),
    ("A house with 5 rooms is usual.", "unparsable"),
    ("To answer this, let us compare.", "unparsable"),
    ("I do not think that A is more plausible.", "unparsable"),
    ("A, B", "unparsable"),
    ("A. B", "unparsable"),
    ("Answer: A or B", "unparsable"),
    ("A - B is better", "unparsable"),
    ("A\n\nB is more plausible", "unparsable"),
    ("Definitely A. Definitely B.", "unparsable"),
    ("Option A\n3 rooms\nOption B\n4 rooms", "unparsable"),
    ("A is wrong", "unparsable"),
    ("The right ear is larger in A, the left in B", "unparsable"),
    ("If A is more likely then the rooms matter.", "unparsable"),
    ("Both", "tie"),
    ("tie", "tie"),
    ("Neither.", "tie"),
    ("Neither is more plausible than the other.", "tie"),
    ("They are equally plausible.", "tie"),
    ("Both are equally likely.", "tie"),
    ("Both descriptions seem about equal.", "tie"),
    ("There is no clear difference.", "tie"),
    ("I can't say.", "refusal"),
    ("I can\u2019t help with that.", "refusal"),
    ("I cannot determine which is more plausible.", "refusal"),
    ("I'm unable to answer.", "refusal"),
    ("I am sorry, but no.", "refusal"),
    ("As an AI language model I do not have opinions.", "refusal"),
    ("It is not possible to say which one is real.", "refusal"),
]


@pytest.mark.parametrize(("reply", "verdict"), [*CHOICES, *NOT_CHOICES])
def test_replies_people_have_seen(reply: str, verdict: str) -> None:
    assert parse(reply) == verdict


def test_a_cut_reply_is_truncated_only_without_a_verdict() -> None:
    assert parse("Let us compare the two", finish="length") == "truncated"
    assert parse("", finish="length") == "truncated"
    assert parse("A", finish="length") == "A"
    assert parse("I cannot say that", finish="length") == "refusal"


def test_the_providers_refusal_beats_the_text() -> None:
    assert parse("A", finish="refusal") == "refusal"


def test_other_letters_are_read_by_their_place() -> None:
    assert parse("Y", options=("X", "Y")) == "B"
    assert parse("Answer: X", options=("X", "Y")) == "A"
    assert parse("A", options=("X", "Y")) == "unparsable"


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("1", "A"), ("**2**", "B"), ("(1)", "A"), ("2.", "B"), ("1: the first", "A"),
        ("The answer is 2.", "B"), ("Option 1 is more plausible.", "A"),
        ("2\n\nIt weighs 1.5 kg", "B"),
        ("The answer is 1.5 kg", "unparsable"), ("2,000 people", "unparsable"),
        ("It has 1,200 people. 2.5 of them", "unparsable"), ("12", "unparsable"),
        ("1 or 2", "unparsable"),
    ],
)  # fmt: skip
def test_numbers_as_labels_are_not_read_from_other_numbers(reply: str, verdict: str) -> None:
    assert parse(reply, options=("1", "2")) == verdict


@given(st.text(max_size=200), st.sampled_from(["stop", "length", "refusal", "other"]))
def test_any_text_has_a_verdict(text: str, finish: str) -> None:
    assert parse(text, finish=finish) in {"A", "B", "tie", "refusal", "truncated", "unparsable"}


@given(st.text(alphabet=st.characters(exclude_characters="ABab"), max_size=200))
def test_no_choice_is_read_where_neither_letter_stands(text: str) -> None:
    assert parse(text) not in {"A", "B"}


_LETTER = re.compile(r"(?<![A-Za-z])[AB](?![A-Za-z])")


def _mirrored(reply: str) -> str:
    return _LETTER.sub(lambda match: "B" if match[0] == "A" else "A", reply)


@given(st.sampled_from([reply for reply, _ in [*CHOICES, *NOT_CHOICES] if "A " not in reply[:2]]))
def test_neither_letter_is_favoured(reply: str) -> None:
    mirror = {"A": "B", "B": "A"}
    if _LETTER.search(reply):
        verdict = parse(reply)
        assert parse(_mirrored(reply)) == mirror.get(verdict, verdict)


@given(
    st.sampled_from(["A", "B"]),
    st.sampled_from(["", " ", "\n", "**", "(", '"', "`"]),
    st.sampled_from(["", " ", ".", "\n", "**", ")", '"', "`", "!"]),
)
def test_a_letter_alone_is_a_choice_whatever_surrounds_it(
    letter: str, before: str, after: str
) -> None:
    assert parse(before + letter + after) == letter


CLAIMS = [
    "{}", "{}.", "({})", "Answer: {}", "My answer is {}.", "Option {}", "Definitely {}.",
    "More plausible: {}", "{} is more plausible.", "I would choose {}.", "{} is right.",
    "The more plausible one is {}.", "**{}**", "Verdict: probably {}",
]  # fmt: skip


@given(
    st.sampled_from(CLAIMS),
    st.sampled_from(CLAIMS),
    st.permutations(["A", "B"]),
    st.sampled_from(["\n", "\n\n", ", ", "; ", ". ", " and ", " or "]),
    st.sampled_from(["", ". The incomes differ.", "\nIt is close"]),
)
def test_no_choice_is_read_where_both_letters_are_claimed(
    one: str, other: str, letters: list[str], between: str, after: str
) -> None:
    reply = one.format(letters[0]) + between + other.format(letters[1]) + after
    assert parse(reply) not in {"A", "B"}, reply
