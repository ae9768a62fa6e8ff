"""Settings of the published protocol; each of its mistakes has a name and can be corrected alone.

=============  ====================================================  =============================
name           as published                                           corrected
=============  ====================================================  =============================
jacobian       de-tempering on the cube without the Jacobian of T:    p, the Jacobian's slope added
               samples p·λ where λ is not uniform
step           ε/τ(x): leaves τ·p invariant, not p                    one preconditioned step
start          from N(0, σ_max² I): with a field that belongs to      from draws of exp(f)
               σ = 0 the weights of modes are lost on the way down
expectation    τ's integrals at draws of p_w, flow densities as       at draws of λ
               weights
clip           those weights clipped to their 1st–90th percentiles    not clipped
floor          τ >= 1; the bound that holds is τ >= s                 no floor
solver         Adams–Bashforth–Moulton on a fixed grid                adaptive, in ln σ
prior          N(0, σ_max² I) at σ_max, as if p_w were a point at 0   p_w's mean and covariance kept
losers         losers are never shown alone; τ multiplies the errors  ω times the difference of the
               of the winners' score near the mode                    winners' and losers' scores
=============  ====================================================  =============================

Not mistakes, but kept as published: the cube's coordinates, noise drawn singly, widths, numbers of
iterations, learning rates, noise levels, the cap of the field at its 99 % quantile, no stopping
rule. The paper gives widths as 32 to 128 and no rule; here they grow with the dimension. The
utility is this package's, not the paper's network.

Every class raises `DensityError` for an unknown choice or a number out of its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from llm_elicit.density.errors import (
    DensityError,
    check_fields,
    check_increasing,
    check_integer,
    check_number,
    check_share,
)

SIDES = ("both", "winners")
DENSITIES = ("rays", "flow")
RESAMPLERS = ("heun", None)
EXPECTATIONS = ("sampling", "winners", "mixture")
ALONE = ("either", "winner")
PRIORS = ("matched", "noise")
ADAPTIVE = ("dopri5", "bosh3")
FIXED = ("implicit_adams", "rk4", "midpoint")
SCALINGS = ("constant", "field", "field with drift")
STARTS = ("utility", "noise")
CORRECTIONS = (
    "jacobian", "drift", "step", "start", "expectation", "clip", "floor", "solver", "prior",
    "losers",
)  # fmt: skip
_SIGMA_MIN = 0.002


def check_choice(label: str, value: object, choices: Sequence[object]) -> None:
    """Raise a `DensityError` if a value is not one of the choices."""
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices)
        raise DensityError(
            f"{label} {value!r} is unknown; the choices are {listed}; choose one of them."
        )


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the score network's training; noise levels are in latent units.

    Attributes:
        joint: the share of rows that show the whole pair; the others show one half alone.
        alone: the half that is shown alone: "either" is the winner or the loser, "winner" is
            always the winner, as in the paper. With ``joint=0`` losers are then never shown.
        ema: the width of the power-function average of the weights, relative to the run; None
            averages nothing.
        decay_after: the step after which the learning rate falls as 1/√step; None keeps it.
        hold_out: the share of pairs that are held out to decide when to stop.
        check_every: steps between two looks at the held-out pairs.
        mirrored: whether noise is drawn in pairs ±n.
    """

    width: int = 64
    steps: int = 2500
    batch: int = 1024
    learning_rate: float = 6e-3
    decay_after: int | None = 500
    sigma_min: float = 0.02
    sigma_max: float = 3.0
    levels: int = 40
    log_mean: float = -1.2
    log_sd: float = 1.2
    joint: float = 0.25
    alone: str = "either"
    ema: float | None = 0.06
    hold_out: float = 0.1
    check_every: int = 100
    patience: int = 4
    mirrored: bool = True

    def __post_init__(self) -> None:
        check_fields(self, check_choice, "alone", choices=ALONE)
        positive = ("width", "steps", "batch", "learning_rate", "check_every", "log_sd")
        check_fields(self, check_number, *positive, above=0.0)
        check_fields(self, check_share, "joint", "hold_out")
        check_increasing(self, "sigma_min", "sigma_max")
        if self.ema is not None:
            check_fields(self, check_number, "ema", above=0.0, maximum=0.25)


