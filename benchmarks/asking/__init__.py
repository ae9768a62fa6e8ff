"""`python -m benchmarks orchestrator`: the rate of asking, and the cost of a kill."""
