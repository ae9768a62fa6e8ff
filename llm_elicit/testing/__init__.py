"""For authors of backends: a loopback provider and a conformance kit.

# conftest.py
pytest_plugins = ["llm_elicit.testing.plugin"]

# test_mine.py
from llm_elicit.testing.contract import InCampaigns, ServedContract

class TestMine(InCampaigns, ServedContract):
    def settings(self, url):
        return {"backend": "mine", "model": "m", "base_url": url}
"""
