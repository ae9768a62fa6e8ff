"""Campaigns and tables over HTTP that try to reach what the operator did not allow."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest

from llm_elicit._util.settings import parse_yaml, validate
from llm_elicit.client import Client
from llm_elicit.config.campaign import Campaign
from llm_elicit.errors import InputError
from llm_elicit.service.campaigns import validate_campaign
from llm_elicit.service.settings import AllowedJudge, Bounds, ServerSettings
from tests.service.serving import Served, is_in, refused, until
from tests.service.test_campaigns import campaign
from tests.service.test_security import CSV, problem

GPT = {"name": "gpt", "backend": "openai", "model": "gpt-5.4-mini"}
OWN = "http://localhost:8000/v1"
PAID = ServerSettings(
    judges=(
        AllowedJudge(backend="openai", api_key_env="OPENAI_API_KEY"),
        AllowedJudge(backend="openai", base_url=OWN, models=("tiny",)),
        AllowedJudge(backend="simulated"),
        AllowedJudge(backend="local"),
        AllowedJudge(backend="human"),
    ),
    bounds=Bounds(max_cost=5.0),
)


def read(data: Any, settings: ServerSettings = PAID) -> Campaign:
    return validate_campaign(data, settings)


def not_allowed(data: Any, said: str, settings: ServerSettings = PAID) -> None:
    with pytest.raises(InputError, match=said):
        read(data, settings)


@pytest.mark.parametrize(
    "judge",
    [
        {"base_url": "https://evil.example/v1"},
        {"base_url": "https://evil.example/v1", "api_key_env": None},
        {"base_url": OWN},  # with the key of another provider
        {"base_url": OWN, "api_key_env": None, "model": "large"},
        {"base_url": OWN + "/", "api_key_env": None, "model": "tiny"},
        {"base_url": OWN.replace("localhost", "LOCALHOST"), "api_key_env": None, "model": "tiny"},
        {"api_key_env": "AWS_SECRET_ACCESS_KEY"},
        {"api_key_env": None},
        {"extra_headers": {"X-Key": "${AWS_SECRET_ACCESS_KEY}"}},
        {"profile": "azure"},  # with the server's own login
        {"profile": "groq"},
        {"profile": "groq", "api_key_env": "OPENAI_API_KEY"},
        {"profile": "vllm", "model": "tiny"},
    ],
)
def test_an_address_or_key_that_is_not_allowed(judge: dict[str, Any]) -> None:
    limits = {"max_cost": 1.0}
    not_allowed(
        campaign(judges=[GPT | judge], limits=limits),
        "does not allow this combination of profile, base_url",
    )


def test_further_fields_could_change_what_a_request_costs() -> None:
    judge = GPT | {"extra_body": {"service_tier": "priority"}}
    not_allowed(
        campaign(judges=[judge], limits={"max_cost": 1}), "extra_body: this server does not"
    )


def test_what_is_allowed_together() -> None:
    tiny = GPT | {"base_url": OWN, "api_key_env": None, "model": "tiny"}
    (judge,) = read(campaign(judges=[tiny], limits={"max_cost": 1})).judges
    assert judge.name == "gpt"


def test_a_price_of_nothing_would_lift_the_cap() -> None:
    price = {"input": 0, "output": 0}
    not_allowed(campaign(judges=[GPT | {"price": price}], limits={"max_cost": 1}), "price")


def test_the_operators_price_is_used() -> None:
    entry = AllowedJudge(backend="openai", api_key_env="OPENAI_API_KEY",
                         price={"input": 2, "output": 3})  # fmt: skip
    settings = PAID.model_copy(update={"judges": (entry,)})
    (judge,) = read(campaign(judges=[GPT], limits={"max_cost": 1}), settings).judges
    assert judge.price.output == 3.0


@pytest.mark.parametrize(
    ("limits", "said"), [({}, "give a cap"), ({"max_cost": 6}, "allows at most 5 USD")]
)
def test_what_costs_money_needs_a_cap_below_the_servers(limits: Any, said: str) -> None:
    not_allowed(campaign(judges=[GPT], limits=limits), said)


def test_without_a_cap_of_the_server_nothing_costs_money() -> None:
    settings = PAID.model_copy(update={"bounds": Bounds()})
    not_allowed(campaign(judges=[GPT], limits={"max_cost": 1}), "costs money", settings)


@pytest.mark.parametrize("backend", ["openai", "anthropic", "local", "a-plug-in", "../x"])
def test_no_backend_is_allowed_by_default_but_the_free_ones(backend: str) -> None:
    judge = GPT | {"backend": backend}
    not_allowed(campaign(judges=[judge]), "allows no backend", ServerSettings())


def test_weights_are_no_file_of_the_machine() -> None:
    judge = {"name": "own", "backend": "local", "model": "/etc/secret.gguf"}
    not_allowed(campaign(judges=[judge]), "does not allow")


@pytest.mark.parametrize(
    "name",
    [
        "../penguins",
        "/etc/passwd",
        "datasets/penguins.yaml",
        "penguins.yaml",
        "penguins\x00.yaml",
        "../../datasets/penguins",
        "",
        "a" * 5_000,
        "~/x",
        "'; DROP TABLE answers; --",
    ],
)
def test_a_path_is_no_name(name: str) -> None:
    not_allowed(campaign(space=name), "no feature space")
    not_allowed(campaign(design={"template": name}), "no template")
    not_allowed(campaign(pilot=["v1/zero-shot", name]) if name else campaign(space=name), "no ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"runs": "/tmp"}, "runs"),
        ({"runs": "runs"}, "runs"),
        ({"journal": "postgresql://evil.example/x"}, "journal"),
        ({"part_of": "grid"}, "part_of"),
        ({"grid": {"spaces": ["/etc/passwd"]}}, "grid"),
        ({"name": "../../etc"}, "name"),
        ({"name": ".service"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"plugins": ["x"]}, "unknown key"),
    ],
)
def test_what_is_the_servers_own(more: dict[str, Any], said: str) -> None:
    not_allowed(campaign() | more, said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"design": {"pairs": 20_001}}, "design.pairs: 20,001; this server allows at most"),
        ({"design": {"pairs": 10_000, "replicates": 100}}, "questions"),
        ({"design": {"pairs": 1_000, "rounds": {"count": 1_000}}}, "rounds"),
        ({"direct": {"samples": 1_000_000}}, "direct"),
        ({"fit": {"method": "utility", "samples": 1_000_000}}, "samples"),
        (
            {"judges": [{"name": f"j{n}", "backend": "simulated"} for n in range(21)]},
            "judges: 21; this server allows at most",
        ),
        (
            {
                "judges": [
                    {"name": "j", "backend": "human", "experts": [f"e{n}" for n in range(101)]}
                ]
            },
            "experts",
        ),
        (
            {"judges": [{"name": "j", "backend": "simulated", "concurrency": 1_000}]},
            "concurrency",
        ),
        ({"judges": [{"name": "j", "backend": "simulated", "timeout": 1e9}]}, "timeout"),
    ],
)
def test_sizes_are_bounded(more: dict[str, Any], said: str) -> None:
    not_allowed(campaign(**more), said)


@pytest.mark.parametrize("data", [None, [], "text", 3, {}, {"judges": 1}, {"judges": [1, None]}])
def test_what_is_no_campaign(data: Any) -> None:
    with pytest.raises(InputError):
        read(data)


NASTY = [
    "'; DROP TABLE answers; --",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "\x1b[31m",
    "ä" * 99,
]


@pytest.mark.parametrize("text", NASTY)
def test_nasty_text_in_every_field_is_a_clear_refusal(
    served: Served, text: str, tmp_path: Path
) -> None:
    """Also where text is accepted it is kept as text: nothing is executed, and nothing is a 500."""
    fields: list[dict[str, Any]] = [
        {"name": text},
        {"space": text},
        {"design": {"template": text}},
        {"judges": [{"name": text, "backend": "simulated"}]},
        {"judges": [{"name": "j", "backend": text}]},
        {"given": {text: text}},
        {"given": {"species": text}},
        {"fit": {"method": text}},
        {"journal": text},
        {text: text},
    ]
    with served.api() as client, served.client() as raw:
        for number, field in enumerate(fields):
            refused(422, client.start, campaign(f"nasty{number}") | field)
        for path in (f"/api/v1/spaces/{text}", f"/api/v1/campaigns/{text}", f"/judge/{text}"):
            assert raw.get(quote(path)).status_code in (404, 422)
        refused(422, client.upload, text, table(tmp_path, CSV))


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("application/json", "{", "not valid JSON"),
        ("application/json", '{"name": NaN}', "finite"),
        ("application/json", '{"name": "a", "name": "b"}', "duplicate key"),
        ("application/json", "[" * 100_000, "not valid JSON"),
        ("application/json", '{"seed": ' + "9" * 5_000 + "}", "JSON"),
        ("application/yaml", "a: [", "not valid YAML"),
        ("application/yaml", "!!python/object/apply:os.system ['true']", "YAML"),
        ("application/yaml", "a: &a [*a]", "YAML"),
        ("application/yaml", "a: 1\na: 2", "duplicate key"),
        (
            "application/yaml",
            "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n"
                for n in range(8)
            ),
            "YAML",
        ),
        ("application/yaml", b"\xff\xfe", "UTF-8"),
    ],
)
def test_text_that_is_no_campaign(served: Served, kind: str, body: Any, said: str) -> None:
    """By raw HTTP: the client writes JSON itself, and sends YAML as a file has it."""
    with served.client() as client:
        answer = client.post("/api/v1/campaigns", content=body, headers={"content-type": kind})
        assert said in problem(answer, 422)


def test_a_message_is_the_command_lines(served: Served) -> None:
    data = campaign(design={"pairs": 1})
    with pytest.raises(InputError) as error:
        validate_campaign(data, ServerSettings())
    with served.api() as client:
        assert refused(422, client.start, data) == str(error.value)


HOSTILE = {
    "class": ("{{ option_a.__class__.__mro__ }} {{ option_b }}", "unsafe"),
    "text": ("{{ ''.__class__ }} {{ option_a }} {{ option_b }}", "unsafe"),
}


def test_a_template_that_reads_attributes(served: Served) -> None:
    """Such a template in the operator's own folder is refused."""
    (served.folder / "prompts").mkdir()
    for name, (template, _) in HOSTILE.items():
        text = f"---\nid: {name}\nwording: bad\n---\n# user\n{template}\n"
        (served.folder / "prompts" / f"{name}.md").write_text(text)
    with served.api() as client:
        for name, (_, said) in HOSTILE.items():
            assert said in refused(422, client.start, campaign(design={"template": name}))


