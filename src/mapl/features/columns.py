"""Columns of a canonical table as integers, by rules that the public points set.

A record's integers are a function of its own cells: all that is done to a private value
is comparison, subtraction, division and rounding, one value at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints
from mapl.records.cells import NAT
from mapl.records.table import Table

UNIT = 64  # integer steps of one standard deviation, and of a code
_FARTHEST = 4  # standard deviations: beyond, numbers are clipped
_HEAVY = 0.1  # share of the points from which on a value is a bin of its own
_BINS = 24
_RAREST, _MOST_CODES = 5, 200  # points of a text that has a code, and codes
_WIDE = 100  # number columns from which on they are projected


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: its place and scale, and the edges of its bins."""

    mean: float
    scale: float
    edges: Floats  # empty where two values are all there are

    @classmethod
    def of(cls, values: Floats) -> NumberColumn:
        """Take them from the public points."""
        given = values[~np.isnan(values)]
        if not given.size:
            return cls(0.0, 1.0, np.empty(0))
        spread = float(given.std())
        scale = spread if np.isfinite(spread) and spread > 0 else 1.0
        return cls(float(given.mean()), scale, _bin_edges(given))

    def linear(self, values: Floats) -> Floats:
        """Return the scaled value as an integer; the mean for a missing one."""
        scaled = np.clip((values - self.mean) / self.scale, -_FARTHEST, _FARTHEST)
        return np.where(np.isnan(scaled), 0.0, np.rint(scaled * UNIT))

    def bins(self, values: Floats) -> Ints:
        """Return the number of the value's bin; missing ones have the last."""
        found = np.searchsorted(self.edges, values, side="right")
        return np.where(np.isnan(values), len(self.edges) + 1, found)

    @property
    def n_bins(self) -> int:
        """How many bins there are; none where the linear value says it all."""
        return len(self.edges) + 2 if len(self.edges) else 0


def _bin_edges(values: Floats) -> Floats:
    """Cut at quantiles; values with a tenth of the points or more stand apart.

    Plain quantiles leave a column that is mostly 0 with hardly any bins.
    """
    value, count = np.unique(values, return_counts=True)
    if len(value) <= 2:
        return np.empty(0)
    heavy = value[count >= _HEAVY * len(values)]
    rest = values[~np.isin(values, heavy)]
    places = np.linspace(0, 1, _BINS + 1)
    cuts = np.quantile(rest, places) if rest.size else np.empty(0)
    return np.unique(np.concatenate((heavy, np.nextafter(heavy, np.inf), cuts)))


@dataclass(frozen=True)
class CodeColumn:
    """A column of texts: those that are frequent among the public points."""

    values: tuple[Any, ...]

    @classmethod
    def of(cls, values: Array) -> CodeColumn:
        """Take the frequent texts; all others share one code, missing ones another."""
        given = [value for value in values.tolist() if value is not None]
        distinct, count = np.unique(np.array(given, dtype=str), return_counts=True)
        order = np.argsort(-count, kind="stable")[:_MOST_CODES]
        return cls(
            tuple(str(distinct[i]) for i in sorted(order) if count[i] >= _RAREST)
        )

    def codes(self, values: Array) -> Ints:
        """Return each text's code."""
        places = {value: code for code, value in enumerate(self.values)}
        places[None] = len(self.values)
        other = len(self.values) + 1
        listed = values.tolist()
        return np.fromiter(
            (places.get(v, other) for v in listed), np.int64, len(listed)
        )

    @property
    def n_codes(self) -> int:
        """How many codes there are, with those of missing and of other texts."""
        return len(self.values) + 2


def one_hot(codes: Ints, n: int) -> Floats:
    """Return codes as integer vectors with one entry."""
    return np.where(codes[:, None] == np.arange(n), float(UNIT), 0.0)


class Columns:
    """All columns of a table, as two integer blocks: linear values, and bins."""

    def __init__(self, table: Table) -> None:
        numbers, texts = _split(table)
        self.wide = numbers.shape[1] > _WIDE
        self.numbers = [NumberColumn.of(column) for column in numbers.T]
        self.texts = [CodeColumn.of(column) for column in texts]

    def linear(self, table: Table) -> Floats:
        """Return scaled numbers and codes of texts."""
        numbers, texts = _split(table)
        parts = [
            column.linear(values)[:, None]
            for column, values in zip(self.numbers, numbers.T, strict=True)
        ]
        parts += [
            one_hot(column.codes(values), column.n_codes)
            for column, values in zip(self.texts, texts, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def bins(self, table: Table) -> Floats:
        """Return each number's bin; no columns where there are none."""
        numbers, _ = _split(table)
        parts = [
            one_hot(column.bins(values), column.n_bins)
            for column, values in zip(self.numbers, numbers.T, strict=True)
            if column.n_bins
        ]
        if self.wide or not parts:
            return np.empty((len(table), 0))
        return np.concatenate(parts, axis=1)


def _split(table: Table) -> tuple[Floats, list[Array]]:
    """Return the number columns as a matrix, and the others as texts or codes."""
    if table.schema.container == "array":
        return np.asarray(table.columns[0], dtype=np.float64), []
    kinds = [column.kind for column in table.schema.columns.values()]
    numbers = [
        _as_number(column, kind)
        for column, kind in zip(table.columns, kinds, strict=True)
        if kind not in ("text", "category")
    ]
    texts = [
        column if kind == "text" else _category_texts(column)
        for column, kind in zip(table.columns, kinds, strict=True)
        if kind in ("text", "category")
    ]
    matrix = np.stack(numbers, axis=1) if numbers else np.empty((len(table), 0))
    return matrix, texts


def _as_number(column: Array, kind: str) -> Floats:
    """Return times and durations as days."""
    if kind == "number":
        return column
    return np.where(column == NAT, np.nan, column / 86_400e9)


def _category_texts(codes: Array) -> Array:
    """Return a category's code as a text; a missing one has none."""
    names = np.array(
        [*map(str, range(int(codes.max(initial=-1)) + 1)), None], dtype=object
    )
    return names[codes]
