"""Planted judges of whole campaigns, and the verdicts on each that are right.

Only the statistics of the audit are run, without fits of beliefs: a campaign takes about 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from audit.planted import ANSWER
from llm_elicit.audit.preference import Preference, decide_verdicts, measure_preference
from llm_elicit.audit.reference import AuditSettings
from llm_elicit.audit.responses import build_response
from llm_elicit.comparisons.table import Comparisons
from llm_elicit.spaces.features import Feature, FeatureSpace, Floats

SPACE = FeatureSpace(
    name="animals", title="animals", subject="an animal",
    features=(
        Feature(name="mass", label="mass", unit="kg", scale="log", low=1, high=1000, digits=6),
        Feature(name="age", label="age", unit="years", low=-3, high=3, digits=6),
        Feature(name="kind", label="kind", kind="categorical", categories=("bird", "fish", "cow")),
    ),
)  # fmt: skip
Utility = Callable[[Floats], Floats]
Errors = Callable[[int, np.random.Generator], Floats]
PREFERENCE, POSITION, NONE = "consistent preference", "position only", "no consistent preference"
REPEATABLE, FEW = "repeatable, not described by these features", "too few answers"


def scale(x: Floats) -> Floats:
    """The number of standard deviations of λ, of mass and age."""
    return np.column_stack([(np.log10(x[:, 0]) - 1.5) / 0.87, x[:, 1] / 1.73])


def linear(x: Floats) -> Floats:
    return 0.35 * scale(x)[:, 0]


def density(x: Floats) -> Floats:
    return np.asarray(-0.25 * np.square(scale(x) - [0.5, 0.0]).sum(axis=1))


def leading_digit(x: Floats) -> Floats:
    """Odd digits are liked."""
    digit = np.floor(x[:, 0] / 10 ** np.floor(np.log10(x[:, 0])))
    return np.asarray(0.5 * (digit % 2))


def two_peaks(x: Floats) -> Floats:
    """Equal and symmetric, without a linear or quadratic trend."""
    z = scale(x)[:, 1]
    return np.asarray(np.exp(-0.5 * ((np.abs(z) - 0.95) / 0.3) ** 2))


def narrow_peak(x: Floats) -> Floats:
    return np.asarray(2.0 * np.exp(-0.5 * np.square((scale(x) - [0.4, 0.3]) / 0.3).sum(axis=1)))


def longer_text(x: Floats) -> Floats:
    return np.asarray(0.4 * np.floor(np.log10(x[:, 0])))


def kinds(x: Floats) -> Floats:
    return np.array([0.6, 0.3, 0.0])[x[:, 2].astype(int)]


def lexicographic(x: Floats) -> Floats:
    """By kind, and by age only among equals."""
    return np.asarray(2.0 * kinds(x) / 0.3 + 0.3 * scale(x)[:, 1])


def cycle(a: Floats, b: Floats) -> Floats:
    """What lies less than half a turn on is preferred."""
    one, other = scale(a), scale(b)
    return np.asarray(0.4 * np.sign(one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]))


def white(n: int, rng: np.random.Generator) -> Floats:
    return rng.normal(size=n)


def autoregressive(rho: float) -> Errors:
    def errors(n: int, rng: np.random.Generator) -> Floats:
        steps, value = rng.normal(size=n) * (1.0 - rho**2) ** 0.5, np.empty(n)
        value[0] = rng.normal()
        for t in range(1, n):
            value[t] = rho * value[t - 1] + steps[t]
        return value

    return errors


def differences(n: int, rng: np.random.Generator) -> Floats:
    """Each error takes back half of the one before."""
    return np.diff(rng.normal(size=n + 1)) / 2**0.5


def drift(n: int, rng: np.random.Generator) -> Floats:
    return np.cumsum(rng.normal(size=n)) / n**0.5 * 3.0 + 0.3 * rng.normal(size=n)


def in_turns(*pattern: float) -> Errors:
    """The letters come in a fixed order, which starts anywhere."""

    def errors(n: int, rng: np.random.Generator) -> Floats:
        start = int(rng.integers(len(pattern)))
        return np.array([pattern[(start + t) % len(pattern)] for t in range(n)])

    return errors


def wild_noise(n: int, rng: np.random.Generator) -> Floats:
    return rng.normal(size=n) * np.where(rng.random(n) < 0.1, 20.0, 1.0)


def by_bursts(n: int, rng: np.random.Generator) -> Floats:
    """The level changes every dozen answers."""
    return np.repeat(rng.normal(size=n // 12 + 1), 12)[:n]


@dataclass(frozen=True)
class Campaign:
    """A judge, what it is asked, and the verdicts that are right.

    Attributes:
        right: the verdicts that are right.
        utility: in log-odds.
        pairwise: the preference of a over b, if no utility has it.
        noise, errors: their standard deviation, and how they follow each other in time.
        position, spread: the mean position effect and its standard deviation over pairs.
        of_content: what is added to it by the sum of both ages.
        flipped: the share of answers with four times the size and the other sign.
        limit: the largest log-odds that it gives.
        letters: whether it names letters: "", "drawn" by its log-odds or "sign".
        pairs, orders, repeats: how many it is asked, in which orders, how often.
    """

    right: tuple[str, ...]
    utility: Utility | None = None
    pairwise: Callable[[Floats, Floats], Floats] | None = None
    noise: float = 0.1
    errors: Errors = white
    position: float = 0.1
    spread: float = 0.0
    of_content: float = 0.0
    flipped: float = 0.0
    limit: float = np.inf
    letters: str = ""
    pairs: int = 60
    orders: tuple[str, ...] = ("ab", "ba")
    repeats: int = 1

    @property
    def without_content(self) -> bool:
        return self.utility is None and self.pairwise is None

    def log(self, rng: np.random.Generator) -> Comparisons:
        """The answers, in the order of asking."""
        n, asked = self.pairs, len(self.orders) * self.repeats
        a, b = SPACE.sample(n, rng), SPACE.sample(n, rng)
        pair = np.repeat(np.arange(n), asked)
        order = np.tile(self.orders, n * self.repeats)
        side = np.where(order == "ab", 1.0, -1.0)
        content = np.zeros(n)
        if self.utility is not None:
            content = self.utility(a) - self.utility(b)
        if self.pairwise is not None:
            content = self.pairwise(a, b)
        position = rng.normal(self.position, self.spread, n)
        position = position + self.of_content * (a[:, 1] + b[:, 1])
        wild = np.where(rng.random(n * asked) < self.flipped, -4.0, 1.0)
        shown = (side * content[pair] * wild + position[pair]
                 + self.noise * self.errors(n * asked, rng))  # fmt: skip
        shown = np.clip(shown, -self.limit, self.limit)
        first = 1.0 / (1.0 + np.exp(-shown))
        if self.letters == "drawn":
            first = (rng.random(len(first)) < first).astype(float)
        elif self.letters:
            first = (shown > 0).astype(float)
        points = {
            f"{name}_{key}": (a if name == "a" else b)[pair, j]
            for name in "ab" for j, key in enumerate(SPACE.names)
        }  # fmt: skip
        letter = np.where(first > 0.5, "A", "B")
        frame = pd.DataFrame({
            **ANSWER, "judge": "judge", "pair": pair, "order": order,
            "replicate": np.tile(np.repeat(np.arange(self.repeats), len(self.orders)), n),
            "verdict": letter, "reply": letter, "soft": not self.letters,
            "probability": np.where(side > 0, first, 1.0 - first),
            "letter_mass": None if self.letters else 0.5, **points,
        })  # fmt: skip
        return Comparisons(frame, SPACE.names)


QUIET = (NONE, POSITION)
JUDGES: dict[str, Campaign] = {
    "content": Campaign((PREFERENCE,), density),
    "faint content": Campaign((PREFERENCE,), lambda x: 0.4 * linear(x)),
    "drawn letters": Campaign((PREFERENCE,), lambda x: 6 * density(x), letters="drawn", pairs=120),
    "noise-free letters": Campaign((PREFERENCE,), density, noise=0.0, letters="sign", position=0.0),
    "saturating": Campaign((PREFERENCE,), lambda x: 20 * density(x), limit=6.0),
    "lexicographic": Campaign((PREFERENCE,), lexicographic),
    "one feature": Campaign((PREFERENCE,), kinds),
    "longer text": Campaign((PREFERENCE,), longer_text),
    "content, one order": Campaign((PREFERENCE,), density, position=0.5, orders=("ab",)),
    "content, drift": Campaign((PREFERENCE,), density, errors=drift, noise=0.3),
    "contaminated": Campaign((PREFERENCE,), linear, flipped=0.1),
    "contaminated, one order": Campaign((PREFERENCE,), linear, flipped=0.1, orders=("ab",)),
    "contaminated noise": Campaign((NONE,), position=0.0, errors=wild_noise),
    "contaminated, faint": Campaign((PREFERENCE,), linear, flipped=0.1, noise=0.3),
    "leading digit": Campaign((REPEATABLE,), leading_digit),
    "cycle": Campaign((REPEATABLE,), pairwise=cycle),
    "two peaks": Campaign((REPEATABLE,), two_peaks),
    "narrow peak": Campaign((REPEATABLE, PREFERENCE), narrow_peak),
    "leading digit, letters": Campaign((REPEATABLE,), lambda x: 8 * leading_digit(x),
                                       letters="drawn", noise=0.0, pairs=150),
    "leading digit, thrice": Campaign((REPEATABLE,), leading_digit, noise=0.3, repeats=3),
    "leading digit, one order": Campaign(QUIET, leading_digit, position=0.5, orders=("ab",)),
    "random letters": Campaign((NONE,), noise=0.0, position=0.0, letters="drawn"),
    "noise": Campaign((NONE,), noise=0.3, position=0.0),
    "heavy-tailed noise": Campaign((NONE,), position=0.0, noise=0.1,
                                   errors=lambda n, rng: rng.standard_t(2, n)),
    "rather first": Campaign((POSITION,), position=0.5, spread=0.3),
    "first if old": Campaign((POSITION,), position=0.5, of_content=0.1),
    "rather first, one order": Campaign((POSITION,), position=0.5, orders=("ab",)),
    "always first": Campaign((POSITION,), position=40.0, letters="sign"),
    "biased letters": Campaign((POSITION,), position=1.5, noise=0.0, letters="drawn"),
    "random walk": Campaign(QUIET, errors=drift),
    "autocorrelated": Campaign((NONE,), errors=autoregressive(0.9), position=0.0),
    "anticorrelated": Campaign((NONE,), errors=autoregressive(-0.8), position=0.0),
    "anticorrelated, thrice": Campaign((NONE,), errors=autoregressive(-0.6), position=0.0,
                                       repeats=3),
    "takes half back": Campaign((NONE,), errors=differences, position=0.0),
    "bursts": Campaign((NONE,), errors=by_bursts, position=0.0),
    "in turns": Campaign((NONE,), errors=in_turns(1, -1), position=0.0, noise=1, letters="sign"),
    "two by two": Campaign((NONE,), errors=in_turns(1, -1, -1, 1), position=0.0, noise=1,
                           letters="sign"),
    "two pairs": Campaign((FEW,), density, pairs=2),
    "five pairs": Campaign((FEW,), density, pairs=5),
    "eight pairs, linear": Campaign((PREFERENCE,), linear, pairs=8, noise=0.02),
    "fifteen pairs": Campaign((PREFERENCE,), density, pairs=15),
}  # fmt: skip


def decided(name: str, seed: int) -> Preference:
    """Return what is decided of a judge who is alone in its campaign."""
    number = list(JUDGES).index(name)
    log = JUDGES[name].log(np.random.default_rng([seed, number, 97]))
    settings = AuditSettings(flips=399)
    rng = np.random.default_rng(seed)
    alone = measure_preference(build_response(log, "judge"), SPACE, settings, rng)
    return decide_verdicts([alone], [None], settings.level)[0]
