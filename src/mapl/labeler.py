"""The one door: here, and nowhere else, private votes become public answers.

A `Budget` is charged before any noise is drawn, and nothing is ever refunded. Its
durable counterpart is `mapl.ledger.Job`.
"""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.errors import BudgetExceededError, positive, probability
from mapl.events import Event
from mapl.mechanisms import (
    ChargedDissent,
    NoisyMax,
    SoftAnswer,
    SparseVector,
)
from mapl.votes import Votes

if TYPE_CHECKING:
    from mapl.ledger import Asked, Job, State

Ints = npt.NDArray[np.int64]
Predictions = npt.NDArray[np.integer[Any]]


class Budget:
    """What one data set may cost, and what was charged to it; in memory.

    Parameters
    ----------
    epsilon, delta : float
        The limits.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl.events import GaussianEvent
    >>> from mapl.labeler import Budget
    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> budget.charge(GaussianEvent(sigma=Fraction(50), steps=100))
    >>> round(budget.epsilon_spent, 2)
    0.73
    """

    def __init__(self, *, epsilon: float, delta: float) -> None:
        self.epsilon = positive(epsilon=epsilon)
        self.delta = probability(delta=delta)
        self.events: list[Event] = []

    @property
    def epsilon_spent(self) -> float:
        """What all events charged so far cost at this delta."""
        return accounting.epsilon(self.events, delta=self.delta)

    def check(self, event: Event) -> None:
        """Refuse an event that is too much; charge nothing."""
        together = [*self.events, event]
        if accounting.delta(together, epsilon=self.epsilon) > self.delta:
            needed = accounting.epsilon(together, delta=self.delta)
            raise BudgetExceededError(
                f"Budget exceeded: {self.epsilon_spent:.3g} of epsilon "
                f"{self.epsilon:g} spent, with this release it would be {needed:.3g}. "
                "Nothing was released."
            )

    def charge(self, event: Event, *, sealed: dict[str, Any] | None = None) -> None:
        """Take an event on the bill, or refuse it and change nothing."""
        self.check(event)
        self.events.append(event)

    def asked(self, step: int) -> Asked | None:
        """Return what an earlier run of the same job asked: here there is none."""
        return None

    def before_draw(self, step: int, state: State, question: bytes) -> None:
        """Keep the state of the mechanism and the question: here there is no need."""

    def before_answer(
        self, step: int, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Keep the reply; return state and reply as they were kept first."""
        return state, reply

    def receipt(self) -> str:
        """Return what a certificate says of the ledger."""
        return "in memory: this budget is of this fit alone, and is not kept"


class Labeler:
    """Answers queries about public points with the votes of private teachers.

    Everything that it is asked is a step of one job. A step that an earlier run of the
    job has finished is not asked again: its reply is handed out once more.

    Parameters
    ----------
    predictions : ndarray of int, shape (n_teachers, n_queries)
        The teachers' votes on all public points. Private.
    n_classes : int
        How many classes were declared.
    budget : Budget or Job
        Charged with each mechanism when that is opened.
    """

    def __init__(
        self, predictions: Predictions, *, n_classes: int, budget: Budget | Job
    ) -> None:
        self._votes = Votes.from_predictions(predictions, n_classes=n_classes)
        self.budget = budget
        self._step = 0

    def open(
        self,
        mechanism: SparseVector | NoisyMax | ChargedDissent,
        *,
        sealed: dict[str, Any] | None = None,
    ) -> None:
        """Charge the whole price of a mechanism; from then on it may answer."""
        self.budget.charge(mechanism.event, sealed=sealed)
        self._mechanism = mechanism

    def labels(self, rows: Ints) -> Ints:
        """Return the open mechanism's labels for some of the points."""
        mechanism = self._mechanism
        assert not isinstance(mechanism, ChargedDissent)
        step, known = self._begin()
        if known is None:
            self.budget.before_draw(step, {}, _packed(rows))
        elif known.reply is not None:
            return _unpacked(known.reply)
        votes = Votes(self._votes.predictions[:, rows], self._votes.n_classes)
        drawn = _packed(mechanism.answer(votes).labels)
        return _unpacked(self.budget.before_answer(step, {}, drawn)[1])

    def shares(self, guess: Ints) -> SoftAnswer:
        """Return the noisy shares of who disagrees with a public guess.

        A step that was begun earlier goes on with the guess that it began with.
        """
        mechanism = self._mechanism
        assert isinstance(mechanism, ChargedDissent)
        step, known = self._begin()
        if known is not None:
            guess = _unpacked(known.question)
        if known is not None and known.reply is not None:
            state, reply = known.state, known.reply
        else:

            def keep() -> None:
                self.budget.before_draw(step, mechanism.state(), _packed(guess))

            answer = mechanism.answer(self._votes, guess, before_draw=keep)
            state, reply = self.budget.before_answer(
                step, mechanism.state(), _packed(answer.counts)
            )
        mechanism.resume(state)
        return SoftAnswer.of(_unpacked(reply), mechanism.n_teachers, guess)

    def _begin(self) -> tuple[int, Asked | None]:
        self._step += 1
        return self._step, self.budget.asked(self._step)

    def __repr__(self) -> str:
        return f"Labeler({self._votes.n_queries} public points)"


def _packed(values: Ints) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return zlib.compress(file.getvalue(), 1)


def _unpacked(data: bytes) -> Ints:
    loaded = np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False)
    return np.asarray(loaded, dtype=np.int64)
