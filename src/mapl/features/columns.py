"""Columns of a canonical table as integers, by rules that the public points set.

A record's integers are a function of its own cells: all that is done to a private value
is comparison, subtraction, multiplication, division, square root and rounding, one
record at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints, Singles
from mapl.records.cells import DAY, NAT
from mapl.records.table import Table

UNIT = 32  # integer steps of one standard deviation, and of a code
_FARTHEST = 4  # standard deviations: beyond, numbers are clipped
LARGEST_VALUE = _FARTHEST * UNIT
_HEAVY = 0.1  # share of the points from which on a value is a bin of its own
_ENDS = 0.01, 0.99  # quantiles between which a scaled value follows a number
BINS, _MOST_BINS, _FEWEST_BINS = 24, 600, 4  # of a column; of all; of a column
_RAREST, _MOST_CODES = 5, 500  # points of a text that has a code; codes in all
WIDE = 100  # number columns from which on they are projected
_WORDS, _DISTINCT = 4, 0.5  # of free text: mean number, and share of texts that differ


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: its place and scale, and the edges of its bins.

    The scaled value follows a number between two quantiles, ``low`` and ``high``:
    outliers would set the scale.
    """

    low: float
    high: float
    mean: float
    scale: float
    edges: Floats  # empty where two values are all there are

    @classmethod
    def of(cls, values: Floats, n_bins: int = BINS) -> NumberColumn:
        """Take them from the public points."""
        given = values[np.isfinite(values)]
        if not given.size:
            return cls(0.0, 0.0, 0.0, 1.0, np.empty(0))
        gaps = len(given) < len(values)
        low, high = (float(q) for q in np.quantile(given, _ENDS, method="lower"))
        distinct = np.unique(given)
        if low == high or len(distinct) == 2:
            low, high = float(distinct[0]), float(distinct[-1])
        inner = np.clip(given, low, high)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, spread = float(inner.mean()), float(inner.std())
        if not np.isfinite(mean + spread):
            mean, spread = 0.0, float(np.abs(inner).max())
        scale = spread if spread > 0 else 1.0
        if len(distinct) == 2 and np.isfinite(high - low):
            # A code: in units of its spread, a rare one would dominate.
            scale = high - low
        return cls(low, high, mean, scale, _bin_edges(given, n_bins, gaps=gaps))

    def linear(self, values: Floats) -> Floats:
        """Return the scaled value as an integer; the mean for a missing one."""
        with np.errstate(over="ignore"):
            scaled = (np.clip(values, self.low, self.high) - self.mean) / self.scale
        scaled = np.clip(scaled, -_FARTHEST, _FARTHEST)
        return np.where(np.isnan(scaled), 0.0, np.rint(scaled * UNIT))

    def bins(self, values: Floats) -> Ints:
        """Return the number of the value's bin; missing ones have the last."""
        found = np.searchsorted(self.edges, values, side="right")
        return np.where(np.isnan(values), len(self.edges) + 1, found)

    @property
    def n_bins(self) -> int:
        """How many bins there are; none where the linear value says it all."""
        return len(self.edges) + 2 if len(self.edges) else 0


def _bin_edges(values: Floats, n_bins: int, *, gaps: bool) -> Floats:
    """Cut at quantiles; values with a tenth of the points or more stand apart. With no
    bins, there are no edges.

    Plain quantiles leave a column that is mostly 0 with hardly any bins. ``gaps`` says
    whether a value may be missing, which has a bin of its own.
    """
    value, count = np.unique(values, return_counts=True)
    if not n_bins:
        return np.empty(0)
    if len(value) <= 2:
        return value[-1:] if gaps else np.empty(0)
    heavy = value[count >= _HEAVY * len(values)]
    rest = values[~np.isin(values, heavy)]
    places = np.linspace(0, 1, n_bins + 1)
    cuts = np.quantile(rest, places, method="lower") if rest.size else np.empty(0)
    return np.unique(np.concatenate((heavy, np.nextafter(heavy, np.inf), cuts)))


@dataclass(frozen=True)
class CodeColumn:
    """A column of texts or categories: those frequent among the public points."""

    values: tuple[str, ...]

    @classmethod
    def of(cls, values: Array, rarest: int = _RAREST) -> CodeColumn:
        """Take the frequent texts; all others share one code, missing ones another."""
        given = [value for value in values.tolist() if value is not None]
        distinct, count = np.unique(np.array(given, dtype=object), return_counts=True)
        return cls(tuple(distinct[count >= rarest].tolist()))

    @cached_property
    def _places(self) -> dict[Any, int]:
        places: dict[Any, int] = {v: code for code, v in enumerate(self.values)}
        return places | {None: len(self.values)}

    def codes(self, values: Array) -> Ints:
        """Return each text's code."""
        places, other = self._places, len(self.values) + 1
        found = (places.get(value, other) for value in values.tolist())
        return np.fromiter(found, np.int64, len(values))

    @property
    def n_codes(self) -> int:
        """How many codes there are, with those of missing and of other texts."""
        return len(self.values) + 2


