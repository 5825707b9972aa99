"""Steps cut into pieces, with an exact overlap and without."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl.privacy.gradients import RESIDUAL_GRID, WEIGHT_GRID, probabilities_of
from mapl.privacy.linear_map import LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.privacy.pairs import CURVATURE_GRID, least_curvature
from mapl.student.coupled import CellPoints, CoupledSteps

GRID = 2**15
CELLS = 8


def records(n: int, n_classes: int, correlated: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    first = rng.integers(0, CELLS, n)
    second = first if correlated else rng.integers(0, CELLS, n)
    cells = np.stack((first, second), axis=1)
    scores = np.stack([(k + 1) * (first - 3.5) / 2 for k in range(n_classes)], axis=1)
    return cells, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def tables() -> list[Any]:
    codes = np.eye(CELLS) - 1 / CELLS
    return [codes, codes, np.full((1, 1), 0.5)]


def fitted(n_classes: int, *, correlated: bool, noise: float = 1.0) -> Any:
    """Run the steps on exact sums over records, with noise of a few records."""
    rng = np.random.default_rng(1)
    cells, labels = records(4000, n_classes, correlated)
    made_up = rng.integers(0, CELLS, (2000, 2))
    steps = CoupledSteps(
        CellPoints(made_up, tables(), GRID),
        n_classes=n_classes,
        n_records=4000.0,
        parts=[(Fraction(1, 10), Fraction(1, 100))] * 6,
    )
    steps.start_at(np.bincount(labels, minlength=n_classes) / 4000)
    images = np.hstack([t[c] for t, c in zip(tables(), _whole(cells), strict=True)])
    places = np.stack(_whole(cells), axis=1) + np.array([0, CELLS, 2 * CELLS])
    columns = 1 if n_classes == 2 else n_classes
    codes = (labels[:, None] == np.arange(n_classes))[:, -columns:]
    while not steps.done:
        question = steps.next()
        assert question.waves == 0
        assert question.squared_length * LENGTH_UNIT < (GRID * RESIDUAL_GRID * 9) ** 2
        p = probabilities_of(question.weights[places].sum(axis=1) / WEIGHT_GRID)
        unit = GRID * RESIDUAL_GRID
        total = images.T @ (codes - p) + noise * rng.normal(size=(17, columns))
        pairs = steps.take(NoisySum(total * unit, noise * unit))
        assert np.abs(pairs.pieces).max() <= 512
        z = pairs.pieces[places]  # record, piece, class
        q = np.maximum(p * (1 - p), least_curvature(columns)) * CURVATURE_GRID
        overlap = np.einsum("ipk,ik,irk->pr", z, q, z)
        steps.take_pairs(pairs, NoisySum(overlap, 1.0))
    logits = steps.cell_weights()[places].sum(axis=1) / WEIGHT_GRID
    return probabilities_of(logits), labels


def _whole(cells: Any) -> list[Any]:
    return [*cells.T, np.zeros(len(cells), dtype=np.int64)]


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("correlated", [False, True])
def test_overlap_leads_to_the_right_model(n_classes: int, correlated: bool) -> None:
    """Columns that are equal would be followed twice without it."""
    shares, labels = fitted(n_classes, correlated=correlated)
    if n_classes == 2:
        shares = np.hstack((1 - shares, shares))
    cells, _ = records(4000, n_classes, correlated)
    truth = np.stack([(k + 1) * (cells[:, 0] - 3.5) / 2 for k in range(n_classes)], 1)
    true = np.exp(truth) / np.exp(truth).sum(axis=1, keepdims=True)
    assert np.abs(shares - true).mean() < 0.05
    assert (shares.argmax(axis=1) == labels).mean() > 0.95 * true.max(axis=1).mean()


def test_drowned_steps_go_nowhere() -> None:
    shares, _ = fitted(2, correlated=True, noise=1e6)
    assert np.abs(shares - 0.5).max() < 0.2


def test_rare_classes_are_where_steps_start() -> None:
    steps = CoupledSteps(
        CellPoints(np.zeros((10, 2), dtype=np.int64), tables(), GRID),
        n_classes=3,
        n_records=100.0,
        parts=[(Fraction(1, 2), Fraction(1, 2))],
    )
    steps.start_at(np.array([0.6, 0.39, 0.01]))
    shares = probabilities_of(steps.logits)
    assert shares[0] == pytest.approx([0.6, 0.39, 0.01], abs=0.01)


def test_wide_columns_share_directions_among_classes() -> None:
    wide = np.eye(80) - 1 / 80
    cells = np.random.default_rng(0).integers(0, 80, (500, 1))
    steps = CoupledSteps(
        CellPoints(cells, [wide, np.full((1, 1), 0.5)], GRID),
        n_classes=3,
        n_records=500.0,
        parts=[(Fraction(1, 2), Fraction(1, 2))],
    )
    steps.next()
    unit = GRID * RESIDUAL_GRID
    gradient = np.random.default_rng(1).normal(size=(81, 3)) * 20 * unit
    pairs = steps.take(NoisySum(gradient, unit))
    steps.take_pairs(pairs, NoisySum(np.eye(2) * 1e6, 1.0))
    assert np.isfinite(steps.logits).all()
    assert steps.logits.std() > 0
