"""Votes, guesses, counts and prices mean the same in every integer type."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl import ChargedDissent, NoisyMax, Votes, accounting
from mapl.privacy.noisy_max import ConfidentNoisyMax

TYPES = [
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
]


class Zeros:
    """No noise, so that counts can be compared."""

    private = True


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = lambda sigma, shape, **_: np.zeros(shape, dtype=np.int64)  # noqa: E731
    monkeypatch.setattr("mapl.privacy.noisy_counts.discrete_gaussian", silent)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_spent_teacher_falls_silent_in_every_type(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_noise(monkeypatch)
    predictions = np.ones((3, 10), dtype=dtype)
    votes = Votes.from_predictions(predictions, n_classes=2)
    mechanism = ChargedDissent(sigma=1, dissents=4, n_teachers=3, n_classes=2)
    counts = mechanism.answer(votes, np.zeros(10, dtype=dtype)).counts[:, 1]
    assert counts.tolist() == [3] * 4 + [0] * 6


@pytest.mark.parametrize("dtype", TYPES)
def test_a_guess_of_any_class_is_charged_in_every_type(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class 200 does not fit int8: cast to it, nobody would dissent, or everybody."""
    no_noise(monkeypatch)
    predictions = np.full((4, 5), 100, dtype=dtype)
    votes = Votes.from_predictions(predictions, n_classes=300)
    mechanism = ChargedDissent(sigma=1, dissents=2, n_teachers=4, n_classes=300)
    guess = np.full(5, 244, dtype=np.int64)
    mechanism.answer(votes, guess)
    assert mechanism.state()["left"] == [0] * 4


@pytest.mark.parametrize("dtype", TYPES)
def test_parameters_cost_the_same_in_every_type(dtype: Any) -> None:
    n = dtype(100)
    events = [
        ChargedDissent(sigma=9, dissents=n, n_teachers=n, n_classes=dtype(2)).event,
        ChargedDissent(
            sigma=9, dissents=n, n_teachers=n, n_classes=dtype(3), n_queries=n
        ).event,
        NoisyMax(sigma=9, n_queries=n, n_classes=dtype(3)).event,
        ConfidentNoisyMax(
            sigma=9,
            check_sigma=Fraction(9),
            threshold=n,
            n_queries=n,
            n_answers=n,
            n_classes=dtype(3),
        ).event,
    ]
    assert (
        events[0]
        == ChargedDissent(sigma=9, dissents=100, n_teachers=100, n_classes=2).event
    )
    assert [event.steps for event in events] == [200, 200, 200, 200]
    small = accounting.epsilon(events[:1], delta=1e-5)
    assert small == accounting.epsilon([events[0]], delta=1e-5)


def test_queries_of_a_narrow_type_are_all_paid_for() -> None:
    event = NoisyMax(sigma=9, n_queries=np.uint8(129), n_classes=3).event
    assert event.steps == 258


@pytest.mark.parametrize("n_classes", [1, 2, 127, 128, 129, 300, 40_000])
def test_votes_hold_every_class_and_no_vote(n_classes: int) -> None:
    for dtype in TYPES:
        top = min(n_classes - 1, int(np.iinfo(dtype).max))
        votes = Votes.from_predictions(
            np.array([[0], [top]], dtype=dtype), n_classes=n_classes
        )
        info = np.iinfo(votes.predictions.dtype)
        assert info.min <= -1
        assert info.max >= n_classes - 1
        assert votes.predictions[1, 0] == top
