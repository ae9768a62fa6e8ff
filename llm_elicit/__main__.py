"""`python -m llm_elicit`, the same as `llm-elicit`."""

from llm_elicit.cli.main import main

main()
