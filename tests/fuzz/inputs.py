"""Strategies: valid inputs with something changed, and garbage with some structure."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

GARBAGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7.5, -0.0, 1e300, -1e300, 1e-300, 10**30, -(10**30), 2**63,
    float("nan"), float("inf"), float("-inf"), "", " ", "a", "A", "nope", "200", "1e5", "NaN",
    "true", "null", "\n", "a\nb", "\x00", "\x1b[31m", "é", "🙂", "\u202e", "x" * 5_000, "../x",
    ".",
    "..", "{{ 1/0 }}", "{% raw %}", "%s %d", "penguins", "table", "ab", [], {}, [1], ["a"],
    [None],
    {"a": 1}, {"": None}, {1: 2}, [[1, 2], [3]], [{}], {"a": {"b": {"c": []}}},
)  # fmt: skip

RAW = (
    b"", b"\x00", b"\xff\xfe", b"{", b"}", b"[", b"]", b":", b"- ", b"\t", b"\n", b"\r", b"'",
    b'"', b"&a ", b"*a", b"!!python/object:os.system ", b"? ", b"| ", b"> ", b"#", b"%", b"@",
    b"\xe9", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x99\x82", b"0x", b"1_000", b"1e999", b"-.inf",
    b"~", b"<<: *a",
)  # fmt: skip

BOMBS = (
    b"[" * 20_000, b"{a: " * 5_000, b"- " * 20_000, b"a: &a [x]\n" + b"b: *a\n" * 50,
    b"".join(b"%c: &%c [%s]\n" % (97 + n, 97 + n, b",".join([b"*%c" % (96 + n)] * 9) if n else b"x")
             for n in range(9)),
    b"a: " + b"9" * 10_000, b"\xef\xbb\xbfname: x", b"name: x\x00", b"a: 1\na: 2",
    b"---\na: 1\n---\nb: 2",
    b"!!binary x", b"!!timestamp x", b"2026-99-99", b"12:30:45", b"? [a]\n: b", b"&a [*a]",
)  # fmt: skip
"""Whole files that are no campaign, or hard to read."""

Path = tuple[Any, ...]


def leaves(value: Any, at: Path = ()) -> list[Path]:
    """The paths of all values within mappings and lists, those of the containers too."""
    found = [at] if at else []
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            found += leaves(below, (*at, key))
    return found


def _changed(value: Any, path: Path, change: Callable[[Any, Any], None]) -> Any:
    value = copy.deepcopy(value)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return value


@st.composite
def altered(draw: st.DrawFn, bases: Sequence[Any], more: Sequence[str] = ()) -> Any:
    """A valid value with one to three of its parts replaced, left out, added or repeated."""
    value = draw(st.sampled_from(bases))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        places = leaves(value)
        if not places:
            return value
        path = draw(st.sampled_from(places))
        garbage = draw(st.sampled_from(GARBAGE) | st.floats() | st.integers() | st.text())
        other = draw(st.sampled_from([*more, "extra"]))
        how = draw(st.sampled_from(["replace", "replace", "drop", "add", "repeat"]))

        def change(parent: Any, key: Any, how: str = how, garbage: Any = garbage,
                   other: str = other) -> None:  # fmt: skip
            if how == "drop":
                del parent[key]
            elif how == "add" and isinstance(parent, dict):
                parent[other] = garbage
            elif how == "repeat" and isinstance(parent, list):
                parent.append(parent[key])
            else:
                parent[key] = garbage

        value = _changed(value, path, change)
    return value


@st.composite
def edited(draw: st.DrawFn, texts: Sequence[bytes], pieces: Sequence[bytes] = RAW) -> bytes:
    """A text with one to four bytes or pieces put in, taken out, or written over."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 12))
        piece = draw(st.sampled_from(pieces) | st.binary(max_size=4))
        how = draw(st.sampled_from(["insert", "insert", "delete", "over", "cut", "double"]))
        match how:
            case "insert":
                text = text[:at] + piece + text[at:]
            case "delete":
                text = text[:at] + text[at + length :]
            case "over":
                text = text[:at] + piece + text[at + len(piece) :]
            case "cut":
                text = text[:at]
            case "double":
                text = text[:at] + text[max(at - length, 0) :]
    return text


def as_yaml(value: Any) -> bytes:
    """A value as a file; half of a pair of surrogates is written as it is."""
    return yaml.safe_dump(value, allow_unicode=True, sort_keys=False).encode("utf-8", "replace")


def yaml_files(bases: Sequence[Any], more: Sequence[str] = ()) -> st.SearchStrategy[bytes]:
    """Files of settings, most of them nearly valid."""
    texts = [as_yaml(base) for base in bases]
    return st.one_of(
        altered(bases, more).map(as_yaml), altered(bases, more).map(as_yaml), edited(texts),
        st.integers(0, len(BOMBS) - 1).map(BOMBS.__getitem__),
    )  # fmt: skip


CELLS = (
    "", " ", "1", "2.5", "-3", "1,5", "1 000", "1e5", "1e400", "nan", "NaN", "inf", "-inf", "NA",
    "null", "None", "true", "x", "red", "blue", "é", "2026-01-02", "12:00", "0x10", "1_0", '"',
    "a,b",
    "=1+1", "\x00", "🙂", "9" * 400, "x" * 2_000, "-", "5 %", "$4",
)  # fmt: skip

