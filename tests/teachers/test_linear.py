from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
)
from sklearn.svm import LinearSVC

from mapl.privacy.votes import NO_VOTE
from mapl.teachers import linear, newton, stacked
from mapl.teachers.panel import Panel, ask
from mapl.teachers.training import Teacher, train

Chunks = list[np.ndarray[Any, Any]]


def data(n_classes: int = 2, n_features: int = 12) -> tuple[Any, Any, Any]:
    X, y = make_classification(
        2000,
        n_features,
        n_informative=8,
        n_classes=n_classes,
        class_sep=0.7,
        random_state=0,
    )
    return X[:1200], y[:1200], X[1200:]


def cut(n: int, n_chunks: int) -> Chunks:
    """Chunks of unequal sizes."""
    which = np.random.default_rng(1).integers(0, n_chunks, n)
    return [np.flatnonzero(which == j) for j in range(n_chunks)]


def trained(learner: Any, X: Any, y: Any, chunks: Chunks) -> Any:
    labels = np.arange(int(np.max(y)) + 1)
    return train(learner, X, y, chunks, labels=labels, random_state=0)


LEARNERS = [
    LogisticRegression(),
    LogisticRegression(C=0.01),
    LogisticRegression(C=50, max_iter=1000, fit_intercept=False),
    LogisticRegression(solver="newton-cg"),
    RidgeClassifier(),
    RidgeClassifier(alpha=0.1, fit_intercept=False),
    LinearSVC(),
    LinearSVC(C=0.1, fit_intercept=False),
    LinearSVC(intercept_scaling=5.0),
    make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    make_pipeline(PCA(5, random_state=0), RidgeClassifier()),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize(("n_features", "n_chunks"), [(12, 6), (120, 24)])
def test_the_votes_are_those_of_scikit_learn(
    learner: Any, n_classes: int, n_features: int, n_chunks: int
) -> None:
    X, y, pool = data(n_classes, n_features)
    chunks = cut(len(X), n_chunks)
    assert linear.can_fit(learner)
    votes = ask(trained(learner, X, y, chunks), pool, n_classes=n_classes)
    patient = converged(learner)
    own = [clone(patient).fit(X[rows], y[rows]).predict(pool) for rows in chunks]
    assert (votes == np.array(own)).mean() >= 0.999


def converged(learner: Any) -> Any:
    """The same learner, message to go on until it is there.

    By default scikit-learn stops early: on chunks with fewer records than features its
    own votes agree with those of its minimum on 90 to 99.9 %.
    """
    patient = clone(learner)
    last = patient[-1] if isinstance(patient, Pipeline) else patient
    if not isinstance(last, RidgeClassifier):
        last.set_params(tol=1e-8, max_iter=100_000)
    if isinstance(last, LogisticRegression):
        last.set_params(solver="newton-cg")
    return patient


def test_the_votes_are_those_of_scikit_learn_as_it_comes() -> None:
    X, y, pool = data(2)
    chunks = cut(len(X), 10)
    votes = ask(trained(LogisticRegression(), X, y, chunks), pool, n_classes=2)
    own = [LogisticRegression().fit(X[rows], y[rows]).predict(pool) for rows in chunks]
    assert (votes == np.array(own)).mean() >= 0.999


def coefficients(teachers: Any) -> list[bytes]:
    found = []
    for teacher in teachers:
        model = teacher.model
        last = model[-1] if isinstance(model, Pipeline) else model
        found.append(last.coef_.tobytes() + last.intercept_.tobytes())
    return found


def changed_teachers(learner: Any, n_classes: int, n_features: int) -> set[int]:
    """Change one chunk in every way, and say which teachers become others."""
    X, y, _ = data(n_classes, n_features)
    chunks = cut(len(X), 18)
    before = coefficients(trained(learner, X, y, chunks))
    changed: set[int] = set()
    other = np.random.default_rng(2).normal(size=X[chunks[7]].shape)
    for content, rows in (
        (-X[chunks[7]], chunks[7]),  # other records
        (1e4 * other, chunks[7]),
        (100 * (2 * y[chunks[7], None] - 1) + 0 * other, chunks[7]),  # needs more steps
        (0 * other, chunks[7]),  # needs fewer
        (X[chunks[7]], chunks[7][:-1]),  # one record less
        (X[chunks[7]], chunks[7][:9]),  # another padded size
        (X[chunks[7]], np.concatenate([chunks[7]] * 3)),
    ):
        features = X.copy()
        features[chunks[7]] = content
        again = [*chunks[:7], rows, *chunks[8:]]
        after = coefficients(trained(learner, features, y, again))
        changed |= {j for j in range(18) if before[j] != after[j]}
    return changed


@pytest.mark.parametrize(
    "learner",
    [
        LogisticRegression(),
        LogisticRegression(C=100, fit_intercept=False),
        RidgeClassifier(),
        LinearSVC(),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_features", [12, 120])
def test_a_teacher_is_its_own_to_the_last_bit(
    learner: Any, n_classes: int, n_features: int
) -> None:
    assert changed_teachers(learner, n_classes, n_features) == {7}


def test_the_first_teacher_is_trained_like_the_others() -> None:
    """A third class in one chunk makes it another task, and the first of them. With
    threads for the first task only, the last bits of the others would change.
    """
    X, y, _ = data(3, 120)
    chunks = [np.arange(a, a + 100) for a in range(0, 1200, 100)]
    fewer = y.copy()
    fewer[chunks[0]] = y[chunks[0]] % 2
    both = [
        coefficients(trained(LogisticRegression(), X, labels, chunks))
        for labels in (y, fewer)
    ]
    assert both[0][0] != both[1][0]
    assert both[0][1:] == both[1][1:]


def test_many_classes_of_many_features_are_left_to_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y, _ = data(3)
    monkeypatch.setattr(linear, "_MOST_WEIGHTS", 1)
    model = linear.fit(LogisticRegression(), X, y)
    own = LogisticRegression().fit(X, y)
    assert (model.coef_ == own.coef_).all()


class ArriveTogether(stacked._BinaryStack):
    """Planted bug: all chunks of a stack go on until the last one is there."""

    def _converged(self, moves: Any) -> Any:
        there = super()._converged(moves)
        return np.full(len(there), there.all())


def test_the_check_catches_chunks_that_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacked, "_BinaryStack", ArriveTogether)
    assert changed_teachers(LogisticRegression(), 2, 12) > {7}


def test_stacks_of_any_depth_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, y, _ = data()
    chunks = cut(len(X), 18)
    together = coefficients(trained(LogisticRegression(), X, y, chunks))
    monkeypatch.setattr(stacked, "_STACK_CELLS", 1)
    assert coefficients(trained(LogisticRegression(), X, y, chunks)) == together


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("n_features", [12, 120])
def test_what_cannot_be_computed_has_no_vote_and_spoils_nothing(
    poison: float, n_features: int
) -> None:
    X, y, pool = data(2, n_features)
    chunks = cut(len(X), 18)
    before = ask(trained(LogisticRegression(), X, y, chunks), pool, n_classes=2)
    X[chunks[3][0], 5] = poison
    after = ask(trained(LogisticRegression(), X, y, chunks), pool, n_classes=2)
    others = np.arange(18) != 3
    assert (after[others] == before[others]).all()
    if not np.isfinite(poison):
        assert (after[3] == NO_VOTE).all()


def test_a_singular_matrix_takes_no_other_with_it() -> None:
    stack = np.array([np.eye(2), np.zeros((2, 2)), 2 * np.eye(2)])
    found = stacked._solve_each(stack, np.ones((3, 2, 1)))
    assert found[0].ravel().tolist() == [1, 1]
    assert np.isnan(found[1]).all()
    assert found[2].ravel().tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "learner", [LogisticRegression(), LinearSVC()], ids=["logistic", "svc"]
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_training_stops_after_the_most_iterations(
    monkeypatch: pytest.MonkeyPatch, learner: Any, n_classes: int
) -> None:
    X, y, pool = data(n_classes)
    for module in (newton, stacked):
        monkeypatch.setattr(module, "_MAX_ITER", 1)
    votes = ask(trained(learner, X, y, cut(len(X), 5)), pool, n_classes=n_classes)
    assert set(votes.ravel()) == set(range(n_classes))


def test_a_failed_line_search_keeps_the_last_point() -> None:
    X, y, pool = data(3)
    votes = ask(
        trained(LogisticRegression(), 1e160 * X, y, [np.arange(99)]), pool, n_classes=3
    )
    assert (votes >= 0).all()


def test_steps_are_cut_where_they_lead_up() -> None:
    rng = np.random.default_rng(0)
    X = np.vstack((rng.normal(size=(40, 2)), [[300.0, 0.0]]))
    y = np.append(X[:40, 0] < 0, True).astype(np.int64)
    for learner in (LogisticRegression(C=1e4, max_iter=10_000), LinearSVC(C=100)):
        (teacher,) = trained(learner, X, y, [np.arange(41)])
        own = converged(learner).fit(X, y)
        assert np.allclose(teacher.model.coef_, own.coef_, rtol=1e-2, atol=1e-3)


def test_features_of_any_size_are_fitted() -> None:
    """Single precision cannot: the solver notices, and looks closer."""
    X, y, pool = data(3)
    scale = 10.0 ** (np.arange(12) / 2)
    chunks = cut(len(X), 5)
    learner = LogisticRegression(C=1e8, max_iter=10_000)  # next to no penalty
    votes = ask(trained(learner, X * scale, y, chunks), pool * scale, n_classes=3)
    own = [clone(learner).fit(X[rows], y[rows]).predict(pool) for rows in chunks]
    assert (votes == np.array(own)).mean() >= 0.99


@pytest.mark.parametrize(
    "learner",
    [
        LogisticRegression(solver="liblinear"),
        LogisticRegression(class_weight="balanced"),
        LogisticRegression(C=np.inf),
        LogisticRegression(l1_ratio=1, solver="saga"),
        RidgeClassifier(alpha=0),
        RidgeClassifier(class_weight={0: 2}),
        RidgeClassifier(positive=True, solver="lbfgs"),
        LinearSVC(loss="hinge"),
        LinearSVC(penalty="l1"),
        SGDClassifier(),
        make_pipeline(LogisticRegression()),
        Pipeline([("a", StandardScaler()), ("b", LogisticRegression())], memory="x"),
        type("Own", (LogisticRegression,), {})(),
    ],
    ids=repr,
)
def test_other_learners_are_not_fitted_here(learner: Any) -> None:
    assert not linear.can_fit(learner)


def test_a_pipeline_that_makes_sparse_records_goes_on_in_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (400, 3)).astype(float)
    y = (X[:, 0] > 1).astype(np.int64)
    learner = make_pipeline(
        OneHotEncoder(handle_unknown="ignore"), LogisticRegression()
    )
    assert linear.can_fit(learner)
    votes = ask(trained(learner, X, y, cut(400, 4)), X, n_classes=2)
    assert (votes == y).all()


@pytest.mark.parametrize(
    "scaler",
    [
        StandardScaler(),
        StandardScaler(with_mean=False),
        StandardScaler(with_std=False),
        MinMaxScaler((-3, 5)),
        MaxAbsScaler(),
        "passthrough",
    ],
    ids=repr,
)
def test_scalers_become_part_of_the_coefficients(scaler: Any) -> None:
    X, y, pool = data(3)
    learner = Pipeline([("scale", scaler), ("fit", LogisticRegression(max_iter=500))])
    teachers = trained(learner, X, y, cut(len(X), 6))
    panel = Panel(teachers, n_classes=3)
    assert panel._stack is not None
    own = [teacher.model.predict(pool) for teacher in teachers]
    assert (panel.ask(pool) == np.array(own)).mean() >= 0.9999


def test_other_transformers_are_asked_by_predict() -> None:
    X, y, pool = data(3)
    for first in (PCA(5, random_state=0), MinMaxScaler(clip=True)):
        teachers = trained(
            make_pipeline(first, LogisticRegression()), X, y, cut(len(X), 4)
        )
        panel = Panel(teachers, n_classes=3)
        assert panel._stack is None
        own = [teacher.model.predict(pool) for teacher in teachers]
        assert (panel.ask(pool) == np.array(own)).all()


def test_a_stack_holds_missing_and_one_class_teachers() -> None:
    X, y, pool = data(4)
    (most,) = trained(LogisticRegression(), X, y, [np.arange(900)])
    two = np.flatnonzero((y == 1) | (y == 3))
    (pair,) = trained(LogisticRegression(), X, y, [two])
    teachers = [None, Teacher(None, np.arange(0), np.array([2])), most, pair]
    votes = ask(teachers, pool, n_classes=4)
    assert (votes[0] == NO_VOTE).all()
    assert (votes[1] == 2).all()
    assert (votes[2] == most.model.predict(pool)).all()
    assert (votes[3] == pair.model.predict(pool)).all()
    assert set(votes[3]) == {1, 3}


def test_two_classes_and_a_one_class_teacher() -> None:
    X, y, pool = data()
    (known,) = trained(LogisticRegression(), X, y, [np.arange(500)])
    words = [Teacher(None, np.arange(0), np.array([c])) for c in (0, 1)]
    votes = ask([*words, known, None], pool, n_classes=2)
    assert [set(row) for row in votes[[0, 1, 3]]] == [{0}, {1}, {NO_VOTE}]
    assert (votes[2] == known.model.predict(pool)).all()


def test_queries_with_texts_are_asked_one_teacher_at_a_time() -> None:
    from scipy.sparse import csr_array

    X, y, pool = data()
    teachers = trained(LogisticRegression(), X, y, cut(len(X), 4))
    expected = ask(teachers, pool, n_classes=2)
    assert (ask(teachers, csr_array(pool), n_classes=2) == expected).all()
    missing = pool.copy()
    missing[0, 0] = np.nan
    assert (ask(teachers, missing, n_classes=2) == NO_VOTE).all()
    words = np.full((3, X.shape[1]), "word", dtype=object)
    assert (ask(teachers, words, n_classes=2) == NO_VOTE).all()


def test_a_gradient_that_does_not_turn_says_nothing_about_curvature() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(5, 40)), np.ones(5)
    curvature = newton._Curvature(rows, weights, 3, np.float32)
    at, gradient = np.zeros(10), rng.normal(size=10)
    first = curvature.solve(at, gradient)
    assert (curvature.solve(at, gradient) == first).all()
    turned = curvature.solve(at - first, gradient / 2)  # it went half of the way
    assert np.allclose(turned, first)  # as much again leads to the end
