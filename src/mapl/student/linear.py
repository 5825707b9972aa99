"""The model that moments publish: linear in public features, and calibrated."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from mapl.arrays import Array, Floats
from mapl.student.stacking import stacked_probabilities


class LinearModel(ClassifierMixin, BaseEstimator):
    """Regressions on public features, and what a forest adds to them; scaled, and moved
    by a bias for each class.

    Parameters
    ----------
    weights : ndarray
        One column a class; a single one for two classes.
    scales, biases : ndarray
        Of the logits of each source, and of the classes.
    classes : ndarray
        The labels.
    forest : Corrections or None
        What teachers' votes add.
    """

    def __init__(
        self,
        weights: Floats,
        scales: Floats,
        biases: Floats,
        classes: Array,
        forest: Any = None,
    ) -> None:
        self.weights = weights
        self.scales = scales
        self.biases = biases
        self.classes = classes
        self.forest = forest

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> Array:
        """The labels."""
        return self.classes

    def fit(self, X: Any, y: Any = None) -> LinearModel:
        """Return self: all was fitted when it was made."""
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class."""
        logits = [class_logits(X @ self.weights.astype(X.dtype))]
        if self.forest is not None:
            logits.append(self.forest.logits(X, logits[0]))
        return stacked_probabilities(logits, self.scales, self.biases)

    def decision_function(self, X: Any) -> Floats:
        """Return the score of each class; one number for two classes."""
        shares = np.log(np.maximum(self.predict_proba(X), 1e-300))
        return shares[:, 1] - shares[:, 0] if shares.shape[1] == 2 else shares

    def predict(self, X: Any) -> Array:
        """Return the most probable class."""
        return np.asarray(self.classes[self.predict_proba(X).argmax(axis=1)])


def class_logits(logits: Array) -> Floats:
    """Return one centred logit a class; two classes share a single one."""
    if logits.shape[1] > 1:
        wide = np.asarray(logits, dtype=np.float64)
        return np.asarray(wide - wide.mean(axis=1, keepdims=True))
    half = np.asarray(logits, dtype=np.float64) / 2
    return np.concatenate((-half, half), axis=1)
