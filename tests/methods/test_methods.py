"""Moments, and moments with votes, end to end: what people call, and what comes out."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from mapl import PrivateClassifier, accounting, certificate
from mapl.errors import ParameterError
from mapl.features.maps import FeatureMap
from mapl.methods import moments
from mapl.methods import pool as pools
from mapl.planning import plan
from mapl.publish.bundle import load_model, write_bundle

WORDS = {0: "calm quiet normal fine rest", 1: "fever cough pain acute severe"}


def numbers(n_classes: int = 2, n: int = 4000) -> tuple[Any, Any, Any, Any, Any]:
    X, y = make_classification(
        n + 1500,
        n_features=8,
        n_informative=6,
        n_redundant=0,
        n_classes=n_classes,
        class_sep=1.5,
        flip_y=0.02,
        random_state=0,
    )
    return X[:n], y[:n], X[n : n + 1000], X[n + 1000 :], y[n + 1000 :]


def model(**kwargs: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 2, "classes": [0, 1]} | kwargs)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_default_learns_and_costs_what_it_says(n_classes: int) -> None:
    X, y, pool, X_test, y_test = numbers(n_classes)
    fitted = model(classes=range(n_classes)).fit(
        X, y, X_public=pool, allow_overlap=True
    )
    votes = model(classes=range(n_classes), method="votes").fit(
        X, y, X_public=pool, allow_overlap=True
    )
    assert fitted.method_ == "moments"
    assert fitted.score(X_test, y_test) > max(0.75, votes.score(X_test, y_test) - 0.02)
    assert 1.9 < accounting.epsilon(fitted.events_, delta=1e-5) <= 2
    assert fitted.spending_[-1][1] == pytest.approx(1.0)
    assert certificate.verify(fitted.certificate_) <= 2
    assert (fitted.soft_labels_.argmax(axis=1) == fitted.public_labels_).all()
    assert fitted.predict_proba(X_test).shape == (500, n_classes)


def test_probabilities_are_calibrated() -> None:
    X, y, pool, X_test, y_test = numbers(4)
    fitted = model(classes=range(4), epsilon=8).fit(
        X, y, X_public=pool, allow_overlap=True
    )
    shares = fitted.predict_proba(X_test)
    found = log_loss(y_test, shares)
    for temperature in (0.6, 1.6):
        powers = shares**temperature
        changed = powers / powers.sum(axis=1, keepdims=True)
        assert found < log_loss(y_test, changed) + 0.01


def table(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    words = [" ".join(rng.choice(WORDS[label].split(), 5)) for label in y]
    frame = pd.DataFrame(
        {
            "age": np.where(
                rng.random(n) < 0.05, np.nan, 30 + 20 * y + rng.normal(size=n)
            ),
            "ward": np.where(rng.random(n) < 0.8, y, 1 - y).astype(str),
            "note": [f"{text} {i}" for i, text in enumerate(words)],
        }
    )
    return frame, y


@pytest.mark.parametrize(
    "form",
    [
        lambda frame: frame,
        lambda frame: frame["note"],
        lambda frame: frame["note"].tolist(),
        lambda frame: frame[["age"]].to_numpy(),
        lambda frame: sp.csr_matrix(pd.get_dummies(frame["ward"]).to_numpy(float)),
    ],
    ids=["frame", "series", "texts", "array with blanks", "sparse"],
)
def test_records_of_every_kind(form: Any) -> None:
    private, y = table(1500, 0)
    public, _ = table(400, 1)
    other, truth = table(300, 2)
    fitted = model(epsilon=4).fit(
        form(private), y, X_public=form(public), allow_overlap=True
    )
    assert fitted.score(form(other), truth) > 0.7


def test_many_columns_are_projected() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2500)
    X = rng.normal(size=(2500, 120)) + y[:, None] * np.linspace(0, 0.6, 120)
    fitted = model(epsilon=4).fit(
        X[:1500], y[:1500], X_public=X[1500:2000], allow_overlap=True
    )
    assert fitted.score(X[2000:], y[2000:]) > 0.9


def test_a_whole_person_is_protected_where_there_are_groups() -> None:
    X, y, pool, X_test, y_test = numbers()
    people = np.arange(len(X)) // 4
    fitted = model(epsilon=4).fit(
        X, y, X_public=pool, allow_overlap=True, groups=people
    )
    assert fitted.certificate_["unit"] == "all records of one group"
    assert fitted.score(X_test, y_test) > 0.8


def test_labels_alone_are_asked_for_once() -> None:
    X, y, _, X_test, y_test = numbers()
    for n_classes in (2, 3):
        fitted = model(privacy="labels", classes=range(n_classes)).fit(X, y)
        assert len(fitted.spending_) == 1
        assert fitted.n_public_ == len(X)
        assert fitted.score(X_test, y_test) > 0.85
    grouped = model(privacy="labels").fit(X, y, groups=np.arange(len(X)) // 3)
    assert grouped.score(X_test, y_test) > 0.8
    with pytest.raises(ParameterError, match="only labels are private"):
        model(privacy="labels", method="both").fit(X, y)


def rare(n: int = 6000) -> tuple[Any, Any]:
    X, y = make_classification(
        n, n_features=6, n_informative=5, n_redundant=0, weights=[0.97], random_state=1
    )
    return X, y


def test_rare_classes_are_ranked_and_found_where_asked_for() -> None:
    X, y = rare()
    parts = (X[:4000], y[:4000]), X[4000:5000], X[5000:], y[5000:]
    plain = model(epsilon=4).fit(*parts[0], X_public=parts[1], allow_overlap=True)
    auc = roc_auc_score(parts[3], plain.predict_proba(parts[2])[:, 1])
    assert auc > 0.75
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        balanced = model(epsilon=4, class_weight="balanced")
        balanced.fit(*parts[0], X_public=parts[1], allow_overlap=True)
    found = balanced.predict(parts[2])
    assert found[parts[3] == 1].mean() > 0.5
    by_hand = model(epsilon=4, class_weight={1: 30.0}).fit(
        *parts[0], X_public=parts[1], allow_overlap=True
    )
    assert by_hand.predict(parts[2]).mean() > plain.predict(parts[2]).mean()


@pytest.mark.filterwarnings("default:No public point gets class")
def test_a_class_that_no_public_point_gets_is_named() -> None:
    X, y, pool, *_ = numbers()
    with pytest.warns(UserWarning, match="No public point gets class 2: it is rare"):
        model(classes=[0, 1, 2]).fit(X, y, X_public=pool, allow_overlap=True)


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(), RandomForestClassifier(10), DummyClassifier()],
    ids=lambda estimator: type(estimator).__name__,
)
def test_teachers_do_no_harm_whatever_they_know(estimator: Any) -> None:
    X, y, pool, X_test, y_test = numbers()
    alone = (
        model(epsilon=4)
        .fit(X, y, X_public=pool, allow_overlap=True)
        .score(X_test, y_test)
    )
    both = model(estimator=estimator, epsilon=4, n_teachers=30)
    both.fit(X, y, X_public=pool, allow_overlap=True)
    assert both.method_ == "both"
    assert both.score(X_test, y_test) > alone - 0.03
    assert 3.9 < accounting.epsilon(both.events_, delta=1e-5) <= 4
    assert both.spending_[-1][1] == pytest.approx(1.0)


@pytest.mark.parametrize("estimator", [None, LogisticRegression()], ids=["none", "one"])
def test_a_student_learns_what_was_published(estimator: Any) -> None:
    X, y, pool, X_test, y_test = numbers()
    student = DecisionTreeClassifier(max_depth=6)
    fitted = model(estimator=estimator, student=student, n_teachers=20)
    fitted.fit(X, y, X_public=pool, allow_overlap=True)
    assert isinstance(fitted.student_, DecisionTreeClassifier)
    assert fitted.score(X_test, y_test) > 0.7


@pytest.mark.parametrize("estimator", [None, DecisionTreeClassifier(max_depth=4)])
def test_a_published_model_loads_without_running_anything(
    estimator: Any, tmp_path: Any
) -> None:
    private, y = table(1500, 0)
    public, _ = table(400, 1)
    fitted = model(estimator=estimator, epsilon=4, n_teachers=20)
    if estimator is not None:
        columns = ["age"]
        private, public = private[columns].fillna(0), public[columns].fillna(0)
    fitted.fit(private, y, X_public=public, allow_overlap=True)
    write_bundle(tmp_path, fitted.student_, fitted, public)
    loaded = load_model(tmp_path / "model.skops")
    np.testing.assert_array_equal(loaded.predict(public), fitted.predict(public))


def test_a_plan_for_sums_is_run_as_planned() -> None:
    X, y, pool, *_ = numbers()
    setting = plan(
        n_records=4000, n_queries=1000, n_classes=2, epsilon=1, delta=1e-5
    ).setting()
    assert setting.name == "moments"
    fitted = model(plan=setting, epsilon=1).fit(X, y, X_public=pool, allow_overlap=True)
    assert fitted.events_ == [setting.event]
    hopeless = plan(n_records=30, n_queries=10, n_classes=2, epsilon=0.01, delta=1e-5)
    assert hopeless.recommended is None
    with pytest.raises(ParameterError, match="has no event"):
        hopeless.setting("dissent").make_moments()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"method": "sums"}, "method must be one of"),
        ({"method": "moments", "mechanism": "noisy-max"}, "mechanism must be 'auto'"),
        ({"class_weight": {1: -1.0}}, "class_weight must be 'balanced'"),
        ({"class_weight": "heavy"}, "class_weight must be 'balanced'"),
        ({"class_weight": {1: "x"}}, "class_weight must be 'balanced'"),
        ({"method": "votes", "class_weight": "balanced"}, "class_weight needs moments"),
    ],
)
def test_misuse_says_what_to_do(kwargs: dict[str, Any], message: str) -> None:
    X, y, pool, *_ = numbers(n=100)
    with pytest.raises(ParameterError, match=message):
        model(**kwargs).fit(X, y, X_public=pool, allow_overlap=True)


def test_where_no_features_can_be_made_there_are_votes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("odd objects")

    monkeypatch.setattr(FeatureMap, "of", fails)
    X, y, pool, *_ = numbers(n=500)
    fitted = model(estimator=LogisticRegression(), n_teachers=10)
    assert fitted.fit(X, y, X_public=pool, allow_overlap=True).method_ == "votes"
    with pytest.raises(ParameterError, match="odd objects Use method='votes'"):
        model().fit(X, y, X_public=pool, allow_overlap=True)


def test_of_very_many_public_points_some_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "_MOST_POINTS", 300)
    X, y, pool, X_test, y_test = numbers()
    fitted = model().fit(X, y, X_public=pool, allow_overlap=True)
    assert fitted.soft_labels_.shape == (1000, 2)
    assert fitted.score(X_test, y_test) > 0.8


def test_no_records_and_unknown_labels_are_a_fit_like_any_other() -> None:
    X, y, pool, *_ = numbers(n=600)
    empty = model(on_invalid="drop").fit(
        X[:0], y[:0], X_public=pool, allow_overlap=True
    )
    assert empty.predict(pool).shape == (1000,)
    dropped = model(on_invalid="drop").fit(
        X, np.where(y, 7, y), X_public=pool, allow_overlap=True
    )
    assert dropped.predict(pool).shape == (1000,)


def test_persons_are_protected_at_a_small_epsilon_too() -> None:
    X, y, pool, *_ = numbers(n=400)
    groups = np.arange(400) // 4
    model(epsilon=0.01, delta=1e-6).fit(
        X, y, X_public=pool, allow_overlap=True, groups=groups
    )
    with pytest.raises(ParameterError, match=r"at least about 0\.001"):
        model(epsilon=1e-5).fit(X, y, X_public=pool, allow_overlap=True)


def test_classes_look_rare_by_evidence_only() -> None:
    counts = np.array([400.0, 500.0, 40.0])
    np.testing.assert_allclose(moments.shrunk_counts(counts, 1.0), counts, rtol=0.01)
    even = moments.shrunk_counts(counts, 300.0)
    np.testing.assert_allclose(even, counts.mean())
