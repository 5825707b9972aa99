"""The canonical table: all that keys, chunks, teachers and moments ever see of records.

Its columns have public types, and each cell is a function of the caller's cell and that
type, and of nothing else: not of the container, the index, category codes, or another
record. It shares no memory with what the caller gave.

Proof: docs/proofs/partition.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from mapl.arrays import Array, Bools, Ints, n_rows
from mapl.errors import ParameterError
from mapl.records.cells import NAT, is_series, plain
from mapl.records.columns import canonical_floats, convert
from mapl.records.containers import columns_of, has_names
from mapl.records.schema import Column, Schema


@dataclass(frozen=True, repr=False)
class Table:
    """Records in canonical form. Private unless its records are public.

    ``columns`` has one array a column; one matrix where the container is an array, one
    CSR matrix where it is sparse. ``readable`` is False for records that have another
    number of cells than there are columns.
    """

    schema: Schema
    columns: list[Any]
    readable: Bools

    def __len__(self) -> int:
        return len(self.readable)

    @cached_property
    def data(self) -> Any:
        """The records as learners see them: in the container of the public records."""
        container = self.schema.container
        if container in ("array", "sparse"):
            return self.columns[0]
        types = list(self.schema.columns.values())
        if container == "polars":
            return _polars_frame(self.schema, self.columns)
        if container == "texts":
            return (
                _with_nan(self.columns[0])
                if types[0].kind == "text"
                else self.columns[0]
            )
        import pandas as pd

        series = [
            _pandas_column(*pair) for pair in zip(types, self.columns, strict=True)
        ]
        if container == "series":
            return pd.Series(series[0])
        frame = pd.DataFrame(dict(enumerate(series)), index=range(len(self)))
        frame.columns = pd.Index(list(self.schema.columns))
        return frame

    @cached_property
    def incomplete(self) -> Bools:
        """Which records lack a cell."""
        lacking = ~self.readable
        if self.schema.container == "sparse":
            matrix = self.columns[0]
            rows = np.repeat(np.arange(len(self)), np.diff(matrix.indptr))
            lacking[rows[np.isnan(matrix.data)]] = True
            return lacking
        if self.schema.container == "array":
            return np.asarray(lacking | np.isnan(self.columns[0]).any(axis=1))
        kinds = self.schema.columns.values()
        for kind, column in zip(kinds, self.columns, strict=True):
            lacking |= is_missing(column, kind.kind)
        return lacking

    def digest(self) -> bytes:
        """Return a digest of what is stored, to notice a change."""
        whole = sha256()
        for column in self.columns:
            if hasattr(column, "indptr"):
                parts = [column.data, column.indices, column.indptr]
            else:
                parts = [column]
            for part in parts:
                plain = repr(part.tolist()).encode() if part.dtype == object else part
                whole.update(plain)
        return whole.digest()

    def take(self, rows: Ints | Bools) -> Table:
        """Return some of the records."""
        columns = [column[rows] for column in self.columns]
        return Table(self.schema, columns, self.readable[rows])


def joined(tables: Sequence[Table]) -> Table:
    """Return the records of several tables of one schema, one after the other."""
    if len(tables) == 1:
        return tables[0]
    parts = zip(*(table.columns for table in tables), strict=True)
    columns = [np.concatenate(part) for part in parts]
    readable = np.concatenate([table.readable for table in tables])
    return Table(tables[0].schema, columns, readable)


def is_missing(column: Array, kind: str) -> Bools:
    """Return which cells of a canonical column are missing."""
    if kind == "text":
        return np.fromiter((cell is None for cell in column), np.bool_, len(column))
    if kind == "number":
        return np.isnan(column)
    return np.asarray(column == (-1 if kind == "category" else NAT))


def take_rows(data: Any, rows: Ints) -> Any:
    """Return a copy of some rows of a learner's container, with an index of its own:
    row numbers of the whole table would tell of other records.
    """
    if hasattr(data, "iloc"):
        return data.take(rows).reset_index(drop=True)
    return data[rows]


def copy_of(data: Any) -> Any:
    """Return a copy that somebody else may write to."""
    if hasattr(data, "get_columns"):
        return data.clone()  # polars never writes in place
    return data.copy()


def canonical_table(X: Any, schema: Schema) -> Table:
    """Return the records of any container in the types of a schema.

    Columns go by name where the container has names, else by position.
    """
    # What a precision cannot hold is missing, and no warning tells of it.
    with np.errstate(all="ignore"):
        if n_rows(X) == 0:
            return _empty_table(schema)
        if schema.container == "sparse" or hasattr(X, "tocsr"):
            return _sparse_table(X, schema)
        return _dense_table(X, schema, np.ones(n_rows(X), dtype=np.bool_))


def table_of_columns(columns: Mapping[Any, Any], schema: Schema) -> Table:
    """Return the records whose columns these are, at least one record."""
    found = [columns[name] for name in schema.columns]
    with np.errstate(all="ignore"):
        return _table_of(found, schema, np.ones(len(found[0]), dtype=np.bool_))


def _empty_table(schema: Schema) -> Table:
    """Return the table of no records, whatever container holds none."""
    rows: list[list[Any]] = [[] for _ in schema.columns]
    if schema.container == "sparse":
        return _sparse_table(np.empty((0, len(rows))), schema)
    return _table_of(rows, schema, np.ones(0, dtype=np.bool_))


def _dense_table(X: Any, schema: Schema, readable: Bools) -> Table:
    if schema.container == "array" and _is_numeric(X):
        flat = X.reshape(len(X), math.prod(X.shape[1:]))
        found = flat.astype(np.float64)  # a copy; first to double precision, always
        return Table(schema, [_matrix(found, schema)], readable)
    if isinstance(X, list | tuple) and schema.container not in ("texts", "series"):
        columns, readable = _columns_of_rows(X, len(schema.columns))
    else:
        columns = _matched(X, schema)
    return _table_of(columns, schema, readable)


def _table_of(columns: list[Any], schema: Schema, readable: Bools) -> Table:
    """Convert each column to its type."""
    converted = [
        convert(column, kind.kind, kind.categories)
        for column, kind in zip(columns, schema.columns.values(), strict=True)
    ]
    if schema.container == "array":
        whole = (
            np.stack(converted, axis=1) if converted else np.empty((len(readable), 0))
        )
        converted = [_matrix(whole, schema)]
    return Table(schema, converted, readable)


def _is_numeric(X: Any) -> bool:
    return type(X) is np.ndarray and X.ndim >= 2 and X.dtype.kind in "fiub"


def _matrix(values: Any, schema: Schema) -> Any:
    """Return numbers as a contiguous matrix of the schema's precision."""
    _check_width(values.shape[1], schema)
    return canonical_floats(np.ascontiguousarray(values, dtype=schema.precision))


