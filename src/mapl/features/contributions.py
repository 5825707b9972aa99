"""Private records as the integers that they contribute, block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from mapl.arrays import Array, Floats, Ints, Singles, Words
from mapl.features.grids import Grid, cells_of
from mapl.privacy.gradients import (
    CONSTANT,
    RESIDUAL_GRID,
    WEIGHT_GRID,
    class_logits,
    one_hot_labels,
    probabilities_of,
    residuals_of,
    stack_residuals,
)
from mapl.privacy.linear_map import LinearMap
from mapl.privacy.moments import Block
from mapl.privacy.pairs import (
    LARGEST_PIECE,
    PairBlock,
    coupled,
    places_in_units,
    record_weights,
)
from mapl.privacy.questions import (
    CopulaQuestion,
    GramQuestion,
    Question,
    StackQuestion,
)
from mapl.records.keys import persons
from mapl.records.table import Table

_ROWS = 2**10  # of a block, unless a unit has more
_AHEAD = 2  # blocks that wait for each thread
_MOST_BYTES = 512 * 2**20  # of encoded records that are kept

_T = TypeVar("_T")

ONE = LinearMap([np.full((1, 1), float(CONSTANT))])
"""The linear map of records that say nothing but their residuals."""

Source = Callable[[Floats, Any], Floats]
"""Logits of a published model, by a record's integers and what trees see of it: a
function of each record alone, in integers.
"""


class Contributions:
    """The records of a fit, ready to be asked for sums. Private.

    ``grids`` cut columns into cells, where columns are counted; ``feature_map`` may
    come later, with `show`.
    ``labels`` are class numbers, -1 for a record that counts nothing. All records of a
    unit stand together, in an order that depends on them alone; those beyond the first
    ``most_each`` count nothing. It is None where labels alone are private: then no
    label may change whether a record takes a place. What is encoded once is kept while
    memory allows; not if ``keeps`` is False.
    """

    def __init__(
        self,
        table: Table,
        labels: Ints,
        feature_map: Any = None,
        *,
        units: Words | None,
        keys: Words | None,
        grids: list[Grid | None] | None = None,
        most_each: int | None = None,
        n_threads: int = 1,
        keeps: bool = True,
    ) -> None:
        self._n_threads = n_threads
        self._most_bytes = _MOST_BYTES if keeps else 0
        self._table, self._labels = table, labels
        self.grids = grids
        self._columns: Array | None = None
        self._order, self._sizes = np.arange(len(labels)), None
        if units is not None and keys is not None:
            units = persons(units)
            self._order = np.lexsort((*keys.T, *units.T))
            if most_each is not None:  # what counts nothing takes no place in a unit
                self._order = self._order[labels[self._order] >= 0]
            self._sizes = _run_lengths(units[self._order])
            if most_each is not None:
                counts = places_in_units(self._sizes) < most_each
                self._order = self._order[counts]
                self._sizes = np.minimum(self._sizes, most_each)
        self.show(feature_map)

    def show(self, feature_map: Any) -> None:
        """Take the features that records are added up in."""
        self.feature_map = feature_map
        self._kept: dict[int, tuple[Array, Array]] = {}
        self._lengths: dict[int, Ints] = {}
        self._bytes = 0
        self._logits: list[list[Singles]] | None = None

    def total(self, asked: Any) -> Ints:
        """Return the total of a `Pass` over these records."""
        found: Ints = asked.total(self)
        return found

    def kept_logits(self, sources: list[Source]) -> list[list[Singles]]:
        """Return `logits`, computed once: the models are the same each time."""
        if self._logits is None:
            self._logits = self.logits(sources)
        return self._logits

    @property
    def grouped(self) -> bool:
        """Whether a unit may have several records."""
        return self._sizes is not None

    def __len__(self) -> int:
        return len(self._labels)

    def counts(self, n_classes: int) -> Iterator[Block]:
        """Yield a 1 for the class of each record; a unit has a length of 1 in all."""
        for rows, sizes in self._blocks():
            codes = self._labels[rows, None] == np.arange(n_classes)
            yield _constant_block(codes * float(RESIDUAL_GRID), sizes)

    def histograms(self, sizes: tuple[int, ...]) -> list[Ints]:
        """Return how often each cell occurs, column by column, the label last; a unit
        counts `WEIGHT` where it may have several records.
        """
        counted = (self._labels >= 0).astype(np.float64)
        weights = counted
        if self._sizes is not None:
            weights = np.zeros(len(counted))
            weights[self._order] = counted[self._order] * record_weights(self._sizes)
        columns = [*self._cells_of_columns().T, np.maximum(self._labels, 0)]
        return [
            np.bincount(column, weights, minlength=size).astype(np.int64)
            for column, size in zip(columns, sizes, strict=True)
        ]

    def scores(self, question: CopulaQuestion) -> Iterator[PairBlock]:
        """Yield what each record's cells say, column by column."""
        columns = self._cells_of_columns()

        def block(_: int, rows: Ints, sizes: Ints | None) -> PairBlock:
            places = columns[rows][:, question.columns] + question.starts
            found = question.scores[places][:, None, :]
            counted = (self._labels[rows] >= 0)[:, None, None]
            return PairBlock(found, np.where(counted, found, 0.0), sizes)

        return self._each(block)

    def gradients(self, question: Question) -> Iterator[Block]:
        """Yield what each record says about a current model."""
        linear_map = self.feature_map.linear_map

        def block(number: int, rows: Ints, sizes: Ints | None) -> Block:
            cells = self._cells(number, rows)
            residuals = residuals_of(cells, self._labels[rows], question)
            lengths = self._block_lengths(number, cells, linear_map)
            return Block(cells, linear_map.lengths(lengths), residuals, sizes)

        return self._each(block)

    def pieces(self, question: GramQuestion) -> Iterator[PairBlock]:
        """Yield what each record says about how the pieces of a step go together."""
        slices = self.feature_map.pieces

        def block(number: int, rows: Ints, sizes: Ints | None) -> PairBlock:
            cells = self._cells(number, rows)
            good = self.feature_map.linear_map.sound(cells)
            cells = cells if good.all() else np.where(good[:, None], cells, 0.0)
            found = np.stack([cells[:, s] @ question.step[s] for s in slices], axis=2)
            scaled = np.rint(found / question.units)
            clipped = np.clip(scaled, -LARGEST_PIECE, LARGEST_PIECE)
            counted = good & (self._labels[rows] >= 0)
            return PairBlock(
                *coupled(cells @ question.weights, clipped, counted), sizes
            )

        return self._each(block)

    def label_codes(self, columns: int, grid: int) -> Iterator[Block]:
        """Yield each record's label, as a one-hot code."""
        linear_map = self.feature_map.linear_map
        for number, (rows, sizes) in enumerate(self._blocks()):
            cells = self._cells(number, rows)
            codes = one_hot_labels(self._labels[rows], columns) * grid
            lengths = self._block_lengths(number, cells, linear_map)
            yield Block(cells, linear_map.lengths(lengths), codes, sizes)

    def expected(self, question: Question) -> Floats:
        """Return the sum of `label_codes` that a model expects, times 1/grid: where
        labels alone are private, it is public.
        """
        linear_map = self.feature_map.linear_map
        total = np.zeros((linear_map.width, question.weights.shape[1]))
        for number, (rows, sizes) in enumerate(self._blocks()):
            cells = self._cells(number, rows)
            lengths = linear_map.lengths(self._block_lengths(number, cells, linear_map))
            each = np.ones(len(rows)) if sizes is None else np.repeat(sizes, sizes)
            longest = np.maximum(lengths, 1) * float(RESIDUAL_GRID**2) * each**2
            factor = np.sqrt(np.minimum(1.0, question.squared_length / longest))
            factor *= lengths >= 0  # of features alone: labels are private
            shares = probabilities_of(cells @ question.weights / WEIGHT_GRID)
            total += cells.T @ (shares * factor[:, None])
        return np.asarray(linear_map.push_floats(total))

    def logits(self, sources: list[Source]) -> list[list[Singles]]:
        """Return the logits of several models, block by block.

        They are integers up to 2^24, which single precision holds exactly; NaN for a
        record whose integers are too long for exact products, and counts nothing.
        """

        def block(number: int, rows: Ints, _: Ints | None) -> list[Singles]:
            cells = self._cells(number, rows)
            good = self.feature_map.linear_map.sound(cells)[:, None]
            cells = cells if good.all() else np.where(good, cells, 0.0)
            seen = self._encoded(number, rows)[1]
            own = [np.where(good, source(cells, seen), np.nan) for source in sources]
            return [logits.astype(np.float32) for logits in own]

        return list(self._each(block))

    def stacked(
        self, logits: list[list[Singles]], question: StackQuestion
    ) -> Iterator[Block]:
        """Yield what each record says about how to weigh several models."""
        for own, (rows, sizes) in zip(logits, self._blocks(), strict=True):
            good = ~np.isnan(own[0][:, 0])
            exact = [np.nan_to_num(source.astype(np.float64)) for source in own]
            labels = np.where(good, self._labels[rows], -1)
            residuals = stack_residuals(exact, labels, question)
            yield _constant_block(residuals, sizes)

    def _each(self, work: Callable[[int, Ints, Ints | None], _T]) -> Iterator[_T]:
        """Yield what becomes of each block, in their order; some are worked on at once.

        Everything is exact, so the number of threads changes nothing.
        """

        def quietly(number: int, rows: Ints, sizes: Ints | None) -> _T:
            with np.errstate(all="ignore"):  # no warning tells of a private value
                return work(number, rows, sizes)

        blocks = enumerate(self._blocks())
        if self._n_threads == 1:
            yield from (quietly(number, *block) for number, block in blocks)
            return
        with threadpool_limits(1), ThreadPoolExecutor(self._n_threads) as threads:
            waiting: deque[Future[_T]] = deque()
            for number, block in blocks:
                waiting.append(threads.submit(quietly, number, *block))
                if len(waiting) > _AHEAD * self._n_threads:
                    yield waiting.popleft().result()
            yield from (future.result() for future in waiting)

    def _blocks(self) -> Iterator[tuple[Ints, Ints | None]]:
        """Yield the rows of each block, and the sizes of its units."""
        if self._sizes is None:
            for start in range(0, len(self._order), _ROWS):
                yield self._order[start : start + _ROWS], None
            return
        ends = np.cumsum(self._sizes)
        unit = 0
        while unit < len(ends):
            start = ends[unit] - self._sizes[unit]
            last = max(unit + 1, int(np.searchsorted(ends, start + _ROWS, "right")))
            yield self._order[start : ends[last - 1]], self._sizes[unit:last]
            unit = last

    def _cells_of_columns(self) -> Array:
        """Return one cell number a record and column; computed once."""
        if self._columns is None:
            assert self.grids is not None
            with np.errstate(all="ignore"):  # no warning tells of a private cell
                self._columns = cells_of(self._table, self.grids)
        return self._columns

    def _cells(self, number: int, rows: Ints) -> Floats:
        found, _ = self._encoded(number, rows)
        return np.asarray(self.feature_map.whole(found))

    def _encoded(self, number: int, rows: Ints) -> tuple[Array, Array]:
        """Return components, and what trees see."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        encoded = self.feature_map.encode(self._table.take(rows))
        found = self.feature_map.components(encoded), self.feature_map.dense(encoded)
        size = sum(part.nbytes for part in found)
        if self._bytes + size <= self._most_bytes:
            self._bytes += size
            self._kept[number] = found
        return found

    def _block_lengths(self, number: int, cells: Floats, linear_map: LinearMap) -> Ints:
        """Return the length of each record; computed once."""
        found = self._lengths.get(number)
        if found is None:
            found = linear_map.block_lengths(cells)
            self._lengths[number] = found
        return found

    def __repr__(self) -> str:
        return "Contributions()"


def _constant_block(residuals: Floats, sizes: Ints | None) -> Block:
    cells = np.ones((len(residuals), 1))
    return Block(cells, ONE.lengths(ONE.block_lengths(cells)), residuals, sizes)


def _run_lengths(sorted_units: Words) -> Ints:
    """Return how many consecutive rows are equal."""
    if not len(sorted_units):
        return np.zeros(0, dtype=np.int64)
    new = (sorted_units[1:] != sorted_units[:-1]).any(axis=1)
    starts = np.flatnonzero(np.append(True, new))
    return np.diff(np.append(starts, len(sorted_units)))


def linear_source(weights: Floats) -> Source:
    """Return the logits of a linear model of the cells, as a `Source`."""

    def logits(cells: Floats, _: Any) -> Floats:
        return class_logits(cells, weights)

    return logits
