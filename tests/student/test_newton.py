"""Newton steps on noisy gradients."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl.privacy.moments import Block, Moments
from mapl.student.newton import (
    RESIDUAL_GRID,
    NewtonSteps,
    Question,
    logits_of,
    n_steps,
    probabilities,
    sigmoid_table,
)

GRID = 2**10


def data(n: int, n_classes: int) -> tuple[Any, Any]:
    """Integer features with a constant, and labels that they tell."""
    rng = np.random.default_rng(n_classes)
    centres = rng.normal(size=(n_classes, 4))
    y = rng.integers(0, n_classes, n)
    X = centres[y] + 0.5 * rng.normal(size=(n, 4))
    vectors = np.hstack((X, np.ones((n, 1)))) / 2
    return np.rint(vectors * GRID), y


def learn(n: int, n_classes: int, squared_shift: Fraction) -> float:
    features, y = data(n, n_classes)
    public, private = features[: n // 4], features[n // 4 :]
    labels = y[n // 4 :]
    codes = labels[:, None] if n_classes == 2 else np.eye(n_classes)[labels]
    mechanism = Moments(squared_shift=squared_shift, coordinates=1000)
    steps = NewtonSteps(
        public,
        n_classes=n_classes,
        grid=GRID,
        n_records=len(private),
        parts=[Fraction(1, 4)] * 4,
    )
    table = sigmoid_table()
    while not steps.done:
        asked = steps.next()
        residuals = codes * RESIDUAL_GRID - probabilities(private, asked, table)
        noisy = mechanism.answer(
            [Block(private, residuals)],
            squared_length=asked.squared_length,
            part=asked.part,
        )
        steps.take(noisy)
    logits = logits_of(public, steps.weights, steps.start, GRID)
    found = logits[:, 0] > 0 if n_classes == 2 else logits.argmax(axis=1)
    return float((found == y[: n // 4]).mean())


@pytest.mark.parametrize("n_classes", [2, 5])
def test_it_learns_from_noisy_gradients(n_classes: int) -> None:
    assert learn(8000, n_classes, Fraction(1)) > 0.85


def test_probabilities_are_exact_functions_of_their_record() -> None:
    features, _ = data(500, 3)
    weights = np.rint(np.random.default_rng(0).normal(size=(5, 3)) * 2**12)
    question = Question(weights, -math.log(2), 1, Fraction(1))
    table = sigmoid_table()
    whole = probabilities(features, question, table)
    for size in (1, 3, 100, 499):
        part = probabilities(features[:size], question, table)
        np.testing.assert_array_equal(part, whole[:size])
    assert (np.rint(whole) == whole).all()
    exact = 1 / (1 + np.exp(-(features @ weights / 2**20 + question.start)))
    assert np.abs(whole / RESIDUAL_GRID - exact).max() < 2e-3


def test_more_signal_takes_more_steps() -> None:
    assert [n_steps(26_000, mu) for mu in (0.034, 0.09, 0.27, 0.92)] == [2, 3, 4, 5]
    assert n_steps(10, 0.01) == 2
    assert n_steps(10**9, 1.0) == 5
