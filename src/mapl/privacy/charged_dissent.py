r"""Noisy counts of who disagrees with a public guess; only they pay.

Teachers who agree with the guess add nothing and pay nothing. A teacher who disagrees
pays one of its own ``dissents``, and is silent for good when it has none left.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mapl.arrays import Ints
from mapl.errors import ParameterError, integer, rational
from mapl.privacy.answers import SoftAnswer
from mapl.privacy.calibration import least_sigma
from mapl.privacy.guard import (
    Guard,
    check_classes,
    check_queries_left,
    seeded_suffix,
)
from mapl.privacy.noise import SYSTEM, Source
from mapl.privacy.noisy_counts import (
    gaussian_event,
    publish,
    steps_per_query,
)
from mapl.privacy.votes import NO_VOTE, Votes

_BLOCK_VOTES = 1 << 22  # votes counted at a time


class ChargedDissent:
    r"""Count only who disagrees with a public guess, and charge only them.

    Parameters
    ----------
    sigma : int or Fraction
        Scale of the discrete Gaussian noise on each count.
    dissents : int
        How often each teacher may disagree (B). Then it is silent.
    n_teachers, n_classes : int
        As declared; every batch must have them.
    n_queries : int or None
        How many queries it answers at most, where that is known: they may cost less
        than the dissents. Each of them then needs a guess.
    source : Source
        System randomness unless a test says otherwise.

    Attributes
    ----------
    event : GaussianEvent
        What everything costs, whatever is asked and however often: 2 ``dissents`` unit
        steps, or one or two for each of ``n_queries`` if those are fewer.

    Notes
    -----
    Requires: one unit changes the votes of at most one teacher. Guesses and the choice
    of queries are computed from public data and from what was published, and from
    nothing else.
    Guarantee: for any number of adaptive queries, dominated by 2 ``dissents`` discrete
    Gaussians of sensitivity 1; for n queries with a guess by n min(2, n_classes - 1).
    Proof: docs/proofs/ChargedDissent.md

    Examples
    --------
    >>> import numpy as np
    >>> from mapl.privacy.charged_dissent import ChargedDissent
    >>> from mapl.privacy.votes import Votes
    >>> predictions = np.zeros((400, 1000), dtype=int)
    >>> predictions[:, 7] = 2
    >>> votes = Votes.from_predictions(predictions, n_classes=3)
    >>> mechanism = ChargedDissent.for_budget(
    ...     epsilon=2, delta=1e-5, dissents=10, n_teachers=400, n_classes=3
    ... )
    >>> answer = mechanism.answer(votes, guess=np.zeros(1000, dtype=int))
    >>> int(answer.labels[7]), int(np.count_nonzero(answer.labels))
    (2, 1)
    """

    def __init__(
        self,
        *,
        sigma: int | Fraction,
        dissents: int,
        n_teachers: int,
        n_classes: int,
        n_queries: int | None = None,
        source: Source = SYSTEM,
    ) -> None:
        self.sigma = rational(sigma=sigma)
        self.dissents = integer(dissents=dissents, at_least=1)
        self.n_teachers = integer(n_teachers=n_teachers, at_least=1)
        self.n_classes = integer(n_classes=n_classes, at_least=2)
        self.n_queries = n_queries
        if n_queries is not None:
            self.n_queries = integer(n_queries=n_queries, at_least=1)
        self.n_asked = 0
        steps = _dissent_steps(self.dissents, self.n_classes, self.n_queries)
        self.event = gaussian_event(self.sigma, steps, source=source)
        self._left = np.full(self.n_teachers, self.dissents, dtype=np.int64)
        self._source = source
        self._guard = Guard(type(self).__name__)

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        dissents: int,
        n_teachers: int,
        n_classes: int,
        n_queries: int | None = None,
        source: Source = SYSTEM,
    ) -> ChargedDissent:
        """Return the mechanism with the least noise that is certified.

        What matters is dissents/sigma**2: more dissents with more noise allow more
        asking for the same information, so ``dissents`` need not be guessed well. It
        must be public, a share of the number of queries for instance.
        """
        dissents = integer(dissents=dissents, at_least=1)
        n_classes = integer(n_classes=n_classes, at_least=2)
        steps = _dissent_steps(dissents, n_classes, n_queries)
        return cls(
            sigma=least_sigma(epsilon=epsilon, delta=delta, steps=steps),
            dissents=dissents,
            n_teachers=n_teachers,
            n_classes=n_classes,
            n_queries=n_queries,
            source=source,
        )

    def answer(
        self,
        votes: Votes,
        guess: Any = None,
        *,
        points: Any = None,
        before_draw: Callable[[], None] = lambda: None,
    ) -> SoftAnswer:
        """Publish the noisy counts of who disagrees with the guess.

        Parameters
        ----------
        votes : Votes
            A batch of queries, answered as if one by one.
        guess : array-like of int, fitted classifier, callable, or None
            A class index for each query, from public values only; or what predicts
            one from ``points``. With None every vote counts and every teacher pays.
        points : array-like
            The public points that are asked about, where the guess needs them.
        before_draw : callable
            Called when the teachers have paid and no noise is drawn yet: the moment
            to store `state`.
        """
        check_classes(votes, self.n_classes)
        if votes.n_teachers != self.n_teachers:
            raise ParameterError(
                f"votes must be of n_teachers = {self.n_teachers} teachers, "
                f"got {votes.n_teachers}."
            )
        if callable(predict := getattr(guess, "predict", guess)):
            guess = predict(points)
        guesses = self._checked_guess(guess, votes.n_queries)
        with self._guard:
            if self.n_queries is not None:
                check_queries_left(votes, self.n_queries - self.n_asked)
            self.n_asked += votes.n_queries
            counts = self._charge(votes, guesses)
            before_draw()
            return publish(counts, guesses, self.n_teachers, self.sigma, self._source)

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, as JSON. Private: it tells who disagreed."""
        return {"left": self._left.tolist(), "asked": self.n_asked}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a mechanism with the same parameters stopped."""
        left = np.asarray(state["left"], dtype=np.int64)
        if (
            left.shape != self._left.shape
            or left.min() < 0
            or left.max() > self.dissents
        ):
            raise ParameterError(
                "state must hold a number from 0 to dissents for each teacher."
            )
        with self._guard:
            self._left = np.minimum(self._left, left)
            self.n_asked = max(self.n_asked, int(state["asked"]))

    def _charge(self, votes: Votes, guesses: Ints | None) -> Ints:
        """Count the dissenting votes that their teachers can still pay for."""
        counts = np.empty((votes.n_queries, self.n_classes), dtype=np.int64)
        step = max(1, _BLOCK_VOTES // self.n_teachers)
        for start in range(0, votes.n_queries, step):
            block = slice(start, start + step)
            ballots = votes.predictions[:, block]
            dissent = ballots != NO_VOTE
            if guesses is not None:
                dissent &= ballots != guesses[block].astype(ballots.dtype)
            asked = np.count_nonzero(dissent, axis=1)
            if (asked > self._left).any():  # some fall silent in the middle
                paid = np.cumsum(dissent, axis=1, dtype=np.int32)
                dissent &= paid <= self._left[:, None]
                asked = np.count_nonzero(dissent, axis=1)
                ballots = np.where(dissent, ballots, ballots.dtype.type(NO_VOTE))
            self._left -= asked
            counts[block] = Votes(ballots, self.n_classes).counts
        if guesses is not None:
            counts[np.arange(len(counts)), guesses] = 0  # who agrees is not counted
        return counts

    def _checked_guess(self, guess: npt.ArrayLike | None, n: int) -> Ints | None:
        """Return a class index for each query, or None for no guess."""
        if guess is None and self.n_queries is not None:
            raise ParameterError(
                "guess must be given where n_queries is: a query without a guess costs "
                "more than was paid for it."
            )
        if guess is None:
            return None
        guesses = np.asarray(guess)
        if guesses.shape != (n,) or guesses.dtype.kind not in "iu":
            raise ParameterError(
                f"guess must hold {n} class indices, got {guesses.dtype} of shape "
                f"{guesses.shape}."
            )
        if n and not 0 <= guesses.min() <= guesses.max() < self.n_classes:
            raise ParameterError(
                f"guess must lie between 0 and n_classes - 1 = {self.n_classes - 1}, "
                f"got {guesses.min()} to {guesses.max()}."
            )
        return guesses.astype(np.int64)

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return (
            f"ChargedDissent(sigma={self.sigma}, dissents={self.dissents}, "
            f"n_teachers={self.n_teachers}, n_classes={self.n_classes}"
            f"{seeded_suffix(self._source)})"
        )


def _dissent_steps(dissents: int, n_classes: int, n_queries: int | None) -> int:
    """Unit steps of all that a `ChargedDissent` publishes."""
    if n_queries is None:
        return 2 * dissents
    queries = integer(n_queries=n_queries, at_least=1)
    return min(2 * dissents, queries * steps_per_query(n_classes))
