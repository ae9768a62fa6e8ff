"""For writers of backends: a loopback provider, limits as providers enforce them, a contract.

# conftest.py
pytest_plugins = ["llm_elicit.testing.plugin"]

# test_mine.py
from llm_elicit.testing.contract import ServedContract

class TestMine(ServedContract):
    def backend(self, url): return MyBackend(url)
"""
