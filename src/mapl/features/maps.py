"""From canonical tables to a record's integers, in the metric of the pool.

A column is a scaled value and bins, or codes; texts and very many numbers are
projected; families of Fourier features say what columns say together. Each of these is
a piece. All of a record's integers are, to the last bit, a function of that record.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints, Singles
from mapl.features.columns import (
    BINS,
    LARGEST_VALUE,
    UNIT,
    WIDE,
    Columns,
    is_free_text,
    one_hot,
    split,
)
from mapl.features.components import (
    CONSTANT,
    GRID,
    LARGEST,
    LONGEST,
    Codes,
    ComponentMap,
    Components,
)
from mapl.features.projections import (
    LARGEST_COMPONENT,
    TEXT_COMPONENTS,
    ManyNumbers,
    Projection,
    Words,
)
from mapl.features.ranks import (
    COSINE,
    FAMILIES,
    OF_PROJECTIONS,
    RankScore,
    Waves,
)
from mapl.features.ranks import UNIT as SCORE
from mapl.records.table import Table

_FEWEST_EACH = 10  # points for a column; where there are fewer, learned maps take half
_MOST_PIECES = 60  # a Gram matrix of more would be mostly noise
_MISSING = 2 * SCORE  # what a missing number is, beside a score of 0


@dataclass(frozen=True)
class Encoded:
    """The integers of some records, in a form that takes little memory.

    Projections and scaled numbers as they are, codes and bins by number, cosines.
    """

    projected: list[Array]
    numbers: Array
    codes: Array
    bins: Array
    waves: list[Array]


@dataclass(frozen=True)
class Scaled:
    """The component of a number: it is centred, and multiplied by a factor."""

    centre: float
    factor: float

    @classmethod
    def of(cls, values: Array, share: float) -> Scaled:
        """Take both from the pool; the mean square is ``share``."""
        spread = float(values.std(dtype=np.float64))
        factor = GRID * math.sqrt(share) / spread if spread > 0 else 0.0
        centre = float(np.rint(values.mean(dtype=np.float64)))
        farthest = float(np.abs(values - centre).max(initial=UNIT))
        return cls(centre, min(factor, LONGEST / farthest))

    n = 1

    def __call__(self, values: Array) -> Array:
        """Return the component of some records."""
        found = np.rint((values.astype(np.float64) - self.centre) * self.factor)
        return np.clip(found, -LARGEST, LARGEST).astype(np.int16)[:, None]

    def kept(self, least: float) -> Any:
        """Return which components `leading` keeps: a number is always used."""
        del least
        return np.ones(1, dtype=np.bool_)

    def leading(self, least: float) -> Scaled:
        """Return it."""
        del least
        return self

    def pull(self, weights: Floats) -> Floats:
        """Return the weight of the number for that of the component."""
        return self.factor * weights

    @property
    def offset(self) -> Floats:
        """What the component of 0 lacks."""
        return np.array([self.centre * self.factor])


Block = Scaled | Codes | Components


class FeatureMap:
    """From canonical tables to components, and to the integers of a published model.

    Fitted to a pool, and to nothing else.
    """

    def __init__(
        self,
        columns: Columns,
        projection: ManyNumbers | None,
        texts: list[tuple[Words, Projection]],
        ranks: list[RankScore],
        waves: list[Waves],
    ) -> None:
        self.columns, self.projection, self.texts = columns, projection, texts
        self.ranks, self.waves = ranks, waves
        self.blocks: list[Block] = []
        self._block_pieces: list[int] = []

    @classmethod
    def of(
        cls,
        pool: Table,
        *,
        seed: int = 0,
        n_bins: int = BINS,
        made_up: bool = False,
    ) -> tuple[FeatureMap, Ints]:
        """Fit a map to a pool; return it, and the points that took no part in learned
        maps: metric and curvature come from these.
        """
        learned, rows = _halves(pool)
        half = pool if len(rows) == len(pool) else pool.take(learned)
        numbers, texts = split(half)
        # Main directions of made-up records may be those of noise.
        wide = is_wide(pool) and not made_up and ManyNumbers.say_most(numbers)
        columns = Columns.of(half, numbers=not wide, n_bins=n_bins)
        projection = ManyNumbers.of(numbers) if wide else None
        projections = []
        for column in columns.free_texts(texts):
            words = Words.of(column)
            projected = Projection.of(words(column), TEXT_COMPONENTS)
            projections.append((words, projected))
        ranks = [] if wide else [RankScore.of(column) for column in numbers.T]
        found = cls(columns, projection, projections, ranks, [])
        points = pool if len(rows) == len(pool) else pool.take(rows)
        found._draw_waves(points, np.random.default_rng(seed))
        found._take_metric(found.encode(points))
        return found, rows

    def _draw_waves(self, pool: Table, rng: np.random.Generator) -> None:
        encoded = self.encode(pool)
        integers = self._coordinates(split(pool)[0], encoded)
        groups, start = [], 0
        if self.projection is not None:
            groups.append(np.arange(self.projection.n_components))
            start = self.projection.n_components
        for _ in self.ranks:
            groups.append(np.arange(start, start + 2))
            start += 2
        for size in self.columns.code_sizes:
            groups.append(np.arange(start, start + size))
            start += size
        families = FAMILIES if self.projection is None else OF_PROJECTIONS
        if groups:
            self.waves = [
                Waves.of(integers, groups, self.farthest, family, rng)
                for family in families
            ]

    def _coordinates(self, numbers: Any, encoded: Encoded) -> Array:
        """Return the integers that cosines are of: projected numbers, or scores of
        ranks and whether they are missing; and codes.
        """
        parts = encoded.projected[:1] if self.projection is not None else []
        for rank, values in zip(
            self.ranks, numbers.T if self.ranks else (), strict=True
        ):
            parts.append(rank(values)[:, None])
            parts.append(np.where(np.isnan(values), _MISSING, 0)[:, None])
        parts.append(one_hot(encoded.codes, self.columns.code_sizes) * (SCORE / UNIT))
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def _take_metric(self, pool: Encoded) -> None:
        """Cut a record into blocks, and each into components; a column's blocks are one
        piece.
        """
        blocks: list[tuple[Block, int]] = []
        for part in pool.projected:
            blocks.append((Components.of(part, self.farthest), len(blocks)))
        piece, sizes = len(blocks), iter(self.columns.bin_sizes)
        n_columns = len(self.columns.numbers) + len(self.columns.codes)
        bins, n_binned = iter(pool.bins.T), max(1, pool.bins.shape[1])
        for column, values in zip(self.columns.numbers, pool.numbers.T, strict=True):
            blocks.append((Scaled.of(values, 1 / n_columns), piece))
            if column.n_bins:
                codes = Codes.of(next(bins), next(sizes), UNIT, 1 / n_binned)
                blocks.append((codes, piece))
            piece += 1
        for values, size in zip(pool.codes.T, self.columns.code_sizes, strict=True):
            blocks.append((Codes.of(values, size, UNIT, 1 / n_columns), piece))
            piece += 1
        for part, wave in zip(pool.waves, self.waves, strict=True):
            longest = COSINE * math.sqrt(wave.n)
            blocks.append((Components.of(part, longest), piece))
            piece += 1
        self.blocks = [block for block, _ in blocks]
        # Neighbouring columns share a piece where there are very many.
        share = max(1, math.ceil(piece / _MOST_PIECES))
        self._block_pieces = [number // share for _, number in blocks]

    def leading(self, least: float) -> FeatureMap:
        """Return the map with the components alone whose mean square is ``least``."""
        found = copy.copy(self)
        found.blocks = [block.leading(least) for block in self.blocks]
        return found

    def kept(self, least: float) -> Any:
        """Return which components `leading` keeps."""
        return np.concatenate([block.kept(least) for block in self.blocks])

    # A record's integers ---------------------------------------------------------

    def encode(self, table: Table) -> Encoded:
        """Return the integers of some records."""
        with np.errstate(all="ignore"):  # no warning tells of a private cell
            numbers, texts = split(table)
            projected = []
            if self.projection is not None:
                projected.append(self.projection(numbers))
            columns = self.columns.free_texts(texts)
            for (words, projection), column in zip(self.texts, columns, strict=True):
                projected.append(projection(words(column)))
            own = numbers if self.columns.numbers else np.empty((len(table), 0))
            found = Encoded(
                [part.astype(np.int16) for part in projected],
                self.columns.scaled(own).astype(np.int16),
                self.columns.coded(texts, len(table)).astype(np.int16),
                self.columns.bins(own).astype(np.int16),
                [],
            )
            if self.waves:
                integers = self._coordinates(numbers, found)
                found.waves.extend(wave(integers) for wave in self.waves)
        return found

    def components(self, encoded: Encoded) -> Array:
        """Return the components of some records, piece by piece."""
        columns = self._columns_of(encoded)
        pairs = zip(self.blocks, columns, strict=True)
        n = len(encoded.numbers)
        found = np.empty((n, self.n_components), dtype=np.int16)
        start = 0
        for block, values in pairs:
            found[:, start : start + block.n] = block(values)
            start += block.n
        return found

    def _columns_of(self, encoded: Encoded) -> list[Array]:
        """Return what each block is made from."""
        found, bins = list(encoded.projected), iter(encoded.bins.T)
        for column, values in zip(self.columns.numbers, encoded.numbers.T, strict=True):
            found += [values, next(bins)] if column.n_bins else [values]
        return [*found, *encoded.codes.T, *encoded.waves]

    def whole(self, components: Array) -> Floats:
        """Return components as float64, with the constant at the end."""
        found = np.empty((len(components), self.n_components + 1))
        found[:, :-1] = components
        found[:, -1] = CONSTANT
        return found

    @property
    def n_components(self) -> int:
        """How many components a record has, without the constant."""
        return sum(block.n for block in self.blocks)

    @property
    def pieces(self) -> list[slice]:
        """The components of each piece; the constant is the last."""
        ends = np.cumsum([0, *(block.n for block in self.blocks), 1])
        of = np.array([*self._block_pieces, -1])
        starts = ends[np.flatnonzero(np.append(True, of[1:] != of[:-1]))].tolist()
        return [
            slice(a, b) for a, b in zip(starts, [*starts[1:], ends[-1]], strict=True)
        ]

    @property
    def n_additive(self) -> int:
        """How many components are not of cosines."""
        return sum(b.n for b in self.blocks[: len(self.blocks) - len(self.waves)])

    @property
    def linear_map(self) -> ComponentMap:
        """How sums of components become what is published: as they are."""
        return ComponentMap(self.n_components + 1)

    # The published model ---------------------------------------------------------

    def cells(self, encoded: Encoded) -> Singles:
        """Return a record's integers in single precision, with a 1 at the end:
        projections, scaled numbers, codes, bins, cosines.
        """
        n = len(encoded.numbers)
        parts = [
            *encoded.projected,
            encoded.numbers,
            one_hot(encoded.codes, self.columns.code_sizes),
            one_hot(encoded.bins, self.columns.bin_sizes),
            *encoded.waves,
            np.ones((n, 1)),
        ]
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def dense(self, encoded: Encoded) -> Singles:
        """Return the first of `cells` alone, which trees see."""
        codes = one_hot(encoded.codes, self.columns.code_sizes)
        parts = [*encoded.projected, encoded.numbers, codes]
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def cell_weights(self, weights: Floats) -> Floats:
        """Return the weights of `cells` for those of components and the constant."""
        parts: dict[str, list[Floats]] = {
            k: [] for k in ("part", "number", "code", "bin", "wave")
        }
        constant, start = CONSTANT * weights[-1], 0
        kinds = self._kinds
        for block, kind in zip(self.blocks, kinds, strict=True):
            own = weights[start : start + block.n]
            pulled = block.pull(own)
            parts[kind].append(pulled.reshape(-1, weights.shape[1]))
            constant = constant - block.offset @ own
            start += block.n
        found = [w for listed in parts.values() for w in listed]
        return np.concatenate([*found, constant[None, :]])

    @property
    def _kinds(self) -> list[str]:
        """What each block is made from."""
        found = ["part"] * (len(self.texts) + (self.projection is not None))
        for column in self.columns.numbers:
            found += ["number", "bin"] if column.n_bins else ["number"]
        return [
            *found,
            *["code"] * len(self.columns.codes),
            *["wave"] * len(self.waves),
        ]

    @property
    def n_cells(self) -> int:
        """How many integers `cells` has for a record."""
        waves = sum(wave.n for wave in self.waves)
        return self.n_dense + sum(self.columns.bin_sizes) + waves + 1

    @property
    def n_dense(self) -> int:
        """How many of them trees see."""
        numbers, codes = len(self.columns.numbers), sum(self.columns.code_sizes)
        return self._n_projected + numbers + codes

    @property
    def n_coordinates(self) -> int:
        """How many integers cosines are of."""
        n = 0 if self.projection is None else self.projection.n_components
        return n + 2 * len(self.ranks) + sum(self.columns.code_sizes)

    @property
    def _n_projected(self) -> int:
        """How many components projections have."""
        n = 0 if self.projection is None else self.projection.n_components
        return n + sum(projection.n_components for _, projection in self.texts)

    @property
    def farthest(self) -> float:
        """The largest length that projections, or what cosines are of, can have."""
        codes, numbers = self.columns.codes, self.columns.numbers
        squares = LARGEST_VALUE**2 * len(numbers) + UNIT**2 * len(codes)
        return math.sqrt(squares + LARGEST_COMPONENT**2 * self._n_projected)


def is_wide(table: Table) -> bool:
    """Whether there are so many numbers that they are projected."""
    types = table.schema.columns.values()
    return sum(c.kind not in ("text", "category") for c in types) > WIDE


def _halves(pool: Table) -> tuple[Ints, Ints]:
    """Return the points that learned maps are fitted to, and those for the metric: all
    for both, unless there are few points for so many columns or words.
    """
    everything = np.arange(len(pool))
    many = is_wide(pool) and len(pool) < _FEWEST_EACH * len(pool.schema.columns)
    _, texts = split(pool, numbers=False)
    if len(pool) >= 20 and (many or any(map(is_free_text, texts))):
        return everything[::2], everything[1::2]
    return everything, everything
