"""Which record goes to which chunk: a function of that record alone.

Neighbouring data sets then differ in one chunk, hence in one teacher; every guarantee
of mapl rests on this. So the key of a record is a digest of its own values, whatever
the container made of them: one empty cell may turn a column of integers to floats or
objects, a new category may renumber all the others, a longer string may widen an array;
no other record's key changes.

Proof: docs/proofs/partition.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from itertools import islice, pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from mapl.errors import ParameterError

Ints = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
"""One row of two 64-bit words a record."""

_LANE = 16  # bytes that stand for one cell
_BLOCK_BYTES = 1 << 24  # lanes laid out in one go


def chunk_rows(
    features: Any,
    labels: Any | None,
    groups: Any | None,
    *,
    n_chunks: int,
    salt: int = 0,
) -> list[Ints]:
    """Return the row numbers of each chunk, in an order that is the data's own.

    Parameters
    ----------
    features : array-like, DataFrame, sparse matrix or sequence of strings
        The records, one a row.
    labels : array-like or None
        Their labels, part of the record; None where labels must not decide.
    groups : array-like or None
        Whose record it is. All records of one value go to one chunk. Without it,
        each record is a unit of its own, and copies of a record spread.
    n_chunks : int
        How many chunks; some may stay empty.
    salt : int
        Another salt, another partition. It must not come from the data.

    Notes
    -----
    Guarantee: if one unit is added to the data or removed, the content of one chunk
    changes, and that of no other, nor the order of its rows.
    Proof: docs/proofs/partition.md
    """
    records = record_digests(features, labels)
    if groups is None:
        units = _with_copy_numbers(records)
        sort_keys = units.T
    else:
        if n_rows(groups) != len(records):
            raise ParameterError("groups must have one value a record.")
        units = record_digests(groups, None)
        sort_keys = np.concatenate((records, units), axis=1).T
    chunk = _salted(units, salt) % np.uint64(n_chunks)
    order = np.lexsort((*sort_keys, chunk))
    ends = np.searchsorted(chunk[order], np.arange(n_chunks + 1))
    return [order[a:b] for a, b in pairwise(ends)]


def record_digests(features: Any, labels: Any | None) -> Digests:
    """Return a 128-bit digest of each record's own values."""
    n = n_rows(features)
    if labels is not None and n_rows(labels) != n:
        raise ParameterError("X and y must have the same length.")
    if hasattr(features, "tocsr"):
        rows: Iterator[Any] = _sparse_rows(features.tocsr(copy=True), labels)
    else:
        columns = _columns(features)
        if labels is not None:
            columns += _columns(labels)
        rows = _dense_rows(columns, n)
    blocks = []  # one of many small strings would take three times the memory
    while block := [sha256(row).digest()[:16] for row in islice(rows, 1 << 16)]:
        blocks.append(b"".join(block))
    digests = b"".join(blocks)
    return np.frombuffer(digests, dtype="<u8").reshape(n, 2).astype(np.uint64)


def _salted(units: Digests, salt: int) -> npt.NDArray[np.uint64]:
    """Mix the salt in: 64 bits that depend on a unit and the salt alone."""
    multiplier, offset = np.frombuffer(sha256(b"%d" % salt).digest()[:16], dtype="<u8")
    mixed = (units[:, 0] ^ offset) * (multiplier | np.uint64(1))
    return np.asarray(mixed ^ (mixed >> np.uint64(32)) ^ units[:, 1])


