"""Moments first; then teachers say where they know better, and labels decide.

The moments' model is the guess, so that teachers pay only for what they say beyond it.
A forest learns what they say; one more sum over the records weighs both against the
true labels: teachers who know nothing new change nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mapl.arrays import Array, Floats, Integers, Ints
from mapl.features.contributions import Source
from mapl.methods.votes import Panel
from mapl.planning.choice import CALIBRATION, VOTES
from mapl.privacy.questions import SoftQuestion
from mapl.privacy.soft_dissent import GRID, expected_price, on_grid
from mapl.records.private import PrivateRecords
from mapl.records.table import Table
from mapl.scale.records import StreamedRecords
from mapl.student.corrections import Corrections
from mapl.student.stacking import Stack, stacked_probabilities
from mapl.teachers.voting import Checkpoints

if TYPE_CHECKING:
    from mapl.methods.moments import Regression, SumsFit
    from mapl.methods.pool import PublicMap

_MOST_POINTS = 1000  # that teachers are asked about
_MARGIN = 1.5  # of a teacher's stock over what public teachers pay
_LEAST_DEVIATION = 0.02  # from the guess, that teachers can pay for


@dataclass(frozen=True)
class Heard:
    """Which points of the pool teachers were asked about, and what they say: private.

    ``features`` are those of all points, as trees see them.
    """

    panel: Panel
    points: Table
    rows: Ints
    shares: Integers
    features: Any = None

    @classmethod
    def of(
        cls,
        panel: Panel,
        pool: Table,
        private: PrivateRecords | StreamedRecords,
        classes: Array,
        seed: int,
        kept: Checkpoints | None,
    ) -> Heard:
        """Ask about some points: more of them would each have more noise."""
        order = np.random.default_rng(seed).permutation(len(pool))
        rows = np.sort(order[:_MOST_POINTS])
        points = pool.take(rows)
        shares = panel.votes(private, points, classes, seed, kept, soft=True)
        return cls(panel, points, rows, shares)

    def at(self, pool: PublicMap) -> Heard:
        """Return it with the features of the points."""
        return replace(self, features=pool.dense_cells)


def hear_teachers(
    fit: SumsFit, heard: Heard, found: Regression, n_records: float, classes: Array
) -> tuple[Stack, Corrections]:
    """Publish what teachers say beyond a model; return what it adds, and how to weigh
    that against the labels.
    """
    own, seed = found.logits[heard.rows], fit.summer.account.seed
    expected = stacked_probabilities([own], np.ones(1), np.zeros(len(classes)))
    question = _question(heard.panel, heard.points, expected, n_records, classes, seed)
    question, noisy = fit.summer.soft_votes(heard.shares, question)
    fit.spending.note(noisy.total.size, question.part)
    said = noisy.total - expected
    forest = Corrections.of(heard.features[heard.rows], own, said, noisy.sigma)
    sources = [found.source(), _source(found, forest)]
    logits = [found.logits, forest.logits(heard.features, found.logits)]
    return fit.stacked(sources, logits, n_records, CALIBRATION), forest


def _question(
    panel: Panel,
    points: Table,
    expected: Floats,
    n_records: float,
    classes: Array,
    seed: int,
) -> SoftQuestion:
    """Return the guess, and what teachers may pay: half as much again as those do who
    learned from public points with labels that the model made up.
    """
    guess = on_grid(expected).astype(np.int64)
    if not hasattr(panel.estimator, "predict_proba"):  # whole votes, so a whole guess
        guess = GRID * (guess.argmax(axis=1)[:, None] == np.arange(len(classes)))
    drawn = np.random.default_rng(seed).random((len(expected), 1))
    codes = np.minimum((expected.cumsum(axis=1) < drawn).sum(axis=1), len(classes) - 1)
    size = max(2, int(n_records / panel.n_teachers))
    shares = panel.public_shares(points, codes, size, classes, seed)
    price = float(expected_price(shares, guess).mean())
    least = _LEAST_DEVIATION**2 * GRID**2 * len(guess)
    return SoftQuestion(guess, math.ceil(_MARGIN * max(price, least)), VOTES)


def _source(found: Regression, corrections: Corrections) -> Source:
    """Return what the forest adds, as a function of each record alone."""
    first = found.source()

    def logits(cells: Floats, seen: Any) -> Floats:
        found = corrections.exact(seen, first(cells, seen))
        return np.clip(found, -(2**24), 2**24)

    return logits
