"""The preferential normalizing flow, a baseline: a flow that is the belief itself."""
