"""The paper's table of marginalization: whether the network of pairs learns the winners' marginal.

One network is trained on (winner, loser) pairs, with the loser masked part of the time. Winners are
then drawn from it in two ways: *jointly* with their losers, which are dropped, and *alone*, with
the losers masked. Both use the probability flow, so that the result depends on the network and not
on a sampler. The paper prints the Wasserstein distance between the two (appendix C.1). Here both
are also compared with true winners of the simulated judge, and the floor is the distance between
two samples of true winners.

The network learns the scores from scratch, as in the paper, without the additions of the score
method. Distances are between points of the cube where λ is uniform, of side 6 in two dimensions
(natural units) and of side 1 above: the paper does not name its coordinates, but its 0.07 in
four dimensions is about the floor of 15,000 points in the unit cube, and its 0.08 in two is
above the floor in natural units.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torchdiffeq import odeint

from benchmarks import Job, Row
from benchmarks.measure import Array, Streams, compare, peak_mib, provenance_of
from benchmarks.targets import Target, find
from benchmarks.variants import variant
from llm_elicit.baselines.protocol import paper_protocol
from llm_elicit.baselines.protocol.network import ScoreNetwork, TrainingSettings, train_score
from llm_elicit.density import Evidence, Noise
from llm_elicit.density.likelihood import merge
from llm_elicit.density.methods import Problem, external_settings
from llm_elicit.density.torch_utils import one_thread

Score = Callable[[Tensor, float], Tensor]
_TOLERANCE = 1e-4


def measure_marginal(job: Job) -> Row:
    """Train on pairs, draw winners jointly and alone, and return the row of distances.

    ``w1`` is between the two, ``w1_joint`` and ``w1_alone`` are to true winners.
    """
    target = find([job.target])[0]
    streams = Streams.of(job.target, job.seed)
    pair = compare(target, job.n, streams)
    began = time.process_time()
    with one_thread():
        problem, training, network = _train(job, target, pair, streams.fit)
        trained = time.process_time()
        joint = _draw(problem, training, job.samples, streams.draw, _joint(network), pairs=True)
        score = _alone(network, streams.draw + 2)
        alone = _draw(problem, training, job.samples, streams.draw + 1, score)
    sampled = time.process_time()
    row = {
        "dimension": target.dimension,
        "fit_seconds": trained - began,
        "sample_seconds": sampled - trained,
        "peak_mib": peak_mib(),
        "diagnostics": json.dumps({"steps": training.steps}),
        **_distances(job, target, joint, alone),
    }
    return {**row, **provenance_of(sampled)}


def _train(
    job: Job, target: Target, pair: tuple[Array, Array], seed: int
) -> tuple[Problem, TrainingSettings, ScoreNetwork]:
    settings = variant(job.method, job.variant).settings_for(target.dimension)
    problem = Problem(merge(Evidence.choices(*pair)), target.sampling, Noise(), seed, settings)
    protocol = external_settings(problem, paper_protocol(target.dimension), "protocol")
    sides = problem.winners, problem.losers
    network = train_score(sides, problem.weights, protocol.training, seed)
    return problem, protocol.training, network


def _draw(
    problem: Problem,
    training: TrainingSettings,
    n: int,
    seed: int,
    score: Score,
    pairs: bool = False,
) -> Array:
    """Return winners (n, d) in the unit cube, carried from noise to the smallest level by the flow.

    dx/dσ = −σ s(x, σ) from a Gaussian at σ_max, solved in ln σ.
    """
    known = torch.cat([problem.winners, problem.losers], 1) if pairs else problem.winners
    spread = known.T.cov() + training.sigma_max**2 * torch.eye(known.shape[1], dtype=known.dtype)
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(n, known.shape[1], generator=generator, dtype=known.dtype)
    start = known.mean(0) + white @ torch.linalg.cholesky(spread).T

    def velocity(log_sigma: Tensor, points: Tensor) -> Tensor:
        sigma = math.exp(float(log_sigma))
        return -(sigma**2) * score(points, sigma)

    ends = torch.tensor([training.sigma_max, training.sigma_min], dtype=known.dtype).log()
    with torch.no_grad():
        path = odeint(velocity, start, ends, rtol=_TOLERANCE, atol=_TOLERANCE, method="dopri5")
    winners = path[-1][:, : problem.dimension].numpy()
    return problem.latent.sampling.to_cube(problem.latent.from_latent(winners))


def _joint(network: ScoreNetwork) -> Score:
    """Score (n, 2d) of pairs."""

    def score(pairs: Tensor, sigma: float) -> Tensor:
        level, seen = torch.full((len(pairs), 1), sigma), torch.ones(len(pairs), 2)
        denoised: Tensor = network(pairs.float(), level, seen)
        return (denoised.to(pairs.dtype) - pairs) / sigma**2

    return score


def _alone(network: ScoreNetwork, seed: int) -> Score:
    """Score (n, d) of winners, the loser masked by noise drawn once and scaled by σ."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.empty(0)

    def score(winners: Tensor, sigma: float) -> Tensor:
        nonlocal unit
        if unit.shape != winners.shape:
            unit = torch.randn(winners.shape, generator=generator)
        return network.winner_score(winners.float(), sigma * unit, sigma).to(winners.dtype)

    return score


def _distances(job: Job, target: Target, joint: Array, alone: Array) -> Row:
    from llm_elicit.audit.distances import wasserstein  # noqa: PLC0415 - see measure

    side = 6.0 if target.dimension == 2 else 1.0
    judges = (Streams.of(f"{job.target} winners {k}", job.seed) for k in range(2))
    truth, other = (
        side * target.sampling.to_cube(compare(target, job.points, streams)[0])
        for streams in judges
    )
    joint, alone = side * joint[: job.points], side * alone[: job.points]
    return {
        "w1": wasserstein(alone, joint),
        "w1_joint": wasserstein(joint, truth),
        "w1_alone": wasserstein(alone, truth),
        "w1_floor": wasserstein(other, truth),
    }
