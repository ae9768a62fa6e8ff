from typing import Any

import pytest

from llm_elicit._util.files import available
from llm_elicit._util.settings import validate
from llm_elicit.config.campaign import Campaign, identity_of
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

VALID = """
name: c
space: penguins
judges:
  - {name: j, backend: simulated}
"""


def load(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return Campaign.load(path)


@pytest.mark.parametrize("name", available("examples", ".yaml"))
def test_every_example_is_valid(name):
    campaign = Campaign.load(name)
    assert campaign.load_space().dimension >= 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (VALID + "desing: {}\n", ["desing", "unknown key", "design"]),
        (VALID.replace("simulated}", "simulated, nois: x}"), ["judges.0", "nois", "unknown key"]),
        (VALID.replace("simulated", "telepathy"), ["judges.0", "telepathy"]),
        (VALID + "  - {name: j, backend: simulated}\n", ["'j' appears twice"]),
        (VALID + "design: {pairs: 1}\n", ["design.pairs", "greater than or equal to 2"]),
        (VALID + "fit: {method: magic}\n", ["fit.methods", "magic"]),
        (VALID.replace("name: c", "name: ../up"), ["name", "../up"]),
        (VALID + "limits: {max_cost: 0}\n", ["limits.max_cost", "greater than 0"]),
        (VALID + "seed: 2026-99-99\n", ["not valid YAML", "month must be in 1..12"]),
        (VALID + "seed: !!timestamp x\n", ["not valid YAML"]),
        (VALID + f"seed: {'9' * 5_000}\n", ["not valid YAML", "4300 digits"]),
        (VALID + f"seed: {'[' * 5_000}\n", ["nested too deeply; use fewer levels"]),
        (VALID + f"seed: {'x' * 5_000}\n", ["seed", "xxx […]"]),
        ("name: c\nfeatures: []\n", ["is a feature space", "name it as `space:`"]),
    ],
)
def test_a_bad_campaign_gets_one_clear_line(tmp_path, text, parts):
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    for part in ["c.yaml", *parts]:
        assert part in message


def test_identity_is_what_can_change_an_answer(tmp_path):
    space = FeatureSpace.load("penguins")
    base = identity_of(load(tmp_path, VALID), space)

    def changed(text):
        return identity_of(load(tmp_path, text), space) != base

    assert not changed(VALID.replace("simulated}", "simulated, concurrency: 3, timeout: 5}"))
    assert not changed(VALID + "limits: {max_cost: 3}\nfit: {method: score}\n")
    assert changed(VALID + "seed: 2\n")
    assert changed(VALID + "design: {pairs: 50}\n")
    assert changed(VALID + "design: {triads: 5}\n")
    assert not changed(VALID + "design: {triads: 0}\n")
    assert changed(VALID.replace("simulated}", "simulated, seed: 1}"))
    assert changed(VALID.replace("name: j,", "name: k,"))


def test_one_method_may_be_given_alone(tmp_path):
    assert load(tmp_path, VALID + "fit: {method: score}\n").fit.methods == ("score",)


def test_people_are_judges_with_names() -> None:
    ada, panel = _judges(
        {"name": "ada", "backend": "human"},
        {"name": "panel", "backend": "human", "experts": ["ben", "cleo"], "repeats": 0.1},
    )
    assert (ada.experts, panel.experts, panel.repeats, ada.attention) == (
        ("ada",), ("ben", "cleo"), 0.1, 0.0
    )  # fmt: skip
    assert panel.identity() == {"backend": "human"}


@pytest.mark.parametrize(
    ("judge", "rest", "message"),
    [
        ({"experts": ["ben", "ben"]}, {}, "'ben' appears twice"),
        ({"experts": []}, {}, "needs at least 1"),
        ({"experts": ["a/b"]}, {}, "should match pattern"),
        ({"repeats": 2}, {}, "less than or equal to 1"),
        ({"attention": -0.1}, {}, "greater than or equal to 0"),
        ({"model": "m"}, {}, "unknown key"),
        ({}, {"direct": {"quantiles": 1}}, "'ada' has backend: human"),
    ],
)
def test_what_people_cannot_be_is_one_line(
    judge: dict[str, Any], rest: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        _judges({"name": "ada", "backend": "human", **judge}, **rest)


def _judges(*judges: dict[str, Any], **rest: Any) -> tuple[Any, ...]:
    data = {"name": "try", "space": "penguins", "judges": list(judges), **rest}
    return validate(Campaign, data, "try.yaml").judges


def test_no_two_simulated_judges_share_their_noise() -> None:
    """Judges of one name answer alike in any campaign and after any round trip."""

    def seeds(*judges: dict[str, object], seed: int = 1) -> dict[str, object]:
        data = {"name": "try", "space": "penguins", "seed": seed, "judges": list(judges)}
        campaign = Campaign.model_validate(data)
        again = Campaign.model_validate(campaign.model_dump(mode="json"))
        assert again == campaign
        return {judge.name: judge.seed for judge in campaign.judges}

    one, two = ({"name": name, "backend": "simulated"} for name in ("one", "two"))
    both = seeds(one, two)
    assert both["one"] != both["two"]
    assert seeds(two, one) == both
    assert seeds(one)["one"] == both["one"]
    assert seeds(one, seed=2)["one"] != both["one"]
    assert seeds({**one, "seed": 0}, {**two, "seed": 0}) == {"one": 0, "two": 0}


def test_one_method_is_short_for_a_list_and_other_settings_need_none(tmp_path) -> None:
    for fit in ("{method: auto}", "{methods: [auto]}"):
        assert load(tmp_path, f"{VALID}fit: {fit}\n").fit.methods == ("auto",)
    assert load(tmp_path, f"{VALID}fit: {{samples: 500}}\n").fit.methods == ("utility",)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"effort": "extreme"}, "effort"),
        ({"effort": "none", "thinking_tokens": 2000}, "cannot be combined with effort"),
        ({"thinking_tokens": 2000, "max_tokens": 2000}, "must be above thinking_tokens 2,000"),
        ({"extra_body": {"temperature": 1}}, "temperature is set by the judge's other settings"),
        ({"extra_headers": {"Authorization": "Bearer sk-1234567"}}, "come from the environment"),
        ({"extra_headers": {"X Title": "a"}}, "cannot be added as a header"),
        ({"extra_headers": {"Content-Type": "text/plain"}}, "cannot be added as a header"),
        ({"extra_headers": {"X-Title": "a\nb"}}, "printable ASCII"),
        ({"backend": "anthropic", "effort": "minimal"}, "Claude accepts one of none, low"),
        ({"backend": "anthropic", "thinking_tokens": 100}, "at least 1,024"),
        (
            {"backend": "anthropic", "effort": "low", "temperature": 0},
            "no temperature while it thinks",
        ),
    ],
)
def test_settings_of_thinking_and_of_requests_that_cannot_be(
    settings: dict[str, Any], said: str
) -> None:
    judge = {"name": "j", "backend": "openai", "model": "m", **settings}
    with pytest.raises(InputError, match=said):
        validate(Campaign, {"name": "x", "space": "penguins", "judges": [judge]}, "x.yaml")
