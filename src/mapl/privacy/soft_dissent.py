"""Noisy sums of how far teachers' probabilities lie from a public guess.

A teacher that says "0.3" says more than "no". Each pays for the squared distance from
the guess out of its own stock, and counts nothing when it cannot pay.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from mapl.arrays import Array, Bools, Floats, Ints
from mapl.errors import ParameterError, integer, rational
from mapl.privacy.curves import LEAST_REST, SMOOTHING
from mapl.privacy.events import MomentsEvent
from mapl.privacy.guard import Guard, seeded_suffix
from mapl.privacy.noise import SYSTEM, Source, discrete_gaussian

GRID = 64  # integer steps of a probability of 1
_BLOCK = 1 << 22  # probabilities that are summed at a time


class SoftDissent:
    r"""Sum what teachers' probabilities add to a public guess, and charge for it.

    Parameters
    ----------
    sigma : Fraction
        Scale of the discrete Gaussian noise on each sum; its square at least 4.16.
    stock : int
        What each teacher may pay in all (S), in squared integer steps.
    n_teachers, n_classes : int
        As declared; every batch must have them.
    n_queries : int
        How many queries may be asked at most.
    source : Source
        System randomness unless a test says otherwise.

    Attributes
    ----------
    event : MomentsEvent
        What everything costs: a squared shift of :math:`2S/(\sigma^2 - 4)`.

    Notes
    -----
    Requires: one unit changes the probabilities of at most one teacher. Guesses and the
    choice of queries are computed from public data and from what was published.
    Guarantee: for adaptive queries, what accounting certifies for `event`.
    Proof: docs/proofs/SoftDissent.md

    Examples
    --------
    >>> from fractions import Fraction
    >>> import numpy as np
    >>> from mapl.privacy.soft_dissent import GRID, SoftDissent, on_grid
    >>> teachers = on_grid(np.full((300, 50, 2), [0.25, 0.75]))
    >>> guess = on_grid(np.full((50, 2), 0.5))
    >>> mechanism = SoftDissent(
    ...     sigma=Fraction(500), stock=10**5, n_teachers=300, n_classes=2, n_queries=50
    ... )
    >>> shares = mechanism.answer(teachers, guess)
    >>> bool(abs(shares[:, 1].mean() - 0.75) < 0.03)
    True
    """

    def __init__(
        self,
        *,
        sigma: Fraction,
        stock: int,
        n_teachers: int,
        n_classes: int,
        n_queries: int,
        source: Source = SYSTEM,
    ) -> None:
        self.sigma = rational(sigma=sigma)
        self.stock = integer(stock=stock, at_least=1)
        self.n_teachers = integer(n_teachers=n_teachers, at_least=1)
        self.n_classes = integer(n_classes=n_classes, at_least=2)
        self._queries_left = integer(n_queries=n_queries, at_least=1)
        rest = self.sigma**2 - SMOOTHING**2
        if rest < LEAST_REST:
            raise ParameterError("sigma must be at least 2.04: its square 4.16.")
        self.event = MomentsEvent(
            squared_shift=2 * self.stock / rest,
            coordinates=self._queries_left * (self.n_classes - 1),
            seeded=not source.private,
        )
        self._left = np.full(self.n_teachers, self.stock, dtype=np.int64)
        self._source = source
        self._guard = Guard(type(self).__name__)

    def answer(
        self,
        shares: Array,
        guess: Ints,
        *,
        before_draw: Callable[[], None] = lambda: None,
    ) -> Floats:
        """Publish the teachers' mean probabilities, shape (n_queries, n_classes).

        Parameters
        ----------
        shares : ndarray of int, shape (n_teachers, n_queries, n_classes)
            Each teacher's probabilities in steps of 1/GRID, as `on_grid` makes them;
            all zero for a teacher without an opinion. Private.
        guess : ndarray of int, shape (n_queries, n_classes)
            What is expected, in the same steps. Public.
        before_draw : callable
            Called when the teachers have paid and no noise is drawn yet: the moment to
            store `state`.
        """
        self._check(shares, guess)
        n = len(guess)
        with self._guard:
            if n > self._queries_left:
                raise ParameterError(
                    f"n_queries allows {self._queries_left} more queries, got {n}."
                )
            self._queries_left -= n
            sums = self._charge(shares, guess)
            before_draw()
            counted = ~_left_out(guess)
            noisy = np.zeros(guess.shape)
            noisy[counted] = sums[counted] + discrete_gaussian(
                self.sigma, int(counted.sum()), source=self._source
            )
        noisy[~counted] = -noisy.sum(axis=1)
        return np.asarray(guess / GRID + noisy / (GRID * self.n_teachers))

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, as JSON. Private: it tells who disagreed."""
        return {"left": self._left.tolist(), "queries_left": self._queries_left}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a mechanism with the same parameters stopped."""
        left = np.asarray(state["left"], dtype=np.int64)
        if left.shape != self._left.shape or left.min() < 0 or left.max() > self.stock:
            raise ParameterError(
                "state must hold a number from 0 to stock for each teacher."
            )
        with self._guard:
            self._left = np.minimum(self._left, left)
            self._queries_left = min(self._queries_left, int(state["queries_left"]))

    def _charge(self, shares: Array, guess: Ints) -> Ints:
        """Sum what the teachers can pay for, in the order of the queries."""
        sums = np.zeros(guess.shape, dtype=np.int64)
        counted, price = ~_left_out(guess), 1 + _may_be_negative(guess)
        step = max(1, _BLOCK // max(1, self.n_teachers * self.n_classes))
        for start in range(0, len(guess), step):
            rows = slice(start, start + step)
            off = _deviations(shares[:, rows], guess[rows], counted[rows])
            paid = np.cumsum(price[rows] * (off**2).sum(axis=2), axis=1)
            pays = paid <= self._left[:, None]
            # Whoever cannot pay once is silent for good.
            self._left = np.where(pays[:, -1], self._left - paid[:, -1], 0)
            sums[rows] = (off * pays[:, :, None]).sum(axis=0)
        return sums

    def _check(self, shares: Array, guess: Ints) -> None:
        shape = self.n_teachers, len(guess), self.n_classes
        if shares.shape != shape or shares.dtype.kind not in "iu":
            raise ParameterError(f"shares must be integers of shape {shape}.")
        if guess.shape != shape[1:] or guess.dtype.kind not in "iu":
            raise ParameterError(f"guess must hold integers of shape {shape[1:]}.")
        inside = guess.min(initial=0) >= 0 and guess.max(initial=0) <= GRID
        if not inside or (guess.sum(axis=1) != GRID).any():
            raise ParameterError(f"Each guess must be >= 0 and add up to {GRID}.")

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return (
            f"SoftDissent(sigma={self.sigma}, stock={self.stock}, "
            f"n_teachers={self.n_teachers}, n_classes={self.n_classes}"
            f"{seeded_suffix(self._source)})"
        )


def on_grid(probabilities: Floats) -> Array:
    """Return probabilities as integers that add up to GRID, along the last axis; all
    zero where they are no probabilities. Each row is rounded by itself.
    """
    with np.errstate(all="ignore"):
        total = probabilities.sum(axis=-1, keepdims=True)
        good = (probabilities >= 0).all(axis=-1) & (total[..., 0] > 0)
        good &= np.isfinite(total[..., 0])
        scaled = np.where(good[..., None], probabilities / total * GRID, 0.0)
    # Sums up to a class are rounded: then the whole adds up, and no entry is off by 1.
    below = np.floor(np.cumsum(scaled, axis=-1)[..., :-1] + 0.5)
    ends = np.where(good, GRID, 0)[..., None]
    return np.diff(below, axis=-1, prepend=0.0, append=ends).astype(np.uint8)


def expected_price(shares: Array, guess: Ints) -> Ints:
    """Return what each teacher would pay for all queries: for public teachers."""
    counted, price = ~_left_out(guess), 1 + _may_be_negative(guess)
    off = _deviations(shares, guess, counted)
    return np.asarray((price * (off**2).sum(axis=2)).sum(axis=1))


def _deviations(shares: Array, guess: Ints, counted: Bools) -> Ints:
    """Return what each teacher adds to the guess.

    Shares that do not add up to GRID, or are negative, add nothing.
    """
    own = shares.astype(np.int64)
    inside = ((own >= 0) & (own <= GRID)).all(axis=2)  # before a sum can overflow
    given = inside & (own.sum(axis=2) == GRID)
    return np.where(given[:, :, None] & counted, own - guess, 0)


def _left_out(guess: Ints) -> Bools:
    """Return which class of each query is not counted: the most probable."""
    first = guess.argmax(axis=1)[:, None]
    return np.asarray(first == np.arange(guess.shape[1]))


def _may_be_negative(guess: Ints) -> Bools:
    """Return for which queries a teacher can lie below the guess: a property of the
    guess, never of the teacher.
    """
    return np.asarray(np.where(_left_out(guess), 0, guess).any(axis=1))
