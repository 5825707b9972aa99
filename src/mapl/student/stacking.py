"""How to weigh several published models, found against the true labels.

The logits of the models are the only features: one scale a model and one bias a class.
In so few dimensions a sum costs next to nothing. It calibrates, sets thresholds, and
notices a model that is worthless.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from mapl.arrays import Floats
from mapl.privacy.gradients import CONSTANT, RESIDUAL_GRID, WEIGHT_GRID
from mapl.privacy.linear_map import LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.privacy.questions import StackQuestion
from mapl.student.steps import bound_by_mass

_COARSE = 2**10  # steps of a logit of 1 where it is a feature
_CUT = 0.002  # of all length: what is cut off makes a model look too modest
_SCALE_SPREAD, _BIAS_SPREAD = 0.25, 0.01  # prior variances
_EVIDENCE = 2.0  # standard deviations, for a model beside the first to count


class Stack:
    """Asks for the gradient of scales and biases, and follows it.

    Parameters
    ----------
    logits : list of ndarray, shape (n_points, n_classes)
        Those of each model on the public points.
    n_records : float
        How many private records there are, about.
    parts : list of Fraction
        Of the budget, for each step.
    """

    def __init__(
        self, logits: list[Floats], *, n_records: float, parts: list[Fraction]
    ) -> None:
        self._logits, self._n, self._parts = logits, max(n_records, 1.0), parts
        n_classes = logits[0].shape[1]
        # The first model is trusted, the others have to show what they are worth.
        self.scales = np.eye(len(logits))[0]
        self.biases = np.zeros(n_classes)
        centred = [z - z.mean(axis=1, keepdims=True) for z in logits]
        sizes = [math.sqrt(float((z**2).sum(axis=1).mean())) for z in centred]
        self._units = np.array([max(1.0, round(size * _COARSE)) for size in sizes])
        # Where logits are small, biases are smaller: noise must not choose the class.
        bias_spread = _BIAS_SPREAD * min(1.0, sizes[0] ** 2)
        spreads = (_SCALE_SPREAD * self._sizes() ** 2, np.full(n_classes, bias_spread))
        self._covariance = np.diag(np.concatenate(spreads))
        self._step = 0

    @property
    def done(self) -> bool:
        """Whether every step was taken."""
        return self._step == len(self._parts)

    def next(self) -> StackQuestion:
        """Return what to ask for."""
        shares, slopes = self.probabilities(), self._slopes()
        squared = (shares**2).sum(axis=1, keepdims=True) - 2 * shares + 1
        for z in slopes:
            squared += (z - (shares * z).sum(axis=1, keepdims=True)) ** 2
        bound = bound_by_mass(np.sqrt(np.maximum(squared, 0)), shares, _CUT)
        unit = CONSTANT * RESIDUAL_GRID
        return StackQuestion(
            np.rint(self.scales * WEIGHT_GRID),
            np.rint(self.biases * WEIGHT_GRID),
            self._units,
            max(1, math.floor((bound * unit) ** 2 / LENGTH_UNIT)),
            self._parts[self._step],
        )

    def take(self, noisy: NoisySum) -> None:
        """Follow a published gradient: what is known is a Gaussian, updated by it."""
        unit = CONSTANT * RESIDUAL_GRID
        gradient, sigma = noisy.total[0] / unit, noisy.sigma / unit
        hessian = self._hessian()
        noise = hessian + np.eye(len(hessian)) * sigma**2
        gain = self._covariance @ hessian
        gain = gain @ np.linalg.pinv(hessian @ self._covariance @ hessian + noise)
        moved = gain @ gradient
        self._covariance = self._covariance - gain @ hessian @ self._covariance
        self._move(moved)
        self.scales = np.maximum(self.scales, 0.0)  # noise turns no model around
        self._step += 1
        if self.done:
            self._drop_worthless()

    def _move(self, moved: Floats) -> None:
        n = len(self.scales)
        self.scales = self.scales + moved[:n] / self._sizes()
        self.biases = self.biases + moved[n:]

    def _drop_worthless(self) -> None:
        """Set scales to 0 that do not show a benefit, and move the rest to what is most
        probable then.
        """
        for k in range(1, len(self.scales)):
            scale = self.scales[k] * self._sizes()[k]
            variance = float(self._covariance[k, k])
            if scale <= _EVIDENCE * math.sqrt(variance):
                self._move(-self._covariance[:, k] * (scale / variance))
                self.scales[k] = 0.0

    def probabilities(self, biases: Floats | None = None) -> Floats:
        """Return the classes' probabilities of the public points."""
        return stacked_probabilities(
            self._logits, self.scales, self.biases if biases is None else biases
        )

    def _sizes(self) -> Floats:
        """Size of each model's logits: a scale's unit is one over that."""
        return self._units / _COARSE

    def _slopes(self) -> list[Floats]:
        return [z / size for z, size in zip(self._logits, self._sizes(), strict=True)]

    def _hessian(self) -> Floats:
        """Return the curvature of scales and biases over the public points."""
        shares, slopes = self.probabilities(), self._slopes()
        n_classes = shares.shape[1]
        codes = np.broadcast_to(np.eye(n_classes), (len(shares), n_classes, n_classes))
        features = np.concatenate(
            (np.stack(slopes, axis=2), codes), axis=2
        )  # point, class, parameter
        mean = np.einsum("ik,ikp->ip", shares, features)
        second = np.einsum("ik,ikp,ikq->pq", shares, features, features, optimize=True)
        return np.asarray((second - mean.T @ mean) * self._n / len(shares))


def stacked_probabilities(
    logits: list[Floats], scales: Floats, biases: Floats
) -> Floats:
    """Return the softmax of scaled logits and biases."""
    total = sum(
        (scale * z for scale, z in zip(scales, logits, strict=True)), start=biases
    )
    powers = np.exp(total - total.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
