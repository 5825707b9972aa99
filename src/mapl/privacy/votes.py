"""From the teachers' predictions to counts, winner and distance.

Everything here is private. A `Votes` prints its shape and nothing else, and only a
mechanism may turn it into something public.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from mapl.arrays import Counts, Integers, Ints
from mapl.errors import ParameterError, integer

ABSTAIN = -1
"""Among released labels: no answer (the paper's bottom)."""

NO_VOTE = -1
"""Among votes: this teacher has nothing to say."""


_UNBOUNDED = 2**62  # distance where there is one class, hence no way to change it
_BLOCK_BYTES = 1 << 19  # predictions counted at a time: they stay in cache
_FEW_CLASSES = 32  # up to here one pass a class is faster than one scatter


class Votes:
    """The votes of every teacher on a batch of queries. Private.

    Made by `Votes.from_predictions`. Between neighbouring data sets the votes of at
    most one teacher (one row of the predictions) differ; all that is claimed of
    `distance` rests on that.

    Notes
    -----
    Proof: docs/proofs/distance.md

    Examples
    --------
    Five teachers, two queries, classes 0 and 1; the last teacher has no vote on the
    second query.

    >>> from mapl.privacy.votes import NO_VOTE, Votes
    >>> predictions = [[0, 1], [0, 1], [0, 0], [0, 1], [1, NO_VOTE]]
    >>> votes = Votes.from_predictions(predictions, n_classes=2)
    >>> votes
    Votes(5 teachers, 2 queries, 2 classes)
    >>> votes.winner
    array([0, 1])
    >>> votes.distance
    array([1, 0])
    """

    def __init__(self, predictions: Integers, n_classes: int):
        self.n_classes = int(n_classes)
        self.predictions = _signed(predictions, self.n_classes)

    @classmethod
    def from_predictions(cls, predictions: npt.ArrayLike, *, n_classes: int) -> Votes:
        """Check predictions (teachers x queries) and wrap them, where possible without
        a copy.

        Parameters
        ----------
        predictions : array-like of int, shape (n_teachers, n_queries)
            Class indices 0 to n_classes - 1, or ``NO_VOTE``. int8 is the leanest.
        n_classes : int
            How many classes there are: declared, never read off the votes.
        """
        n_classes = integer(n_classes=n_classes, at_least=1)
        array = np.asarray(predictions)
        if array.ndim != 2:
            raise ParameterError(
                "predictions must have the shape (n_teachers, n_queries), "
                f"got {array.ndim} dimension(s)."
            )
        if array.dtype == np.bool_ or (array.size == 0 and array.dtype.kind == "f"):
            array = array.astype(np.int8)
        if array.dtype.kind not in "iu":
            raise ParameterError(
                f"predictions must be integers, got {array.dtype}. Pass the index of "
                "each class in your list of classes, and NO_VOTE where there is none."
            )
        lowest, highest = array.min(initial=0), array.max(initial=0)
        if lowest < NO_VOTE or highest >= n_classes:
            # Which value it was is private: the message names the constraint only.
            raise ParameterError(
                f"predictions must lie between {NO_VOTE} (no vote) and n_classes - 1 "
                f"= {n_classes - 1}. Pass class indices, not labels."
            )
        return cls(array, n_classes)

    @property
    def n_teachers(self) -> int:
        """How many teachers there are, with or without a vote (public)."""
        return int(self.predictions.shape[0])

    @property
    def n_queries(self) -> int:
        """How many queries were put to them (public)."""
        return int(self.predictions.shape[1])

    @property
    def counts(self) -> Counts:
        """Votes for each class, shape (n_queries, n_classes)."""
        return self._by_class.T

    @property
    def winner(self) -> Ints:
        """The class with most votes, the smallest index on ties."""
        return self._winner_and_runner_up[0]

    @property
    def distance(self) -> Ints:
        """How many votes may change, in any way, before the winner does.

        It moves by at most 1 when one teacher changes, and is 0 for both of two
        neighbours whose winners differ.
        """
        if self.n_classes == 1:
            return np.full(self.n_queries, _UNBOUNDED, dtype=np.int64)
        _, top, runner_up = self._winner_and_runner_up
        return (top - runner_up).astype(np.int64) // 2

    @property
    def margin_distance(self) -> Ints:
        """The paper's max(0, margin - 1): twice as sensitive as `distance`.

        It moves by at most 2 when one teacher changes, and is at most 1 for both of
        two neighbours whose winners differ (Algorithm 2, line 7).
        """
        if self.n_classes == 1:
            return np.full(self.n_queries, _UNBOUNDED, dtype=np.int64)
        top_two = np.partition(self._by_class, -2, axis=0)[-2:]
        margin = (top_two[1] - top_two[0]).astype(np.int64)
        return np.asarray(np.maximum(margin - 1, 0))

    def __repr__(self) -> str:
        return (
            f"Votes({self.n_teachers} teachers, {self.n_queries} queries, "
            f"{self.n_classes} classes)"
        )

    @cached_property
    def _by_class(self) -> Counts:
        """Counts with one row a class: the layout in which numpy adds fastest."""
        counts = np.empty((self.n_classes, self.n_queries), dtype=np.int32)
        width = max(1, _BLOCK_BYTES // max(1, self.predictions[:, :1].nbytes))
        count = _count_few if self.n_classes <= _FEW_CLASSES else _count_many
        for start in range(0, self.n_queries, width):
            count(
                self.predictions[:, start : start + width],
                counts[:, start : start + width],
            )
        return counts

    @cached_property
    def _winner_and_runner_up(self) -> tuple[Ints, Counts, Counts]:
        """Winner, its count, and the largest count among the others.

        A class before the winner counts one more: it would win a tie.
        """
        counts = self._by_class
        winner = np.zeros(self.n_queries, dtype=np.int64)
        top = counts[0].copy()
        runner_up = np.full(self.n_queries, -1, dtype=np.int32)
        for candidate in range(1, self.n_classes):
            count = counts[candidate]
            wins = count > top
            np.maximum(runner_up, np.where(wins, top + 1, count), out=runner_up)
            np.copyto(top, count, where=wins)
            winner[wins] = candidate
        return winner, top, runner_up


def _signed(predictions: Integers, n_classes: int) -> Integers:
    """Return the votes in a type that holds ``NO_VOTE`` and every class, without a
    copy where they are in one.
    """
    wide = np.min_scalar_type(-max(n_classes, 1) - 1)
    fits = predictions.dtype.kind == "i" and np.can_cast(wide, predictions.dtype)
    return predictions if fits else predictions.astype(wide)


def _count_few(block: Integers, out: Counts) -> None:
    """Count by one comparison per class; bytes add up in groups of 255 teachers."""
    out[:] = 0
    for start in range(0, block.shape[0], 255):
        group = block[start : start + 255]
        for index in range(out.shape[0]):
            out[index] += (group == index).sum(axis=0, dtype=np.uint8)


def _count_many(block: Integers, out: Counts) -> None:
    """Count by scattering each vote to its (class, query) cell."""
    n_classes, n_queries = out.shape
    cell = block.astype(np.int64)
    voted = cell != NO_VOTE
    cell *= n_queries
    cell += np.arange(n_queries)
    out[:] = np.bincount(cell[voted], minlength=n_classes * n_queries).reshape(
        n_classes, n_queries
    )
