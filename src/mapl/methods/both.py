"""Moments first; then teachers say where they know better, and labels decide.

The moments' model is the guess, so that teachers pay only for what they say beyond it.
A forest learns what they say; one more sum over the records weighs both against the
true labels: teachers who know nothing new change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Integers, Ints
from mapl.features.contributions import Source
from mapl.methods.moments import (
    MomentsFit,
    PublicMap,
    Regression,
    Spending,
    published_model,
    stacked,
)
from mapl.methods.published import Published
from mapl.methods.votes import Panel
from mapl.planning.choice import CALIBRATION, COUNT, VOTES
from mapl.planning.settings import Setting
from mapl.privacy.questions import SoftQuestion
from mapl.privacy.soft_dissent import GRID, expected_price, on_grid
from mapl.records.private import PrivateRecords
from mapl.records.table import Table
from mapl.release.account import Account
from mapl.release.sums import Summer
from mapl.scale.records import StreamedRecords
from mapl.student.corrections import Corrections
from mapl.student.stacking import Stack, stacked_probabilities
from mapl.teachers.voting import Checkpoints

_MOST_POINTS = 1000  # that teachers are asked about
_MARGIN = 1.5  # of a teacher's stock over what public teachers pay
_LEAST_DEVIATION = 0.02  # from the guess, that teachers can pay for


def learn_by_both(
    panel: Panel,
    private: PrivateRecords | StreamedRecords,
    table: Table,
    public: PublicMap,
    account: Account,
    setting: Setting,
    *,
    classes: Array,
    n_records: int | None,
    class_weight: str | Mapping[Any, float] | None = None,
    n_threads: int = 1,
) -> Published:
    """Publish a model of moments, corrected by teachers where labels bear them out."""
    asked = Asked.some(public.table, public.dense_cells, account.seed)
    with account.checkpoints() as kept:
        shares = asked.votes(panel, private, classes, account.seed, kept)
        fit = MomentsFit(
            *(private, public, account, setting),
            n_classes=len(classes),
            n_threads=n_threads,
        )
        counts = fit.count(n_records, COUNT)
        found = fit.regress(counts, 1 - COUNT - CALIBRATION - VOTES)
        noted = float(counts.sum()), fit.summer, fit.spending
        stack, forest = hear_teachers(panel, shares, asked, found, *noted, classes)
    spending = fit.spending.steps
    return published_model(
        *(fit.public, table, found, stack, classes, class_weight, spending),
        forest=forest,
    )


@dataclass(frozen=True)
class Asked:
    """Public points, and which of them teachers are asked about.

    ``features`` are those of all points, as trees see them.
    """

    points: Table
    features: Any
    rows: Ints

    @classmethod
    def some(cls, table: Table, features: Any, seed: int) -> Asked:
        """Choose points to ask about: more points would each have more noise."""
        order = np.random.default_rng(seed).permutation(len(table))
        rows = np.sort(order[:_MOST_POINTS])
        return cls(table.take(rows), features, rows)

    def votes(
        self,
        panel: Panel,
        private: PrivateRecords | StreamedRecords,
        classes: Array,
        seed: int,
        kept: Checkpoints | None,
    ) -> Integers:
        """Return the teachers' probabilities. Private."""
        return panel.votes(private, self.points, classes, seed, kept, soft=True)


def hear_teachers(
    panel: Panel,
    shares: Integers,
    asked: Asked,
    found: Regression,
    n_records: float,
    summer: Summer,
    spending: Spending,
    classes: Array,
) -> tuple[Stack, Corrections]:
    """Publish what teachers say beyond a model; return what it adds, and how to weigh
    that against the labels.
    """
    own, seed = found.logits[asked.rows], summer.account.seed
    expected = stacked_probabilities([own], np.ones(1), np.zeros(len(classes)))
    question = _question(panel, asked.points, expected, n_records, classes, seed)
    question, noisy = summer.soft_votes(shares, question)
    spending.note(noisy.total.size, question.part)
    said = noisy.total - expected
    forest = Corrections.of(asked.features[asked.rows], own, said, noisy.sigma)
    sources = [found.source(), _source(found, forest)]
    logits = [found.logits, forest.logits(asked.features, found.logits)]
    stack = stacked(summer, spending, sources, logits, n_records, CALIBRATION)
    return stack, forest


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
