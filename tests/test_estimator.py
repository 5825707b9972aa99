import json
import re
import traceback
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import sklearn
from sklearn import config_context
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    RidgeClassifier,
)
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mapl import ABSTAIN, PrivacyWarning, PrivateClassifier, accounting, certificate
from mapl.errors import CertificateError, MaplError, ParameterError
from mapl.planning import mostly_noise_message, plan, teachers_for
from mapl.records.encoding import public_features

# So large that the noise is 0 but once in e^100 draws: some of the checks compare two
# fits, and noise takes no seed.
NO_NOISE = {"epsilon": 300_000, "n_teachers": 5}


EXPECTED = {"votes": {"check_class_weight_classifiers": "weights need moments"}}


class WithPublicData(PrivateClassifier):
    """Gives itself some public data, as the checks of scikit-learn give none."""

    def fit(self, X: Any, y: Any, *, X_public: Any = None, groups: Any = None) -> Any:
        return super().fit(
            X,
            y,
            X_public=X if X_public is None else X_public,
            allow_overlap=True,
            groups=groups,
        )


@pytest.mark.filterwarnings("ignore::mapl.PrivacyWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        PrivateClassifier(privacy="labels", random_state=0, **NO_NOISE),
        WithPublicData(random_state=0, **NO_NOISE),
        WithPublicData(random_state=0, method="votes", **NO_NOISE),
    ],
    expected_failed_checks=lambda model: EXPECTED.get(model.method, {}),
)
def test_scikit_learns_own_checks(
    estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(sigma: Any, shape: Any, **_: Any) -> Any:
        return np.zeros(shape, dtype=np.int64)

    monkeypatch.setattr("mapl.privacy.moments.discrete_gaussian", silent)
    check(estimator)


def data(n: int = 4000, n_classes: int = 2) -> tuple[Any, Any, Any, Any, Any]:
    X, y = make_classification(
        n + 1500,
        n_features=10,
        n_informative=6,
        n_classes=n_classes,
        class_sep=1.5,
        random_state=0,
    )
    return X[:n], y[:n], X[n : n + 1000], X[n + 1000 :], y[n + 1000 :]


def quick(**kwargs: Any) -> PrivateClassifier:
    """Votes alone: the other methods have tests of their own."""
    defaults = {"epsilon": 4, "n_teachers": 40, "random_state": 0, "method": "votes"}
    return PrivateClassifier(**defaults | kwargs)


@pytest.mark.parametrize(
    ("mechanism", "n_teachers"),
    [("auto", 40), ("dissent", 40), ("noisy-max", 100), ("sparse-vector", 200)],
)
def test_every_mechanism_learns_and_costs_what_it_says(
    mechanism: str, n_teachers: int
) -> None:
    X, y, pool, X_test, y_test = data()
    model = quick(mechanism=mechanism, n_teachers=n_teachers, classes=[0, 1])
    model.fit(X, y, X_public=pool, allow_overlap=True)
    assert model.score(X_test, y_test) > 0.8
    assert accounting.epsilon(model.events_, delta=1e-5) <= 4
    assert accounting.epsilon(model.events_, delta=1e-5) > 3.5
    answered = model.public_labels_ != ABSTAIN
    assert answered.sum() >= 10
    assert set(model.public_labels_.tolist()) <= {ABSTAIN, 0, 1}


def test_many_classes_and_strange_labels() -> None:
    X, y, pool, X_test, y_test = data(n_classes=4)
    names = np.array(["none", "mild", "severe", "unknown"])
    model = quick(classes=names, epsilon=8).fit(
        X, names[y], X_public=pool, allow_overlap=True
    )
    assert model.classes_.tolist() == sorted(names)
    assert model.score(X_test, names[y_test]) > 0.45
    assert model.predict_proba(X_test).shape == (500, 4)
    assert model.soft_labels_.shape == (1000, 4)


def test_declared_classes_that_do_not_occur_have_a_column() -> None:
    X, y, pool, X_test, _ = data()
    model = quick(classes=[0, 1, 2]).fit(X, y, X_public=pool, allow_overlap=True)
    assert model.predict_proba(X_test).shape == (500, 3)


def frames() -> tuple[Any, Any, Any]:
    X, y, pool, *_ = data()
    table = pd.DataFrame(X[:, :3], columns=list("abc"))
    table["town"] = np.where(X[:, 3] > 0, "York", "Bath")
    table.loc[5, "town"] = None
    table.loc[6, "a"] = np.nan
    public = pd.DataFrame(pool[:, :3], columns=list("abc"))
    public["town"] = np.where(pool[:, 3] > 0, "York", "Bath")
    return table, y, public


def test_frames_with_text_columns_go_straight_to_the_teacher() -> None:
    table, y, public = frames()
    pipeline = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), ["town"]), remainder="passthrough"
        ),
        RandomForestClassifier(n_estimators=5),
    )
    model = quick(estimator=pipeline, classes=[0, 1]).fit(
        table, y, X_public=public, allow_overlap=True
    )
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "town"]
    assert model.n_features_in_ == 4
    assert model.predict(public).shape == (1000,)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(public.rename(columns={"a": "z"}))


