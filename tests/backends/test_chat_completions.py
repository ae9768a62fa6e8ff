import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.backends import wire
from llm_elicit.backends.base import Reply
from llm_elicit.backends.chat_completions import (
    deciding_token,
    letter_ids,
    read_completion,
    soft_choice,
)
from llm_elicit.testing.provider import Answer, completion

AB = ("A", "B")


def _log(**masses: float) -> list[tuple[str, float]]:
    return [(token, math.log(mass)) for token, mass in masses.items()]


def test_masses_of_all_spellings_are_summed() -> None:
    listed = [*_log(A=0.3, B=0.1), (" A", math.log(0.2)), ("**B", math.log(0.2)), ("To", -9.0)]
    soft = soft_choice(listed, AB)
    assert soft.first == pytest.approx(0.5 / 0.8)
    assert soft.mass == pytest.approx(0.8)
    assert not soft.censored


def test_words_that_begin_with_a_letter_do_not_count() -> None:
    soft = soft_choice(_log(A=0.3, B=0.3, Answer=0.3, Based=0.05), AB)
    assert soft == (pytest.approx(0.5), pytest.approx(0.6), 0)


def test_too_little_mass_is_no_choice() -> None:
    assert soft_choice(_log(To=0.9, A=0.02, B=0.01), AB) == (None, pytest.approx(0.03), 0)


def test_an_unlisted_letter_is_bounded_by_the_least_listed_token() -> None:
    """It was stored as exactly that."""
    soft = soft_choice(_log(A=0.99, C=1e-4), AB)
    assert soft == (pytest.approx(0.99 / (0.99 + 1e-4)), 0.99, 1)
    assert soft_choice(_log(A=0.5, C=0.2), AB) == (pytest.approx(0.5 / 0.7), 0.5, 1)
    assert soft_choice(_log(B=0.5, C=0.2), AB) == (pytest.approx(0.2 / 0.7), 0.5, -1)
    assert soft_choice(_log(A=0.2, C=0.4), AB).first is None, "B may be as likely"


def test_an_unlisted_letter_is_bounded_by_what_is_left() -> None:
    """With one alternative alone, that is all that is known."""
    first, mass, censored = soft_choice(_log(A=0.9), AB)
    assert (first, mass, censored) == (pytest.approx(0.9 / 1.001), 0.9, 1)


@pytest.mark.parametrize("clipped", [-99.0, -100.0, -1000.0, -9999.0, -3.4e38, -math.inf])
def test_a_log_probability_at_the_providers_floor_is_not_known(clipped: float) -> None:
    listed = [*_log(A=0.99, C=1e-4), ("B", clipped)]
    assert soft_choice(listed, AB) == soft_choice(listed[:2], AB)


def test_a_letter_far_down_the_list_is_known() -> None:
    first, _, censored = soft_choice([("A", -1e-9), ("B", -21.0)], AB)
    assert censored == 0
    assert first is not None
    assert math.log(first / (1.0 - first)) == pytest.approx(21.0, abs=1e-2)


def test_nothing_listed_is_no_choice() -> None:
    assert soft_choice([], AB) == (None, 0.0, 0)


@pytest.mark.parametrize("token", ["A", "B", "To"])
def test_a_log_probability_that_is_no_number_leaves_a_hard_choice(token: str) -> None:
    listed = [*_log(A=0.6, B=0.3, C=1e-4), (token, math.nan)]
    first, mass, _ = soft_choice(listed, AB)
    assert first is None
    assert 0.0 <= mass <= 1.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["A", " A", "B", "b", "To", "C", ""]), st.floats(-40, 0.1)),
        max_size=20,
    )
)
def test_swapping_the_letters_mirrors_p(listed: list[tuple[str, float]]) -> None:
    p, mass, bound = soft_choice(listed, AB)
    q, same, mirrored = soft_choice(listed, ("B", "A"))
    assert mass == pytest.approx(same)
    assert (p is None) == (q is None)
    assert bound == -mirrored
    if p is not None and q is not None:
        assert p + q == pytest.approx(1.0)
        assert 0.0 <= p <= 1.0


