"""The score-based estimator: network, training, Langevin sampler and likelihood."""
