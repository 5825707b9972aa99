"""A model from a stranger runs no code and reads no memory out of bounds."""

from typing import Any

import numpy as np
import pandas as pd
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
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

from mapl.errors import CertificateError
from mapl.publish.model_checks import check_parts, rebuilt_encoder
from mapl.records.schema import Schema

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
    with pytest.raises(CertificateError, match="leads out of its bounds"):
        check_parts(crafted_tree(**changes))


def test_a_forest_is_given_what_the_forest_says() -> None:
    """Its trees know of more features than will reach them."""
    forest = RandomForestClassifier(2, random_state=0).fit(X, Y)
    forest.n_features_in_ = 2
    with pytest.raises(CertificateError, match="do not fit"):
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
    with pytest.raises(CertificateError, match="leads out of its bounds"):
        check_parts(model)
    model._predictors[0][0].nodes = nodes[:0]
    with pytest.raises(CertificateError, match="leads out of its bounds"):
        check_parts(model)


def test_parts_that_do_not_belong_there_are_refused() -> None:
    model = LogisticRegression(class_weight={0: 1, 1: 2}).fit(X, Y)
    check_parts(model)
    model.extra_ = sp.csr_matrix(np.eye(3))
    with pytest.raises(CertificateError, match="cannot be checked: scipy"):
        check_parts(model)
    deep: list[Any] = []
    model.extra_ = deep
    for _ in range(100):
        deep.append([])
        deep = deep[0]
    with pytest.raises(CertificateError, match="nested too deeply"):
        check_parts(model)
    boosting = HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    boosting._in_fit = True
    with pytest.raises(CertificateError, match="being fitted"):
        check_parts(boosting)
    with pytest.raises(CertificateError, match="do not fit"):
        check_parts(LogisticRegression().fit(X, Y), width=9)


def test_a_tree_that_is_checked_once_is_checked_again_where_it_is_narrower() -> None:
    forest = RandomForestClassifier(2, random_state=0).fit(X, Y)
    narrow = RandomForestClassifier(2, random_state=0).fit(X[:, :2], Y)
    narrow.estimators_ = forest.estimators_
    narrow.extra_ = forest
    with pytest.raises(CertificateError, match=r"do not fit|bounds"):
        check_parts(narrow)


def test_how_many_processes_run_is_not_the_files_to_say() -> None:
    forest = RandomForestClassifier(2, n_jobs=10).fit(X, Y)
    check_parts(forest)
    assert forest.n_jobs is None


def encoder() -> tuple[Any, Any, Any]:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "t": ["x", "y", "x"]})
    schema = Schema.of_numbers_and_texts(frame)
    fitted, numbers = schema.fit_encoder(schema.cast(frame))
    return fitted, numbers, schema.cast(frame)


def test_an_encoder_is_made_again_from_its_numbers_and_texts() -> None:
    fitted, numbers, frame = encoder()
    codes = fitted.transformers_[1][1][-1]
    codes._infrequent_enabled = True
    codes._infrequent_indices = [np.array([0])]
    codes._default_to_infrequent_mappings = [np.array([2**33] * 3)]
    fresh = rebuilt_encoder(fitted)
    np.testing.assert_array_equal(fresh.transform(frame), numbers)
    fitted.transformers_[0][1][1].mean_ = np.zeros(7)
    with pytest.raises(CertificateError, match="out of its bounds"):
        rebuilt_encoder(fitted)
    only = pd.DataFrame({"t": ["x", "y"]})
    schema = Schema.of_numbers_and_texts(only)
    fitted, numbers = schema.fit_encoder(schema.cast(only))
    same = rebuilt_encoder(fitted).transform(schema.cast(only))
    np.testing.assert_array_equal(same, numbers)
