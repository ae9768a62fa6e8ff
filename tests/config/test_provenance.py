"""What changes a number or a word of a prompt is another campaign; nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_elicit.config.campaign import Campaign, check_same, identity_of
from llm_elicit.errors import InputError
from llm_elicit.spaces.features import FeatureSpace

CAMPAIGN = Campaign.model_validate(
    {
        "name": "try", "space": "penguins",
        "judges": [{"name": "gpt", "backend": "openai", "model": "gpt-4o-mini"}],
    }
)  # fmt: skip
SPACE = FeatureSpace.load("penguins_kinds")
FOLDER = Path("runs/try")


def _space(where: str, **changes: Any) -> FeatureSpace:
    """The space with the fields of its table, of a feature or of itself changed."""
    data = SPACE.model_dump(mode="json") | {"folder": SPACE.folder}
    names = [feature["name"] for feature in data["features"]]
    part = data["features"][names.index(where)] if where in names else data.get(where, data)
    part.update(changes)
    return FeatureSpace.model_validate(data)


def _checked(campaign: Campaign, space: FeatureSpace, words: tuple[str, ...] = ()) -> None:
    check_same(identity_of(CAMPAIGN, SPACE, words), identity_of(campaign, space, words), FOLDER)


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("table", {"licence": "CC0", "source": "elsewhere", "rows": 9, "file": "penguins.csv"}),
        ("itself", {"name": "birds", "title": "birds", "ranges": "as measured"}),
        ("body_mass_g", {"note": "of living birds"}),
        ("body_mass_g", {"name": "mass"}),
        ("table", {"sha256": "0" * 64}),
        ("table", {"columns": {"sex": "kind"}}),
        ("table", {"words": {"sex": {"m": "male"}}}),
    ],
)
def test_what_is_said_of_a_source_may_be_corrected(where: str, changes: dict[str, Any]) -> None:
    _checked(CAMPAIGN, _space(where, **changes))


@pytest.mark.parametrize(
    ("where", "changes", "line"),
    [
        ("itself", {"subject": "bird"}, "Antarctica before, bird now"),
        ("itself", {"setting": "At sea."}, "space.setting differs: "),
        ("body_mass_g", {"unit": "kg"}, "feature body_mass_g.unit differs: g before, kg now"),
        ("body_mass_g", {"label": "mass"}, "body_mass_g.label differs: body mass before, mass now"),
        ("body_mass_g", {"high": 7000}, "feature body_mass_g.high differs: "),
        ("body_mass_g", {"scale": "log"}, "body_mass_g.scale differs: none before, log now"),
        ("body_mass_g", {"digits": 2}, "body_mass_g.digits differs: "),
        ("body_mass_g", {"factor": 0.001}, "body_mass_g.factor differs: none before, 0.001 now"),
    ],
)
def test_what_changes_a_number_or_a_word_is_named(
    where: str, changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError, match="run of another campaign") as caught:
        _checked(CAMPAIGN, _space(where, **changes))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_pairs_are_drawn_from_is_named() -> None:
    before = identity_of(CAMPAIGN, SPACE.with_sampling("empirical"))
    after = identity_of(CAMPAIGN, _space("table", sha256="0" * 64).with_sampling("empirical"))
    with pytest.raises(InputError, match=r"space\.table\.sha256 differs: "):
        check_same(before, after, FOLDER)


def test_other_features_are_named() -> None:
    fewer = SPACE.model_copy(update={"features": SPACE.features[:-1]})
    with pytest.raises(InputError, match=r"space\.features differs: "):
        check_same(identity_of(CAMPAIGN, fewer), identity_of(CAMPAIGN, SPACE), FOLDER)


def test_a_title_counts_where_a_template_shows_it() -> None:
    with pytest.raises(InputError, match=r"its title differs: .* before, birds now"):
        _checked(CAMPAIGN, _space("itself", title="birds"), ("title",))


def _judge(**settings: Any) -> Campaign:
    judge = CAMPAIGN.judges[0].model_dump() | settings
    return Campaign.model_validate(CAMPAIGN.model_dump() | {"judges": [judge]})


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 2, "timeout": 3, "attempts": 1},
        {"requests_per_minute": 9, "tokens_per_minute": 9},
        {"price": {"input": 1, "output": 2}, "api_key_env": "OTHER"},
        {"name": "another"},
    ],
)
def test_how_fast_and_at_what_price_is_free(settings: dict[str, Any]) -> None:
    _checked(_judge(**settings), SPACE)


def test_a_judge_who_would_answer_otherwise_is_named() -> None:
    with pytest.raises(InputError, match=r"judge gpt.model differs: gpt-4o-mini before, gpt-5 now"):
        _checked(_judge(model="gpt-5"), SPACE)


def test_a_run_without_a_recorded_identity_is_taken() -> None:
    check_same({}, identity_of(CAMPAIGN, SPACE), FOLDER)
