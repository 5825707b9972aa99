"""Sums of outer products: how the pieces of a step go together in private records.

Each record has, for each class, a vector of partial logits z and a curvature q = p (1 -
p); it adds q z z'. All classes together are one integer vector of bounded length.

Proof: docs/proofs/Coupling.md
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapl.arrays import Bools, Floats, Ints
from mapl.privacy.gradients import RESIDUAL_GRID, integer_probabilities
from mapl.privacy.moments import MOST_RECORDS_EACH, WEIGHT

LARGEST_PIECE = 2**9  # of a partial logit, in integer steps
CURVATURE_GRID = 2**4  # integer steps of a curvature of 1
_LEAST_CURVATURE = 0.08  # as a share of that of equally probable classes
_LARGEST_LEFT, _LARGEST_RIGHT = 2**22, 2**26  # squared lengths
_MOST_CLASSES = 2**7  # so that sums of products fit 64 bits


@dataclass(frozen=True, repr=False)
class PairBlock:
    """Some units' records. Private.

    ``left`` and ``right`` hold integers as float64, of shape (records, classes,
    pieces). ``unit_sizes`` says how many consecutive records each unit has; None if one
    each.
    """

    left: Floats
    right: Floats
    unit_sizes: Ints | None = None


def least_curvature(columns: int) -> float:
    """Return the least curvature that counts, for so many columns of logits."""
    even = 1 / max(2, columns)
    return _LEAST_CURVATURE * even * (1 - even)


def curved(logits: Floats, pieces: Floats, counted: Bools) -> Floats:
    """Return the right sides: partial logits times the curvature of the model.

    ``logits`` are integer ones, (records, columns); ``pieces`` the left sides. Records
    that are not counted have zeros.
    """
    p = integer_probabilities(logits)
    curvature = p * (RESIDUAL_GRID - p)  # at most 2^20
    least = least_curvature(p.shape[1]) * RESIDUAL_GRID**2
    scaled = np.maximum(curvature, least) * (CURVATURE_GRID / RESIDUAL_GRID**2)
    found = np.trunc(pieces * scaled[:, :, None])
    return np.where(counted[:, None, None], found, 0.0)


def bounded_pair_sum(
    block: PairBlock, squared_length: int, *, grouped: bool = False
) -> Ints:
    """Return the sum of left x right, class by class: each record's contribution has a
    squared length of at most S over all classes; that of a unit, WEIGHT^2 S.

    With ``grouped`` the records of a unit have whole weights that add up to at most
    WEIGHT: by the triangle inequality the unit is then as short as one record.
    """
    left, right = _shortened(block.left, block.right, squared_length)
    if grouped:
        right = right * record_weights(block.unit_sizes)[:, None, None]
    n_pieces = right.shape[2]
    left, right = (side.reshape(-1, n_pieces) for side in (left, right))
    # Exact: entries below 2^9 times 2^21, of at most 2^23 rows.
    total: Ints = (left.T @ right).astype(np.int64)
    return total


def record_weights(unit_sizes: Ints | None) -> Floats:
    """Return a whole weight for each record, WEIGHT in all for a unit at most.

    Records beyond MOST_RECORDS_EACH of one unit count nothing.
    """
    sizes = np.zeros(0, np.int64) if unit_sizes is None else unit_sizes
    weights = WEIGHT // np.minimum(np.repeat(sizes, sizes), MOST_RECORDS_EACH)
    counts = places_in_units(sizes) < MOST_RECORDS_EACH
    return np.where(counts, weights, 0).astype(np.float64)


def places_in_units(unit_sizes: Ints) -> Ints:
    """Return for each record its place within its unit, from 0 on."""
    starts = np.repeat(np.cumsum(unit_sizes) - unit_sizes, unit_sizes)
    return np.arange(len(starts)) - starts


def _shortened(
    left: Floats, right: Floats, squared_length: int
) -> tuple[Floats, Floats]:
    """Return both sides, the right ones such that no record's contribution exceeds S.

    A record that is too long, or not of integers, has zeros. The factor is rounded
    down, entries towards zero; the result is checked in integers.
    """
    good = np.full(len(left), right.shape[1] <= _MOST_CLASSES)
    for side, longest in ((left, _LARGEST_LEFT), (right, _LARGEST_RIGHT)):
        with np.errstate(invalid="ignore", over="ignore"):
            whole = (np.rint(side) == side).all(axis=(1, 2))  # not of NaN
            good &= whole & ((side**2).sum(axis=2) <= longest).all(axis=1)
    left, out = (np.where(good[:, None, None], side, 0.0) for side in (left, right))
    lengths = _pair_squares(left, out)
    long = np.flatnonzero(lengths > squared_length)
    if long.size:
        factor = np.floor(np.sqrt(squared_length / lengths[long]) * (2**20 - 1))
        out[long] = np.trunc(out[long] * factor[:, None, None] / 2**20)
        checked = _pair_squares(left[long], out[long])
        out[long[checked > squared_length]] = 0.0
    return left, out


def _pair_squares(left: Floats, right: Floats) -> Ints:
    """Return the squared length of each record's sum over classes, exactly: that of a
    sum of outer products is the sum of the products of their Gram matrices.
    """
    grams = [
        (side @ side.transpose(0, 2, 1)).astype(np.int64) for side in (left, right)
    ]
    return np.asarray((grams[0] * grams[1]).sum(axis=(1, 2)))