def test_texts_and_sparse_matrices_are_records_too() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 900)
    words = np.array([["cheap", "win", "now"], ["meeting", "agenda", "minutes"]])
    texts = [" ".join(rng.choice(words[c], 6)) for c in y]
    pipeline = make_pipeline(TfidfVectorizer(), MultinomialNB())
    model = quick(estimator=pipeline, classes=[0, 1], n_teachers=20)
    model.fit(texts[:600], y[:600], X_public=texts[600:], allow_overlap=True)
    assert model.score(texts[600:], y[600:]) > 0.9
    matrix = TfidfVectorizer().fit_transform(texts)
    by_matrix = quick(estimator=MultinomialNB(), classes=[0, 1], n_teachers=20)
    by_matrix.fit(
        sp.csr_matrix(matrix[:600]), y[:600], X_public=matrix[600:], allow_overlap=True
    )
    assert by_matrix.score(matrix[600:], y[600:]) > 0.9
    plain = quick(estimator=MultinomialNB(), student=pipeline, classes=[0, 1])
    assert public_features(plain.estimator, np.array(texts)).shape[0] == 900


@pytest.mark.parametrize(
    "student", [KNeighborsClassifier(), Perceptron(), RidgeClassifier()]
)
def test_any_classifier_can_be_the_student(student: Any) -> None:
    X, y, pool, X_test, y_test = data()
    model = quick(student=student, classes=[0, 1], epsilon=8).fit(
        X, y, X_public=pool, allow_overlap=True
    )
    assert model.score(X_test, y_test) > 0.6
    assert hasattr(model, "predict_proba") == hasattr(student, "predict_proba")
    assert hasattr(model, "decision_function") == hasattr(student, "decision_function")
    if hasattr(model, "decision_function"):
        assert model.decision_function(X_test).shape == (500,)


def test_points_without_an_answer_are_dropped_or_get_a_random_label() -> None:
    X, y, pool, X_test, y_test = data()
    for on_abstain in ("drop", "random"):
        model = quick(
            mechanism="noisy-max", n_teachers=150, on_abstain=on_abstain, classes=[0, 1]
        ).fit(X, y, X_public=pool, allow_overlap=True)
        assert (model.public_labels_ == ABSTAIN).any()
        assert model.score(X_test, y_test) > 0.6


def test_label_private_learning_needs_no_public_data() -> None:
    X, y, _, X_test, y_test = data()
    model = quick(privacy="labels", classes=[0, 1]).fit(X, y)
    assert model.score(X_test, y_test) > 0.8
    assert len(model.public_labels_) == 2000
    groups = np.arange(4000) % 900
    quick(privacy="labels", classes=[0, 1]).fit(
        X, y, groups=groups, X_public=X_test, allow_overlap=True
    )


def test_label_private_chunks_do_not_depend_on_the_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y, *_ = data()
    seen: list[Any] = []

    def spy(keys: Any, groups: Any, **kwargs: Any) -> Any:
        seen.append(keys)
        return [np.arange(len(keys))]

    monkeypatch.setattr("mapl.records.private.chunk_rows", spy)
    for labels in (y, 1 - y):
        quick(privacy="labels", classes=[0, 1], n_teachers=1).fit(X, labels)
    assert (seen[0] == seen[1]).all()


@pytest.mark.parametrize("mechanism", ["auto", "noisy-max"])
def test_too_few_teachers_are_warned_of(mechanism: str) -> None:
    X, y, pool, *_ = data(200)
    model = quick(classes=[0, 1], mechanism=mechanism, epsilon=0.5, n_teachers=9)
    with pytest.warns(UserWarning, match=r"mostly noise: 9 teachers need") as caught:
        model.fit(X, y, X_public=pool, allow_overlap=True)
    (message,) = [str(w.message) for w in caught if "mostly noise" in str(w.message)]
    epsilon, n_teachers = re.findall(r"(?:of|needs) ([\d.]*\d)", message)
    assert mostly_noise_message(9, epsilon=float(epsilon), delta=1e-5) is None
    assert mostly_noise_message(int(n_teachers), epsilon=0.5, delta=1e-5) is None


