"""Any classifier, fitted to published shares of the vote."""

from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from mapl.arrays import Array, Floats
from mapl.learners import fit_labels
from mapl.student import soft_logistic


def fit_to_shares(student: Any, pool: Any, shares: Floats, classes: Array) -> Any:
    """Fit a classifier to shares: each point once for each class, weighted.

    A logistic regression takes the shares themselves; a learner that takes no weights,
    the most probable class.
    """
    if soft_logistic.can_fit(_last(student)):
        return _fit_logistic(clone(student), pool, shares, classes)
    name, last = "sample_weight", student
    if isinstance(student, Pipeline):
        step, last = student.steps[-1]
        name = f"{step}__sample_weight"
    if not has_fit_parameter(last, "sample_weight"):
        return fit_labels(student, pool, classes[shares.argmax(axis=1)])
    # More than the two most probable classes would take time and change little.
    second = np.partition(shares, -2, axis=1)[:, -2:-1]
    row, code = np.nonzero((shares >= second) & (shares >= 0.01))
    repeated = _safe_indexing(pool, row)
    weights = {name: shares[row, code]}
    with config_context(enable_metadata_routing=False):  # a step is named by its name
        return fit_labels(student, repeated, classes[code], **weights)


def _last(student: Any) -> Any:
    return student.steps[-1][1] if isinstance(student, Pipeline) else student


def _fit_logistic(student: Any, pool: Any, shares: Floats, classes: Array) -> Any:
    """Fit a logistic regression, or a pipeline that ends in one, to shares."""
    if isinstance(student, Pipeline):
        if len(student) > 1:
            pool = student[:-1].fit_transform(pool, classes[shares.argmax(axis=1)])
        soft_logistic.fit(student[-1], pool, shares, classes)
        return student
    return soft_logistic.fit(student, pool, shares, classes)
