"""Features of cells: every cell of a column has an integer vector, found by look-up.

Numbers have a clipped linear value and bins, which are unions of cells; categories have
codes. Both kinds are put into the metric of the published shares, column by column.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from mapl.arrays import Array, Bools, Floats, Ints
from mapl.features.grids import CategoryGrid, Grid, NumberGrid
from mapl.features.sketch import Sketch
from mapl.privacy.linear_map import LARGEST_LENGTH, LENGTH_UNIT, LinearMap

GRID = 2**15  # integer steps of one unit of length
CONSTANT = 0.5  # the last feature
_POWER = 0.25  # of the second moments
_CLIPPED = 0.03  # share of numbers on each side that a linear value does not follow
_FARTHEST = 4.0  # standard deviations
_HEAVY = 0.1  # share of the records from which on a cell is a bin of its own
_FEWEST_BINS, _MOST_BINS = 8, 24
_RECORDS_A_BIN = 25  # times columns, over the shift
_LARGEST = 2.0**17  # of an entry


class TableMap(LinearMap):
    """A `LinearMap` of records that are one cell a column: features are looked up.

    A record's integers are the ones of `one_hot_cells`.
    """

    def __init__(self, tables: list[Floats]) -> None:
        super().__init__(tables)
        squares = [np.einsum("ij,ij->i", m, m) for m in self.matrices]
        self._squares = np.concatenate(squares).astype(np.int64)

    def sound(self, cells: Any) -> Bools:
        """Return which records' integers are exact: all, they are ones."""
        return np.ones(cells.shape[0], dtype=np.bool_)

    def block_lengths(self, cells: Any) -> Ints:
        """Return the squared length of each record, as a column."""
        each = self._squares[places_of(cells)]
        return np.asarray(each.sum(axis=1, keepdims=True))

    def lengths(self, block_lengths: Ints) -> Ints:
        """Return each record's squared length in units, rounded up."""
        total = -(-block_lengths[:, 0] // LENGTH_UNIT)
        return np.where(total <= LARGEST_LENGTH, total, -1)

    def image(self, cells: Any) -> Floats:
        """Return each record's vectors, side by side."""
        places = places_of(cells)
        starts = np.cumsum([0, *(len(m) for m in self.matrices)])
        return np.concatenate(
            [m[places[:, j] - starts[j]] for j, m in enumerate(self.matrices)], axis=1
        )


class CellMap:
    """The features of cells, by look-up. Public. The constant is the last table."""

    def __init__(self, tables: list[Floats]) -> None:
        self.tables = [*tables, np.full((1, 1), CONSTANT * GRID)]
        self.sizes = [len(table) for table in self.tables]

    @classmethod
    def of(cls, grids: list[Grid], sketch: Sketch, shift: float) -> CellMap:
        """Return the features for published shares; ``shift`` is that of the budget."""
        n_numbers = max(1, sum(isinstance(grid, NumberGrid) for grid in grids))
        n_bins = int(sketch.n_units * shift / (_RECORDS_A_BIN * n_numbers))
        n_bins = min(max(n_bins, _FEWEST_BINS), _MOST_BINS)
        linear, bins = [], []
        for grid, share in zip(grids, sketch.shares, strict=True):
            if isinstance(grid, CategoryGrid):
                linear.append(_codes(share))
                bins.append(np.empty((grid.n_cells, 0)))
            else:
                linear.append(_linear(grid, share)[:, None])
                bins.append(_bins(grid, share, n_bins))
        blocks = [_in_metric(tables, sketch.shares) for tables in (linear, bins)]
        return cls([np.hstack(pair) for pair in zip(*blocks, strict=True)])

    @cached_property
    def _linear_map(self) -> TableMap:
        return TableMap(self.tables)

    def linear_map(self, waves: int = 0) -> TableMap:
        """Return how ones become features; there are no waves."""
        del waves
        return self._linear_map

    def one_hot(self, cells: Array) -> Any:
        """Return cells as one-hot codes."""
        return one_hot_cells(cells, self.sizes[:-1])


def places_of(cells: Any) -> Array:
    """Return the columns of each record's ones."""
    each = int(cells.indptr[1]) if cells.shape[0] else 0
    found: Array = cells.indices.reshape(cells.shape[0], each)
    return found


def one_hot_cells(cells: Array, sizes: list[int]) -> Any:
    """Return cells as a sparse matrix of ones, with a 1 at the end of each row."""
    from scipy.sparse import csr_matrix

    n, starts = len(cells), np.cumsum([0, *sizes])
    places = np.empty((n, len(sizes) + 1), dtype=np.int32)
    places[:, :-1] = cells + starts[:-1]
    places[:, -1] = starts[-1]
    return csr_matrix(
        (
            np.ones(places.size),
            places.reshape(-1),
            np.arange(0, places.size + 1, places.shape[1], dtype=np.int32),
        ),
        shape=(n, int(starts[-1]) + 1),
    )


def _codes(share: Floats) -> Floats:
    """Return one-hot codes of categories; those without a share have one together."""
    seen = np.flatnonzero(share > 0)
    number = np.full(len(share), len(seen))
    number[seen] = np.arange(len(seen))
    width = len(seen) + (len(seen) < len(share))
    return np.asarray(number[:, None] == np.arange(width), dtype=np.float64)


def _linear(grid: NumberGrid, share: Floats) -> Floats:
    """Return the scaled middle of each cell, clipped; 0 for missing values."""
    p = share[:-1] / max(share[:-1].sum(), 1e-12)
    middles, below = grid.middles, np.cumsum(p)
    last = len(p) - 1
    low, high = (
        middles[min(int(np.searchsorted(below, place)), last)]
        for place in (_CLIPPED, 1 - _CLIPPED)
    )
    if low == high:
        low, high = middles[0], middles[-1]
    values = np.clip(middles, low, high)
    mean = float(p @ values)
    spread = math.sqrt(float(p @ (values - mean) ** 2)) or 1.0
    scaled = np.clip((values - mean) / spread, -_FARTHEST, _FARTHEST)
    return np.append(scaled, 0.0)


def _bins(grid: NumberGrid, share: Floats, n_bins: int) -> Floats:
    """Return which bin each cell belongs to, as one-hot codes."""
    p, n = share[:-1] / max(share[:-1].sum(), 1e-12), grid.n_ordered
    heavy = np.flatnonzero(p > _HEAVY)
    rest = p.copy()
    rest[heavy] = 0.0
    cuts = {*heavy.tolist(), *(heavy + 1).tolist()}
    fixed = set(cuts)
    if rest.sum() > 0:
        places = np.arange(1, n_bins) / n_bins
        found = np.searchsorted(np.cumsum(rest) / rest.sum(), places)
        cuts |= {*found.tolist(), *(found + 1).tolist()}
    starts = sorted(cut for cut in cuts if 0 < cut < n)
    starts = _joined(starts, fixed, np.cumsum(p), n_bins + 2 * len(heavy))
    number = np.searchsorted(starts, np.arange(n), side="right")
    number = np.append(number, len(starts) + 1)  # of missing values
    return np.asarray(number[:, None] == np.arange(len(starts) + 2), dtype=np.float64)


def _joined(starts: list[int], fixed: set[int], below: Floats, most: int) -> list[int]:
    """Drop cuts between the thinnest neighbours until there are few enough."""
    kept = np.array(starts, dtype=np.int64)
    while len(kept) > most:
        mass = np.diff(np.concatenate(([0.0], below[kept - 1], [1.0])))
        pairs = mass[:-1] + mass[1:]
        pairs[[cut in fixed for cut in kept.tolist()]] = np.inf
        kept = np.delete(kept, int(pairs.argmin()))
    return [int(cut) for cut in kept]


def _in_metric(tables: list[Floats], shares: list[Floats]) -> list[Floats]:
    """Put one kind of features, column by column, into the metric of the shares.

    Columns count as independent here. The ridge is the mean eigenvalue of all.
    """
    pairs = list(zip(tables, shares, strict=True))
    centred = [t - p @ t for t, p in pairs]
    seconds = [(c * p[:, None]).T @ c for c, (_, p) in zip(centred, pairs, strict=True)]
    width = sum(len(s) for s in seconds)
    trace = sum(float(np.trace(s)) for s in seconds)
    if width == 0 or trace <= 0:
        return [np.zeros(t.shape) for t in tables]
    out = []
    for table, second in zip(centred, seconds, strict=True):
        if not len(second):
            out.append(table)
            continue
        values, vectors = np.linalg.eigh(second / trace)
        power = (np.maximum(values, 0) + 1 / width) ** -_POWER
        out.append(table @ (vectors * power) @ vectors.T)
    mean = sum(float(p @ (o**2).sum(axis=1)) for o, p in zip(out, shares, strict=True))
    scale = GRID / math.sqrt(mean)
    return [np.clip(np.rint(table * scale), -_LARGEST, _LARGEST) for table in out]
