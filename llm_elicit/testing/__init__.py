"""For writers of backends: a loopback provider, limits as providers enforce them, a contract.

# conftest.py
pytest_plugins = ["llm_elicit.testing.plugin"]

# test_mine.py
from llm_elicit.testing.contract import InCampaigns, ServedContract

class TestMine(InCampaigns, ServedContract):
    def settings(self, url):
        return {"backend": "mine", "model": "m", "base_url": url}
"""
