r"""Algorithm 3, and beyond: from published answers to a published model.

All of it is post-processing of public values, hence free. A student averages over
points anyway, so it does not need a few sure labels: noisy shares of the vote on the
whole pool tell it more for the same price. They are smoothed by ridge regression on
public features; since the variance of the noise is known, Mallows' Cp chooses the
penalty on the noisy shares themselves. The smoothed shares are the guess for the next
round of `ChargedDissent`, and at the end the soft labels of any classifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.pipeline import Pipeline

from mapl.labeler import Labeler
from mapl.mechanisms import ChargedDissent

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST_DISSENT = 0.05  # of the points, taken for a round's price whatever it was
_MOST_FEATURES = 1500  # beyond, public features are projected


@dataclass(frozen=True)
class SoftLabels:
    """What the rounds of asking came to. Public.

    ``noisy`` are the averaged shares as published, ``smooth`` what regression makes of
    them: rows add up to 1.
    """

    noisy: Floats
    smooth: Floats
    n_rounds: int


def ask_in_rounds(
    labeler: Labeler, mechanism: ChargedDissent, features: Floats
) -> SoftLabels:
    """Ask for the whole pool again and again, until the dissents are nearly spent.

    How much is spent is estimated from what was published: the shares that disagreed.

    Parameters
    ----------
    labeler : Labeler
        With the mechanism open.
    mechanism : ChargedDissent
        Its public parameters are used here.
    features : ndarray, shape (n_points, n_features)
        Public features of the pool.
    """
    n = len(features)
    rows = np.arange(n)
    variance = (float(mechanism.sigma) / mechanism.n_teachers) ** 2
    total = np.zeros((n, mechanism.n_classes))
    guess: Ints = np.zeros(n, dtype=np.int64)
    least = _LEAST_DISSENT * n  # so that rounds come to an end
    spent, n_rounds = 0.0, 0
    while True:
        answer = labeler.shares(guess)
        assert answer.guess is not None
        shares, guess = answer.shares, answer.guess
        total += shares
        n_rounds += 1
        spent += max(least, float((1 - shares[rows, guess]).sum()))
        smooth = smoothed(features, total / n_rounds, variance / n_rounds)
        guess = smooth.argmax(axis=1)
        next_price = max(least, float((1 - smooth.max(axis=1)).sum()))
        if spent + next_price > mechanism.dissents:
            return SoftLabels(total / n_rounds, smooth, n_rounds)


def smoothed(features: Floats, shares: Floats, variance: float) -> Floats:
    r"""Return ridge predictions of noisy shares, as probabilities.

    The penalty minimises Mallows' Cp, :math:`\|s - \hat s\|^2 + 2 v\, df` for each
    class, an unbiased estimate of the error up to a constant, as the variance v of the
    noise is known.
    """
    centre = features.mean(axis=0)
    centred, mean = features - centre, shares.mean(axis=0)
    eigenvalues, vectors = np.linalg.eigh(centred.T @ centred)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    target = vectors.T @ (centred.T @ (shares - mean))
    power = (target**2).sum(axis=1)
    penalties = len(features) * 10.0 ** np.arange(-7, 2.1, 0.25)
    shrunk = 1 / (eigenvalues + penalties[:, None])
    fit = (2 * shrunk - eigenvalues * shrunk**2) @ power  # what the fit explains
    freedom = 1 + (eigenvalues * shrunk).sum(axis=1)
    best = int(np.argmin(2 * variance * shares.shape[1] * freedom - fit))
    weights = vectors @ (target * shrunk[best][:, None])
    return _as_probabilities(centred @ weights + mean)


def _as_probabilities(shares: Floats) -> Floats:
    clipped = np.clip(shares, 1e-6, None)
    return np.asarray(clipped / clipped.sum(axis=1, keepdims=True))


def public_features(estimator: Any, pool: Any) -> Floats:
    """Return numbers for the public points: by the estimator's own pipeline if it has
    one that needs no labels, else by a plain one.
    """
    inner = getattr(estimator, "estimator", estimator)
    table: Any = None
    if isinstance(inner, Pipeline) and len(inner) > 1:
        try:
            table = clone(inner[:-1]).fit_transform(pool)
        except (TypeError, ValueError):  # a step that wants labels
            table = None
    if table is None:
        table = _plain_features(pool)
    return _dense(table)


def _plain_features(pool: Any) -> Any:
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler

    if hasattr(pool, "tocsr"):
        return MaxAbsScaler().fit_transform(pool)
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    if hasattr(pool, "iloc") and pool.ndim == 2:
        selected = make_column_selector(dtype_include="number")
        others = make_column_selector(dtype_exclude="number")
        encoder = OneHotEncoder(handle_unknown="ignore", min_frequency=5)
        transformer = make_column_transformer((numbers, selected), (encoder, others))
        return transformer.fit_transform(pool)
    if np.ndim(pool) == 1:
        return TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(pool)
    return numbers.fit_transform(pool)


def _dense(table: Any) -> Floats:
    if table.shape[1] > _MOST_FEATURES:
        from sklearn.decomposition import TruncatedSVD

        n_components = min(_MOST_FEATURES // 5, table.shape[0] - 1)
        table = TruncatedSVD(n_components, random_state=0).fit_transform(table)
    dense = table.toarray() if hasattr(table, "toarray") else table
    return np.asarray(dense, dtype=np.float64)


def fit_hard(student: Any, pool: Any, labels: npt.NDArray[Any]) -> Any:
    """Fit a student to labels; one that has a single label to go by always gives it."""
    if len(set(labels.tolist())) == 1:
        from sklearn.dummy import DummyClassifier

        return DummyClassifier(strategy="most_frequent").fit(pool, labels)
    return _fit(student, pool, labels)


def _fit(student: Any, pool: Any, labels: npt.NDArray[Any], **named: Any) -> Any:
    """Fit to labels; a learner that wants class numbers without gaps is given them."""
    try:
        return clone(student).fit(pool, labels, **named)
    except (TypeError, ValueError):
        classes, codes = np.unique(labels, return_inverse=True)
        return Decoded(student.fit(pool, codes, **named), classes)


class Decoded(ClassifierMixin, BaseEstimator):
    """A fitted classifier of class numbers that answers with the labels themselves."""

    def __init__(self, classifier: Any, classes: npt.NDArray[Any]) -> None:
        self.classifier = classifier
        self.classes = classes

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """The labels."""
        return self.classes

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the label of each record."""
        return np.asarray(self.classes[np.asarray(self.classifier.predict(X))])

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each label."""
        return np.asarray(self.classifier.predict_proba(X))


def fit_soft(student: Any, pool: Any, soft: Floats, classes: npt.NDArray[Any]) -> Any:
    """Fit a classifier to soft labels: each point once a class, weighted.

    A learner that takes no weights is given the most probable class.
    """
    from sklearn.utils.validation import has_fit_parameter

    name = "sample_weight"
    last = student
    if isinstance(student, Pipeline):
        step, last = student.steps[-1]
        name = f"{step}__sample_weight"
    if not has_fit_parameter(last, "sample_weight"):
        return fit_hard(student, pool, classes[soft.argmax(axis=1)])
    # Small shares change little but the time, above all with many classes.
    row, code = np.nonzero(soft >= min(0.01, 0.1 * soft.max()))
    if len(np.unique(code)) == 1:
        return fit_hard(student, pool, classes[soft.argmax(axis=1)])
    from sklearn.utils import _safe_indexing

    repeated = _safe_indexing(pool, row)
    return _fit(student, repeated, classes[code], **{name: soft[row, code]})
