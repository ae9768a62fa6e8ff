"""The loopback providers that writers of backends use too."""

pytest_plugins = ["llm_elicit.testing.plugin"]
