"""Predictions of a published student, over all declared classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from mapl.arrays import Array, Floats


def _student_has(method: str) -> Any:
    """Return a condition for `available_if`: the student has that method."""

    def available(self: StudentPredictions) -> bool:
        if hasattr(self, "student_"):
            getattr(self.student_, method)  # raises the student's own error
            return True
        return hasattr(self._student(), method)

    return available


class StudentPredictions:
    """A mixin for an estimator with ``student_`` and ``classes_``."""

    student_: Any
    classes_: Array
    _student: Callable[[], Any]
    _validate: Callable[..., Any]

    def predict(self, X: Any) -> Array:
        """Return the student's label for each record."""
        check_is_fitted(self, "student_")
        return np.asarray(self.student_.predict(self._validate(X, reset=False)))

    @available_if(_student_has("predict_proba"))
    def predict_proba(self, X: Any) -> Floats:
        """Return the student's probability of each class in ``classes_``."""
        check_is_fitted(self, "student_")
        known = self.student_.predict_proba(self._validate(X, reset=False))
        return self._columns(known, missing=0.0)

    @available_if(_student_has("decision_function"))
    def decision_function(self, X: Any) -> Floats:
        """Return the student's score of each class in ``classes_``.

        One number for two classes; -inf for a class that the student has never seen.
        """
        check_is_fitted(self, "student_")
        X = self._validate(X, reset=False)
        scores = np.asarray(self.student_.decision_function(X))
        if len(self.student_.classes_) == len(self.classes_):
            return scores
        columns = scores if scores.ndim == 2 else np.stack((-scores, scores), axis=1)
        return self._columns(columns, missing=-np.inf)

    def _columns(self, values: Array, *, missing: float) -> Floats:
        """Return one column for each class, also for those not seen."""
        out = np.full((len(values), len(self.classes_)), missing)
        out[:, np.searchsorted(self.classes_, self.student_.classes_)] = values
        return out