def test_a_delta_of_one_over_the_records_is_warned_about() -> None:
    X, y, pool, *_ = data()
    model = quick(classes=[0, 1], n_records=len(X), delta=1 / len(X))
    with pytest.warns(PrivacyWarning, match="publishes one record whole. Take 2e-05"):
        model.fit(X, y, X_public=pool, allow_overlap=True)
    with pytest.warns(PrivacyWarning, match="rather large. Take 2e-05"):
        model.set_params(delta=0.3 / len(X)).fit(
            X, y, X_public=pool, allow_overlap=True
        )
    model.set_params(n_records=100).fit(
        X, y, X_public=pool, allow_overlap=True
    )  # the true number is not


def test_it_works_in_searches_and_cross_validation() -> None:
    X, y, pool, *_ = data()
    model = quick(privacy="labels", classes=[0, 1], n_teachers=20)
    with pytest.warns(PrivacyWarning, match="pays for each of its fits"):
        assert cross_val_score(model, X, y, cv=2).mean() > 0.7
    inside = quick(
        estimator=GridSearchCV(LogisticRegression(), {"C": [0.1, 10]}, cv=2),
        classes=[0, 1],
    )
    assert inside.fit(X, y, X_public=pool, allow_overlap=True).score(X, y) > 0.75
    scaled = make_pipeline(StandardScaler(), model)
    assert scaled.fit(X, y).score(X, y) > 0.7
    assert clone(model).get_params() == model.get_params()


def test_public_data_and_groups_are_routed(routing: None) -> None:
    X, y, pool, X_test, y_test = data()
    model = quick(classes=[0, 1], n_teachers=20)
    people = np.arange(len(X)) // 2
    given = {"X_public": pool, "groups": people}
    with pytest.warns(PrivacyWarning, match="pays for each of its fits"):
        assert cross_val_score(model, X, y, cv=2, params=given).mean() > 0.6
    search = GridSearchCV(model, {"n_teachers": [10, 20]}, cv=2)
    with pytest.warns(PrivacyWarning, match="k of them cost up to k times epsilon"):
        search.fit(X, y, X_public=pool, allow_overlap=True)
    assert search.best_params_["n_teachers"] in (10, 20)
    scaled = make_pipeline(StandardScaler(), model, transform_input=["X_public"])
    far = 1000 + 50 * pool
    scaled.fit(1000 + 50 * X, y, X_public=far, allow_overlap=True)
    assert scaled.score(1000 + 50 * X_test, y_test) > 0.6


@pytest.fixture
def routing() -> Iterator[None]:
    with config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_frames_of_every_kind(kind: str) -> None:
    if kind == "polars" and sklearn.__version__ < "1.7":
        pytest.skip("older column transformers take pandas alone")
    rng = np.random.default_rng(0)
    n = 2500
    frame = pd.DataFrame({"a": rng.normal(size=n), "b": rng.choice(["x", "y"], n)})
    y = ((frame["a"] > 0) ^ (frame["b"] == "x")).to_numpy().astype(int)
    frame["c"] = frame["a"] * np.where(frame["b"] == "x", -1, 1)
    coder = make_column_transformer(
        (StandardScaler(), ["a", "c"]), (OneHotEncoder(handle_unknown="ignore"), ["b"])
    )
    convert: Any = {"pandas": lambda f: f, "polars": pl.from_pandas}
    convert["pyarrow"] = pa.Table.from_pandas
    some = convert[kind](frame[:2000].astype({"c": str}))  # another type than public
    model = quick(estimator=make_pipeline(coder, LogisticRegression()), classes=[0, 1])
    model.set_params(epsilon=8, n_teachers=20)
    model.fit(some, y[:2000], X_public=convert[kind](frame[2000:]), allow_overlap=True)
    assert model.score(convert[kind](frame[:2000]), y[:2000]) > 0.8
    assert list(model.feature_names_in_) == ["a", "b", "c"]


def test_public_records_with_other_columns_are_refused() -> None:
    X, y, pool, *_ = data()
    for privacy in ("records", "labels"):
        with pytest.raises(ParameterError, match="Give both the same columns"):
            quick(classes=[0, 1], privacy=privacy).fit(
                X, y, X_public=pool[:, 1:], allow_overlap=True
            )


def test_groups_by_name_are_refused() -> None:
    X, y, pool, *_ = data()
    with pytest.raises(ParameterError, match="Pass the column itself"):
        quick(classes=[0, 1]).fit(
            X, y, X_public=pool, allow_overlap=True, groups="patient"
        )


