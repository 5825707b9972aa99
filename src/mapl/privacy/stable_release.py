r"""Algorithm 1: release a value if it is stable.

    released  iff  distance + discrete Laplace noise > threshold

`SparseVector` requires the same of its caller: between neighbours the distance moves by
at most 1, and it is 0 for both where the values differ. `Votes` gives such distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from mapl.errors import ParameterError, positive, probability, rational
from mapl.privacy.answers import Answer, checked_batch, released
from mapl.privacy.calibration import least_threshold
from mapl.privacy.events import StableReleaseEvent
from mapl.privacy.noise import SYSTEM, Source, discrete_laplace
from mapl.privacy.rounding import fraction_up
from mapl.privacy.votes import Votes


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
    >>> from mapl.privacy.stable_release import StableRelease
    >>> from mapl.privacy.votes import Votes
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
        scale = fraction_up(1 / Fraction(epsilon))
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
        values, distances = checked_batch(values, distances)
        noise = discrete_laplace(self.noise_scale, distances.size, source=self.source)
        answered = distances + noise > self.threshold
        return released(values, answered, n_asked=distances.size)


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
    >>> from mapl.privacy.stable_release import check_neighbours
    >>> check_neighbours(([3], [2]), ([3], [4]))
    Traceback (most recent call last):
    ...
    mapl.errors.ParameterError: distances must move by at most 1, query 0 moves by 2.
    """
    values, distances = checked_batch(*first)
    other_values, other_distances = checked_batch(*second)
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
