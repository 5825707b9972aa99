"""Linear teachers: scikit-learn's objectives, solved faster for small chunks.

On a hundred records scikit-learn's own fit is nearly all overhead. Here the same
minimum is found by Newton's method, and a fitted model is a scikit-learn model like any
other. A teacher is, to the last bit, a function of its own records.
"""

from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    LabelBinarizer,
    MaxAbsScaler,
    MinMaxScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.utils.validation import validate_data

from mapl.arrays import Array, Ints, Reals
from mapl.teachers.newton import hinge_newton, softmax_newton, solve_positive
from mapl.teachers.stacked import fit_binary_chunks

_MOST_WEIGHTS = 1000  # for which a Hessian is quicker than going without


def can_fit(estimator: Any) -> bool:
    """Whether `fit` finds the same minimum as the estimator's own fit.

    Decided by its type and parameters, never by data.
    """
    if type(estimator) is Pipeline:
        inner = estimator.memory is None and len(estimator.steps) > 1
        return inner and type(estimator[-1]) is not Pipeline and can_fit(estimator[-1])
    kind = type(estimator)
    if kind not in (LogisticRegression, RidgeClassifier, LinearSVC):
        return False
    given = estimator.get_params()
    wanted: dict[type, dict[str, tuple[Any, ...]]] = {
        LogisticRegression: {
            "penalty": ("l2", "deprecated"),
            "l1_ratio": (0, None),
            "dual": (False,),
            "class_weight": (None,),
            "solver": ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"),
        },
        RidgeClassifier: {"positive": (False,), "class_weight": (None,)},
        LinearSVC: {
            "penalty": ("l2",),
            "loss": ("squared_hinge",),
            "multi_class": ("ovr",),
            "class_weight": (None,),
        },
    }
    weight = given["alpha" if kind is RidgeClassifier else "C"]
    if not isinstance(weight, Real) or not 1e-12 < float(weight) < 1e12:
        return False
    return all(given[name] in values for name, values in wanted[kind].items())


def can_stack(estimator: Any, features: Any) -> bool:
    """Whether `fit_binary_chunks` handles this learner and these records."""
    table = isinstance(features, np.ndarray) and features.ndim == 2
    return (
        type(estimator) is LogisticRegression
        and can_fit(estimator)
        and table
        and features.dtype.kind in "fiub"
    )


def fit(model: Any, features: Any, labels: Array) -> Any:
    """Fit a model that `can_fit`, or a pipeline that ends in one; return it.

    Transformers of a pipeline are fitted by themselves. What they make sparse is left
    to scikit-learn.
    """
    if isinstance(model, Pipeline):
        features = model[:-1].fit_transform(features, labels)
        fit(model[-1], features, labels)
        return model
    if issparse(features):
        return model.fit(features, labels)
    X = _checked(model, features)
    classes, codes = np.unique(labels, return_inverse=True)
    if type(model) is RidgeClassifier:
        binarizer = LabelBinarizer(pos_label=1, neg_label=-1)
        model._label_binarizer = binarizer.fit(classes)
    with suppress(AttributeError):  # of RidgeClassifier it is a property up to 1.7
        model.classes_ = classes
    _SOLVERS[type(model)](model, X, codes)
    return model


def _checked(model: Any, features: Any) -> Reals:
    """Return finite floats as scikit-learn would; quickly, if they are already."""
    table = type(features) is np.ndarray and features.ndim == 2
    if table and features.dtype == np.float64 and np.isfinite(features).all():
        model.n_features_in_ = features.shape[1]
    else:
        features = validate_data(model, features, dtype=np.float64)
    return np.asarray(features)


def _fit_logistic(model: Any, X: Reals, codes: Ints) -> None:
    """Two classes as a stack of one chunk, more by Newton, very many by
    scikit-learn.
    """
    k = len(model.classes_)
    model.n_iter_ = np.ones(1, dtype=np.int32)
    if k == 2:
        for _, coef, intercept in fit_binary_chunks(
            model, X, codes, [np.arange(len(X))], [1]
        ):
            model.coef_, model.intercept_ = coef, intercept
            return
        model.fit(X, model.classes_[codes])
        return
    rows, back = _reduced(X, keep_constant_features=not model.fit_intercept)
    if (k - 1) * (len(rows) + 1) > _MOST_WEIGHTS:
        model.fit(X, model.classes_[codes])
        return
    coef, intercept = softmax_newton(
        rows, codes, k, penalty=1 / model.C, intercept=model.fit_intercept
    )
    model.coef_, model.intercept_ = back(coef), intercept


