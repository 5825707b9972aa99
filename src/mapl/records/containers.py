"""Any container as columns, and any column as cells.

A container may change how it stores a column because of one of its records: integers
become floats or objects beside a missing cell. The cells that come out here are the
same values whatever the storage, so that the next step can look at each by itself.
"""

import math
from datetime import UTC
from typing import Any

import numpy as np

from mapl.arrays import Array
from mapl.records.cells import NAT, is_known_zone

_NUMPY_NUMBERS = "fiub"
_POLARS_NUMBERS = {"Int8", "Int16", "Int32", "Int64", "Float32", "Float64", "Boolean"}
_POLARS_NUMBERS |= {"UInt8", "UInt16", "UInt32", "UInt64"}


def container_kind(X: Any) -> str:
    """Return what kind of container public records come in.

    "sparse", "polars", "pandas", "series", "texts" (one text a record) or "array".
    """
    if hasattr(X, "tocsr"):
        return "sparse"
    if hasattr(X, "get_columns"):
        return "polars"
    if hasattr(X, "column_names"):  # a pyarrow Table, which few learners take
        return "pandas"
    if hasattr(X, "iloc"):
        return "pandas" if X.ndim == 2 else "series"
    if np.ndim(X[:1]) == 1 and not isinstance(X, np.ndarray):
        return "texts"
    flat = isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "OUT"
    return "texts" if flat else "array"


def unwrapped(data: Any) -> Any:
    """Return an object that only knows how to become an array as that array."""
    plain = hasattr(data, "__len__") or hasattr(data, "shape") or data is None
    return data if plain else np.asarray(data)


def columns_of(X: Any) -> tuple[list[Any], list[Any]]:
    """Return the names and the columns of a table; no names are numbers from 0."""
    if hasattr(X, "tocsr"):
        return [], []
    if hasattr(X, "get_columns"):  # polars
        return list(X.columns), list(X.get_columns())
    if hasattr(X, "column_names"):  # pyarrow
        return list(X.column_names), list(X.itercolumns())
    if hasattr(X, "iloc") and X.ndim == 2:  # pandas
        return list(X.columns), [X.iloc[:, i] for i in range(X.shape[1])]
    if isinstance(X, np.ndarray) and X.ndim > 1:
        table = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
        table = table.reshape(len(table), math.prod(table.shape[1:]))
        return list(range(table.shape[1])), list(table.T)
    return [0], [X]


def has_names(X: Any) -> bool:
    """Whether a container names its columns."""
    named = ("get_columns", "column_names")
    return any(hasattr(X, name) for name in named) or (
        hasattr(X, "iloc") and X.ndim == 2
    )


def cells_of(column: Any) -> Array | list[Any]:
    """Return the values of a column: an array of numbers or times, or a list."""
    if isinstance(column, np.ndarray):
        return _of_numpy(column)
    if hasattr(column, "iloc") or hasattr(column, "is_monotonic_increasing"):
        return _of_pandas(column)
    if hasattr(column, "to_physical"):
        return _of_polars(column)
    if hasattr(column, "to_pylist"):
        return _of_arrow(column)
    if hasattr(column, "__array__") and not isinstance(column, list | tuple):
        return _of_numpy(np.asarray(column))
    return list(column)


def distinct_cells(column: Any) -> tuple[list[Any], Array] | None:
    """Return the values of an Arrow column of texts, few of them twice, and which of
    them each cell is; None for other columns.
    """
    if not hasattr(column, "to_pylist"):
        return None
    import pyarrow as pa

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    kind = column.type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (pa.types.is_string, pa.types.is_large_string)
    if not any(is_text(value) for is_text in texts):
        return None
    distinct: list[Any] = [None]
    places = [np.zeros(0, dtype=np.int64)]
    for chunk in column.chunks:  # each by itself: together they may have no type
        coded = chunk if value is not kind else chunk.dictionary_encode()
        numbers = coded.indices.cast(pa.int64()).fill_null(-len(distinct)).to_numpy()
        places.append(numbers + len(distinct))  # a missing cell is the first value
        distinct += _listed(pa.chunked_array([coded.dictionary]))
    return distinct, np.concatenate(places)


