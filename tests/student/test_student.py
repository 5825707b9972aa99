"""Rounds, smoothing, features and fitting: all of it post-processing."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import (
    LogisticRegression,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mapl
from mapl import ABSTAIN
from mapl.learners import is_linear
from mapl.privacy.answers import ShareBatch
from mapl.release.account import Budget
from mapl.release.labeler import Labeler
from mapl.student.features import spectral_embedding
from mapl.student.fitting import add_forest_residual
from mapl.student.rounds import Rounds, SoftLabels
from mapl.student.smoothing import Shares, Smoother, decide


def ask_in_rounds(labeler: Labeler, mechanism: Any, features: Any) -> SoftLabels:
    with Rounds(features, mechanism) as rounds:
        while not rounds.done:
            rounds.take(labeler.shares(*rounds.next()))
    return rounds.result()


def test_batches_grow_until_the_dissents_are_nearly_spent() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    features = rng.normal(size=(n, 3))
    truth = (features[:, 0] > 0).astype(int)
    votes = np.where(rng.random((60, n)) < 0.2, 1 - truth, truth).astype(np.int8)
    mechanism = mapl.ChargedDissent.for_budget(
        epsilon=8, delta=1e-5, dissents=n // 2, n_teachers=60, n_classes=2
    )
    budget = Budget(epsilon=8, delta=1e-5)
    labeler = Labeler(votes, n_classes=2, account=budget)
    labeler.open(mechanism)
    soft = ask_in_rounds(labeler, mechanism, features)
    assert soft.asked[0] == 60
    assert max(soft.asked) > 600
    assert soft.spent == sorted(soft.spent)
    assert 0.85 < soft.spent[-1] < 1.6
    paid = 1 - np.array(mechanism.state()["left"]) / mechanism.dissents
    assert paid.mean() > 0.85
    assert (soft.smooth.argmax(axis=1) == truth).mean() > 0.95
    assert np.allclose(soft.smooth.sum(axis=1), 1, atol=1e-5)
    assert soft.noisy.shape == (n, 2)


def test_a_forest_finds_what_the_regression_has_missed() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    features = rng.uniform(0, 9, size=(n, 2))
    truth = (features.astype(int).sum(axis=1) % 2).astype(int)  # a chequerboard
    votes = np.where(rng.random((99, n)) < 0.1, 1 - truth, truth).astype(np.int8)
    budget = Budget(epsilon=50, delta=1e-5)
    labeler = Labeler(votes, n_classes=2, account=budget)
    mechanism = mapl.ChargedDissent.for_budget(
        epsilon=50, delta=1e-5, dissents=n // 2, n_teachers=99, n_classes=2
    )
    labeler.open(mechanism)
    soft = ask_in_rounds(labeler, mechanism, features)
    shares = add_forest_residual(soft, features)
    assert np.allclose(shares.sum(axis=1), 1, atol=1e-5)
    for _ in range(3):  # to the last bit
        assert (add_forest_residual(soft, features, n_jobs=2) == shares).all()
    right = [(each.argmax(axis=1) == truth).mean() for each in (soft.smooth, shares)]
    assert right[1] > right[0] + 0.05


def test_linear_students_are_known() -> None:
    assert is_linear(LogisticRegression())
    assert is_linear(make_pipeline(StandardScaler(), LogisticRegression()))
    assert not is_linear(RandomForestClassifier())
    assert not is_linear(make_pipeline(StandardScaler(), RandomForestClassifier()))


def test_rounds_end_if_teachers_never_disagree() -> None:
    votes = np.zeros((9, 60), dtype=np.int8)
    budget = Budget(epsilon=100, delta=1e-5)
    labeler = Labeler(votes, n_classes=3, account=budget)
    mechanism = mapl.ChargedDissent.for_budget(
        epsilon=100, delta=1e-5, dissents=10**4, n_teachers=9, n_classes=3
    )
    labeler.open(mechanism)
    soft = ask_in_rounds(labeler, mechanism, np.ones((60, 1)))
    assert 30 * 60 < sum(soft.asked) < 40 * 60


def test_shares_of_the_guess_add_no_information() -> None:
    shares = Shares(4, 3)
    assert shares.known().size == 0
    np.testing.assert_allclose(shares.mean(), 1 / 3)
    for guess, values in ((0, [0.7, 0.2, 0.1]), (1, [0.5, 0.1, 0.4])):
        batch = ShareBatch(np.array([2]), np.array([guess]), np.array([values]))
        assert batch.dissent() == pytest.approx(1 - values[guess])
        shares.add(batch)
    assert shares.known().tolist() == [2]
    assert shares.times[2].tolist() == [1, 1, 2]
    np.testing.assert_allclose(shares.counted()[2], [0.5, 0.2, 0.25])
    np.testing.assert_allclose(shares.mean()[2], [0.6, 0.15, 0.25])


def test_decisions_combine_published_shares_and_prediction() -> None:
    smooth = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.34, 0.33, 0.33]])
    none = decide(Shares(3, 3), smooth, 0.01)
    assert none.label.tolist() == [0, 0, 0]
    assert none.labels().tolist() == [0, 0, ABSTAIN]
    shares = Shares(3, 3)
    message = np.array([[0.0, 0.1, 0.1], [0.0, 0.85, 0.05], [0.0, 0.05, 0.9]])
    shares.add(ShareBatch(np.arange(3), np.zeros(3, dtype=int), message))
    sure = decide(shares, smooth, 0.001)
    assert sure.labels().tolist() == [0, 1, 2]
    assert (sure.share > 0.6).all()
    assert (sure.probability > none.probability).all()
    unsure = decide(shares, smooth, 1.0)  # so much noise: the opinion stands
    assert unsure.label.tolist()[:2] == [0, 0]
    two = decide(Shares(1, 2), np.array([[0.2, 0.8]]), 1.0)
    assert two.label.tolist() == [1]
    assert 0.5 <= two.share[0] <= 1


@pytest.mark.parametrize("shape", ["line", "ring", "nothing"])
def test_smoothing_finds_what_is_there(shape: str) -> None:
    rng = np.random.default_rng(1)
    n = 6000
    features = rng.normal(size=(n, 2))
    radius = np.hypot(*features.T)
    truth = {
        "line": 1 / (1 + np.exp(-2 * features[:, 0])),
        "ring": 0.9 - 0.8 * ((radius > 0.7) & (radius < 1.5)),
        "nothing": np.full(n, 0.5),
    }[shape]
    noisy = truth + rng.normal(size=n)
    shares = Shares(n, 2)
    some = np.arange(5000)
    guess = np.zeros(5000, dtype=np.int64)
    shares.add(ShareBatch(some, guess, np.c_[1 - noisy, noisy][:5000]))
    smoother = Smoother(features, 1.0, rng)
    smooth = smoother.fit(shares, 0.1, last=False)
    smooth = smoother.fit(shares, 0.2, last=True)[:, 1]
    assert math.sqrt(((smooth - truth)[5000:] ** 2).mean()) < 0.17
    assert (smoother._by_features._map > 0) >= (shape == "ring")
    assert (smoother._weight < 0.5) >= (shape == "line")


def test_the_embedding_helps_where_classes_are_clusters() -> None:
    rng = np.random.default_rng(0)
    features, truth = load_digits(return_X_y=True)
    shares = Shares(len(truth), 10)
    some = rng.permutation(len(truth))[:200]
    message = np.eye(10)[truth[some]] + rng.normal(scale=0.3, size=(200, 10))
    shares.add(ShareBatch(some, (truth[some] + 1) % 10, message))
    smoother = Smoother(features, 0.3**2, rng)
    smooth = smoother.fit(shares, 0.2, last=True)
    assert (smooth.argmax(axis=1) == truth).mean() > 0.85
    assert smoother._weight > 0.3


@pytest.mark.parametrize("n", [3, 49, 200])
def test_the_embedding_of_few_or_equal_points(n: int) -> None:
    rng = np.random.default_rng(0)
    for features in (np.ones((n, 2)), np.repeat(rng.normal(size=(n // 3, 2)), 30, 0)):
        places = spectral_embedding(features, rng)
        assert len(places) == len(features)
        assert np.isfinite(places).all()
        assert (places[:3] == places[0]).all() >= (n > 3)  # equal points, equal places


def test_more_points_than_landmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapl.student.features._LANDMARKS", 100)
    rng = np.random.default_rng(0)
    truth = np.arange(900) % 3
    features = rng.normal(size=(900, 2)) + 9 * np.c_[truth, truth % 2]
    places = spectral_embedding(features, rng)
    centres = np.array([places[truth == c].mean(axis=0) for c in range(3)])
    off = np.linalg.norm(places[:, None] - centres, axis=2)
    assert (off.argmin(axis=1) == truth).mean() > 0.95
