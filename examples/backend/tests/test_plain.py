"""The backend keeps the contract: every test here is inherited."""

from typing import Any

from llm_elicit.testing.contract import InCampaigns, ServedContract

pytest_plugins = ["llm_elicit.testing.plugin"]


class TestPlain(InCampaigns, ServedContract):
    def settings(self, url: str) -> dict[str, Any]:
        return {"backend": "plain", "model": "my-model", "base_url": f"{url}/v1"}
