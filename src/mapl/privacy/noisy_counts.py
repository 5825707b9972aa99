"""Integers with discrete Gaussian noise: what `NoisyMax` and `ChargedDissent` publish.

All that follows from a noisy count, the label, how sure it is, the share of the vote,
is post-processing and free.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NoReturn

import numpy as np

from mapl.arrays import Integers, Ints
from mapl.errors import BudgetExceededError, rational
from mapl.privacy.answers import SoftAnswer
from mapl.privacy.calibration import least_sigma
from mapl.privacy.events import GaussianEvent
from mapl.privacy.guard import Guard, seeded_suffix
from mapl.privacy.noise import SYSTEM, Source, discrete_gaussian


class NoisyCount:
    """Publish one integer with discrete Gaussian noise, once.

    Parameters
    ----------
    sigma : int or Fraction
        Scale of the noise.
    source : Source
        System randomness unless a test says otherwise.

    Notes
    -----
    Requires: between neighbours the integer moves by at most 1.
    Guarantee: what accounting certifies for `event`.
    Proof: docs/proofs/accounting.md
    """

    def __init__(self, *, sigma: int | Fraction, source: Source = SYSTEM) -> None:
        self.sigma = rational(sigma=sigma)
        self.event = gaussian_event(self.sigma, 1, source=source)
        self._source = source
        self._guard = Guard(type(self).__name__)
        self._answered = False

    @classmethod
    def for_budget(
        cls, *, epsilon: float, delta: float, source: Source = SYSTEM
    ) -> NoisyCount:
        """Return the mechanism with the least noise that is certified."""
        sigma = least_sigma(epsilon=epsilon, delta=delta, steps=1)
        return cls(sigma=sigma, source=source)

    def answer(self, count: int) -> int:
        """Publish the count."""
        with self._guard:
            if self._answered:
                raise BudgetExceededError(
                    "This NoisyCount has answered already. Nothing was released."
                )
            self._answered = True
            exact = np.array([count], dtype=np.int64)
            return int(add_noise(exact, self.sigma, self._source)[0])

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return f"NoisyCount(sigma={self.sigma}{seeded_suffix(self._source)})"


def steps_per_query(n_classes: int) -> int:
    """How many counts one teacher moves by 1 when it changes its vote."""
    return 1 if n_classes == 2 else 2


def gaussian_event(sigma: Fraction, steps: int, *, source: Source) -> GaussianEvent:
    """Return the event of so many unit steps, marked if the source is seeded."""
    return GaussianEvent(sigma=sigma, steps=steps, seeded=not source.private)


def add_noise(counts: Ints, sigma: Fraction, source: Source) -> Ints:
    """Add fresh noise to each count."""
    return counts + discrete_gaussian(sigma, counts.shape, source=source)


def publish_all(
    votes: Integers,
    n_teachers: int,
    sigma: Fraction,
    source: Source,
) -> SoftAnswer:
    """Publish counts without a guess.

    With two classes only the second is counted, plus half of the teachers without a
    vote: a changed vote moves that count by at most 1.
    """
    counts = votes.astype(np.int64)
    if counts.shape[1] > 2:
        return publish(counts, None, n_teachers, sigma, source)
    counts[:, 1] += (n_teachers - counts.sum(axis=1)) // 2
    first = np.zeros(len(counts), dtype=np.int64)
    return publish(counts, first, n_teachers, sigma, source)


def publish(
    counts: Ints,
    uncounted: Ints | None,
    n_teachers: int,
    sigma: Fraction,
    source: Source,
) -> SoftAnswer:
    """Add fresh noise to each count that was taken; fill the one that was not."""
    if uncounted is None:
        noisy = add_noise(counts, sigma, source)
    else:
        rows = np.arange(len(counts))
        taken = np.ones(counts.shape, dtype=bool)
        taken[rows, uncounted] = False
        noisy = np.zeros_like(counts)
        noisy[taken] = add_noise(counts[taken], sigma, source)
        noisy[rows, uncounted] = n_teachers - noisy.sum(axis=1)
    return SoftAnswer(
        counts=noisy, labels=noisy.argmax(axis=1), shares=noisy / n_teachers
    )
