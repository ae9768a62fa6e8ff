"""Templates that are none, in every way we know: one line each, at once, that names the file."""

from pathlib import Path

import pytest

from llm_elicit._util import files
from llm_elicit.errors import InputError
from llm_elicit.questions.presentation import render
from llm_elicit.questions.template import Template
from llm_elicit.spaces.features import FeatureSpace

FRONT = "id: mine\nwording: mine"
BOTH = "{{ option_a }} {{ option_b }}"

FILES = {
    "an empty file": (b"", "no front matter"),
    "blanks": (b" \n \n", "no front matter"),
    "no front matter": (b"# user\nhello", "no front matter"),
    "front matter without an end": (b"---\nid: mine\n# user\nhello", "no front matter"),
    "Latin-1": ("---\nid: Zoë\n---\n".encode("latin-1"), "is not UTF-8"),
    "UTF-16": ("---\nid: mine\n---\n".encode("utf-16"), "is not UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "is not UTF-8"),
    "zeros": (b"\0" * 100, "no front matter"),
}

FRONTS = {
    "no mapping": ("- mine", "must be a mapping"),
    "nothing": ("", "must be a mapping"),
    "a word": ("mine", "must be a mapping"),
    "no YAML": ("id: [", "not valid YAML"),
    "a tab": ("id:\tmine\n\twording: x", "not valid YAML"),
    "too deep": ("id: " + "[" * 5000, "too deep|not valid YAML"),
    "no date": ("id: 2026-99-99", "not valid YAML"),
    "an object": ("id: !!python/object:os.system x", "not valid YAML"),
    "no id": ("wording: x", "id: Field required"),
    "no wording": ("id: x", "wording: Field required"),
    "an empty id": ("id: ''\nwording: x", "id: .*at least 1"),
    "an empty wording": ("id: x\nwording: ''", "wording: .*at least 1"),
    "an id of digits": ("id: 5\nwording: x", "id: .*string"),
    "an id that is a list": ("id: [x]\nwording: x", "id: .*string"),
    "a wording that is a mapping": ("id: x\nwording: {}", "wording: .*string"),
    "an unknown key": (f"{FRONT}\ncolour: red", "colour: unknown key"),
    "another answer": (f"{FRONT}\nanswer: essay", "answer: .*'letter'"),
    "an answer in words": (f"{FRONT}\nanswer: text", "the template asks for a text"),
    "no options": (f"{FRONT}\noptions: []", "options.0: Field required"),
    "one option": (f"{FRONT}\noptions: [A]", "options.1: Field required"),
    "three options": (f"{FRONT}\noptions: [A, B, C]", "options: .*at most 2"),
    "one option twice": (f"{FRONT}\noptions: [A, A]", "appears twice"),
    "options of digits": (f"{FRONT}\noptions: [1, 2]", "options.0: .*string"),
    "small letters": (f"{FRONT}\noptions: [a, b]", "options.0"),
    "empty options": (f"{FRONT}\noptions: ['', '']", "options.0"),
    "options that are null": (f"{FRONT}\noptions: null", "options"),
    "no tokens": (f"{FRONT}\nmax_tokens: 0", "max_tokens: .*greater than or equal to 1"),
    "too many tokens": (f"{FRONT}\nmax_tokens: 1000000000", "max_tokens: .*less than"),
    "tokens that are none": (f"{FRONT}\nmax_tokens: .nan", "'.nan' is not a finite number"),
    "a part in the front matter": (f"{FRONT}\nparts: []", "parts: unknown key"),
    "a key twice": (f"{FRONT}\nid: other", "duplicate key 'id', first in line 1"),
}

BODIES = {
    "no part": ("hello", "before the first heading"),
    "nothing after the front matter": ("", "the last part must be"),
    "another heading": ("# judge\nhello", "before the first heading"),
    "the system alone": ("# system\nhello", "the last part must be"),
    "an empty part": ("# user\n", "# user is empty"),
    "a part of blanks": ("# system\n  \n# user\n" + BOTH, "# system is empty"),
    "a part that says nothing": ("# user\n{% if false %}x{% endif %}", "# user is empty"),
    "neither option": ("# user\nWhich one?", "does not show option_a and option_b"),
    "the first option alone": ("# user\n{{ option_a }}", "does not show option_b"),
    "the first option twice": ("# user\n{{ option_a }} {{ option_a }}", "does not show option_b"),
    "labels without values": (
        "# user\n{% for label, value in option_a + option_b %}{{ label }}{% endfor %}",
        "option_a and option_b",
    ),
    "an unknown name": ("# user\n{{ colour }}", "'colour' is undefined; .*option_a"),
    "an unknown attribute": ("# user\n{{ option_a.colour.red }}", "has no attribute 'colour'"),
    "an unknown filter": ("# user\n{{ option_a | paint }}", "not valid Jinja2: No filter"),
    "an unknown test": ("# user\n{{ option_a is pretty }}", "not valid Jinja2: No test"),
    "a loop without a head": ("# user\n{% for %}", "not valid Jinja2"),
    "a loop without an end": ("# user\n{% for x in option_a %}x", "not valid Jinja2"),
    "an expression without an end": ("# user\n{{ option_a", "not valid Jinja2"),
    "a division by zero": (f"# user\n{BOTH}{{{{ 1 / 0 }}}}", "division by zero"),
    "words added to numbers": ("# user\n{{ title + 1 }}", "can only concatenate"),
    "an index beyond the end": ("# user\n{{ option_a[99][0] }}", "has no element 99"),
    "a file of elsewhere": ("# user\n{% include '/etc/passwd' %}", "no loader"),
    "an import": ("# user\n{% import 'os' as os %}", "no loader"),
    "a way out of the sandbox": ("# user\n{{ title.__class__.__mro__ }}", "unsafe"),
    "a long loop": ("# user\n{% for i in range(10 ** 9) %}x{% endfor %}", "[Rr]ange"),
    "a macro of itself": ("# user\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"),
    "brackets in brackets": ("# user\n{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "deep"),
}  # fmt: skip

ALL = {
    **FILES,
    **{
        f"front matter: {name}": (f"---\n{front}\n---\n# user\n{BOTH}".encode(), why)
        for name, (front, why) in FRONTS.items()
    },
    **{n: (f"---\n{FRONT}\n---\n{body}".encode(), why) for n, (body, why) in BODIES.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_one_line_that_names_the_file(name: str, tmp_path: Path) -> None:
    content, why = ALL[name]
    path = tmp_path / "mine.md"
    path.write_bytes(content)
    with pytest.raises(InputError, match=why) as raised:
        Template.load(str(path))
    line = str(raised.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert len(line) < 700


@pytest.mark.parametrize("name", files.available("prompts", ".md"))
def test_the_package_s_own_pass(name: str) -> None:
    Template.read(files.find("prompts", name, ".md")).check()


def test_a_template_of_ones_own_passes(tmp_path: Path) -> None:
    path = tmp_path / "mine.md"
    loop = "{% for label, value in o %}{{ label }}: {{ value | upper }}\n{% endfor %}"
    body = f"# user\n{{% macro f(o) %}}{loop}{{% endmacro %}}"
    path.write_bytes(
        f"\ufeff---\r\n{FRONT}\r\n---\r\n{body}{{{{ f(option_b) ~ f(option_a) }}}}".encode()
    )
    assert Template.load(str(path)).id == "mine"


def test_what_fails_with_some_values_alone_is_one_line_when_it_is_asked() -> None:
    space = FeatureSpace.load("penguins")
    template = Template.parse(
        f"---\n{FRONT}\n---\n# user\n{{{{ 1 / (title | length - 1) }}}}", "mine.md"
    )
    space = space.model_copy(update={"title": "x"})
    with pytest.raises(InputError, match=r"mine\.md: (float )?division by zero"):
        render(space, space.low, space.high, template)
