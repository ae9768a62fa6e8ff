"""`llm-elicit bench orchestrator`: the rate of asking, and the cost of a kill."""
