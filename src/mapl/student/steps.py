"""Newton's method on noisy gradients: what to ask for next, and what to make of it.

Softmax regression (for two classes, logistic). The gradient of the private records
comes with noise of known size, by which a step is shrunk; its curvature comes from the
pool. A step is then cut into pieces (a column, a family of features): one more noisy
sum, the Gram matrix of the pieces, says how they go together in the private records,
and how far to go along each. So a pool that is made up, old or from elsewhere costs
accuracy, never stability.

Ji et al. 2014 (BMC Medical Genomics 7(S1):S14) take the Hessian from public data, too.
Shrinkage by known noise: arXiv 1805.06530. Private data in a metric of public second
moments: arXiv 2602.22282, which whitens; here the power is a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from mapl.arrays import Floats, Ints, Singles
from mapl.privacy.gradients import (
    RESIDUAL_GRID,
    WEIGHT_GRID,
    exact_weights,
    probabilities_of,
)
from mapl.privacy.linear_map import LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.privacy.pairs import WEIGHT_STEPS, least_probability
from mapl.privacy.questions import GramQuestion, Question

_CUT = 0.1  # of all length: what contributions exceed their bound by
_SPREADS = 10.0 ** np.arange(-6, 3.1, 0.5)  # prior variances that are tried
_RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of families' prior variances to others'
_LEAST_CURVATURE = 0.02
_ITERATIONS = 8  # of conjugate gradients
_LARGEST_MOVE = 3.0  # of the pool's logits in a step, at the 0.95 quantile
_UNIT = 2**5  # integer steps of a piece of usual size
_SMALLEST_PIECE = 0.03  # of the largest
_USUAL, _ROOM = 0.98, 2.0  # quantile of the pool's lengths; a record's bound over it
_RARE = 0.2  # share of an even frequency, below which a class is rare
_RAREST = 1e-3  # frequency that is started from, at least
_FEWEST_STEPS, _USUAL_STEPS, _MOST_STEPS = 5, 6, 10  # for two classes
_OF_MANY = ((80, 2), (1000, 3), (20_000, 4), (math.inf, 6))  # the same for more classes
_STEPS_AT, _FAINT = 8000, 1000  # signals of a class
# Signal below which, and how many.
_BINS = ((2000, 16), (12_000, 24), (math.inf, 40))


@dataclass(frozen=True)
class Points:
    """The pool in its own metric. Public.

    ``image`` has the components of each point, ``n_additive`` of them before the
    families, the constant last; a record's integers are such components times ``grid``.
    ``pieces`` says which belong together.
    """

    image: Singles
    pieces: list[slice]
    n_additive: int
    grid: int

    @property
    def additive(self) -> Ints:
        """Which components add up column by column; the constant is one of them."""
        found = np.arange(self.image.shape[1]) < self.n_additive
        found[-1] = True
        return np.flatnonzero(found)


def signal_of(n_records: float, shift: float, n_classes: int) -> float:
    """Return how much records say about each class: their number over the noise."""
    return max(2 * n_records * shift / n_classes, 1.0)


def n_steps(signal: float, n_classes: int) -> int:
    """Return how many steps to take: more where there is less noise."""
    if n_classes > 2:
        return next(steps for most, steps in _OF_MANY if signal < most)
    if signal < _FAINT:
        return _FEWEST_STEPS
    more = round(2 * math.log2(signal / _STEPS_AT))
    return min(max(_USUAL_STEPS + more, _USUAL_STEPS), _MOST_STEPS)


def gram_share(signal: float, n_classes: int) -> Fraction:
    """Return the part of a step's budget that its Gram matrix takes."""
    if n_classes > 2:
        return Fraction(1, 20)
    return Fraction(1, 5) if signal < _FAINT else Fraction(1, 10)


def n_bins(signal: float) -> int:
    """Return how many bins to cut a column of numbers into."""
    return next(bins for most, bins in _BINS if signal < most)


