r"""Algorithms 1 and 2 of the paper: votes in, labels or ABSTAIN out.

Both release a value whose *distance* to changing is large, and withhold it else:

    released  iff  distance + discrete Laplace noise > threshold

`StableRelease` pays for each query. `SparseVector` pays for what it withholds only,
and stops after ``cutoff`` of these. What they require of the caller is the same:
between neighbours the distance moves by at most 1, and it is 0 for both where the
values differ. `Votes` gives such distances.

A mechanism's running state is private: it is not printed, copied or pickled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.calibration import (
    least_threshold,
    least_with_threshold_noise,
    least_without_threshold_noise,
)
from mapl.dissent import ChargedDissent, ConfidentNoisyMax, NoisyMax, SoftAnswer
from mapl.errors import (
    ParameterError,
    integer,
    positive,
    probability,
    rational,
)
from mapl.events import SparseVectorEvent, StableReleaseEvent
from mapl.guard import Guard
from mapl.noise import SYSTEM, Source, discrete_laplace
from mapl.votes import ABSTAIN, Votes

__all__ = [
    "ABSTAIN",
    "Answer",
    "ChargedDissent",
    "ConfidentNoisyMax",
    "NoisyMax",
    "SoftAnswer",
    "SparseVector",
    "StableRelease",
    "check_neighbours",
]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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

    labels: npt.NDArray[Any]
    answered: Bools
    n_asked: int


@dataclass(frozen=True, kw_only=True)
class StableRelease:
    r"""Release a value if it is stable, else ``ABSTAIN`` (Algorithm 1).

    Parameters
    ----------
    noise_scale : int or Fraction
        Scale of the discrete Laplace noise on the distance, > 0.
    threshold : int
        Released iff distance plus noise exceeds it.
    source : Source
        System randomness unless a test says otherwise.

    Notes
    -----
    Algorithm 1 [1]_: :math:`\mathrm{dist} + \mathrm{Lap}(s) > \Gamma`, one
    independent release a query.

    Requires: between neighbours the distance moves by at most 1, and it is 0 for
    both where the values differ.
    Guarantee: each query is :math:`(1/s, \delta)`-DP with
    :math:`\delta = P(\mathrm{Lap}(s) > \Gamma)`, which is at most the paper's
    :math:`e^{-\Gamma/s}`.
    Proof: docs/proofs/StableRelease.md

    References
    ----------
    .. [1] R. Bassily, O. Thakkar, A. Thakurta, "Model-Agnostic Private Learning",
       NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from mapl.mechanisms import StableRelease
    >>> from mapl.votes import Votes
    >>> votes = Votes.from_predictions(np.ones((101, 1), dtype=int), n_classes=2)
    >>> mechanism = StableRelease.for_budget(epsilon=1, delta=1e-5)
    >>> mechanism.threshold
    11
    >>> mechanism.answer(votes).labels
    array([1])
    """

    noise_scale: int | Fraction
    threshold: int
    source: Source = SYSTEM

    def __post_init__(self) -> None:
        _ = self.event

    @classmethod
    def for_budget(
        cls, *, epsilon: float, delta: float, source: Source = SYSTEM
    ) -> StableRelease:
        """Return the mechanism whose every query is (epsilon, delta)-DP.

        With the least noise for epsilon, then the least threshold for delta.
        """
        epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
        scale = accounting.round_up(1 / Fraction(epsilon))
        template = StableReleaseEvent(noise_scale=scale, threshold=0)
        return cls(
            noise_scale=scale,
            threshold=least_threshold(template, leak=delta),
            source=source,
        )

    @property
    def event(self) -> StableReleaseEvent:
        """What one query costs; for n queries, ``replace(event, count=n)``."""
        return StableReleaseEvent(
            noise_scale=rational(noise_scale=self.noise_scale),
            threshold=self.threshold,
            seeded=not self.source.private,
        )

    def answer(self, votes: Votes) -> Answer:
        """Release the winner of each query whose votes are stable."""
        return self.release(votes.winner, votes.distance)

    def release(self, values: npt.ArrayLike, distances: npt.ArrayLike) -> Answer:
        """Release each value whose distance is large: any function, not only votes.

        Parameters
        ----------
        values : array-like, shape (n_queries,)
            The function's value on the private data. The type of an array must be
            public: it leaves with the answers.
        distances : array-like of int >= 0, shape (n_queries,)
            How many units of the data may change before the value does. What this
            mechanism requires of them cannot be seen from one data set; try yours
            on neighbours with `check_neighbours`.
        """
        values, distances = _checked(values, distances)
        noise = discrete_laplace(self.noise_scale, distances.size, source=self.source)
        answered = distances + noise > self.threshold
        return _answer(values, answered, n_asked=distances.size)


class SparseVector:
    r"""Answer a stream of queries, paying only for those withheld (Algorithm 2).

    Queries come in batches of any size and are answered as if one by one. After
    exactly ``cutoff`` abstentions the mechanism halts: later queries are not looked
    at. Its whole price, `event`, is due when it is opened. Make one with
    `for_budget`; the constructor takes the parameters as they are.

    Parameters
    ----------
    noise_scale : int or Fraction
        Scale of the discrete Laplace noise on each distance, > 0.
    threshold : int
        Released iff distance plus noise exceeds threshold plus threshold noise.
    cutoff : int
        How many abstentions until it halts (the paper's T).
    threshold_noise_scale : int or Fraction
        Scale of the noise on the threshold; 0 for none.
    redrawn : bool
        Whether threshold noise is drawn afresh after each abstention.
    source : Source
        System randomness unless a test says otherwise.

    Attributes
    ----------
    event : SparseVectorEvent
        What the whole stream costs: ``accounting.epsilon([event], delta=...)``.
    n_abstained : int
        Abstentions so far; they are public, since each was handed out.
    halted : bool
        Whether ``cutoff`` is reached.

    Notes
    -----
    Requires: as `StableRelease`, of queries that may be chosen adaptively.
    Guarantee: the whole stream, however long, costs what accounting certifies for
    `event`.
    Proof: docs/proofs/SparseVector.md; for `published`,
    docs/proofs/published_constants.md

    Examples
    --------
    >>> import numpy as np
    >>> from mapl.mechanisms import SparseVector
    >>> from mapl.votes import Votes
    >>> mechanism = SparseVector.for_budget(epsilon=1, delta=1e-5, cutoff=5)
    >>> mechanism.threshold
    150
    >>> votes = Votes.from_predictions(np.ones((1001, 4), dtype=int), n_classes=2)
    >>> answer = mechanism.answer(votes)
    >>> answer.labels, answer.n_asked, mechanism.halted
    (array([1, 1, 1, 1]), 4, False)
    """

    def __init__(
        self,
        *,
        noise_scale: int | Fraction,
        threshold: int,
        cutoff: int,
        threshold_noise_scale: int | Fraction = 0,
        redrawn: bool = False,
        source: Source = SYSTEM,
    ) -> None:
        event = SparseVectorEvent(
            noise_scale=rational(noise_scale=noise_scale),
            threshold=threshold,
            threshold_noise_scale=rational(threshold_noise_scale=threshold_noise_scale),
            redrawn=redrawn,
            cutoff=cutoff,
        )
        self._open(event, source)

    def _open(self, event: SparseVectorEvent, source: Source) -> None:
        self.event = replace(event, seeded=not source.private)
        self.n_abstained = 0
        self._source = source
        self._threshold_noise: int | None = None
        self._guard = Guard(type(self).__name__)

    @classmethod
    def from_event(
        cls, event: SparseVectorEvent, *, source: Source = SYSTEM
    ) -> SparseVector:
        """Open the mechanism that ``event`` describes."""
        mechanism = cls.__new__(cls)
        mechanism._open(event, source)
        return mechanism

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        cutoff: int,
        restartable: bool = False,
        source: Source = SYSTEM,
    ) -> SparseVector:
        """Return the mechanism with the least threshold that is certified.

        Of equal thresholds, the one with least noise.

        Parameters
        ----------
        epsilon, delta : float
            What the whole stream may cost.
        cutoff : int
            After how many abstentions it halts.
        restartable : bool
            Without threshold noise there is no hidden state, so a restart is free;
            else it halts the mechanism. Up to a cutoff of about 13 threshold noise
            allows the lower threshold; True rules it out.
        source : Source
            System randomness unless a test says otherwise.
        """
        epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
        cutoff = integer(cutoff=cutoff, at_least=1)
        candidates = [least_without_threshold_noise(epsilon, delta, cutoff)]
        if not restartable:
            candidates.append(least_with_threshold_noise(epsilon, delta, cutoff))
        best = min(candidates, key=lambda event: (event.threshold, event.noise_scale))
        return cls.from_event(best, source=source)

    @classmethod
    def published(
        cls,
        *,
        epsilon: float,
        delta: float,
        cutoff: int,
        n_queries: int,
        source: Source = SYSTEM,
    ) -> SparseVector:
        r"""Return Algorithm 2 with the paper's constants, rounded up to integers.

        :math:`\lambda = \sqrt{32 T \ln(2/\delta)}/\epsilon`, threshold
        :math:`w = 2 \lambda \ln(2m/\delta)` with noise :math:`\lambda` redrawn after
        each abstention, noise :math:`2\lambda` on the margin less one. That distance
        moves by 2, not 1, when a teacher changes; what is certified takes this
        into account: ``accounting.epsilon([mechanism.event], delta=delta)``. It halts
        after exactly ``cutoff`` abstentions, where the printed loop allows one more.

        Guarantee: as accounting certifies for `event`, at sensitivity 2.
        Proof: docs/proofs/published_constants.md
        """
        epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
        cutoff = integer(cutoff=cutoff, at_least=1)
        n_queries = integer(n_queries=n_queries, at_least=1)
        lam = math.sqrt(32 * cutoff * math.log(2 / delta)) / epsilon
        event = SparseVectorEvent(
            noise_scale=Fraction(math.ceil(2 * lam)),
            threshold=math.ceil(2 * lam * math.log(2 * n_queries / delta)),
            threshold_noise_scale=Fraction(math.ceil(lam)),
            redrawn=True,
            cutoff=cutoff,
            sensitivity=2,
            instability=1,
        )
        return cls.from_event(event, source=source)

    @property
    def noise_scale(self) -> Fraction:
        """Scale of the noise on each distance."""
        return self.event.noise_scale

    @property
    def threshold(self) -> int:
        """What distance plus noise must exceed, before threshold noise."""
        return self.event.threshold

    @property
    def threshold_noise_scale(self) -> Fraction:
        """Scale of the noise on the threshold; 0 if there is none."""
        return self.event.threshold_noise_scale

    @property
    def cutoff(self) -> int:
        """How many abstentions halt the mechanism."""
        return self.event.cutoff

    @property
    def halted(self) -> bool:
        """Whether it has abstained ``cutoff`` times: nothing more is answered."""
        return self.n_abstained >= self.cutoff

    def answer(self, votes: Votes) -> Answer:
        """Release the winners of a batch of queries, as if they came one by one."""
        if self.event.sensitivity == 1:
            return self.release(votes.winner, votes.distance)
        if self.event.instability == 0:
            raise ParameterError(
                "instability must be >= 1 for votes at sensitivity 2, got 0: winners "
                "may differ where the margin less one is 1."
            )
        return self.release(votes.winner, votes.margin_distance)

    def release(self, values: npt.ArrayLike, distances: npt.ArrayLike) -> Answer:
        """Release a batch of a stream of values: any function, not only votes.

        Parameters
        ----------
        values : array-like, shape (n_queries,)
            The functions' values on the private data, as for `StableRelease`.
        distances : array-like of int >= 0, shape (n_queries,)
            As for `StableRelease.release`. Which functions come next may depend on
            what was released so far, and on nothing else that is private.
        """
        values, distances = _checked(values, distances)
        with self._guard:
            answered, n_asked = self._run(distances)
        return _answer(values, answered, n_asked=n_asked)

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, as JSON. Private, for a ledger to keep.

        Hidden threshold noise is not part of it.
        """
        drawn = self._threshold_noise is not None
        return {"n_abstained": self.n_abstained, "threshold_drawn": drawn}

    @classmethod
    def resume(
        cls,
        event: SparseVectorEvent,
        state: dict[str, Any],
        *,
        source: Source = SYSTEM,
    ) -> SparseVector:
        """Go on where a mechanism with this `event` and `state` stopped.

        Without threshold noise, this is free. If hidden threshold noise was lost,
        it counts as one abstention where that noise is redrawn, and halts the
        mechanism where it was to be drawn once.
        """
        mechanism = cls.from_event(event, source=source)
        n_abstained = integer(n_abstained=state["n_abstained"], at_least=0)
        if state["threshold_drawn"]:
            n_abstained = n_abstained + 1 if event.redrawn else event.cutoff
        mechanism.n_abstained = min(n_abstained, event.cutoff)
        return mechanism

    def _run(self, distances: Ints) -> tuple[Bools, int]:
        """Answer until the batch ends or the cutoff is reached."""
        noise = discrete_laplace(self.noise_scale, distances.size, source=self._source)
        noisy = distances + noise
        answered = np.zeros(noisy.size, dtype=np.bool_)
        position = 0
        while position < noisy.size and not self.halted:
            # A threshold serves until the next abstention, or until the end.
            most = 1 if self.event.redrawn else self.cutoff - self.n_abstained
            threshold = self._noisy_threshold()
            withheld = _first_at_most(noisy, threshold, position, most=most)
            stop = noisy.size if withheld.size < most else int(withheld[-1]) + 1
            answered[position:stop] = True
            answered[withheld] = False
            self.n_abstained += withheld.size
            if self.event.redrawn and withheld.size:
                self._threshold_noise = None
            position = stop
        return answered, position

    def _noisy_threshold(self) -> int:
        """Return the hidden threshold, drawn when it is first needed."""
        if self.threshold_noise_scale == 0:
            return self.threshold
        if self._threshold_noise is None:
            drawn = discrete_laplace(self.threshold_noise_scale, 1, source=self._source)
            self._threshold_noise = int(drawn[0])
        return self.threshold + self._threshold_noise

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        seeded = "" if self._source.private else ", NOT PRIVATE: seeded noise"
        return (
            f"SparseVector(noise_scale={self.noise_scale}, threshold={self.threshold}, "
            f"cutoff={self.cutoff}, "
            f"threshold_noise_scale={self.threshold_noise_scale}{seeded})"
        )


def check_neighbours(
    first: tuple[npt.ArrayLike, npt.ArrayLike],
    second: tuple[npt.ArrayLike, npt.ArrayLike],
) -> None:
    """Check what `StableRelease` and `SparseVector` require, on one pair of neighbours.

    Parameters
    ----------
    first, second : tuple of (values, distances)
        What your functions give on two data sets that differ in one unit. Use made-up
        data: the error tells which query it was.

    Raises
    ------
    ParameterError
        If a distance moves by more than 1, or is not 0 for both where values differ.

    Examples
    --------
    >>> from mapl.mechanisms import check_neighbours
    >>> check_neighbours(([3], [2]), ([3], [4]))
    Traceback (most recent call last):
    ...
    mapl.errors.ParameterError: distances must move by at most 1, query 0 moves by 2.
    """
    values, distances = _checked(*first)
    other_values, other_distances = _checked(*second)
    if distances.size != other_distances.size:
        raise ParameterError("first and second must hold the same queries.")
    moves = np.abs(distances - other_distances)
    if (moves > 1).any():
        query = int(np.argmax(moves > 1))
        raise ParameterError(
            f"distances must move by at most 1, query {query} moves by {moves[query]}."
        )
    pairs = zip(values, other_values, strict=True)
    differs = np.array([not np.array_equal(one, two) for one, two in pairs], dtype=bool)
    unstable = differs & ((distances > 0) | (other_distances > 0))
    if unstable.any():
        raise ParameterError(
            "distances must be 0 for both where values differ, "
            f"query {int(np.argmax(unstable))} is not."
        )


# Batches --------------------------------------------------------------------------


def _checked(
    values: npt.ArrayLike, distances: npt.ArrayLike
) -> tuple[npt.NDArray[Any], Ints]:
    """Return values and int64 distances of one length; never shows their contents."""
    value_array, distance_array = _one_by_one(values), np.asarray(distances)
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


def _one_by_one(values: Any) -> npt.NDArray[Any]:
    """Return integers as they are, and anything else as objects, each for itself.

    An array made of a list has a type that depends on all of its values: the type of
    what is released would tell of what is withheld.
    """
    if (
        isinstance(values, np.ndarray)
        and values.ndim == 1
        and values.dtype.kind in "iu"
    ):
        return values
    out = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _answer(values: npt.NDArray[Any], answered: Bools, *, n_asked: int) -> Answer:
    """Keep what may leave, and nothing that leads to the rest."""
    integers = values.dtype.kind in "iu"
    labels = np.full(len(values), ABSTAIN, dtype=np.int64 if integers else object)
    labels[answered] = values[answered]
    return Answer(labels=labels, answered=answered, n_asked=n_asked)


def _first_at_most(noisy: Ints, threshold: int, start: int, *, most: int) -> Ints:
    """Return the first ``most`` indices from start on with noisy <= threshold."""
    found: list[Ints] = []
    missing, width = most, 1024
    while start < noisy.size and missing > 0:
        low = np.flatnonzero(noisy[start : start + width] <= threshold)[:missing]
        found.append(low + start)
        missing -= low.size
        start += width
        width *= 2
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)
