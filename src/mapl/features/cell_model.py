"""Cells of a data dictionary as a scikit-learn transformer: what is published."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from mapl.errors import CertificateError
from mapl.features.grids import CategoryGrid, Grid, NumberGrid, cells_of
from mapl.features.tables import one_hot_cells
from mapl.records.columns import KINDS
from mapl.records.dictionary import MOST_CATEGORIES
from mapl.records.schema import Column, Schema
from mapl.records.table import canonical_table

_MOST_CELLS = 2**14  # of a column


class CellFeatures(TransformerMixin, BaseEstimator):
    """From records of any container to one-hot codes of cells, with a 1 at the end.

    ``plain`` holds names, kinds, categories and edges as texts and numbers, so that a
    file of it can be checked.
    """

    def __init__(self, plain: dict[str, Any]) -> None:
        self.plain = plain

    @classmethod
    def of(cls, schema: Schema, grids: list[Grid | None]) -> CellFeatures:
        """Return the transformer for the cells of a dictionary."""
        columns = []
        for (name, column), grid in zip(schema.columns.items(), grids, strict=True):
            edges = grid.edges if isinstance(grid, NumberGrid) else np.empty(0)
            whole = isinstance(grid, NumberGrid) and grid.whole
            listed = [str(name), column.kind, list(column.categories), edges, whole]
            columns.append(listed)
        return cls({"columns": columns})

    def fit(self, X: Any, y: Any = None) -> CellFeatures:
        """Return self: all was fitted when it was made."""
        return self

    def transform(self, X: Any) -> Any:
        """Return the codes of each record, sparse."""
        schema, grids = from_plain(self.plain)
        cells = cells_of(canonical_table(X, schema), grids)
        used = [grid.n_cells for grid in grids if grid is not None]
        return one_hot_cells(cells, used)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns that it needs."""
        return [str(column[0]) for column in self.plain["columns"]]

    @property
    def schema(self) -> Schema:
        """The types of the columns."""
        return from_plain(self.plain)[0]


def from_plain(plain: dict[str, Any]) -> tuple[Schema, list[Grid | None]]:
    """Return types and cells; refuse values that do not fit together.

    Raises
    ------
    CertificateError
        If something else stands there than names, known kinds and rising numbers.
    """
    try:
        columns: dict[Any, Column] = {}
        grids: list[Grid | None] = []
        for name, kind, listed, edges, whole in plain["columns"]:
            categories = tuple(str(one) for one in listed)
            if kind not in KINDS or str(name) in columns:
                raise ValueError
            columns[str(name)] = Column(kind, categories=categories)
            grids.append(_grid(kind, categories, edges, bool(whole)))
        if not any(grid is not None for grid in grids):
            raise ValueError
    except Exception as error:  # it may come from a stranger
        raise CertificateError(
            f"The columns of the model cannot be read ({type(error).__name__})."
        ) from None
    return Schema(columns), grids


def _grid(kind: str, categories: Any, edges: Any, whole: bool) -> Grid | None:
    if kind == "text":
        return None
    if kind == "category":
        if len(categories) > MOST_CATEGORIES:
            raise ValueError
        return CategoryGrid(len(categories))
    found = np.asarray(edges, dtype=np.float64)
    sound = found.ndim == 1 and 2 <= len(found) <= _MOST_CELLS
    if not (sound and np.isfinite(found).all() and (np.diff(found) > 0).all()):
        raise ValueError
    return NumberGrid(found, whole)
