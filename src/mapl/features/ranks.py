"""Random Fourier features of ranks: cosines of columns, and of pairs and triples.

A number becomes the normal score of its rank among the pool's, so that outliers and
units of measure do not matter; a category is a one-hot code. Phases are exact integers.

Random Fourier features: Rahimi, Recht 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Ints

UNIT = 32  # integer steps of a score of 1, and of a code
_LARGEST = 3.1  # score
_KNOTS = 256  # of a column, at most
_MISSING = 2  # times a code: what a missing number is
_TABLE = 2**12  # entries of a table of cosines
_FINE_BITS = 4
_FINE = 2**_FINE_BITS  # fractions of an entry
_TURN = _TABLE * _FINE / (2 * math.pi)
COSINE = 63  # integer steps of a cosine of 1
FAMILIES = ((0, 300, 1.0), (2, 300, 2.0), (3, 300, 2.0))
# Of how many columns each feature is (0 is all), how many features, and their squared
# frequency.
OF_PROJECTIONS = ((0, 400, 0.5), (0, 400, 2.0))  # where columns are not features

_ANGLES = (np.arange(_TABLE) + 0.5) * 2 * math.pi / _TABLE
_COSINES = np.rint(np.cos(_ANGLES) * COSINE).astype(np.int8)


@dataclass(frozen=True)
class RankScore:
    """Normal scores of a column's values, by their ranks in the pool.

    Values between two knots have scores in between, those beyond the ends that of the
    end. All that is done to a value is comparison, subtraction, division and rounding.
    """

    knots: Floats
    scores: Floats  # whole steps of 1 / UNIT

    @classmethod
    def of(cls, values: Floats) -> RankScore:
        """Take them from the pool."""
        from scipy.special import ndtri

        given = np.sort(values[np.isfinite(values)])
        if not given.size:
            return cls(np.zeros(1), np.zeros(1))
        knots = np.unique(given)
        if len(knots) > _KNOTS:
            places = np.linspace(0, 1, _KNOTS)
            knots = np.unique(np.quantile(given, places, method="lower"))
        ranks = np.searchsorted(given, knots, "left") + np.searchsorted(
            given, knots, "right"
        )
        scores = ndtri((ranks + 1) / 2 / (len(given) + 1))
        return cls(knots, np.rint(np.clip(scores, -_LARGEST, _LARGEST) * UNIT))

    def __call__(self, values: Floats) -> Floats:
        """Return whole scores; 0 for a missing value."""
        inside = np.clip(values, self.knots[0], self.knots[-1])
        missing = np.isnan(values)
        inside[missing] = self.knots[0]
        if len(self.knots) == 1:
            return np.zeros(len(values))
        place = np.searchsorted(self.knots, inside, "right") - 1
        place = np.minimum(place, len(self.knots) - 2)
        low, high = self.knots[place], self.knots[place + 1]
        with np.errstate(over="ignore", invalid="ignore"):
            width = high - low
            share = (inside - low) / width
        share = np.where(np.isfinite(width), share, inside == high)
        found = self.scores[place] + share * (
            self.scores[place + 1] - self.scores[place]
        )
        return np.where(missing, 0.0, np.rint(found))


class Waves:
    """Cosines of integer phases, from a table.

    Phases are exact, so single precision serves where they are below 2^24 for every
    record: ``farthest`` is the largest length that a record's integers can have.
    """

    def __init__(self, directions: Floats, phase: Floats, farthest: float) -> None:
        self.directions, self.phase, self.farthest = directions, phase, farthest
        longest = np.linalg.norm(directions, axis=0).max(initial=0.0)
        small = longest * farthest + _TABLE * _FINE < 2**24
        precision = np.float32 if small else np.float64
        self._directions: Array = directions.astype(precision)
        self._phase: Array = phase.astype(precision)

    @classmethod
    def of(
        cls,
        pool: Floats,
        columns: list[Ints],
        farthest: float,
        family: tuple[int, int, float],
        rng: np.random.Generator,
    ) -> Waves:
        """Draw directions in the integers of the pool; ``columns`` says which of them
        belong to each column.
        """
        many, n, squared = family
        variance = pool.var(axis=0)
        together = float(variance.sum())  # columns count by how much they vary
        chosen = rng.random((n, len(columns))).argsort(axis=1)[:, : many or None]
        directions = np.zeros((pool.shape[1], n))
        for j, own in enumerate(columns):
            used = np.flatnonzero((chosen == j).any(axis=1))
            size = float(variance[own].sum()) * chosen.shape[1] if many else together
            scale = math.sqrt(2 * squared / max(size, 1.0)) * _TURN
            drawn = rng.normal(size=(len(own), len(used)))
            directions[np.ix_(own, used)] = drawn * scale
        phase = np.rint(rng.uniform(0, _TABLE * _FINE, n))
        return cls(np.rint(directions), phase, farthest)

    @property
    def n(self) -> int:
        """How many cosines there are."""
        return len(self.phase)

    def __call__(self, values: Array) -> Array:
        """Return the cosines of some records, as 8-bit integers."""
        turned = values.astype(self._directions.dtype) @ self._directions
        turned += self._phase
        whole = np.int64 if turned.dtype == np.float64 else np.int32
        places: Any = turned.astype(whole)
        places >>= _FINE_BITS
        places &= _TABLE - 1
        return np.asarray(_COSINES[places])
