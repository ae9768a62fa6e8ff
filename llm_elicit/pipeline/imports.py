"""Import judgments that exist already into a run, which is then fitted, audited and reported.

The judgments are about rows of the feature space's table, or about points with a column for each
feature. Nobody can be asked in such a run: it has no journal and no prompts.

A ranking is imported as comparisons of disjoint pairs of what was ranked. Under Plackett and Luce's
model these are independent and contain no item twice; all k (k − 1) / 2 pairs of a ranking of k
would be counted as if they had been judged one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llm_elicit._util.settings import Sampling, validate
from llm_elicit._util.text import visible
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.comparisons.table_files import COLUMNS
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError, UnknownNameError
from llm_elicit.pipeline.manifest import digest_of_file
from llm_elicit.pipeline.run_folder import ANSWERS, COMPARISONS, Run
from llm_elicit.pipeline.stages import plan_run, writing
from llm_elicit.spaces import table_files
from llm_elicit.spaces.csv_files import decode
from llm_elicit.spaces.features import FeatureSpace, Floats

_PREFLIB = (".soc", ".soi", ".toc", ".toi")
"""Suffixes of PrefLib's files of rankings, in which items of a group in braces are tied."""

_SIDES = (("model_a", "model_b"), ("item_a", "item_b"), ("a", "b"), ("left", "right"))
"""Columns of the two items in the order in which they were shown."""

_FIRST = ("a", "first", "left", "1", "1.0", "true", "model_a", "item_a")
_ZERO = ("0", "0.0")
_SECOND = ("b", "second", "right", "2", "2.0", *_ZERO, "false", "model_b", "item_b")
_TIES = ("tie", "draw", "equal", "0.5", "both", "bothbad", "tie (bothbad)")
"""What the column `winner` may hold, in lower case, beside the name of the item."""


@dataclass(frozen=True)
class _JudgedPairs:
    """Pairs that were judged.

    Attributes:
        first, second: the items, or their points `(n, d)`.
        result: 1 if the first was preferred, 0 if the second, 1/2 for a tie, `(n,)`.
        judge: the names of the judges, `(n,)`.
        order_known: whether `first` was shown first; otherwise it is unknown which was.
        notes: lines on how they were made.
    """

    first: Any
    second: Any
    result: Floats
    judge: Sequence[str]
    order_known: bool
    notes: tuple[str, ...] = ()


