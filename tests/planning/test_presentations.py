"""How pairs are spread over presentations: balanced, both orders in one, a fifth in two."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Design, Direct
from llm_elicit.errors import InputError
from llm_elicit.planning.pairs import direct_queries, make_plan
from llm_elicit.planning.presentations import fraction, presentation_note, spread
from llm_elicit.spaces.features import FeatureSpace

LISTS = st.lists(st.integers(2, 9), min_size=1, max_size=5).map(tuple)


@given(LISTS, st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_every_level_is_in_equally_many_presentations_and_pairs_of_levels_are_even(counts, seed):
    table = fraction(counts, seed)
    size, every = len(table), int(np.prod(counts))
    assert max(*counts, min(6, every)) <= size <= min(every, max(2 * max(counts), 12))
    assert len(np.unique(table, axis=0)) == size, "no combination twice"
    for facet, count in enumerate(counts):
        often = np.bincount(table[:, facet], minlength=count)
        assert np.ptp(often) <= (size % count > 0)
    for one, two in combinations(range(len(counts)), 2):
        together = np.zeros((counts[one], counts[two]), dtype=int)
        np.add.at(together, (table[:, one], table[:, two]), 1)
        assert together.max() <= -(-size // (counts[one] * counts[two])) + 1


@given(st.integers(1, 400), st.integers(2, 12), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_pairs_are_spread_evenly_and_a_fifth_of_them_is_in_two_presentations(n, count, seed):
    asked = spread(n, count, seed)
    longer = spread(n + 37, count, seed)
    assert (longer.content[:n] == asked.content).all(), "more pairs start with the same ones"
    assert (longer.presentation[:n] == asked.presentation).all()
    assert set(asked.content.tolist()) == set(range(asked.pairs))
    assert len(asked.content) - asked.pairs == n // 6
    often = np.bincount(asked.presentation, minlength=count)
    assert np.ptp(often) <= 2
    assert n % (6 * count) or np.ptp(often) == 0
    seen = np.unique(np.stack([asked.content, asked.presentation]), axis=1)
    assert seen.shape[1] == n, "no pair twice in one presentation"
    assert np.bincount(asked.content).max() <= 2


def test_the_second_presentation_goes_through_all_others():
    count = 5
    asked = spread(6 * count * (count - 1), count, 3)
    first = {c: int(p) for c, p in zip(asked.content[::-1], asked.presentation[::-1], strict=True)}
    again = [i for i in range(len(asked.content)) if i % 6 == 5]
    both = [(first[asked.content[i]], int(asked.presentation[i])) for i in again]
    assert sorted(both) == [(p, q) for p in range(count) for q in range(count) if p != q]


def design(pairs=60, **facets):
    return Design.model_validate({"pairs": pairs, "presentations": facets})


def test_a_plan_has_the_number_of_questions_that_the_campaign_says_and_one_wording_the_same_pairs():
    space = FeatureSpace.load("penguins")
    several = make_plan(space, design(wordings=["v2/*"]), 1)
    alone = make_plan(space, Design(pairs=60), 1)
    assert len(several) == len(alone) == 120
    assert several.presentations.max() == 7
    assert (several.a[:5] == alone.a[:5]).all(), "the campaign's first pairs"
    assert len(np.unique(np.hstack([several.a, several.b]), axis=0)) == 50
    assert make_plan(space, design(wordings=["v2/typical"]), 1).presentations is None
    assert alone.repeated == frozenset()
    assert several.repeated == set(range(5, 60, 6))
    ratios = direct_queries(Direct(ratios=60), space, 1, 60, several.repeated)
    assert sorted(query.pair for query in ratios) == sorted(set(range(60)) - several.repeated)
    triads = make_plan(space, design(36, wordings=["v2/*"]).model_copy(update={"triads": 4}), 1)
    of_triads = triads.presentations[-12:].reshape(4, 3)
    assert (of_triads == of_triads[:, :1]).all(), "a triad is asked in one presentation"
    assert len(set(of_triads[:, 0])) == 4
    grouped = [several.presentation(query.pair) for query in several.by_presentation("j")]
    assert len(grouped) == 120
    assert (np.diff(grouped) != 0).sum() <= 8, "those of one presentation together"


def test_the_plan_says_how_precise_each_effect_will_be():
    facets = {"wordings": ["v2/*"], "features": "shuffled", "labels": ["A/B", "1/2"]}
    lines = presentation_note(design(96, **facets), FeatureSpace.load("penguins"), 1).splitlines()
    assert lines[0] == (
        "8 presentations (8 wordings, 2 labels, 4 orders of features): 80 different pairs, 16 of "
        "them in two presentations."
    )
    # 12 pairs in one wording against 84, 48 against 48, 24 against 72.
    assert lines[1].endswith(": wordings 0.31, labels 0.20, features 0.24.")
    assert presentation_note(Design(), FeatureSpace.load("penguins"), 1) == ""


@pytest.mark.parametrize(
    ("space", "facets", "message"),
    [
        ("penguins", {"wordings": ["v9/*"]}, "no template matches 'v9/"),
        ("penguins", {"wordings": ["v2/typicl"]}, "did you mean 'v2/typical'"),
        ("penguins", {"wordings": ["v1/few-shot"], "labels": ["1/2"]}, "calls its options A and B"),
        ("penguins", {"wordings": ["v1/probability"], "labels": ["1/2"]}, "v1/probability calls"),
        ("penguins", {"wordings": ["v1/few-shot"], "examples": "*"}, "takes no worked examples"),
        ("penguins", {"wordings": ["v1/*-shot", "v1/probability"]}, "a letter and a probability"),
        ("penguins", {"wordings": ["v1/quantiles"]}, "the template asks for a text"),
        ("penguins", {"wordings": ["v2/typical"], "examples": ["cars"]}, "known: cup-and-train"),
        ("penguins", {"units": "varied"}, "no feature of penguins has other units"),
        ("SPACE", {"digits": [2]}, "digits: words has no numbers with digits"),
        (
            "SPACE",
            {"features": "shuffled"},
            "words has only one feature, so there is no order to vary",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_one_clear_line(tmp_path, space, facets, message):
    path = tmp_path / "words.yaml"
    path.write_text(
        "name: words\ntitle: t\nsubject: s\nfeatures:\n"
        "  - {name: x, label: x, kind: categorical, categories: [red, blue, green]}\n"
    )
    campaign = Campaign.model_validate(
        {
            "name": "c", "space": str(path) if space == "SPACE" else space,
            "design": {"pairs": 12, "presentations": facets},
            "judges": [{"name": "j", "backend": "simulated"}],
        }
    )  # fmt: skip
    from llm_elicit.questions.presentation import presentations_of

    with pytest.raises(InputError, match=message) as error:
        presentations_of(campaign.design, campaign.load_space(), 1)
    assert "\n" not in str(error.value)


def test_a_grid_names_its_templates_once():
    settings = {
        "name": "c", "space": "penguins", "judges": [{"name": "j", "backend": "simulated"}],
        "design": {"presentations": {"wordings": ["v2/*"]}},
        "grid": {"templates": ["v1/zero-shot"]},
    }  # fmt: skip
    with pytest.raises(ValueError, match="both name templates"):
        Campaign.model_validate(settings)
    settings["design"] = {"presentations": {"labels": ["A/B", "1/2"]}}
    assert Campaign.model_validate(settings).grid is not None


@pytest.mark.parametrize(
    ("design", "message"),
    [
        ({"presentations": {"labels": ["A/A"]}}, "gives both options the label 'A'"),
        ({"presentations": {"labels": ["yes/no"]}}, "labels"),
        ({"presentations": {"labels": ["A/B", "A/B"]}}, "appears twice"),
        ({"presentations": {"wordings": []}}, "wordings"),
        ({"presentations": {"digits": [0]}}, "digits"),
        ({"template": "v1/few-shot", "presentations": {"wordings": ["v2/*"]}}, "remove `templ"),
    ],
)
def test_a_list_of_levels_is_checked_as_it_is_read(design, message):
    with pytest.raises(ValueError, match=message):
        Design.model_validate(design)
