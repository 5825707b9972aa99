"""Private records as one cell a column, ready to be counted and summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mapl.arrays import Array, Ints, Words
from mapl.features.contributions import Contributions
from mapl.features.grids import Grid, cells_of
from mapl.features.tables import CellMap, places_of
from mapl.privacy.linear_map import LinearMap
from mapl.privacy.moments import MOST_RECORDS_EACH, WEIGHT
from mapl.privacy.pairs import PairBlock, curved, record_weights
from mapl.privacy.questions import PairQuestion
from mapl.records.table import Table


class CellContributions(Contributions):
    """The records of a fit without public points. Private.

    Features come later: `show` says what cells mean when their counts are published.
    """

    feature_map: CellMap

    def __init__(
        self,
        table: Table,
        labels: Ints,
        grids: list[Grid | None],
        *,
        units: Words | None,
        keys: Words | None,
        n_threads: int = 1,
        keeps: bool = True,
    ) -> None:
        super().__init__(
            *(table, labels, None),
            units=units,
            keys=keys,
            most_each=MOST_RECORDS_EACH,
            n_threads=n_threads,
            keeps=keeps,
        )
        self._grids = grids
        self._codes: Array = np.empty((0, 0))
        with np.errstate(all="ignore"):  # no warning tells of a private cell
            self._codes = cells_of(table, grids)

    def show(self, cell_map: CellMap) -> None:
        """Take what cells mean."""
        self.feature_map = cell_map

    def histograms(self, sizes: tuple[int, ...]) -> tuple[list[Ints], int]:
        """Return how often each cell occurs, column by column, the label last; and the
        weight of a unit in it.
        """
        counted = (self._labels >= 0).astype(np.float64)
        weights, weight = counted, 1
        if self._sizes is not None:
            weights, weight = np.zeros(len(counted)), WEIGHT
            each = record_weights(self._sizes)
            weights[self._order] = counted[self._order] * each
        columns = [*self._codes.T, np.maximum(self._labels, 0)]
        found = [
            np.bincount(column, weights, minlength=size).astype(np.int64)
            for column, size in zip(columns, sizes, strict=True)
        ]
        return found, weight

    def pairs(self, question: PairQuestion) -> Iterator[PairBlock]:
        """Yield what each record says about how the pieces of a step go together."""
        for number, (rows, sizes) in enumerate(self._blocks()):
            cells = self._cells(number, rows, waves=False)
            pieces = question.pieces[places_of(cells)].transpose(0, 2, 1)
            logits = np.asarray(cells @ question.weights)
            right = curved(logits, pieces, self._labels[rows] >= 0)
            yield PairBlock(pieces, right, sizes)

    @property
    def _block_rows(self) -> int:
        """More than of dense records: these are small."""
        return 8 * super()._block_rows

    def _cells(self, number: int, rows: Ints, *, waves: bool) -> Any:
        return self.feature_map.one_hot(self._codes[rows])

    def _seen(self, number: int, rows: Ints, cells: Any) -> Any:
        return cells

    def _block_lengths(self, number: int, cells: Any, linear_map: LinearMap) -> Ints:
        return linear_map.block_lengths(cells)
