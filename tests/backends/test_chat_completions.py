import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_elicit.backends.chat_completions import LARGEST_DOUBT, soft_choice

AB = ("A", "B")


def _log(**masses: float) -> list[tuple[str, float]]:
    return [(token, math.log(mass)) for token, mass in masses.items()]


def test_masses_of_all_spellings_are_summed() -> None:
    listed = [*_log(A=0.3, B=0.1), (" A", math.log(0.2)), ("**B", math.log(0.2)), ("To", -9.0)]
    first, mass = soft_choice(listed, AB)
    assert first == pytest.approx(0.5 / 0.8)
    assert mass == pytest.approx(0.8)


def test_words_that_begin_with_a_letter_do_not_count() -> None:
    first, mass = soft_choice(_log(A=0.3, B=0.3, Answer=0.3, Based=0.05), AB)
    assert (first, mass) == (pytest.approx(0.5), pytest.approx(0.6))


def test_too_little_mass_is_no_choice() -> None:
    first, mass = soft_choice(_log(To=0.9, A=0.02, B=0.01), AB)
    assert first is None
    assert mass == pytest.approx(0.03)


def test_an_unlisted_letter_is_bounded_by_the_least_listed_token() -> None:
    first, _ = soft_choice(_log(A=0.99, C=1e-4), AB)
    assert first == pytest.approx(0.99 / (0.99 + 1e-4))
    assert soft_choice(_log(A=0.5, C=0.2), AB)[0] is None


def test_nothing_listed_is_no_choice() -> None:
    assert soft_choice([], AB) == (None, 0.0)


@pytest.mark.parametrize("token", ["A", "B", "To"])
def test_a_log_probability_that_is_no_number_leaves_a_hard_choice(token: str) -> None:
    listed = [*_log(A=0.6, B=0.3, C=1e-4), (token, math.nan)]
    first, mass = soft_choice(listed, AB)
    assert first is None
    assert 0.0 <= mass <= 1.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["A", " A", "B", "b", "To", "C", ""]), st.floats(-40, 0.1)),
        max_size=20,
    )
)
def test_swapping_the_letters_mirrors_p(listed: list[tuple[str, float]]) -> None:
    p, mass = soft_choice(listed, AB)
    q, same = soft_choice(listed, ("B", "A"))
    assert mass == pytest.approx(same)
    assert (p is None) == (q is None)
    if p is not None and q is not None:
        assert p + q == pytest.approx(1.0)
        assert 0.0 <= p <= 1.0


@given(st.floats(0.2, 0.99), st.floats(1e-9, 0.1))
def test_a_bounded_p_is_as_exact_as_promised(mass: float, rest: float) -> None:
    p, _ = soft_choice([("A", math.log(mass)), ("C", math.log(rest))], AB)
    if p is not None:
        # The truth lies between P at the bound and certainty.
        assert 1.0 - p <= LARGEST_DOUBT + 1e-9
