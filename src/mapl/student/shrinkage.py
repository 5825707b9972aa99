"""A noisy gradient, shrunk by what is known of its noise.

The curvature's main directions, the prior that makes a published gradient most likely,
and the most probable step. Shrinkage by known noise: arXiv 1805.06530.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mapl.arrays import Bools, Floats, Singles

_SPREADS = 10.0 ** np.arange(-6, 3.1, 0.5)  # prior variances that are tried
_NEAR = 10.0 ** np.arange(-0.5, 0.6, 0.5)  # around the best for one common variance
RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0)  # of the waves' prior variance to that of the rest
_LEAD = 4.0  # of twice the log-likelihood: the least for which waves are kept
_LEAST_NOISE = 1e-4  # squared, relative to the largest curvature
_LEAST_SIGNAL = 0.01  # share of a direction that is signal, at a prior variance of 1
_ROWS = 2**11  # of a product
_ITERATIONS, _SOLVED = 12, 1e-6  # of conjugate gradients


@dataclass(frozen=True)
class Basis:
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
    ) -> Basis:
        """Turn a gradient to the main directions of the mean curvature."""
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

    def seen_from(self, weights: Floats) -> Basis:
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

        found = conjugate_gradients(covariance, precondition, self.gradient)
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


def conjugate_gradients(
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


def best_prior(
    basis: Basis, unit: float, ratios: tuple[float, ...]
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
