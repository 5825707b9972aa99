"""Columns cut into cells by a data dictionary; no record decides where.

A record is one cell number a column. Numbers outside their range belong to the first or
last cell, categories that are not listed share one cell with missing ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mapl.arrays import Array, Floats, Ints
from mapl.features.columns import as_number
from mapl.records.cells import DAY, NAT
from mapl.records.dictionary import Entry
from mapl.records.table import Table

_EQUAL = 256  # cells of equal width over the range
_STRIPS, _MOST_EDGES = 2**12, 2  # of a range, to find cells by; edges inside a strip
_AN_OCTAVE, _OCTAVES = 8, 40  # cells a power of two away from zero, and powers


@dataclass(frozen=True)
class NumberGrid:
    """Cells of a column of numbers; the last one is for missing values.

    Steps of an eighth of an octave stand beside equal steps of the range, so that a
    range may be far too wide.
    """

    edges: Floats
    whole: bool = False

    @classmethod
    def of(cls, low: float, high: float, *, whole: bool) -> NumberGrid:
        """Cut a range."""
        top = max(abs(low), abs(high))
        powers = top * 2.0 ** (-np.arange(_AN_OCTAVE * _OCTAVES + 1) / _AN_OCTAVE)
        steps = np.concatenate((-powers, np.zeros(1), powers))
        inside = steps[(steps > low) & (steps < high)]
        edges = np.unique(np.append(np.linspace(low, high, _EQUAL + 1), inside))
        if whole:
            around = np.concatenate((np.floor(edges), np.ceil(edges), [high + 1])) - 0.5
            edges = np.unique(np.clip(around, low - 0.5, high + 0.5))
        return cls(edges, whole)

    @property
    def n_ordered(self) -> int:
        """How many cells hold numbers."""
        return len(self.edges) - 1

    @property
    def n_cells(self) -> int:
        """How many cells there are, with that of missing values."""
        return len(self.edges)

    def cells(self, values: Floats) -> Ints:
        """Return the number of each value's cell."""
        missing = np.isnan(values)
        inside = np.clip(values, self.edges[0], self.edges[-1])
        inside[missing] = self.edges[0]
        if not np.isfinite(self._strips_a_unit):  # of a range that is next to nothing
            found = np.searchsorted(self.edges[1:-1], inside, side="right")
            return np.where(missing, self.n_ordered, found)
        first, padded = self._strips
        strip = ((inside - self.edges[0]) * self._strips_a_unit).astype(np.int64)
        np.minimum(strip, _STRIPS - 1, out=strip)
        found = first[strip]
        few = found >= 0
        start = found + 0
        for step in range(_MOST_EDGES):
            found += inside >= padded[start + step]
        if not few.all():
            rest = inside[~few]
            found[~few] = np.searchsorted(self.edges[1:-1], rest, side="right")
        found[missing] = self.n_ordered
        return np.asarray(found)

    @property
    def _strips_a_unit(self) -> float:
        with np.errstate(over="ignore"):
            return float(_STRIPS / (self.edges[-1] - self.edges[0]))

    @cached_property
    def _strips(self) -> tuple[Ints, Floats]:
        """Equal strips of the range: how many inner edges lie before each, -1 where a
        strip has many; and the inner edges, padded.

        A strip is taken a little wider than it is: rounding may put a value that is
        near its end into its neighbour. Comparisons with edges are exact.
        """
        inner, width = self.edges[1:-1], 1 / self._strips_a_unit
        ends = self.edges[0] + width * np.arange(_STRIPS + 1)
        before = np.searchsorted(inner, ends[:-1] - width / 1000, side="right")
        after = np.searchsorted(inner, ends[1:] + width / 1000, side="right")
        first = np.where(after - before <= _MOST_EDGES, before, -1)
        return first.astype(np.int64), np.append(inner, [np.inf] * (_MOST_EDGES + 1))

    @property
    def middles(self) -> Floats:
        """The middle of each cell that holds numbers."""
        return np.asarray((self.edges[:-1] + self.edges[1:]) / 2)

    def draw(self, cells: Ints, rng: np.random.Generator) -> Floats:
        """Return values of some cells; NaN where they are missing."""
        place = np.minimum(cells, self.n_ordered - 1)
        low, high = self.edges[place], self.edges[place + 1]
        found = low + (high - low) * rng.random(len(cells))
        if self.whole:
            found = np.clip(np.rint(found), np.ceil(low), np.floor(high))
        return np.where(cells == self.n_ordered, np.nan, found)


@dataclass(frozen=True)
class CategoryGrid:
    """One cell a category; the last one is for missing and unlisted values."""

    n_categories: int

    @property
    def n_ordered(self) -> int:
        """How many cells hold numbers: none."""
        return 0

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return self.n_categories + 1

    def cells(self, codes: Ints) -> Ints:
        """Return the number of each value's cell."""
        return np.where(codes < 0, self.n_categories, codes)

    def draw(self, cells: Ints, rng: np.random.Generator) -> Ints:
        """Return the codes of some cells; -1 where they are missing."""
        del rng
        return np.where(cells == self.n_categories, -1, cells)


Grid = NumberGrid | CategoryGrid


def grid_of(entry: Entry) -> Grid | None:
    """Return the cells of a column; none for free text, of which nothing is used."""
    if entry.kind == "text":
        return None
    if entry.kind == "category":
        return CategoryGrid(len(entry.categories))
    low, high = entry.limits
    return NumberGrid.of(low, high, whole=entry.kind == "integer")


def cells_of(table: Table, grids: list[Grid | None]) -> Array:
    """Return one cell number a record and column that has cells."""
    matrix = table.columns[0] if table.schema.container == "array" else None
    kinds = table.schema.columns.values()
    found = []
    for j, (grid, kind) in enumerate(zip(grids, kinds, strict=True)):
        if isinstance(grid, NumberGrid):
            column = table.columns[j] if matrix is None else matrix[:, j]
            found.append(grid.cells(as_number(column, kind.kind)).astype(np.uint16))
        elif grid is not None:
            found.append(grid.cells(table.columns[j]).astype(np.uint16))
    return np.stack(found, axis=1)


def drawn_column(
    grid: Grid | None, kind: str, cells: Ints, rng: np.random.Generator
) -> Array:
    """Return a canonical column with values of some cells."""
    if grid is None:
        return np.full(len(cells), None, dtype=object)
    values = grid.draw(cells, rng)
    if kind != "time":
        return values
    missing = np.isnan(values)
    found = np.where(missing, 0.0, values * DAY).astype(np.int64)
    return np.where(missing, NAT, found)
