"""Steps on noisy sums, stacking, and corrections by votes."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.utils.validation import check_is_fitted

from mapl.privacy.gradients import RESIDUAL_GRID, WEIGHT_GRID, probabilities_of
from mapl.privacy.linear_map import LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.privacy.pairs import WEIGHT_STEPS, coupled
from mapl.student import steps
from mapl.student.corrections import Corrections
from mapl.student.linear import LinearModel, class_logits
from mapl.student.stacking import Stack, stacked_probabilities
from mapl.student.steps import (
    NewtonSteps,
    Points,
    bound_by_mass,
    conjugate_gradients,
    gram_share,
    n_bins,
    n_steps,
    signal_of,
)

GRID = 2**11


def data(n: int, n_classes: int, *, curved: bool = False) -> tuple[Any, Any]:
    """Five features, then two that stand for cosines, then a constant; and labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 7))
    logits = X[:, :5] @ (2 * rng.normal(size=(5, n_classes)))
    if curved:
        logits = X[:, 5:7] @ (2 * rng.normal(size=(2, n_classes)))
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return np.hstack((X / math.sqrt(7), np.full((n, 1), 0.5))), y


PIECES = [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 8)]


def steps_for(points: Any, n_classes: int, n: int, parts: int = 4) -> NewtonSteps:
    pool = Points(points.astype(np.float32), PIECES, 5, GRID)
    part = Fraction(1, max(parts, 1))
    return NewtonSteps(
        pool, n_classes=n_classes, n_records=n, parts=[(part, part / 9)] * parts
    )


def answered(newton: NewtonSteps, X: Any, y: Any, noise: float, rng: Any) -> None:
    """Answer the next gradient and Gram matrix for some records, and follow them."""
    columns = newton.weights.shape[1]
    codes = y[:, None] == ([1] if columns == 1 else np.arange(columns))
    asked = newton.next()
    cells = X * GRID
    residuals = codes - probabilities_of(cells @ asked.weights / WEIGHT_GRID)
    total = X.T @ residuals
    unit = GRID * RESIDUAL_GRID
    noisy = total + noise * rng.normal(size=total.shape)
    gram = newton.take(NoisySum(noisy * unit, noise * unit))
    pieces = [cells[:, s] @ gram.step[s] for s in PIECES]
    z = np.rint(np.stack(pieces, axis=2) / gram.units)
    left, right = coupled(np.rint(cells @ gram.weights), z, np.ones(len(X), bool))
    whole = np.einsum("ikd,ike->de", left, right)
    unit = 32**2 * WEIGHT_STEPS
    noisy = whole + noise * unit * rng.normal(size=whole.shape)
    newton.take_gram(gram, NoisySum(noisy, noise * unit))


losses: list[float] = []  # of what was learned


def learn(
    n_classes: int, noise: float, *, curved: bool = False, pool: Any = None
) -> Any:
    """Learn from exact sums plus noise; return steps, and the accuracy."""
    X, y = data(8000, n_classes, curved=curved)
    points, private, labels = X[:2000], X[2000:], y[2000:]
    points = points if pool is None else pool(points)
    newton = steps_for(points, n_classes, len(private), 6)
    rng = np.random.default_rng(1)
    while not newton.done:
        answered(newton, private, labels, noise, rng)
    shares = stacked_probabilities([class_logits(X[:2000] @ newton.weights)], [1], 0)
    right = shares[np.arange(2000), y[:2000]]
    losses.append(float(-np.log(np.maximum(right, 1e-300)).mean()))
    return float((shares.argmax(axis=1) == y[:2000]).mean())


@pytest.mark.parametrize("n_classes", [2, 5])
def test_it_learns_from_noisy_sums(n_classes: int) -> None:
    best = {2: 0.87, 5: 0.77}[n_classes]
    assert learn(n_classes, 1.0) > best - 0.03
    assert learn(n_classes, 1.0, curved=True) > {2: 0.75, 5: 0.6}[n_classes]
    assert learn(n_classes, 1e4) < best - 0.15  # noise alone teaches nothing


