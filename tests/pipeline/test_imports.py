"""Judgments that exist already become a run that is fitted, audited and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import llm_elicit as le
from llm_elicit.cli.main import main
from llm_elicit.errors import InputError
from llm_elicit.pipeline import stages
from llm_elicit.pipeline.imports import import_judgments

# Sizes in 10^9 parameters and months since January 2023, as published.
MODELS = {
    "vicuna-13b": (13, 3), "koala-13b": (13, 4), "alpaca-13b": (13, 3), "chatglm-6b": (6, 3),
    "fastchat-t5-3b": (3, 4), "dolly-v2-12b": (12, 4), "llama-13b": (13, 2), "gpt4all-13b": (13, 4),
    "oasst-pythia-12b": (12, 4), "RWKV-4-Raven-14B": (14, 4), "mpt-7b-chat": (7, 5),
}  # fmt: skip

DEBIAN = """\
# FILE NAME: 00002-00000001.toi
# TITLE: Debian 2002 Leader
# DATA TYPE: toi
# NUMBER ALTERNATIVES: 4
# NUMBER VOTERS: 475
# ALTERNATIVE NAME 1: Branden Robinson
# ALTERNATIVE NAME 2: Raphael Hertzog
# ALTERNATIVE NAME 3: Bdale Garbee
# ALTERNATIVE NAME 4: None Of The Above
60: 3,1,{2,4}
50: 1,3,2,4
9: 3
"""
"""The first and the last rankings of a file of PrefLib, with the tie of its complete form."""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str]]:
    """The command line in this process: its exit code, and all that it prints."""

    def called(*arguments: str) -> tuple[object, str]:
        with patch("sys.argv", ["llm-elicit", *arguments]), pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return end.value.code or 0, " ".join((printed.out + printed.err).split())

    return called


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A feature space whose table has a column of names, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{name},{size},{month}" for name, (size, month) in MODELS.items()]
    Path("models.csv").write_text("\n".join(["model,size,month", *rows]) + "\n")
    le.FeatureSpace.from_file("models.csv", ["size", "month"]).save()
    return "models.yaml"


def _battles(path: str, count: int = 60) -> list[dict[str, object]]:
    rng = np.random.default_rng(3)
    names = list(MODELS)
    rows: list[dict[str, object]] = []
    for number in range(count):
        a, b = rng.choice(names, 2, replace=False)
        advantage = (MODELS[a][0] - MODELS[b][0]) / 3.0
        winner = "model_a" if rng.logistic() < advantage else "model_b"
        rows.append({
            "question_id": f"{number:032x}", "model_a": a, "model_b": b, "language": "English",
            "winner": ["tie", "tie (bothbad)"][number % 2] if number % 10 == 0 else winner,
            "judge": f"arena_user_{number % 3}", "turn": 1,
        })  # fmt: skip
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def test_battles_of_an_arena_are_fitted_audited_and_reported(
    space: str, call: Callable[..., tuple[object, str]], quick_fits: None
) -> None:
    rows = _battles("arena.jsonl")
    code, out = call("import", "arena.jsonl", space, "--id", "model")
    assert code == 0
    assert "2 of 60 judgments left out" in out
    frame = le.Run.open("arena").comparisons.frame
    differ = [MODELS[str(row["model_a"])] != MODELS[str(row["model_b"])] for row in rows]
    kept = [row for row, differs in zip(rows, differ, strict=True) if differs]
    wins = {"model_a": "A", "model_b": "B", "tie": "tie", "tie (bothbad)": "tie"}
    assert frame["verdict"].tolist() == [wins[str(row["winner"])] for row in kept]
    assert frame["a_size"].tolist() == [MODELS[str(row["model_a"])][0] for row in kept]
    code, out = call("run", "arena")
    assert code == 0
    assert "nothing is asked" in out
    run = le.Run.open("arena")
    assert run.beliefs["imported"].sample(10, seed=1).shape == (10, 2)
    assert run.audit.judges[0].name == "imported"
    page = run.report_path.read_text()
    assert "imported from a file (<code>arena.jsonl</code>)" in page
    assert "was asked which" not in page
    code, out = call("repeat", "arena")
    assert (code, "cannot be asked again" in out) == (2, True)


def test_judges_are_told_apart_by_a_column(space: str) -> None:
    rows = _battles("arena.jsonl", 30)
    run, _ = import_judgments("arena.jsonl", space, id_column="model", judge_column="judge")
    assert [judge.name for judge in run.campaign.judges] == [f"arena_user_{n}" for n in range(3)]
    assert sum(run.judgments.values()) + sum(
        MODELS[str(row["model_a"])] == MODELS[str(row["model_b"])] for row in rows
    ) == len(rows)
    assert run.missing == {}


def test_a_ranking_gives_disjoint_pairs_and_its_ties(tmp_path: Path, space: str) -> None:
    names = ["Branden Robinson", "Raphael Hertzog", "Bdale Garbee", "None Of The Above"]
    rows = [f"{name},{10 * place + place % 2},{len(name)}" for place, name in enumerate(names, 1)]
    Path("ballot.csv").write_text("\n".join(["option,place,letters", *rows]) + "\n")
    le.FeatureSpace.from_file("ballot.csv", ["place", "letters"]).save()
    Path("debian.toi").write_text(DEBIAN)
    run, notes = import_judgments("debian.toi", "ballot.yaml", id_column="option")
    # 110 rankings of four give two pairs each, and one that ranks a single option gives none.
    assert notes[0] == "119 rankings give 220 comparisons of disjoint pairs"
    frame = run.comparisons.frame
    assert len(frame) == 220
    assert 0 < (frame["verdict"] == "tie").sum() < 60  # 2 and 4 are tied in 60, if they meet
    assert set(frame["verdict"]) == {"A", "B", "tie"}  # sides do not follow the winner
    third = frame[(frame["a_place"] == 31) | (frame["b_place"] == 31)]
    won = np.where(third["a_place"] == 31, third["probability"], 1 - third["probability"])
    meets_first = (third["a_place"] == 11) | (third["b_place"] == 11)
    assert (won[~meets_first] == 1.0).all()  # both rankings place 3 above 2 and 4
    assert run.campaign.fit.position_effect == "averaged"
    again, _ = import_judgments("debian.toi", "ballot.yaml", id_column="option", name="again")
    pd.testing.assert_frame_equal(again.comparisons.frame, frame)


def test_places_in_columns_of_items_are_rankings(space: str) -> None:
    """As `write.csv` writes the rankings of R's PlackettLuce: 0 for what was not ranked."""
    names = list(MODELS)
    Path("races.csv").write_text(
        f"{','.join(names[:4])}\n1,2,3,0\n0,2,1,3\n4,3,2,1\n", encoding="utf-8"
    )
    run, notes = import_judgments("races.csv", space, id_column="model", judge="races")
    assert notes[0] == "3 rankings give 4 comparisons of disjoint pairs"
    assert set(run.comparisons.judges) == {"races"}