def is_nested(column: Any) -> bool:
    """Whether a typed column holds lists or structures."""
    if hasattr(column, "to_physical"):  # polars
        return bool(column.dtype.is_nested())
    kind = getattr(getattr(column, "dtype", None), "pyarrow_dtype", None)
    kind = getattr(column, "type", None) if hasattr(column, "to_pylist") else kind
    if kind is None:
        return False
    import pyarrow as pa

    return bool(pa.types.is_nested(kind))


def floats_of(column: Any) -> Array | None:
    """Return an Arrow column of integers or truth values with gaps as floats, None for
    other columns. Each is rounded by itself.
    """
    if not hasattr(column, "to_pylist") or not column.null_count:
        return None
    import pyarrow as pa

    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not pa.types.is_integer(kind):
        return None
    found = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.array(found)


def _of_numpy(column: Array) -> Array | list[Any]:
    if isinstance(column, np.ma.MaskedArray):
        values = list(np.asarray(column.data).reshape(-1))  # not tolist: times of numpy
        masks = np.ma.getmaskarray(column).reshape(-1).tolist()
        return [None if m else v for v, m in zip(values, masks, strict=True)]
    flat = column.reshape(-1)
    if flat.dtype.kind in _NUMPY_NUMBERS + "mM":
        return np.asarray(flat)
    return list(flat.tolist())


def _of_pandas(column: Any) -> Array | list[Any]:
    dtype, kind = column.dtype, getattr(column.dtype, "kind", "O")
    arrow = (
        hasattr(dtype, "pyarrow_dtype") or getattr(dtype, "storage", "") == "pyarrow"
    )
    if arrow:
        return _of_arrow(column.array.__arrow_array__())
    if hasattr(dtype, "categories"):  # by value: the codes are the caller's
        distinct = [*cells_of(column.array.categories), None]
        return [distinct[code] for code in column.array.codes.tolist()]
    if kind == "M" and not is_known_zone(getattr(dtype, "tz", None) or UTC):
        return np.full(len(column), NAT).view("M8[ns]")
    if kind == "M" and getattr(dtype, "tz", None) is not None:
        moments = column.array.tz_convert("UTC").tz_localize(None)
        return np.asarray(moments.to_numpy())
    if isinstance(dtype, np.dtype) and kind in _NUMPY_NUMBERS + "mM":
        return np.asarray(column.to_numpy())
    if hasattr(dtype, "numpy_dtype") and not column.isna().any():
        return np.asarray(column.to_numpy(dtype.numpy_dtype))
    return list(column.tolist())


def _of_polars(column: Any) -> Array | list[Any]:
    name, missing = str(column.dtype.base_type()), column.null_count()
    if name in _POLARS_NUMBERS and (not missing or name.startswith("Float")):
        return np.asarray(column.to_numpy())
    if name in ("Date", "Datetime", "Duration"):
        unit = getattr(column.dtype, "time_unit", "D")
        counts = column.to_physical().cast(int).fill_null(NAT).to_numpy()
        return np.asarray(counts).view(f"{'m' if name == 'Duration' else 'M'}8[{unit}]")
    if column.dtype.is_nested():  # which has no canonical form
        return [None] * len(column)
    if name in ("Categorical", "Enum"):
        column = column.cast(str)
    return list(column.to_list())


def _of_arrow(column: Any) -> Array | list[Any]:
    import pyarrow as pa

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    kind = column.type
    if pa.types.is_dictionary(kind):
        decoded = [chunk.dictionary_decode() for chunk in column.chunks]
        column, kind = pa.chunked_array(decoded, kind.value_type), kind.value_type
    number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if (number and not column.null_count) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy())
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        letter = "M" if pa.types.is_timestamp(kind) else "m"
        counts = column.cast(pa.int64()).fill_null(NAT).to_numpy()
        return np.asarray(counts).view(f"{letter}8[{kind.unit}]")
    if pa.types.is_nested(kind):  # which has no canonical form
        return [None] * len(column)
    if pa.types.is_temporal(kind):  # cells out of range are refused one by one
        return [_as_python(cell) for cell in column]
    return _listed(column)


def _as_python(cell: Any) -> Any:
    try:
        return cell.as_py()
    except Exception:  # whatever it was, it has no canonical form
        return None


def _listed(column: Any) -> list[Any]:
    """Return the values; a text that is not valid UTF-8 costs no other text."""
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [b if b is None else b.decode("utf-8", "surrogateescape") for b in raw]
