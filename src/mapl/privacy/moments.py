"""Noisy sums of integer vectors, one vector a unit: what records say for themselves.

Each unit contributes an integer vector of bounded length, a function of that unit and
of what was published before; the sum is published with discrete Gaussian noise. Sums
chosen one after the other share one budget of squared shifts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from mapl.arrays import Bools, Floats, Ints
from mapl.errors import BudgetExceededError, ParameterError, integer, rational
from mapl.privacy.curves import LEAST_REST, SMOOTHING
from mapl.privacy.events import MomentsEvent
from mapl.privacy.guard import Guard, seeded_suffix
from mapl.privacy.noise import SYSTEM, Source, discrete_gaussian

LARGEST_FEATURES = 2**14  # length of a record's feature vector
LARGEST_RESIDUALS = 2**16  # length of its residuals
LARGEST_SQUARED_LENGTH = 2**48
MOST_RECORDS_EACH = 128  # of one unit; further ones do not count
WEIGHT = 2**8  # of a unit that is not shortened, where units have several records


@dataclass(frozen=True, repr=False)
class Block:
    """Some units' records. Private.

    Record i contributes the outer product of its features and residuals. Both hold
    integers, as float64: their products and sums are exact in any order.
    ``unit_sizes`` says how many consecutive records each unit has; None if one each.
    """

    features: Floats
    residuals: Floats
    unit_sizes: Ints | None = None


@dataclass(frozen=True)
class NoisySum:
    """A published sum, in units of one integer step of a record. Public."""

    total: Floats
    sigma: float


class Moments:
    r"""Publish sums of bounded integer vectors with discrete Gaussian noise.

    Parameters
    ----------
    squared_shift : Fraction
        The budget of all sums together: one unit moves a sum by at most
        :math:`\sqrt S`, which costs :math:`S/(\sigma^2 - 4)` of it.
    coordinates : int
        How many integers may be published in all.
    source : Source
        System randomness unless a test says otherwise.

    Attributes
    ----------
    event : MomentsEvent
        What everything costs, whatever is asked for.

    Notes
    -----
    Requires: a unit's records are a function of that unit and of what was published.
    Guarantee: for sums chosen adaptively, what accounting certifies for `event`.
    Proof: docs/proofs/Moments.md; the curve, docs/proofs/smoothing.md

    Examples
    --------
    >>> from fractions import Fraction
    >>> import numpy as np
    >>> from mapl.privacy.moments import Block, Moments
    >>> mechanism = Moments(squared_shift=Fraction(1), coordinates=2)
    >>> ones = Block(np.full((5000, 1), 10.0), np.full((5000, 2), 3.0))
    >>> noisy = mechanism.answer([ones], squared_length=1800, part=Fraction(1))
    >>> noisy.total.shape, bool(abs(noisy.total[0, 0] - 150_000) < 500)
    ((1, 2), True)
    """

    def __init__(
        self,
        *,
        squared_shift: int | Fraction,
        coordinates: int,
        source: Source = SYSTEM,
    ) -> None:
        self.event = MomentsEvent(
            squared_shift=rational(squared_shift=squared_shift),
            coordinates=integer(coordinates=coordinates, at_least=1),
            seeded=not source.private,
        )
        self._left, self._coordinates = Fraction(1), self.event.coordinates
        self._source = source
        self._guard = Guard(type(self).__name__)

    def sigma(self, squared_length: int, part: Fraction) -> Fraction:
        """Return the noise of a sum that takes a part of the budget, rounded up."""
        rest = squared_length / (self.event.squared_shift * part)
        wanted = max(rest, LEAST_REST) + SMOOTHING**2
        grid = 2**10
        return Fraction(_ceil_sqrt(wanted * grid**2), grid)

    def answer(
        self,
        blocks: Iterable[Block],
        *,
        squared_length: int,
        part: Fraction,
        shape: tuple[int, int] | None = None,
        grouped: bool = False,
        before_draw: Callable[[], None] = lambda: None,
    ) -> NoisySum:
        """Publish the sum of all units' contributions.

        Parameters
        ----------
        blocks : iterable of Block
            The units; one is never cut in two.
        squared_length : int
            S: contributions beyond are shortened. Public.
        part : Fraction
            Of the budget, for this sum. Public.
        shape : tuple of int
            Features and residuals, where there may be no block.
        grouped : bool
            Whether blocks have ``unit_sizes``.
        before_draw : callable
            Called when the budget is reduced and no noise is drawn yet: the moment to
            store `state`.
        """
        squared_length = integer(squared_length=squared_length, at_least=1)
        if squared_length > LARGEST_SQUARED_LENGTH:
            raise ParameterError("squared_length must be at most 2**48.")
        total = None if shape is None else np.zeros(shape, dtype=np.int64)
        for block in blocks:
            added = bounded_sum(block, squared_length, grouped=grouped)
            total = added if total is None else total + added
        if total is None:
            raise ParameterError("shape must be given where there are no blocks.")
        weight = WEIGHT if grouped else 1
        with self._guard:
            self._take(rational(part=part), total.size)
            before_draw()
            sigma = self.sigma(squared_length * weight**2, part)
            noisy = total + discrete_gaussian(sigma, total.shape, source=self._source)
        return NoisySum(noisy / weight, float(sigma) / weight)

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, as JSON."""
        return {"left": str(self._left), "coordinates": self._coordinates}

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a mechanism with the same parameters stopped."""
        with self._guard:
            self._left = min(self._left, Fraction(state["left"]))
            self._coordinates = min(self._coordinates, int(state["coordinates"]))

    def _take(self, part: Fraction, coordinates: int) -> None:
        """Reduce the budget, or refuse and change nothing."""
        if not 0 < part <= self._left or coordinates > self._coordinates:
            raise BudgetExceededError(
                f"This sum needs {float(part):.3g} of the budget and {coordinates} "
                f"coordinates; {float(self._left):.3g} and {self._coordinates} are "
                "left. Nothing was released."
            )
        self._left -= part
        self._coordinates -= coordinates

    def __reduce__(self) -> NoReturn:
        self._guard.refuse_copy()

    def __repr__(self) -> str:
        return (
            f"Moments(squared_shift={self.event.squared_shift}, "
            f"coordinates={self.event.coordinates}{seeded_suffix(self._source)})"
        )


def bounded_sum(block: Block, squared_length: int, *, grouped: bool = False) -> Ints:
    """Return the sum of a block's contributions, each of squared length at most S.

    With ``grouped`` the contributions are multiplied by `WEIGHT`, and S by its square:
    a unit is then shortened by a whole number of 1/WEIGHT.
    """
    features, residuals = _integers_only(block.features, block.residuals)
    residuals = _shortened(features, residuals, squared_length)
    if not grouped:
        return _exact_product(features, residuals)
    if block.unit_sizes is None or block.unit_sizes.sum() != len(features):
        raise ParameterError("unit_sizes must say how many records each unit has.")
    weights = _unit_weights(features, residuals, block.unit_sizes, squared_length)
    return _exact_product(features * weights[:, None], residuals)


def _exact_product(features: Floats, residuals: Floats) -> Ints:
    """Return features' x residuals. Every partial sum is an integer below 2^53."""
    most = 2**53 // (LARGEST_FEATURES * LARGEST_RESIDUALS * WEIGHT)
    total = np.zeros((features.shape[1], residuals.shape[1]), dtype=np.int64)
    for start in range(0, len(features), most):
        rows = slice(start, start + most)
        total += (features[rows].T @ residuals[rows]).astype(np.int64)
    return total