@dataclass(frozen=True)
class LangevinSettings:
    """Settings of the Langevin sampler.

    Attributes:
        steps, final_steps: steps at each noise level, and at the last one.
        step: the step size ε.
        scaling: "constant" takes the same preconditioned step everywhere, with ε in units of A;
            "field" is the paper's ε·(σ/σ_start)²/τ(x), with ε in squared latent units; "field with
            drift" adds the drift ε·(σ/σ_start)²·∇(1/τ) that such a step needs.
        start: "utility" starts from draws of the utility's belief; with constant steps, the noise
            then falls from twice the last level, whatever ``sigma_start`` and ``sigma_end`` are.
            "noise" starts from N(0, sigma_start² I).
    """

    levels: int = 4
    steps: int = 8
    final_steps: int = 60
    step: float = 0.3
    sigma_start: float = 0.1
    sigma_end: float = 0.05
    scaling: str = "constant"
    start: str = "utility"

    def __post_init__(self) -> None:
        check_fields(self, check_choice, "scaling", choices=SCALINGS)
        check_fields(self, check_choice, "start", choices=STARTS)
        check_fields(self, check_number, "levels", "steps", "final_steps", "step", above=0.0)
        check_increasing(self, "sigma_end", "sigma_start")

    def truncate_at(self, sigma: float) -> LangevinSettings:
        """Return the same settings for this last noise level (latent units)."""
        if self.start == "noise" or self.scaling != "constant":
            return self  # the paper's steps are in units of (σ/σ_start)²: its levels go with them
        return replace(self, sigma_start=2.0 * sigma, sigma_end=sigma)


@dataclass(frozen=True)
class LikelihoodSettings:
    """Settings of the density by the probability flow.

    Attributes:
        sigma_min, sigma_max: the ends of the flow, in latent units.
        rtol, atol: tolerances of the adaptive solvers.
        chunk: largest number of points that are solved together.
        solver: adaptive ("dopri5", "bosh3"), with steps in ln σ, where the flow is least stiff; or
            on a fixed grid that is even in σ ("implicit_adams" as in the paper, "rk4",
            "midpoint"), most of which lies above the noise levels that matter.
        grid: number of values of the fixed grid.
        prior: the density at σ_max: "matched" has the winners' mean and covariance, "noise" is
            N(0, σ_max² I).
    """

    sigma_min: float = 0.05
    sigma_max: float = 3.0
    rtol: float = 1e-4
    atol: float = 1e-4
    chunk: int = 4096
    solver: str = "dopri5"
    grid: int = 40
    prior: str = "matched"

    def __post_init__(self) -> None:
        check_fields(self, check_choice, "solver", choices=(*ADAPTIVE, *FIXED))
        check_fields(self, check_choice, "prior", choices=PRIORS)
        check_increasing(self, "sigma_min", "sigma_max")
        check_fields(self, check_number, "rtol", "atol", "chunk", above=0.0)
        check_fields(self, check_number, "grid", above=1.0)


@dataclass(frozen=True)
class HeunSettings:
    """Settings of the second network and its sampler.

    Attributes:
        steps: number of noise levels, spaced evenly in σ^(1/ρ).
        rho: ρ.
        sigma_min, sigma_max: the last and the first noise level, in latent units.
        draws: number of draws of the Langevin sampler that train the network.
        training: settings of its training.
    """

    steps: int = 32
    rho: float = 7.0
    sigma_min: float = 0.02
    sigma_max: float = 3.0
    draws: int = 16_384
    training: TrainingSettings = field(
        default_factory=lambda: TrainingSettings(joint=0.0, alone="winner", steps=3000)
    )

    def __post_init__(self) -> None:
        check_fields(self, check_number, "steps", above=1.0)
        check_fields(self, check_number, "rho", "draws", above=0.0)
        check_increasing(self, "sigma_min", "sigma_max")


