"""Made-up records: columns as counted, joined by a Gaussian copula.

A cell is a normal score, by its rank among the published counts; the scores'
correlations are published with noise. Made-up records have both. Whether a number is
missing is a score, too: missing cells come together. Everything here is public.

Proof: docs/proofs/Copula.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats
from mapl.features.grids import Grid
from mapl.features.sketch import Sketch
from mapl.privacy.moments import NoisySum
from mapl.privacy.questions import CopulaQuestion

_UNIT = 32  # integer steps of a score of 1
_LARGEST = 1.3  # length of a record's scores over the root of their number
_RAREST = 0.003  # rank
_SOME_MISSING = 0.005  # share of missing cells, and of others, from which it is a score
_CLEAR = 4.0  # standard deviations of their count
_LEAST_VARIANCE, _LEAST_EIGENVALUE = 0.05, 0.02


@dataclass(frozen=True)
class Copula:
    """How columns go together. Public.

    ``sketch`` says what each column looks like. ``gaps`` lists the columns whose
    missing cells have a score of their own; they come last in ``correlations``.
    """

    sketch: Sketch
    ordered: list[bool]
    gaps: list[int]
    correlations: Floats

    def draw(self, n: int, rng: np.random.Generator, *, missing: bool = True) -> Array:
        """Return cells of made-up records; with or without missing values, which have
        the last cell.
        """
        d = len(self.correlations)
        root = np.linalg.cholesky(self.correlations + 1e-6 * np.eye(d))
        scores = rng.normal(size=(n, d)) @ root.T
        columns = []
        for j, share in enumerate(self.sketch.shares):
            gap = (
                scores[:, len(self.ordered) + self.gaps.index(j)]
                if j in self.gaps
                else None
            )
            columns.append(self._column(j, share, scores[:, j], gap, rng, missing))
        return np.stack(columns, axis=1)

    def _column(
        self,
        j: int,
        share: Floats,
        score: Floats,
        gap: Floats | None,
        rng: np.random.Generator,
        missing: bool,
    ) -> Array:
        """Return the cells of a column: each has its share of the records."""
        last = len(share) - 1
        if share[last] >= 1:
            return np.full(len(score), last)
        given: Floats = np.append(share[:-1], 0.0) / (1 - share[last])
        if not self.ordered[j] and missing:
            given = share
        places = np.searchsorted(np.cumsum(given), _ranks(score, rng))
        found = np.minimum(places, np.flatnonzero(given)[-1])
        if self.ordered[j] and missing and share[last] > 0:
            order = _ranks(rng.random(len(score)) if gap is None else gap, rng)
            found = np.where(order > 1 - share[last], last, found)
        return np.asarray(found)


def _ranks(scores: Floats, rng: np.random.Generator) -> Floats:
    """Return stratified ranks, from 0 to 1."""
    found = np.empty(len(scores))
    found[np.argsort(scores)] = (
        np.arange(len(scores)) + rng.random(len(scores))
    ) / len(scores)
    return found


@dataclass(frozen=True)
class CopulaForm:
    """What is asked about how columns go together, and what becomes of the answer."""

    sketch: Sketch
    ordered: list[bool]
    gaps: list[int]
    question: CopulaQuestion

    @classmethod
    def of(cls, grids: list[Grid], sketch: Sketch, part: Fraction) -> CopulaForm:
        """Return the form for some columns, by their published counts."""
        ordered = [grid.n_ordered > 0 for grid in grids]
        pairs = list(zip(sketch.shares, ordered, strict=True))
        gaps = [j for j, (s, o) in enumerate(pairs) if o and _has_gaps(s[-1], sketch)]
        scores = [_scores(share, o) for share, o in pairs]
        scores += [_gap_scores(sketch.shares[j]) for j in gaps]
        sizes = [len(s) for s in scores]
        longest = _LARGEST**2 * len(scores) * _UNIT**2
        question = CopulaQuestion(
            np.rint(np.concatenate(scores) * _UNIT),
            np.array([*range(len(ordered)), *gaps]),
            (np.cumsum(sizes) - sizes).astype(np.int64),
            math.floor(longest**2),
            part,
        )
        return cls(sketch, ordered, gaps, question)

    def read(self, noisy: NoisySum) -> Copula:
        """Return correlations: scaled, shrunk by their noise, and none too small."""
        n = self.sketch.n_units
        sums, sd = noisy.total / _UNIT**2 / n, noisy.sigma / _UNIT**2 / n
        found = (sums + sums.T) / 2
        size = np.sqrt(np.maximum(np.diag(found), _LEAST_VARIANCE))
        values, vectors = np.linalg.eigh(found / np.outer(size, size))
        level = 2 * sd * math.sqrt(len(size) / 2) / float(np.median(size)) ** 2
        apart = values - 1
        kept = np.sign(apart) * np.sqrt(np.maximum(apart**2 - level**2, 0))
        shrunk = (vectors * np.maximum(1 + kept, _LEAST_EIGENVALUE)) @ vectors.T
        size = np.sqrt(np.diag(shrunk))
        scaled = shrunk / np.outer(size, size)
        return Copula(self.sketch, self.ordered, self.gaps, scaled)


def independent(grids: list[Grid], sketch: Sketch) -> Copula:
    """Return the copula of columns that have nothing to do with each other."""
    ordered = [grid.n_ordered > 0 for grid in grids]
    return Copula(sketch, ordered, [], np.eye(len(ordered)))


def _has_gaps(share: float, sketch: Sketch) -> bool:
    """Whether clearly some cells are missing, and some are not."""
    clear = share * sketch.n_units > _CLEAR * sketch.sigma
    return bool(clear and _SOME_MISSING < share < 1 - _SOME_MISSING)


def _scores(share: Floats, ordered: bool) -> Floats:
    """Return the normal scores of a column's cells; 0 for a missing number."""
    from scipy.special import ndtri

    given: Any = share
    if ordered:
        given = np.append(share[:-1], 0.0) / max(1 - share[-1], 1e-9)
    ranks = np.cumsum(given) - given / 2
    found = ndtri(np.clip(ranks, _RAREST, 1 - _RAREST))
    if ordered:
        found[-1] = 0.0
    return np.asarray(found)


def _gap_scores(share: Floats) -> Floats:
    """Return scores of mean 0 and variance 1 that say whether a cell is missing."""
    found, gap = np.zeros(len(share)), float(share[-1])
    found[-1] = 1.0
    return (found - gap) / math.sqrt(max(gap * (1 - gap), 0.01))
