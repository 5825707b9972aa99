"""Newton steps on noisy gradients, stacking, and corrections by votes."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.utils.validation import check_is_fitted

from mapl.privacy.gradients import RESIDUAL_GRID, WEIGHT_GRID, probabilities_of
from mapl.privacy.linear_map import LARGEST_WEIGHT, LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.student.corrections import Corrections
from mapl.student.linear import LinearModel, class_logits
from mapl.student.newton import (
    NewtonSteps,
    Points,
    bound_by_mass,
    n_steps,
    wave_components,
)
from mapl.student.shrinkage import conjugate_gradients
from mapl.student.stacking import Stack, stacked_probabilities

GRID = 2**15


def data(n: int, n_classes: int, *, curved: bool = False) -> tuple[Any, Any]:
    """Five features, then two waves, then a constant; and labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 7))
    logits = X[:, :5] @ (2 * rng.normal(size=(5, n_classes)))
    if curved:
        logits = X[:, 5:7] @ (2 * rng.normal(size=(2, n_classes)))
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return np.hstack((X / math.sqrt(7), np.full((n, 1), 0.5))), y


def steps_for(points: Any, n_classes: int, n: int, parts: int = 4) -> NewtonSteps:
    public = Points(points.astype(np.float32), 5, GRID)
    return NewtonSteps(
        public,
        n_classes=n_classes,
        n_records=n,
        parts=[Fraction(1, max(parts, 1))] * parts,
    )


def learn(n_classes: int, noise: float, *, curved: bool = False) -> Any:
    """Learn from exact gradients plus noise; return steps, and the accuracy."""
    X, y = data(8000, n_classes, curved=curved)
    public, private, labels = X[:2000], X[2000:], y[2000:]
    steps, rng = steps_for(public, n_classes, len(private)), np.random.default_rng(1)
    codes = labels[:, None] == ([1] if n_classes == 2 else np.arange(n_classes))
    while not steps.done:
        asked = steps.next()
        weights = np.array([1.0] * 5 + [asked.waves / LARGEST_WEIGHT] * 2 + [1.0])
        kept = weights > 0
        logits = private[:, kept] @ asked.weights / WEIGHT_GRID
        residuals = codes - probabilities_of(logits)
        total = (private * weights)[:, kept].T @ residuals
        unit = GRID * LARGEST_WEIGHT * RESIDUAL_GRID
        noisy = total + noise * rng.normal(size=total.shape)
        steps.take(asked, NoisySum(noisy * unit, noise * unit))
    found = class_logits(steps.logits).argmax(axis=1)
    return steps, float((found == y[:2000]).mean())


@pytest.mark.parametrize("n_classes", [2, 5])
def test_it_learns_from_noisy_gradients(n_classes: int) -> None:
    best = {2: 0.87, 5: 0.77}[n_classes]
    assert learn(n_classes, 1.0)[1] > best - 0.04
    assert learn(n_classes, 1e4)[1] < best - 0.15  # noise alone teaches nothing


def test_waves_are_dropped_where_the_first_gradient_shows_nothing() -> None:
    assert learn(2, 1.0)[0].waves == 0
    kept, accuracy = learn(2, 1.0, curved=True)
    assert kept.waves > 0
    assert accuracy > 0.8


def test_once_published_sums_can_be_followed_again_and_again() -> None:
    """Where labels alone are private, steps lead to the most probable weights."""
    X, y = data(6000, 2)
    steps, unit = steps_for(X, 2, len(X), 0), np.array([1.0] * 5 + [0.75] * 2 + [1.0])
    noise = np.random.default_rng(0).normal(size=(8, 1)) * 2
    published = (X * unit).T @ (y[:, None] == 1) + noise
    moved = []
    for _ in range(12):
        steps.look()
        before = steps.weights.copy()
        shares = 1 / (1 + np.exp(-(X @ steps.weights)))
        steps.follow(published - (X * unit).T @ shares, 2.0, once=True)
        moved.append(np.abs(steps.weights - before).max())
    assert moved[-1] < 0.01 * moved[0]
    assert ((steps.logits[:, 0] > 0) == (y == 1)).mean() > 0.84


def test_bounds_leave_a_tenth_of_all_length() -> None:
    lengths = np.random.default_rng(0).exponential(size=(1000, 2))
    shares = np.full_like(lengths, 0.5)
    bound = bound_by_mass(lengths, shares)
    excess = (shares * np.maximum(lengths - bound, 0)).sum()
    assert excess == pytest.approx(0.1 * (shares * lengths).sum(), rel=1e-6)
    assert bound_by_mass(np.zeros((3, 1)), np.ones((3, 1))) > 0


def test_more_records_and_more_budget_use_more_components() -> None:
    assert wave_components(1e4, 0.1, 2) == wave_components(1e6, 1.0, 2)
    found = [wave_components(n, 0.25, 5) for n in (10, 10_000, 40_000, 10**6)]
    assert found == sorted(found)
    assert found[0] == 100
    assert found[-1] > 400


def test_the_bound_of_features_is_in_units_of_the_mechanism() -> None:
    X, _ = data(500, 2)
    steps = steps_for(X, 2, 500)
    unit = GRID * LARGEST_WEIGHT * RESIDUAL_GRID
    longest = np.linalg.norm(X, axis=1).max()
    found = math.sqrt(steps.feature_bound(1e-9) * LENGTH_UNIT) / unit
    assert 0.9 * longest < found <= longest


