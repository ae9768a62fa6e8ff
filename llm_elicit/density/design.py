"""Which pairs to ask next: those whose answers are expected to change the density most.

The draws of a belief (`BeliefDensity.draws`) represent its posterior. Their spread is measured by
the energy distance (Székely and Rizzo, 2013): with densities p_s at points x_m, it is the mean over
s of −ΣΣ (p_s − p̄)(x_m) (p_s − p̄)(x_m') |x_m − x_m'|. Uncertain mass between far regions thus
counts more than between neighbouring ones, and the utility where there is no mass does not count.
If the densities of the draws depend linearly on their probabilities of an answer, the answer
reduces this spread by

    gain = (G v)ᵀ B (G v) / (vᵀ G v + Σ_s P_s (1 − P_s)),

with P_s the probability by draw s that the first point wins, v its deviation from the mean over
draws, and B the energy inner products of the draws. G starts at the identity and loses
(G v)(G v)ᵀ over the same denominator with each pair chosen (a Kalman step), so that a batch does
not ask twice what one answer determines. No belief is fitted and no posterior drawn anew.

This gain assumes that the draws have mass wherever the belief may have mass. Every second pair is
therefore chosen by how much its answer tells about which draw is right, vᵀ G v / Σ_s P_s (1 − P_s).
In benchmarks the first gain alone was better on moons, and the second alone on a ring.

*Measured log-odds* are more informative than choices. P_s above is then the difference of the two
points' utilities, and P_s (1 − P_s) is replaced by the variance of its measurement. Such a belief
is used at its power if that is known, else at `BeliefDensity.unit_power`: if weak log-odds were
taken as nats, every belief would be close to λ.

A share of the pairs is drawn from λ, like the pairs of the first round. These pairs can find modes
that no answer has shown yet, and they serve checks that must not depend on the design.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from llm_elicit.density import errors
from llm_elicit.density.belief import BeliefDensity
from llm_elicit.density.belief_draws import evaluate_utilities
from llm_elicit.density.errors import Array, Index
from llm_elicit.density.methods import leaves_sharpness_open
from llm_elicit.density.sampling import SamplingDensity, Uniform
from llm_elicit.density.settings import FitSettings, SmoothSettings, UtilitySettings
from llm_elicit.density.torch_utils import make_generator, one_thread

_CANDIDATE_POINTS = 512  # points that candidate pairs are made of
_POINT_SHARES = (0.4, 0.4, 0.2)  # of them, drawn from the belief, the flatter belief and λ
_MAX_PAIRS = 10**6
_MAX_DRAWS = 64  # of the posterior; with four times as many, choosing takes eight times as long

BETWEEN_ROUNDS = FitSettings(utility=UtilitySettings(smooth=SmoothSettings(frequencies=0)))
"""Settings of fits that only choose pairs: the quadratic form and mixtures, no smooth term."""


@dataclass(frozen=True)
class SuggestSettings:
    """Settings of `suggest_pairs`.

    Attributes:
        uniform: share of the pairs that are drawn from λ.
        candidates: number of pairs that the others are chosen from. Their points are drawn from the
            belief, from the flatter belief ∝ exp(f/temperature), and from λ.
        temperature: > 0.

    Raises:
        DensityError: a setting is out of range.
    """

    uniform: float = 0.2
    candidates: int = 2048
    temperature: float = 3.0

    def __post_init__(self) -> None:
        errors.check_fields(self, errors.check_share, "uniform")
        errors.check_fields(self, errors.check_integer, "candidates", minimum=1)
        errors.check_fields(self, errors.check_number, "temperature", above=0.0)


def suggest_pairs(
    belief: BeliefDensity, n: int, *, seed: int = 0, settings: SuggestSettings | None = None
) -> tuple[Array, Array]:
    """Return the next n pairs to ask: two arrays of points (n, d), natural units.

    Equal seeds give equal pairs. Their answers can be added to the earlier ones in the next fit,
    because the methods ``utility`` and ``auto`` condition on the pairs.

    Args:
        belief: fitted by "auto" or "utility", with draws of its posterior.
        n: number of pairs, at least 1.
        seed: seed of the random choices.
        settings: `SuggestSettings`.

    Raises:
        DensityError: n < 1, or the belief has no draws of its posterior.

    Examples:
        >>> import numpy as np
        >>> from llm_elicit.density import Uniform, fit_belief
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.uniform(-3, 3, (2, 40, 1))
        >>> nearer = abs(a - 1) < abs(b - 1)
        >>> belief = fit_belief(np.where(nearer, a, b), np.where(nearer, b, a),
        ...                     sampling=Uniform([-3.0], [3.0]), method="utility")
        >>> first, second = suggest_pairs(belief, 10, seed=2)
        >>> first.shape, second.shape
        ((10, 1), (10, 1))
    """
    errors.check_instance("suggest_pairs: belief", belief, BeliefDensity, "fit one first")
    errors.check_integer("suggest_pairs: n", n, minimum=1, maximum=_MAX_PAIRS)
    errors.check_seed("suggest_pairs: seed", seed)
    settings = SuggestSettings() if settings is None else settings
    errors.check_instance(
        "suggest_pairs: settings", settings, SuggestSettings, "pass SuggestSettings(...)"
    )
    rng = np.random.default_rng([seed, 0x5066E57])
    random_count = int(np.floor(settings.uniform * n + rng.uniform()))
    random_sides = [belief.sampling.sample(random_count, rng) for _ in range(2)]
    if leaves_sharpness_open(belief.diagnostics):
        power = belief.unit_power()
        belief = belief.tempered(power, seed=seed) if np.isfinite(power) else belief
    with one_thread():
        pool = draw_candidates(belief, _CANDIDATE_POINTS, settings.temperature, seed)
        count, size = len(pool.points), max(settings.candidates, n)
        first = rng.integers(count, size=size)
        second = (first + rng.integers(1, count, size=size)) % count  # another point
        # B (S, S), energy inner products of the draws' centred densities at the points.
        log_weights = pool.values.double() - pool.log_density.double()
        densities = _subtract_mean(torch.softmax(log_weights, 1))
        coordinates = _coordinates(pool.points, belief.sampling)
        energy = -(densities @ torch.cdist(coordinates, coordinates) @ densities.T)
        # v (S, N). The pairs are chosen one after the other, by the two gains alternately.
        deviation, noise_variance = predict_answers(pool, (first, second), belief)
        residual, selected = deviation.clone(), np.zeros(n - random_count, dtype=np.int64)  # G v
        available = torch.ones_like(noise_variance)
        for turn in range(len(selected)):
            variance = (deviation * residual).sum(0)
            density_gain = ((energy @ residual) * residual).sum(0) / (variance + noise_variance)
            gain = variance / noise_variance if turn % 2 else density_gain
            best = selected[turn] = int((gain * available).argmax())
            available[best] = 0.0
            step = residual[:, best].clone()
            total_variance = variance[best] + noise_variance[best]
            residual -= torch.outer(step, (deviation.T @ step) / total_variance)
    chosen_points = pool.points[first[selected]], pool.points[second[selected]]
    order = rng.permutation(n)
    a, b = (np.concatenate(side)[order] for side in zip(chosen_points, random_sides, strict=True))
    return a, b


@dataclass(frozen=True)
class Candidates:
    """Points that pairs may be made of.

    Attributes:
        points: (M, d) in natural units.
        values: (S, M) utilities by every draw of the posterior, nats.
        log_density: (M,) log density that the points were drawn from; both are per unit of the
            features' scales.
    """

    points: Array
    values: Tensor
    log_density: Tensor


def draw_candidates(belief: BeliefDensity, count: int, temperature: float, seed: int) -> Candidates:
    """Return points of the belief, of the flatter belief ∝ exp(f/temperature), and of λ.

    The flatter belief covers regions where the belief wrongly has little mass.
    """
    model, generator = belief.utility_model("suggest_pairs"), make_generator(seed)
    draws, latent = belief.utility_draws().thin(_MAX_DRAWS), model.latent
    sizes = [round(s * count) for s in _POINT_SHARES]
    flatter = replace(model, utility=model.utility.scaled(1.0 / temperature), start=None)
    annealed = flatter.anneal(max(sizes[1], 512), generator)
    rows = torch.randperm(len(annealed.draws.points), generator=generator)[: sizes[1]]
    belief_points = model.sample_latent(sizes[0], generator).points
    sampling_points = latent.draw(sizes[2], generator)
    g = torch.cat([belief_points, annealed.draws.points[rows], sampling_points])
    log_densities = [
        model.log_density(g),
        replace(flatter, log_normalizer=annealed.log_normalizer).log_density(g),
        latent.log_sampling(g) - latent.log_volume(g),
    ]
    log_shares = torch.tensor([[math.log(share)] for share in _POINT_SHARES], dtype=g.dtype)
    density = torch.logsumexp(torch.stack(log_densities) + log_shares, 0)
    return Candidates(latent.from_latent(g.numpy()), evaluate_utilities(latent, draws, g), density)


def predict_answers(
    pool: Candidates, pairs: tuple[Index, Index], belief: BeliefDensity
) -> tuple[Tensor, Tensor]:
    """Predict choices with the belief's noise, or log-odds if it was fitted to log-odds.

    Returns the difference (S, N) of the prediction by each draw from their mean, for each of N
    pairs, and the variance (N,) of an answer given a draw, summed over draws.
    """
    values = pool.values.double()
    differences = values[:, pairs[0]] - values[:, pairs[1]]
    response = belief.diagnostics.get("response")
    if response is None:
        probability = torch.exp(belief.noise.log_cdf(differences))
        variance = (probability * (1.0 - probability)).sum(0).clamp(min=1e-12)
        return _subtract_mean(probability), variance
    # The half difference of answers in both orders has half the variance of one answer.
    variance_share = 1.0 - 0.5 * response["both_orders"] / response["pairs"]
    dispersion = response["dispersion"] / response["gain"] * belief.power
    variance_of_draw = max(variance_share * dispersion**2, 1e-12)
    noise_variance = torch.full_like(differences[0], len(differences) * variance_of_draw)
    return _subtract_mean(differences), noise_variance


def _subtract_mean(values: Tensor) -> Tensor:
    return values - values.mean(0)


def _coordinates(points: Array, sampling: SamplingDensity) -> Tensor:
    """Return points (M, d) in coordinates (M, p) for distances.

    Numbers are divided by their standard deviation. A periodic feature becomes a point on a circle,
    and a category a unit vector, each divided by its total standard deviation.
    """
    numbers = points / points.std(0).clip(min=1e-12)
    columns = [numbers[:, ~(sampling.categorical | sampling.periodic)]]
    if isinstance(sampling, Uniform):
        angles = 2.0 * np.pi * sampling.to_cube(points)[:, sampling.periodic]
        circles = (np.stack([np.cos(angle), np.sin(angle)], 1) for angle in angles.T)
        columns.extend(map(_scale_to_unit_variance, circles))
    for codes in points[:, sampling.categorical].T:
        columns.append(_scale_to_unit_variance((codes[:, None] == np.unique(codes)).astype(float)))
    return torch.from_numpy(np.concatenate(columns, axis=1))


def _scale_to_unit_variance(columns: Array) -> Array:
    """Return the columns (M, c) of one feature divided by their total standard deviation."""
    return columns / max(float(np.sqrt(columns.var(0).sum())), 1e-12)
