"""The density core alone: arrays in, a belief out, no language model anywhere."""

import numpy as np

from llm_elicit.density import BeliefDensity, Uniform, fit_belief

# An expert who believes in N(1, 0.5²) × N(-1, 1), asked about 200 pairs on [-3, 3]².
rng = np.random.default_rng(0)
a, b = rng.uniform(-3, 3, (2, 200, 2))


def log_belief(x):
    return -0.5 * (((x - [1.0, -1.0]) / [0.5, 1.0]) ** 2).sum(axis=1)


noise = np.sqrt(6) / np.pi * rng.logistic(size=200)
a_wins = log_belief(a) - log_belief(b) + noise > 0
winners, losers = np.where(a_wins[:, None], a, b), np.where(a_wins[:, None], b, a)

belief = fit_belief(winners, losers, sampling=Uniform([-3, -3], [3, 3]), method="utility", seed=0)
x = belief.sample(10_000, seed=1)
print("mean", x.mean(axis=0).round(2), "sd", x.std(axis=0).round(2))
print("log density at the mode", belief.log_prob(np.array([[1.0, -1.0]])).round(2))

belief.save("belief")
print("again", BeliefDensity.load("belief").log_prob(np.array([[1.0, -1.0]])).round(2))