def test_a_text_among_numbers_is_refused_without_showing_it() -> None:
    X, y, pool, *_ = data()
    private = X.astype(object)
    private[3, 1] = "secret"
    with pytest.raises(ParameterError, match="got a text") as raised:
        quick(classes=[0, 1]).fit(private, y, X_public=pool, allow_overlap=True)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
    with pytest.raises(ValueError, match="contains NaN"):
        quick(classes=[0, 1]).fit(
            np.full_like(X, np.nan), y, X_public=pool, allow_overlap=True
        )


class Numbers(LogisticRegression):
    """Takes class numbers without gaps only, as some libraries do."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if sorted(set(y)) != list(range(len(set(y)))):
            raise ValueError("Invalid classes")
        return super().fit(X, y, sample_weight)


def test_learners_that_want_class_numbers() -> None:
    X, y, pool, X_test, y_test = data()
    texts = np.array(["no", "yes"])
    model = quick(estimator=Numbers(), classes=texts, n_teachers=10, epsilon=8)
    model.fit(X, texts[y], X_public=pool, allow_overlap=True)
    assert model.score(X_test, texts[y_test]) > 0.6
    assert list(model.student_.classes_) == ["no", "yes"]
    assert model.predict_proba(X_test).shape == (500, 2)
    assert model.decision_function(X_test).shape == (500,)
    whole = make_pipeline(FunctionTransformer().fit(X), model.student_)
    assert (whole.predict(X_test) == model.predict(X_test)).all()


class Untold(BaseEstimator):
    """Does not say that it is a classifier."""

    def fit(self, X: Any, y: Any) -> Any:
        self.inner_ = LogisticRegression().fit(X, y)
        return self

    def predict(self, X: Any) -> Any:
        return self.inner_.predict(X)


def test_a_learner_need_not_say_what_it_is() -> None:
    X, y, pool, X_test, y_test = data()
    model = quick(estimator=Untold(), classes=[0, 1]).fit(
        X, y, X_public=pool, allow_overlap=True
    )
    assert model.score(X_test, y_test) > 0.75
    assert is_classifier(model)


@pytest.mark.parametrize("name", ["xgboost.XGBClassifier", "lightgbm.LGBMClassifier"])
@pytest.mark.filterwarnings("ignore")
def test_boosting_libraries(name: str) -> None:
    library, _, classifier = name.partition(".")
    learner = getattr(pytest.importorskip(library), classifier)(n_estimators=10)
    X, y, pool, X_test, y_test = data()
    texts = np.array(["no", "yes"])
    model = quick(estimator=learner, classes=texts, n_teachers=10, epsilon=8)
    model.fit(X, texts[y], X_public=pool, allow_overlap=True)
    assert model.score(X_test, texts[y_test]) > 0.6


@pytest.mark.filterwarnings("ignore")
def test_a_network_through_skorch() -> None:
    torch = pytest.importorskip("torch")
    skorch = pytest.importorskip("skorch")
    X, y, pool, X_test, y_test = data()
    net = skorch.NeuralNetClassifier(
        torch.nn.Linear,
        module__in_features=X.shape[1],
        module__out_features=2,
        criterion=torch.nn.CrossEntropyLoss,
        lr=0.5,
        max_epochs=5,
        verbose=0,
        classes=[0, 1],
        train_split=None,
    )
    learner = make_pipeline(FunctionTransformer(np.float32), net)
    model = quick(estimator=learner, classes=[0, 1], n_teachers=10, epsilon=8)
    model.set_params(student=LogisticRegression()).fit(
        X, y, X_public=pool, allow_overlap=True
    )
    assert model.score(X_test, y_test) > 0.6


def test_more_teachers_than_records_are_allowed() -> None:
    X, y, pool, X_test, _ = data()
    model = quick(n_teachers=300, classes=[0, 1])
    model.fit(X[:50], y[:50], X_public=pool[:100], allow_overlap=True)
    assert model.predict(X_test).shape == (500,)


def test_one_class_is_always_given_and_costs_nothing() -> None:
    X, _, pool, X_test, _ = data()
    model = quick(classes=["only"]).fit(
        X, np.full(4000, "only"), X_public=pool, allow_overlap=True
    )
    assert set(model.predict(X_test)) == {"only"}
    assert model.events_ == []


def test_classes_read_from_private_labels_are_warned_of() -> None:
    X, y, pool, *_ = data()
    with pytest.warns(PrivacyWarning, match="which labels exist is not protected"):
        quick().fit(X[:200], y[:200], X_public=pool[:50], allow_overlap=True)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"epsilon": 0}, "epsilon must be a finite number > 0, got 0"),
        ({"delta": 1}, "delta must be > 0 and < 1, got 1"),
        ({"n_teachers": 0}, "n_teachers must be an integer >= 1, got 0"),
        ({"n_records": 0.5}, "n_records must be an integer >= 1"),
        ({"mechanism": "magic"}, "mechanism must be one of 'auto'"),
        ({"privacy": "none"}, "privacy must be one of 'records', 'labels'"),
        ({"on_abstain": "guess"}, "on_abstain must be one of 'drop', 'random'"),
        ({"random_state": -1}, "random_state must be an integer >= 0"),
        ({"classes": [0, 7]}, "label that is not among classes"),
        ({"ledger": "sqlite:///b.db"}, "must be given together"),
        ({"n_jobs": 0}, "n_jobs must not be 0"),
        ({"epsilon": 10**400}, "epsilon must be a finite number > 0, got 1000"),
        ({"time_limit": 0}, "time_limit must be a finite number > 0, got 0"),
        ({"on_invalid": "guess"}, "on_invalid must be one of 'error', 'drop'"),
        ({"classes": [0, None]}, "classes must name every label"),
        ({"classes": 2}, "classes must name every label"),
        ({"estimator": LinearRegression()}, "must be a classifier, got a regressor"),
        ({"classes": []}, "classes must name every label"),
        ({"delta": 1e-17}, "No noise can be certified.*1e-15 or more"),
    ],
)
def test_misuse_says_what_to_do(kwargs: dict[str, Any], message: str) -> None:
    X, y, pool, *_ = data(60)
    with pytest.raises(ParameterError, match=message):
        quick(**{"classes": [0, 1], **kwargs}).fit(
            X, y, X_public=pool, allow_overlap=True
        )


def test_messages_do_not_reveal_the_number_of_records() -> None:
    X, y, pool, *_ = data(60)
    model = quick(classes=[0, 1])
    for labels in (y[:59], np.stack((y, y), axis=1)):
        with pytest.raises(ParameterError, match=r"same length|1d array") as caught:
            model.fit(X, labels, X_public=pool, allow_overlap=True)
        assert not re.search("60|59", str(caught.value))


def test_a_fit_that_fails_leaves_nothing_of_an_earlier_one() -> None:
    X, y, pool, *_ = data(400)
    model = quick(classes=[0, 1]).fit(X, y, X_public=pool, allow_overlap=True)
    model.set_params(mechanism="noisy-max").fit(X, y, X_public=pool, allow_overlap=True)
    assert not hasattr(model, "soft_labels_")
    with pytest.raises(ParameterError):
        model.set_params(classes=[1, 2]).fit(X, y, X_public=pool, allow_overlap=True)
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_classes_that_never_occur_are_never_decided_for(n_classes: int) -> None:
    X, y, pool, *_ = data(n_classes=n_classes)
    model = quick(classes=range(n_classes + 1)).fit(
        X, y, X_public=pool, allow_overlap=True
    )
    model.student_ = LogisticRegression().fit(X, y)  # as if noise had spared the last
    decided = model.decision_function(X)
    assert decided.shape == (len(X), n_classes + 1)
    assert (decided[:, -1] == -np.inf).all()
    assert (decided.argmax(axis=1) == model.predict(X)).all()


def test_a_student_that_cannot_read_the_records_is_refused_before_the_charge() -> None:
    table, y, public = frames()
    learner = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough"),
        LogisticRegression(),
    )
    model = quick(estimator=learner, student=KNeighborsClassifier(), classes=[0, 1])
    with pytest.raises(ParameterError, match=r"student fails.*Nothing was released"):
        model.fit(table, y, X_public=public, allow_overlap=True)


def test_missing_public_data_says_what_to_do() -> None:
    X, y, *_ = data(60)
    with pytest.raises(
        ParameterError, match=r"X_public must be given.*privacy='labels'"
    ):
        quick(classes=[0, 1]).fit(X, y)


def test_a_learner_that_cannot_read_the_records_is_refused_at_no_cost() -> None:
    table, y, public = frames()
    model = quick(classes=[0, 1], epsilon=500)
    with pytest.raises(ParameterError, match="fails on the public records") as caught:
        model.fit(table, y, X_public=public, allow_overlap=True)
    assert "could not convert string to float" in str(caught.value)
    assert not hasattr(model, "events_")


def test_too_few_teachers_for_the_sparse_vector_say_what_to_do() -> None:
    X, y, pool, *_ = data(200)
    model = quick(mechanism="sparse-vector", epsilon=0.1, n_teachers=4, classes=[0, 1])
    with pytest.raises(ParameterError, match=r"would withhold.*Nothing was released"):
        model.fit(X, y, X_public=pool[:20], allow_overlap=True)
    unlucky = quick(mechanism="sparse-vector", n_teachers=60, classes=[0, 1])
    with pytest.raises(ParameterError, match="withheld every answer"):
        unlucky.fit(
            X, np.arange(200) % 2, X_public=np.zeros((20, 10)), allow_overlap=True
        )


def test_a_sparse_vector_that_answers_one_class_gives_that_class() -> None:
    X, _, pool, X_test, _ = data()
    model = quick(mechanism="sparse-vector", n_teachers=400, classes=[0, 1])
    model.fit(X, np.zeros(4000, dtype=int), X_public=pool, allow_overlap=True)
    assert set(model.predict(X_test)) == {0}
    soft = quick(n_teachers=400, classes=[0, 1], epsilon=100)
    assert set(
        soft.fit(
            X, np.zeros(4000, dtype=int), X_public=pool, allow_overlap=True
        ).predict(X_test)
    ) == {0}


def test_random_state_seeds_the_teachers_and_never_the_noise() -> None:
    X, y, pool, *_ = data(400)
    model = quick(classes=[0, 1], n_teachers=10, epsilon=1)
    first = model.fit(X, y, X_public=pool, allow_overlap=True).soft_labels_
    assert (
        model.fit(X, y, X_public=pool, allow_overlap=True).soft_labels_ != first
    ).any()
    quick(classes=[0, 1], random_state=None).fit(
        X, y, X_public=pool, allow_overlap=True
    )


def test_teachers_go_by_public_numbers() -> None:
    assert teachers_for(1.0, 2, None) == 212
    assert teachers_for(0.25, 2, None) == 424
    assert teachers_for(1.0, 10, None) > teachers_for(1.0, 2, None)
    assert teachers_for(1.0, 2, 1000) == 40
    assert teachers_for(100.0, 2, 10) == 5
    X, y, pool, *_ = data()
    model = quick(classes=[0, 1], n_teachers="auto", n_records=1000)
    assert model.fit(
        X, y, X_public=pool, allow_overlap=True
    ).n_teachers_ == teachers_for(model.epsilon, 2, 1000)
    model.set_params(mechanism="sparse-vector", n_records=4000)
    model.fit(X, y, X_public=pool, allow_overlap=True)
    sizes: dict[str, Any] = {"n_records": 4000, "n_queries": len(pool), "n_classes": 2}
    planned = plan(**sizes, epsilon=model.epsilon, delta=model.delta).options
    assert model.n_teachers_ == planned[2].n_teachers == 160 > planned[0].n_teachers


def test_features_of_every_kind_of_pool() -> None:
    features = np.random.default_rng(0).normal(size=(4000, 30))
    assert public_features(None, sp.csr_matrix(features)).shape == (4000, 30)
    wide = sp.random(50, 2000, density=0.01, random_state=0, format="csr")
    assert public_features(None, wide).shape == (50, 49)
    supervised = make_pipeline(NeedsLabels(), LogisticRegression())
    assert public_features(supervised, features).shape == (4000, 30)
    holes = features.copy()
    holes[:3, 0] = np.nan, np.inf, -np.inf
    passed_on = make_pipeline(FunctionTransformer(), RandomForestClassifier())
    for pool in (holes, sp.csr_matrix(holes), np.tile(holes, 60)):
        assert np.isfinite(public_features(passed_on, pool)).all()
    frame = pd.DataFrame(holes).add_prefix("x").assign(town="York")
    assert np.isfinite(public_features(passed_on, frame)).all()


def test_points_that_cannot_be_encoded_are_refused_before_the_charge() -> None:
    texts = [str(i) for i in range(200)]
    model = quick(estimator=DummyClassifier(), classes=[0, 1])
    with pytest.raises(ParameterError, match=r"turned into numbers.*Nothing was rel"):
        model.fit(texts, np.arange(200) % 2, X_public=[""] * 100, allow_overlap=True)
    assert not hasattr(model, "student_")


class NeedsLabels(StandardScaler):
    def fit_transform(self, X: Any, y: Any) -> Any:  # type: ignore[override]
        raise TypeError


def test_warnings_are_left_as_they_were() -> None:
    X, y, pool, *_ = data(200)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before, shown = warnings.filters.copy(), warnings.showwarning
        quick(classes=[0, 1]).fit(X, y, X_public=pool, allow_overlap=True)
        assert warnings.filters == before
        assert warnings.showwarning is shown


@pytest.mark.parametrize(
    "wrong",
    [np.full(80, 98765.25), np.full((80, 2), 98765.25 + 1j)],
    ids=["one dimension", "complex"],
)
def test_no_record_is_shown_where_they_are_of_a_wrong_form(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"2D array|[Cc]omplex") as caught:
        quick(classes=[0, 1]).fit(
            wrong, np.arange(80) % 2, X_public=wrong, allow_overlap=True
        )
    shown = "".join(traceback.format_exception(caught.value))
    assert "98765" not in shown.replace("9.8765", "98765")


def test_one_record_does_not_decide_in_what_form_a_list_comes() -> None:
    rows = [[2**53 + 1 + i, i] for i in range(100)]
    model = quick(classes=[0, 1])
    with pytest.raises(ValueError, match="not compatible with arrays") as caught:
        model.fit(
            [["s3cret", 1.0]] * 80, [0, 1] * 40, X_public=rows, allow_overlap=True
        )
    assert "s3cret" not in str(caught.value)


# Sealed -----------------------------------------------------------------------------


def test_records_that_do_not_fit_are_refused_or_dropped() -> None:
    X, y, pool, *_ = data(400)
    holed = X.copy()
    holed[3, 2] = np.nan
    model = quick(classes=[0, 1])
    with pytest.raises(ParameterError, match="contains NaN or a cell that does not"):
        model.fit(holed, y, X_public=pool, allow_overlap=True)
    with pytest.raises(ParameterError, match="not among classes"):
        model.fit(X, [7, *y[1:]], X_public=pool, allow_overlap=True)
    model.set_params(on_invalid="drop")
    odd = [list(row) for row in holed]
    odd[5], odd[6][0] = odd[5][:3], "a text"
    model.fit(odd, [7, *y[1:]], X_public=pool, allow_overlap=True)
    assert "seen by the holder" not in model.certificate_["public"]["assumed"]
    with pytest.raises(ParameterError, match="classes must be given where"):
        quick(on_invalid="drop").fit(X, y, X_public=pool, allow_overlap=True)
    strict = quick(classes=[0, 1]).fit(X, y, X_public=pool, allow_overlap=True)
    assert "seen by the holder alone" in strict.certificate_["public"]["assumed"]


def test_numbers_that_no_float_holds_are_refused_without_showing_them() -> None:
    X, y, pool, *_ = data(100)
    odd = X.astype(object)
    odd[0, 0] = 10**400
    with pytest.raises(ParameterError, match="that a float can hold") as caught:
        quick(classes=[0, 1]).fit(odd, y, X_public=pool, allow_overlap=True)
    assert "000" not in str(caught.value)


def test_a_pipeline_that_imputes_takes_missing_cells() -> None:
    X, y, pool, *_ = data(400)
    holed = X.copy()
    holed[::7, 2] = np.nan
    learner = make_pipeline(SimpleImputer(), LogisticRegression())
    quick(estimator=learner, classes=[0, 1]).fit(
        holed, y, X_public=pool, allow_overlap=True
    )
    sparse = quick(estimator=LogisticRegression(), classes=[0, 1])
    bad = sp.csr_matrix(holed)
    with pytest.raises(ParameterError, match="contains NaN"):
        sparse.fit(bad, y, X_public=sp.csr_matrix(pool), allow_overlap=True)


def test_private_cells_never_stop_a_fit_where_they_may_not() -> None:
    X, y, pool, *_ = data(300)
    public = pd.DataFrame(pool).add_prefix("x")
    odd: list[Any] = [10**400, Decimal("1E+10000000"), [1], b"\xff", "new", 1j, None]
    frame = pd.DataFrame(X).add_prefix("x").astype(object)
    for i, value in enumerate(odd):
        frame.at[i, "x1"] = value
    learner = make_pipeline(SimpleImputer(), LogisticRegression())
    model = quick(estimator=learner, classes=[0, 1], on_invalid="drop")
    model.fit(frame, y, X_public=public, allow_overlap=True)
    assert model.public_labels_.shape == (1000,)


def test_no_records_at_all_are_a_fit_like_any_other() -> None:
    _, _, pool, X_test, _ = data()
    model = quick(classes=[0, 1], on_invalid="drop")
    model.fit(np.empty((0, 10)), [], X_public=pool, allow_overlap=True)
    assert model.predict(X_test).shape == (500,)


def test_a_fit_without_declared_classes_says_so_in_its_sentence() -> None:
    X, y, pool, *_ = data(200)
    with pytest.warns(PrivacyWarning):
        model = quick().fit(X, y, X_public=pool, allow_overlap=True)
    sentence = model.certificate_["guarantee"]
    assert sentence.endswith("The list of classes is not protected.")
    certificate.verify(model.certificate_)
    with pytest.raises(CertificateError, match="sentence"):
        certificate.verify(model.certificate_ | {"guarantee": sentence[:-38]})


def test_a_certificate_is_json_whatever_the_parameters_are() -> None:
    X, y, pool, *_ = data(200)
    days = np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]")
    model = PrivateClassifier(
        epsilon=np.float32(4),
        delta=np.float32(1e-5),
        n_teachers=np.int16(40),
        n_records=np.uint16(200),
        classes=days,
        random_state=np.int64(0),
    )
    model.fit(X, days[y], X_public=pool, allow_overlap=True)
    assert json.loads(json.dumps(model.certificate_))["public"]["classes"] == [
        *("2020-01-01", "2020-01-02")
    ]


def test_a_password_is_shown_nowhere() -> None:
    model = PrivateClassifier(ledger="postgresql://me:s3cr3t@host/db", dataset="d")
    shown = repr(model) + str(model) + model._repr_html_()
    shown += str(model._repr_mimebundle_())
    assert "s3cr3t" not in shown
    assert "me:***@host" in repr(model)
    X, y, pool, *_ = data(100)
    with pytest.raises(ParameterError, match=r"no password.*PGPASSWORD"):
        model.fit(
            X, y, X_public=pool, allow_overlap=True
        )  # a pipeline around it would show it


def test_a_teacher_that_changes_the_points_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gets copies, so this cannot happen; if it does, nothing is released."""

    def careless(estimator: Any, chunks: Any, points: Any, **_: Any) -> Any:
        points += 1
        return np.zeros((40, len(points)), dtype=np.int8)

    monkeypatch.setattr("mapl.methods.votes.collect_votes", careless)
    X, y, pool, *_ = data(200)
    with pytest.raises(MaplError, match="changed the public points"):
        quick(classes=[0, 1]).fit(X, y, X_public=pool, allow_overlap=True)