@pytest.mark.parametrize(
    ("header", "rows", "verdicts"),
    [
        ("a,b,winner", ["llama-13b,mpt-7b-chat,a", "mpt-7b-chat,llama-13b,llama-13b"], "AB"),
        ("left,right,winner", ["llama-13b,mpt-7b-chat,right", "llama-13b,mpt-7b-chat,1"], "BA"),
        ("a_size,a_month,b_size,b_month,winner", ["3,4,13,2,B", "14,4,6,3,A"], "BA"),
        ("a_size,a_month,b_size,b_month,winner", ["3,4,13,2,0", "14,4,6,3,0.5"], "Bt"),
    ],
)  # fmt: skip
def test_a_plain_table_names_items_or_points(
    space: str, header: str, rows: list[str], verdicts: str
) -> None:
    Path("own.csv").write_text("\n".join([header, *rows]) + "\n")
    run, _ = import_judgments("own.csv", space, id_column="model")
    assert "".join(word[0] for word in run.comparisons.frame["verdict"]) == verdicts
    assert run.comparisons.frame["b_size"].max() <= 13


@pytest.mark.usefixtures("space")
def test_items_whose_names_are_words_for_a_side_win_by_their_names() -> None:
    Path("t.csv").write_text("id,size\n" + "".join(f"{i},{i * 1.5}\n" for i in range(12)))
    le.FeatureSpace.from_file("t.csv", ["size"]).save()
    Path("own.csv").write_text("a,b,winner\n2,1,1\n1,2,2\n0,3,0\n5,4,5\n")
    run, _ = import_judgments("own.csv", "t.yaml", id_column="id")
    assert "".join(run.comparisons.frame["verdict"]) == "BBAA"
    Path("own.csv").write_text("a,b,winner\n2,1,1\n5,4,a\n")
    with pytest.raises(InputError, match="'1' in row 1, which names a side and the item"):
        import_judgments("own.csv", "t.yaml", id_column="id", name="x")


