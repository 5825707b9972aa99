r"""Algorithm 2: a stream of values, of which only the withheld ones cost.

released  iff  distance + discrete Laplace noise > threshold + threshold noise
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mapl.arrays import Bools, Ints
from mapl.errors import ParameterError, integer, positive, probability, rational
from mapl.privacy.answers import Answer, checked_batch, released
from mapl.privacy.calibration import (
    sparse_vector_with_threshold_noise,
    sparse_vector_without_threshold_noise,
)
from mapl.privacy.events import SparseVectorEvent
from mapl.privacy.guard import Guard, seeded_suffix
from mapl.privacy.noise import SYSTEM, Source, discrete_laplace
from mapl.privacy.votes import Votes


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
        Whether threshold noise is drawn again after each abstention.
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
    >>> from mapl.privacy.sparse_vector import SparseVector
    >>> from mapl.privacy.votes import Votes
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
        """Start without hidden noise: it is drawn at the first query."""
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
        candidates = [sparse_vector_without_threshold_noise(epsilon, delta, cutoff)]
        if not restartable:
            candidates.append(
                sparse_vector_with_threshold_noise(epsilon, delta, cutoff)
            )
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
        values, distances = checked_batch(values, distances)
        with self._guard:
            answered, n_asked = self._run(distances)
        return released(values, answered, n_asked=n_asked)

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, as JSON. Private, for a ledger to keep.

        Hidden threshold noise is not part of it.
        """
        drawn = self._threshold_noise is not None
        return {"n_abstained": self.n_abstained, "threshold_drawn": drawn}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a mechanism with the same event stopped.

        Without threshold noise, this is free. If hidden threshold noise was lost,
        it counts as one abstention where that noise is redrawn, and halts the
        mechanism where it was to be drawn once.
        """
        n_abstained = integer(n_abstained=state["n_abstained"], at_least=0)
        if state["threshold_drawn"]:
            n_abstained = n_abstained + 1 if self.event.redrawn else self.cutoff
        with self._guard:
            self.n_abstained = min(max(self.n_abstained, n_abstained), self.cutoff)

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
        return (
            f"SparseVector(noise_scale={self.noise_scale}, threshold={self.threshold}, "
            f"cutoff={self.cutoff}, "
            f"threshold_noise_scale={self.threshold_noise_scale}"
            f"{seeded_suffix(self._source)})"
        )


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
