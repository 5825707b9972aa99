"""Each mechanism with a canary that moves it as far as one unit may.

What is drawn is the mechanism itself, opened anew for each draw with the price that it
claims.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from mapl.arrays import Floats
from mapl.audit.tradeoff import Claim
from mapl.features.sketch import SketchForm
from mapl.privacy.calibration import largest_squared_shift
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.linear_map import LinearMap
from mapl.privacy.moments import Block, Moments, sum_of_blocks
from mapl.privacy.noisy_counts import NoisyCount
from mapl.privacy.noisy_max import ConfidentNoisyMax, NoisyMax
from mapl.privacy.rounding import ceil_sqrt
from mapl.privacy.soft_dissent import GRID, SoftDissent
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.stable_release import StableRelease
from mapl.privacy.votes import Votes
from mapl.progress import Progress

_TEACHERS = 30
_IDENTITY = LinearMap([np.eye(1)])


class Experiment(ABC):
    """Outputs with a canary and without, to be distinguished."""

    claim: Claim
    leak = ""  # what is published without noise, if anything is
    known: list[Floats]  # weights of outputs that tell most, where that is known

    @abstractmethod
    def once(self, present: bool) -> Any:
        """Draw once; return what is published as a vector of numbers."""

    def draw(self, present: bool, n: int) -> Floats:
        """Draw n times."""
        world = "with" if present else "without"
        with Progress(f"Drawing {world} the canary", n) as progress:
            found = []
            for _ in range(n):
                found.append(np.asarray(self.once(present), dtype=float))
                progress.advance(1)
        return np.stack(found)


class _Made(Experiment):
    """An experiment with a mechanism that ``open`` makes."""

    known: list[Floats] = []  # noqa: RUF012

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.claim = Claim((self.open().event,), delta)

    @abstractmethod
    def open(self) -> Any:
        """Return the mechanism, as it is opened for a budget."""


class _StableRelease(_Made):
    """One query whose distance is the threshold, or one less."""

    def open(self) -> StableRelease:
        return StableRelease.for_budget(epsilon=self.epsilon, delta=self.delta)

    def once(self, present: bool) -> Any:
        return self.draw(present, 1)[0]

    def draw(self, present: bool, n: int) -> Floats:
        made = self.open()  # it has no state: each query is a draw
        distances = np.full(n, made.threshold + int(present))
        released = made.release(np.ones(n, dtype=int), distances)
        return np.asarray(released.labels == 1, dtype=float)[:, None]


class _SparseVector(_Made):
    """Queries that are withheld now and then, a little less often with the canary."""

    cutoff, n_queries = 5, 300

    def open(self) -> SparseVector:
        return SparseVector.for_budget(
            epsilon=self.epsilon, delta=self.delta, cutoff=self.cutoff
        )

    def once(self, present: bool) -> Any:
        made = SparseVector.from_event(self.claim.events[0])  # type: ignore[arg-type]
        distances = np.full(self.n_queries, made.threshold + int(present))
        answer = made.release(np.ones(self.n_queries, dtype=int), distances)
        answered = answer.labels == 1
        # When each withheld answer came, and how many there were.
        when = np.flatnonzero(~answered[: answer.n_asked])[: self.cutoff]
        gaps = np.diff(np.concatenate([[-1], when, [self.n_queries] * self.cutoff]))
        return np.concatenate([gaps[: self.cutoff], [len(when)]])


class _NoisyMax(_Made):
    """A teacher who votes for one class or for another, on every query."""

    n_queries = 10

    def open(self) -> NoisyMax:
        return NoisyMax.for_budget(
            epsilon=self.epsilon,
            delta=self.delta,
            n_queries=self.n_queries,
            n_classes=3,
        )

    def once(self, present: bool) -> Any:
        event: Any = self.claim.events[0]
        made = NoisyMax(sigma=event.sigma, n_queries=self.n_queries, n_classes=3)
        return made.answer(_votes(self.n_queries, present)).counts.ravel()

    @property
    def known(self) -> list[Floats]:  # type: ignore[override]
        return [_by_class(self.n_queries, self.n_queries)]


class _ConfidentMax(_Made):
    """The same, where labels alone are published, of a count near the threshold."""

    n_queries = 20

    def open(self) -> ConfidentNoisyMax:
        noise = NoisyMax.for_budget(
            epsilon=self.epsilon, delta=self.delta, n_queries=40, n_classes=3
        ).sigma
        self._options: dict[str, Any] = {
            "sigma": noise,
            "check_sigma": noise,
            "threshold": _TEACHERS,
            "n_queries": self.n_queries,
            "n_answers": self.n_queries,
            "n_classes": 3,
        }
        return ConfidentNoisyMax(**self._options)

    def once(self, present: bool) -> Any:
        made = ConfidentNoisyMax(**self._options)
        labels = made.answer(_votes(self.n_queries, present))
        return np.concatenate([labels == one for one in (-1, 1, 2)])


class _Dissent(_Made):
    """A teacher who never agrees with the guess, on more queries than it may."""

    dissents, n_queries = 1, 12

    def open(self) -> ChargedDissent:
        return ChargedDissent.for_budget(
            epsilon=self.epsilon,
            delta=self.delta,
            dissents=self.dissents,
            n_teachers=_TEACHERS,
            n_classes=3,
        )

    def once(self, present: bool) -> Any:
        event: Any = self.claim.events[0]
        made = ChargedDissent(
            sigma=event.sigma,
            dissents=self.dissents,
            n_teachers=_TEACHERS,
            n_classes=3,
        )
        guess = np.zeros(self.n_queries, dtype=np.int64)
        return made.answer(_votes(self.n_queries, present), guess).counts.ravel()

    @property
    def known(self) -> list[Floats]:  # type: ignore[override]
        """Counts that it may move, and all of them."""
        every = range(self.dissents, self.n_queries + 1, self.dissents)
        return [_by_class(self.n_queries, moved) for moved in every]


class _SoftDissent(_Made):
    """A teacher who is sure, of one class or of the other, against an open guess."""

    n_queries = 24

    def open(self) -> SoftDissent:
        budget = largest_squared_shift(
            epsilon=self.epsilon, delta=self.delta, coordinates=self.n_queries
        )
        stock = 8 * (GRID // 2) ** 2
        self._options: dict[str, Any] = {
            "sigma": _root(2 * stock / budget + 4),
            "stock": stock,
            "n_teachers": _TEACHERS,
            "n_classes": 2,
            "n_queries": self.n_queries,
        }
        return SoftDissent(**self._options)

    def once(self, present: bool) -> Any:
        shares = np.full((_TEACHERS, self.n_queries, 2), GRID // 2, dtype=np.uint8)
        shares[0] = [0, GRID] if present else [GRID, 0]
        guess = np.full((self.n_queries, 2), GRID // 2, dtype=np.int64)
        found = SoftDissent(**self._options).answer(shares, guess)
        return found[:, 1] * GRID * _TEACHERS

    @property
    def known(self) -> list[Floats]:  # type: ignore[override]
        steps = (8, 16, self.n_queries)
        return [(np.arange(self.n_queries) < n).astype(float) for n in steps]


class _Moments(_Made):
    """A record that asks for more than it may add, in three sums."""

    parts = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4))
    length = 2_880_000

    def open(self) -> Moments:
        budget = largest_squared_shift(
            epsilon=self.epsilon, delta=self.delta, coordinates=6
        )
        self._sums = {present: self._sum(present) for present in (False, True)}
        return Moments(squared_shift=budget, coordinates=6)

    def _sum(self, present: bool) -> Any:
        """Return what the records add up to: with a canary that is far too long."""
        cells = np.full((10 + int(present), 1), 2.0**10)
        residuals = np.full((len(cells), 2), 1.0)
        residuals[10:] = 1000.0
        lengths = _IDENTITY.lengths(_IDENTITY.block_lengths(cells))
        return sum_of_blocks(
            [Block(cells, lengths, residuals)],
            _IDENTITY,
            columns=2,
            squared_length=self.length,
            grouped=False,
            labels_only=False,
        )

    def once(self, present: bool) -> Any:
        event: Any = self.claim.events[0]
        made = Moments(squared_shift=event.squared_shift, coordinates=6)
        found = [
            made.answer_sum(
                self._sums[present], _IDENTITY, squared_length=self.length, part=part
            )
            for part in self.parts
        ]
        return np.concatenate([one.total.ravel() / one.sigma**2 for one in found])

    @property
    def known(self) -> list[Floats]:  # type: ignore[override]
        return [np.ones(6)]


class _Sketch(_Made):
    """A record more in the cell of each column that adds most."""

    form = SketchForm(sizes=(64, 5, 2), ordered=(64, 0, 0))

    def open(self) -> Moments:
        counts = [np.full(size, 10, dtype=np.int64) for size in self.form.sizes]
        more = [count + (np.arange(len(count)) == 0) for count in counts]
        self._totals = {False: self.form.total(counts), True: self.form.total(more)}
        n = sum(self.form.sizes)
        budget = largest_squared_shift(
            epsilon=self.epsilon, delta=self.delta, coordinates=n
        )
        return Moments(squared_shift=budget, coordinates=n)

    def once(self, present: bool) -> Any:
        event: Any = self.claim.events[0]
        made = Moments(squared_shift=event.squared_shift, coordinates=event.coordinates)
        return made.release(
            self._totals[present],
            squared_length=self.form.squared_length,
            part=Fraction(1),
        ).total

    @property
    def known(self) -> list[Floats]:  # type: ignore[override]
        return [(self._totals[True] - self._totals[False]).astype(float)]


class _Count(_Made):
    """A count that is one more."""

    def open(self) -> NoisyCount:
        return NoisyCount.for_budget(epsilon=self.epsilon, delta=self.delta)

    def once(self, present: bool) -> Any:
        event: Any = self.claim.events[0]
        return [NoisyCount(sigma=event.sigma).answer(10 + int(present))]


MECHANISMS: dict[str, Callable[[float, float], Experiment]] = {
    "moments": _Moments,
    "sketch": _Sketch,
    "dissent": _Dissent,
    "soft-dissent": _SoftDissent,
    "sparse-vector": _SparseVector,
    "stable-release": _StableRelease,
    "noisy-max": _NoisyMax,
    "confident-max": _ConfidentMax,
    "count": _Count,
}


def _votes(n_queries: int, present: bool) -> Votes:
    """Return votes for class 0, but for one teacher's, which are for 1 or for 2."""
    ballots = np.zeros((_TEACHERS, n_queries), dtype=np.int8)
    ballots[0] = 2 if present else 1
    return Votes.from_predictions(ballots, n_classes=3)


def _by_class(n_queries: int, moved: int) -> Floats:
    """Return weights of counts: class 2 against class 1, in the first queries."""
    weights = np.zeros((n_queries, 3))
    weights[:moved, 2], weights[:moved, 1] = 1, -1
    return weights.ravel()


def _root(square: Fraction) -> Fraction:
    """Return a square root, rounded up."""
    return Fraction(ceil_sqrt(square * 2**20), 2**10)
