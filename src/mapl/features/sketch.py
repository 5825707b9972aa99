"""One-way counts of cells, published with noise: what columns look like.

Counts of ordered cells are published through a square root of the matrix that adds them
up, so that the number of records below any value has little noise (Fichtenberger,
Henzinger, Upadhyay 2022, arXiv 2202.11205). Everything here is public, but for
`SketchForm.total`.

Proof: docs/proofs/Sketch.md
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mapl.arrays import Array, Floats, Ints
from mapl.features.grids import Grid, drawn_column
from mapl.privacy.moments import NoisySum
from mapl.records.schema import Schema
from mapl.records.table import Table

_UNIT = 2**12  # integer steps of a record's length in one column
_CLEAR = 2.0  # standard deviations below which a count of a category is none
N_DRAWN = 10_000


@dataclass(frozen=True)
class SketchForm:
    """Which integers a record adds to a sketch: fixed by the dictionary. Public.

    The label is one more column of categories.
    """

    sizes: tuple[int, ...]  # cells of each column
    ordered: tuple[int, ...]  # of these, how many hold numbers; they stand first

    @classmethod
    def of(cls, grids: list[Grid], n_classes: int) -> SketchForm:
        """Return the form for some columns and a label."""
        return cls(
            (*(grid.n_cells for grid in grids), n_classes),
            (*(grid.n_ordered for grid in grids), 0),
        )

    @cached_property
    def roots(self) -> list[Ints]:
        """For each column what a record adds to its own cell and to those after it."""
        return [_root(n) if n else np.empty(0, dtype=np.int64) for n in self.ordered]

    @property
    def squared_length(self) -> int:
        """A bound of the squared length of what one record adds, in integer steps."""
        return sum(max(int((root**2).sum()), _UNIT**2) for root in self.roots)

    def total(self, counts: list[Ints]) -> Ints:
        """Return the sum of what all records add, from counts of cells. Private."""
        parts = []
        for root, n, count in zip(self.roots, self.ordered, counts, strict=True):
            if n:
                parts.append(np.convolve(count[:n], root)[:n])
            parts.append(count[n:] * _UNIT)
        return np.concatenate(parts)

    def read(self, noisy: NoisySum) -> Sketch:
        """Return what a published sum says of each column."""
        total, sigma = noisy.total.reshape(-1), noisy.sigma / _UNIT
        counts, sums, variances, start = [], [], [], 0
        for root, size, n in zip(self.roots, self.sizes, self.ordered, strict=True):
            own = total[start : start + size]
            found = np.empty(size)
            found[:n], last, variance = _decoded(own[:n], root, noisy.sigma)
            found[n:] = own[n:] / _UNIT
            sums.append(last + found[n:].sum())
            variances.append(variance + (size - n) * sigma**2)
            counts.append(found)
            start += size
        weights = 1 / np.array(variances)
        n_units = max(1.0, float(weights @ sums / weights.sum()))
        shares = [
            _shares(found, n, sigma)
            for found, n in zip(counts[:-1], self.ordered, strict=False)
        ]
        return Sketch(shares, n_units, counts[-1], sigma)


@dataclass(frozen=True)
class Sketch:
    """Columns as they look after noise. Public.

    ``shares`` has the share of each cell, column by column; ``n_units`` is about how
    many units there are, ``class_counts`` how many of each class, with noise ``sigma``.
    """

    shares: list[Floats]
    n_units: float
    class_counts: Floats
    sigma: float


def drawn_table(
    schema: Schema, grids: list[Grid | None], cells: Array, rng: np.random.Generator
) -> Table:
    """Return made-up records with such cells; free text is missing in them."""
    columns, used = [], 0
    for grid, column in zip(grids, schema.columns.values(), strict=True):
        own = cells[:, used] if grid is not None else np.zeros(len(cells), np.int64)
        columns.append(drawn_column(grid, column.kind, own, rng))
        used += grid is not None
    return Table(schema, columns, np.ones(len(cells), dtype=np.bool_))


def _root(n: int) -> Ints:
    """Return the square root of the matrix of prefix sums, as integers: coefficients
    C(2k, k) / 4^k, all of them together of length `_UNIT`.
    """
    k = np.arange(1, n)
    found = np.concatenate((np.ones(1), np.cumprod((2 * k - 1) / (2 * k))))
    scaled = found * (_UNIT / np.sqrt((found**2).sum()))
    return np.asarray(np.maximum(1, np.floor(scaled)), dtype=np.int64)


def _decoded(total: Floats, root: Ints, sigma: float) -> tuple[Floats, float, float]:
    """Return counts of ordered cells, their sum, and the variance of that sum.

    Prefix sums must not fall, so the nearest ones that do not are taken.
    """
    from scipy.signal import lfilter
    from sklearn.isotonic import isotonic_regression

    if not len(total):
        return np.empty(0), 0.0, 0.0
    prefix = np.cumsum(lfilter([1.0], root.astype(np.float64), total))
    impulse = np.zeros(len(total))
    impulse[0] = 1.0
    response = np.cumsum(lfilter([1.0], root.astype(np.float64), impulse))
    rising = np.maximum(isotonic_regression(prefix), 0.0)
    variance = sigma**2 * float((response**2).sum())
    return np.diff(rising, prepend=0.0), float(prefix[-1]), variance


def _shares(counts: Floats, n_ordered: int, sigma: float) -> Floats:
    """Return shares of cells; a category that may be noise alone has none."""
    found = np.maximum(counts, 0.0)
    rest = found[n_ordered:]
    clear = min(_CLEAR * sigma, float(rest.max(initial=0.0)))
    found[n_ordered:] = np.where(rest < clear, 0.0, rest)
    whole = found.sum()
    return found / whole if whole > 0 else np.full(len(found), 1 / len(found))