def _with_copy_numbers(digests: Digests) -> Digests:
    """Tell equal records apart by how many equal ones came before.

    Equal records can be exchanged, so which of them has which number tells nothing.
    """
    order = np.lexsort(digests.T)
    ordered = digests[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    position = np.arange(len(order))
    copy_number = position - np.maximum.accumulate(np.where(first, position, 0))
    for i in np.flatnonzero(copy_number):
        named = ordered[i].tobytes() + int(copy_number[i]).to_bytes(8, "little")
        ordered[i] = np.frombuffer(sha256(named).digest()[:16], dtype="<u8")
    units = np.empty_like(ordered)
    units[order] = ordered
    return units


# Rows of bytes --------------------------------------------------------------------


def _dense_rows(columns: list[Any], n: int) -> Iterator[memoryview]:
    """Yield each record as the lanes of its cells, a block of records at a time."""
    encoders = [_encoder(column) for column in columns]
    step = max(1, _BLOCK_BYTES // (_LANE * max(1, _n_cells(columns))))
    for start in range(0, n, step):
        stop = min(n, start + step)
        parts = [encode(start, stop) for encode in encoders]
        lanes = np.concatenate(parts, axis=1) if len(parts) != 1 else parts[0]
        block, width = memoryview(lanes.tobytes()), lanes[:1].nbytes
        for at in range(0, len(block), width):
            yield block[at : at + width]


def _n_cells(columns: list[Any]) -> int:
    return sum(math.prod(getattr(column, "shape", ())[1:]) for column in columns)


def _sparse_rows(matrix: Any, labels: Any | None) -> Iterator[bytes]:
    """Yield each record as its label's lane, then its non-zero cells by column."""
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    n = matrix.shape[0]
    label_lanes = (
        b""
        if labels is None
        else b"".join(map(bytes, _dense_rows(_columns(labels), n)))
    )
    label_width = len(label_lanes) // n if n else 0
    columns = matrix.indices.astype("<i8").tobytes()
    values = _number_lanes(matrix.data).tobytes()
    for i, (a, b) in enumerate(pairwise(matrix.indptr)):
        label = label_lanes[i * label_width : (i + 1) * label_width]
        yield label + columns[8 * a : 8 * b] + values[_LANE * a : _LANE * b]


Encoder = Callable[[int, int], Digests]


def _encoder(column: Any) -> Encoder:
    """Return a function that gives the lanes of some rows: (rows, cells, 2) words."""
    array = column if isinstance(column, np.ndarray) else _as_array(column)
    if array.dtype.kind in "fiub":
        return lambda start, stop: _number_lanes(array[start:stop])
    codes, distinct = _factorize(array)
    lanes = np.array([_value_lane(value) for value in distinct], dtype="<u8")
    lanes = lanes.reshape(len(distinct), 1, 2)
    return lambda start, stop: lanes[codes[start:stop]]


def _number_lanes(values: npt.NDArray[Any]) -> Digests:
    """A zero word, then the float64; missing has a lane of its own."""
    cells = values.reshape(len(values), math.prod(values.shape[1:]))
    floats = cells.astype(np.float64, order="C")
    floats += 0.0  # -0.0 becomes 0.0
    lanes = np.zeros((*cells.shape, 2), dtype="<u8")
    lanes[..., 1] = floats.view("<u8")
    if values.dtype.itemsize >= 8 and values.dtype != np.float64:
        _mark_inexact(cells, floats, lanes)
    lanes[np.isnan(floats)] = _MISSING
    return lanes


def _mark_inexact(values: npt.NDArray[Any], floats: Any, lanes: Digests) -> None:
    """What float64 may not hold keeps all its digits, by its text."""
    if values.dtype.kind == "f":  # of more than 64 bits
        doubtful = values != floats
    else:
        doubtful = np.abs(floats) >= 2.0**53
    for cell in zip(*np.nonzero(doubtful), strict=True):
        lanes[cell] = _value_lane(values[cell])


_MISSING = (2, 0)


def _value_lane(value: Any) -> tuple[int, int]:
    """Return the lane of one value: by what it is, not by how it is stored."""
    if value is None or value is _pandas_na() or value != value:
        return _MISSING
    if isinstance(value, str):
        return _digest_lane(b"s" + value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return _digest_lane(b"b" + value)
    if isinstance(value, timedelta):  # pandas has nanoseconds, too
        whole = value.days * 86_400_000_000 + value.seconds * 1_000_000
        nanoseconds = 1000 * (whole + value.microseconds)
        return _digest_lane(b"d%d" % (nanoseconds + getattr(value, "nanoseconds", 0)))
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)  # the same moment in two zones is the same
    if isinstance(value, date | datetime):
        return _digest_lane(b"t" + str(value).encode())
    numeric = isinstance(value, Real | Decimal | np.number | np.bool_)
    # Durations of numpy pass for integers.
    if numeric and np.asarray(value).dtype.kind != "m":
        return _number_lane(value)
    raise ParameterError(
        f"X holds values of type {type(value).__name__}, which have no canonical form. "
        "Pass numbers, strings, dates or missing values, or pass groups= and let "
        "records be told apart by whose they are."
    )


def _number_lane(value: Any) -> tuple[int, int]:
    """By its float64 if that is the very number, else by all its digits: two numbers
    that differ are never told to be copies.
    """
    if isinstance(value, Integral | np.bool_):
        value = int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) or value != number:
        exact = Fraction(*value.as_integer_ratio())
        if not math.isfinite(number) or exact != Fraction(number):
            return _digest_lane(b"i%x/%x" % exact.as_integer_ratio())
    return 0, int(np.float64(number + 0.0).view(np.uint64))


def _digest_lane(data: bytes) -> tuple[int, int]:
    high, low = np.frombuffer(sha256(data).digest()[:16], dtype="<u8")
    return int(high) | 4, int(low)  # never the first word of a number or of missing


def _pandas_na() -> object:
    import sys

    pandas = sys.modules.get("pandas")
    return object() if pandas is None else pandas.NA


# Containers -----------------------------------------------------------------------


def n_rows(data: Any) -> int:
    """Return how many records any container holds."""
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else len(data)


def _columns(data: Any) -> list[Any]:
    """Split a table into its columns."""
    if hasattr(data, "columns") and hasattr(data, "iloc"):  # pandas
        return [data.iloc[:, i] for i in range(data.shape[1])]
    if hasattr(data, "get_columns"):  # polars
        return list(data.get_columns())
    if hasattr(data, "itercolumns"):  # pyarrow
        return list(data.itercolumns())
    if hasattr(data, "iloc") or hasattr(data, "to_list"):  # a Series
        return [data]
    array = data if isinstance(data, np.ndarray) else _list_array(data)
    if array.ndim == 1:
        return [array]
    table = array.reshape(len(array), math.prod(array.shape[1:]))
    return [table] if table.dtype.kind in "fiub" else list(table.T)


def _list_array(data: Sequence[Any]) -> npt.NDArray[Any]:
    """Turn a list into an array without letting one value change the others."""
    if len(data) and isinstance(data[0], list | tuple | np.ndarray):
        if all(
            isinstance(row, np.ndarray) and row.dtype.kind in "fiub" for row in data
        ):
            return np.asarray(data)
        table = np.empty((len(data), len(data[0])), dtype=object)
        for i, row in enumerate(data):
            table[i] = row
        return table
    column = np.empty(len(data), dtype=object)
    column[:] = data
    return column


_PER_UNIT = {"ms": 1_000_000, "us": 1000, "ns": 1}  # nanoseconds


def _as_array(column: Any) -> npt.NDArray[Any]:
    """Return a column's values as numbers, or as objects whatever it stores."""
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if kind in set("fiub") and isinstance(getattr(column, "values", None), np.ndarray):
        return np.asarray(column)
    names = ("tolist", "to_list", "to_pylist")  # pandas, polars, pyarrow
    unit = getattr(getattr(column, "dtype", None), "time_unit", None)
    if unit:  # times of polars, whose Python form has no nanoseconds
        column = column.to_physical()
    values = next(getattr(column, name) for name in names if hasattr(column, name))()
    if unit:
        values = [None if v is None else v * _PER_UNIT[unit] for v in values]
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _factorize(array: npt.NDArray[Any]) -> tuple[Ints, list[Any]]:
    """Number the distinct values of a column, each by its type and value."""
    values = _moments(array) if array.dtype.kind in "mM" else array.tolist()
    numbers: dict[Any, int] = {}
    codes = np.fromiter(
        (numbers.setdefault((type(v), v), len(numbers)) for v in values),
        dtype=np.int64,
        count=len(values),
    )
    return codes, [value for _, value in numbers]


def _moments(array: npt.NDArray[Any]) -> list[str | None]:
    """Return times as texts to the last digit there may be: the unit of an array is the
    finest that any of its values needs.
    """
    if array.dtype.kind == "m":
        raise ParameterError(
            "Durations of numpy have no canonical form. Pass numbers of seconds."
        )
    texts = np.datetime_as_string(array, unit="as").tolist()
    return [None if text == "NaT" else text for text in texts]