@dataclass(frozen=True)
class ProtocolSettings:
    """Settings of the score methods; the defaults serve every target.

    Attributes:
        side: the scores that are de-tempered: "both", those of winners and losers, which give the
            odds of winning; or "winners" alone, as in the paper.
        sigmas: candidates for the last noise level, in latent units, among which the likelihood of
            held-out choices decides; None for ``smoothing`` times √(1000 d/n), between
            ``smoothing`` and 0.5.
        smoothing: see ``sigmas``.
        expectation: the draws at which the integrals of the tempering field are taken: "sampling"
            (λ), "winners" (as in the paper) or "mixture".
        clip: the quantiles to which the winners' weights are clipped; None for no clipping.
        winner_draws: number of winners that are drawn for each feature.
        cap_quantile: the field is bounded from above at this quantile of its values under λ.
        floor: the lower bound of the field.
        density: "rays" sums the force along rays from the middle of λ; "flow" integrates the
            probability flow.
        resample: "heun" trains a second network on draws of the belief, which then gives samples
            and densities; None for no second network.
        jacobian: whether to use the Jacobian of the coordinates; without, the result is p·λ.
        cube: the side of a cube with uniform λ, the paper's coordinates; None for latent ones.
        constant: whether the field is replaced by its best constant.

    Raises:
        DensityError: an unknown choice, a number out of range, or choices that exclude each other.

    Examples:
        >>> ProtocolSettings(side="winners").expectation
        'sampling'
    """

    training: TrainingSettings = field(default_factory=TrainingSettings)
    langevin: LangevinSettings = field(default_factory=LangevinSettings)
    likelihood: LikelihoodSettings = field(default_factory=LikelihoodSettings)
    heun: HeunSettings = field(default_factory=HeunSettings)
    side: str = "both"
    sigmas: tuple[float, ...] | None = (0.05, 0.1, 0.2)
    smoothing: float = 0.05
    expectation: str = "sampling"
    clip: tuple[float, float] | None = (0.01, 0.9)
    winner_draws: int = 2000
    cap_quantile: float = 0.99
    floor: float = 0.0
    density: str = "flow"
    resample: str | None = None
    jacobian: bool = True
    cube: float | None = None
    constant: bool = False

    def __post_init__(self) -> None:
        owner = "ProtocolSettings"
        check_fields(self, check_choice, "side", choices=SIDES)
        check_fields(self, check_choice, "expectation", choices=EXPECTATIONS)
        check_fields(self, check_choice, "density", choices=DENSITIES)
        check_fields(self, check_choice, "resample", choices=RESAMPLERS)
        check_fields(self, check_number, "cap_quantile", above=0.0, maximum=1.0)
        check_fields(self, check_number, "smoothing", "winner_draws", above=0.0)
        for sigma in self.sigmas or ():
            check_number(f"{owner}: sigmas", sigma, above=0.0)
        if not self.floor >= 0.0:
            raise DensityError(
                f"{owner}: floor = {self.floor}; the field is positive, so its lower bound must be "
                ">= 0; leave it out for none."
            )
        if self.clip is not None and not 0.0 <= self.clip[0] < self.clip[1] <= 1.0:
            raise DensityError(
                f"{owner}: clip = {self.clip}; it must be two increasing quantiles in [0, 1]; "
                "leave it out for (0.01, 0.9), or pass None for no clipping."
            )
        if self.cube is not None:
            check_fields(self, check_number, "cube", above=0.0)
        without_losers = self.training.alone == "winner" or self.training.joint == 1.0
        if self.side == "both" and without_losers:
            raise DensityError(
                f"{owner}: side = 'both' needs the score of losers, which this training never "
                "shows alone; pass side='winners', or alone='either' and joint < 1."
            )


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
    steps, flat, few = 15 if dimension == 2 else 50, dimension <= 2, dimension < 10
    sigma_max = 5.0 if dimension == 2 else 2.0
    settings = ProtocolSettings(
        training=TrainingSettings(
            width=32 if flat else 64 if dimension <= 4 else 96 if few else 128,
            steps=8192 if flat else 12_288 if few else 15_360,
            batch=4000,
            learning_rate=5e-3 if flat else 5e-4 if few else 3e-4,
            decay_after=1024 if flat else None,
            sigma_min=_SIGMA_MIN,
            sigma_max=sigma_max,
            log_mean=-2.3,
            log_sd=1.5,
            joint=0.5,
            alone="winner",
            ema=0.01,
            hold_out=0.0,
            mirrored=False,
        ),
        langevin=LangevinSettings(
            levels=40,
            steps=steps,
            final_steps=steps,
            step=7.0 if dimension == 2 else 0.15,
            sigma_start=sigma_max,
            sigma_end=_SIGMA_MIN,
            scaling="field",
            start="noise",
        ),
        likelihood=LikelihoodSettings(
            sigma_min=_SIGMA_MIN, sigma_max=sigma_max, solver="implicit_adams", prior="noise"
        ),
        side="winners",
        sigmas=None,
        smoothing=_SIGMA_MIN,
        expectation="winners",
        floor=1.0,
        jacobian=False,
        cube=6.0 if dimension == 2 else 1.0,
    )
    for name in corrected:
        check_choice("paper_protocol: correction", name, CORRECTIONS)
        langevin, likelihood = settings.langevin, settings.likelihood
        step = LangevinSettings().step
        changes: dict[str, dict[str, object]] = {
            "jacobian": {"jacobian": True},
            "drift": {"langevin": replace(langevin, scaling="field with drift")},
            "step": {"langevin": replace(langevin, scaling="constant", step=step)},
            "start": {"langevin": replace(langevin, start="utility")},
            "expectation": {"expectation": "sampling"},
            "clip": {"clip": None},
            "floor": {"floor": 0.0},
            "solver": {"likelihood": replace(likelihood, solver="dopri5")},
            "prior": {"likelihood": replace(likelihood, prior="matched")},
            "losers": {"side": "both", "training": replace(settings.training, alone="either")},
        }
        settings = replace(settings, **changes[name])  # type: ignore[arg-type]
    return settings