class _Directions:
    """Main directions of the pool's second moments, in which steps are computed."""

    def __init__(self, image: Singles, n_additive: int) -> None:
        _, self.vectors = np.linalg.eigh((image.T @ image).astype(np.float32))
        of_families = self.vectors[n_additive:-1] ** 2
        self._of_families = of_families.sum(axis=0, dtype=np.float64)[:, None]
        self._turned = image @ self.vectors
        self._squares = self._turned**2

    def step(self, curvature: Singles, gradient: Floats, noise: float) -> _Shrunk:
        """Return the most probable step (H + R)^-1 g for each class.

        H is its Hessian, and the ridge R what noise and the prior add to it: the prior
        variance t makes the gradient most likely.
        """
        g = self.vectors.T @ gradient.astype(np.float32)
        h = np.maximum(self._squares.T @ curvature, 1e-9)
        wide = h.astype(np.float64)

        def prior(t: float, ratio: float) -> Floats:
            return np.asarray(t * (1 + (ratio - 1) * self._of_families))

        def misfit(pair: tuple[float, float]) -> float:
            v = wide**2 * prior(*pair) + wide + noise
            return float((np.log(v) + g**2 / v).sum())

        pairs = [(t, ratio) for t in _SPREADS for ratio in _RATIOS]
        best = prior(*min(pairs, key=misfit))
        ridge = ((1 + noise / wide) / best).astype(np.float32)

        def matrix(x: Singles) -> Singles:
            curved = self._turned.T @ (curvature * (self._turned @ x))
            return np.asarray(curved + ridge * x)

        solved = conjugate_gradients(matrix, h + ridge, g)
        step = (self.vectors @ solved).astype(np.float64)
        return _Shrunk(step, float((solved.astype(np.float64) ** 2 * ridge).sum()))


@dataclass(frozen=True)
class _Shrunk:
    """A step, and what prior and noise add to its curvature along itself."""

    step: Floats
    penalty: float


def conjugate_gradients(
    matrix: Callable[[Singles], Singles], diagonal: Singles, target: Singles
) -> Singles:
    """Solve matrix(x) = target, each column by itself; each iteration goes downhill."""
    x, rest = np.zeros_like(target), target
    better = rest / diagonal
    direction, size = better, (rest * better).sum(axis=0)
    for _ in range(_ITERATIONS):
        moved = matrix(direction)
        along = size / np.maximum((direction * moved).sum(axis=0), 1e-30)
        x = x + along * direction
        rest = rest - along * moved
        better = rest / diagonal
        now = (rest * better).sum(axis=0)
        direction = better + (now / np.maximum(size, 1e-30)) * direction
        size = now
    return np.asarray(x)