POOLS = {
    "rescaled": lambda X: X * np.r_[np.full(7, 5.0), 1],
    "small": lambda X: X * np.r_[np.full(7, 0.2), 1],
    "permuted": lambda X: X[:, [4, 3, 2, 1, 0, 6, 5, 7]],
    "constant": lambda X: np.tile(X[:1], (len(X), 1)),
    "of one direction": lambda X: np.hstack((np.repeat(X[:, :1], 7, axis=1), X[:, 7:])),
}


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_from_elsewhere_costs_accuracy_and_never_stability(
    pool: str, n_classes: int
) -> None:
    """Never below what the most frequent class has, and mostly as good as any."""
    found = learn(n_classes, 3.0, pool=POOLS[pool])
    _, y = data(8000, n_classes)
    assert found > np.bincount(y).max() / len(y) - 0.05
    assert losses[-1] < math.log(n_classes) + 0.1
    if pool not in ("constant", "of one direction"):
        assert found > {2: 0.82, 5: 0.68}[n_classes]


def test_full_steps_would_diverge_where_the_pool_is_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the Gram matrix is for: weights of 1 for all pieces."""
    learn(5, 3.0, pool=POOLS["small"])
    with_gram = losses[-1]

    def ones(self: Any, *_: Any) -> Any:
        return np.ones(len(self.units))

    monkeypatch.setattr(steps._Pieces, "weights", ones)
    learn(5, 3.0, pool=POOLS["small"])
    assert losses[-1] > with_gram + 1


def test_once_published_sums_can_be_followed_again_and_again() -> None:
    """Where labels alone are private, steps lead to the most probable weights."""
    X, y = data(6000, 2)
    newton = steps_for(X, 2, len(X), 0)
    noise = np.random.default_rng(0).normal(size=(8, 1)) * 2
    published = X.T @ (y[:, None] == 1) + noise
    moved = []
    for _ in range(12):
        before = newton.weights.copy()
        shares = 1 / (1 + np.exp(-(X @ newton.weights)))
        newton.follow_labels(published - X.T @ shares, 2.0)
        moved.append(np.abs(newton.weights - before).max())
    assert moved[-1] < 0.01 * moved[0]
    assert ((newton.logits[:, 0] > 0) == (y == 1)).mean() > 0.84


def test_bounds_leave_a_tenth_of_all_length() -> None:
    lengths = np.random.default_rng(0).exponential(size=(1000, 2))
    shares = np.full_like(lengths, 0.5)
    bound = bound_by_mass(lengths, shares)
    excess = (shares * np.maximum(lengths - bound, 0)).sum()
    assert excess == pytest.approx(0.1 * (shares * lengths).sum(), rel=1e-6)
    assert bound_by_mass(np.zeros((3, 1)), np.ones((3, 1))) > 0


def test_the_bound_of_features_is_in_units_of_the_mechanism() -> None:
    X, _ = data(500, 2)
    newton = steps_for(X, 2, 500)
    unit = GRID * RESIDUAL_GRID
    longest = np.linalg.norm(X, axis=1).max()
    found = math.sqrt(newton.feature_bound(1e-9) * LENGTH_UNIT) / unit
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


def test_more_signal_takes_more_steps_and_bins() -> None:
    signals = [signal_of(n, 0.1, 4) for n in (1, 10_000, 50_000, 200_000, 10**7)]
    assert [n_steps(s, 2) for s in signals] == [5, 5, 6, 7, 10]
    assert [n_steps(s, 4) for s in signals] == [2, 3, 4, 4, 6]
    assert [n_bins(s) for s in signals] == [16, 16, 24, 24, 40]
    assert [float(gram_share(s, 2)) for s in signals] == [0.2, 0.2, 0.1, 0.1, 0.1]
    assert float(gram_share(signals[0], 3)) == 0.05


def test_conjugate_gradients_solve_every_column() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    matrix, target = root @ root.T + np.eye(6), rng.normal(size=(6, 3))
    diagonal = np.tile(np.diag(matrix)[:, None], (1, 3))
    found = conjugate_gradients(lambda x: matrix @ x, diagonal, target)
    np.testing.assert_allclose(matrix @ found, target, atol=1e-2)


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