def test_no_template_can_be_sent(served: Served) -> None:
    with served.api() as client:
        for text in ("{{ ''.__class__ }}", "---\nid: x\nwording: y\n---\n# user\nhello"):
            sent = campaign(design={"template": text})
            assert "no template" in refused(422, client.start, sent)


def archive(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.csv", content)
    return made.getvalue()


def parquet() -> bytes:
    made = io.BytesIO()
    pd.DataFrame({"a": np.arange(9)}).to_parquet(made)
    return made.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        archive(b"0" * 20_000_000),
        gzip.compress(b"0" * 20_000_000),
        parquet(),
        b"\xd0\xcf\x11\xe0 an old workbook",
        b"a,b\n1,\x00\n",
        b"",
        b"a,b\n",
        b"a,a\n1,2\n",
        b"1,2\n3,4\n",
        b"a," * 20_000 + b"b\n",
        b"a\n" + b"1\n" * 5_100_000,
        b'a,b\n"' + b"x" * 1_000_000,
    ],
    ids=["zip", "gzip", "parquet", "xls", "null", "empty", "header", "duplicate key", "numbers",
         "columns", "rows", "quote"],
)  # fmt: skip
def test_a_table_that_is_none_or_a_bomb(served: Served, content: bytes, tmp_path: Path) -> None:
    with served.api() as client:
        began = served.clock(workers=True)
        said = refused(422, client.upload, "bomb", table(tmp_path, content))
        assert "/" not in said.replace("'llm-elicit[excel]'", "").partition(":")[0]
        assert served.clock(workers=True) - began < 20.0
        refused(404, client.space, "bomb")


