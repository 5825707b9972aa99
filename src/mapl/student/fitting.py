"""Any classifier, fitted to published shares of the vote."""

from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from mapl.arrays import Array, Floats
from mapl.learners import fit_labels


def fit_to_shares(student: Any, pool: Any, shares: Floats, classes: Array) -> Any:
    """Fit a classifier to shares: each point once for each class, weighted.

    A learner that takes no weights is given the most probable class.
    """
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