def one_hot(codes: Array, sizes: list[int]) -> Singles:
    """Return columns of codes as integer vectors, with one entry for each column."""
    starts = np.cumsum([0, *sizes])
    out = np.zeros((len(codes), int(starts[-1])), dtype=np.float32)
    if sizes:
        out[np.arange(len(codes))[:, None], codes + starts[:-1]] = UNIT
    return out


class Columns:
    """The columns of a table by what becomes of them: scaled numbers and bins, codes,
    free texts.
    """

    def __init__(
        self,
        numbers: list[NumberColumn],
        codes: list[CodeColumn],
        free: list[bool],
    ) -> None:
        self.numbers, self.codes = numbers, codes
        self.free = free  # for each column that holds no numbers

    @classmethod
    def of(cls, table: Table, *, numbers: bool = True, n_bins: int = BINS) -> Columns:
        """Take the rules from public points; without ``numbers``, of texts alone."""
        values, texts = split(table, numbers=numbers)
        most = max(_FEWEST_BINS, _MOST_BINS // max(1, values.shape[1]))
        if values.shape[1] > WIDE:
            most = 0
        free = [is_free_text(column) for column in texts]
        coded = [c for c, is_free in zip(texts, free, strict=True) if not is_free]
        found = [NumberColumn.of(column, min(n_bins, most)) for column in values.T]
        return cls(found, _code_columns(coded), free)

    def scaled(self, numbers: Floats) -> Floats:
        """Return scaled numbers, which are integers."""
        pairs = zip(self.numbers, numbers.T, strict=True)
        return _stacked([c.linear(v) for c, v in pairs], len(numbers))

    def bins(self, numbers: Floats) -> Ints:
        """Return each number's bin, one column for each number that has bins."""
        pairs = zip(self.numbers, numbers.T, strict=True)
        found = [column.bins(values) for column, values in pairs if column.n_bins]
        return np.asarray(_stacked(found, len(numbers)), dtype=np.int64)

    def coded(self, texts: list[Array], n: int) -> Ints:
        """Return the code of each text that is none of sentences."""
        kept = [c for c, free in zip(texts, self.free, strict=True) if not free]
        found = [column.codes(c) for column, c in zip(self.codes, kept, strict=True)]
        return np.asarray(_stacked(found, n), dtype=np.int64)

    @property
    def bin_sizes(self) -> list[int]:
        """How many bins each column of `bins` has."""
        return [column.n_bins for column in self.numbers if column.n_bins]

    @property
    def code_sizes(self) -> list[int]:
        """How many codes each column of `coded` has."""
        return [column.n_codes for column in self.codes]

    def free_texts(self, texts: list[Array]) -> list[Array]:
        """Return the columns of sentences."""
        return [column for column, free in zip(texts, self.free, strict=True) if free]


def _stacked(columns: list[Any], n: int) -> Floats:
    """Return columns side by side, also where there are none."""
    return np.stack(columns, axis=1) if columns else np.empty((n, 0))


def _code_columns(columns: list[Array]) -> list[CodeColumn]:
    """Drop rare texts until all codes together are few enough."""
    rarest = _RAREST
    while True:
        found = [CodeColumn.of(column, rarest) for column in columns]
        if sum(len(column.values) for column in found) <= _MOST_CODES:
            return found
        rarest *= 2


def is_free_text(column: Array) -> bool:
    """Whether public texts are sentences rather than codes."""
    given = [text for text in column.tolist() if text is not None]
    if not given:
        return False
    words = np.mean([text.count(" ") + 1 for text in given])
    return bool(words >= _WORDS and len(set(given)) >= _DISTINCT * len(given))


def split(table: Table, *, numbers: bool = True) -> tuple[Any, list[Array]]:
    """Return the number columns as a matrix, and the others as texts.

    The matrix is sparse where the table is; without ``numbers`` it has no columns.
    """
    container, nothing = table.schema.container, np.empty((len(table), 0))
    if container in ("array", "sparse"):
        matrix: Any = table.columns[0].astype(np.float64) if numbers else nothing
        if container == "sparse" and numbers and matrix.shape[1] <= WIDE:
            matrix = np.asarray(matrix.toarray())
        return matrix, []
    found, texts = [], []
    for column, kind in zip(table.columns, table.schema.columns.values(), strict=True):
        if kind.kind == "text":
            texts.append(column)
        elif kind.kind == "category":
            texts.append(np.array([*kind.categories, None], dtype=object)[column])
        elif numbers:
            found.append(as_number(column, kind.kind))
    return np.stack(found, axis=1) if found else nothing, texts


def as_number(column: Array, kind: str) -> Floats:
    """Return times and durations as days."""
    if kind == "number":
        return column
    return np.where(column == NAT, np.nan, column / DAY)