def _matched(X: Any, schema: Schema) -> list[Any]:
    """Return the columns of a table in the order of the schema."""
    names, columns = columns_of(X)
    if has_names(X) and schema.container != "array":
        found = dict(zip(names, columns, strict=True))
        lacking = [str(name) for name in schema.columns if name not in found]
        if lacking:
            raise ParameterError(
                f"X must have the columns of X_public or of the schema; it lacks "
                f"{', '.join(lacking)}."
            )
        return [found[name] for name in schema.columns]
    _check_width(len(columns), schema)
    return columns


def _check_width(width: int, schema: Schema) -> None:
    if width != len(schema.columns):
        raise ParameterError(
            f"X must have {len(schema.columns)} columns, as X_public or the schema "
            f"has, got {width}."
        )


def _columns_of_rows(rows: Any, width: int) -> tuple[list[list[Any]], Bools]:
    """Return the columns of a list of records; one of another length has no cells."""
    blank = [None] * width
    read = [_cells_of_row(row) for row in rows]
    sound = [len(row) == width for row in read]
    listed = [row if fits else blank for row, fits in zip(read, sound, strict=True)]
    return [[row[j] for row in listed] for j in range(width)], np.array(sound, np.bool_)


def _cells_of_row(row: Any) -> list[Any]:
    """Return the cells of one record in a list; none of what is no list of cells."""
    found = plain(row)
    if isinstance(found, list | tuple):
        return list(found)
    if type(row) is np.ndarray and row.ndim == 1:
        return list(row.tolist())
    if is_series(row):
        return list(row.to_numpy(dtype=object))
    return []


