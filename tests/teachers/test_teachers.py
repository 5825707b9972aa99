import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from mapl import progress as progress_module
from mapl.privacy.votes import NO_VOTE
from mapl.records.keys import chunk_rows, record_keys
from mapl.records.schema import Schema
from mapl.records.table import canonical_table
from mapl.teachers import panel
from mapl.teachers.panel import ask
from mapl.teachers.training import train


def data(n: int = 600) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(np.int64)


class Recorder(ClassifierMixin, BaseEstimator):
    """A fake that writes down what it was given."""

    seen: list[Any] = []

    def __init__(self, random_state: int | None = None) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "Recorder":
        self.seen.append((X.copy(), np.asarray(y).copy(), self.random_state))
        self.answer_ = y[0]
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.answer_)


def keys_of(X: Any, y: Any) -> Any:
    return record_keys(canonical_table(X, Schema.of(X)), y)


def run(estimator: Any, X: Any, codes: Any, chunks: Any, **kwargs: Any) -> Any:
    labels = kwargs.pop("labels", np.arange(codes.max(initial=0) + 1))
    return train(estimator, X, codes, chunks, labels=labels, random_state=3, **kwargs)


def test_no_teacher_ever_sees_a_row_of_another_chunk() -> None:
    X, y = data()
    X[:, 3] = np.arange(len(X))  # which row it is
    chunks = chunk_rows(keys_of(X, y), None, n_chunks=12)
    Recorder.seen = []
    run(Recorder(), X, y, chunks)
    for (seen, labels, _), rows in zip(Recorder.seen, chunks, strict=True):
        assert seen[:, 3].astype(int).tolist() == rows.tolist()
        assert labels.tolist() == y[rows].tolist()
    seeds = [seed for *_, seed in Recorder.seen]
    assert len(set(seeds)) == 12


def test_changing_one_chunk_leaves_all_other_teachers_bit_for_bit() -> None:
    X, y = data()
    chunks = chunk_rows(keys_of(X, y), None, n_chunks=10)
    changed = X.copy()
    changed[chunks[4]] *= -3
    tree = DecisionTreeClassifier(max_features=2)
    votes = [
        ask(run(tree, features, y, chunks), X, n_classes=2) for features in (X, changed)
    ]
    different = (votes[0] != votes[1]).any(axis=1)
    assert different.nonzero()[0].tolist() == [4]


def test_seed_of_a_teacher_depends_on_its_number_and_the_seed_alone() -> None:
    X, y = data()
    seeds = []
    for n_chunks in (3, 9):
        Recorder.seen = []
        chunks = chunk_rows(keys_of(X, y), None, n_chunks=n_chunks)
        run(Recorder(), X, y, chunks)
        seeds.append([seed for *_, seed in Recorder.seen])
    assert seeds[0] == seeds[1][:3]


class Fails(LogisticRegression):
    """Raises, warns or answers nonsense, by what its chunk holds."""

    def fit(self, X: Any, y: Any) -> Any:
        warnings.warn("a private count: 42", UserWarning, stacklevel=1)
        if X[0, 0] > 0:
            raise RuntimeError("a private value")
        return super().fit(X, y)

    def predict(self, X: Any) -> Any:
        if self.coef_[0, 0] > 1:
            return np.full(len(X), np.nan)
        raise ValueError("a private value")


def test_what_fails_has_no_vote_and_nothing_leaks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    X, y = data()
    chunks = [
        *chunk_rows(keys_of(X, y), None, n_chunks=8),
        np.empty(0, dtype=np.int64),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        votes = ask(run(Fails(), X, y, chunks), X[:20], n_classes=2)
    assert (votes == NO_VOTE).all()
    assert "private" not in "".join(capsys.readouterr())


class FailsWhenAsked(Recorder):
    def predict(self, X: Any) -> Any:
        raise ValueError("a private value")


def test_a_teacher_that_fails_when_asked_has_no_vote() -> None:
    X, y = data(50)
    votes = ask(run(FailsWhenAsked(), X, y, [np.arange(50)]), X, n_classes=2)
    assert (votes == NO_VOTE).all()


class WrongLength(Recorder):
    def predict(self, X: Any) -> Any:
        return np.zeros(3)


def test_a_teacher_that_answers_too_little_has_no_vote() -> None:
    X, y = data(50)
    votes = ask(run(WrongLength(), X, y, [np.arange(50)]), X, n_classes=2)
    assert (votes == NO_VOTE).all()


def test_warnings_of_one_chunk_reach_no_other() -> None:
    X, y = data()
    X[:60] = 1e9
    chunks = [np.arange(a, a + 60) for a in range(0, 600, 60)]
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        trained = run(LogisticRegression(), X, y, chunks)
        votes = ask(trained, X, n_classes=2)
    assert (votes[1:] != NO_VOTE).all()


def test_a_chunk_with_one_class_votes_that_class() -> None:
    X = np.zeros((4, 2))
    codes = np.array([1, 1, 0, 2])
    chunks = [np.array([0, 1]), np.array([], dtype=np.int64), np.array([2])]
    votes = ask(run(LogisticRegression(), X, codes, chunks), X, n_classes=3)
    assert votes.tolist() == [[1] * 4, [NO_VOTE] * 4, [0] * 4]
    assert votes.dtype == np.int8


class WantsNumbers(DecisionTreeClassifier):
    """Like some boosting libraries: labels must be 0, 1, ... without gaps."""

    def fit(self, X: Any, y: Any) -> Any:
        if sorted(set(np.asarray(y).tolist())) != list(range(len(set(y)))):
            raise ValueError("labels must be 0 to n - 1")
        return super().fit(X, y)


@pytest.mark.parametrize(
    "labels", [["x", "yy", "z"], [False, True, 2], [5, 7, 9], [0.5, 1.5, 2.5]]
)
@pytest.mark.parametrize("learner", [DecisionTreeClassifier(), WantsNumbers()])
def test_labels_of_every_kind_and_gaps_are_looked_up(labels: Any, learner: Any) -> None:
    X = np.arange(6.0)[:, None]
    codes = np.array([0, 2, 0, 2, 0, 2])  # class 1 does not occur
    kind = object if labels[0] is False else None
    trained = run(
        learner, X, codes, [np.arange(6)], labels=np.array(labels, dtype=kind)
    )
    assert ask(trained, X, n_classes=3).tolist() == [codes.tolist()]


def test_many_classes_need_wider_votes() -> None:
    X = np.zeros((2, 1))
    votes = ask(
        run(LogisticRegression(), X, np.array([199, 199]), [np.arange(2)]),
        X,
        n_classes=200,
    )
    assert votes.tolist() == [[199, 199]]


def test_blocks_of_queries_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data()
    trained = run(
        DecisionTreeClassifier(), X, y, chunk_rows(keys_of(X, y), None, n_chunks=5)
    )
    whole = ask(trained, X, n_classes=2)
    monkeypatch.setattr(panel, "_BLOCK_CELLS", 100)
    assert (ask(trained, X, n_classes=2) == whole).all()


def test_progress_is_shown_on_a_terminal_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_module, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_module.Progress("Training", 3) as progress:
        progress.advance(1)
        progress.advance(2)
        assert progress.bar.tasks[0].completed == 3
