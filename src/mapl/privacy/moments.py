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

from mapl.arrays import Floats, Ints
from mapl.errors import BudgetExceededError, ParameterError, integer, rational, scale
from mapl.privacy.curves import LEAST_REST, SMOOTHING
from mapl.privacy.events import MomentsEvent
from mapl.privacy.guard import Guard, seeded_suffix
from mapl.privacy.linear_map import (
    LARGEST_RESIDUALS,
    LARGEST_SQUARED_LENGTH,
    LENGTH_UNIT,
    LinearMap,
    are_sound,
    squared_lengths,
)
from mapl.privacy.noise import SYSTEM, Source, discrete_gaussian
from mapl.privacy.rounding import ceil_sqrt

MOST_RECORDS_EACH = 128  # of one unit; further ones do not count
WEIGHT = 2**8  # of a unit that is not shortened, where units have several records
_ROWS = 2**13  # of a product: its partial sums stay below 2^53


@dataclass(frozen=True, repr=False)
class Block:
    """Some units' records. Private.

    Record i contributes the outer product of its image and its residuals. Cells and
    residuals hold integers, as float64: products and sums are exact in any order.
    ``lengths`` are those of `LinearMap.lengths`. ``unit_sizes`` says how many
    consecutive records each unit has; None if one each.
    """

    cells: Floats
    lengths: Ints
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
    >>> from mapl.privacy.linear_map import LinearMap
    >>> from mapl.privacy.moments import Block, Moments
    >>> mechanism = Moments(squared_shift=Fraction(1), coordinates=2)
    >>> cells, identity = np.full((5000, 1), 2.0**10), LinearMap([np.eye(1)])
    >>> lengths = identity.lengths(identity.block_lengths(cells))
    >>> ones = Block(cells, lengths, np.full((5000, 2), 3.0))
    >>> noisy = mechanism.answer(
    ...     [ones], identity, squared_length=288, part=Fraction(1), columns=2
    ... )
    >>> noisy.total.shape, bool(abs(noisy.total[0, 0] / 2**10 - 15_000) < 50)
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
        """Return the noise of a sum that takes a part of the budget, rounded up.

        ``squared_length`` is in integer steps here.
        """
        rest = squared_length / (self.event.squared_shift * part)
        wanted = max(rest, LEAST_REST) + SMOOTHING**2
        grid = 2**10
        return Fraction(ceil_sqrt(wanted * grid**2), grid)

    def answer(
        self,
        blocks: Iterable[Block],
        linear_map: LinearMap,
        *,
        squared_length: int,
        part: Fraction,
        columns: int,
        grouped: bool = False,
        labels_only: bool = False,
        before_draw: Callable[[], None] = lambda: None,
    ) -> NoisySum:
        """Publish the sum of all units' contributions.

        Parameters
        ----------
        blocks : iterable of Block
            The units; one is never cut in two.
        linear_map : LinearMap
            Of the records' cells. Public.
        squared_length : int
            S in units of `LENGTH_UNIT`: contributions beyond are shortened. Public.
        part : Fraction
            Of the budget, for this sum. Public.
        columns : int
            How many residuals a record has.
        grouped : bool
            Whether blocks have ``unit_sizes``.
        labels_only : bool
            Whether neighbours differ in the labels of a unit and in nothing else, and
            residuals are one-hot codes of the labels, or zero.
        before_draw : callable
            Called when the budget is reduced and no noise is drawn yet: the moment to
            store `state`.
        """
        check_squared_length(squared_length)
        sums = sum_of_blocks(
            blocks,
            linear_map,
            columns=columns,
            squared_length=squared_length,
            grouped=grouped,
            labels_only=labels_only,
        )
        return self.answer_sum(
            sums,
            linear_map,
            squared_length=squared_length,
            part=part,
            grouped=grouped,
            labels_only=labels_only,
            before_draw=before_draw,
        )

    def answer_sum(
        self,
        sums: Ints,
        linear_map: LinearMap,
        *,
        squared_length: int,
        part: Fraction,
        grouped: bool = False,
        labels_only: bool = False,
        before_draw: Callable[[], None] = lambda: None,
    ) -> NoisySum:
        """Publish what `sum_of_blocks` returned for these parameters, or the sum of
        several such sums over different units: integers add up in any order.
        """
        limit = check_squared_length(squared_length)
        if labels_only and sums.shape[1] > 1:
            limit *= 2  # one code leaves, another one comes
        return self.release(
            linear_map.push(sums),
            squared_length=limit * LENGTH_UNIT,
            part=part,
            weight=WEIGHT if grouped and not labels_only else 1,
            before_draw=before_draw,
        )

    def release(
        self,
        total: Ints,
        *,
        squared_length: int,
        part: Fraction,
        weight: int = 1,
        before_draw: Callable[[], None] = lambda: None,
    ) -> NoisySum:
        """Publish a sum to which each unit adds an integer vector of squared length at
        most ``squared_length`` times ``weight`` squared, in integer steps.

        The result is in units of ``weight`` steps.
        """
        part = rational(part=part)
        sigma = scale(sigma=self.sigma(squared_length * weight**2, part))
        with self._guard:
            self._take(part, total.size)
            before_draw()
            noisy = total + discrete_gaussian(sigma, total.shape, source=self._source)
        return NoisySum(noisy / weight, float(sigma) / weight)

    def take(self, part: Fraction, coordinates: int) -> None:
        """Set a part of the budget aside for another mechanism, which keeps to it."""
        with self._guard:
            self._take(rational(part=part), coordinates)

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


def check_squared_length(squared_length: int) -> int:
    """Refuse a bound that integers of 64 bits could not hold."""
    found = integer(squared_length=squared_length, at_least=1)
    if found > LARGEST_SQUARED_LENGTH:
        raise ParameterError("squared_length must be at most 2**48.")
    return found


