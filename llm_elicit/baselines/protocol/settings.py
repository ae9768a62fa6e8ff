"""Settings of the published protocol; each of its mistakes has a name and can be corrected alone.

=============  ====================================================  =============================
name           as published                                           corrected
=============  ====================================================  =============================
jacobian       de-tempering on the cube without the Jacobian of T:    p, the Jacobian's slope added
               samples p·λ where λ is not uniform
drift          steps of ε/τ(x): these leave τ·p invariant, not p      the drift ε∇(1/τ) added
start          from N(0, σ_max² I): with a field that belongs to      from draws of exp(f)
               σ = 0 the weights of modes are lost on the way down
expectation    τ's integrals at draws of p_w, flow densities as       at draws of λ
               weights
clip           those weights clipped to their 1st–90th percentiles    not clipped
floor          τ >= 1; the bound that holds is τ >= s                 no floor
solver         Adams–Bashforth–Moulton on a fixed grid                adaptive, in ln σ
prior          N(0, σ_max² I) at σ_max, as if p_w were a point at 0   p_w's mean and covariance
=============  ====================================================  =============================

Not mistakes, but kept as published: the cube's coordinates, widths, numbers of iterations, learning
rates, noise levels, the cap of the field at its 99 % quantile, no stopping rule. The paper gives
widths as 32 to 128 and no rule; here they grow with the dimension. The utility is this package's,
not the paper's network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_elicit.density.errors import DensityError, check_integer

CORRECTIONS = ("jacobian", "drift", "start", "expectation", "clip", "floor", "solver", "prior")
_SIGMA_MIN = 0.002


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the score network's training.

    Attributes:
        decay_after: the step after which the learning rate falls as 1/√step; None keeps it.
    """

    width: int
    steps: int
    learning_rate: float
    decay_after: int | None
    sigma_max: float
    sigma_min: float = _SIGMA_MIN
    batch: int = 4000


@dataclass(frozen=True)
class LangevinSettings:
    """Settings of the Langevin sampler.

    Attributes:
        levels: number of noise levels, from ``sigma_start`` to ``sigma_end``.
        steps: number of steps at each of them.
        step: the step size ε, in squared latent units: a step is ε·(σ/σ_start)²/τ(x).
        drift: whether the drift ε·(σ/σ_start)²·∇(1/τ) that such a step needs is added.
        at_belief: whether sampling starts from draws of the utility's belief, not from noise.
    """

    steps: int
    step: float
    sigma_start: float
    sigma_end: float = _SIGMA_MIN
    levels: int = 40
    drift: bool = False
    at_belief: bool = False


@dataclass(frozen=True)
class LikelihoodSettings:
    """Settings of the density by the probability flow.

    Attributes:
        sigma_max, sigma_min: the ends of the flow, in latent units.
        adaptive: whether steps are adaptive and in ln σ, where the flow is least stiff; else they
            are on a fixed grid that is even in σ, most of which lies above the noise levels that
            matter.
        tolerance: of either solver, relative and absolute.
        grid: number of values of the fixed grid.
        matched: whether the density at σ_max has the winners' mean and covariance; else it is
            N(0, σ_max² I).
    """

    sigma_max: float
    sigma_min: float = _SIGMA_MIN
    adaptive: bool = False
    tolerance: float = 1e-4
    grid: int = 40
    matched: bool = False


@dataclass(frozen=True)
class ProtocolSettings:
    """Settings of the protocol, made by `paper_protocol`.

    Attributes:
        cube: the side of the cube with uniform λ in which the score is learned.
        winner_draws: number of winners for each feature at which the integrals of the tempering
            field are taken, with weights; 0 takes them at draws of λ.
        clip: the quantiles to which the winners' weights are clipped; None for no clipping.
        floor: the lower bound of the field.
        jacobian: whether to use the Jacobian of the coordinates; without, the result is p·λ.
    """

    training: TrainingSettings
    langevin: LangevinSettings
    likelihood: LikelihoodSettings
    cube: float
    winner_draws: int
    clip: tuple[float, float] | None
    floor: float
    jacobian: bool


def paper_protocol(dimension: int, corrected: Sequence[str] = ()) -> ProtocolSettings:
    """Return the settings of the published tables for d features, with the named corrections.

    It is slow: up to 15,360 training steps and 2000 Langevin steps without any stopping rule.

    Source: Mikkola, Acerbi and Klami (2026), section 4, algorithms 1 and 2, appendices C and E.

    Raises:
        DensityError: no feature, or a correction that is not in `CORRECTIONS`.

    Examples:
        >>> settings = paper_protocol(2)
        >>> settings.training.steps, settings.langevin.step, settings.jacobian
        (8192, 7.0, False)
        >>> paper_protocol(2, corrected=["jacobian"]).jacobian
        True
    """
    check_integer("paper_protocol: dimension", dimension, minimum=1)
    for name in corrected:
        if name not in CORRECTIONS:
            raise DensityError(
                f"paper_protocol: correction {name!r} is unknown; the corrections are "
                f"{', '.join(CORRECTIONS)}; choose one of them."
            )
    flat, is_low_dimensional = dimension <= 2, dimension < 10
    sigma_max = 5.0 if dimension == 2 else 2.0
    training = TrainingSettings(
        width=32 if flat else 64 if dimension <= 4 else 96 if is_low_dimensional else 128,
        steps=8192 if flat else 12_288 if is_low_dimensional else 15_360,
        learning_rate=5e-3 if flat else 5e-4 if is_low_dimensional else 3e-4,
        decay_after=1024 if flat else None,
        sigma_max=sigma_max,
    )
    langevin = LangevinSettings(
        steps=15 if dimension == 2 else 50,
        step=7.0 if dimension == 2 else 0.15,
        sigma_start=sigma_max,
        drift="drift" in corrected,
        at_belief="start" in corrected,
    )
    likelihood = LikelihoodSettings(
        sigma_max, adaptive="solver" in corrected, matched="prior" in corrected
    )
    return ProtocolSettings(
        training,
        langevin,
        likelihood,
        cube=6.0 if dimension == 2 else 1.0,
        winner_draws=0 if "expectation" in corrected else 2000,
        clip=None if "clip" in corrected else (0.01, 0.9),
        floor=0.0 if "floor" in corrected else 1.0,
        jacobian="jacobian" in corrected,
    )
