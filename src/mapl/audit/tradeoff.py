r"""What a claim allows, and what draws show.

Somebody who sees an output guesses whether the canary was in the data. With false
positive rate a, a claim with the curve delta(epsilon) allows a true positive rate of at
most

    min over epsilon >= 0 of  exp(epsilon) a + delta(epsilon)
                        and   1 - exp(-epsilon) (1 - delta(epsilon) - a),

the second being the first for the neighbours in the other order. Rates that are
measured are bounded by Clopper and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import betaincinv
from scipy.stats import norm

from mapl.arrays import Floats, Ints
from mapl.privacy import accounting
from mapl.privacy.events import (
    ConfidentMaxEvent,
    Event,
    GaussianEvent,
    MomentsEvent,
    SparseVectorEvent,
    StableReleaseEvent,
)

_GRID = 150  # epsilons at which a curve is read
_LEAST_SHARE = 2.0**-6
_SHOWN = 12  # points of a picture
_STEPS = 8  # of the search for what is real


@dataclass(frozen=True)
class Claim:
    """Some events, and what they allow an attacker."""

    events: tuple[Event, ...]
    delta: float

    @cached_property
    def epsilon(self) -> float:
        """What is claimed at ``delta``."""
        return accounting.epsilon(self.events, delta=self.delta)

    @cached_property
    def _curve(self) -> tuple[Floats, Floats]:
        """Epsilons, and the delta at each."""
        curve = accounting.curve(self.events)
        end = 1.0
        while curve(end) > 1e-9 and end < 1000:
            end *= 1.5
        epsilons = np.linspace(0, end, _GRID)
        return epsilons, np.array([curve(one) for one in epsilons.tolist()])

    def most_power(self, false_positives: Any) -> Floats:
        """Return the largest true positive rate that the claim allows."""
        epsilons, deltas = self._curve
        rates = np.asarray(false_positives, dtype=float)[..., None]
        one = np.exp(np.minimum(epsilons, 500)) * rates + deltas
        other = 1 - np.exp(-epsilons) * (1 - deltas - rates)
        return np.asarray(np.minimum(one, other).min(axis=-1).clip(0, 1))

    def weakened(self, share: float) -> Claim:
        """Return the claim of the same mechanisms with less to tell."""
        return Claim(tuple(_weakened(one, share) for one in self.events), self.delta)


def _weakened(event: Event, share: float) -> Event:
    """Return an event whose noise is larger by 1/share, and its thresholds with it."""
    part = Fraction(share).limit_denominator(10**6)
    if isinstance(event, GaussianEvent):
        return replace(event, sigma=event.sigma / part)
    if isinstance(event, MomentsEvent):
        return replace(event, squared_shift=event.squared_shift * part**2)
    if isinstance(event, ConfidentMaxEvent):
        return replace(
            event, check_sigma=event.check_sigma / part, sigma=event.sigma / part
        )
    assert isinstance(event, StableReleaseEvent | SparseVectorEvent)
    wider: dict[str, Any] = {
        "noise_scale": event.noise_scale / part,
        # A higher threshold leaks less, and changes nothing else that is claimed.
        "threshold": math.ceil(4 * event.threshold / part),
    }
    if isinstance(event, SparseVectorEvent):
        wider["threshold_noise_scale"] = event.threshold_noise_scale / part
    return replace(event, **wider)


@dataclass(frozen=True)
class Point:
    """A test of the canary's presence, with bounds on its two rates.

    ``false_positives`` is bounded from above, ``power`` from below; ``rates`` are the
    shares that were counted.
    """

    false_positives: float
    power: float
    rates: tuple[float, float]

    def refutes(self, claim: Claim) -> bool:
        """Whether no mechanism that keeps the claim would show this."""
        return bool(self.power > claim.most_power(self.false_positives))


@dataclass(frozen=True)
class Verdict:
    """What draws say of a claim.

    ``real`` is an epsilon: with the canary of this audit, and mechanisms of this kind,
    less noise than that of ``real`` has been shown not to be there.
    """

    claimed: float
    real: float
    refuted: bool
    draws: int
    points: list[Point]
    leak: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "claimed": self.claimed,
            "real": self.real,
            "refuted": self.refuted,
            "draws": self.draws,
            "verdict": self.sentence(),
        }

    def sentence(self) -> str:
        """Return the verdict for people."""
        if self.leak:
            return f"REFUTED: {self.leak}."
        if self.refuted:
            return (
                f"REFUTED: the draws show more than the claimed epsilon "
                f"{self.claimed:.3g} allows."
            )
        if not self.real:
            return (
                "not refuted: so many draws show nothing of the claimed "
                f"{self.claimed:.3g}; more may"
            )
        return (
            f"not refuted: at least {self.real:.3g} of the claimed {self.claimed:.3g} "
            "is real"
        )


def judge(
    claim: Claim, without: Floats, with_: Floats, *, confidence: float
) -> Verdict:
    """Return what scores of outputs say of a claim.

    Two tests are chosen on the first scores, one that refutes best and one that shows
    most, and counted on the others. A claim that holds is refuted with probability at
    most 1 - confidence.
    """
    first_out, second_out = _split(without)
    first_in, second_in = _split(with_)
    level = (1 - confidence) / 4  # two tests, two rates each
    thresholds = _thresholds(first_out, first_in)
    tried = _counts(first_out, first_in, thresholds, level)
    allowed = claim.most_power([one.false_positives for one in tried])
    margins = np.array([one.power for one in tried]) - allowed
    best = {int(np.argmax(margins)), int(np.argmax([_shift(one) for one in tried]))}
    counted = _counts(second_out, second_in, thresholds, level)
    points = [counted[i] for i in sorted(best)]
    refuted = any(point.refutes(claim) for point in points)
    real = max(_real(claim, point) for point in points)
    shown = counted[:: max(1, len(counted) // _SHOWN)]
    n = len(without) + len(with_)
    return Verdict(claim.epsilon, real, refuted, n, [*points, *shown])


def _split(scores: Floats) -> tuple[Floats, Floats]:
    """Return the first scores, which choose a test, and those that are counted."""
    n = first_draws(len(scores))
    return scores[:n], scores[n:]


def first_draws(n: int) -> int:
    """Return how many of n draws choose the test."""
    return n // 4


def _thresholds(*scores: Floats) -> Floats:
    """Return values that scores lie between, at most some hundred."""
    every = np.unique(np.concatenate(scores))
    middles = (every[:-1] + every[1:]) / 2 if len(every) > 1 else every
    picked = np.linspace(0, len(middles) - 1, min(len(middles), 300)).astype(int)
    return np.asarray(middles[picked])


def _counts(
    without: Floats, with_: Floats, thresholds: Floats, level: float
) -> list[Point]:
    """Count how often each threshold is exceeded; then how often it is not, where the
    canary is what is missing.
    """
    out, in_ = (
        len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")
        for scores in (without, with_)
    )
    n, m = len(without), len(with_)
    return _points(out, n, in_, m, level) + _points(m - in_, m, n - out, n, level)


def _points(false: Ints, n: int, true: Ints, m: int, level: float) -> list[Point]:
    """Return tests with so many false positives of n, and true ones of m."""
    upper, lower = _upper(false, n, level), 1 - _upper(m - true, m, level)
    return [
        Point(float(a), float(b), (float(c), float(d)))
        for a, b, c, d in zip(upper, lower, false / n, true / m, strict=True)
    ]


def _upper(hits: Ints, n: int, level: float) -> Floats:
    """Bound rates from above (Clopper, Pearson 1934)."""
    found = betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - level)
    return np.where(hits == n, 1.0, found)


def _shift(point: Point) -> float:
    """Return the shift of a Gaussian that shows the same rates."""
    return float(norm.ppf(point.power) - norm.ppf(point.false_positives))


def _real(claim: Claim, point: Point) -> float:
    """Return the largest epsilon of this kind of mechanism that a point refutes."""
    low, high = 0.0, 1.0
    if not point.refutes(claim.weakened(_LEAST_SHARE)):
        return 0.0
    if point.refutes(claim):
        return claim.epsilon
    for _ in range(_STEPS):
        share = (low + high) / 2
        low, high = (
            (share, high)
            if share < _LEAST_SHARE or point.refutes(claim.weakened(share))
            else (low, share)
        )
    return claim.weakened(low).epsilon if low else 0.0


def learned_score(without: Floats, with_: Floats) -> Floats:
    """Return weights that tell outputs with a canary from those without: Fisher's, for
    coordinates with noise of their own.
    """
    shift = with_.mean(axis=0) - without.mean(axis=0)
    spread = with_.var(axis=0) + without.var(axis=0)
    floor = 1e-12 + 1e-9 * float(spread.max(initial=0.0))
    return np.asarray(shift / (spread + floor))


def best_scores(
    without: Floats, with_: Floats, known: Sequence[Floats]
) -> tuple[Floats, Floats]:
    """Return the scores of all outputs by the weights that tell the first ones best.

    ``known`` are weights that follow from how the mechanism works; others are learned.
    All choices are made on the draws that choose the test, half of which learn.
    """
    n = first_draws(len(without))
    learned = learned_score(without[: n // 2], with_[: n // 2])

    def quality(weights: Floats) -> float:
        out, in_ = without[n // 2 : n] @ weights, with_[n // 2 : n] @ weights
        spread = math.sqrt(out.var() + in_.var())
        return float(abs(in_.mean() - out.mean())) / (spread or 1e-9)

    weights = max([*known, learned], key=quality)
    return without @ weights, with_ @ weights