class NewtonSteps:
    """Asks for a gradient, then for the Gram matrix of its pieces, and follows them.

    Parameters
    ----------
    points : Points
        The pool.
    n_classes : int
        One column of weights for each; a single one for two.
    n_records : float
        How many private records there are, about.
    parts : list of (Fraction, Fraction)
        Of the budget, for each step's gradient and for its Gram matrix.
    """

    def __init__(
        self,
        points: Points,
        *,
        n_classes: int,
        n_records: float,
        parts: list[tuple[Fraction, Fraction]],
    ) -> None:
        self._points, self._image = points, points.image
        self._n, self._parts, self._number = max(n_records, 1.0), parts, 0
        columns = 1 if n_classes == 2 else n_classes
        self.weights = np.zeros((points.image.shape[1], columns))
        self._lengths = np.sqrt(np.einsum("ij,ij->i", points.image, points.image))
        self._directions: _Directions | None = None
        self._shrunk: _Shrunk | None = None
        self._pieces: _Pieces | None = None

    @property
    def done(self) -> bool:
        """Whether every step was taken."""
        return self._number == len(self._parts)

    @property
    def logits(self) -> Floats:
        """Those of the pool, by the current weights."""
        return self._logits_of(self.weights)

    def _logits_of(self, weights: Floats) -> Floats:
        return np.asarray(self._image @ weights.astype(np.float32), dtype=np.float64)

    def start_at(self, frequencies: Floats) -> None:
        """Start from the classes' frequencies where one of them is rare: else steps
        would be spent on finding that out.
        """
        logits = start_logits(frequencies)
        if logits is not None:
            self.weights[-1] = logits / float(self._image[0, -1])  # of the constant

    def cell_weights(self) -> Floats:
        """Return the weights of a record's integers, as integers."""
        return exact_weights(self.weights / self._points.grid)

    # The gradient ----------------------------------------------------------------

    def next(self) -> Question:
        """Return which gradient to ask for."""
        part, _ = self._parts[self._number]
        return Question(self.cell_weights(), self._squared(self._bound()), part)

    def feature_bound(self, cut: float) -> int:
        """Return the squared bound of a record's features times a residual of 1; what
        exceeds it is this part of all length.
        """
        lengths = self._lengths[:, None].astype(np.float64)
        return self._squared(bound_by_mass(lengths, np.ones_like(lengths), cut))

    def _squared(self, bound: float) -> int:
        unit = self._points.grid * RESIDUAL_GRID
        return max(1, math.floor((bound * unit) ** 2 / LENGTH_UNIT))

    def _bound(self) -> float:
        """Return the bound of a contribution, over points of the pool and the labels
        that they may have by the current model.
        """
        p = probabilities_of(self.logits)
        if p.shape[1] == 1:
            residuals, shares = np.hstack((p, 1 - p)), np.hstack((1 - p, p))
        else:
            squared = (p**2).sum(axis=1, keepdims=True) - 2 * p + 1
            residuals, shares = np.sqrt(np.maximum(squared, 0)), p
        return bound_by_mass(self._lengths[:, None] * residuals, shares)

    def take(self, noisy: NoisySum) -> GramQuestion:
        """Make a step of a published gradient; return what to ask about its pieces."""
        unit = self._points.grid * RESIDUAL_GRID
        self._shrunk = shrunk = self._step(noisy.total / unit, noisy.sigma / unit)
        shown = _Pieces.of(self._piece_logits(shrunk.step), self.logits)
        self._pieces = shown
        _, part = self._parts[self._number]
        step = exact_weights(shrunk.step / self._points.grid)
        return GramQuestion(
            self.cell_weights(),
            step,
            shown.units * (WEIGHT_GRID / _UNIT),
            max(1, math.floor((shown.bound * _UNIT**2 * WEIGHT_STEPS) ** 2)),
            part,
        )

    def _step(self, gradient: Floats, sigma: float) -> _Shrunk:
        """Return the most probable step; for two classes, the first one is additive."""
        curvature = self._curvature()
        if self._number == 0 and self.weights.shape[1] == 1:
            used = self._points.additive
            found = _Directions(self._image[:, used], len(used) - 1)
            part = found.step(curvature, gradient[used], self._noise(sigma))
            step = np.zeros_like(self.weights)
            step[used] = part.step
            return _Shrunk(step, part.penalty)
        return self._solved(curvature, gradient, sigma)

    def _solved(self, curvature: Singles, gradient: Floats, sigma: float) -> _Shrunk:
        """Return the most probable step in all components."""
        if self._directions is None:
            self._directions = _Directions(self._image, self._points.n_additive)
        return self._directions.step(curvature, gradient, self._noise(sigma))

    def _noise(self, sigma: float) -> float:
        """Return the variance of the noise: without any, rounding would be signal."""
        return max(sigma**2, 1e-6 * self._n)

    def _curvature(self) -> Singles:
        """Return each point's curvature in each class, for all private records."""
        p = probabilities_of(self.logits)
        curvature = np.maximum(p * (1 - p), _LEAST_CURVATURE)
        if p.shape[1] > 1:  # each class as if alone; together they move that much less
            curvature *= p.shape[1] / (p.shape[1] - 1)
        return np.asarray(curvature * (self._n / len(p)), dtype=np.float32)

    def _piece_logits(self, step: Floats) -> Singles:
        """Return what each piece adds to logits: (points, classes, pieces)."""
        single, slices = step.astype(np.float32), self._points.pieces
        return np.stack([self._image[:, s] @ single[s] for s in slices], axis=2)

    # The Gram matrix -------------------------------------------------------------

    def take_gram(self, question: GramQuestion, noisy: NoisySum) -> None:
        """Go along each piece as far as the Gram matrix suggests."""
        assert self._shrunk is not None
        assert self._pieces is not None
        unit = _UNIT**2 * WEIGHT_STEPS
        shown = self._pieces.in_units(question.units / (WEIGHT_GRID / _UNIT))
        bound = math.sqrt(question.squared_length) / unit
        alone = shown.gram(bound) * (self._n / len(self._image))
        weights = shown.weights(
            alone, noisy.total / unit, noisy.sigma / unit, self._shrunk.penalty
        )
        for s, weight in zip(self._points.pieces, weights, strict=True):
            self.weights[s] += weight * self._shrunk.step[s]
        self._number += 1

    # Where labels alone are private ----------------------------------------------

    def follow_labels(self, gradient: Floats, sigma: float) -> None:
        """Take a step by a gradient whose noise is the same in every step: it leads to
        the most probable weights, not to the most probable change.
        """
        curvature = self._curvature()
        moved = self._logits_of(self.weights).astype(np.float32) * curvature
        seen = gradient + self._image.T @ moved
        change = self._solved(curvature, seen, sigma).step - self.weights
        largest = np.quantile(np.abs(self._logits_of(change)), 0.95, axis=0)
        self.weights += change * np.minimum(
            1.0, _LARGEST_MOVE / np.maximum(largest, 1e-9)
        )


