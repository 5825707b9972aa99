"""What to ask next: a first look, then all points again, each time with a better guess.

Little is paid while the guess is poor. As it improves, dissent becomes rarer, and more
points can be asked for the same price.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from threadpoolctl import threadpool_limits

from mapl.arrays import Floats, Ints
from mapl.privacy.answers import ShareBatch
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.progress import Progress
from mapl.student.smoothing import Shares, Smoother, decide

FIRST_SHARE, FEWEST = 0.25, 50  # the first batch: share of the pool, and least size
LEAST_DISSENT = 0.02  # price of a point, at least
NEARLY_SPENT = 0.95  # share of the dissents that is planned with
LEAST_SHARE = 0.1  # of the pool that is worth another batch
MOST_ASKS = 30  # per point


@dataclass(frozen=True)
class SoftLabels:
    """What the rounds of asking came to. Public.

    ``noisy`` are the averaged shares as published, ``smooth`` is what regression makes
    of them. ``labels`` are ABSTAIN where they are open. ``asked`` is each batch's
    number of points and ``spent`` the part of the dissents used by then, estimated from
    what was published.
    """

    noisy: Floats
    smooth: Floats
    labels: Ints
    asked: list[int]
    spent: list[float]


class Rounds:
    """Asks about all points again and again until the dissents are nearly spent.

    How much is spent is estimated from what was published: the shares that disagreed.
    The mechanism's public parameters are used here; it is not asked. The loop that
    connects the rounds with whoever answers::

        with Rounds(features, mechanism, seed=0) as rounds:
            while not rounds.done:
                rounds.take(labeler.shares(*rounds.next()))
        soft = rounds.result()
    """

    def __init__(
        self, features: Floats, mechanism: ChargedDissent, *, seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        self._n, self._dissents = len(features), mechanism.dissents
        self._variance = (float(mechanism.sigma) / mechanism.n_teachers) ** 2
        self._shares = Shares(self._n, mechanism.n_classes)
        with threadpool_limits(1):  # last bits depend on the number of threads
            self._smoother = Smoother(features, self._variance, rng)
        self._order = _Order(self._n, rng)
        self._guess: Ints = np.zeros(self._n, dtype=np.int64)
        self._size: float = max(FIRST_SHARE * self._n, FEWEST)
        self._price = 1 - 1 / mechanism.n_classes  # of a point, in dissents
        self._disagreed = 0.0
        self._asked: list[int] = []
        self._spent: list[float] = []
        self._smooth: Floats | None = None
        self._progress = Progress("Asking in rounds", 100)
        self.done = False

    def __enter__(self) -> Self:
        self._threads = threadpool_limits(
            1
        )  # small products lose by waiting for threads
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(*error)
        self._threads.restore_original_limits()

    def next(self) -> tuple[Ints, Ints]:
        """Return the points to ask about next, and a guess for each."""
        rows = self._order.take(self._size)
        return rows, self._guess[rows]

    def take(self, batch: ShareBatch) -> None:
        """Learn from a published batch."""
        self._shares.add(batch)
        self._asked.append(len(batch.rows))
        # Noise may hide what a batch has cost; half of what was expected is certain.
        self._disagreed += max(batch.dissent(), self._price * len(batch.rows) / 2)
        self._spent.append(self._disagreed / self._dissents)
        self._progress.advance(int(90 * min(self._spent[-1], 1)) - self._progress.done)
        self._smooth = self._smoother.fit(self._shares, self._spent[-1], last=False)
        self._plan_next(self._smooth)
        if self.done:
            self._smooth = self._smoother.fit(self._shares, 1.0, last=True)

    def _plan_next(self, smooth: Floats) -> None:
        """Choose guess and size of the next batch."""
        self._guess = smooth.argmax(axis=1)
        self._price = max(1 - float(smooth.max(axis=1).mean()), LEAST_DISSENT)
        left = (NEARLY_SPENT - self._spent[-1]) * self._dissents
        self._size = min(self._n, left / self._price)
        little_left = self._size < LEAST_SHARE * self._n
        self.done = little_left or sum(self._asked) > MOST_ASKS * self._n

    def result(self) -> SoftLabels:
        """Return what the rounds came to."""
        assert self._smooth is not None  # at least one batch was taken
        return SoftLabels(
            noisy=self._shares.mean(),
            smooth=self._smooth,
            labels=decide(self._shares, self._smooth, self._variance).labels(),
            asked=self._asked,
            spent=self._spent,
        )


class _Order:
    """All points in random order, again and again."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self._n, self._rng = n, rng
        self._next: Ints = np.zeros(0, dtype=np.int64)

    def take(self, size: float) -> Ints:
        """Return so many points, none of them twice."""
        size = max(1, min(int(size), self._n))
        if len(self._next) < size:
            self._next = np.append(self._next, self._rng.permutation(self._n))
        rows, self._next = np.split(self._next, [size])
        return np.unique(rows)
