"""Blocks of a record's integers in the pool's own metric.

A block is centred, turned to the main directions of its second moments over the pool,
multiplied by a power of their inverse, and scaled to a mean length. What is left is
small integers: a record's components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Bools, Floats, Ints
from mapl.privacy.linear_map import (
    LARGEST_CELLS,
    LENGTH_UNIT,
    LinearMap,
    squared_lengths,
)

GRID = 2**11  # integer steps of one unit of length
CONSTANT = GRID // 2  # the last component
_POWER = 0.25  # of the second moments: 0 leaves all as it is, 0.5 would whiten
_SINGLE = 2**24  # integers that single precision holds
_FINE, _COARSE = 2**14, 2**9  # length of a direction in integers: wanted, and least
_NOTHING = 1e-7  # of the largest second moment
LARGEST = 2**15 - 1  # of a component
LONGEST = 2**13  # of a column's components: a rare code would be as long as all others


@dataclass(frozen=True)
class _Metric:
    """Directions of a block and what they are multiplied by; the mean square of each
    component is ``energy``, all together ``share``.
    """

    vectors: Floats
    factors: Floats
    energy: Floats

    @classmethod
    def of(cls, second_moments: Array, share: float) -> _Metric:
        values, vectors = np.linalg.eigh(second_moments)
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        kept = max(1, int((values > _NOTHING * values[0]).sum()))
        values, vectors = values[:kept].astype(np.float64), vectors[:, :kept]
        ridge = float(values.mean()) if values.sum() > 0 else 1.0
        factors = (values + ridge) ** -_POWER
        energy = values * factors**2
        whole = float(energy.sum())
        factor = math.sqrt(share / whole) if whole > 0 else 0.0
        return cls(vectors.astype(np.float64), factors * factor, energy * factor**2)


def _strong(energy: Floats, least: float) -> Bools:
    """Return which components are strong enough; one is at the least."""
    return np.asarray(energy >= min(least, float(energy.max(initial=0.0))))


@dataclass(frozen=True)
class Codes:
    """The components of a column of codes: looked up, a row for each code.

    One-hot codes have ``unit`` where the code is.
    """

    table: Array
    unit: int
    energy: Floats

    @classmethod
    def of(cls, codes: Ints, n: int, unit: int, share: float) -> Codes:
        """Take the metric of the pool's codes, of which there are n; all components
        together have a mean square of ``share``.
        """
        frequent = np.bincount(codes, minlength=n) / max(1, len(codes))
        moments = np.diag(frequent) - np.outer(frequent, frequent)
        metric = _Metric.of(moments, share)
        matrix = metric.vectors * metric.factors * GRID
        table = matrix - frequent @ matrix
        length = np.linalg.norm(table, axis=1, keepdims=True)
        table *= np.minimum(1.0, LONGEST / np.maximum(length, 1.0))
        return cls(np.rint(table).astype(np.int16), unit, metric.energy)

    def kept(self, least: float) -> Bools:
        """Return which components have a mean square of at least this."""
        return _strong(self.energy, least)

    def leading(self, least: float) -> Codes:
        """Return these components alone."""
        kept = self.kept(least)
        table = np.ascontiguousarray(self.table[:, kept])
        return Codes(table, self.unit, self.energy[kept])

    @property
    def n(self) -> int:
        """How many components there are."""
        return int(self.table.shape[1])

    def __call__(self, codes: Array) -> Array:
        """Return the components of some records."""
        return self.table[codes]

    def pull(self, weights: Floats) -> Floats:
        """Return weights of the one-hot codes for those of components."""
        return np.asarray(self.table @ weights / self.unit)

    @property
    def offset(self) -> Floats:
        """What components lack where there is no code: nothing, there always is."""
        return np.zeros(self.n)


@dataclass(frozen=True)
class Components:
    """How a block of integers becomes components, which are integers too.

    ``matrix`` and ``before`` are whole, and so small that no partial sum of a product
    exceeds what their precision holds: a component is, to the last bit, a function of
    its record.
    """

    matrix: Array
    before: Array
    scale: float
    energy: Floats

    @classmethod
    def of(cls, pool: Array, farthest: float) -> Components:
        """Take the metric of the pool; no record is longer than ``farthest``."""
        centre = np.rint(pool.mean(axis=0, dtype=np.float64))
        centred = (pool - centre).astype(np.float32)
        moments = centred.T @ centred / max(1, len(pool))
        metric = _Metric.of(moments, 1.0)
        size, precision = _FINE, "float64"
        if _SINGLE / farthest > 2 * _COARSE:
            size = min(_FINE, int(0.9 * _SINGLE / farthest))
            precision = "float32"
        largest = float(metric.factors.max(initial=0.0))
        factors = metric.factors / largest if largest > 0 else metric.factors
        matrix = np.rint(metric.vectors * (factors * size))
        before = np.rint(centre @ matrix).astype(precision)
        scale = GRID * largest / size
        return cls(matrix.astype(precision), before, scale, metric.energy)

    def kept(self, least: float) -> Bools:
        """Return which components have a mean square of at least this."""
        return _strong(self.energy, least)

    def leading(self, least: float) -> Components:
        """Return these components alone."""
        kept = self.kept(least)
        matrix = np.ascontiguousarray(self.matrix[:, kept])
        return Components(matrix, self.before[kept], self.scale, self.energy[kept])

    @property
    def offset(self) -> Floats:
        """The components of what is subtracted."""
        return self.scale * self.before.astype(np.float64)

    @property
    def n(self) -> int:
        """How many components there are."""
        return int(self.matrix.shape[1])

    def __call__(self, values: Array) -> Array:
        """Return the components of some records."""
        precision: Any = self.matrix.dtype.type
        found = values.astype(precision) @ self.matrix
        found -= self.before
        found *= precision(self.scale)
        np.rint(found, out=found)
        np.clip(found, -LARGEST, LARGEST, out=found)
        return found.astype(np.int16)

    def pull(self, weights: Floats) -> Floats:
        """Return weights of the block's centred integers for those of components."""
        return np.asarray(self.scale * (self.matrix.astype(np.float64) @ weights))


class ComponentMap(LinearMap):
    """A `LinearMap` of records whose integers are components already: the identity."""

    def __init__(self, width: int) -> None:
        super().__init__([], [])
        self._width = width

    @property
    def width(self) -> int:
        """How many integers a record has."""
        return self._width

    def image(self, cells: Floats) -> Floats:
        """Return each record's integers."""
        return cells

    def block_lengths(self, cells: Floats) -> Ints:
        """Return the squared length of each record; -1 for those that are too long."""
        found = squared_lengths(cells)
        good = found <= LARGEST_CELLS**2
        return np.where(good, found, -1.0).astype(np.int64)[:, None]

    def lengths(self, block_lengths: Ints) -> Ints:
        """Return each record's squared length in units of `LENGTH_UNIT`, rounded up."""
        found = -(-block_lengths[:, 0] // LENGTH_UNIT)
        return np.where(block_lengths[:, 0] >= 0, found, -1)

    def sound(self, cells: Floats) -> Any:
        """Return which records are short enough for exact products: all are whole."""
        return squared_lengths(cells) <= LARGEST_CELLS**2

    def push(self, sums: Ints) -> Ints:
        """Return sums of records."""
        return sums

    def push_floats(self, sums: Floats) -> Floats:
        """Return sums of records that are public."""
        return sums
