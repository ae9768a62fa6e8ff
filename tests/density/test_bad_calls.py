"""Calls that cannot be right: each is refused in one line that names the argument, and at once."""

from __future__ import annotations

# ruff: noqa: F401 - the calls name them
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from llm_elicit.density import (
    BETWEEN_ROUNDS,
    BeliefDensity,
    DensityError,
    Empirical,
    Evidence,
    GaussianMixture,
    Noise,
    Power,
    Ranges,
    SuggestSettings,
    Uniform,
    band,
    estimate_level,
    fit_belief,
    fit_evidence,
    fit_power,
    fit_warnings,
    simulate_choices,
    suggest_pairs,
)

pytestmark = pytest.mark.usefixtures("few_particles")

N = 40
RNG = np.random.default_rng(0)
ONE, OTHER = RNG.uniform(-3, 3, (2, N, 2))
NEARER = np.square(ONE - 1).sum(1) < np.square(OTHER - 1).sum(1)
W, L = np.where(NEARER[:, None], ONE, OTHER), np.where(NEARER[:, None], OTHER, ONE)
BOX = Uniform([-3.0, -3.0], [3.0, 3.0])
SETS = RNG.uniform(-3, 3, (N, 3, 2))
RANKING = np.argsort(RNG.random((N, 3)), axis=1)
FREE = (-np.inf, np.inf)
NAN = float("nan")


def with_one(array: Any, value: Any) -> Any:
    """The array as objects, with another first entry."""
    changed = np.array(array, dtype=object)
    changed[(0,) * changed.ndim] = value
    return changed


def masked(array: Any) -> Any:
    """The array with its first row masked."""
    hidden = np.ma.masked_array(array, mask=np.zeros(np.shape(array), bool))
    hidden[0] = np.ma.masked
    return hidden


def fit(winners: Any = W, losers: Any = L, **changes: Any) -> BeliefDensity:
    arguments = {"sampling": BOX, "method": "utility", "settings": BETWEEN_ROUNDS} | changes
    return fit_belief(winners, losers, **arguments)


def evidence(a: Any = ONE, b: Any = OTHER, **changes: Any) -> Evidence:
    return Evidence.comparisons(a, b, **({"preference": 1.0} | changes))


@pytest.fixture(scope="module")
def belief() -> BeliefDensity:
    return fit()


