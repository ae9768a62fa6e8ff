"""All settings of a fit, validated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llm_elicit.density import errors
from llm_elicit.density.errors import DensityError
from llm_elicit.density.torch_utils import check_device

Progress = Callable[[str, int, int], None]
"""What is called as progress(stage, done, total)."""


@dataclass(frozen=True)
class AnnealingSettings:
    """Settings of annealed sequential Monte Carlo.

    Attributes:
        ess: effective share of particles that each temperature keeps, between 0 and 1.
        moves: Langevin moves at each temperature.
        final_moves: moves at the last temperature, at most.
        acceptance: the share of accepted moves that the step is adapted to.
        settled: the last moves stop once a further move increases the mean squared distance of
            particles from where they were resampled, in every direction, by at most this share.

    Raises:
        DensityError: a setting is out of range.
    """

    ess: float = 0.5
    moves: int = 4
    final_moves: int = 20
    acceptance: float = 0.6
    settled: float = 0.1

    def __post_init__(self) -> None:
        errors.check_fields(self, errors.check_fraction, "ess", "acceptance")
        errors.check_fields(self, errors.check_integer, "moves", minimum=1)
        errors.check_fields(self, errors.check_integer, "final_moves")
        errors.check_fields(self, errors.check_number, "settled")


@dataclass(frozen=True)
class MixturePrior:
    """Prior of a mixture's components; features have variance one under λ.

    Attributes:
        concentration: parameter of the symmetric Dirichlet prior of the masses, as a density of
            their logarithms (its mode is at equal masses).
        strength: degrees of freedom of the Wishart-like prior of the precisions.
        width: standard deviation of the components around which that prior is centred.
        centring: precision of the normal prior of the centres.
        width_uncertainty: each component's squared width is multiplied by a gamma variable of mean
            1 and 1/``width_uncertainty`` degrees of freedom, which is integrated out. At 0 thin
            components are nearly excluded.
        size_power: the Dirichlet prior is of each mass over its component's size (the geometric
            mean of its standard deviations) to this power, so that thin components are expected to
            hold less mass.
    """

    concentration: float = 3.0
    strength: float = 1.0
    width: float = 0.5
    centring: float = 0.1
    width_uncertainty: float = 0.0
    size_power: float = 0.0


@dataclass(frozen=True)
class MixtureSettings:
    """Settings of the mixtures' fit.

    Attributes:
        counts: numbers of components that are tried.
        starts: starts for each of them.
        search_steps: maximum number of Newton steps for the remaining starts.
        steps: maximum number of Newton steps for every later fit.
        max_categories: with more columns of categories, mixtures are left out: with 50 categories
            they took a hundred times as long and the shares were not more accurate.
        prior: prior of the components; its strength is chosen by held-out choices.
    """

    counts: tuple[int, ...] = (2, 3, 4, 6, 8, 12)
    starts: int = 16
    search_steps: int = 12
    steps: int = 30
    max_categories: int = 24
    prior: MixturePrior = field(default_factory=MixturePrior)

    def __post_init__(self) -> None:
        errors.check_fields(
            self, errors.check_integer, "starts", "search_steps", "steps", minimum=1
        )
        for count in self.counts:
            errors.check_integer("MixtureSettings: counts", count, minimum=2)


@dataclass(frozen=True)
class SmoothSettings:
    """Settings of the smooth remainder.

    Attributes:
        frequencies: about the number of frequencies in each process, fewer for few comparisons;
            0 leaves the smooth form out.
        search_rows: maximum number of comparisons that the variances are estimated from.
        max_features: with more features there is one process of each feature only.
    """

    frequencies: int = 128
    search_rows: int = 2000
    max_features: int = 6

    def __post_init__(self) -> None:
        errors.check_integer("SmoothSettings: frequencies", self.frequencies)
        errors.check_integer("SmoothSettings: search_rows", self.search_rows, minimum=1)


@dataclass(frozen=True)
class PosteriorSettings:
    """Settings of the posterior's draws: their number, 0 for none."""

    draws: int = 128

    def __post_init__(self) -> None:
        errors.check_integer("PosteriorSettings: draws", self.draws)


@dataclass(frozen=True)
class GaussianProcessSettings:
    """Settings of the fit to log-odds.

    Attributes:
        frequencies: maximum number M of frequencies of the process.
        draws: number of posterior draws.
        rounds: maximum number of rounds of normal approximations, if there are choices.
        rows: maximum number of rows that the variances are estimated from.
        iterations: maximum number of iterations of that search.
    """

    frequencies: int = 256
    draws: int = 256
    rounds: int = 8
    rows: int = 1000
    iterations: int = 60


