"""The one door: here, and nowhere else, private votes become public answers.

A `Budget` is charged before any noise is drawn, and nothing is ever refunded. Its
durable counterpart is `mapl.ledger.Job`.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.errors import (
    BudgetExceededError,
    MechanismStateError,
    positive,
    probability,
)
from mapl.events import Event
from mapl.mechanisms import (
    ChargedDissent,
    NoisyMax,
    SparseVector,
)
from mapl.votes import Votes

if TYPE_CHECKING:
    from mapl.ledger import Asked, Job, State

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
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

    paid_before = False  # by an earlier run of the same: only a ledger knows

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

    def begin(self, sealed: State) -> State:
        """Keep what decides the private computation: here there is no need."""
        return sealed

    def charge(self, event: Event) -> None:
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

    @contextmanager
    def workshop(self) -> Iterator[None]:
        """A folder for what was finished, in case of a crash: here there is none."""
        yield None

    def receipt(self) -> str:
        """Return what a certificate says of the ledger."""
        return "in memory: this budget is of this fit alone, and is not kept"


@dataclass(frozen=True)
class Batch:
    """The noisy shares of some of the points, against a guess for each. Public."""

    rows: Ints
    guess: Ints
    shares: Floats

    def dissent(self) -> float:
        """Return how many dissents the batch cost a teacher, as far as one can see."""
        return float((1 - self.shares[np.arange(len(self.rows)), self.guess]).sum())


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
        self._mechanism: SparseVector | NoisyMax | ChargedDissent | None = None
        self._step, self._failed = 0, False

    def open(self, mechanism: SparseVector | NoisyMax | ChargedDissent) -> None:
        """Charge the whole price of a mechanism; from then on it may answer."""
        if self._mechanism is not None:
            raise MechanismStateError("A labeler opens one mechanism; this has its.")
        self.budget.charge(mechanism.event)
        self._mechanism = mechanism

    def labels(self, rows: Ints) -> Ints:
        """Return the open mechanism's labels for some of the points; this once."""
        mechanism = self._mechanism
        assert isinstance(mechanism, SparseVector | NoisyMax)
        with self._next_step() as step:
            if step > 1:
                raise MechanismStateError("Labels can be asked for in one batch only.")
            known = self.budget.asked(step)
            if known is not None and known.reply is not None:
                return _unpacked(known.reply)
            self.budget.before_draw(step, {}, _packed(rows))
            drawn = _packed(mechanism.answer(self._of(rows)).labels)
            return _unpacked(self.budget.before_answer(step, {}, drawn)[1])

    def shares(self, rows: Ints, guess: Ints) -> Batch:
        """Return the noisy shares of who disagrees with a public guess.

        A step that was begun earlier goes on with the points and the guess that it
        began with.
        """
        mechanism = self._mechanism
        assert isinstance(mechanism, ChargedDissent)
        with self._next_step() as step:
            known = self.budget.asked(step)
            if known is not None:
                rows, guess = _unpacked(known.question)
            if known is not None and known.reply is not None:
                state, reply = known.state, known.reply
            else:
                question = _packed(np.stack((rows, guess)))

                def keep() -> None:
                    self.budget.before_draw(step, mechanism.state(), question)

                answer = mechanism.answer(self._of(rows), guess, before_draw=keep)
                state, reply = self.budget.before_answer(
                    step, mechanism.state(), _packed(answer.counts)
                )
            mechanism.resume(state)
        return Batch(rows, guess, _unpacked(reply) / mechanism.n_teachers)

    @contextmanager
    def _next_step(self) -> Iterator[int]:
        """Number the steps. After one that failed there is none: what it did to the
        mechanism is not known, and a new labeler goes on from what was committed.
        """
        if self._failed:
            raise MechanismStateError(
                "An earlier step failed. Make a new labeler: it goes on from what was "
                "committed."
            )
        self._failed = True
        yield self._step + 1
        self._step += 1
        self._failed = False

    def _of(self, rows: Ints) -> Votes:
        return Votes(self._votes.predictions[:, rows], self._votes.n_classes)

    def __repr__(self) -> str:
        return f"Labeler({self._votes.n_queries} public points)"


def _packed(values: Ints) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return zlib.compress(file.getvalue(), 1)


def _unpacked(data: bytes) -> Ints:
    loaded = np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False)
    return np.asarray(loaded, dtype=np.int64)
