"""`python -m llm_elicit`, the same as `llm-elicit`."""

from llm_elicit.cli.main import main

if __name__ == "__main__":  # processes of `llm-elicit serve` import this module
    main()