def import_judgments(
    path: str | Path,
    space: str | FeatureSpace,
    *,
    id_column: str | None = None,
    judge: str = "imported",
    judge_column: str | None = None,
    name: str | None = None,
    seed: int = 1,
) -> tuple[Run, list[str]]:
    """Import judgments into a new run.

    Args:
        path: the file. A table (CSV, JSON lines, Parquet, ...) has a column `winner` and the
            columns `a_<feature>` and `b_<feature>` of both points, or two columns of items:
            `model_a` and `model_b` (Chatbot Arena's), `a` and `b`, `item_a` and `item_b`, `left`
            and `right`, or `winner` and `loser`. A table whose columns are items holds rankings, as
            in R's PlackettLuce: the places, 1 for the best, 0 or empty for an item that was not
            ranked. PrefLib's .soc, .soi, .toc and .toi files hold rankings as well.
        space: the feature space, by name or path.
        id_column: the column of the space's table that names the items.
        judge: the name of the judge.
        judge_column: the column of the judges' names, if there are several.
        name: the name of the run under runs/; by default that of the file.
        seed: seed of the pairs that are drawn from rankings, and of sides that are not known.

    Returns:
        The run, and lines about judgments that were left out.

    Raises:
        InputError: the file or the space cannot be used, or the run exists.
    """
    path = Path(path)
    space = FeatureSpace.load(space) if isinstance(space, str) else space
    rng = np.random.default_rng([seed, 0x1390])
    campaign_name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "imported"
    if (folder := Path("runs") / campaign_name).exists():
        raise InputError(f"{folder}: exists already; choose another name with --name")
    items = _index_items(space, id_column)
    if path.suffix.lower() in _PREFLIB:
        judged = _draw_pairs(_read_preflib(path), judge, rng, str(path))
    else:
        judged = _read(path, space, items, judge, judge_column, rng)
    a, b, notes = judged.first, judged.second, list(judged.notes)
    if not isinstance(a, np.ndarray):
        a, b = (_find_points(names, items, space, str(path)) for names in (a, b))
    usable = space.contains(a) & space.contains(b) & (a != b).any(axis=1)
    if left_out := int((~usable).sum()):
        notes.append(
            f"{left_out:,} of {len(usable):,} judgments left out: a value of one of the items is "
            f"missing or outside the range of {space.name}, or both items have the same values"
        )
    if not usable.any():
        raise InputError(f"{path}: no judgment can be used; {'; '.join(notes)}")
    a, b = a[usable], b[usable]
    result, judges = judged.result[usable], np.asarray(judged.judge, dtype=str)[usable]
    if not judged.order_known:
        turned = rng.random(len(a)) < 0.5
        a, b = np.where(turned[:, None], b, a), np.where(turned[:, None], a, b)
        result = np.where(turned, 1.0 - result, result)
    settings = {
        "name": campaign_name,
        "space": space.name if space.folder is None else str(space.folder / f"{space.name}.yaml"),
        "seed": seed,
        "design": {"pairs": len(a), "both_orders": False, "sampling": _choose_sampling(space)},
        "judges": [
            {"name": name, "backend": "imported", "file": path.name, "sha256": digest_of_file(path)}
            for name in dict.fromkeys(judges.tolist())
        ],
        "fit": {"position_effect": "estimated" if judged.order_known else "averaged"},
    }
    campaign = validate(Campaign, settings, str(path))
    run = Run(folder, campaign, campaign.load_space())
    with writing(folder):
        folder.mkdir(parents=True)
    _table(space, a, b, result, judges).write(folder / COMPARISONS)
    run = plan_run(run)
    answers = {ANSWERS: str(len(a))} | run.named
    run.manifest.record("ask", answers, [folder / COMPARISONS])
    return run, notes


def _choose_sampling(space: FeatureSpace) -> Sampling:
    """Return the density that the items are taken to come from: that of the table, if it has one.

    Method `utility` does not need it exactly.
    """
    with suppress(InputError):  # there is no table, or it has too few rows
        space.with_sampling("empirical").sample(1, np.random.default_rng(0))
        return "empirical"
    return "uniform"


def _table(space: FeatureSpace, a: Floats, b: Floats, result: Floats, judges: Any) -> Comparisons:
    """Return the table of judgments, a pair for each."""
    defaults: dict[str, Any] = {"string": "", "int64": 0, "float64": np.nan, "bool": False}
    values: dict[str, Any] = {
        name: np.full(len(a), defaults[kind]) for name, kind in COLUMNS.items()
    }
    values |= {
        "judge": judges,
        "pair": np.arange(len(a)),
        "order": np.full(len(a), "ab"),
        "template": np.full(len(a), "imported"),
        "verdict": np.select([result == 1.0, result == 0.0], ["A", "B"], "tie"),
        "probability": result,
        "latency": 0.0,
        "cost": 0.0,
    }
    points = [
        space.table_of(side).add_prefix(f"{letter}_") for letter, side in (("a", a), ("b", b))
    ]
    return Comparisons(pd.concat([pd.DataFrame(values), *points], axis=1), space.names)


def _index_items(space: FeatureSpace, id_column: str | None) -> pd.Series[int] | None:
    """Return the row numbers of the space's table by the items' names; None without a column."""
    if id_column is None:
        return None
    rows = space.printed_rows()
    if id_column not in rows[0]:
        raise UnknownNameError.of(f"the table of {space.name}", "column", id_column, rows[0])
    names = pd.Series(rows[1:]).str[rows[0].index(id_column)].str.strip()
    return pd.Series(np.arange(len(names)), index=names)


