"""A column in its public type: each cell a function of that cell and the type.

Where a container holds numbers or times as such, whole arrays are converted at once,
and give for each cell what `mapl.records.cells` gives.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints, Reals
from mapl.records import cells
from mapl.records.containers import cells_of, distinct_cells, floats_of


def convert(column: Any, kind: str, categories: tuple[str, ...] = ()) -> Array:
    """Return the column in its type: float64, texts (or None), codes or nanoseconds.

    A cell that does not fit is missing: NaN, None, -1 or ``NAT``.
    """
    if kind == "category":
        return _codes(column, categories)
    found: Array = KINDS[kind](column)
    return found


def _numbers(column: Any) -> Floats:
    gaps = floats_of(column)
    values = cells_of(column) if gaps is None else gaps
    if isinstance(values, list):
        found = np.fromiter(map(cells.number, values), np.float64, len(values))
    elif values.dtype.kind in "mM":
        return np.full(len(values), np.nan)
    else:
        found = values.astype(np.float64)  # a copy
    canonical_floats(found)
    return found


def canonical_floats(values: Reals) -> Reals:
    """Make floats canonical, in place: finite or one NaN, and one zero."""
    values[~np.isfinite(values)] = np.nan
    values += 0.0  # -0.0 becomes 0.0
    return values


_Read = Callable[[Any], str | None]


def _read_each(values: list[Any], read: _Read) -> list[str | None]:
    """Return what each value is read as; a text that comes again is read once."""
    known: dict[str, str | None] = {}
    found: list[str | None] = []
    for value in values:
        if type(value) is not str:
            found.append(read(value))
            continue
        if value not in known:
            known[value] = read(value)
        found.append(known[value])
    return found


def distinct_texts(column: Any, read: _Read = cells.text) -> tuple[Array, Ints]:
    """Return texts, some perhaps twice, and which of them each cell is.

    ``read`` makes a text of a cell.
    """
    found = distinct_cells(column)
    if found is not None:
        return _objects([read(value) for value in found[0]]), found[1]
    values = cells_of(column)
    if isinstance(values, list):
        return grouped(_read_each(values, read))
    distinct, places = np.unique(values, return_inverse=True)
    return _objects([read(value) for value in distinct]), places.reshape(-1)


def grouped(texts: Sequence[str | None]) -> tuple[Array, Ints]:
    """Return the different texts, None among them, and which of them each is.

    Arrow compares texts by all their bytes. What compares them otherwise (up to a NUL,
    or by a form of Unicode) would let one record change what another one is.
    """
    import pyarrow as pa

    found = pa.array(texts, pa.large_string(), from_pandas=False).dictionary_encode()
    distinct = found.dictionary.to_pylist()
    places = found.indices.cast(pa.int64()).fill_null(len(distinct))
    return _objects([*distinct, None]), np.asarray(places.to_numpy())


def _texts(column: Any) -> Array:
    coded = distinct_cells(column)
    if coded is not None:
        return _objects([cells.text(value) for value in coded[0]])[coded[1]]
    values = cells_of(column)
    if isinstance(values, list):
        return _objects(_read_each(values, cells.text))
    distinct, index = np.unique(values, return_inverse=True)
    return _objects([cells.text(value) for value in distinct])[index.reshape(-1)]


def _objects(values: list[Any]) -> Array:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _codes(column: Any, categories: tuple[str, ...]) -> Ints:
    index = {category: code for code, category in enumerate(categories)}
    texts, places = distinct_texts(column)
    codes = np.fromiter((index.get(text, -1) for text in texts), np.int64, len(texts))
    return np.asarray(codes[places])


def _times(column: Any) -> Ints:
    return _nanoseconds(column, "M", cells.time)


def _durations(column: Any) -> Ints:
    return _nanoseconds(column, "m", cells.duration)


def _nanoseconds(column: Any, kind: str, read: Callable[[Any], int]) -> Ints:
    values = cells_of(column)
    if isinstance(values, list):
        return np.fromiter(map(read, values), np.int64, len(values))
    if values.dtype.kind != kind:
        return np.full(len(values), cells.NAT)
    return np.asarray(cells.times_in_ns(values), dtype=np.int64)


KINDS: dict[str, Any] = {
    "number": _numbers,
    "text": _texts,
    "category": _codes,
    "time": _times,
    "duration": _durations,
}
