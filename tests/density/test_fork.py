"""A process forked from one in which PyTorch's threads ran fits and samples too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_FORKED = """
import os, threading
import numpy as np, torch
from llm_elicit.density import (
    Empirical, FitSettings, MixtureSettings, PosteriorSettings, SmoothSettings, Uniform,
    UtilitySettings, fit_belief, suggest_pairs,
)
from llm_elicit.density.torch_utils import one_thread

QUICK = FitSettings(utility=UtilitySettings(
    folds=2, mixture=MixtureSettings(counts=()), smooth=SmoothSettings(frequencies=0),
    posterior=PosteriorSettings(draws=8),
))

def product():
    return float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())

def everything(belief):
    rng = np.random.default_rng(0)
    density, many = Empirical(rng.normal(size=(50, 1))), rng.uniform(0, 10, (40_000, 1))
    return [
        belief.sample(100), belief.log_prob(many), belief.draws().log_prob(many[:5]),
        suggest_pairs(belief, 4)[0], density.log_prob(density.sample(40_000, rng)), product(),
    ]

def fit():
    a, b = np.random.default_rng(0).uniform(0, 10, (2, 30, 1))
    wins = abs(a - 3) < abs(b - 3)
    winners, losers = np.where(wins, a, b), np.where(wins, b, a)
    box = Uniform([0.0], [10.0])
    return fit_belief(winners, losers, sampling=box, method="utility", settings=QUICK)

assert torch.get_num_threads() == 2
product()
belief = fit()
expected = everything(belief)
inside, done = threading.Event(), threading.Event()

def hold():  # a fit that is under way in another thread at the time of the fork
    with one_thread():
        inside.set()
        done.wait()

holder = threading.Thread(target=hold)
holder.start()
inside.wait()
child = os.fork()
if not child:
    for one, other in zip(everything(fit()), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    os._exit(0)
done.set()
holder.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.get_num_threads() == 2
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_fits_samples_and_evaluates() -> None:
    """OpenMP's threads do not survive a fork: with two, any larger operation hung for ever."""
    threads = {f"{library}_NUM_THREADS": "2" for library in ("OMP", "MKL")}
    environment = {**os.environ, **threads, "OMP_WAIT_POLICY": "passive"}
    subprocess.run([sys.executable, "-c", _FORKED], env=environment, check=True, timeout=120)