def _fit_ridge(model: Any, X: Reals, codes: Ints) -> None:
    """Solve the normal equations in the smaller of the two spaces."""
    targets = np.where(codes == np.arange(len(model.classes_))[:, None], 1.0, -1.0)
    targets = targets[1:] if len(targets) == 2 else targets
    shift = np.zeros(X.shape[1])
    offset = np.zeros(len(targets))
    if model.fit_intercept:
        shift, offset = X.mean(axis=0), targets.mean(axis=1)
    centred = (X - shift).T
    rows, back = (
        (centred, lambda v: v)
        if X.shape[0] >= X.shape[1]
        else _rotate_into_span(centred)
    )
    gram = rows @ rows.T
    gram.flat[:: len(gram) + 1] += float(model.alpha)
    coef = back(solve_positive(gram, rows @ (targets - offset[:, None]).T).T)
    model.coef_, model.intercept_ = coef, offset - coef @ shift
    model.n_iter_ = None


def _fit_svc(model: Any, X: Reals, codes: Ints) -> None:
    """One squared hinge regression per class; for two classes one in all."""
    rows, back = _reduced(X, keep_constant_features=True)
    scale = float(model.intercept_scaling) if model.fit_intercept else 0.0
    rows = np.vstack((rows, np.full(len(X), scale)))
    against = range(len(model.classes_)) if len(model.classes_) > 2 else [1]
    signs = [np.where(codes == code, 1.0, -1.0) for code in against]
    weights = np.array([hinge_newton(rows, sign, model.C) for sign in signs])
    model.coef_, model.intercept_ = back(weights[:, :-1]), scale * weights[:, -1]
    model.n_iter_ = 1


_SOLVERS = {
    LogisticRegression: _fit_logistic,
    RidgeClassifier: _fit_ridge,
    LinearSVC: _fit_svc,
}


def _reduced(X: Reals, *, keep_constant_features: bool) -> tuple[Reals, Any]:
    """Return the features that get a weight, as rows, rotated into the span of the
    records where these are fewer; and the function that maps coefficients back.
    """
    idle = np.zeros((1, X.shape[1])) if keep_constant_features else X[:1]
    used = np.flatnonzero((idle != X).any(axis=0))
    rows = np.ascontiguousarray(X[:, used].T)
    rotate_back: Any = None
    if len(rows) > len(X):
        rows, rotate_back = _rotate_into_span(rows)

    def back(coef: Reals) -> Reals:
        out = np.zeros((len(coef), X.shape[1]))
        out[:, used] = coef if rotate_back is None else rotate_back(coef)
        return out

    return rows, back


def _rotate_into_span(rows: Reals) -> tuple[Reals, Any]:
    basis, inside = np.linalg.qr(rows)
    return inside, lambda coef: coef @ basis.T


def has_softmax(model: Any) -> bool:
    """Whether probabilities are the softmax of the scores of `affine`."""
    last = model[-1] if isinstance(model, Pipeline) else model
    one_each = getattr(last, "multi_class", None) in ("ovr", "warn")
    return (
        type(last) is LogisticRegression
        and not one_each
        and (last.solver != "liblinear" or len(last.classes_) == 2)
    )


def affine(model: Any) -> tuple[Reals, Reals] | None:
    """Return coefficients and intercepts of a linear model, including the scalers
    before it; None for any other model.
    """
    if type(model) in _SOLVERS:
        return np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if type(model) is not Pipeline or type(model[-1]) not in _SOLVERS:
        return None
    coef, intercept = (
        np.atleast_2d(model[-1].coef_),
        np.atleast_1d(model[-1].intercept_),
    )
    for _, scaler in reversed(model.steps[:-1]):
        scale, shift = _scaling(scaler)
        if scale is None:
            return None
        intercept = intercept + coef @ np.broadcast_to(shift, coef.shape[1:])
        coef = coef * scale
    return coef, intercept


def _scaling(scaler: Any) -> tuple[Any, Any]:
    """Return a and b of x -> a x + b."""
    if scaler == "passthrough":
        return 1.0, 0.0
    if type(scaler) is StandardScaler:
        scale = 1.0 / scaler.scale_ if scaler.with_std else 1.0
        return scale, -scaler.mean_ * scale if scaler.with_mean else 0.0
    if type(scaler) is MinMaxScaler and not scaler.clip:
        return scaler.scale_, scaler.min_
    if type(scaler) is MaxAbsScaler:
        return 1.0 / scaler.scale_, 0.0
    return None, None