def sum_of_blocks(
    blocks: Iterable[Block],
    linear_map: LinearMap,
    *,
    columns: int,
    squared_length: int,
    grouped: bool = False,
    labels_only: bool = False,
) -> Ints:
    """Return the sum of all units' bounded contributions, before the linear map."""
    sums = np.zeros((linear_map.width, columns), dtype=np.int64)
    for block in blocks:
        if labels_only:
            sums += bounded_label_sum(block, squared_length)
        else:
            sums += bounded_sum(block, linear_map, squared_length, grouped=grouped)
    return sums


def bounded_sum(
    block: Block, linear_map: LinearMap, squared_length: int, *, grouped: bool = False
) -> Ints:
    """Return the sum of cells times residuals, each record's (unit's) contribution of
    squared length at most S = squared_length * LENGTH_UNIT after the linear map.

    With ``grouped`` the contributions are multiplied by `WEIGHT`, and S by its square:
    a unit is then shortened by a whole number of 1/WEIGHT.
    """
    good = (block.lengths >= 0) & are_sound(block.residuals, LARGEST_RESIDUALS)
    cells, residuals = block.cells, block.residuals
    if not good.all():  # such a record counts nothing
        cells = np.where(good[:, None], cells, 0.0)
        residuals = np.where(good[:, None], residuals, 0.0)
    lengths = np.maximum(block.lengths, 0)
    residuals = _shortened(lengths, residuals, squared_length)
    if not grouped:
        return _exact_product(cells, residuals)
    if block.unit_sizes is None or block.unit_sizes.sum() != cells.shape[0]:
        raise ParameterError("unit_sizes must say how many records each unit has.")
    image = linear_map.image(cells)
    weights = _unit_weights(image, residuals, block.unit_sizes, squared_length)
    return _exact_product(cells, residuals * weights[:, None])


def bounded_label_sum(block: Block, squared_length: int) -> Ints:
    """Return the sum of cells times label codes; the lengths of a unit's records add up
    to at most sqrt(S). How a record is shortened depends on features alone.
    """
    sizes = block.unit_sizes
    each = np.ones(len(block.cells), dtype=np.int64)
    if sizes is not None:
        each = np.repeat(sizes, sizes)
    good = block.lengths >= 0
    cells = np.where(good[:, None], block.cells, 0.0)
    limits = squared_length // each**2
    lengths = np.maximum(block.lengths, 0)
    return _exact_product(cells, _shortened(lengths, block.residuals, limits))


def _exact_product(cells: Floats, residuals: Floats) -> Ints:
    """Return cells' x residuals. Every partial sum is an integer below 2^53."""
    total = np.zeros((cells.shape[1], residuals.shape[1]), dtype=np.int64)
    for start in range(0, cells.shape[0], _ROWS):
        rows = slice(start, start + _ROWS)
        total += (cells[rows].T @ residuals[rows]).astype(np.int64)
    return total


def _shortened(lengths: Ints, residuals: Floats, squared_length: int | Ints) -> Floats:
    """Return residuals of which no record's contribution is longer than sqrt(S).

    The factor is rounded down, then each residual towards zero; the result is checked
    in integers, and set to zero if it does not hold.
    """
    products = lengths * squared_lengths(residuals).astype(np.int64)
    limits = np.broadcast_to(np.asarray(squared_length), products.shape)
    long = np.flatnonzero(products > limits)
    if not long.size:
        return residuals
    factor = np.floor(np.sqrt(limits[long] / products[long]) * (2**20 - 1))
    out = residuals.copy()
    out[long] = np.trunc(residuals[long] * factor[:, None] / 2**20)
    checked = lengths[long] * squared_lengths(out[long]).astype(np.int64)
    out[long[checked > limits[long]]] = 0.0
    return out


def _unit_weights(
    image: Floats, residuals: Floats, unit_sizes: Ints, squared_length: int
) -> Floats:
    """Return for each record the weight of its unit, 0 to `WEIGHT`.

    The squared length of a unit's sum is that of the Gram matrices of its records. Each
    record is shortened already, so its entries are at most S, and the sum of
    MOST_RECORDS_EACH^2 of them fits 64 bits in units that are coarse where S is large.
    """
    limit = squared_length * LENGTH_UNIT
    unit = 2 ** max(0, limit.bit_length() - 46)
    ends = np.cumsum(unit_sizes)
    weights = np.zeros(len(image))
    for size in np.unique(unit_sizes[unit_sizes > 0]):
        starts = (ends - unit_sizes)[unit_sizes == size]
        counted = min(int(size), MOST_RECORDS_EACH)
        for some in np.array_split(starts, max(1, len(starts) * counted // 4096)):
            rows = some[:, None] + np.arange(counted)
            own = image[rows], residuals[rows]
            grams = [v @ v.transpose(0, 2, 1) for v in own]  # exact integers
            # The product is rounded once, by less than one unit: 2 more cover it.
            entries = np.floor(grams[0] * grams[1] / unit).astype(np.int64) + 2
            found = _weights_for(entries.sum(axis=(1, 2)), limit, unit)
            weights[rows] = found[:, None]
    return weights


def _weights_for(lengths: Ints, limit: int, unit: int) -> Floats:
    """Return the largest whole weights w, up to WEIGHT, for which w^2 length unit is at
    most WEIGHT^2 limit.
    """
    weights = np.full(len(lengths), float(WEIGHT))
    for i in np.flatnonzero(lengths * (unit / limit) > 1 - 1e-9):
        exact = int(lengths[i]) * unit
        weights[i] = min(WEIGHT, math.isqrt(WEIGHT**2 * limit // exact))
    return weights