def test_steps_start_from_frequencies_where_a_class_is_rare() -> None:
    X, _ = data(300, 2)
    even = steps_for(X, 2, 300)
    even.start_at(np.array([0.7, 0.3]))
    assert (even.logits == 0).all()
    rare = steps_for(X, 2, 300)
    rare.start_at(np.array([0.98, 0.02]))
    np.testing.assert_allclose(rare.logits, math.log(0.02 / 0.98), rtol=1e-5)
    three = steps_for(X, 3, 300)
    three.start_at(np.array([0.9, 0.09, 0.01]))
    shares = np.exp(three.logits[0])
    np.testing.assert_allclose(shares / shares.sum(), [0.9, 0.09, 0.01], rtol=1e-5)


def test_more_signal_takes_more_steps() -> None:
    assert [n_steps(26_000, mu) for mu in (0.034, 0.09, 0.27, 0.92)] == [2, 3, 4, 5]
    assert n_steps(10, 0.01) == 2
    assert n_steps(10_000, 0.04) == 2
    assert n_steps(10**9, 1.0) == 5


def testconjugate_gradients_solve_every_column() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    matrix, target = root @ root.T + np.eye(6), rng.normal(size=(6, 3))
    found = conjugate_gradients(lambda x: matrix @ x, lambda x: x, target)
    np.testing.assert_allclose(matrix @ found, target, atol=2e-3)


# Stacking ---------------------------------------------------------------------------


def stack_of(logits: list[Any], labels: Any, noise: float) -> Stack:
    stack = Stack(logits, n_records=len(labels), parts=[Fraction(1, 2)] * 2)
    rng = np.random.default_rng(0)
    while not stack.done:
        asked = stack.next()
        shares = stack.probabilities()
        residuals = np.eye(shares.shape[1])[labels] - shares
        slopes = [
            (residuals * z).sum(axis=1) / (unit / 1024)
            for z, unit in zip(logits, asked.units, strict=True)
        ]
        total = np.append([slope.sum() for slope in slopes], residuals.sum(axis=0))
        total = total + noise * rng.normal(size=len(total))
        stack.take(
            NoisySum(total[None] * 256 * RESIDUAL_GRID, noise * 256 * RESIDUAL_GRID)
        )
    return stack


def test_stacking_calibrates_and_notices_a_worthless_source() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20_000, 3)) * 2
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    worthless = rng.normal(size=truth.shape)
    found = stack_of([truth / 1.5, worthless], labels, noise=10.0)
    assert found.scales[0] == pytest.approx(1.5, abs=0.1)
    assert abs(found.scales[1]) < 0.05
    drowned = stack_of([truth / 1.5, worthless], labels, noise=1e7)
    np.testing.assert_allclose(drowned.scales, [1, 0], atol=0.05)
    moved = found.probabilities(np.array([0.0, 0.0, 9.0]))
    assert (moved.argmax(axis=1) == 2).mean() > 0.9


def test_noise_does_not_choose_the_class_where_logits_are_small() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5000, 20)) / 1000
    labels = rng.integers(0, 20, 5000)
    found = stack_of([logits], labels, noise=1e7)
    alike = found.probabilities().argmax(axis=1) == logits.argmax(axis=1)
    assert alike.mean() > 0.8


def test_stacking_keeps_a_source_that_knows_more() -> None:
    rng = np.random.default_rng(0)
    halves = rng.normal(size=(2, 20_000, 3)) * 1.5
    labels = (halves.sum(axis=0) + rng.gumbel(size=halves[0].shape)).argmax(axis=1)
    found = stack_of(list(halves), labels, noise=10.0)
    assert found.scales[1] > 0.5


def test_a_linear_model_scales_its_logits_and_moves_them() -> None:
    X = np.array([[1.0, 1.0], [-1.0, 1.0]])
    model = LinearModel(
        np.array([[2.0], [0.0]]),
        np.array([2.0]),
        np.zeros(2),
        np.array(["a", "b"]),
    )
    assert model.fit(X) is model
    check_is_fitted(model)
    assert model.predict(X).tolist() == ["b", "a"]
    np.testing.assert_allclose(model.decision_function(X), [4.0, -4.0])
    three = LinearModel(
        np.eye(3), np.array([1.0]), np.array([0.0, 0.0, 9.0]), np.arange(3)
    )
    assert three.decision_function(np.eye(3)).shape == (3, 3)
    assert three.predict(np.eye(3)).tolist() == [2, 2, 2]


# Corrections ------------------------------------------------------------------------


def test_corrections_are_a_function_of_each_record_alone() -> None:
    rng = np.random.default_rng(0)
    cells = np.rint(rng.normal(size=(2000, 4)) * 32)
    logits = rng.normal(size=(2000, 2))
    target = np.where(cells[:, :1] > 0, 0.4, -0.4) * np.array([1.0, -1.0])
    found = Corrections.of(cells, logits, target, noise=0.1)
    exact = np.rint(logits * WEIGHT_GRID)
    whole = found.exact(cells, exact)
    assert (np.rint(whole) == whole).all()
    assert np.corrcoef(whole[:, 0], target[:, 0])[0, 1] > 0.95
    for rows in (slice(3, 4), slice(100, 900)):
        np.testing.assert_array_equal(
            found.exact(cells[rows], exact[rows]), whole[rows]
        )
    np.testing.assert_allclose(found.logits(cells, logits), whole / WEIGHT_GRID)
    assert stacked_probabilities(
        [logits, whole / WEIGHT_GRID], np.ones(2), 0
    ).shape == (
        2000,
        2,
    )