# What is called, and what the message names. `B` is a belief, `D` its draws.
CALLS: list[tuple[str, str]] = [
    # winners and losers
    ("fit(None)", "winners"),
    ("fit('text')", "winners"),
    ("fit([])", "winners"),
    ("fit([[]])", "winners"),
    ("fit(W[:, 0])", "winners"),
    ("fit(W[None])", "winners"),
    ("fit(with_one(W, NAN))", "winners"),
    ("fit(with_one(W, np.inf))", "winners"),
    ("fit(with_one(W, None))", "winners"),
    ("fit(with_one(W, '1.0'))", "winners"),
    ("fit(with_one(W, pd.NA))", "winners"),
    ("fit(with_one(W, 10**400))", "winners"),
    ("fit(W.astype(str))", "winners"),
    ("fit(W.astype(complex))", "winners"),
    ("fit(W.astype('M8[s]'))", "winners"),
    ("fit(W.astype('m8[s]'))", "winners"),
    ("fit(masked(W))", "winners"),
    ("fit({'x': 1})", "winners"),
    ("fit({1.0, 2.0})", "winners"),
    ("fit(row for row in W)", "winners"),
    ("fit([[1.0, 2.0], [3.0]])", "winners"),
    ("fit(W, L[:5])", "losers"),
    ("fit(W, None)", "losers"),
    ("fit(W, masked(L))", "losers"),
    ("fit(W[:, :1], L[:, :1])", "features"),
    ("fit(W + 10, L)", "winners"),
    ("fit(W[:1], L[:1])", "comparisons"),
    ("fit(pd.DataFrame(W, columns=['x', 'y']), pd.DataFrame(L, columns=['x', 'z']))", "losers"),
    ("fit(pd.DataFrame(W, columns=['x', 'x']), pd.DataFrame(L, columns=['x', 'x']))", "winners"),
    ("fit(pd.DataFrame(W).assign(z='text'), L)", "winners"),
    ("fit(pd.DataFrame(W).astype('Float64').mask(pd.DataFrame(W) > 1), L)", "winners"),
    ("fit(torch.tensor(W).to(torch.complex128), L)", "winners"),
    # sampling, method, noise, settings, progress
    ("fit(sampling=None)", "sampling"),
    ("fit(sampling='uniform')", "sampling"),
    ("fit(sampling=Uniform)", "sampling"),
    ("fit(sampling={'low': [0, 0]})", "sampling"),
    ("fit(method=None)", "method"),
    ("fit(method=3)", "method"),
    ("fit(method='nope')", "method"),
    ("fit(method=['utility'])", "method"),
    ("fit(noise='gumbel')", "noise"),
    ("fit(noise=1.0)", "noise"),
    ("fit(noise=Noise)", "noise"),
    ("fit(settings={})", "settings"),
    ("fit(settings='quick')", "settings"),
    ("fit(progress=3)", "progress"),
    # weights
    ("fit(weights=['1'] * N)", "weights"),
    ("fit(weights='heavy')", "weights"),
    ("fit(weights=with_one(np.ones(N), None))", "weights"),
    ("fit(weights=with_one(np.ones(N), -1))", "weights"),
    ("fit(weights=with_one(np.ones(N), NAN))", "weights"),
    ("fit(weights=with_one(np.ones(N), np.inf))", "weights"),
    ("fit(weights=np.ones((N, 1)))", "weights"),
    ("fit(weights=np.ones(N + 1))", "weights"),
    ("fit(weights=2.0)", "weights"),
    ("fit(weights=np.ones(N, complex))", "weights"),
    ("fit(weights=masked(np.ones(N)))", "weights"),
    ("fit(weights=np.full(N, 1e300))", "weights"),
    ("fit(weights=np.full(N, 1e-300))", "weights"),
    ("fit(weights=np.zeros(N))", "weights"),
    ("fit(weights=[])", "weights"),
    # log-odds
    ("fit(log_odds=['1'] * N)", "log_odds"),
    ("fit(log_odds=with_one(np.ones(N), NAN))", "log_odds"),
    ("fit(log_odds=with_one(np.ones(N), None))", "log_odds"),
    ("fit(log_odds=np.ones(N + 1))", "log_odds"),
    ("fit(log_odds=1.0)", "log_odds"),
    ("fit(log_odds=np.full(N, 1e300))", "log_odds"),
    ("fit(log_odds=np.ones(N), weights=np.ones(N))", "weights"),
    ("fit(masked(W), L, log_odds=np.ones(N))", "first"),
    # seeds
    ("fit(seed='1')", "seed"),
    ("fit(seed=1.5)", "seed"),
    ("fit(seed=1.0)", "seed"),
    ("fit(seed=None)", "seed"),
    ("fit(seed=True)", "seed"),
    ("fit(seed=-1)", "seed"),
    ("fit(seed=2**64)", "seed"),
    ("fit(seed=[1])", "seed"),
    ("fit(seed=NAN)", "seed"),
    # evidence
    ("evidence(None)", "a "),
    ("evidence(ONE, OTHER[:3])", "b "),
    ("evidence(masked(ONE))", "a"),
    ("evidence(with_one(ONE, NAN))", "a"),
    ("evidence(with_one(ONE, None))", "a"),
    ("evidence(ONE.astype(str))", "a "),
    ("evidence(preference='a')", "preference"),
    ("evidence(preference=['1'] * N)", "preference"),
    ("evidence(preference=NAN)", "preference"),
    ("evidence(preference=2)", "preference"),
    ("evidence(preference=-0.1)", "preference"),
    ("evidence(preference=None)", "preference"),
    ("evidence(preference=np.ones(N - 1))", "preference"),
    ("evidence(preference=masked(np.ones(N)))", "preference"),
    ("evidence(preference=1j)", "preference"),
    ("evidence(tie=['False'] * N)", "tie"),
    ("evidence(tie='no')", "tie"),
    ("evidence(tie=NAN)", "tie"),
    ("evidence(tie=with_one(np.zeros(N), NAN))", "tie"),
    ("evidence(tie=with_one(np.zeros(N), None))", "tie"),
    ("evidence(tie=2)", "tie"),
    ("evidence(tie=None)", "tie"),
    ("evidence(tie=np.zeros(N - 1))", "tie"),
    ("evidence(tie=masked(np.zeros(N, bool)))", "tie"),
    ("evidence(first=['True'] * N)", "first"),
    ("evidence(first=NAN)", "first"),
    ("evidence(first=[0.5] * N)", "first"),
    ("evidence(first=np.ones(N + 1))", "first"),
    ("evidence(weights=['1'] * N)", "weights"),
    ("evidence(weights=-1)", "weights"),
    ("evidence(weights=NAN)", "weights"),
    ("evidence(weights=1e300)", "weights"),
    ("evidence(weights=np.ones(3))", "weights"),
    ("evidence(judge=None)", "judge"),
    ("evidence(judge='')", "judge"),
    ("evidence(judge=3)", "judge"),
    ("evidence(judge=['one'] * N)", "judge"),
    ("evidence() + 3", "Evidence"),
    ("evidence() + evidence(ONE[:, :1], OTHER[:, :1])", "features"),
    ("Evidence.log_odds(ONE, OTHER, None)", "log_odds"),
    ("Evidence.log_odds(ONE, OTHER, ['1'] * N)", "log_odds"),
    ("Evidence.log_odds(ONE, OTHER, np.ones((N, 2)))", "log_odds"),
    ("Evidence.log_odds(with_one(ONE, NAN), OTHER, np.ones(N))", "first"),
    ("Evidence.probabilities(ONE, OTHER, 1.5)", "probability"),
    ("Evidence.probabilities(ONE, OTHER, '0.5')", "probability"),
    ("Evidence.probabilities(ONE, OTHER, 0.5, rounding='0.01')", "rounding"),
    ("Evidence.probabilities(ONE, OTHER, 0.5, rounding=0)", "rounding"),
    ("Evidence.probabilities(ONE, OTHER, 0.5, rounding=NAN)", "rounding"),
    ("Evidence.probabilities(ONE, OTHER, 0.5, rounding=None)", "rounding"),
    ("Evidence.rankings(SETS, RANKING.astype(float))", "ranking"),
    ("Evidence.rankings(SETS, RANKING.astype(str))", "ranking"),
    ("Evidence.rankings(SETS, RANKING.astype(bool))", "ranking"),
    ("Evidence.rankings(SETS, RANKING + 1)", "ranking"),
    ("Evidence.rankings(SETS, RANKING - 1)", "ranking"),
    ("Evidence.rankings(SETS, np.zeros((N, 2), int))", "ranking"),
    ("Evidence.rankings(SETS, RANKING[0])", "ranking"),
    ("Evidence.rankings(SETS, RANKING[:3])", "ranking"),
    ("Evidence.rankings(SETS, None)", "ranking"),
    ("Evidence.rankings(SETS, masked(RANKING))", "ranking"),
    ("Evidence.rankings(SETS[:, :1], np.zeros((N, 1), int))", "points"),
    ("Evidence.rankings(SETS[:, 0], RANKING)", "points"),
    ("Evidence.rankings(with_one(SETS, NAN), RANKING)", "points"),
    ("Evidence.rankings(SETS, RANKING, positions='no')", "positions"),
    ("fit_evidence(None, sampling=BOX)", "evidence"),
    ("fit_evidence((W, L), sampling=BOX)", "evidence"),
    ("fit_evidence(evidence(), sampling=None)", "sampling"),
    ("fit_evidence(evidence(tie=True), sampling=BOX, method='score')", "method"),
    ("fit_evidence(evidence(), sampling=BOX, seed='x')", "seed"),
    ("fit_evidence(evidence(), sampling=BOX, noise='x')", "noise"),
    ("fit_evidence(evidence(), sampling=BOX, settings=3)", "settings"),
    # sampling densities
    ("Uniform(None, [1])", "low"),
    ("Uniform(['a'], [1])", "low"),
    ("Uniform(['0'], ['1'])", "low"),
    ("Uniform(0, 1)", "low"),
    ("Uniform([], [])", "low"),
    ("Uniform([[0]], [[1]])", "low"),
    ("Uniform([NAN], [1])", "low"),
    ("Uniform([0], [np.inf])", "high"),
    ("Uniform([0, 0], [1])", "high"),
    ("Uniform([1], [0])", "low"),
    ("Uniform([-1e308], [1e308])", "low"),
    ("Uniform([1e16], [1e16 + 2], log=[False])", "high"),
    ("Uniform([0], [1], log=['False'])", "log"),
    ("Uniform([1], [2], log=[NAN])", "log"),
    ("Uniform([1], [2], log=True)", "log"),
    ("Uniform([0], [1], log=[True])", "low"),
    ("Uniform([0], [1.5], categorical=[True])", "categor"),
    ("Uniform([0], [2], categorical=[2])", "categorical"),
    ("Uniform(masked([0.0, 1.0]), [2, 2])", "low"),
    ("BOX.sample('3', RNG)", "n"),
    ("BOX.sample(2.0, RNG)", "n"),
    ("BOX.sample(-1, RNG)", "n"),
    ("BOX.sample(3, 0)", "rng"),
    ("BOX.log_prob([[NAN, 0]])", "points"),
    ("BOX.log_prob([0.0, 1.0])", "points"),
    ("BOX.log_prob('text')", "points"),
    ("BOX.contains(None)", "points"),
    ("BOX.to_cube([['a', 'b']])", "points"),
    ("BOX.from_cube([[1.0]])", "points"),
    ("GaussianMixture([0.5], [[0]], [[[1]]])", "weights"),
    ("GaussianMixture([2, -1], [[0], [1]], [[[1]], [[1]]])", "weights"),
    ("GaussianMixture(['1'], [[0]], [[[1]]])", "weights"),
    ("GaussianMixture(None, [[0]], [[[1]]])", "weights"),
    ("GaussianMixture([], [], [])", "weights"),
    ("GaussianMixture([1.0], [[NAN]], [[[1]]])", "means"),
    ("GaussianMixture([1.0], [0], [[[1]]])", "means"),
    ("GaussianMixture([1.0], [['a']], [[[1]]])", "means"),
    ("GaussianMixture([1.0], [[0]], [[[-1]]])", "covariances"),
    ("GaussianMixture([1.0], [[0, 0]], [[[1, 2], [0, 1]]])", "covariances"),
    ("GaussianMixture([1.0], [[0]], [[[np.inf]]])", "covariances"),
    ("GaussianMixture([1.0], [[0]], None)", "covariances"),
    ("GaussianMixture([1.0], [[0]], [[[1]]]).log_prob([[NAN]])", "points"),
    ("GaussianMixture([1.0], [[0]], [[[1]]]).sample(1.5, RNG)", "n"),
    ("Empirical(None)", "points"),
    ("Empirical(W[:5])", "points"),
    ("Empirical(W[:, 0])", "points"),
    ("Empirical(with_one(W, NAN))", "points"),
    ("Empirical(W.astype(str))", "points"),
    ("Empirical(masked(W))", "points"),
    ("Empirical(np.ones((30, 1)))", "feature 0"),
    ("Empirical(W, low=['a', 'b'])", "low"),
    ("Empirical(W, low=[0, 0])", "points"),
    ("Empirical(W, low=[9, 9], high=[0, 0])", "low"),
    ("Empirical(W, high=[NAN, 3])", "high"),
    ("Empirical(W, high=3)", "high"),
    ("Empirical(W).log_prob([[NAN, 0]])", "points"),
    ("Empirical(W * 1e300)", "points"),
    # noise
    ("Noise('nope')", "family"),
    ("Noise(3)", "family"),
    ("Noise(['gumbel'])", "family"),
    ("Noise('gumbel', '1')", "level"),
    ("Noise('gumbel', None)", "level"),
    ("Noise('gumbel', True)", "level"),
    ("Noise('gumbel', 0)", "level"),
    ("Noise('gumbel', NAN)", "level"),
    ("Noise('gumbel', 1e300)", "level"),
    ("Noise('gumbel', 1e-300)", "level"),
    ("Noise('gumbel', 1.0, '0')", "ties"),
    ("Noise('gumbel', 1.0, -1)", "ties"),
    ("Noise('normal', 1.0, 0.5)", "ties"),
    ("estimate_level([])", "differences"),
    ("estimate_level(['a'])", "differences"),
    ("estimate_level([1.0, NAN, -1.0])", "differences"),
    ("estimate_level(None)", "differences"),
    ("estimate_level([1.0, -1.0], 'nope')", "family"),
    ("simulate_choices(np.zeros(3), np.zeros(2), Noise(), RNG)", "utility"),
    ("simulate_choices(['a'], [0.0], Noise(), RNG)", "utility"),
    ("simulate_choices([NAN], [0.0], Noise(), RNG)", "utility"),
    ("simulate_choices([0.0], [0.0], 'gumbel', RNG)", "noise"),
    ("simulate_choices([0.0], [0.0], Noise(), 0)", "rng"),
    # a belief
    ("B.sample(2.0)", "n"),
    ("B.sample('3')", "n"),
    ("B.sample(True)", "n"),
    ("B.sample(None)", "n"),
    ("B.sample(-1)", "n"),
    ("B.sample(NAN)", "n"),
    ("B.sample(10**13)", "n"),
    ("B.sample(3, seed='1')", "seed"),
    ("B.sample(3, seed=1.0)", "seed"),
    ("B.sample(3, seed=None)", "seed"),
    ("B.sample(3, seed=2**70)", "seed"),
    ("B.log_prob([[NAN, 0.0]])", "x"),
    ("B.log_prob(None)", "x"),
    ("B.log_prob('text')", "x"),
    ("B.log_prob([0.0, 1.0])", "x"),
    ("B.log_prob([[0.0]])", "x"),
    ("B.log_prob([['0', '1']])", "x"),
    ("B.log_prob([[None, 0.0]])", "x"),
    ("B.log_prob(W.astype(complex))", "x"),
    ("B.log_prob(masked(W))", "x"),
    ("B.utility([[9.0, 0.0]])", "support"),
    ("B.utility([[NAN, 0.0]])", "x"),
    ("B.utility([0.0])", "x"),
    ("B.utilities([[NAN, 0.0]])", "x"),
    ("B.utilities([0.0])", "x"),
    ("B.utilities([[9.0, 0.0]])", "support"),
    ("B.quantile(2)", "levels"),
    ("B.quantile(-0.1)", "levels"),
    ("B.quantile(NAN)", "levels"),
    ("B.quantile('0.5')", "levels"),
    ("B.quantile([])", "levels"),
    ("B.quantile(None)", "levels"),
    ("B.quantile([[0.5]])", "levels"),
    ("B.credible_region(0)", "level"),
    ("B.credible_region(1)", "level"),
    ("B.credible_region('0.9')", "level"),
    ("B.credible_region(NAN)", "level"),
    ("B.credible_region(None)", "level"),
    ("B.credible_region(True)", "level"),
    ("B.credible_region(0.9).contains([[NAN, 0.0]])", "x"),
    ("B.sample_given({5: 0.0}, 3)", "given"),
    ("B.sample_given({'x': 0.0}, 3)", "given"),
    ("B.sample_given({0.5: 0.0}, 3)", "given"),
    ("B.sample_given({-1: 0.0}, 3)", "given"),
    ("B.sample_given({0: NAN}, 3)", "given"),
    ("B.sample_given({0: 'a'}, 3)", "given"),
    ("B.sample_given({0: None}, 3)", "given"),
    ("B.sample_given({0: 99.0}, 3)", "given"),
    ("B.sample_given({0: 0.0, 1: 0.0}, 3)", "given"),
    ("B.sample_given([0.0], 3)", "given"),
    ("B.sample_given(None, 3)", "given"),
    ("B.sample_given({0: 0.0}, 1.5)", "n"),
    ("B.sample_given({0: 0.0}, -1)", "n"),
    ("B.sample_given({0: 0.0}, 3, seed='x')", "seed"),
    ("B.tempered(0)", "power"),
    ("B.tempered(NAN)", "power"),
    ("B.tempered('2')", "power"),
    ("B.tempered(None)", "power"),
    ("B.tempered(True)", "power"),
    ("B.tempered(1e300)", "power"),
    ("B.tempered(1e-300)", "power"),
    ("B.tempered(2.0, seed='x')", "seed"),
    ("B.draws(log_level_sd='x')", "log_level_sd"),
    ("B.draws(log_level_sd=NAN)", "log_level_sd"),
    ("B.draws(log_level_sd=-1)", "log_level_sd"),
    ("B.draws(seed=1.5)", "seed"),
    ("B.draws(progress=3)", "progress"),
    ("B.at_noise(0)", "level"),
    ("B.at_noise('1')", "level"),
    ("B.at_noise(NAN)", "level"),
    ("B.at_noise(1.0, seed=-1)", "seed"),
    ("B.sample_at_noise(-1, 1.0)", "n"),
    ("B.sample_at_noise(1, 0)", "level"),
    ("B.sample_at_noise(1, 1.0, seed=-1)", "seed"),
    ("B.save(None)", "folder"),
    ("B.save(3)", "folder"),
    ("BeliefDensity.load(3)", "folder"),
    ("BeliefDensity.load(None)", "folder"),
    ("BeliefDensity.load('nowhere')", "nowhere"),
    ("D.quantile(2)", "levels"),
    ("D.quantile([])", "levels"),
    ("D.cdf([0.0])", "values"),
    ("D.cdf([[NAN, 0.0]])", "values"),
    ("D.marginal(9, [0.0, 1.0])", "feature"),
    ("D.marginal('x', [0.0, 1.0])", "feature"),
    ("D.marginal(0, [])", "edges"),
    ("D.marginal(0, [1.0, 0.0])", "edges"),
    ("D.marginal(0, [0.0])", "edges"),
    ("D.shares(9)", "feature"),
    ("D.shares(0)", "feature"),
    ("D.log_prob([[NAN, 0.0]])", "x"),
    ("D.log_prob([0.0])", "x"),
    ("band([])", "values"),
    ("band(None)", "values"),
    ("band('text')", "values"),
    ("band([1.0, NAN])", "values"),
    ("band([1.0, 2.0], 2)", "level"),
    ("band([1.0, 2.0], '0.9')", "level"),
    ("band([1.0, 2.0], None)", "level"),
    # the next pairs, and the power
    ("suggest_pairs(None, 3)", "belief"),
    ("suggest_pairs(B, '3')", "n"),
    ("suggest_pairs(B, 2.5)", "n"),
    ("suggest_pairs(B, 0)", "n"),
    ("suggest_pairs(B, True)", "n"),
    ("suggest_pairs(B, 10**12)", "n"),
    ("suggest_pairs(B, 3, seed='x')", "seed"),
    ("suggest_pairs(B, 3, settings={})", "settings"),
    ("SuggestSettings(uniform=2.0)", "uniform"),
    ("SuggestSettings(uniform='x')", "uniform"),
    ("SuggestSettings(candidates=0)", "candidates"),
    ("SuggestSettings(temperature=0.0)", "temperature"),
    ("fit_power(None, points=W)", "belief"),
    ("fit_power(B)", "source"),
    ("fit_power(B, points=None)", "source"),
    ("fit_power(B, points=[])", "points"),
    ("fit_power(B, points=W[:, 0])", "points"),
    ("fit_power(B, points=with_one(W, NAN))", "points"),
    ("fit_power(B, points=W.astype(str))", "points"),
    ("fit_power(B, points=W + 9)", "points"),
    ("fit_power(B, points=masked(W))", "points"),
    ("fit_power(B, quantiles=[0.5])", "quantiles"),
    ("fit_power(B, quantiles={})", "quantiles"),
    ("fit_power(B, quantiles={0: 0.5})", "quantiles"),
    ("fit_power(B, quantiles={0: {}})", "quantiles"),
    ("fit_power(B, quantiles={'x': {0.5: 0.0}})", "quantiles"),
    ("fit_power(B, quantiles={0.5: {0.5: 0.0}})", "quantiles"),
    ("fit_power(B, quantiles={9: {0.5: 0.0}})", "quantiles"),
    ("fit_power(B, quantiles={0: {'0.5': 0.0}})", "quantile"),
    ("fit_power(B, quantiles={0: {0.5: 'a'}})", "quantile"),
    ("fit_power(B, quantiles={0: {0.5: NAN}})", "quantile"),
    ("fit_power(B, quantiles={0: {0.5: 99.0}})", "quantile"),
    ("fit_power(B, quantiles={0: {0.0: 0.0}})", "quantile"),
    ("fit_power(B, quantiles={0: {NAN: 0.0}})", "quantile"),
    ("fit_power(B, quantiles={0: {0.2: 1.0, 0.8: 0.0}})", "quantile"),
    ("fit_power(B, ranges=(W, L))", "ranges"),
    ("fit_power(B, ratios=3)", "ratios"),
    ("fit_power(B, ratios=(W, L))", "ratios"),
    ("fit_power(B, ratios='abc')", "ratios"),
    ("fit_power(B, ratios=(W, L, ['1'] * N))", "ratios"),
    ("fit_power(B, ratios=(W, L[:3], np.ones(N)))", "ratios"),
    ("fit_power(B, ratios=(W, L, np.full(N, NAN)))", "ratios"),
    ("fit_power(B, ratios=(W, L, np.zeros(N)))", "ratios"),
    ("fit_power(B, points=W, seed='x')", "seed"),
    ("Ranges(None, None, None)", "Ranges"),
    ("Ranges([[(0, 1), FREE]], [[(2, 3), FREE]], ['0'])", "log_odds"),
    ("Ranges([[(0, 1), FREE]], [[(2, 3), FREE]], [NAN])", "log_odds"),
    ("Ranges([[(1, 0), FREE]], [[(2, 3), FREE]], [0.1])", "first"),
    ("Ranges([[(NAN, 0), FREE]], [[(2, 3), FREE]], [0.1])", "first"),
    ("Ranges([[(0, 1)]], [[(2, 3), FREE]], [0.1])", "second"),
    ("Ranges([[('0', '1'), FREE]], [[(2, 3), FREE]], [0.1])", "first"),
    ("Power('1', 0.5, 2.0, 'points', 0.1)", "Power"),
    ("Power(NAN, 0.5, 2.0, 'points', 0.1)", "Power"),
    ("Power(1.0, 0.5, 2.0, 'points', None)", "Power"),
    # a prior
    ("B.as_prior().rvs('3')", "size"),
    ("B.as_prior().rvs(-1)", "size"),
    ("B.as_prior().rvs(3, random_state='x')", "random_state"),
    ("B.as_prior().logpdf([NAN, 0.0])", "x"),
    ("B.as_prior().logpdf('text')", "x"),
    ("B.as_prior().logpdf([0.0])", "x"),
]  # fmt: skip


@pytest.fixture(scope="module")
def names(belief: BeliefDensity) -> dict[str, Any]:
    return {**globals(), "B": belief, "D": belief.draws()}


@pytest.fixture
def _nothing_is_annealed(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes time is a density that is annealed: a bad call is refused before."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("annealed before it was refused")

    monkeypatch.setattr("llm_elicit.density.methods.anneal", refuse)


@pytest.mark.usefixtures("_nothing_is_annealed")
@pytest.mark.parametrize(("call", "named"), CALLS, ids=[call for call, _ in CALLS])
def test_a_bad_call_is_refused_in_one_line(call: str, named: str, names: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(DensityError) as refused:
            eval(call, names)
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 500
    assert named in message


def test_warnings_are_of_a_belief_or_its_diagnostics():
    belief = SimpleNamespace(diagnostics={"extent": {"message": "it is long"}})
    assert fit_warnings(belief, quality=False) == ["it is long"]
    with pytest.raises(DensityError, match="takes a belief, got int"):
        fit_warnings(3)
