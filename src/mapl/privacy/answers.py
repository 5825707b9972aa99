"""What mechanisms hand out, and the batches of values they take in.

The answers are public. The values and distances of a batch are private: no message
here shows them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mapl.arrays import Array, Bools, Floats, Ints
from mapl.errors import ParameterError
from mapl.privacy.votes import ABSTAIN


@dataclass(frozen=True)
class Answer:
    """What a mechanism hands out for a batch of queries. Public.

    Attributes
    ----------
    labels : ndarray, shape (n_queries,)
        The released values, ``ABSTAIN`` where there is none.
    answered : ndarray of bool, shape (n_queries,)
        Where a value was released.
    n_asked : int
        How many of the queries were put to the mechanism before it halted; the
        others were not looked at.
    """

    labels: Array
    answered: Bools
    n_asked: int


@dataclass(frozen=True)
class SoftAnswer:
    """What a mechanism of noisy counts hands out for a batch of queries. Public.

    Attributes
    ----------
    counts : ndarray of int, shape (n_queries, n_classes)
        Noisy counts. Where one class was not counted, its column is the number of
        teachers less the others.
    labels : ndarray of int, shape (n_queries,)
        The class with the largest noisy count.
    shares : ndarray of float, shape (n_queries, n_classes)
        Counts over the number of teachers: unbiased where no teacher is silent, and
        therefore sometimes below 0 or above 1.
    """

    counts: Ints
    labels: Ints
    shares: Floats

    def sure(self, lead: float) -> Ints:
        """Return the labels, ``ABSTAIN`` where the largest noisy count leads the next
        by less than ``lead`` teachers: with noise of scale sigma, 2 sigma is fairly
        sure and 4 sigma very.
        """
        top = np.sort(self.counts, axis=1)
        return np.where(top[:, -1] - top[:, -2] >= lead, self.labels, ABSTAIN)


@dataclass(frozen=True)
class ShareBatch:
    """Noisy shares of the vote on some public points, one guess a point. Public."""

    rows: Ints
    guess: Ints
    shares: Floats

    def dissent(self) -> float:
        """Estimate how many dissents the batch cost a teacher."""
        return float((1 - self.shares[np.arange(len(self.rows)), self.guess]).sum())


def checked_batch(
    values: npt.ArrayLike, distances: npt.ArrayLike
) -> tuple[Array, Ints]:
    """Return values and int64 distances of one length; never shows their contents."""
    value_array, distance_array = _value_by_value(values), np.asarray(distances)
    if distance_array.ndim != 1 or value_array.shape[:1] != distance_array.shape:
        raise ParameterError(
            "values and distances must have one entry a query, got "
            f"{len(value_array)} values and distances of shape {distance_array.shape}."
        )
    if distance_array.size == 0:
        distance_array = distance_array.astype(np.int64)
    if distance_array.dtype.kind not in "iu":
        raise ParameterError(
            f"distances must be integers, got {distance_array.dtype}. "
            "Round them down: np.floor(distances).astype(int)."
        )
    if distance_array.min(initial=0) < 0 or distance_array.max(initial=0) > 2**62:
        raise ParameterError("distances must be >= 0 and at most 2**62.")
    return value_array, distance_array.astype(np.int64, copy=False)


def _value_by_value(values: Any) -> Array:
    """Return integers as they are, and anything else as objects.

    The type of an array made of a list depends on all values: the type of what is
    released would reveal something about what is withheld.
    """
    plain = isinstance(values, np.ndarray) and values.ndim == 1
    if plain and values.dtype.kind in "iu":
        return np.asarray(values)
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        # A row of an array would hold on to the others.
        out[i] = value.copy() if isinstance(value, np.ndarray) else value
    return out


def released(values: Array, answered: Bools, *, n_asked: int) -> Answer:
    """Return the released values and nothing else."""
    integers = values.dtype.kind in "iu"
    labels = np.full(len(values), ABSTAIN, dtype=np.int64 if integers else object)
    labels[answered] = values[answered]
    return Answer(labels=labels, answered=answered, n_asked=n_asked)