@given(st.lists(st.floats(0.001, 1.0), min_size=3, max_size=12), st.integers(1, 11))
def test_the_log_odds_lie_beyond_the_bound(masses: list[float], top: int) -> None:
    """Of a distribution over tokens, of which the likeliest alone are listed."""
    tokens = dict(zip("ABCDEFGHIJKL", (mass / sum(masses) for mass in masses), strict=False))
    listed = sorted(tokens.items(), key=lambda item: -item[1])[:top]
    soft = soft_choice([(token, math.log(mass)) for token, mass in listed], AB)
    if soft.first is not None:
        truth = tokens["A"] / (tokens["A"] + tokens["B"])
        apart = (truth - soft.first) * soft.censored
        assert apart >= -1e-9 if soft.censored else truth == pytest.approx(soft.first)


def _tokens(*texts: str) -> list[wire.Token]:
    return [wire.Token(token=text) for text in texts]


HARMONY = ("<|channel|>", "analysis", "<|message|>", "A bird", "<|end|>", "<|start|>", "assistant",
           "<|channel|>", "final", "<|message|>")  # fmt: skip
ALIGNED = {
    "the letter alone": ("B", ["B"], 0),
    "after the thinking": ("B", ["A", " heavier", " bird", " B"], 3),
    "after the thinking, without a blank": ("B", ["A", " heavier", "B"], 2),
    "after special tokens": ("A", [*HARMONY, "A", "<|return|>"], 10),
    "after tags": ("A", ["<think>", "A", "</think>", "\n\n", "A", "</s>", "\n"], 4),
    "after blanks": ("\n\nB", ["\n\n", "B", "<|im_end|>"], 1),
    "with blanks of a vocabulary": ("B", ["\u2581B", "[EOS]"], 0),
    "with blanks of another vocabulary": ("B", ["\u010a", "\u0120B"], 1),
    "in bold": ("**A**", ["**", "A", "**"], 1),
    "in bold, in one token": ("**A**", ["**A", "**"], 0),
    "in brackets": ("(B) since it is heavier", ["(", "B", ")", " since", " it is heavier"], 1),
    "before a stop": ("A.", ["A", "."], 0),
    "last": ("Answer: B", ["Answer", ":", " B"], 2),
    "after the other letter": ("A looks odd. B.", ["A", " looks", " odd", ".", " B", "."], 4),
    "after an article": ("A larger bird is more plausible: A",
                         ["A", " larger", " bird is more plausible", ":", " A"], 4),
    "said again": ("B, clearly B", ["B", ",", " clearly", " B"], 0),
    "in JSON": ('{"choice": "B"}', ['{"', "choice", '":', ' "', "B", '"}'], 4),
    "in JSON, after a reason": ('{"why": "A bird", "choice": "A"}',
                                ['{"why": "', "A", " bird", '", "choice": "', "A", '"}'], 4),
    "in the first tokens": ("B because it is heavier", ["B", " because"], None),
    "in the first tokens of JSON": ('{"choice": "B"}', ['{"choice": "', "B"], 1),
    "after a prefilled beginning": ("Answer: B", [" B"], 0),
    "tokens of the beginning only": ("B. It is heavier", ["B", ".", " It"], 0),
    "tokens of the thinking only": ("A", ["A", " heavier", " bird"], None),
    "tokens of another text": ("A", ["B"], None),
    "inside a word": ("A", ["U", "S", "A bird"], None),
    "part of a longer token": ("A.", ["A.B", "."], None),
    "no choice": ("A larger bird", ["A", " larger", " bird"], None),
    "no tokens": ("A", [""], None),
}  # fmt: skip


@pytest.mark.parametrize("case", ALIGNED)
def test_the_token_scored_is_that_of_the_letter_parsed(case: str) -> None:
    text, texts, index = ALIGNED[case]
    tokens = _tokens(*texts)
    scored = deciding_token(text, "", tokens, AB)
    assert scored is (None if index is None else tokens[index])


def test_options_of_other_letters_are_found_too() -> None:
    tokens = _tokens("I", " believe", " I")
    assert deciding_token("I believe I", "", tokens, ("I", "J")) is tokens[2]
    assert deciding_token("X", "", _tokens("A", " X"), ("X", "Y")) is not None


def test_thinking_that_ends_with_the_letter_is_not_the_answer() -> None:
    tokens = _tokens("So", " B")
    assert deciding_token("B", "So B", tokens, AB) is None
    assert deciding_token("B", "So B", [*tokens, *_tokens("B")], AB) is not None
    assert deciding_token("B because", "B or A?", _tokens("B"), AB) is None


def test_a_small_letter_is_scored_among_small_letters() -> None:
    scored = {"token": "b", "logprob": -0.3, "top_logprobs": {"b": -0.3, "a": -1.4, "A": -6.0}}
    whole = completion(Answer("b"), {"model": "m", "messages": []})
    whole["choices"][0]["logprobs"] = {"content": [scored]}
    reply = read_completion(whole, {}, AB)
    assert reply.first == pytest.approx(1.0 / (1.0 + math.exp(1.1)))


