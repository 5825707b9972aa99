"""Newton's method on noisy gradients: what to ask for next, and what to make of it.

Softmax regression (for two classes, logistic). The gradient of the private
records comes with noise of known size; the curvature needs no labels, so it comes from
the public points. Each step is shrunk by what is known of the noise.

Ji et al. 2014 (BMC Medical Genomics 7(S1):S14) take the Hessian from public data, too.
Shrinkage by known noise: arXiv 1805.06530. Private data in a metric of public second
moments: arXiv 2602.22282, which whitens; here the power is a quarter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mapl.arrays import Bools, Floats, Ints, Singles
from mapl.privacy.gradients import RESIDUAL_GRID, exact_weights, probabilities_of
from mapl.privacy.linear_map import LARGEST_WEIGHT, LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.privacy.questions import Question
from mapl.student.shrinkage import RATIOS, Basis, best_prior

_CUT = 0.1  # of all length: what contributions exceed their bound by
_LEAST_CURVATURE = 0.08  # as a share of that of equally probable classes
_LARGEST_MOVES = 2.5, 1.0  # of the points' logits in a step, at the 0.95 quantile:
# for two classes, and for more
_TWO_CLASS_WAVES = 3  # quarters: the weight of the waves, which are worth more where
# there are more classes
_TWO_CLASS_COMPONENTS, _FEWEST_COMPONENTS = 120, 100
_COMPONENTS = 4.7  # of waves, times the root of records times shift
_RARE = 0.2  # share of an even frequency, below which a class is rare
_RAREST = 1e-3  # frequency that is started from, at least
_EVEN, _EVEN_CONSTANT = 0.5, 0.01  # log-frequencies that hardly differ; then, how small
# the constant's prior variance is: else its noise alone would choose the class
_FEWEST_STEPS, _MOST_STEPS = 2, 5


@dataclass(frozen=True)
class Points:
    """The public points in their own metric.

    ``image`` has their components, ``n_additive`` of them before the waves, the
    constant last; a record's integers are such components times ``grid``.
    """

    image: Singles
    n_additive: int
    grid: int


def n_steps(n_records: float, shift: float) -> int:
    """Return how many steps to take: more where there is less noise."""
    signal = max(n_records * shift, 1.0)
    steps = round(2 + math.log(signal / 900) / math.log(3))
    return min(max(steps, _FEWEST_STEPS), _MOST_STEPS)


def wave_components(n_records: float, shift: float, n_classes: int) -> int:
    """Return how many leading components of the waves to use, of each kind: what the
    others say would drown in noise.
    """
    if n_classes == 2:
        return _TWO_CLASS_COMPONENTS
    found = _COMPONENTS * math.sqrt(max(n_records * shift, 1.0))
    return max(_FEWEST_COMPONENTS, round(found))


class NewtonSteps:
    """Asks for one gradient after the other, and follows them.

    Parameters
    ----------
    points : Points
        The public points.
    n_classes : int
        One column of weights for each; a single one for two.
    n_records : float
        How many private records there are, about.
    parts : list of Fraction
        Of the budget, for each step.
    """

    def __init__(
        self,
        points: Points,
        *,
        n_classes: int,
        n_records: float,
        parts: list[Fraction],
    ) -> None:
        self._points, self._image = points, points.image
        self._n, self._parts, self._step = max(n_records, 1.0), parts, 0
        columns = 1 if n_classes == 2 else n_classes
        self.weights = np.zeros((points.image.shape[1], columns))
        self._shares = probabilities_of(self.logits)
        self._squared_lengths = tuple(
            np.einsum("ij,ij->i", part, part)
            for part in (self._image[:, ~self._is_wave], self._image[:, self._is_wave])
        )
        self.waves = LARGEST_WEIGHT if columns > 1 else _TWO_CLASS_WAVES
        self._even = False
        self._weighted: tuple[int, Singles] | None = None
        self._ratio: float | None = None  # of prior variances, by the first gradient

    @property
    def done(self) -> bool:
        """Whether every step was taken."""
        return self._step == len(self._parts)

    @property
    def logits(self) -> Floats:
        """Those of the public points, by the current weights."""
        return np.asarray(self._image @ self.weights, dtype=np.float64)

    def start_at(self, frequencies: Floats) -> None:
        """Start from the classes' frequencies where one of them is rare: else steps
        would be spent on finding that out. Elsewhere an even start was better.
        """
        self._even = bool(np.ptp(np.log(np.maximum(frequencies, 1e-9))) < _EVEN)
        logits = start_logits(frequencies)
        if logits is not None:
            self.weights[-1] = logits / float(self._image[0, -1])  # of the constant

    def look(self) -> None:
        """Compute the probabilities of the points by the current weights."""
        self._shares = probabilities_of(self.logits)

    def next(self) -> Question:
        """Return what to ask for."""
        self.look()
        bound = self._bound(self.waves)
        return Question(
            self.cell_weights(waves=self.waves > 0),
            self.waves,
            self._squared(bound),
            self._parts[self._step],
        )

    def feature_bound(self, cut: float) -> int:
        """Return the squared bound of a record's features times a residual of 1; what
        exceeds it is this part of all length.
        """
        lengths = self._lengths(self.waves)
        return self._squared(bound_by_mass(lengths, np.ones_like(lengths), cut))

    def _squared(self, bound: float) -> int:
        unit = self._points.grid * LARGEST_WEIGHT * RESIDUAL_GRID
        return max(1, math.floor((bound * unit) ** 2 / LENGTH_UNIT))

    def _lengths(self, waves: int) -> Floats:
        """Return the length of each point's weighted image, as a column."""
        additive, wave = self._squared_lengths
        squares = additive + wave * (waves / LARGEST_WEIGHT) ** 2
        return np.asarray(np.sqrt(squares)[:, None], dtype=np.float64)

    def take(self, question: Question, noisy: NoisySum) -> None:
        """Follow a published gradient; ``question`` is what it answers."""
        unit = self._points.grid * LARGEST_WEIGHT * RESIDUAL_GRID
        self.waves = question.waves
        self.follow(noisy.total / unit, noisy.sigma / unit)

    def follow(self, gradient: Floats, sigma: float, *, once: bool = False) -> None:
        """Follow a gradient of the weighted image with noise sigma.

        With ``once`` the noise is the same in every step: then a step leads to the most
        probable weights, not to the most probable change.
        """
        used, weights = self._used(self.waves)
        seen, p = self._seen(self.waves), self._shares
        even = 1 / max(2, p.shape[1])
        least = _LEAST_CURVATURE * even * (1 - even)
        curvature = np.maximum(p * (1 - p), least) * (self._n / len(p))
        if p.shape[1] > 1:  # each class as if alone; together they move that much less
            curvature *= p.shape[1] / (p.shape[1] - 1)
        first = self._step == 0 and not once
        kappa = 1 + self._n / len(p) if first else 1.0
        is_wave, before = self._is_wave[used], self.weights[used] / weights[:, None]
        basis = Basis.of(
            seen, is_wave, curvature, gradient, kappa=kappa, noise=sigma**2
        )
        if once:
            basis = basis.seen_from(before)
        unit = (LARGEST_WEIGHT / max(self.waves, 1)) ** 2
        ratios = RATIOS if self._ratio is None else (self._ratio,)
        spread, waves = best_prior(basis, unit, ratios)
        self._ratio = waves / (unit * spread)
        constant = _EVEN_CONSTANT if self._even else 1.0
        step = basis.solve(spread, waves, constant)
        step = (step - before if once else step) * weights[:, None]
        change = seen @ (step / weights[:, None]).astype(np.float32)
        moved = np.quantile(np.abs(change), 0.95, axis=0)
        largest = _LARGEST_MOVES[p.shape[1] > 1]
        self.weights[used] += step * np.minimum(1.0, largest / np.maximum(moved, 1e-9))
        if first and waves == 0:
            self.waves = 0  # for good: the first gradient shows nothing for them
        self._step += 1

    def cell_weights(self, *, waves: bool) -> Floats:
        """Return the weights of a record's integers, as integers."""
        kept = self.weights if waves else self.weights[~self._is_wave]
        return exact_weights(kept / self._points.grid)

    @property
    def _is_wave(self) -> Bools:
        is_wave = np.zeros(len(self.weights), dtype=np.bool_)
        is_wave[self._points.n_additive : -1] = True
        return is_wave

    def _seen(self, waves: int) -> Singles:
        """Return the points as a sum weighs their features; kept for the next step."""
        if self._weighted is None or self._weighted[0] != waves:
            used, weights = self._used(waves)
            seen = self._image
            if len(used) < seen.shape[1] or (weights != 1).any():
                seen = seen[:, used] * weights.astype(np.float32)
            self._weighted = waves, seen
        return self._weighted[1]

    def _used(self, waves: int) -> tuple[Ints, Floats]:
        """Return which features a sum has, and the weight of each."""
        weights = np.where(self._is_wave, waves / LARGEST_WEIGHT, 1.0)
        used = np.flatnonzero(weights)
        return used, weights[used]

    def _bound(self, waves: int) -> float:
        """Return the bound of a contribution, in units of the weighted image.

        Over points and the labels that they may have by the current model.
        """
        p = self._shares
        lengths = self._lengths(waves)
        if p.shape[1] == 1:
            residuals, shares = np.hstack((p, 1 - p)), np.hstack((1 - p, p))
        else:
            shares = p
            squared = (p**2).sum(axis=1, keepdims=True) - 2 * p + 1
            residuals = np.sqrt(np.maximum(squared, 0))
        return bound_by_mass(lengths * residuals, shares)


def start_logits(frequencies: Floats) -> Floats | None:
    """Return the logits of the classes' frequencies where one of them is rare."""
    if frequencies.min() * len(frequencies) >= _RARE:
        return None
    logits = np.log(np.clip(frequencies, _RAREST, 1.0))
    return logits[1:] - logits[:1] if len(logits) == 2 else logits


def bound_by_mass(lengths: Floats, shares: Floats, cut: float = _CUT) -> float:
    """Return c such that what lengths exceed it by is this part of all length.

    A plain quantile would cut off rare classes.
    """
    allowed = cut * float((shares * lengths).sum())
    low, high = 0.0, float(lengths.max())
    for _ in range(40):
        middle = (low + high) / 2
        excess = float((shares * np.maximum(lengths - middle, 0)).sum())
        low, high = (middle, high) if excess > allowed else (low, middle)
    return max(high, 1e-6)
