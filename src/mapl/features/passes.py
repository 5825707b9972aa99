"""One pass over the records: what is added up, in exact integers.

A pass is public, and its total over several sets of units is the sum of their totals:
it makes no difference where, or in which order, records are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mapl.arrays import Ints
from mapl.features.contributions import ONE, Source
from mapl.privacy.gradients import RESIDUAL_GRID
from mapl.privacy.moments import sum_of_blocks
from mapl.privacy.pairs import PairBlock, bounded_pair_sum
from mapl.privacy.questions import (
    CopulaQuestion,
    GramQuestion,
    Question,
    StackQuestion,
)

COUNT_LENGTH = RESIDUAL_GRID**2  # squared: a 1, times the map of constants


class Pass(Protocol):
    """What is added up; every unit's part of it has a bounded length."""

    def total(self, records: Any) -> Ints:
        """Return the sum over some `Contributions`. Private."""


@dataclass(frozen=True)
class Counts:
    """How many units of each class there are."""

    n_classes: int

    def total(self, records: Any) -> Ints:
        """Return the sum of one-hot codes."""
        return sum_of_blocks(
            records.counts(self.n_classes),
            ONE,
            columns=self.n_classes,
            squared_length=COUNT_LENGTH,
            grouped=records.grouped,
        )


@dataclass(frozen=True)
class Gradient:
    """What records say about a current model."""

    question: Question

    def total(self, records: Any) -> Ints:
        """Return the sum of cells times residuals."""
        return sum_of_blocks(
            records.gradients(self.question),
            records.feature_map.linear_map,
            columns=self.question.weights.shape[1],
            squared_length=self.question.squared_length,
            grouped=records.grouped,
        )


@dataclass(frozen=True)
class Stacking:
    """What records say about how to weigh several models' logits."""

    sources: list[Source]
    question: StackQuestion

    def total(self, records: Any) -> Ints:
        """Return the sum of the slopes of scales and biases."""
        return sum_of_blocks(
            records.stacked(records.kept_logits(self.sources), self.question),
            ONE,
            columns=len(self.question.scales) + len(self.question.biases),
            squared_length=self.question.squared_length,
            grouped=records.grouped,
        )


@dataclass(frozen=True)
class Labels:
    """The features of each class, where labels alone are private."""

    columns: int
    squared_length: int

    def total(self, records: Any) -> Ints:
        """Return the sum of cells times label codes."""
        return sum_of_blocks(
            records.label_codes(self.columns, RESIDUAL_GRID),
            records.feature_map.linear_map,
            columns=self.columns,
            squared_length=self.squared_length,
            labels_only=True,
        )


@dataclass(frozen=True)
class Histograms:
    """How often each cell occurs, column by column, the label last."""

    sizes: tuple[int, ...]

    def total(self, records: Any) -> Ints:
        """Return all counts, one column after the other."""
        return np.concatenate(records.histograms(self.sizes))

    def split(self, total: Ints) -> list[Ints]:
        """Return the counts of each column."""
        return np.split(total, np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True)
class Copula:
    """How columns go together."""

    question: CopulaQuestion

    def total(self, records: Any) -> Ints:
        """Return the sum of z z' over the records."""
        return _total_of_pairs(records.scores(self.question), self.question, records)


@dataclass(frozen=True)
class Gram:
    """How the pieces of a step go together."""

    question: GramQuestion

    def total(self, records: Any) -> Ints:
        """Return the sum of q z z' over the records and classes."""
        return _total_of_pairs(records.pieces(self.question), self.question, records)


def _total_of_pairs(
    blocks: Iterator[PairBlock],
    question: CopulaQuestion | GramQuestion,
    records: Any,
) -> Ints:
    size = _entries(question, records)
    total = np.zeros((size, size), dtype=np.int64)
    for block in blocks:
        total += bounded_pair_sum(
            block, question.squared_length, grouped=records.grouped
        )
    return total


def _entries(question: CopulaQuestion | GramQuestion, records: Any) -> int:
    """Return how many entries each vector has: also where there are no records."""
    if isinstance(question, CopulaQuestion):
        return len(question.columns)
    return len(records.feature_map.pieces)
