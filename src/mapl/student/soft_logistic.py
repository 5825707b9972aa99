"""Logistic regression on shares instead of labels: one pass a step, whatever classes.

The same minimum as scikit-learn's, given each point once for each class, weighted by
its share.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import diags, issparse
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import validate_data

from mapl.arrays import Array, Floats

_WANTED = {
    "class_weight": (None,),
    "dual": (False,),
    "solver": ("lbfgs", "newton-cg", "newton-cholesky"),
    "warm_start": (False,),
    "intercept_scaling": (1,),
    "penalty": ("l2", "deprecated"),
    "l1_ratio": (None, 0, 0.0),
}
_TOLERANCE = 1e-7  # of the loss of a point, relative: shares are noisy


def can_fit(model: Any) -> bool:
    """Whether a learner is a plain logistic regression with an L2 penalty."""
    if type(model) is not LogisticRegression:
        return False
    given = model.get_params()
    return np.isfinite(model.C) and all(
        given[name] in values for name, values in _WANTED.items() if name in given
    )


def fit(model: Any, X: Any, shares: Floats, classes: Array) -> Any:
    """Fit a model that `can_fit`; return it."""
    X = validate_data(model, X, dtype=np.float64, accept_sparse="csr")
    model.classes_ = classes
    scale = _spread(X)
    table = _scaled(X, 1 / scale)
    two = len(classes) == 2
    target = (shares[:, 1:] if two else shares).astype(np.float32)
    width, columns = table.shape[1], target.shape[1]
    penalty = np.append(1 / (model.C * scale**2), 0.0)[:, None]
    slopes = float(model.fit_intercept)

    def loss(flat: Floats) -> tuple[float, Floats]:
        inner = flat.reshape(width + 1, columns)
        single = inner.astype(np.float32)
        logits = np.asarray(table @ single[:-1]) + single[-1]
        value, found = _log_loss(logits, target)
        off = (found - target).astype(np.float32)
        gradient = penalty * inner
        value += float((gradient * inner).sum()) / 2
        gradient[:-1] += np.asarray(table.T @ off)
        gradient[-1] += slopes * off.sum(axis=0, dtype=np.float64)
        return value / len(target), gradient.ravel() / len(target)

    found = minimize(
        loss,
        np.zeros((width + 1) * columns),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": model.max_iter, "maxcor": 20, "ftol": _TOLERANCE},
    )
    weights = found.x.reshape(width + 1, columns)
    model.coef_ = np.ascontiguousarray((weights[:-1] / scale[:, None]).T)
    model.intercept_ = weights[-1] if model.fit_intercept else np.zeros(columns)
    model.n_iter_ = np.array([found.nit], dtype=np.int32)
    return model


def _log_loss(logits: Any, target: Any) -> tuple[float, Any]:
    """Return the loss of soft targets, and the probabilities."""
    if logits.shape[1] == 1:
        size = np.abs(logits)
        rest = np.exp(-size)
        value = np.log1p(rest) + np.maximum(logits, 0) - target * logits
        found = np.where(logits > 0, 1.0, rest) / (1 + rest)
        return float(value.sum(dtype=np.float64)), found
    logits = logits - logits.max(axis=1, keepdims=True)
    powers = np.exp(logits)
    total = powers.sum(axis=1, keepdims=True)
    value = (np.log(total) - logits) * target
    return float(value.sum(dtype=np.float64)), powers / total


def _spread(X: Any) -> Floats:
    """Return the size of each column, 1 where it has none: steps are then even."""
    squares = X.multiply(X) if issparse(X) else X * X
    found = np.sqrt(np.asarray(squares.mean(axis=0)).reshape(-1))
    return np.where(np.isfinite(found) & (found > 0), found, 1.0)


def _scaled(X: Any, factors: Floats) -> Any:
    if issparse(X):
        return (X @ diags(factors)).tocsr().astype(np.float32)
    return (X * factors).astype(np.float32)
