"""The cache: keys that follow everything that decides an answer, and nothing else."""

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from llm_elicit.backends import Reply, Request, open_backend
from llm_elicit.backends.base import ignore_note
from llm_elicit.cli.cache import cache_app
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.cache import (
    SCHEMA,
    Cache,
    Entry,
    Identity,
    differences,
    identify,
    is_reusable,
)
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.testing.provider import Answer, Provider
from orchestrator.conftest import claude, gpt
from orchestrator.running import campaign, plan_of, run

SAFE = 2**53 - 1
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
BODY = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), JSON, max_size=4)

GOLDEN = {
    "plain": ("https://host.example/v1", "m", {"model": "m", "temperature": 0.5}, 0),
    "é and order": ("e", "m", {"z": "é", "a": [1, 2.0, 1e30, True, None], "€": "😀"}, 3),
}
KEYS = {
    "plain": "c658dc8cd2ff1229a584fa7c3662c41d682b8aca11b545cc1d150dab49e91639",
    "é and order": "62508cbb542dce88e586dde7574a4a134c29ac5114730ea0657b5fd6d3a66bbd",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_key_is_the_same_for_ever(name: str) -> None:
    """An upgrade that changes one of these would ask, and pay, everything again.

    They changed with schema 3, since earlier replies may have another token's log-probabilities.
    """
    assert identify(*GOLDEN[name]).key == KEYS[name]


def _numbers(value: Any) -> Any:
    """A JSON value in a form whose equality is JSON's: true is not 1, and 1 is 1.0."""
    if isinstance(value, dict):
        return {name: _numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number", float(value))
    return (type(value).__name__, value)


@given(BODY, BODY)
def test_a_key_follows_the_body_and_not_its_order(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert identify("e", "m", one, 0) == identify("e", "m", dict(reversed(one.items())), 0)
    same = _numbers(one) == _numbers(two)
    assert (identify("e", "m", one, 0) == identify("e", "m", two, 0)) is same


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    return [path] + [deep for at, part in parts for deep in _paths(part, (*path, at))]


@given(BODY, st.data())
def test_any_change_anywhere_changes_the_key_and_is_named(
    body: dict[str, Any], data: st.DataObject
) -> None:
    changed = json.loads(json.dumps(body))
    path = data.draw(st.sampled_from(_paths(body)))
    new = data.draw(JSON.filter(lambda value: value != "taken"))
    if not path:
        changed["a new setting"] = new
        named = "body.a new setting"
    else:
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        if _numbers(inner[path[-1]]) == _numbers(new):
            return
        inner[path[-1]] = new
        named = ""
    one, two = identify("e", "m", body, 0), identify("e", "m", changed, 0)
    assert one != two
    found = differences(json.loads(one.text), json.loads(two.text))
    if named and new is not None:
        assert [path for path, _, _ in found] == [named]
    elif not named:
        assert all(path.startswith("body") for path, _, _ in found)


@given(BODY)
def test_a_key_follows_everything_else(body: dict[str, Any]) -> None:
    keys = {
        identify("e", "m", body, 0),
        identify("f", "m", body, 0),
        identify("e", "n", body, 0),
        identify("e", "m", body, 1),
        identify("e", "m", body, 0, {"anthropic-beta": "x"}),
    }
    assert len(keys) == 5


@given(st.dictionaries(st.text(), JSON))
def test_a_key_is_of_the_canonical_json_of_rfc_8785(body: dict[str, Any]) -> None:
    """Whichever of the two writes it."""
    whole = {"schema": SCHEMA, "endpoint": "e", "model": "m", "body": body, "replicate": 0}
    assert identify("e", "m", body, 0).text.encode() == rfc8785.dumps(whole)


def test_numbers_that_json_cannot_carry_are_refused() -> None:
    with pytest.raises(InputError, match=r"below 2\^53"):
        identify("e", "m", {"seed": 2**60}, 0)


def _identities(judge: dict[str, Any]) -> list[Identity]:
    """The identities of a judge's first questions."""
    study = campaign([judge], pairs=4)
    space, plan = study.load_space(), plan_of(study)
    template = Template.load("v1/zero-shot")
    backend = open_backend(study.judges[0], space, ignore_note)
    requests = [
        Request(
            render(space, *plan.points_in_order(query), template),
            plan.points_in_order(query),
            query.replicate,
        )
        for query in plan
    ]
    return [
        identify(backend.endpoint, backend.model, backend.body(r), r.replicate) for r in requests
    ]


OPERATIONAL = {"name": "other", "concurrency": 3, "timeout": 7.0, "attempts": 2}
DECISIVE = {
    "temperature": 0.3, "max_tokens": 77, "seed": 5, "logprobs": False, "model": "other",
    "base_url": "http://127.0.0.1:2/v1",
}  # fmt: skip


@pytest.mark.parametrize("setting", OPERATIONAL)
@pytest.mark.parametrize("make", [claude, gpt])
def test_operational_settings_do_not_change_a_key(make: Any, setting: str) -> None:
    plain = make("http://127.0.0.1:1")
    assert _identities(plain) == _identities({**plain, setting: OPERATIONAL[setting]})


@pytest.mark.parametrize("setting", DECISIVE)
def test_settings_that_decide_an_answer_change_every_key(setting: str) -> None:
    plain = gpt("http://127.0.0.1:1")
    changed = _identities({**plain, setting: DECISIVE[setting]})
    assert not set(_identities(plain)) & set(changed)
    assert len(set(changed)) == 8


def _reply(text: str, finish: str = "stop") -> Reply:
    return Reply(text, finish, "m", 0.25, 0.9, 10, 2, 3, {"a": 1})


def _id(number: int) -> Identity:
    return identify("e", "m", {"n": number}, 0)


def test_a_cache_gives_back_what_it_was_given(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    cache.put(_id(1), _reply("A"), "now")
    cache.put(_id(1), _reply("B"), "later")
    cache.put(_id(2), _reply("\0\ud83d"), "now")
    assert cache.get(_id(3)) is None
    for reopened in (False, True):
        if reopened:
            cache.close()
            cache = Cache(tmp_path / "cache.sqlite")
        kept = cache.get(_id(1))
        assert kept is not None
        assert (kept.text, kept.first, kept.cached_tokens) == ("A", 0.25, 3)
        assert set(cache.get_all([_id(1), _id(2), _id(3)])) == {_id(1).key, _id(2).key}
    cache.close()


def test_a_damaged_cache_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"text" * 1000)
    with pytest.raises(InputError, match="only saved answers are lost"):
        Cache(tmp_path / "bad.sqlite")


def test_what_is_worth_keeping() -> None:
    assert is_reusable(_reply("A"), "A")
    assert is_reusable(_reply("x"), "unparsable")
    assert is_reusable(_reply("", "refusal"), "refusal")
    assert is_reusable(_reply("A", "length"), "A")
    assert not is_reusable(_reply("Let", "length"), "truncated")
    assert not is_reusable(_reply("", "pause_turn"), "unparsable")


def _cli(*arguments: str) -> str:
    """What a command prints, the error's line included."""
    result = CliRunner().invoke(cache_app, arguments, env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, InputError), result.output
    return f"{result.output}{result.exception or ''}"


@pytest.fixture
def kept(tmp_path: Path) -> list[Entry]:
    """A cache with the answers of two campaigns that differ in one setting."""
    with Provider(lambda n, body: Answer("A")) as provider:
        run(campaign([gpt(provider.url)], pairs=4), tmp_path / "one")
        run(campaign([gpt(provider.url, temperature=0.5)], pairs=4), tmp_path / "two")
    cache = Cache(tmp_path / "cache.sqlite")
    entries = list(cache.entries())
    cache.close()
    assert len(entries) == 16
    return entries


def test_entries_are_listed_and_explained(kept: list[Entry], tmp_path: Path) -> None:
    where = ("--runs", str(tmp_path))
    assert "gpt-4o-mini" in (listed := _cli("list", *where))
    assert "16" in listed
    keys = _cli("list", "--model", "gpt-4o-mini", *where)
    assert all(entry.key[:16] in keys for entry in kept)
    bodies = {entry.key: entry.request["body"] for entry in kept}
    plain, warm = next(
        (a, b) for a in bodies for b in bodies if bodies[b] == {**bodies[a], "temperature": 0.5}
        and "temperature" not in bodies[a]
    )  # fmt: skip
    assert _cli("explain", plain[:12], warm, *where) == "body.temperature: nothing | 0.5\n"
    assert _cli("explain", plain, plain, *where) == "the same request\n"
    differences = json.loads(_cli("explain", plain, warm, "--json", *where))
    assert differences == [{"field": "body.temperature", "first": None, "second": 0.5}]
    (counted,) = json.loads(_cli("list", "--json", *where))
    assert (counted["model"], counted["answers"]) == ("gpt-4o-mini", 16)
    listed = json.loads(_cli("list", "--model", "gpt-4o-mini", "--json", *where))
    assert {one["key"] for one in listed} == {entry.key[:16] for entry in kept}
    assert "no key begins with 'xyz'" in _cli("explain", "xyz", plain, *where)
    assert "several keys begin" in _cli("explain", "", plain, *where)


def test_entries_are_proven_and_forgotten(kept: list[Entry], tmp_path: Path) -> None:
    where = ("--runs", str(tmp_path))
    key = kept[3].key
    assert _cli("verify", *where) == "16 answers; all digests are correct\n"
    with sqlite3.connect(tmp_path / "cache.sqlite") as db:
        db.execute("UPDATE replies SET reply = replace(reply, 'A', 'B') WHERE key = ?", (key,))
        db.execute("CREATE TABLE answers (key TEXT)")  # the first format's
    refused = _cli("verify", *where)
    assert "has changed since it was saved" in refused
    assert ("1 of 16 entries fail verification; delete each with `llm-elicit cache prune --key "
        f"{key[:16]}`") in refused  # fmt: skip
    assert _cli("prune", "--key", key[:16], *where) == "1 answers deleted\n"
    assert _cli("verify", *where) == "15 answers; all digests are correct\n"
    assert json.loads(_cli("verify", "--json", *where)) == {"answers": 15, "faults": {}}
    with sqlite3.connect(tmp_path / "cache.sqlite") as db:
        db.execute("UPDATE replies SET identity = replace(identity, '4o', '5o') WHERE rowid = 1")
    assert "the key does not match its request" in _cli("verify", *where)
    assert "say what to delete" in _cli("prune", *where)
    assert _cli("prune", "--days", "1", *where) == "0 answers deleted\n"
    assert _cli("prune", "--model", "gpt-4o-mini", *where) == "14 answers deleted\n"
    assert "no saved answers here" in _cli("list", "--runs", str(tmp_path / "none"))


def test_hits_take_no_slot(tmp_path: Path) -> None:
    """One slot, and a server that would hold it for a minute: what is known comes all the same."""
    with Provider(lambda n, body: Answer("A")) as provider:
        known = campaign([gpt(provider.url)], pairs=200)
        run(known, tmp_path / "one")
        again = campaign([gpt(provider.url, name="slow", concurrency=1)], pairs=200)
        summary = run(again, tmp_path / "two")
        assert len(provider.seen) == 400
    tally = summary.judges["slow"].tally
    assert (tally.done, tally.cached, tally.requests) == (400, 400, 0)


def test_a_cache_with_flipped_bytes_is_one_line(kept: list[Entry], tmp_path: Path) -> None:
    """Whatever the byte, and whichever the command: its work, or one line."""
    whole = (tmp_path / "cache.sqlite").read_bytes()
    rng = random.Random(5)
    for flips in (1, 1, 20, 1, 200, 1, 5, 1, 1, 50):
        damaged = bytearray(whole)
        for _ in range(flips):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        (tmp_path / "cache.sqlite").write_bytes(damaged)
        for command in (["list"], ["list", "--model", "gpt-4o-mini"], ["verify"]):
            result = CliRunner().invoke(cache_app, [*command, "--runs", str(tmp_path)])
            said = result.exception
            assert said is None or isinstance(said, InputError), result.output
            assert "\n" not in str(said)


def test_an_identity_without_a_field_is_one_line() -> None:
    with pytest.raises(InputError, match="cache entry abc: "):
        _ = Entry("abc", "m", '{"schema": 2, "model": "m"}', "{}", "", "now").request
