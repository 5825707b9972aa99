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
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from mapl.arrays import Bools, Floats, Ints, Singles
from mapl.privacy.gradients import RESIDUAL_GRID, exact_weights, probabilities_of
from mapl.privacy.moments import LARGEST_WEIGHT, LENGTH_UNIT, NoisySum
from mapl.privacy.questions import Question

_CUT = 0.1  # of all length: what contributions exceed their bound by
_LEAST_CURVATURE = 0.08  # as a share of that of equally probable classes
_LARGEST_MOVES = 2.5, 1.0  # of the points' logits in a step, at the 0.95 quantile:
# for two classes, and for more
_SPREADS = 10.0 ** np.arange(-6, 3.1, 0.5)  # prior variances that are tried
_NEAR = 10.0 ** np.arange(-0.5, 0.6, 0.5)  # around the best for one common variance
_RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0)  # of the waves' prior variance to that of the rest
_TWO_CLASS_WAVES = 3  # quarters: the weight of the waves, which are worth more where
# there are more classes
_TWO_CLASS_COMPONENTS, _FEWEST_COMPONENTS = 120, 100
_COMPONENTS = 4.7  # of waves, times the root of records times shift
_LEAD = 4.0  # of twice the log-likelihood: the least for which waves are kept
_LEAST_NOISE = 1e-4  # squared, relative to the largest curvature
_LEAST_SIGNAL = 0.01  # share of a direction that is signal, at a prior variance of 1
_RARE = 0.2  # share of an even frequency, below which a class is rare
_RAREST = 1e-3  # frequency that is started from, at least
_EVEN, _EVEN_CONSTANT = 0.5, 0.01  # log-frequencies that hardly differ; then, how small
# the constant's prior variance is: else its noise alone would choose the class
_ROWS = 2**11  # of a product
_ITERATIONS, _SOLVED = 12, 1e-6  # of conjugate gradients
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
        basis = _Basis.of(
            seen, is_wave, curvature, gradient, kappa=kappa, noise=sigma**2
        )
        if once:
            basis = basis.seen_from(before)
        unit = (LARGEST_WEIGHT / max(self.waves, 1)) ** 2
        ratios = _RATIOS if self._ratio is None else (self._ratio,)
        spread, waves = _best_prior(basis, unit, ratios)
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


