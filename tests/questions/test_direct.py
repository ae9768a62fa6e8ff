"""Direct questions: what is asked for is what the features are."""

import pytest

from llm_elicit.config.design import Direct
from llm_elicit.planning.pairs import Query
from llm_elicit.questions.direct import DirectWording
from llm_elicit.spaces.features import FeatureSpace

DAYS = FeatureSpace.model_validate({
    "name": "letters", "title": "letters", "subject": "a letter",
    "features": [
        {"name": "sent", "label": "day", "kind": "date", "low": "1990-01-01", "high": "2020-12-31"},
        {"name": "mass", "label": "mass", "unit": "g", "low": 0, "high": 100},
    ],
})  # fmt: skip


@pytest.mark.parametrize("space", [DAYS, FeatureSpace.load("penguins")], ids=lambda one: one.name)
def test_dates_are_asked_for_as_dates_and_numbers_as_numbers(space: FeatureSpace) -> None:
    wording = DirectWording.of(Direct(quantiles=1, samples=1), space, seed=1)
    for place, feature in enumerate(space.features):
        prompt = wording.question(Query(place, "quantiles", 0)).prompt
        asked = " ".join([prompt.system, *(turn.content for turn in prompt.turns)])
        assert ("dates" in asked, "numbers" in asked) == (
            feature.kind == "date",
            feature.kind != "date",
        )
    prompt = wording.question(Query(0, "sample", 0)).prompt
    asked = " ".join([prompt.system, *(turn.content for turn in prompt.turns)])
    if space is DAYS:
        assert "day, a date (between 1 January 1990 and 31 December 2020)" in asked
        assert "numbers" not in asked
    else:
        assert "day" not in asked