def _sparse_table(X: Any, schema: Schema) -> Table:
    """Return a sparse table: no explicit zeros, no duplicates, sorted columns."""
    from scipy.sparse import csr_array, csr_matrix, issparse, sparray

    if not issparse(X):
        dense = _dense_table(
            X, Schema(schema.columns, "array"), np.ones(n_rows(X), dtype=np.bool_)
        )
        found = _sparse_table(csr_matrix(dense.columns[0]), schema)
        return Table(schema, found.columns, dense.readable)
    _check_width(X.shape[1], schema)
    # Cell by cell first: duplicates are summed in a type that no other row decides.
    cells_ = X.tocoo(copy=True)
    values = convert(cells_.data, "number")
    kind = csr_array if isinstance(X, sparray) else csr_matrix
    # In the order in which a record has them, whatever order others are in.
    order = np.lexsort((cells_.col, cells_.row))
    row, col = cells_.row[order], cells_.col[order]
    first = np.append(True, (row[1:] != row[:-1]) | (col[1:] != col[:-1]))[: len(row)]
    sums = np.bincount(np.cumsum(first) - 1, values[order], int(first.sum()))
    sums = sums.astype(np.float64)  # which none are not
    matrix = kind((sums, (row[first], col[first])), shape=X.shape)
    matrix.sort_indices()
    matrix.indices = matrix.indices.astype(np.int32)
    matrix.indptr = matrix.indptr.astype(np.int64 if matrix.nnz >= 2**31 else np.int32)
    canonical_floats(matrix.data)
    matrix.eliminate_zeros()
    readable = np.ones(matrix.shape[0], dtype=np.bool_)
    if schema.container == "sparse":
        return Table(schema, [matrix], readable)
    return canonical_table(np.asarray(matrix.toarray()), schema)


# What learners see ---------------------------------------------------------------


def _with_nan(texts: Array) -> Array:
    """Return texts with NaN for missing ones, as imputers expect."""
    out = texts.copy()
    out[is_missing(texts, "text")] = np.nan
    return out


def _pandas_column(kind: Column, values: Array) -> Any:
    """Return a canonical column as pandas has the public one."""
    import pandas as pd

    if kind.kind == "number":
        return values
    if kind.kind == "text":
        # The type must be said: else pandas infers it from the values.
        return pd.Series(_with_nan(values), dtype=kind.dtype or object)
    if kind.kind == "category":
        if isinstance(kind.dtype, pd.CategoricalDtype):
            return pd.Categorical.from_codes(values, dtype=kind.dtype)
        return pd.Categorical.from_codes(values, categories=list(kind.categories))
    if kind.kind == "duration":
        spans = pd.Series(values.view("m8[ns]"))
        return spans if kind.dtype is None else spans.astype(_numpy_type(kind.dtype))
    moments = pd.Series(values.view("M8[ns]"))
    zone = getattr(kind.dtype, "tz", None)
    if zone is not None:
        return (
            moments.dt.tz_localize("UTC")
            .dt.tz_convert(zone)
            .dt.as_unit(kind.dtype.unit)
        )
    return moments if kind.dtype is None else moments.astype(_numpy_type(kind.dtype))


def _numpy_type(dtype: Any) -> Any:
    """Return the numpy type of times; Arrow's and polars' own have none."""
    return dtype if isinstance(dtype, np.dtype) else np.dtype(f"{dtype.kind}8[ns]")


def _polars_frame(schema: Schema, columns: list[Any]) -> Any:
    import polars as pl

    made = []
    for name, kind, values in zip(
        schema.columns, schema.columns.values(), columns, strict=True
    ):
        if kind.kind == "category":
            listed = np.array([*kind.categories, None], dtype=object)[values]
            series = pl.Series(name, listed.tolist(), dtype=pl.Enum(kind.categories))
        elif kind.kind == "text":
            series = pl.Series(name, values.tolist(), dtype=pl.String)
        elif kind.kind == "number":
            series = pl.Series(name, values)
        else:
            unit = pl.Datetime("ns") if kind.kind == "time" else pl.Duration("ns")
            counts = [None if value == NAT else value for value in values.tolist()]
            series = pl.Series(name, counts, dtype=pl.Int64).cast(unit)
        made.append(series)
    return pl.DataFrame(made)