@dataclass(frozen=True)
class _Basis:
    """A published gradient in the main directions of the curvature.

    All classes share the directions; ``h`` has each class's curvature along them, and
    ``g`` its gradient. Directions in which noise drowns everything are left out.
    ``overlap`` says how much of which directions is waves.
    """

    seen: Singles
    curvature: Singles
    gradient: Floats
    vectors: Floats
    is_wave: Bools
    overlap: Floats
    h: Floats
    g: Floats
    kappa: float
    noise: float

    @classmethod
    def of(
        cls,
        seen: Singles,
        is_wave: Bools,
        curvature: Floats,
        gradient: Floats,
        *,
        kappa: float,
        noise: float,
    ) -> _Basis:
        root = np.sqrt(curvature.mean(axis=1, keepdims=True)).astype(np.float32)
        hessian = np.zeros((seen.shape[1],) * 2, dtype=np.float32)
        for rows in _row_blocks(len(seen)):
            rooted = seen[rows] * root[rows]
            hessian += rooted.T @ rooted
        values, vectors = np.linalg.eigh(hessian)
        values = np.maximum(values, 0).astype(np.float64)
        # Without any noise, rounding would be taken for signal.
        noise = max(noise, _LEAST_NOISE * float(values.max(initial=0.0)), 1e-12)
        signal = values**2 / (values**2 + kappa * values + noise + 1e-300)
        kept = np.flatnonzero(signal >= min(_LEAST_SIGNAL, signal.max()))
        vectors = vectors[:, kept]
        if curvature.shape[1] == 1:
            h = values[kept, None]
        else:
            h = np.zeros((vectors.shape[1], curvature.shape[1]))
            for rows in _row_blocks(len(seen)):
                turned = (seen[rows] @ vectors) ** 2
                h += turned.T @ curvature[rows].astype(np.float32)
        overlap = (vectors[is_wave].T @ vectors[is_wave]).astype(np.float64)
        vectors = vectors.astype(np.float64)
        return cls(
            seen=seen,
            curvature=curvature.astype(np.float32),
            gradient=gradient,
            vectors=vectors,
            is_wave=is_wave,
            overlap=overlap,
            h=h,
            g=vectors.T @ gradient,
            kappa=kappa,
            noise=noise,
        )

    def seen_from(self, weights: Floats) -> _Basis:
        """Return the gradient as it would be seen from weights of zero."""
        seen = self.gradient + self.curve(weights)
        return replace(self, gradient=seen, g=self.vectors.T @ seen)

    def curve(self, weights: Floats) -> Floats:
        """Return each class's Hessian times its weights."""
        moved = (self.seen @ weights.astype(np.float32)) * self.curvature
        return np.asarray(self.seen.T @ moved, dtype=np.float64)

    def misfit(self, variance: Floats) -> float:
        """Return minus twice the log-likelihood where directions are independent."""
        return float((np.log(variance) + self.g**2 / variance).sum())

    def variance(self, spread: float) -> Floats:
        """Return the variance of the gradient for one prior variance of all weights."""
        return self.h**2 * spread + self.kappa * self.h + self.noise

    def covariance_misfit(self, spread: float, waves: float) -> float:
        """Return minus twice the log-likelihood for a prior variance of additive
        weights, and that of the waves.
        """
        from scipy.linalg import solve_triangular

        h = self.h.mean(axis=1)
        factor = np.linalg.cholesky(self._covariance(self._turned(spread, waves), h))
        white = solve_triangular(factor, self.g, lower=True)
        logs = 2 * np.log(np.diag(factor)).sum() * self.g.shape[1]
        return float(logs + (white**2).sum())

    def solve(self, spread: float, waves: float, constant: float = 1.0) -> Floats:
        """Return the most probable weights: T H C^-1 g, where T is the prior and C =
        H T H + kappa H + noise the covariance of the gradient. With several classes,
        the prior variance of the constant is ``constant`` times that of the others.

        Conjugate gradients solve all classes at once; the shared directions
        precondition them.
        """
        prior = np.where(self.is_wave, waves, spread)[:, None]
        if self.h.shape[1] == 1:  # the directions are its own
            whole = self._covariance(self._turned(spread, waves), self.h[:, 0])
            found = self.h * np.linalg.solve(whole, self.g)
            return np.asarray(prior * (self.vectors @ found))
        prior[-1] *= constant
        likely = self.variance(max(spread, waves))

        def covariance(x: Floats) -> Floats:
            curved = self.curve(x)
            return self.curve(prior * curved) + self.kappa * curved + self.noise * x

        def precondition(x: Floats) -> Floats:
            turned = self.vectors.T @ x
            return x / self.noise + self.vectors @ (
                turned / likely - turned / self.noise
            )

        found = _conjugate_gradients(covariance, precondition, self.gradient)
        return np.asarray(prior * self.curve(found))

    def _turned(self, spread: float, waves: float) -> Floats:
        """Return the prior covariance of the directions."""
        found = (waves - spread) * self.overlap
        found[np.diag_indices_from(found)] += spread
        return found

    def _covariance(self, turned: Floats, h: Floats) -> Floats:
        found = h[:, None] * turned * h
        found[np.diag_indices_from(found)] += self.kappa * h + self.noise
        return found


def _row_blocks(n: int) -> list[slice]:
    """Return slices of so many rows, for products that should take little memory."""
    return [slice(start, start + _ROWS) for start in range(0, n, _ROWS)]


def _conjugate_gradients(
    matrix: Callable[[Floats], Floats],
    precondition: Callable[[Floats], Floats],
    target: Floats,
) -> Floats:
    """Solve matrix(x) = target, each column by itself."""
    x = np.zeros_like(target)
    rest, direction, size = target, np.zeros_like(target), np.ones(target.shape[1])
    first = None
    for _ in range(_ITERATIONS):
        better = precondition(rest)
        now = (rest * better).sum(axis=0)
        first = now if first is None else first
        solved = now <= _SOLVED * first  # further steps would follow rounding errors
        if solved.all():
            break
        direction = better + direction * (now / np.maximum(size, 1e-300))
        moved = matrix(direction)
        along = now / np.maximum((direction * moved).sum(axis=0), 1e-300)
        along = np.where(solved, 0.0, along)
        x = x + along * direction
        rest, size = rest - along * moved, now
    return x


def _best_prior(
    basis: _Basis, unit: float, ratios: tuple[float, ...]
) -> tuple[float, float]:
    """Return the prior variances of additive weights and of waves; 0 for waves that
    explain next to nothing. ``unit`` is the variance of waves for a ratio of 1.

    They make the published gradient most likely: model selection is free.
    """
    common = min(_SPREADS, key=lambda spread: basis.misfit(basis.variance(spread)))
    if not basis.is_wave.any():
        return float(common), float(common)
    found = {
        (float(spread), float(ratio * unit * spread)): 0.0
        for ratio in ratios
        for spread in common * _NEAR
    }
    for prior in found:
        found[prior] = basis.covariance_misfit(*prior)
    if len(ratios) == 1:
        return min(found, key=found.__getitem__)
    without = {prior: misfit for prior, misfit in found.items() if prior[1] == 0}
    best, best_without = (min(d, key=d.__getitem__) for d in (found, without))
    return best if found[best_without] - found[best] >= _LEAD else best_without