@dataclass(frozen=True)
class UtilitySettings:
    """Settings of the utility fit.

    Attributes:
        folds: number of folds of the cross-validation.
        mixture, smooth, posterior: settings of two forms, and of the draws.
        process: settings of the fit to log-odds; the others are for choices.

    Raises:
        DensityError: a number of folds below two.
    """

    folds: int = 8
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    smooth: SmoothSettings = field(default_factory=SmoothSettings)
    posterior: PosteriorSettings = field(default_factory=PosteriorSettings)
    process: GaussianProcessSettings = field(default_factory=GaussianProcessSettings)

    def __post_init__(self) -> None:
        errors.check_integer("UtilitySettings: folds", self.folds, minimum=2)


@dataclass(frozen=True)
class ScoreSettings:
    """Settings of the score method; the defaults serve every target.

    Attributes:
        networks: number of networks. Each is trained without one fold of the pairs, of as many
            folds; the held-out pairs select the start, the step and the noise level, and calibrate
            u.
        width: units of each of the three hidden layers.
        steps: fewest steps of Adam; at most twice as many are made.
        passes: passes over all pairs, which set the number of steps between these bounds.
        batch: pairs of each step.
        learning_rate: rate of the first step; it falls as a cosine.
        sigma_min: least noise level of the training, in latent coordinates.
        sigma_max: largest noise level of the training.
        sigmas: noise levels at which the networks may be evaluated.
        outcome_weight: weight of −log P(outcome | noisy pair) beside the denoising loss, times d²,
            since that loss and its noise grow with the number of features d. Scores do not
            determine the relative weight of separated modes, which this does.
        check_every: steps between evaluations on held-out pairs.
        patience: evaluations without improvement after which training stops.
        knots: points of the grid of the calibration.

    Raises:
        DensityError: a setting out of its range.

    Examples:
        >>> ScoreSettings(networks=2).width
        64
    """

    networks: int = 5
    width: int = 64
    steps: int = 1000
    passes: float = 50.0
    batch: int = 256
    learning_rate: float = 5e-3
    sigma_min: float = 0.05
    sigma_max: float = 0.5
    sigmas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4)
    outcome_weight: float = 0.2
    check_every: int = 50
    patience: int = 16
    knots: int = 6

    def __post_init__(self) -> None:
        counts = ("width", "steps", "batch", "check_every", "patience")
        errors.check_fields(self, errors.check_integer, *counts, minimum=1)
        errors.check_fields(self, errors.check_integer, "networks", "knots", minimum=2)
        errors.check_fields(self, errors.check_number, "passes", "learning_rate", above=0.0)
        errors.check_increasing(self, "sigma_min", "sigma_max")
        if not self.sigmas:
            raise DensityError("ScoreSettings: sigmas = (); give at least one noise level.")
        for sigma in self.sigmas:
            errors.check_number("ScoreSettings: sigmas", sigma, above=0.0)
        if errors.check_number("ScoreSettings: outcome_weight", self.outcome_weight) < 0.0:
            raise DensityError(
                f"ScoreSettings: outcome_weight = {self.outcome_weight}; it must be >= 0."
            )

    def steps_for(self, pairs: int) -> int:
        """Return the number of steps for so many pairs.

        Examples:
            >>> ScoreSettings().steps_for(2000), ScoreSettings().steps_for(10_000)
            (1000, 1953)
        """
        return min(max(self.steps, int(self.passes * pairs / self.batch)), 2 * self.steps)


@dataclass(frozen=True)
class FitSettings:
    """All settings of a fit, a group for each part; the defaults serve every target.

    Attributes:
        utility, annealing, score: settings of the utility, of its sampler, and of the score method.
        external: settings of an external method, such as the baseline "flow"; None takes the
            defaults of that method.
        device: where fitted utilities and score networks are evaluated and score networks trained:
            "cpu", "cuda" or "cuda:0". All else (the fit of the utility, random numbers, coordinates
            in double precision) stays on the CPU, so that seeds mean the same on both. A belief
            read back by `load` is on the CPU.

    Raises:
        DensityError: a device of another name, or one that is not there.

    Examples:
        >>> FitSettings().device
        'cpu'
    """

    utility: UtilitySettings = field(default_factory=UtilitySettings)
    annealing: AnnealingSettings = field(default_factory=AnnealingSettings)
    score: ScoreSettings = field(default_factory=ScoreSettings)
    external: object | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_device(self.device)
