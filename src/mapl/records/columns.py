"""A column in its public type: each cell a function of that cell and the type.

Where a container holds numbers or times as such, whole arrays are converted at once,
and give for each cell what `mapl.records.cells` gives.
"""

from collections.abc import Callable
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


class _Texts(dict[str, str | None]):
    """The canonical text of each text met so far."""

    def __missing__(self, value: str) -> str | None:
        found = self[value] = cells.text(value)
        return found


def distinct_texts(column: Any) -> tuple[Array, Array]:
    """Return texts, some perhaps twice, and which of them each cell is."""
    found = distinct_cells(column)
    if found is not None:
        return _objects([cells.text(value) for value in found[0]]), found[1]
    from pandas import factorize

    values = cells_of(column)
    if isinstance(values, list):
        values = _texts(values)
    places, distinct = factorize(values)
    # A missing value has the place -1: the last one.
    return _objects([*(cells.text(value) for value in distinct), None]), places


def _texts(column: Any) -> Array:
    coded = distinct_cells(column)
    if coded is not None:
        return _objects([cells.text(value) for value in coded[0]])[coded[1]]
    values = cells_of(column)
    if isinstance(values, list):
        known = _Texts()
        found = [known[v] if type(v) is str else cells.text(v) for v in values]
        return _objects(found)
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
