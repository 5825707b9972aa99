"""A model from a stranger runs no code and reads no memory out of bounds."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from mapl.errors import CertificateError
from mapl.publish.model_checks import check_parts

X, Y = make_classification(300, n_features=6, random_state=0)


@pytest.mark.parametrize(
    "learner",
    [
        LogisticRegression(),
        GaussianNB(),
        LinearSVC(),
        DecisionTreeClassifier(),
        RandomForestClassifier(3),
        HistGradientBoostingClassifier(max_iter=3),
        make_pipeline(StandardScaler(), RandomForestClassifier(2)),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_usual_models_pass(learner: Any) -> None:
    check_parts(learner.fit(X, Y))


@pytest.mark.parametrize(
    "learner",
    [KNeighborsClassifier(), SVC(), GradientBoostingClassifier(n_estimators=2)],
)
def test_compiled_parts_that_cannot_be_checked_are_refused(learner: Any) -> None:
    with pytest.raises(CertificateError, match="cannot be checked: sklearn"):
        check_parts(learner.fit(X, Y))


def crafted_tree(**changes: tuple[int, int]) -> Any:
    """A fitted tree with a number changed in its table of nodes."""
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, Y)
    state = model.tree_.__getstate__()
    nodes = state["nodes"].copy()
    for name, (node, value) in changes.items():
        nodes[name][node] = value
    state["nodes"] = nodes
    model.tree_.__setstate__(state)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"left_child": (0, 10_000_000)},
        {"right_child": (0, 10_000_000)},
        {"left_child": (1, 0)},  # back to the root, for ever
        {"feature": (0, 6)},
        {"feature": (0, -3)},
        {"left_child": (0, -7)},
    ],
    ids=str,
)
def test_trees_that_lead_out_of_their_table_are_refused(changes: Any) -> None:
    check_parts(crafted_tree())
    with pytest.raises(CertificateError, match="leads out of its table"):
        check_parts(crafted_tree(**changes))


def test_a_forest_is_given_what_the_forest_says() -> None:
    """Its trees know of more features than will reach them."""
    forest = RandomForestClassifier(2, random_state=0).fit(X, Y)
    forest.n_features_in_ = 2
    with pytest.raises(CertificateError, match="leads out of its table"):
        check_parts(forest)


@pytest.mark.parametrize(
    ("name", "value"),
    [("left", 10_000), ("right", 0), ("feature_idx", 6), ("is_categorical", 1)],
)
def test_crafted_histogram_trees_are_refused(name: str, value: int) -> None:
    model = HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    check_parts(model)
    nodes = model._predictors[0][0].nodes.copy()
    nodes[name][0] = value
    model._predictors[0][0].nodes = nodes
    with pytest.raises(CertificateError, match="leads out of its table"):
        check_parts(model)
    model._predictors[0][0].nodes = nodes[:0]
    with pytest.raises(CertificateError, match="leads out of its table"):
        check_parts(model)


def test_sparse_matrices_and_nested_parts_are_checked() -> None:
    model = LogisticRegression().fit(X, Y)
    model.extra_ = sp.csr_matrix(np.eye(3))
    check_parts(model)
    model.extra_.indices[0] = 99
    with pytest.raises(ValueError, match="indices"):
        check_parts(model)
    deep: list[Any] = []
    model.extra_ = deep
    for _ in range(100):
        deep.append([])
        deep = deep[0]
    with pytest.raises(CertificateError, match="nested too deeply"):
        check_parts(model)
