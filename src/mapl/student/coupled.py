"""Newton's method piece by piece, where no public points show how columns go together.

Published shares tell the curvature within each column. That between columns, without
which full steps diverge, made-up records show at best roughly. So a step is cut into
pieces, one a column, and one more noisy sum says how they overlap in the private
records: it decides how far to go along each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mapl.arrays import Array, Floats
from mapl.privacy.gradients import RESIDUAL_GRID, exact_weights, probabilities_of
from mapl.privacy.linear_map import LENGTH_UNIT
from mapl.privacy.moments import NoisySum
from mapl.privacy.pairs import (
    CURVATURE_GRID,
    LARGEST_PIECE,
    least_curvature,
)
from mapl.privacy.questions import PairQuestion, Question
from mapl.student.newton import bound_by_mass, start_logits

_SPREADS = 10.0 ** np.arange(-6, 3.1, 0.5)  # prior variances that are tried
_LARGE = 64  # features of a column from which on classes share directions
_USUAL_PIECES = LARGEST_PIECE / 2  # length of a record's pieces, 98 of 100 times
_ROOM = 2.0  # of the bound on pairs over what made-up records need
_LARGEST_MOVE = 4.0  # of the made-up records' logits in a step, at the 0.95 quantile


@dataclass(frozen=True)
class CellPoints:
    """Made-up records, and the features of cells. Public.

    ``tables`` has one vector a cell, column by column, then that of the constant; in
    published sums, 1 is ``grid`` integer steps.
    """

    cells: Array
    tables: list[Floats]
    grid: int


class _Column:
    """A column of the made-up records: features are looked up by cell."""

    def __init__(self, table: Floats, cells: Array) -> None:
        self.table, self._cells = table, cells
        self.width = table.shape[1]

    def logits(self, weights: Floats) -> Floats:
        """Return what weights add to each made-up record's logits."""
        return np.asarray((self.table @ weights)[self._cells])

    def squared_lengths(self) -> Floats:
        """Return the squared length of each made-up record's features."""
        return np.asarray(np.einsum("ij,ij->i", self.table, self.table)[self._cells])

    def hessians(self, curvature: Floats) -> Floats:
        """Return one matrix a class; one for all where a matrix is large."""
        n = len(self.table)
        if self.width > _LARGE and curvature.shape[1] > 1:
            curvature = curvature.mean(axis=1, keepdims=True)
        mass = np.stack([np.bincount(self._cells, c, minlength=n) for c in curvature.T])
        weighted = mass[:, :, None] * self.table
        return np.asarray(weighted.transpose(0, 2, 1) @ self.table)

    def cell_weights(self, weights: Floats) -> Floats:
        """Return the weights of a record's integers."""
        return self.table @ weights


@dataclass(frozen=True)
class _Basis:
    """A published gradient of one piece, in the main directions of its curvature."""

    vectors: Floats  # (1 or classes, features, directions)
    h: Floats  # (directions, classes)
    g: Floats

    @classmethod
    def of(cls, hessians: Floats, gradient: Floats, curvature: Floats) -> _Basis:
        """Turn a gradient; classes share directions where there is one matrix."""
        values, vectors = np.linalg.eigh(hessians)
        h = np.maximum(values, 0).astype(np.float64).T
        vectors = vectors.astype(np.float64)
        if len(hessians) == 1:
            h = h * (curvature.mean(axis=0) / curvature.mean())
        turned = np.einsum("qij,iq->jq", _per_class(vectors, gradient), gradient)
        return cls(vectors, h, turned)

    def ridge(self, spread: float, noise: float) -> Floats:
        """Return what prior and noise add to the curvature."""
        return np.asarray(1 / spread + noise / np.maximum(self.h * spread, 1e-12))

    def back(self, step: Floats) -> Floats:
        """Return a step in terms of the features."""
        vectors = _per_class(self.vectors, step)
        return np.asarray(np.einsum("qij,jq->iq", vectors, step))


def _per_class(vectors: Floats, like: Floats) -> Floats:
    return np.broadcast_to(vectors, (like.shape[1], *vectors.shape[1:]))


@dataclass(frozen=True)
class _Step:
    """A step cut into pieces, one set of ``moves`` each."""

    moves: list[Floats]
    gains: Floats  # (pieces, classes): each piece times the gradient
    ridges: Floats  # what noise and prior add to the diagonal


