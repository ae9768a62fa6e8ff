from pathlib import Path

import numpy as np
import pytest

from llm_elicit.errors import InputError
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.spaces.features import FeatureSpace

SHIPPED = ["v1/zero-shot", "v1/few-shot"]


@pytest.fixture(scope="module")
def space() -> FeatureSpace:
    return FeatureSpace.load("california_housing")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_question_words_both_points_and_ends_with_them(name: str, space: FeatureSpace) -> None:
    a, b = space.sample(2, np.random.default_rng(0))
    prompt = render(space, a, b, Template.load(name))
    last = prompt.messages[-1].content
    assert prompt.messages[-1].role == "user"
    for label, value in [*space.word(a), *space.word(b)]:
        assert f"{label} {value}" in last
    assert last.index(space.word(a)[0][1]) < last.index("B:") < last.index(space.word(b)[0][1])


@pytest.mark.parametrize("name", SHIPPED)
def test_all_but_the_last_turn_is_the_same_in_every_question(
    name: str, space: FeatureSpace
) -> None:
    points = space.sample(4, np.random.default_rng(0))
    template = Template.load(name)
    one, two = (render(space, points[i], points[i + 1], template) for i in (0, 2))
    assert one.messages[:-1] == two.messages[:-1]
    assert one.hash != two.hash


@pytest.mark.parametrize("name", SHIPPED)
def test_swapping_the_points_changes_the_question(name: str, space: FeatureSpace) -> None:
    a, b = space.sample(2, np.random.default_rng(0))
    template = Template.load(name)
    assert render(space, a, b, template).hash == render(space, a, b, template).hash
    assert render(space, a, b, template).hash != render(space, b, a, template).hash


def test_worked_examples_are_balanced_and_of_another_world(space: FeatureSpace) -> None:
    a, b = space.sample(2, np.random.default_rng(0))
    prompt = render(space, a, b, Template.load("v1/few-shot"))
    answers = [m.content for m in prompt.messages if m.role == "assistant"]
    assert sorted(answers) == ["A", "B"]
    examples = " ".join(m.content for m in prompt.messages[1:-1])
    for feature in space.features:
        assert feature.label not in examples


def _template(body: str, front: str = "id: mine\nwording: x") -> Template:
    return Template.parse(f"---\n{front}\n---\n{body}", "mine.md")


def test_an_unknown_variable_is_named(space: FeatureSpace) -> None:
    template = _template("# user\n{{ colour }}\n")
    with pytest.raises(InputError, match=r"mine\.md: 'colour' is undefined.*option_a"):
        render(space, space.low, space.high, template)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# user\nhello", "no front matter"),
        ("---\nid: x\nwording: y\n---\n", "last part must be"),
        ("---\nid: x\nwording: y\n---\n# system\nhello", "last part must be"),
        ("---\nid: x\nwording: y\n---\nhello\n# user\nhello", "before the first heading"),
        ("---\nid: x\nwording: y\ncolour: red\n---\n# user\nhello", "colour: unknown key"),
        ("---\nid: x\nwording: y\noptions: [A, A]\n---\n# user\nhello", "appears twice"),
        ("---\n- x\n---\n# user\nhello", "must be a mapping"),
        ("---\nid: [\n---\n# user\nhello", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_template_says_why(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Template.parse(text, "mine.md")


def test_bad_syntax_is_one_line(space: FeatureSpace) -> None:
    with pytest.raises(InputError, match=r"mine\.md: not valid Jinja2"):
        render(space, space.low, space.high, _template("# user\n{% for %}\n"))


def test_a_template_cannot_reach_outside(space: FeatureSpace) -> None:
    template = _template("# user\n{{ subject.__class__.__mro__ }}\n")
    with pytest.raises(InputError, match="unsafe"):
        render(space, space.low, space.high, template)


def test_a_users_own_template_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts" / "v1").mkdir(parents=True)
    own = "---\nid: v1/zero-shot\nwording: mine\n---\n# user\n{{ option_a }} {{ option_b }}\n"
    (tmp_path / "prompts" / "v1" / "zero-shot.md").write_text(own)
    monkeypatch.chdir(tmp_path)
    assert Template.load("v1/zero-shot").wording == "mine"


def test_a_word_that_is_no_template_lists_those_there_are() -> None:
    with pytest.raises(InputError, match=r"v9/none.*v1/zero-shot"):
        Template.load("v9/none")


def test_the_digest_follows_the_text() -> None:
    one, two = _template("# user\none\n"), _template("# user\ntwo\n")
    assert one.digest != two.digest
    assert one.digest == _template("# user\none\n").digest