@dataclass(frozen=True)
class _Pieces:
    """What the pieces of a step add to the pool's logits, centred, in ``units`` of
    their own: one noise then suits all.
    """

    shown: Singles  # (points, classes, pieces)
    q: Singles  # probabilities; for two classes, the curvature
    units: Floats

    @classmethod
    def of(cls, pieces: Singles, logits: Floats) -> _Pieces:
        """Take the model's probabilities from its logits."""
        p = probabilities_of(logits)
        if p.shape[1] == 1:
            q = np.maximum(p * (1 - p), least_probability(1))
        else:
            q = np.maximum(p, least_probability(p.shape[1]))
            shares = q / q.sum(axis=1, keepdims=True)
            mean = np.einsum("ik,ikd->id", shares.astype(np.float32), pieces)
            pieces = pieces - mean[:, None, :]
        squares = np.einsum("ik,ikd->d", q.astype(np.float32), pieces**2) / len(q)
        units = np.sqrt(squares.astype(np.float64))
        units = np.maximum(units, _SMALLEST_PIECE * units.max() + 1e-9)
        shown = (pieces / units).astype(np.float32)
        return cls(shown, q.astype(np.float32), units)

    def in_units(self, units: Floats) -> _Pieces:
        """Return the same in the units of a question that was begun earlier."""
        ratio = (self.units / units).astype(np.float32)  # of 1, unless a fit goes on
        return (
            self if (ratio == 1).all() else _Pieces(self.shown * ratio, self.q, units)
        )

    @cached_property
    def lengths(self) -> Floats:
        """The length of each point's sum of q z z'."""
        rooted = self.shown * np.sqrt(self.q)[:, :, None]
        grams = rooted @ rooted.transpose(0, 2, 1)
        return np.asarray(np.sqrt((grams**2).sum(axis=(1, 2))), dtype=np.float64)

    @property
    def bound(self) -> float:
        """The bound of a private record's."""
        return max(_ROOM * float(np.quantile(self.lengths, _USUAL)), 1e-6)

    def gram(self, bound: float) -> Floats:
        """Return the pool's own sum, each point shortened to the bound."""
        kept = np.minimum(1.0, bound / np.maximum(self.lengths, 1e-12))
        rooted = (
            self.shown * np.sqrt(self.q * kept[:, None].astype(np.float32))[:, :, None]
        )
        flat = rooted.reshape(-1, rooted.shape[2])
        return np.asarray(flat.T @ flat, dtype=np.float64)

    def weights(
        self, alone: Floats, found: Floats, sigma: float, penalty: float
    ) -> Floats:
        """Return how far to go along each piece, from 0 to 1.

        ``alone`` is the pool's Gram matrix, ``found`` the private one: no eigenvalue of
        it is below its noise.
        """
        d = len(alone)
        level = 2 * sigma * math.sqrt(d / 2)
        values, vectors = np.linalg.eigh((found + found.T) / 2)
        private = (vectors * np.maximum(values, level)) @ vectors.T
        diagonal = np.diag(alone)
        ridge = penalty * diagonal / max(float(diagonal @ self.units**2), 1e-12)
        ridge = np.diag(ridge + 1e-9 * np.trace(alone) + 1e-12)
        wanted = (alone + ridge) @ self.units
        solved = np.linalg.solve(private + ridge + level / 2 * np.eye(d), wanted)
        weights = np.clip(solved / self.units, 0, 1)
        move = weights * self.units
        moved = np.abs(self.shown @ move.astype(np.float32)).max(axis=1)
        largest = float(np.quantile(moved, 0.95))
        # Private records may move further than the pool does.
        further = float(move @ private @ move / max(move @ alone @ move, 1e-12))
        largest *= math.sqrt(max(1.0, further))
        return np.asarray(weights * min(1.0, _LARGEST_MOVE / max(largest, 1e-9)))


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
