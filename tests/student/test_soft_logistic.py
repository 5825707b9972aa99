"""Logistic regression on shares, against scikit-learn on repeated points."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapl.student import soft_logistic
from mapl.student.fitting import fit_to_shares


def shares_of(n: int, n_classes: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)) * np.array([1, 10, 0.1, 1, 1, 1])
    logits = X[:, :1] * np.arange(n_classes) + rng.normal(size=(n, n_classes))
    powers = np.exp(logits)
    return X, powers / powers.sum(axis=1, keepdims=True)


def repeated(model: Any, X: Any, shares: Any, classes: Any) -> Any:
    rows = np.repeat(np.arange(len(X)), len(classes))
    labels = np.tile(classes, len(X))
    return model.fit(X[rows], labels, sample_weight=shares.ravel())


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_the_minimum_is_that_of_weighted_repetitions(
    n_classes: int, intercept: bool, form: Any
) -> None:
    X, shares = shares_of(400, n_classes)
    classes = np.array(["a", "b", "c", "d"][:n_classes])
    model = LogisticRegression(C=0.3, fit_intercept=intercept, max_iter=500, tol=1e-9)
    expected = repeated(model, X, shares, classes)
    found = fit_to_shares(model, form(X), shares, classes)
    assert type(found) is LogisticRegression
    np.testing.assert_array_equal(found.classes_, classes)
    np.testing.assert_allclose(
        found.predict_proba(form(X)), expected.predict_proba(X), atol=2e-3
    )
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=2e-2)
    assert found.n_features_in_ == 6


def test_a_pipeline_is_fitted_in_one_pass() -> None:
    X, shares = shares_of(300, 3)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    found = fit_to_shares(pipeline, X, shares, np.arange(3))
    scaled = StandardScaler().fit_transform(X)
    expected = repeated(LogisticRegression(), scaled, shares, np.arange(3))
    np.testing.assert_allclose(
        found.predict_proba(X), expected.predict_proba(scaled), atol=5e-3
    )
    alone = fit_to_shares(make_pipeline(LogisticRegression()), X, shares, np.arange(3))
    assert alone.predict(X).shape == (300,)


@pytest.mark.parametrize(
    "params", [{"class_weight": "balanced"}, {"solver": "saga"}, {"C": np.inf}], ids=str
)
def test_other_regressions_are_left_to_scikit_learn(params: Any) -> None:
    assert not soft_logistic.can_fit(LogisticRegression(**params))


def test_constant_columns_and_certain_shares_are_no_trouble() -> None:
    X = np.column_stack((np.ones(50), np.zeros(50), np.arange(50.0)))
    shares = np.eye(2)[(np.arange(50) > 25).astype(int)]
    found = fit_to_shares(LogisticRegression(), X, shares, np.array([0, 1]))
    assert (found.predict(X) == shares.argmax(axis=1)).mean() > 0.95
