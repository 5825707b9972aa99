"""Feature maps in the public points' own metric, with exact integers throughout.

Blocks of features (linear values and codes, bins, texts, random Fourier features)
become components in the public points' own metric. All of a record's integers are, to
the last bit, a function of that record.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints
from mapl.features.columns import (
    LARGEST_VALUE,
    UNIT,
    WIDE,
    Columns,
    is_free_text,
    one_hot,
    split,
)
from mapl.features.components import CONSTANT, ComponentMap, Components
from mapl.features.projections import (
    LARGEST_COMPONENT,
    TEXT_COMPONENTS,
    ManyNumbers,
    Projection,
    Words,
)
from mapl.privacy.linear_map import LARGEST_WEIGHT
from mapl.records.table import Table

_TABLE = 2**12  # entries of a table of cosines
_FINE_BITS = 4
_FINE = 2**_FINE_BITS  # fractions of an entry
_COSINE = 63  # integer steps of a cosine of 1
WAVES, _FREQUENCIES = 400, (0.5, 2.0)
_FEWEST_EACH = 10  # points for a column; where there are fewer, learned maps take half


class Waves:
    """Random Fourier features: cosines of integer phases, from a table.

    Phases are exact, so single precision serves where they are below 2^24 for every
    record: ``farthest`` is the largest length that a record's integers can have.
    """

    def __init__(self, directions: Floats, phase: Floats, farthest: float) -> None:
        self.directions, self.phase, self.farthest = directions, phase, farthest
        longest = np.linalg.norm(directions, axis=0).max(initial=0.0)
        small = longest * farthest + _TABLE * _FINE < 2**24
        self._precision: Any = np.float32 if small else np.float64
        self._directions = directions.astype(self._precision)
        self._phase = phase.astype(self._precision)

    @classmethod
    def of(
        cls,
        parts: list[Floats],
        farthest: float,
        frequency: float,
        rng: np.random.Generator,
    ) -> Waves:
        """Draw directions; each part of the features has the same mean length."""
        turn = _TABLE * _FINE / (2 * math.pi)
        scale = math.sqrt(2 * frequency) * turn / math.sqrt(len(parts))
        rows = []
        for part in parts:
            length = math.sqrt(((part - part.mean(axis=0)) ** 2).sum(axis=1).mean())
            drawn = rng.normal(size=(part.shape[1], WAVES))
            rows.append(np.rint(drawn * scale / max(length, 1.0)))
        phase = np.rint(rng.uniform(0, _TABLE * _FINE, WAVES))
        return cls(np.concatenate(rows), phase, farthest)

    def __call__(self, values: Floats) -> Array:
        """Return the cosines of some records, as 8-bit integers."""
        turned: Any = values.astype(self._precision) @ self._directions
        turned += self._phase
        places = turned.astype(np.int64 if turned.dtype == np.float64 else np.int32)
        places >>= _FINE_BITS
        places &= _TABLE - 1
        return np.asarray(_COSINES[places])


_ANGLES = (np.arange(_TABLE) + 0.5) * 2 * math.pi / _TABLE
_COSINES = np.rint(np.cos(_ANGLES) * _COSINE).astype(np.int8)


class FeatureMap:
    """From canonical tables to a record's integers, and the metric of their image.

    Fitted to public points, and to nothing else. ``rows`` are those of the points that
    took no part in learned maps: metric and curvature come from them.
    """

    def __init__(
        self,
        columns: Columns,
        projection: ManyNumbers | None,
        texts: list[tuple[Words, Projection]],
        waves: list[Waves],
        centre: Floats,
    ) -> None:
        self.columns, self.projection, self.texts = columns, projection, texts
        self.waves, self.centre = waves, centre
        self.blocks: list[Components] = []  # those of the waves last

    @classmethod
    def of(cls, public: Table, *, seed: int = 0) -> tuple[FeatureMap, Ints]:
        """Fit a map to public points; return it, and the points for the metric."""
        learned, rows = _halves(public)
        half = public if len(rows) == len(public) else public.take(learned)
        wide = is_wide(public)
        columns = Columns.of(half, numbers=not wide)
        projection = ManyNumbers.of(split(half)[0]) if wide else None
        texts = []
        for column in columns.free_texts(half):
            words = Words.of(column)
            texts.append((words, Projection.of(words(column), TEXT_COMPONENTS)))
        found = cls(columns, projection, texts, [], np.empty(0))
        points = public if len(rows) == len(public) else public.take(rows)
        parts = found._dense_parts(points)
        rng = np.random.default_rng(seed)
        farthest = found.farthest
        # What words say adds up: waves of them would be noise.
        frequencies = () if texts else _FREQUENCIES
        found.waves = [Waves.of(parts, farthest, f, rng) for f in frequencies]
        found._take_metric(found.encode(points))
        return found, rows

    def _take_metric(self, points: list[Array]) -> None:
        blocks = self._expanded(points)
        means = [b.mean(axis=0, dtype=np.float64) for b in blocks]
        self.centre = np.rint(np.concatenate(means))
        self.blocks = [
            Components.of(block, farthest)
            for block, farthest in zip(blocks, self._farthest(), strict=True)
        ]

    def _farthest(self) -> list[float]:
        """Return the largest length that each block of integers can have."""
        sizes = self.columns.bin_sizes
        bins = [UNIT * math.sqrt(len(sizes))] if sizes else []
        waves = [_COSINE * math.sqrt(wave.directions.shape[1]) for wave in self.waves]
        return [*[self.farthest] * self._n_parts, *bins, *waves]

    @property
    def _n_parts(self) -> int:
        """How many blocks stand before the bins."""
        linear = bool(self.columns.numbers or self.columns.codes)
        return len(self.texts) + (self.projection is not None) + linear

    def with_waves(self, n: int) -> FeatureMap:
        """Return the map with the leading components of the waves alone."""
        found, start = copy.copy(self), len(self.blocks) - len(self.waves)
        leading = [block.first(n) for block in self.blocks[start:]]
        found.blocks = [*self.blocks[:start], *leading]
        return found

    # A record's integers ---------------------------------------------------------

    def encode(self, table: Table, *, waves: bool = True) -> list[Array]:
        """Return the integers of some records in a form that takes little memory:
        scaled values and components, bins by number, waves.
        """
        with np.errstate(all="ignore"):  # no warning tells of a private cell
            dense = self._dense_parts(table)
            codes = self.columns.bins(table).astype(np.int16)
            joined = np.concatenate(dense, axis=1)
            found = [wave(joined) for wave in self.waves] if waves else []
        return [*(part.astype(np.int16) for part in dense), codes, *found]

    def cells(self, encoded: list[Array]) -> Array:
        """Return the centred integers in single precision, with a 1 at the end."""
        blocks = [*self._expanded(encoded), np.ones((len(encoded[0]), 1))]
        cells = np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")
        cells[:, :-1] -= self.centre.astype(np.float32)
        return cells

    def dense(self, encoded: list[Array]) -> Array:
        """Return the first of `cells` alone: scaled values, codes and components."""
        parts = encoded[: self._n_parts]
        cells = np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")
        return cells - self.centre[: cells.shape[1]].astype(np.float32)

    def components(self, encoded: list[Array]) -> Array:
        """Return the components of some records, block by block."""
        parts = zip(self.blocks, self._expanded(encoded), strict=False)
        return np.concatenate([block(part) for block, part in parts], axis=1)

    def whole(self, components: Array, *, waves: bool = True) -> Floats:
        """Return components as float64, with the constant at the end."""
        n = components.shape[1] if waves else self.n_additive
        found = np.empty((len(components), n + 1))
        found[:, :n] = components[:, :n]
        found[:, n] = CONSTANT
        return found

    def linear_map(self, waves: int) -> ComponentMap:
        """Return the weights of the blocks, the waves with so many quarters."""
        n = len(self.blocks) - len(self.waves)
        weights = [LARGEST_WEIGHT] * n + [waves] * len(self.waves) + [LARGEST_WEIGHT]
        return ComponentMap([*(block.n for block in self.blocks), 1], weights)

    def cell_weights(self, weights: Floats) -> Floats:
        """Return the weights of `cells` for those of components and the constant."""
        ends = np.cumsum([block.n for block in self.blocks])
        parts = np.split(weights[:-1], ends[:-1])
        pulled = [b.pull(part) for b, part in zip(self.blocks, parts, strict=True)]
        return np.concatenate([*pulled, CONSTANT * weights[-1:]])

    @property
    def n_additive(self) -> int:
        """How many components are not of waves; the constant comes last."""
        without = self.blocks[: len(self.blocks) - len(self.waves)]
        return sum(block.n for block in without)

    @property
    def n_dense(self) -> int:
        """How many of a record's integers are scaled values, codes and components."""
        width = len(self.columns.numbers) + sum(c.n_codes for c in self.columns.codes)
        n = 0 if self.projection is None else self.projection.n_components
        return width + n + sum(projection.n_components for _, projection in self.texts)

    @property
    def farthest(self) -> float:
        """The largest length that a record's scaled values and components can have."""
        codes = self.columns.codes
        squares = LARGEST_VALUE**2 * len(self.columns.numbers) + UNIT**2 * len(codes)
        n = 0 if self.projection is None else self.projection.n_components
        n += sum(projection.n_components for _, projection in self.texts)
        return math.sqrt(squares + LARGEST_COMPONENT**2 * n)

    def _dense_parts(self, table: Table) -> list[Floats]:
        """Return scaled numbers and codes or their components, and those of texts."""
        parts = []
        if self.projection is not None:
            parts.append(self.projection(split(table)[0]))
        if self.columns.numbers or self.columns.codes:
            parts.append(self.columns.linear(table))
        for (words, projection), column in zip(
            self.texts, self.columns.free_texts(table), strict=True
        ):
            parts.append(projection(words(column)))
        return parts

    def _expanded(self, encoded: list[Array]) -> list[Array]:
        """Return bins as one-hot codes; no block where there are none."""
        place = self._n_parts
        sizes = self.columns.bin_sizes
        bins = [one_hot(encoded[place], sizes)] if sizes else []
        return [*encoded[:place], *bins, *encoded[place + 1 :]]


def is_wide(table: Table) -> bool:
    """Whether there are so many numbers that they are projected."""
    types = table.schema.columns.values()
    return sum(c.kind not in ("text", "category") for c in types) > WIDE


def _halves(public: Table) -> tuple[Ints, Ints]:
    """Return the points that learned maps are fitted to, and those for the metric: all
    for both, unless there are few points for so many columns or words.
    """
    everything = np.arange(len(public))
    many = is_wide(public) and len(public) < _FEWEST_EACH * len(public.schema.columns)
    _, texts = split(public, numbers=False)
    if len(public) >= 20 and (many or any(map(is_free_text, texts))):
        return everything[::2], everything[1::2]
    return everything, everything