def _find_points(
    names: Sequence[str], items: pd.Series[int] | None, space: FeatureSpace, source: str
) -> Floats:
    """Return the points `(n, d)` of items, natural units."""
    if items is None:
        raise InputError(
            f"{source}: its judgments name items; give the column of the table of {space.name} "
            "that has these names: --id COLUMN"
        )
    needed = pd.Index(names)
    unknown = needed.difference(items.index)
    if len(unknown):
        raise UnknownNameError.of(f"the table of {space.name}", "item", unknown[0], items.index)
    repeated = needed[needed.isin(items.index[items.index.duplicated()])]
    if len(repeated):
        raise InputError(
            f"{source}: {visible(repeated[0])!r} names several rows of the table of {space.name}; "
            "name a column without repetitions"
        )
    table = space.read_table().reindex(items.loc[needed].to_numpy())
    return space.to_support(table)


def _read(
    path: Path,
    space: FeatureSpace,
    items: pd.Series[int] | None,
    judge: str,
    judge_column: str | None,
    rng: np.random.Generator,
) -> _JudgedPairs:
    """Read judgments or rankings from a table."""
    read = table_files.sniff(path)
    frame = read.frame.astype(str).apply(lambda column: column.str.strip())
    columns = list(frame.columns)
    judges = [judge] * len(frame)
    if judge_column is not None:
        if judge_column not in columns:
            raise UnknownNameError.of(str(path), "column", judge_column, columns)
        judges = frame[judge_column].tolist()
    sides = [[f"{side}_{name}" for name in space.names] for side in "ab"]
    pair = next((pair for pair in _SIDES if set(pair) <= set(columns)), ())
    if {*sides[0], *sides[1], "winner"} <= set(columns):
        first, second = (_parse_points(read.frame, names, space, str(path)) for names in sides)
        return _JudgedPairs(first, second, _results(frame, str(path)), judges, order_known=True)
    if {"winner", "loser"} <= set(columns):
        won, lost = frame["winner"].tolist(), frame["loser"].tolist()
        return _JudgedPairs(won, lost, np.ones(len(frame)), judges, order_known=False)
    if pair and "winner" in columns:
        first, second = (frame[side].tolist() for side in pair)
        result = _results(frame, str(path), pair)
        return _JudgedPairs(first, second, result, judges, order_known=True)
    ranks = frame.drop(columns=[] if judge_column is None else [judge_column])
    if items is not None and set(ranks.columns) <= set(items.index):
        numbers = ranks.apply(pd.to_numeric, errors="coerce")
        unreadable = numbers.isna() & ~ranks.isin(["", "nan", "None", "<NA>"])
        if unreadable.to_numpy().any():
            row, column = np.argwhere(unreadable.to_numpy())[0]
            raise InputError(
                f"{path}: column {ranks.columns[column]!r} holds "
                f"{visible(ranks.iloc[row, column])!r} in row {row + 1}; write places as numbers, "
                "1 for the best"
            )
        ranked = (row[row > 0] for _, row in numbers.iterrows())
        rankings = [  # the items in the order of their places, tied ones together
            ([list(tied.index.astype(str)) for _, tied in ranks.groupby(ranks)], 1)
            for ranks in ranked
        ]
        return _draw_pairs(rankings, judges, rng, str(path))
    raise InputError(
        f"{path}: no judgments: its columns are {visible(', '.join(columns), 200)}; give `winner` "
        "with `a` and `b`, with `loser`, or with the two points as "
        f"{', '.join(names[0] for names in sides)} ..., or a column of places for each item"
    )


def _parse_points(
    frame: pd.DataFrame, columns: Sequence[str], space: FeatureSpace, source: str
) -> Floats:
    """Return the points `(n, d)` in columns of features."""
    values = {}
    for column, feature in zip(columns, space.features, strict=True):
        cells = frame[column]
        if not feature.categories and feature.kind != "date":
            numbers = pd.to_numeric(cells, errors="coerce")
            bad = cells[numbers.isna() & cells.notna() & (cells.astype(str).str.strip() != "")]
            if len(bad):
                raise InputError(
                    f"{source}: column {column!r} holds {visible(str(bad.iloc[0]))!r}; write "
                    f"{feature.label} as a number"
                )
            cells = numbers
        values[feature.name] = cells
    return space.to_support(space.points_of(pd.DataFrame(values)))