HEADS = ("a", "b", "c", "a", "", " ", "1", "é", "a b", "a,b", "x" * 300, "\x00", "unit (mm)", "A")


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """A CSV: numbers and words, with odd cells, rows, separators and encodings."""
    columns, rows = draw(st.integers(0, 6)), draw(st.sampled_from([0, 1, 2, 12, 12, 12, 60]))
    odd = draw(st.sampled_from([0.0, 0.0, 0.05, 0.5]))
    rng = draw(st.randoms(use_true_random=False))
    words = ("red", "blue", "green")
    kinds = [draw(st.sampled_from(["number", "whole", "word", "constant"])) for _ in range(columns)]

    def cell(kind: str) -> str:
        if rng.random() < odd:
            return rng.choice(CELLS)
        if kind == "number":
            return f"{rng.gauss(10.0, 3.0):.3f}"
        return {"whole": str(rng.randrange(50)), "word": rng.choice(words), "constant": "5"}[kind]

    names = [draw(st.sampled_from(HEADS)) for _ in kinds] if draw(st.booleans()) else [
        f"feature {n}" for n in range(columns)]  # fmt: skip
    lines = [names, *([cell(kind) for kind in kinds] for _ in range(rows))]
    if odd and len(lines) > 1:
        lines[-1].append("1")  # a row that is longer
    text = draw(st.sampled_from([",", ",", ",", ";", "\t"])).join
    ending = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    raw = ending.join(text(line) for line in lines).encode(
        draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16"])), "replace"
    )
    return draw(edited([raw])) if draw(st.sampled_from([False, False, True])) else raw


SNIPPETS = (
    b"{{ 1/0 }}", b"{{ nothing }}", b"{{ option_a[0] }}", b"{{ option_a }}", b"{% endif %}",
    b"{% for i in range(10**9) %}x{% endfor %}",
    b"{% for i in range(99999999) %}{% endfor %}", b"{{ ().__class__.__bases__[0] }}",
    b"{% include '/etc/passwd' %}", b"{% import 'x' as y %}", b"{{ subject | nosuch }}",
    b"{{ lipsum(n=10000) }}", b"{{ cycler }}", b"{{ self }}", b"{% set a = 1 %}", b"{#", b"{{",
    b"{%",
    b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", b"{{ subject.format(1) }}",
    b"{{ option_a|sort }}", b"{{ namespace(a=1) }}", b"{{ subject|urlize|title }}",
    b"{{ loop.index }}",
    b"# user\n", b"# system\n", b"# assistant\n", b"---\n", b"options: [A, A]\n",
    b"max_tokens: -1\n",
    b"answer: nope\n", b"id: ''\n", b"{{ setting.x.y }}", b"{{ caller() }}", b"{% raw %}",
    b"\x00", b"\xff",
)  # fmt: skip


def templates(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Question templates with something put in, taken out or written over."""
    return edited(valid, (*SNIPPETS, *RAW[:12]))


HEADERS = (
    ("retry-after", "-1"), ("retry-after", "1e308"), ("retry-after", "nan"), ("retry-after", "é"),
    ("retry-after", "Wed, 99 Foo 2026"), ("retry-after-ms", "x"),
    ("x-ratelimit-remaining-requests", "-5"),
    ("x-ratelimit-limit-requests", "NaN"), ("x-ratelimit-limit-requests", "0"),
    ("x-ratelimit-reset-requests", "1e999s"), ("x-ratelimit-reset-tokens", "abc"),
    ("anthropic-ratelimit-requests-reset", "9999-99-99T00:00:00Z"), ("x-should-retry", "true"),
    ("anthropic-ratelimit-tokens-limit", "1e400"), ("content-encoding", "gzip"),
    ("content-encoding", "nonsense"), ("content-type", "text/html"), ("content-type", ""),
    ("content-type", "application/json; charset=klingon"), ("transfer-encoding", "chunked"),
    ("set-cookie", "x" * 5_000), ("location", "/elsewhere"), ("x-request-id", "\x7f"), ("date",
    "never"),
)  # fmt: skip

CALM = (200, 200, 200, 200, 200, 200, 201, 204, 206, 408, 409, 429, 500, 502, 503, 529)
HARSH = (100, 301, 302, 307, 400, 401, 402, 403, 404, 405, 413, 418, 422, 451, 499, 599, 999)
TEXTS = (b"", b"null", b"true", b"0", b'"A"', b"[]", b"{}", b"{", b"<html>busy</html>",
    b"\xff\xfe",
         b"[" * 50_000, b'{"a":' * 5_000, b"1" * 6_000, b'{"choices": [{}]}',
         b'{"choices": null}',
         b'{"error": null}', b'{"error": "x"}', b'{"error": {"code": {}}}',
         b"A" * 300_000)  # fmt: skip


@st.composite
def responses(draw: st.DrawFn, answers: Sequence[Any], statuses: Sequence[int] = CALM) -> bytes:
    """The bytes of a response: a status, headers, and a body that is nearly an answer."""
    whole = altered(answers, ("usage", "error", "model")).map(
        lambda v: json.dumps(v, default=str).encode()
    )
    texts = [json.dumps(answer).encode() for answer in answers]
    body = draw(st.one_of(whole, whole, whole, edited(texts, (*RAW, b"null,", b"1e999", b"NaN")),
                          st.sampled_from(TEXTS)))  # fmt: skip
    status = draw(st.sampled_from(statuses))
    headers = {"content-type": "application/json"}
    headers |= dict(draw(st.lists(st.sampled_from(HEADERS), max_size=2)))
    length = len(body) + draw(st.sampled_from([0] * 12 + [-1, 5, 10**9]))
    lines = [f"HTTP/1.1 {status} Status", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n"
    if draw(st.sampled_from([False] * 15 + [True])):
        return draw(edited([head + body]))
    return head + body
