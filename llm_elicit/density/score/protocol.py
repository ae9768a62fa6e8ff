"""The published protocol, mistakes included, each of them named and each correctable alone.

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
losers         only winners are ever shown alone; τ multiplies        ω times the difference of the
               their score's errors near the mode                     winners' and losers' scores
=============  ====================================================  =============================

Not mistakes, but kept as published: the cube's coordinates, noise drawn singly, widths, numbers of
iterations, learning rates, noise levels, the cap of the field at its 99 % quantile, no stopping
rule. The paper gives widths as 32 to 128 and no rule; here they grow with the dimension. The
utility is this package's, not the paper's network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_elicit.density.score.checks import one_of, within
from llm_elicit.density.score.langevin import LangevinSettings
from llm_elicit.density.score.likelihood import LikelihoodSettings
from llm_elicit.density.score.settings import ScoreSettings
from llm_elicit.density.score.training import TrainingSettings

CORRECTIONS = (
    "jacobian", "step", "start", "expectation", "clip", "floor", "solver", "prior", "losers",
)  # fmt: skip
_SIGMA_MIN = 0.002


def paper_protocol(dimension: int, corrected: Sequence[str] = ()) -> ScoreSettings:
    """Settings of the published tables for d features, but for what is ``corrected``.

    It is slow: up to 15,360 training steps and 2000 Langevin steps without any stopping rule.

    Source: Mikkola, Acerbi and Klami (2026), section 4, algorithms 1 and 2, appendices C and E.

    Raises
    ------
    DensityError : no feature, or a correction that is not in `CORRECTIONS`.

    Examples
    --------
    >>> settings = paper_protocol(2)
    >>> settings.training.steps, settings.langevin.step, settings.jacobian
    (8192, 7.0, False)
    >>> paper_protocol(2, corrected=["jacobian"]).jacobian
    True
    """
    within("paper_protocol", "dimension", dimension, 0.0)
    settings = ScoreSettings(
        training=_training(dimension),
        langevin=_langevin(dimension),
        likelihood=_likelihood(dimension),
        side="winners",
        control=None,
        sigmas=None,
        smoothing=_SIGMA_MIN,
        expectation="winners",
        clip=(0.01, 0.9),
        winner_draws=2000,
        cap_quantile=0.99,
        floor=1.0,
        density="flow",
        jacobian=False,
        cube=6.0 if dimension == 2 else 1.0,
    )
    for name in corrected:
        one_of("paper_protocol", "correction", name, CORRECTIONS)
        settings = _correct(settings, name)
    return settings


def _sigma_max(dimension: int) -> float:
    return 5.0 if dimension == 2 else 2.0


def _training(dimension: int) -> TrainingSettings:
    flat = dimension <= 2
    few = dimension < 10
    return TrainingSettings(
        width=32 if flat else 64 if dimension <= 4 else 96 if few else 128,
        steps=8192 if flat else 12_288 if few else 15_360,
        batch=4000,
        learning_rate=5e-3 if flat else 5e-4 if few else 3e-4,
        decay_after=1024 if flat else None,
        sigma_min=_SIGMA_MIN,
        sigma_max=_sigma_max(dimension),
        log_mean=-2.3,
        log_sd=1.5,
        joint=0.5,
        alone="winner",
        ema=0.01,
        hold_out=0.0,
        mirrored=False,
    )


def _langevin(dimension: int) -> LangevinSettings:
    steps = 15 if dimension == 2 else 50
    return LangevinSettings(
        levels=40,
        steps=steps,
        final_steps=steps,
        step=7.0 if dimension == 2 else 0.15,
        sigma_start=_sigma_max(dimension),
        sigma_end=_SIGMA_MIN,
        scaling="field",
        start="noise",
    )


def _likelihood(dimension: int) -> LikelihoodSettings:
    return LikelihoodSettings(
        sigma_min=_SIGMA_MIN,
        sigma_max=_sigma_max(dimension),
        solver="implicit_adams",
        prior="noise",
    )


def _correct(settings: ScoreSettings, name: str) -> ScoreSettings:
    langevin, likelihood = settings.langevin, settings.likelihood
    step = LangevinSettings().step
    changes: dict[str, dict[str, object]] = {
        "jacobian": {"jacobian": True},
        "step": {"langevin": replace(langevin, scaling="constant", step=step)},
        "start": {"langevin": replace(langevin, start="utility")},
        "expectation": {"expectation": "sampling"},
        "clip": {"clip": None},
        "floor": {"floor": 0.0},
        "solver": {"likelihood": replace(likelihood, solver="dopri5")},
        "prior": {"likelihood": replace(likelihood, prior="matched")},
        "losers": {"side": "both", "training": replace(settings.training, alone="either")},
    }
    return replace(settings, **changes[name])  # type: ignore[arg-type]
