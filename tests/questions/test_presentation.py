"""The wordings of v2 in five languages, their labels and worked examples, units and digits."""

import re
from collections import Counter

import numpy as np
import pytest

from llm_elicit._util.files import available, find
from llm_elicit._util.settings import read_yaml
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Design, Presentations
from llm_elicit.errors import InputError
from llm_elicit.questions.presentation import presentations_of
from llm_elicit.questions.template import Template
from llm_elicit.spaces.features import FeatureSpace

NAMES = [name for name in available("prompts", ".md") if name.startswith("v2/")]
SETS = read_yaml(find("prompts", "v2/examples", ".yaml"))
SPACE = FeatureSpace.load("penguins")


def presentations(space: FeatureSpace = SPACE, template: str = "v2/typical", **facets: object):
    given = Presentations.model_validate(facets)
    return presentations_of(Design(template=template, presentations=given), space, 1)


def test_templates_of_your_own_may_take_labels_and_examples():
    for name in ("v2/typical", "v2/zh/real"):
        Template.load(name).check()


def test_eight_wordings_stand_in_five_languages_each_with_a_back_translation():
    languages = Counter(Template.load(name).language for name in NAMES)
    assert languages == {"en": 8, "de": 8, "fr": 8, "es": 8, "zh": 8}
    stems = {name.rpartition("/")[2] for name in NAMES}
    assert len(stems) == 8
    for name in NAMES:
        template = Template.load(name)
        assert template.id == name
        assert template.question
        assert bool(template.back_translation) == (template.language != "en")
    assert Presentations(wordings=("v2/*",)).templates() == tuple(sorted(f"v2/{s}" for s in stems))
    assert len(Presentations(wordings=("v2/*/typical",)).templates()) == 4


@pytest.mark.parametrize("name", NAMES)
def test_a_wording_is_usable_with_any_labels_with_and_without_worked_examples(name):
    a, b = SPACE.sample(2, np.random.default_rng(0))
    for asked in presentations(template=name, labels=["X/Y"], examples=["none", "*"]):
        prompt = asked.render(a, b)
        first, *_, last = prompt.messages
        assert f"X: {SPACE.word(a)[0][0]} {SPACE.word(a)[0][1]}; " in last.content
        assert re.search(r"X\b.*Y", first.content)
        assert not re.search(r"\bB\b", first.content)
        answers = [m.content for m in prompt.messages if m.role == "assistant"]
        assert sorted(answers) == (["X", "Y"] if asked.examples else [])
        assert SPACE.subject in first.content
        assert prompt.hash == asked.render(a, b).hash
        assert prompt.hash != asked.render(b, a).hash


def test_worked_examples_are_balanced_in_letter_size_and_order():
    kinds = Counter()
    for languages in SETS.values():
        assert set(languages) == {"en", "de", "fr", "es", "zh"}
        for examples in languages.values():
            assert [e["answer"] for e in examples] == [e["answer"] for e in languages["en"]]
            numbers = [re.findall(r"\d[\d.]*", e["a"] + e["b"]) for e in examples]
            english = [re.findall(r"\d[\d.]*", e["a"] + e["b"]) for e in languages["en"]]
            assert numbers == english
        for place, example in enumerate(languages["en"]):
            a, b = ([float(n) for n in re.findall(r"\d[\d.]*", example[side])] for side in "ab")
            widest = max(range(2), key=lambda i: abs(np.log(a[i] / b[i])))
            larger = "a" if a[widest] > b[widest] else "b"
            kinds[place, example["answer"], larger == example["answer"]] += 1
    assert len(SETS) == 4
    assert set(kinds.values()) == {1}, "each once: place, letter, and whether the larger is right"
    assert len(kinds) == 8


def test_units_digits_and_orders_change_the_text_and_not_the_content():
    space = FeatureSpace.model_validate(
        {
            "name": "s", "title": "s", "subject": "a town",
            "features": [
                {"name": "people", "label": "population", "kind": "integer", "scale": "log",
                 "low": 1000, "high": 9e6, "units": [{"unit": "thousand", "factor": 0.001}]},
                {"name": "way", "label": "distance", "unit": "km", "low": 0, "high": 900,
                 "units": [{"unit": "m", "factor": 1000}, {"unit": "miles", "factor": 0.621371}]},
                {"name": "kind", "label": "kind", "kind": "categorical",
                 "categories": ["port", "spa"]},
            ],
        }
    )  # fmt: skip
    point = np.array([123_400.0, 456.0, 1.0])
    facets = {"units": "varied", "digits": [2, 3], "features": "shuffled"}
    asked = {p.label: p.word(point) for p in presentations(space, **facets)}
    assert len(asked) == 6
    words = {label: dict(word) for label, word in asked.items()}
    by_level = {
        (word["population"], word["distance"])
        for label, word in words.items()
        if "units 1" in label
    }
    assert by_level == {("120,000", "460 km"), ("123,000", "456 km")}
    assert {word["distance"] for label, word in words.items() if "units 2" in label} == {
        "460,000 m", "456,000 m",
    }  # fmt: skip
    assert {word["population"] for label, word in words.items() if "units 2" in label} == {
        "120 thousand", "123 thousand",
    }  # fmt: skip
    assert {word["distance"] for label, word in words.items() if "units 3" in label} == {
        "280 miles", "283 miles",
    }  # fmt: skip
    assert {tuple(label for label, _ in word) for word in asked.values()} == {
        ("population", "distance", "kind"), ("kind", "distance", "population"),
    }  # fmt: skip


def test_points_are_drawn_with_the_most_digits():
    campaign = Campaign.model_validate(
        {
            "name": "c", "space": "countries", "judges": [{"name": "j", "backend": "simulated"}],
            "design": {"presentations": {"digits": [2, 5]}},
        }
    )  # fmt: skip
    assert {feature.digits for feature in campaign.load_space().features} == {5}


def test_digits_that_make_values_alike_are_an_error():
    with pytest.raises(InputError, match="give more digits"):
        FeatureSpace.model_validate(
            {
                "name": "s", "title": "s", "subject": "s",
                "features": [
                    {"name": "x", "label": "x", "scale": "log", "low": 1010, "high": 1040},
                ],
            }
        ).with_digits(1)  # fmt: skip