def test_few_public_points_are_tried_too() -> None:
    X, y, pool, *_ = data(200)
    quick(classes=[0, 1]).fit(X, y, X_public=pool[:20], allow_overlap=True)
    with pytest.raises(ParameterError, match=r"student fails.*Nothing was released"):
        quick(classes=[0, 1], student=MultinomialNB()).fit(
            X, y, X_public=pool[:20], allow_overlap=True
        )
    with pytest.raises(ParameterError, match="contains NaN"):
        quick(classes=[0, 1]).fit(
            np.full_like(X, np.nan), y, X_public=pool[:20], allow_overlap=True
        )


@pytest.mark.parametrize("on_invalid", ["error", "drop"])
def test_no_message_counts_records(on_invalid: str) -> None:
    X, y, pool, *_ = data(293)
    model = quick(classes=[0, 1], on_invalid=on_invalid)
    two = np.stack((y, y), axis=1)
    ragged = [list(row) for row in X]
    ragged[5] = ragged[5][:3]
    for given in ((X, two), (ragged, y) if on_invalid == "error" else (X, two)):
        with pytest.raises(ParameterError) as caught:
            model.fit(*given, X_public=pool, allow_overlap=True)
        assert not re.search("293|586", str(caught.value))


def test_arrow_records_are_not_read_by_a_check() -> None:
    """Only names are looked at: converting a whole table may show a cell."""
    rng = np.random.default_rng(0)
    raw = pa.array([b"York", b"Bath"] * 99 + [b"secret\xff", b"x"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 200, raw.buffers())
    private = pa.table({"t": texts, "a": rng.normal(size=200)})
    public = pa.table({"t": ["York", "Bath"] * 40, "a": rng.normal(size=80)})
    coder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["t"]), remainder="passthrough"
    )
    learner = make_pipeline(coder, SimpleImputer(), LogisticRegression())
    model = quick(estimator=learner, classes=[0, 1])
    model.fit(private, np.arange(200) % 2, X_public=public, allow_overlap=True)


def test_a_warning_of_scikit_learn_counts_no_labels() -> None:
    X, _, pool, *_ = data(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "What is published will be mostly noise")
        warnings.filterwarnings("ignore", "lbfgs failed")  # the student, on noise
        warnings.filterwarnings("ignore", "No public point gets")
        quick(classes=range(25)).fit(
            X, np.arange(40) % 25, X_public=pool, allow_overlap=True
        )


@pytest.mark.parametrize("method", ["votes", "both"])
def test_metadata_routing_changes_nothing(method: str) -> None:
    from sklearn import config_context

    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    y = (X[:, 0] > 0).astype(int)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    model = PrivateClassifier(
        pipeline, method=method, classes=[0, 1], n_teachers=10, epsilon=9
    )
    with config_context(enable_metadata_routing=True):
        model.fit(X, y, X_public=X[:200], allow_overlap=True)
        assert model.score(X, y) > 0.7
