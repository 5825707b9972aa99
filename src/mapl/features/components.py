"""Blocks of a record's integers in the public points' own metric, leading parts first.

A block is centred, turned to the main directions of its second moments over the public
points, multiplied by a power of their inverse, and scaled to one mean length. The
directions that hold most come first, so that the others can be left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints
from mapl.privacy.linear_map import (
    LARGEST_CELLS,
    LARGEST_IMAGE,
    LinearMap,
    squared_lengths,
)

GRID = 2**11  # integer steps of one unit of length
CONSTANT = GRID // 2  # the last component
_POWER = 0.25  # of the second moments: 0 leaves all as it is, 0.5 would whiten
_SINGLE = 2**24  # integers that single precision holds
_FINE, _COARSE = 2**14, 2**9  # length of a direction in integers: wanted, and least
_NOTHING = 1e-7  # of the largest second moment
_LARGEST = 2**15 - 1  # of a component


@dataclass(frozen=True)
class Components:
    """How a block of integers becomes components, which are integers too.

    ``matrix`` and ``offset`` are whole, and so small that no partial sum of a product
    exceeds what their precision holds: a component is, to the last bit, a function of
    its record. ``energy`` is the mean square of each before ``scale``.
    """

    matrix: Array
    offset: Array
    scale: float
    energy: Floats

    @classmethod
    def of(cls, points: Array, farthest: float) -> Components:
        """Take the metric of public points; no record is longer than ``farthest``."""
        centre = np.rint(points.mean(axis=0, dtype=np.float64))
        centred = (points - centre).astype(np.float32)
        values, vectors = np.linalg.eigh(centred.T @ centred / max(1, len(points)))
        values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
        ridge = float(values.mean()) if values.sum() > 0 else 1.0
        kept = max(1, int((values > _NOTHING * values[0]).sum()))
        values, vectors = values[:kept].astype(np.float64), vectors[:, :kept]
        size, precision = _FINE, "float64"
        if _SINGLE / farthest > 2 * _COARSE:
            size = min(_FINE, int(0.9 * _SINGLE / farthest))
            precision = "float32"
        power = ((values + ridge) / ridge) ** -_POWER  # at most 1
        matrix = np.rint(vectors.astype(np.float64) * (power * size))
        energy = values * (power * size) ** 2
        offset = np.rint(centre @ matrix).astype(precision)
        found = cls(matrix.astype(precision), offset, 0.0, energy)
        return found.first(kept)

    @property
    def n(self) -> int:
        """How many components there are."""
        return int(self.matrix.shape[1])

    def first(self, n: int) -> Components:
        """Return the leading components alone, with the same mean length."""
        energy = self.energy[:n]
        length = math.sqrt(float(energy.sum()))
        scale = GRID / length if length > 0 else 0.0
        return replace(
            self,
            matrix=np.ascontiguousarray(self.matrix[:, :n]),
            offset=self.offset[:n],
            scale=scale,
            energy=energy,
        )

    def __call__(self, values: Array) -> Array:
        """Return the components of some records."""
        precision: Any = self.matrix.dtype.type
        found = values.astype(precision) @ self.matrix
        found -= self.offset
        found *= precision(self.scale)
        np.rint(found, out=found)
        np.clip(found, -_LARGEST, _LARGEST, out=found)
        return found.astype(np.int16)

    def pull(self, weights: Floats) -> Floats:
        """Return weights of the block's centred integers for those of components."""
        return np.asarray(self.scale * (self.matrix.astype(np.float64) @ weights))


class ComponentMap(LinearMap):
    """A `LinearMap` of records whose integers are components: it only weighs blocks.

    ``widths`` has the size of each block, the constant's last.
    """

    def __init__(self, widths: list[int], weights: list[int]) -> None:
        super().__init__([], [])
        self.weights = weights
        kept = [(w, n) for w, n in zip(weights, widths, strict=True) if w]
        ends = np.cumsum([0, *(n for _, n in kept)]).tolist()
        self._places = [slice(*pair) for pair in pairwise(ends)]
        self._each = np.repeat([float(w) for w, _ in kept], [n for _, n in kept])

    @property
    def width(self) -> int:
        """How many integers a record has."""
        return len(self._each)

    def image(self, cells: Floats) -> Floats:
        """Return each record's weighted integers."""
        return np.asarray(cells * self._each)

    def sound(self, cells: Floats) -> Any:
        """Return which records are short enough for exact products: all are whole."""
        return squared_lengths(cells) <= LARGEST_CELLS**2

    def block_lengths(self, cells: Floats) -> Ints:
        """Return the squared length of each block of each record without its weight;
        -1 for records that are too long.
        """
        found = [squared_lengths(cells[:, place]) for place in self._places]
        lengths = np.stack(found, axis=1)
        good = lengths.sum(axis=1) <= min(LARGEST_CELLS, LARGEST_IMAGE) ** 2
        return np.where(good[:, None], lengths, -1.0).astype(np.int64)

    def push(self, sums: Ints) -> Ints:
        """Return weighted sums of records."""
        return np.asarray(self._each.astype(np.int64)[:, None] * sums)

    def push_floats(self, sums: Floats) -> Floats:
        """Return weighted sums that are public."""
        return np.asarray(self._each[:, None] * sums)
