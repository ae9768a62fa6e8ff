"""Every backend keeps the contract."""

import pytest

from llm_elicit.backends import Backend, open_backend
from llm_elicit.config.judges import AnthropicJudge, LocalJudge, OpenAIJudge, SimulatedJudge
from llm_elicit.spaces.features import FeatureSpace
from llm_elicit.testing.contract import KEY, BackendContract, ServedContract, a_request

SPACE = FeatureSpace.load("penguins")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)


class TestAnthropic(ServedContract):
    def backend(self, url: str) -> Backend:
        judge = AnthropicJudge(
            name="claude", backend="anthropic", model="claude-haiku-4-5", base_url=url
        )
        return open_backend(judge, SPACE)


class TestOpenAI(ServedContract):
    def backend(self, url: str) -> Backend:
        judge = OpenAIJudge(
            name="gpt", backend="openai", model="gpt-4.1-mini", base_url=f"{url}/v1"
        )
        return open_backend(judge, SPACE)


class TestSimulated(BackendContract):
    def backend(self, url: str) -> Backend:
        return open_backend(SimulatedJudge(name="expert", backend="simulated"), SPACE)

    def test_it_answers_the_same_again(self) -> None:
        replies = {self.ask("", a_request()).text for _ in range(3)}
        assert len(replies) == 1
        assert replies <= {"A", "B"}


@pytest.mark.local_model
class TestLocal(BackendContract):
    def backend(self, url: str) -> Backend:
        return open_backend(LocalJudge(name="small", backend="local"), SPACE)
