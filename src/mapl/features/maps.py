"""Feature maps in the public points' own metric, with exact integers throughout.

Blocks of features (linear values and codes, bins, random Fourier features) are centred,
multiplied by a power of the inverse of their second moments over the public points, and
scaled to one mean length. Products are of integers below 2^53, held in float64: they
are exact in any order, so a record's features are, to the last bit, a function of that
record, at the full speed of the numerical library.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mapl.arrays import Floats, n_rows
from mapl.features.columns import UNIT, Columns
from mapl.privacy.moments import squared_lengths
from mapl.records.table import Table

GRID = 2**10  # integer steps of one unit of length
LONGEST = 2**12  # of a record's vector, in integer steps
_POWER = 0.25  # of the second moments: 0 leaves all as it is, 0.5 would whiten
_CONSTANT = 0.5
_LONGEST_SHARE = 0.98  # of the points that are not shortened
_TABLE = 2**12  # entries of a table of cosines
_FINE = 2**12  # fractions of an entry
_WAVES, _FREQUENCIES = 400, (0.5, 2.0)
_COMPONENTS = 60


class MetricBlock:
    """Integers in, integers in the public metric out."""

    def __init__(self, public: Floats) -> None:
        self.mean = np.rint(public.mean(axis=0))
        centred = public - self.mean
        values, vectors = np.linalg.eigh(centred.T @ centred / len(public))
        values = np.maximum(values, 0)
        ridge = values.mean() if values.mean() > 0 else 1.0
        metric = (vectors * (values + ridge) ** -_POWER) @ vectors.T
        length = math.sqrt(((centred @ metric) ** 2).sum(axis=1).mean())
        metric *= GRID / length if length > 0 else 0.0
        # The finest grid for which products stay far below 2^53.
        largest = max(float(np.abs(metric).max(initial=0.0)), 1e-9)
        self.fine = 2.0 ** math.floor(math.log2(2**24 / largest))
        self.metric = np.rint(metric * self.fine)

    def __call__(self, values: Floats) -> Floats:
        """Return the vectors of some records."""
        return np.asarray(np.rint((values - self.mean) @ self.metric / self.fine))


class Waves:
    """Random Fourier features: cosines of integer phases, from a table."""

    def __init__(self, public: Floats, frequency: float, rng: np.random.Generator):
        self.mean = np.rint(public.mean(axis=0))
        length = math.sqrt(((public - self.mean) ** 2).sum(axis=1).mean()) or 1.0
        directions = rng.normal(size=(public.shape[1], _WAVES))
        directions *= math.sqrt(2 * frequency) / length
        turn = _TABLE * _FINE / (2 * math.pi)
        self.directions = np.rint(directions * turn)
        self.phase = np.rint(rng.uniform(0, _TABLE * _FINE, _WAVES))
        angles = (np.arange(_TABLE) + 0.5) * 2 * math.pi / _TABLE
        self.cosines = np.rint(np.cos(angles) * 16 * UNIT)

    def __call__(self, values: Floats) -> Floats:
        """Return the cosines of some records, as integers."""
        turned = (values - self.mean) @ self.directions + self.phase
        places = np.floor(turned / _FINE).astype(np.int64) % _TABLE
        return np.asarray(self.cosines[places])


class Projection:
    """Principal components of many number columns, as integers."""

    def __init__(self, public: Floats) -> None:
        self.mean = np.rint(public.mean(axis=0))
        centred = public - self.mean
        values, vectors = np.linalg.eigh(centred.T @ centred / len(public))
        chosen = vectors[:, np.argsort(-values)[:_COMPONENTS]]
        self.directions = np.rint(chosen * 2**12)

    def __call__(self, values: Floats) -> Floats:
        """Return the components of some records."""
        return np.asarray(np.rint((values - self.mean) @ self.directions / 2**12))


class FeatureMap:
    """From canonical tables to integer vectors of length at most `LONGEST`.

    Fitted to public points, and to nothing else.
    """

    def __init__(self, public: Table, *, waves: bool = True, seed: int = 0) -> None:
        self.columns = Columns(public)
        rng = np.random.default_rng(seed)
        linear = self.columns.linear(public)
        self.projection = Projection(linear) if self.columns.wide else None
        if self.projection is not None:
            linear = self.projection(linear)
        self.blocks: list[tuple[Any, MetricBlock]] = [(None, MetricBlock(linear))]
        bins = self.columns.bins(public)
        self.bins = MetricBlock(bins) if bins.shape[1] else None
        for frequency in _FREQUENCIES if waves else ():
            made = Waves(linear, frequency, rng)
            self.blocks.append((made, MetricBlock(made(linear))))
        lengths = np.sqrt(squared_lengths(self._whole(public)))
        shown = float(np.quantile(lengths, _LONGEST_SHARE))
        self.longest = int(min(LONGEST, max(1.0, math.floor(shown))))

    def __call__(self, table: Table) -> Floats:
        """Return the vectors of some records."""
        return shortened(self._whole(table), self.longest)

    def _whole(self, table: Table) -> Floats:
        linear = self.columns.linear(table)
        if self.projection is not None:
            linear = self.projection(linear)
        parts = [
            metric(linear if waves is None else waves(linear))
            for waves, metric in self.blocks
        ]
        if self.bins is not None:
            parts.insert(1, self.bins(self.columns.bins(table)))
        parts.append(np.full((n_rows(linear), 1), _CONSTANT * GRID))
        return np.concatenate(parts, axis=1)


def shortened(vectors: Floats, longest: int) -> Floats:
    """Return integer vectors of at most this length: each entry towards zero."""
    lengths = squared_lengths(vectors)
    long = np.flatnonzero(lengths > longest**2)
    if not long.size:
        return vectors
    factor = np.floor(np.sqrt(longest**2 / lengths[long]) * (2**20 - 1))
    out = vectors.copy()
    out[long] = np.trunc(vectors[long] * factor[:, None] / 2**20)
    return out
