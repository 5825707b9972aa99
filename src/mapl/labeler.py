"""The one door: here, and nowhere else, private votes become public answers.

A `Budget` is charged before any noise is drawn, and nothing is ever refunded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mapl import accounting
from mapl.errors import BudgetExceededError, positive, probability
from mapl.events import Event
from mapl.mechanisms import (
    Answer,
    ChargedDissent,
    NoisyMax,
    SoftAnswer,
    SparseVector,
)
from mapl.votes import Votes

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

    def charge(self, event: Event) -> None:
        """Take an event on the bill, or refuse it and change nothing."""
        together = [*self.events, event]
        if accounting.delta(together, epsilon=self.epsilon) > self.delta:
            needed = accounting.epsilon(together, delta=self.delta)
            raise BudgetExceededError(
                f"Budget exceeded: {self.epsilon_spent:.3g} of epsilon "
                f"{self.epsilon:g} spent, with this release it would be {needed:.3g}. "
                "Nothing was released."
            )
        self.events.append(event)


class Labeler:
    """Answers queries about public points with the votes of private teachers.

    Parameters
    ----------
    predictions : ndarray of int, shape (n_teachers, n_queries)
        The teachers' votes on all public points. Private.
    n_classes : int
        How many classes were declared.
    budget : Budget
        Charged with each mechanism when that is opened.
    """

    def __init__(
        self, predictions: Predictions, *, n_classes: int, budget: Budget
    ) -> None:
        self._votes = Votes.from_predictions(predictions, n_classes=n_classes)
        self.budget = budget

    def open(self, mechanism: SparseVector | NoisyMax | ChargedDissent) -> None:
        """Charge the whole price of a mechanism; from then on it may answer."""
        self.budget.charge(mechanism.event)
        self._mechanism = mechanism

    def labels(self, rows: Ints) -> Answer | SoftAnswer:
        """Return the open mechanism's answer for some of the points."""
        assert not isinstance(self._mechanism, ChargedDissent)
        votes = Votes(self._votes.predictions[:, rows], self._votes.n_classes)
        return self._mechanism.answer(votes)

    def shares(self, guess: Ints) -> SoftAnswer:
        """Return the noisy shares of who disagrees with a public guess."""
        assert isinstance(self._mechanism, ChargedDissent)
        return self._mechanism.answer(self._votes, guess)

    def __repr__(self) -> str:
        return f"Labeler({self._votes.n_queries} public points)"
