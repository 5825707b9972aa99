"""Any classifier, fitted to published shares of the vote."""

import math
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from mapl.arrays import Array, Floats
from mapl.learners import fit_labels, is_linear
from mapl.student.rounds import SoftLabels

_TREES, _LEAF_NOISE = 100, 0.12  # of the forest that looks for what is left


def fit_to_rounds(
    student: Any,
    pool: Any,
    soft: SoftLabels,
    features: Floats,
    classes: Array,
    *,
    n_jobs: int | None = None,
) -> Any:
    """Fit a classifier to the result of the rounds."""
    shares = soft.smooth
    if not is_linear(student):  # a linear one cannot learn what a forest finds
        shares = add_forest_residual(soft, features, n_jobs=n_jobs)
    return fit_to_shares(student, pool, shares, classes)


def add_forest_residual(
    soft: SoftLabels, features: Floats, *, n_jobs: int | None = None
) -> Floats:
    """Return the smoothed shares plus what a forest finds in their residuals.

    Its leaves hold so many points that the noise of a leaf's mean is _LEAF_NOISE.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    leaf = math.ceil(1 / (_LEAF_NOISE**2 * float(soft.precision.mean())))
    forest = ExtraTreesRegressor(
        _TREES, min_samples_leaf=leaf, max_features=0.5, random_state=0, n_jobs=n_jobs
    )
    forest.fit(features, soft.noisy - soft.smooth, sample_weight=soft.precision)
    forest.set_params(n_jobs=1)  # threads would sum in any order
    shares = np.maximum(soft.smooth + forest.predict(features), 1e-6)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


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
    return fit_labels(student, repeated, classes[code], **{name: shares[row, code]})