def _results(frame: pd.DataFrame, source: str, pair: Sequence[str] = ()) -> Floats:
    """Return 1 where the first item won, 0 where the second did, 1/2 for a tie.

    An item may have a name that is also a word for a side, such as 1: where every winner is one of
    the two items of its row, winners are names.

    Raises:
        InputError: a winner is no name of a side or an item, or can be read in two ways.
    """
    winner = frame["winner"]
    word = winner.str.lower()
    first, second, tied = word.isin(_FIRST), word.isin(_SECOND), word.isin(_TIES)
    # Beside 0.5, a zero is a score of the first item.
    is_zero = word.isin(() if (word == "0.5").any() else _ZERO)
    either = first & second
    if pair:
        first_item, second_item = (winner == frame[side] for side in pair)
        is_item = first_item | second_item
        if not (is_item | tied).all():
            either = (first & second_item) | (second & first_item)
        first, second = first_item | (first & ~is_item), second_item | (second & ~is_item)
        is_zero &= ~is_item
    for wrong, meaning in (
        (~(first | second | tied), "which names no side and no item of the row"),
        (either, "which names a side and the item on the other side"),
        (is_zero, "which may be a tie, a loss of the first, or the first of 0 and 1"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"{source}: `winner` is {visible(winner.iloc[row])!r} in row {row + 1}, {meaning}; "
                "write a, b or tie, or the name of the item"
            )
    return np.select([first, second], [1.0, 0.0], 0.5)


def _read_preflib(path: Path) -> list[tuple[list[list[str]], int]]:
    """Return the rankings of a PrefLib file, and how often each was given."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of a file of judgments")
    names: dict[str, str] = {}
    rankings = []
    text, _ = decode(path.read_bytes(), str(path))
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"#\s*ALTERNATIVE NAME (\d+):\s*(.*\S)", line):
            names[match[1]] = match[2]
        elif match := re.fullmatch(r"\s*(\d+)\s*:\s*([\d{},\s]+)", line):
            groups = re.findall(r"\{([^}]*)\}|(\d+)", match[2])
            ranked = [re.findall(r"\d+", tied or single) for tied, single in groups]
            named_groups = [[names.get(item, item) for item in group] for group in ranked if group]
            rankings.append((named_groups, int(match[1])))
        elif line.strip() and not line.startswith("#"):
            raise InputError(
                f"{path}: line {number} is not a PrefLib ranking: {visible(line, 60)}; write "
                "rankings as in `3: 2,1,{4,5}`"
            )
    return rankings


def _draw_pairs(
    rankings: Sequence[tuple[list[list[str]], int]],
    judge: str | Sequence[str],
    rng: np.random.Generator,
    source: str,
) -> _JudgedPairs:
    """Return disjoint pairs of the items of each ranking, drawn at random."""
    judges = [judge] * len(rankings) if isinstance(judge, str) else judge

    def pairs() -> Iterator[tuple[str, str, float, str]]:
        for (groups, times), name in zip(rankings, judges, strict=True):
            rank_of = {item: number for number, group in enumerate(groups) for item in group}
            items = np.array(list(rank_of), dtype=object)
            for _ in range(times if len(items) > 1 else 0):
                shuffled = rng.permutation(items)
                for first, second in zip(shuffled[::2], shuffled[1::2], strict=False):
                    yield first, second, 0.5 + 0.5 * np.sign(rank_of[second] - rank_of[first]), name

    rows = list(pairs())
    if not rows:
        raise InputError(
            f"{source}: no ranking of two items or more; a ranking of one compares nothing"
        )
    first, second, result, people = map(list, zip(*rows, strict=True))
    count = sum(times for _, times in rankings)
    note = f"{count:,} rankings give {len(rows):,} comparisons of disjoint pairs"
    return _JudgedPairs(first, second, np.array(result), people, order_known=False, notes=(note,))