def test_bytes_say_what_a_token_holds() -> None:
    """A character may be split over tokens."""
    halves = [wire.Token(token=f"\\x{byte:x}", bytes=[byte]) for byte in "é".encode()]
    letter = wire.Token(token="A", bytes=[65])
    assert deciding_token("été: A", "", [*halves, *_tokens("té: "), letter], AB) is None
    text = "é: the answer is A"
    assert deciding_token(text, "", [*halves, *_tokens(": the answer is "), letter], AB) is letter


def test_an_answer_without_its_own_token_is_a_choice_and_counted() -> None:
    says = Answer("B", logprobs={"A": -0.02, "B": -4.0, "The": -4.5})
    asked = {"model": "m", "logprobs": True, "messages": []}
    reply = read_completion(completion(says, asked), asked, AB)
    assert (reply.text, reply.first, reply.letter_mass) == ("B", None, None)
    assert reply.unscored == "another token"
    bare = read_completion(completion(Answer("B"), asked), asked, AB)
    assert (bare.first, bare.unscored) == (None, "none sent")
    assert read_completion(completion(Answer("B"), asked), {}, AB).unscored == ""


LISTED = {"A": -0.02, "C": -6.0}


@pytest.mark.parametrize(
    ("token", "logprob", "listed", "censored"),
    [
        ("A", -0.02, LISTED, 1), ("B", -4.5, {"A": -0.02, "B": -4.5}, 0),
        ("B", -6.5, LISTED, 0),  # sampled from below the list
        ("B", -0.1, LISTED, None),  # likelier than one of the listed: of another token
        ("B", -9999.0, {"A": -1e-6, "C": -14.0}, None),  # hardly ever sampled
        ("B", -12.0, {"A": -1e-5, "B": -12.0}, None), ("A", math.nan, {}, 0),
    ],
)  # fmt: skip
def test_alternatives_that_do_not_lead_to_the_token_are_anothers(
    token: str, logprob: float, listed: dict[str, float], censored: int | None
) -> None:
    alternatives = [{"token": name, "logprob": value} for name, value in listed.items()]
    scored = {"token": token, "logprob": logprob, "top_logprobs": alternatives}
    whole = completion(Answer(token), {"model": "m", "messages": []})
    whole["choices"][0]["logprobs"] = {"content": [scored]}
    reply = read_completion(whole, {}, AB)
    assert (reply.unscored == "another token") == (censored is None)
    assert reply.censored == (censored or 0)
    assert (reply.first is None) == (censored is None or not listed)


def test_named_tokens_count_only_in_spellings_that_both_letters_have() -> None:
    def reply(token: str, listed: dict[str, float], *, named: bool = True) -> Reply:
        top = [{"token": text, "logprob": math.log(p)} for text, p in listed.items()]
        content = [{"token": token, "logprob": math.log(listed[token]), "top_logprobs": top}]
        choice = {"message": {"content": token}, "logprobs": {"content": content}}
        body = {"logprobs": True}
        return read_completion({"choices": [choice]}, body, ("A", "B"), named=named)

    assert reply("A", {"A": 0.6, "B": 0.3}).first == pytest.approx(2 / 3)
    bold = {"**A": 0.6, "A": 0.01, "B": 0.01}
    assert reply("**A", bold).first is None, "B in bold was not asked for"
    assert reply("**A", bold, named=False).first == pytest.approx(0.61 / 0.62)


def test_two_tokens_with_one_text_both_count() -> None:
    """SentencePiece vocabularies have an A and an A after a blank, which vLLM shows alike."""
    listed = [
        ("A", math.log(0.5)),
        ("A", math.log(0.1)),
        ("B", math.log(0.3)),
        ("A", math.log(0.5)),
    ]
    assert soft_choice(listed, ("A", "B")).first == pytest.approx(0.6 / 0.9)
    tokens = {
        "tokens": [29871, 13, 29909, 319, 13, 29933, 350],
        "token_strs": ["\u2581", "<0x0A>", "A", "\u2581A", "<0x0A>", "B", "\u2581B"],
    }
    assert sorted(letter_ids(tokens, ("A", "B"))) == [319, 350, 29909, 29933]
    assert letter_ids({"tokens": [32], "token_strs": ["A"]}, ("A", "B")) == []