def test_a_winner_and_a_loser_say_nothing_of_sides(space: str) -> None:
    Path("own.csv").write_text("winner,loser\n" + "llama-13b,chatglm-6b\n" * 40)
    run, _ = import_judgments("own.csv", space, id_column="model")
    frame = run.comparisons.frame
    assert set(frame["verdict"]) == {"A", "B"}
    assert (np.where(frame["verdict"] == "A", frame["a_size"], frame["b_size"]) == 13).all()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b,winner\nllama-13b,mpt-7b-chat,a\n", {}, "give the column .*: --id"),
        ("a,b,winner\nllama-13b,gpt-9,a\n", {"id_column": "model"}, "item 'gpt-9'"),
        ("a,b,winner\nllama-13b,mpt-7b-chat,c\n", {"id_column": "model"}, "'c' in row 1"),
        ("a,b,winner\nllama-13b,mpt-7b-chat,0\n", {"id_column": "model"}, "'0' .* may be a tie"),
        ("llama-13b,mpt-7b-chat\n1,2nd\n", {"id_column": "model"}, "'2nd' in row 1; write places"),
        ("x,y\n1,2\n", {"id_column": "model"}, "no judgments: its columns are x, y"),
        ("a_size,a_month,b_size,b_month,winner\n3,4,13,2,\n", {}, "`winner` is '.*' in row 1"),
        (
            "a,b,winner\nllama-13b,mpt-7b-chat,a\n",
            {"id_column": "model", "judge": "two words"},
            "judges.0.name",
        ),
        (
            "a,b,winner\nllama-13b,mpt-7b-chat,a\n",
            {"id_column": "model", "name": "no name"},
            "name",
        ),
        ("a,b,winner\nllama-13b,llama-13b,a\n", {"id_column": "model"}, "no judgment can be used"),
        ("a,b,winner\n2,3,a\n", {"id_column": "month"}, "'3' names several rows"),
        ("a,b,winner\nllama-13b,mpt-7b-chat,a\n", {"id_column": "name"}, "column 'name'"),
        ("a,b,winner\nllama-13b,mpt-7b-chat,a\n", {"judge_column": "by"}, "column 'by'"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(
    space: str, content: str, options: dict[str, str], message: str
) -> None:
    Path("own.csv").write_text(content)
    with pytest.raises(InputError, match=message) as error:
        import_judgments("own.csv", space, **options)
    assert "\n" not in str(error.value)
    assert not Path("runs").exists()


def test_a_damaged_table_of_imported_judgments_is_not_rebuilt(space: str) -> None:
    _battles("arena.jsonl", 30)
    run, _ = import_judgments("arena.jsonl", space, id_column="model")
    (run.folder / "comparisons.parquet").write_bytes(b"changed")
    with pytest.raises(InputError, match="restore it"):
        stages.fit(le.Run.open(run.folder))


def test_a_judge_that_can_be_asked_needs_a_campaign_of_its_own(space: str) -> None:
    _battles("arena.jsonl", 30)
    run, _ = import_judgments("arena.jsonl", space, id_column="model")
    settings = run.campaign.model_dump(mode="json")
    settings["judges"].append({"name": "expert", "backend": "simulated"})
    with pytest.raises(ValueError, match="'expert' cannot be asked in a run of imported"):
        le.Campaign.model_validate(settings)