class CoupledSteps:
    """Asks for a gradient, then for how its pieces overlap, and follows them.

    Parameters
    ----------
    points : CellPoints
        Made-up records and features.
    n_classes : int
        One column of weights for each; a single one for two.
    n_records : float
        How many private records there are, about.
    parts : list of (Fraction, Fraction)
        Of the budget, for each step's gradient and for its pairs.
    """

    def __init__(
        self,
        points: CellPoints,
        *,
        n_classes: int,
        n_records: float,
        parts: list[tuple[Fraction, Fraction]],
    ) -> None:
        constant = np.zeros((len(points.cells), 1), dtype=np.int64)
        cells = np.hstack((points.cells, constant)).T.astype(np.int64)
        self._pieces = [
            _Column(table, own) for table, own in zip(points.tables, cells, strict=True)
        ]
        self._grid, self._n, self._parts = points.grid, n_records, parts
        self._number, self._unit = 0, 1.0
        self._n_classes = 1 if n_classes == 2 else n_classes
        self._weights = [np.zeros((p.width, self._n_classes)) for p in self._pieces]
        # Classes together move less than each as if alone.
        columns = self._n_classes
        self._together = 1.0 if columns == 1 else columns / (columns - 1)
        self._shares = probabilities_of(self.logits)
        self._step: _Step | None = None

    @property
    def done(self) -> bool:
        """Whether every step was taken."""
        return self._number == len(self._parts)

    @property
    def logits(self) -> Floats:
        """Those of the made-up records, by the current weights."""
        return self._logits_of(self._weights)

    def start_at(self, frequencies: Floats) -> None:
        """Start from the classes' frequencies where one of them is rare."""
        logits = start_logits(frequencies)
        if logits is not None:
            self._weights[-1][0] = logits / self._pieces[-1].table[0, 0]

    def cell_weights(self) -> Floats:
        """Return the weights of a record's integers, as integers."""
        return exact_weights(self._joined(self._weights))

    def next(self) -> Question:
        """Return which gradient to ask for."""
        self._shares = p = probabilities_of(self.logits)
        if p.shape[1] == 1:
            residuals, shares = np.hstack((p, 1 - p)), np.hstack((1 - p, p))
        else:
            squared = (p**2).sum(axis=1, keepdims=True) - 2 * p + 1
            residuals, shares = np.sqrt(np.maximum(squared, 0)), p
        lengths = np.sqrt(sum(piece.squared_lengths() for piece in self._pieces))
        bound = bound_by_mass(np.asarray(lengths)[:, None] * residuals, shares)
        limit = math.floor((bound * self._grid * RESIDUAL_GRID) ** 2 / LENGTH_UNIT)
        part = self._parts[self._number][0]
        return Question(self.cell_weights(), 0, max(1, limit), part)

    def take(self, noisy: NoisySum) -> PairQuestion:
        """Cut the step that a gradient suggests into pieces; return what to ask about
        them.
        """
        unit = self._grid * RESIDUAL_GRID
        self._step = self._cut(noisy.total / unit, noisy.sigma / unit)
        moves = self._step.moves
        shown = self._partial_logits(moves)
        longest = np.linalg.norm(shown, axis=2).max(axis=0)
        self._unit = max(float(np.quantile(longest, 0.98)), 1e-9) / _USUAL_PIECES
        bound = float(np.quantile(self._pair_lengths(shown), 0.98)) / self._unit**2
        limit = math.floor((_ROOM * bound * CURVATURE_GRID) ** 2)
        pieces = np.rint(self._joined(moves) / self._unit)
        return PairQuestion(
            self.cell_weights(),
            np.clip(pieces, -LARGEST_PIECE, LARGEST_PIECE),
            max(1, limit),
            self._parts[self._number][1],
        )

    def take_pairs(self, question: PairQuestion, noisy: NoisySum) -> None:
        """Go along each piece as far as their overlap suggests."""
        assert self._step is not None
        unit = CURVATURE_GRID / self._unit**2
        sums, sigma = noisy.total / unit, noisy.sigma / unit / math.sqrt(2)
        shown, bound = self._partial_logits(self._step.moves), question.squared_length
        lengths = np.maximum(self._pair_lengths(shown), 1e-12)
        kept = np.minimum(1, math.sqrt(bound) / unit / lengths)
        curvature = self._curvature() * kept[:, None] * (self._n / len(kept))
        alone = np.einsum("qip,iq,qir->pr", shown, curvature, shown, optimize=True)
        self._move(self._lengths_of(alone, (sums + sums.T) / 2, sigma))
        self._number += 1

    def _lengths_of(self, alone: Floats, found: Floats, sigma: float) -> Floats:
        """Return how far to go along each piece, from 0 to 1.

        What the sum adds to made-up records is shrunk by its noise.
        """
        assert self._step is not None
        level = 2 * sigma * math.sqrt(len(alone))
        values, vectors = np.linalg.eigh(found - alone)
        values = np.sign(values) * np.sqrt(np.maximum(values**2 - level**2, 0))
        whole = (alone + (vectors * values) @ vectors.T) * self._together
        ridges, gains = (
            part.sum(axis=1) for part in (self._step.ridges, self._step.gains)
        )
        diagonal = level / 2 + ridges + 1e-9 * np.trace(alone) + 1e-9
        return np.clip(np.linalg.solve(whole + np.diag(diagonal), gains), 0, 1)

    def _cut(self, gradient: Floats, sigma: float) -> _Step:
        """Return the most probable step, as if pieces were independent."""
        curvature = self._curvature() * (self._together * self._n / len(self._shares))
        ends = np.cumsum([piece.width for piece in self._pieces])[:-1]
        bases = [
            _Basis.of(piece.hessians(curvature), own, curvature)
            for piece, own in zip(self._pieces, np.split(gradient, ends), strict=True)
        ]
        noise = max(sigma**2, 1e-4 * max(float(b.h.max()) for b in bases), 1e-12)
        spread = float(min(_SPREADS, key=lambda each: _misfit(bases, each, noise)))
        moves, gains, ridges = [], [], []
        for basis in bases:
            ridge = basis.ridge(spread, noise)
            step = basis.g / (basis.h + ridge)
            moves.append(basis.back(step))
            gains.append((step * basis.g).sum(axis=0))
            ridges.append((step**2 * ridge).sum(axis=0))
        return _Step(moves, np.stack(gains), np.stack(ridges))

    def _move(self, lengths: Floats) -> None:
        assert self._step is not None
        pairs = zip(self._step.moves, lengths, strict=True)
        steps = [move * length for move, length in pairs]
        moved = np.quantile(np.abs(self._logits_of(steps)), 0.95, axis=0)
        shorter = np.minimum(1.0, _LARGEST_MOVE / np.maximum(moved, 1e-9))
        self._weights = [
            w + s * shorter for w, s in zip(self._weights, steps, strict=True)
        ]

    def _curvature(self) -> Floats:
        least = least_curvature(self._n_classes)
        return np.maximum(self._shares * (1 - self._shares), least)

    def _partial_logits(self, moves: list[Floats]) -> Floats:
        """Return what each piece adds to logits: (classes, made-up records, pieces)."""
        pairs = zip(self._pieces, moves, strict=True)
        found = np.stack([piece.logits(move) for piece, move in pairs], axis=2)
        return np.asarray(found.transpose(1, 0, 2))

    def _pair_lengths(self, shown: Floats) -> Floats:
        """Return the length of each made-up record's sum of q z z' over classes."""
        left = shown.transpose(1, 0, 2)
        right = left * self._curvature()[:, :, None]
        grams = [side @ side.transpose(0, 2, 1) for side in (left, right)]
        return np.asarray(np.sqrt((grams[0] * grams[1]).sum(axis=(1, 2))))

    def _logits_of(self, weights: list[Floats]) -> Floats:
        pairs = zip(self._pieces, weights, strict=True)
        return np.asarray(sum(piece.logits(own) for piece, own in pairs))

    def _joined(self, weights: list[Floats]) -> Floats:
        pairs = zip(self._pieces, weights, strict=True)
        return np.concatenate([piece.cell_weights(own) for piece, own in pairs])


def _misfit(bases: list[_Basis], spread: float, noise: float) -> float:
    """Return minus twice the log-likelihood of gradients, for a prior variance."""
    total = 0.0
    for basis in bases:
        variance = basis.h**2 * spread + basis.h + noise
        total += float((np.log(variance) + basis.g**2 / variance).sum())
    return total
