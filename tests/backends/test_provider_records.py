"""Every backend has a provider record, and nothing else branches on the class of a judge."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import llm_elicit
from llm_elicit.backends import PROVIDERS, provider_of
from llm_elicit.config import judges
from llm_elicit.config.judges import OWN_BACKENDS, PluginJudge


def test_every_backend_of_this_package_has_a_record() -> None:
    assert sorted(PROVIDERS) == sorted(OWN_BACKENDS)
    for name, provider in PROVIDERS.items():
        assert provider.name == name
        assert provider.settings.model_fields["backend"].annotation.__args__ == (name,)


def test_a_plug_in_gets_its_record_from_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(PluginJudge):
        free = True

    backend = SimpleNamespace(Settings=Settings, __name__="Mine")
    entry = SimpleNamespace(load=lambda: backend)
    monkeypatch.setattr(judges, "installed_backends", lambda: {"mine": [entry]})
    provider = provider_of(Settings(name="mine", backend="mine", model="m"))
    assert (provider.name, provider.settings, provider.free) == ("mine", Settings, True)
    assert provider.open_batches is None


def test_no_other_module_branches_on_the_class_of_a_judge() -> None:
    root = Path(llm_elicit.__file__).parent
    branches = re.compile(r"isinstance\([^()]*\w+Judge\b|case \w+Judge\(")
    found = [path.name for path in root.rglob("*.py") if branches.search(path.read_text())]
    assert found == []
