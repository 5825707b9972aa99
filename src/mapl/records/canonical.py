"""One canonical form for each cell, whatever container it comes in.

A cell's form depends on its own value. One empty cell may turn a column of integers
into floats or objects, a new category may renumber the others, a longer string may
widen an array: no other cell's form changes.

Proof: docs/proofs/partition.md
"""

import math
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256
from numbers import Integral, Real
from typing import Any

import numpy as np

from mapl.arrays import Array, Ints, Words
from mapl.errors import ParameterError

LANE = 16  # bytes that stand for one cell
_MISSING = (2, 0)
_PER_UNIT = {"ms": 1_000_000, "us": 1000, "ns": 1}  # nanoseconds
Encoder = Callable[[int, int], Words]


def lane_encoder(column: Any) -> Encoder:
    """Return a function from a range of rows to their lanes: (rows, cells, 2) words."""
    array = column if isinstance(column, np.ndarray) else _as_array(column)
    if array.dtype.kind in "fiub":
        return lambda start, stop: number_lanes(array[start:stop])
    codes, distinct = _factorize(array)
    lanes = np.array([_value_lane(value) for value in distinct], dtype="<u8")
    lanes = lanes.reshape(len(distinct), 1, 2)
    return lambda start, stop: lanes[codes[start:stop]]


def number_lanes(values: Array) -> Words:
    """A zero word, then the float64; missing has a lane of its own."""
    cells = values.reshape(len(values), math.prod(values.shape[1:]))
    floats = cells.astype(np.float64, order="C")
    floats += 0.0  # -0.0 becomes 0.0
    lanes = np.zeros((*cells.shape, 2), dtype="<u8")
    lanes[..., 1] = floats.view("<u8")
    if values.dtype.itemsize >= 8 and values.dtype != np.float64:
        _replace_inexact_lanes(cells, floats, lanes)
    lanes[np.isnan(floats)] = _MISSING
    return lanes


def _replace_inexact_lanes(values: Array, floats: Any, lanes: Words) -> None:
    """Use all digits of numbers that float64 may not hold."""
    if values.dtype.kind == "f":  # of more than 64 bits
        doubtful = values != floats
    else:
        doubtful = np.abs(floats) >= 2.0**53
    for cell in zip(*np.nonzero(doubtful), strict=True):
        lanes[cell] = _value_lane(values[cell])


def _value_lane(value: Any) -> tuple[int, int]:
    """Return the lane of one value: by its value, not by its storage."""
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
        "Pass numbers, strings, dates or missing values."
    )


def _number_lane(value: Any) -> tuple[int, int]:
    """Use the float64 if it is exact, else all digits: different numbers never share
    a lane.
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
    pandas = sys.modules.get("pandas")
    return object() if pandas is None else pandas.NA


def columns_of(data: Any) -> list[Any]:
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


def _list_array(data: Sequence[Any]) -> Array:
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


def _as_array(column: Any) -> Array:
    """Return a column's values as numbers, or as objects."""
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


def _factorize(array: Array) -> tuple[Ints, list[Any]]:
    """Number the distinct values of a column, each by its type and value."""
    values = _times_as_text(array) if array.dtype.kind in "mM" else array.tolist()
    numbers: dict[Any, int] = {}
    codes = np.fromiter(
        (numbers.setdefault((type(v), v), len(numbers)) for v in values),
        dtype=np.int64,
        count=len(values),
    )
    return codes, [value for _, value in numbers]


def _times_as_text(array: Array) -> list[str | None]:
    """Return times as texts with all digits: an array's unit is the finest that any of
    its values needs.
    """
    if array.dtype.kind == "m":
        raise ParameterError(
            "numpy durations have no canonical form. Pass numbers of seconds."
        )
    texts = np.datetime_as_string(array, unit="as").tolist()
    return [None if text == "NaT" else text for text in texts]


# Records as scikit-learn wants them -------------------------------------------------


def validate_records(owner: Any, X: Any, *, reset: bool, allow_nan: bool) -> Any:
    """Check numbers as scikit-learn does; let frames and texts through.

    No message shows a value.
    """
    from sklearn.utils.validation import validate_data

    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
        X = X.to_pandas()  # a pyarrow Table, which few learners take
    if hasattr(X, "iloc") or hasattr(X, "get_columns") or _is_text(X):
        return validate_data(owner, X, reset=reset, skip_check_array=True)
    if isinstance(X, list | tuple):
        X = _list_to_floats(X)
    try:
        return validate_data(
            owner,
            X,
            reset=reset,
            accept_sparse=["csr"],
            ensure_all_finite="allow-nan" if allow_nan else True,
            dtype="numeric",
        )
    except ValueError as error:
        raise _without_values(error) from None


def _without_values(error: ValueError) -> ValueError:
    """Return scikit-learn's error, without the records that it may show."""
    message = str(error)
    if "could not convert" in message:
        return ParameterError(
            "X must hold numbers only, got a text. Pass a DataFrame and an estimator "
            "that is a pipeline which encodes its columns."
        )
    if "array=" in message or "Complex data" in message:
        first = message.partition("array=")[0].partition("\n")[0].rstrip(": ")
        return ParameterError(
            f"{first}. Reshape your data: one row a record, real numbers."
        )
    return error


def _is_text(X: Any) -> bool:
    first = X[0] if isinstance(X, list) and X else None
    array_of_text = isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "OUT"
    return isinstance(first, str) or array_of_text


def _list_to_floats(rows: Any) -> Any:
    """Convert cell by cell; what is not a number is left to the checks."""
    try:
        return np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        return rows
