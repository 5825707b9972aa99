"""Rounds, smoothing, features and fitting: all of it post-processing."""

import math
from typing import Any

import numpy as np
import pytest

import mapl
from mapl import ABSTAIN
from mapl.privacy.answers import ShareBatch
from mapl.release.account import Budget
from mapl.release.labeler import Labeler
from mapl.student.rounds import Rounds, SoftLabels
from mapl.student.smoothing import Shares, Smoother, decide


def ask_in_rounds(labeler: Labeler, mechanism: Any, features: Any) -> SoftLabels:
    with Rounds(features, mechanism) as rounds:
        while not rounds.done:
            rounds.take(labeler.shares(*rounds.next()))
    return rounds.result()


def test_all_points_are_asked_again_until_the_dissents_are_nearly_spent() -> None:
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
    assert soft.asked[0] == 750
    assert soft.asked[1] > 2000
    assert soft.spent == sorted(soft.spent)
    assert 0.85 < soft.spent[-1] < 1.6
    paid = 1 - np.array(mechanism.state()["left"]) / mechanism.dissents
    assert paid.mean() > 0.85
    assert (soft.smooth.argmax(axis=1) == truth).mean() > 0.95
    assert np.allclose(soft.smooth.sum(axis=1), 1, atol=1e-5)
    assert soft.noisy.shape == (n, 2)


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
    n = 4000
    features = rng.normal(size=(n, 2))
    radius = np.hypot(*features.T)
    truth = {
        "line": 1 / (1 + np.exp(-2 * features[:, 0])),
        "ring": 0.9 - 0.8 * ((radius > 0.7) & (radius < 1.5)),
        "nothing": np.full(n, 0.5),
    }[shape]
    noisy = truth + rng.normal(size=n)
    shares = Shares(n, 2)
    some = np.arange(3000)
    guess = np.zeros(3000, dtype=np.int64)
    shares.add(ShareBatch(some, guess, np.c_[1 - noisy, noisy][:3000]))
    smoother = Smoother(features, 1.0, rng)
    smooth = smoother.fit(shares, 0.1, last=False)
    smooth = smoother.fit(shares, 0.2, last=True)[:, 1]
    assert math.sqrt(((smooth - truth)[3000:] ** 2).mean()) < 0.17
    assert (smoother._map > 0) >= (shape == "ring")