def table(folder: Path, content: bytes | str) -> Path:
    """Return the path of a new CSV file."""
    path = folder / "table.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("kind", ["application/zip", "application/vnd.ms-excel", "", "text/html"])
def test_only_text_is_read(served: Served, kind: str) -> None:
    """By raw HTTP: about a header."""
    with served.client() as client:
        answer = client.post("/api/v1/spaces?name=b", content=CSV, headers={"content-type": kind})
        problem(answer, 415)


@pytest.fixture(scope="module")
def uploaded(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a service with an uploaded table."""
    with served.api() as client:
        drafted = client.upload("weights", table(tmp_path_factory.mktemp("tables"), CSV))
        assert [column.column for column in drafted.columns] == ["mass", "sex"]
        assert drafted.rows.endswith("rows used")
        yield client


def test_an_uploaded_space_can_be_edited_used_and_removed(uploaded: Client) -> None:
    text = uploaded.space("weights").yaml
    edited = text.replace("label: mass", "label: body mass")
    assert edited != text
    uploaded.edit_space("weights", edited)
    assert "body mass" in uploaded.space("weights").yaml
    dry = uploaded.dry_run(campaign("mine", space="weights"))
    assert "body mass" in dry.examples[0][-1].content
    listed = {line.name: line.uploaded for line in uploaded.spaces()}
    assert listed["weights"] is True
    assert listed["penguins"] is False
    refused(404, uploaded.delete_space, "penguins")


def test_missing_cells_of_an_uploaded_table_can_be_an_answer(
    served: Served, tmp_path: Path
) -> None:
    rows = [f"{20 + n % 50},{'' if n % 5 == 0 else 1000 * (n + 1)}" for n in range(200)]
    survey = table(tmp_path, "\n".join(["age,income", *rows]))
    with served.api() as client:
        drafted = client.upload("survey", survey, not_stated=["income"])
        assert "not stated" in drafted.yaml
        assert drafted.rows.startswith("200 of 200")
        said = refused(422, client.upload, "other", survey, not_stated=["nothing"])
        assert "nothing" in said


def test_the_marks_of_an_uploaded_table_can_be_named(served: Served, tmp_path: Path) -> None:
    rows = [f"{20 + n % 50};{n},{n % 10}25" for n in range(200)]  # 1,225 or 1225?
    survey = table(tmp_path, "\n".join(["age;income", *rows]))
    with served.api() as client:
        ranges = [
            client.upload(name, survey, sep=";", decimal=mark).columns[1].range
            for name, mark in (("thousands", "."), ("decimals", ","))
        ]
    assert ranges[0] != ranges[1]
    assert "000" in ranges[0]


def test_a_space_stays_while_a_campaign_asks_about_it(uploaded: Client, tmp_path: Path) -> None:
    """Without it the campaign could neither go on nor be shown or deleted."""
    text = uploaded.upload("used", table(tmp_path, CSV)).yaml
    run = uploaded.start(campaign("uses", space="used"), paused=True)
    until(run, is_in("paused"))
    for change in (
        partial(uploaded.delete_space, "used"),
        partial(uploaded.edit_space, "used", text),
    ):
        assert "is used by the campaign 'uses'" in refused(409, change)
    run.delete()
    said = refused(409, uploaded.delete_space, "used")  # the campaign can be restored
    assert "delete the campaign with purge=true" in said
    run.delete(purge=True)
    uploaded.delete_space("used")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("file: weights.csv", "file: /etc/passwd", "table.file"),
        ("file: weights.csv", "file: ../../secret", "table.file"),
        ("name: weights", "name: other", "name"),
        ("name: weights", "name: weights\nfolder: /etc", "folder"),
        ("name: weights", "name: [", "YAML"),
        ("rows: 60", "rows: 61", "rows"),
    ],
)
def test_an_edit_cannot_name_files(uploaded: Client, old: str, new: str, said: str) -> None:
    text = uploaded.space("weights").yaml
    assert old in text
    assert said in refused(422, uploaded.edit_space, "weights", text.replace(old, new, 1))
    assert uploaded.space("weights").yaml == text


def test_a_space_is_uploaded_once(uploaded: Client, tmp_path: Path) -> None:
    for name in ("weights", "penguins"):
        assert "exists" in refused(409, uploaded.upload, name, table(tmp_path, CSV))


def test_the_servers_file_of_the_documentation_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.S | re.M)
    settings = validate(ServerSettings, parse_yaml(text, "server.yaml"), "server.yaml")
    assert settings.bounds.max_cost == 20.0
    claude = {"name": "c", "backend": "anthropic", "model": "claude-haiku-4-5"}
    assert read(campaign(judges=[claude], limits={"max_cost": 20}), settings).judges
    not_allowed(
        campaign(judges=[claude | {"model": "x"}], limits={"max_cost": 1}), "model", settings
    )
