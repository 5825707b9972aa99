"""Newton's method on noisy gradients: what to ask for next, and what to make of it.

One logistic regression a class (two classes: one in all). The gradient of the private
records comes with noise of known size; the curvature needs no labels, so it comes from
the public points. Each step is shrunk by what is known of the noise.

Ji et al. 2014 (BMC Medical Genomics 7(S1):S14) take the Hessian from public data, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mapl.arrays import Floats
from mapl.privacy.moments import NoisySum

RESIDUAL_GRID = 2**11  # integer steps of a residual of 1
WEIGHT_GRID = 2**20  # of a weight of 1, for features in integer steps
SIGMOID_STEPS = 2**11  # entries of the table of sigmoids for a logit of 1
_FARTHEST_LOGIT = 16
_CUT = 0.1  # of all length: what contributions exceed their bound by
_LEAST_CURVATURE = 0.02
_LARGEST_MOVE = 3.0  # of the points' logits in a step, at the 0.95 quantile
_SPREADS = 10.0 ** np.arange(-6, 3.1, 0.5)  # prior variances that are tried
_FEWEST_STEPS, _MOST_STEPS = 2, 5


@dataclass(frozen=True)
class Question:
    """A gradient to be asked for: integer weights, the logit that they start from, the
    bound of a contribution, and the part of the budget. Public.
    """

    weights: Floats
    start: float
    squared_length: int
    part: Fraction


def sigmoid_table() -> Floats:
    """Return the sigmoids of logits from -16 to 16, as integers."""
    n = 2 * _FARTHEST_LOGIT * SIGMOID_STEPS
    logits = (np.arange(n) + 0.5) / SIGMOID_STEPS - _FARTHEST_LOGIT
    return np.asarray(np.rint(RESIDUAL_GRID / (1 + np.exp(-logits))))


def probabilities(features: Floats, question: Question, table: Floats) -> Floats:
    """Return each class's probability as an integer, exactly: features and weights
    are integers, and the sigmoid is looked up.
    """
    logits = features @ question.weights  # in steps of 1/WEIGHT_GRID
    offset = question.start + _FARTHEST_LOGIT
    places = np.floor(logits / (WEIGHT_GRID // SIGMOID_STEPS)) + round(
        offset * SIGMOID_STEPS
    )
    return np.asarray(table[np.clip(places, 0, len(table) - 1).astype(np.int64)])


def n_steps(n_records: float, shift: float) -> int:
    """Return how many steps to take: more where there is less noise."""
    signal = max(n_records * shift, 1.0)
    steps = round(2 + math.log(signal / 900) / math.log(3))
    return min(max(steps, _FEWEST_STEPS), _MOST_STEPS)


class NewtonSteps:
    """Asks for one gradient after the other, and follows them.

    Parameters
    ----------
    points : ndarray of integers as float64
        The public points' features.
    n_classes : int
        One regression for each; one in all for two.
    grid : int
        Integer steps of one unit of a feature.
    n_records : float
        How many private records there are, about.
    parts : list of Fraction
        Of the budget, for each step.
    """

    def __init__(
        self,
        points: Floats,
        *,
        n_classes: int,
        grid: int,
        n_records: float,
        parts: list[Fraction],
    ) -> None:
        self._points, self._grid = points / grid, grid
        self._n, self._parts = max(n_records, 1.0), parts
        self.n_classes, self._step = n_classes, 0
        self._columns = 1 if n_classes == 2 else n_classes
        self.start = 0.0 if n_classes == 2 else -math.log(n_classes - 1)
        self.weights = np.zeros((points.shape[1], self._columns))
        self._lengths = np.linalg.norm(self._points, axis=1)

    @property
    def done(self) -> bool:
        """Whether every step was taken."""
        return self._step == len(self._parts)

    def next(self) -> Question:
        """Return what to ask for."""
        self._shares = self._sigmoids()
        bound = self._bound(self._shares)
        squared = (bound * self._grid * RESIDUAL_GRID) ** 2
        return Question(
            np.rint(self.weights * WEIGHT_GRID / self._grid),
            self.start,
            max(1, math.floor(squared)),
            self._parts[self._step],
        )

    def take(self, noisy: NoisySum) -> None:
        """Follow a published gradient."""
        unit = self._grid * RESIDUAL_GRID
        gradient, sigma = noisy.total / unit, noisy.sigma / unit
        m = len(self._points)
        kappa = 1 + self._n / m if self._step == 0 else 1.0
        parts = [self._curvature(self._shares[:, k]) for k in range(self._columns)]
        turned = [v.T @ gradient[:, k] for k, (_, v) in enumerate(parts)]
        spread = _best_spread(
            [h for h, _ in parts], turned, kappa=kappa, noise=sigma**2
        )
        for k, (h, vectors) in enumerate(parts):
            variance = h**2 * spread + kappa * h + sigma**2
            step = vectors @ (h * spread / variance * turned[k])
            moved = float(np.quantile(np.abs(self._points @ step), 0.95))
            self.weights[:, k] += step * min(1.0, _LARGEST_MOVE / max(moved, 1e-9))
        self._step += 1

    def _sigmoids(self) -> Floats:
        logits = np.clip(self._points @ self.weights + self.start, -30, 30)
        return np.asarray(1 / (1 + np.exp(-logits)))

    def _curvature(self, p: Floats) -> tuple[Floats, Floats]:
        """Return the eigenvalues and vectors of one class's Hessian."""
        weight = np.maximum(p * (1 - p), _LEAST_CURVATURE) * (self._n / len(p))
        h, vectors = np.linalg.eigh((self._points * weight[:, None]).T @ self._points)
        return np.maximum(h, 0), vectors

    def _bound(self, p: Floats) -> float:
        """Return c such that what contributions exceed it by is a tenth of all length,
        over points and the labels that they may have by the current model.

        A plain quantile would cut off rare classes.
        """
        if self.n_classes == 2:
            residuals = np.hstack((p, 1 - p))
            shares = np.hstack((1 - p, p))
        else:
            shares = p / p.sum(axis=1, keepdims=True)
            squared = (p**2).sum(axis=1, keepdims=True) - 2 * p + 1
            residuals = np.sqrt(np.maximum(squared, 0))
        lengths = self._lengths[:, None] * residuals
        allowed = _CUT * float((shares * lengths).sum())
        low, high = 0.0, float(lengths.max())
        for _ in range(40):
            middle = (low + high) / 2
            cut = float((shares * np.maximum(lengths - middle, 0)).sum())
            low, high = (middle, high) if cut > allowed else (low, middle)
        return max(high, 1e-6)


def _best_spread(
    curvatures: list[Floats], turned: list[Floats], *, kappa: float, noise: float
) -> float:
    """Return the prior variance that makes the published gradients most likely."""

    def misfit(spread: float) -> float:
        total = 0.0
        for h, g in zip(curvatures, turned, strict=True):
            variance = h**2 * spread + kappa * h + noise
            total += float((np.log(variance) + g**2 / variance).sum())
        return total

    return float(min(_SPREADS, key=misfit))


def logits_of(features: Floats, weights: Floats, start: float, grid: int) -> Any:
    """Return the logits of some records, in floating point: for public use."""
    return features @ weights / grid + start
