r"""Noisy counts: `NoisyMax`, and `ChargedDissent`, which charges who disagrees.

Both add discrete Gaussian noise to the teachers' counts and publish the result; all
that follows, the label, how sure it is, the shares of the vote, is post-processing and
free. `NoisyMax` pays for every query. In `ChargedDissent` there is a public guess for
each query: teachers who agree with it add nothing and pay nothing, a teacher who
disagrees pays one of its own ``dissents``, and falls silent for ever when it has none
left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.errors import (
    BudgetExceededError,
    ParameterError,
    integer,
    positive,
    probability,
    rational,
)
from mapl.events import ConfidentMaxEvent, GaussianEvent
from mapl.guard import Guard
from mapl.noise import SYSTEM, Source, discrete_gaussian
from mapl.votes import ABSTAIN, NO_VOTE, Votes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BLOCK_VOTES = 1 << 22  # votes looked at in one go


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


class NoisyMax:
    r"""Publish all counts with Gaussian noise, each query paid for (GNMax).

    Parameters
    ----------
    sigma : int or Fraction
        Scale of the discrete Gaussian noise on each count.
    n_queries : int
        How many queries it answers; fixed when it is opened, and paid for then.
    n_classes : int
        With two classes only the second is counted: one unit step a query, else two.
    source : Source
        System randomness unless a test says otherwise.

    Notes
    -----
    Requires: one unit changes the votes of at most one teacher.
    Guarantee: all ``n_queries`` together cost what accounting certifies for `event`.
    Proof: docs/proofs/ChargedDissent.md, "NoisyMax"

    Examples
    --------
    >>> import numpy as np
    >>> from mapl.mechanisms import NoisyMax
    >>> from mapl.votes import Votes
    >>> votes = Votes.from_predictions(np.ones((500, 3), dtype=int), n_classes=2)
    >>> mechanism = NoisyMax.for_budget(
    ...     epsilon=1, delta=1e-5, n_queries=3, n_classes=2
    ... )
    >>> mechanism.answer(votes).labels
    array([1, 1, 1])
    """

    def __init__(
        self,
        *,
        sigma: int | Fraction,
        n_queries: int,
        n_classes: int,
        source: Source = SYSTEM,
    ) -> None:
        self.sigma = rational(sigma=sigma)
        self.n_queries = integer(n_queries=n_queries, at_least=1)
        self.n_classes = integer(n_classes=n_classes, at_least=2)
        self.n_asked = 0
        self.event = _event(
            self.sigma, steps_per_query(n_classes) * n_queries, source=source
        )
        self._source = source
        self._guard = Guard(type(self).__name__)

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        n_queries: int,
        n_classes: int,
        source: Source = SYSTEM,
    ) -> NoisyMax:
        """Return the mechanism with the least noise that is certified."""
        n_classes = integer(n_classes=n_classes, at_least=2)
        n_queries = integer(n_queries=n_queries, at_least=1)
        sigma = least_sigma(
            epsilon=epsilon, delta=delta, steps=steps_per_query(n_classes) * n_queries
        )
        return cls(sigma=sigma, n_queries=n_queries, n_classes=n_classes, source=source)

    def answer(self, votes: Votes) -> SoftAnswer:
        """Publish the noisy counts of a batch of queries."""
        _check_classes(votes, self.n_classes)
        with self._guard:
            _check_left(votes, self.n_queries - self.n_asked)
            self.n_asked += votes.n_queries
            return _publish_all(
                votes.counts, votes.n_teachers, self.sigma, self._source
            )

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return (
            f"NoisyMax(sigma={self.sigma}, n_queries={self.n_queries}, "
            f"n_classes={self.n_classes}{_mark(self._source)})"
        )


class ConfidentNoisyMax:
    r"""Publish a label only where enough teachers agree (Confident-GNMax, PATE 2018).

    The top count with noise of scale ``check_sigma`` must reach ``threshold``; then the
    label with the largest noisy count is published, else ABSTAIN. It halts after
    ``n_answers`` labels.

    Parameters
    ----------
    sigma, check_sigma : int or Fraction
        Scales of the discrete Gaussian noise on the counts, and on the top count.
    threshold : int
        What the noisy top count must reach.
    n_queries, n_answers : int
        How many queries it looks at, and how many it answers; paid for when opened.
    n_classes : int
        As declared.
    source : Source
        System randomness unless a test says otherwise.

    Notes
    -----
    Requires: one unit changes the votes of at most one teacher.
    Guarantee: everything together costs what accounting certifies for `event`,
    whatever the votes. (The epsilons of the PATE papers depend on the votes, and may
    not be published.)
    Proof: docs/proofs/ChargedDissent.md, "ConfidentNoisyMax"

    Examples
    --------
    >>> import numpy as np
    >>> from mapl.mechanisms import ConfidentNoisyMax
    >>> from mapl.votes import Votes
    >>> votes = Votes.from_predictions(np.ones((2500, 3), dtype=int), n_classes=10)
    >>> mechanism = ConfidentNoisyMax(
    ...     sigma=40, check_sigma=150, threshold=1500, n_queries=3, n_answers=2,
    ...     n_classes=10,
    ... )
    >>> mechanism.answer(votes)
    array([ 1,  1, -1])
    """

    def __init__(
        self,
        *,
        sigma: int | Fraction,
        check_sigma: int | Fraction,
        threshold: int,
        n_queries: int,
        n_answers: int,
        n_classes: int,
        source: Source = SYSTEM,
    ) -> None:
        self.sigma = rational(sigma=sigma)
        self.check_sigma = rational(check_sigma=check_sigma)
        self.threshold = integer(threshold=threshold, at_least=0)
        self.n_queries = integer(n_queries=n_queries, at_least=1)
        self.n_answers = integer(n_answers=n_answers, at_least=1)
        self.n_classes = integer(n_classes=n_classes, at_least=2)
        self.n_asked = self.n_answered = 0
        self.event = ConfidentMaxEvent(
            check_sigma=self.check_sigma,
            checks=self.n_queries,
            sigma=self.sigma,
            steps=steps_per_query(n_classes) * self.n_answers,
            seeded=not source.private,
        )
        self._source = source
        self._guard = Guard(type(self).__name__)

    def answer(self, votes: Votes) -> Ints:
        """Return labels, ``ABSTAIN`` where too few agree or all answers are given."""
        _check_classes(votes, self.n_classes)
        with self._guard:
            _check_left(votes, self.n_queries - self.n_asked)
            self.n_asked += votes.n_queries
            counts = votes.counts.astype(np.int64)
            size = (votes.n_queries,)
            noise = discrete_gaussian(self.check_sigma, size, source=self._source)
            passed = counts.max(axis=1) + noise >= self.threshold
            passed &= np.cumsum(passed) <= self.n_answers - self.n_answered
            self.n_answered += int(passed.sum())
            labels = np.full(votes.n_queries, ABSTAIN, dtype=np.int64)
            labels[passed] = _publish_all(
                counts[passed], votes.n_teachers, self.sigma, self._source
            ).labels
            return labels

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return (
            f"ConfidentNoisyMax(sigma={self.sigma}, check_sigma={self.check_sigma}, "
            f"threshold={self.threshold}, n_queries={self.n_queries}, "
            f"n_answers={self.n_answers}, n_classes={self.n_classes}"
            f"{_mark(self._source)})"
        )


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
    >>> from mapl.mechanisms import ChargedDissent
    >>> from mapl.votes import Votes
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
        self.n_asked = 0
        steps = _dissent_steps(dissents, n_classes, n_queries)
        self.event = _event(self.sigma, steps, source=source)
        self._left = np.full(n_teachers, dissents, dtype=np.int64)
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
        must be public: a share of the number of queries, say.
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
        _check_classes(votes, self.n_classes)
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
                _check_left(votes, self.n_queries - self.n_asked)
            self.n_asked += votes.n_queries
            counts = self._charge(votes, guesses)
            before_draw()
            return _publish(counts, guesses, self.n_teachers, self.sigma, self._source)

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
            said = votes.predictions[:, block]
            dissent = said != NO_VOTE
            if guesses is not None:
                dissent &= said != guesses[block].astype(said.dtype)
            asked = np.count_nonzero(dissent, axis=1)
            if (asked > self._left).any():  # some fall silent in the middle
                paid = np.cumsum(dissent, axis=1, dtype=np.int32)
                dissent &= paid <= self._left[:, None]
                asked = np.count_nonzero(dissent, axis=1)
                said = np.where(dissent, said, said.dtype.type(NO_VOTE))
            self._left -= asked
            counts[block] = Votes(said, self.n_classes).counts
        if guesses is not None:
            counts[np.arange(len(counts)), guesses] = 0  # who agrees is not counted
        return counts

    def _checked_guess(self, guess: npt.ArrayLike | None, n: int) -> Ints | None:
        if guess is None and self.n_queries is not None:
            raise ParameterError(
                "guess must be given where n_queries was: without one a query costs "
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
            f"{_mark(self._source)})"
        )


def _dissent_steps(dissents: int, n_classes: int, n_queries: int | None) -> int:
    """Unit steps of all that a `ChargedDissent` publishes."""
    if n_queries is None:
        return 2 * dissents
    queries = integer(n_queries=n_queries, at_least=1)
    return min(2 * dissents, queries * steps_per_query(n_classes))


def steps_per_query(n_classes: int) -> int:
    """How many counts one teacher moves by 1 when it changes its vote."""
    return 1 if n_classes == 2 else 2


def least_sigma(*, epsilon: float, delta: float, steps: int) -> Fraction:
    """Return the least sigma for which so many unit steps are certified."""
    return accounting.least_scale(
        lambda sigma: GaussianEvent(sigma=sigma, steps=steps),
        epsilon=positive(epsilon=epsilon),
        delta=probability(delta=delta),
    )


def _event(sigma: Fraction, steps: int, *, source: Source) -> GaussianEvent:
    return GaussianEvent(sigma=sigma, steps=steps, seeded=not source.private)


def _publish_all(
    votes: npt.NDArray[np.integer[Any]],
    n_teachers: int,
    sigma: Fraction,
    source: Source,
) -> SoftAnswer:
    """Publish counts without a guess. With two classes only the second is counted,
    with half of those who do not vote; a change of one vote moves it by 1 at most.
    """
    counts = votes.astype(np.int64)
    if counts.shape[1] > 2:
        return _publish(counts, None, n_teachers, sigma, source)
    counts[:, 1] += (n_teachers - counts.sum(axis=1)) // 2
    first = np.zeros(len(counts), dtype=np.int64)
    return _publish(counts, first, n_teachers, sigma, source)


def _publish(
    counts: Ints,
    uncounted: Ints | None,
    n_teachers: int,
    sigma: Fraction,
    source: Source,
) -> SoftAnswer:
    """Add fresh noise to each count that was taken; fill the one that was not."""
    if uncounted is None:
        noisy = counts + discrete_gaussian(sigma, counts.shape, source=source)
    else:
        rows = np.arange(len(counts))
        taken = np.ones(counts.shape, dtype=bool)
        taken[rows, uncounted] = False
        noisy = np.zeros_like(counts)
        noise = discrete_gaussian(sigma, (int(taken.sum()),), source=source)
        noisy[taken] = counts[taken] + noise
        noisy[rows, uncounted] = n_teachers - noisy.sum(axis=1)
    return SoftAnswer(
        counts=noisy, labels=noisy.argmax(axis=1), shares=noisy / n_teachers
    )


def _check_classes(votes: Votes, n_classes: int) -> None:
    if votes.n_classes != n_classes:
        raise ParameterError(
            f"votes must have n_classes = {n_classes}, got {votes.n_classes}."
        )


def _check_left(votes: Votes, left: int) -> None:
    if votes.n_queries > left:
        raise BudgetExceededError(
            f"{votes.n_queries} queries were asked, {left} are left of what was paid "
            "for. Nothing was released."
        )


def _mark(source: Source) -> str:
    return "" if source.private else ", NOT PRIVATE: seeded noise"
