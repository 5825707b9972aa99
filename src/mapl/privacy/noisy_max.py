r"""The class with most votes after noise; every query is paid for.

`NoisyMax` is GNMax of PATE (2018), `ConfidentNoisyMax` its Confident-GNMax, both with
accounting that does not depend on the votes.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NoReturn

import numpy as np

from mapl.arrays import Ints
from mapl.errors import integer, rational
from mapl.privacy.answers import SoftAnswer
from mapl.privacy.calibration import least_sigma
from mapl.privacy.events import ConfidentMaxEvent
from mapl.privacy.guard import (
    Guard,
    check_classes,
    check_queries_left,
    seeded_suffix,
)
from mapl.privacy.noise import SYSTEM, Source
from mapl.privacy.noisy_counts import (
    add_noise,
    gaussian_event,
    publish_all,
    steps_per_query,
)
from mapl.privacy.votes import ABSTAIN, Votes


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
    >>> from mapl.privacy.noisy_max import NoisyMax
    >>> from mapl.privacy.votes import Votes
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
        self.event = gaussian_event(
            self.sigma, steps_per_query(self.n_classes) * self.n_queries, source=source
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
        check_classes(votes, self.n_classes)
        with self._guard:
            check_queries_left(votes, self.n_queries - self.n_asked)
            self.n_asked += votes.n_queries
            return publish_all(votes.counts, votes.n_teachers, self.sigma, self._source)

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return (
            f"NoisyMax(sigma={self.sigma}, n_queries={self.n_queries}, "
            f"n_classes={self.n_classes}{seeded_suffix(self._source)})"
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
    >>> from mapl.privacy.noisy_max import ConfidentNoisyMax
    >>> from mapl.privacy.votes import Votes
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
            steps=steps_per_query(self.n_classes) * self.n_answers,
            seeded=not source.private,
        )
        self._source = source
        self._guard = Guard(type(self).__name__)

    def answer(self, votes: Votes) -> Ints:
        """Return labels, ``ABSTAIN`` where too few agree or all answers are given."""
        check_classes(votes, self.n_classes)
        with self._guard:
            check_queries_left(votes, self.n_queries - self.n_asked)
            self.n_asked += votes.n_queries
            counts = votes.counts.astype(np.int64)
            top = add_noise(counts.max(axis=1), self.check_sigma, self._source)
            passed = top >= self.threshold
            passed &= np.cumsum(passed) <= self.n_answers - self.n_answered
            self.n_answered += int(passed.sum())
            labels = np.full(votes.n_queries, ABSTAIN, dtype=np.int64)
            labels[passed] = publish_all(
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
            f"{seeded_suffix(self._source)})"
        )
