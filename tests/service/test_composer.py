"""A campaign made from a table by the form: its fields edit two YAML texts, and lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_elicit.service.composer import edit
from llm_elicit.service.form_fields import (
    Document,
    campaign_fields,
    edit_campaign,
    edit_space,
    guesses_of,
    judge_options,
    space_fields,
)
from llm_elicit.service.settings import AllowedJudge, ServerSettings
from llm_elicit.service.spaces import TableReading, draft, validate_space

ROWS = [f"{3000 + 37 * k % 2000},{k % 3},{'mf'[k % 2] if k % 7 else ''},n{k}" for k in range(80)]
TABLE = "\n".join(["body_mass_g,eggs,sex,note", *ROWS]) + "\n"
CAMPAIGN = """\
# a study of birds
name: birds
space: birds
design:
  pairs: 40  # few
  both_orders: true
  presentations: {wordings: [v2/typical, v2/likely], labels: [A/B]}
judges:
  - {name: expert, backend: simulated, noise: normal}
fit: {samples: 500}  # kept
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The YAML of a space drafted from a table, and its folder."""
    folder = tmp_path_factory.mktemp("library") / "birds"
    folder.mkdir()
    (folder / "birds.csv").write_text(TABLE)
    return draft(folder / "birds.csv", TableReading(), 10_000).yaml, folder


def test_a_field_changes_its_value_and_nothing_else() -> None:
    document = Document(CAMPAIGN, "campaign")
    edit_campaign(document, {"pairs": "60", "max_cost": "2.5"}, [])
    assert (
        document.text
        == CAMPAIGN.replace("pairs: 40", "pairs: 60")
        .replace("judges:\n  -", "judges:\n-")
        .replace("fit:", "fit:")
        + "limits:\n  max_cost: 2.5\n"
    )
    fields = campaign_fields(document.data)
    assert (fields["wording"], fields["pairs"]) == ("", "40")  # two wordings: no field says that


def test_columns_are_edited_in_words_of_the_judge(space: tuple[str, Path]) -> None:
    text, folder = space
    document = Document(text, "birds.yaml")
    assert guesses_of(document)["unit:body_mass_g"] == "guessed from the column's name"
    changes = {"label:body_mass_g": "weight", "unit:body_mass_g": "grams", "use:eggs": "",
               "low:body_mass_g": "2000", "words:sex": "female\nmale\nnot stated"}  # fmt: skip
    edit_space(document, changes, folder)
    assert "unit:body_mass_g" not in guesses_of(document)
    edited = validate_space(document.text, "birds", folder)
    assert edited.names == ["body_mass_g", "sex"]
    assert edited.word([2500.0, 0.0]) == [("weight", "2,500 grams"), ("sex", "female")]
    assert edited.table_rows().used == 80
    back = Document(document.text, "birds.yaml")
    edit_space(back, {"take:1": "on", "kind:body_mass_g": "continuous"}, folder)
    again = validate_space(back.text, "birds", folder)
    assert again.features[0].kind == "continuous"
    assert again.names == ["body_mass_g", "sex", "eggs"]


def test_how_a_table_is_read_is_in_the_form(tmp_path: Path) -> None:
    incomes = ["" if n % 5 == 0 else f"{1000 * (n + 1)},5" for n in range(200)]
    rows = [f"{20 + n % 50};{income}" for n, income in enumerate(incomes)]
    (tmp_path / "t.csv").write_text("\n".join(["age;income", *rows]), encoding="latin-1")
    drafted = draft(tmp_path / "t.csv", TableReading(not_stated=["income"]), 10_000)
    fields = space_fields(Document(drafted.yaml, "t.yaml").data)
    assert [fields[key] for key in ("sep", "decimal", "not_stated")] == [";", ",", "income"]


def test_numbers_become_words_and_words_numbers(space: tuple[str, Path]) -> None:
    text, folder = space
    document = Document(text, "birds.yaml")
    before = space_fields(document.data)["kind:eggs"]
    for kind in ("ordered", "integer", "categorical"):
        edit_space(document, {"kind:eggs": kind}, folder)
        document = Document(document.text, "birds.yaml")
        validate_space(document.text, "birds", folder)
        assert space_fields(document.data)["kind:eggs"] == kind
    assert before in ("integer", "categorical", "ordered")


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("low:body_mass_g", "abc", "not a number"),
        ("words:sex", "female", "1 words for 3 categories"),
        ("kind:sex", "integer", "holds words"),
        ("kind:body_mass_g", "ordered", "different values"),
    ],
)
def test_what_cannot_be_used_is_said_beside_its_field(
    space: tuple[str, Path], field: str, text: str, words: str, tmp_path: Path
) -> None:
    yaml, folder = space
    own = tmp_path / ".service" / "spaces"
    own.mkdir(parents=True)
    (own / "birds").symlink_to(folder)
    fields = {
        **campaign_fields(Document(CAMPAIGN, "").data),
        **space_fields(Document(yaml, "").data),
    }
    sent = {"yaml": CAMPAIGN, "yaml_before": CAMPAIGN, "space_edited": "birds",
            "space_yaml": yaml, "space_yaml_before": yaml, **fields, field: text}  # fmt: skip
    edited = edit(sent, ServerSettings(runs=tmp_path))
    assert words in edited.errors[field]
    assert edited.yaml.strip() == CAMPAIGN.strip()


def test_judges_say_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    allowed = (
        AllowedJudge(backend="local"),
        AllowedJudge(backend="openai", api_key_env="OPENAI_API_KEY", models=("m",)),
        AllowedJudge(backend="anthropic", api_key_env="ANTHROPIC_API_KEY"),
        AllowedJudge(backend="human"),
    )
    options = {option.label: option for option in judge_options(ServerSettings(judges=allowed))}
    assert "gives log-odds" in options["smollm2 (local)"].facts
    openai, claude = options["m (openai)"], options["any model (anthropic)"]
    assert "its key OPENAI_API_KEY is set" in openai.facts
    assert "its key ANTHROPIC_API_KEY is not set on the server" in claude.facts
    assert any(fact.startswith("choices only") for fact in claude.facts)
    document = Document("name: a\n", "campaign")
    people = options["people, by a link"]
    changes = {f"add:{claude.key}": "on", f"about:{claude.key}": "claude-x",
               f"add:{people.key}": "on", f"about:{people.key}": "ada, ben"}  # fmt: skip
    edit_campaign(document, changes, list(options.values()))
    judges = Document(document.text, "campaign").data["judges"]
    assert judges == [
        {"name": "claude-x", "backend": "anthropic", "model": "claude-x"},
        {"name": "people", "backend": "human", "experts": ["ada", "ben"]},
    ]
