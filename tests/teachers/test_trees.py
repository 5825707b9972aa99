"""The votes of trees, held against predict: every one of them the same."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from mapl.privacy.votes import NO_VOTE
from mapl.teachers import trees
from mapl.teachers.panel import Panel, ask
from mapl.teachers.training import Teacher, train
from mapl.teachers.trees import Ensemble, Trees


def data(n_classes: int) -> tuple[Any, Any]:
    """Values on a grid, so that many points lie on a threshold or tie."""
    X, y = make_classification(
        900, 8, n_informative=6, n_classes=n_classes, class_sep=0.5, random_state=0
    )
    X[:, :5] = np.round(2 * X[:, :5]) / 2
    return X, y


LEARNERS = [
    DecisionTreeClassifier(random_state=0),
    DecisionTreeClassifier(max_depth=3, random_state=0),
    DecisionTreeClassifier(max_leaf_nodes=12, random_state=0),
    ExtraTreeClassifier(random_state=0),
    RandomForestClassifier(20, random_state=0),
    RandomForestClassifier(300, max_depth=1, random_state=0),
    RandomForestClassifier(260, random_state=0),
    RandomForestClassifier(20, min_samples_leaf=5, random_state=0),
    RandomForestClassifier(20, class_weight="balanced", max_depth=4, random_state=0),
    ExtraTreesClassifier(20, random_state=0),
    GradientBoostingClassifier(n_estimators=15, random_state=0),
    GradientBoostingClassifier(n_estimators=5, init="zero", random_state=0),
    HistGradientBoostingClassifier(max_iter=15, random_state=0),
]


def fitted(learner: Any, n_classes: int) -> tuple[list[Any], Any]:
    """Three models of unequal chunks, and points with those at every threshold."""
    from sklearn.base import clone

    X, y = data(n_classes)
    models = [
        clone(learner).fit(X[a:b], y[a:b]) for a, b in ((0, 90), (90, 300), (300, 800))
    ]
    return models, np.vstack((X, at_thresholds(models)))


def at_thresholds(models: list[Any]) -> Any:
    """Points that lie on thresholds as exactly as their type allows."""
    made = Trees([Ensemble(model) for model in models])
    points = []
    for one in made.ensembles:
        inner = one.left >= 0
        point = np.zeros((int(inner.sum()), 8))
        point[np.arange(len(point)), one.feature[inner]] = one.threshold[inner]
        points.append(point[:300])
    return np.vstack(points).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_every_vote_is_that_of_predict(learner: Any, n_classes: int) -> None:
    models, points = fitted(learner, n_classes)
    assert all(map(trees.can_read, models))
    made = Trees([Ensemble(model) for model in models])
    expected = [np.searchsorted(m.classes_, m.predict(points)) for m in models]
    assert (made.votes(points) == np.array(expected)).all()
    few = np.concatenate([made.votes(points[i : i + 3]) for i in range(0, 60, 3)], 1)
    assert (few == np.array(expected)[:, :60]).all()


class Below(trees._Questions):
    """Planted bug: points on a threshold go right."""

    def rows(self, feature: Any, threshold: Any) -> Any:
        return super().rows(feature, np.nextafter(threshold, -np.inf))


def test_the_check_catches_points_that_go_the_wrong_way_at_a_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models, points = fitted(DecisionTreeClassifier(random_state=0), 2)
    monkeypatch.setattr(trees, "_Questions", Below)
    expected = [np.searchsorted(m.classes_, m.predict(points)) for m in models]
    assert (
        Trees([Ensemble(model) for model in models]).votes(points) != np.array(expected)
    ).any()


def test_blocks_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    models, points = fitted(RandomForestClassifier(20, random_state=0), 3)
    whole = Trees([Ensemble(model) for model in models]).votes(points)
    monkeypatch.setattr(trees, "_BLOCK", 100)
    assert (Trees([Ensemble(model) for model in models]).votes(points) == whole).all()


def test_a_tree_without_a_question_gives_its_answer() -> None:
    X, y = data(2)
    stumps = [
        DecisionTreeClassifier(max_depth=1, min_samples_leaf=60).fit(X[:90], y[:90])
    ]
    stumps += [RandomForestClassifier(3, min_samples_leaf=80).fit(X[:90], y[:90])]
    for model in stumps:
        made = Trees([Ensemble(model)])
        expected = np.searchsorted(model.classes_, model.predict(X))
        assert (made.votes(X)[0] == expected).all()
        assert (made.votes(X[:2])[0] == expected[:2]).all()


def test_other_models_are_not_read() -> None:
    X, y = data(2)
    start = GradientBoostingClassifier(n_estimators=2, init=LogisticRegression())
    kinds = HistGradientBoostingClassifier(max_iter=2, categorical_features=[0])
    codes = X.copy()
    codes[:, 0] = np.clip(np.round(codes[:, 0]) + 5, 0, 20)
    several = RandomForestClassifier(2).fit(X, np.stack((y, y), axis=1))
    own = type("Own", (DecisionTreeClassifier,), {})().fit(X, y)
    for model in (start.fit(X, y), kinds.fit(codes, y), several, own):
        assert not trees.can_read(model)


def taught(learner: Any, X: Any, y: Any, n: int) -> Any:
    chunks = [np.arange(j, len(X), n) for j in range(n)]
    labels = np.arange(int(y.max()) + 1)
    return train(learner, X, y, chunks, labels=labels, random_state=0)


def test_a_panel_of_forests_has_room_for_those_with_nothing_to_say() -> None:
    X, y = data(3)
    teachers = taught(RandomForestClassifier(10), X, y, 5)
    some = (y == 0) | (y == 2)
    teachers += taught(RandomForestClassifier(10), X[some], y[some], 1)
    teachers += [None, Teacher(None, np.arange(0), np.array([1]))]
    panel = Panel(teachers, n_classes=3)
    assert panel._forest is not None
    expected = [teacher.vote(X) for teacher in teachers[:6]]
    for points in (slice(None), slice(0, 2)):
        votes = panel.ask(X[points])
        assert (votes[:6] == np.array(expected)[:, points]).all()
        assert (votes[6] == NO_VOTE).all()
        assert (votes[7] == 1).all()


def test_large_trees_are_asked_by_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data(2)
    teachers = taught(DecisionTreeClassifier(), X, y, 3)
    quick = ask(teachers, X, n_classes=2)
    monkeypatch.setattr(trees, "_BITS_PAY", 1)
    panel = Panel(teachers, n_classes=2)
    assert panel._forest is None
    assert (panel.ask(X) == quick).all()


def test_how_a_teacher_is_asked_is_a_matter_of_that_teacher() -> None:
    X, y = data(2)
    teachers = taught(DecisionTreeClassifier(max_depth=2), X, y, 4)
    before = ask(teachers, X, n_classes=2)
    large = DecisionTreeClassifier().fit(
        np.random.default_rng(0).random((9000, 8)), np.arange(9000) % 2
    )
    broken = DecisionTreeClassifier().fit(X, y)
    del broken.tree_
    line = LogisticRegression().fit(X, y)
    for model in (large, broken, line):
        teachers[1] = Teacher(model, np.arange(2), np.arange(2))
        after = ask(teachers, X, n_classes=2)
        assert (after[[0, 2, 3]] == before[[0, 2, 3]]).all()
        alone = teachers[1].vote(X) if model is not broken else NO_VOTE
        assert (after[1] == alone).all()


def test_points_that_predict_refuses_have_no_vote() -> None:
    X, y = data(2)
    teachers = taught(RandomForestClassifier(5), X, y, 3)
    far = X.copy()
    far[0, 0] = 1e39  # not infinite, but as float32 it is
    assert (ask(teachers, far, n_classes=2) == NO_VOTE).all()


@pytest.mark.parametrize(
    "learner",
    [
        DecisionTreeClassifier(random_state=0),
        RandomForestClassifier(10, random_state=0),
        HistGradientBoostingClassifier(max_iter=5),
    ],
    ids=repr,
)
def test_trees_that_learned_from_missing_values_are_asked_about_whole_points(
    learner: Any,
) -> None:
    X, y = data(2)
    holes = X.copy()
    holes[y == 1, 2] = np.where(np.arange((y == 1).sum()) % 3, np.nan, 1.0)
    model = learner.fit(holes, y)
    made = Trees([Ensemble(model)])
    assert (made.votes(X)[0] == model.predict(X)).all()
    assert (made.votes(X[:4])[0] == model.predict(X[:4])).all()


def test_large_integers_are_left_to_predict() -> None:
    X, y = data(2)
    teachers = taught(DecisionTreeClassifier(), X, y, 3)
    points = np.full((20, 8), 2**60 + 1, dtype=np.int64)
    expected = [teacher.vote(points) for teacher in teachers]
    assert (ask(teachers, points, n_classes=2) == np.array(expected)).all()


def test_missing_values_are_left_to_predict() -> None:
    X, y = data(2)
    X[::7, 2] = np.nan
    teachers = taught(RandomForestClassifier(10), X, y, 3)
    votes = ask(teachers, X, n_classes=2)
    expected = [teacher.vote(X) for teacher in teachers]
    assert (votes == np.array(expected)).all()