def _integers_only(features: Floats, residuals: Floats) -> tuple[Floats, Floats]:
    """Set records to zero that are not integers, or too long for exact sums."""

    def sound(vectors: Floats, longest: int) -> Bools:
        with np.errstate(invalid="ignore", over="ignore"):
            whole = (np.rint(vectors) == vectors).all(axis=1)
            return np.asarray(whole & ((vectors**2).sum(axis=1) <= longest**2))

    good = sound(features, LARGEST_FEATURES) & sound(residuals, LARGEST_RESIDUALS)
    if good.all():
        return features, residuals
    kept = np.flatnonzero(good)
    cleaned = np.zeros_like(features), np.zeros_like(residuals)
    cleaned[0][kept], cleaned[1][kept] = features[kept], residuals[kept]
    return cleaned


def squared_lengths(vectors: Floats) -> Ints:
    """Return the squared length of each row, exactly."""
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors), dtype=np.int64)


def _shortened(features: Floats, residuals: Floats, squared_length: int) -> Floats:
    """Return residuals of which no record's contribution is longer than sqrt(S).

    The factor is rounded down, then each residual towards zero; the result is checked
    in integers, and set to zero if it does not hold.
    """
    lengths = squared_lengths(features)
    products = lengths * squared_lengths(residuals)
    long = np.flatnonzero(products > squared_length)
    if not long.size:
        return residuals
    factor = np.floor(np.sqrt(squared_length / products[long]) * (2**20 - 1))
    out = residuals.copy()
    out[long] = np.trunc(residuals[long] * factor[:, None] / 2**20)
    checked = lengths[long] * squared_lengths(out[long])
    out[long[checked > squared_length]] = 0.0
    return out


def _unit_weights(
    features: Floats, residuals: Floats, unit_sizes: Ints, squared_length: int
) -> Floats:
    """Return for each record the weight of its unit, 0 to `WEIGHT`.

    The squared length of a unit's sum is that of the Gram matrices of its records. Each
    record is shortened already, so its entries are at most S, and the sum of
    MOST_RECORDS_EACH^2 of them fits 64 bits.
    """
    ends = np.cumsum(unit_sizes)
    weights = np.zeros(len(features))
    for size in np.unique(unit_sizes[unit_sizes > 0]):
        starts = (ends - unit_sizes)[unit_sizes == size]
        counted = min(int(size), MOST_RECORDS_EACH)
        for some in np.array_split(starts, max(1, len(starts) * counted // 4096)):
            rows = some[:, None] + np.arange(counted)
            own = features[rows], residuals[rows]
            grams = [(v @ v.transpose(0, 2, 1)).astype(np.int64) for v in own]
            lengths = (grams[0] * grams[1]).sum(axis=(1, 2))
            weights[rows] = _weights_for(lengths, squared_length)[:, None]
    return weights


def _weights_for(lengths: Ints, squared_length: int) -> Floats:
    """Return the largest whole weights w with w^2 length <= WEIGHT^2 S."""
    weights = np.full(len(lengths), float(WEIGHT))
    for i in np.flatnonzero(lengths > squared_length):
        weights[i] = math.isqrt(WEIGHT**2 * squared_length // int(lengths[i]))
    return weights


def _ceil_sqrt(value: Fraction) -> int:
    """Return the least integer whose square is at least ``value``."""
    least = math.ceil(value)
    root = math.isqrt(least)
    return root if root * root >= least else root + 1
