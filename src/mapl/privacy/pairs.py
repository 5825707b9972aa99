"""Sums of outer products: how columns, or the pieces of a step, go together.

A record has a few vectors z and adds the sum of q z z' over them; all of it together is
one integer vector of bounded length. For columns, z is what its cells say, and q is 1.
For the pieces of a step, there is a z for each class: the logits that the pieces add,
centred under the model's probabilities q.

Proof: docs/proofs/Gram.md
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapl.arrays import Bools, Floats, Ints
from mapl.privacy.gradients import RESIDUAL_GRID, integer_probabilities
from mapl.privacy.moments import MOST_RECORDS_EACH, WEIGHT

LARGEST_PIECE = 2**9  # of a logit that a piece adds, in integer steps
WEIGHT_STEPS = 2**4  # integer steps of a probability of 1
_LEAST_PROBABILITY = 0.02  # that counts, over the number of classes
_LARGEST_LEFT, _LARGEST_RIGHT = 2**22, 2**26  # squared lengths of a vector
_MANY = 2**7  # times as much for all vectors of a record, so that sums fit 64 bits


@dataclass(frozen=True, repr=False)
class PairBlock:
    """Some units' records. Private.

    ``left`` and ``right`` hold integers as float64, of shape (records, vectors,
    entries). ``unit_sizes`` says how many consecutive records each unit has; None if
    one each.
    """

    left: Floats
    right: Floats
    unit_sizes: Ints | None = None


def least_probability(columns: int) -> float:
    """Return the least probability that counts, for so many columns of logits."""
    return _LEAST_PROBABILITY / (1 if columns == 1 else columns)


def coupled(logits: Floats, pieces: Floats, counted: Bools) -> tuple[Floats, Floats]:
    """Return both sides of each record's sum: centred logits of the pieces, and these
    times the probabilities.

    ``logits`` are the model's in integer steps, (records, columns); ``pieces`` whole
    numbers, (records, columns, pieces). Records that are not counted have zeros.
    """
    p = integer_probabilities(logits)
    least = np.ceil(least_probability(p.shape[1]) * RESIDUAL_GRID)
    if p.shape[1] == 1:  # of two classes, whose logits differ by z
        curvature = np.maximum(p * (RESIDUAL_GRID - p) / RESIDUAL_GRID, least)
        left, q = pieces, curvature
    else:
        q = np.maximum(p, least)
        mean = (q[:, :, None] * pieces).sum(axis=1) / q.sum(axis=1)[:, None]
        left = pieces - np.rint(mean)[:, None, :]
    scaled = q * (WEIGHT_STEPS / RESIDUAL_GRID)
    right = np.trunc(left * scaled[:, :, None])
    return left, np.where(counted[:, None, None], right, 0.0)


def bounded_pair_sum(
    block: PairBlock, squared_length: int, *, grouped: bool = False
) -> Ints:
    """Return the sum of left x right over records and vectors: each record's
    contribution has a squared length of at most S; that of a unit, WEIGHT^2 S.

    With ``grouped`` the records of a unit have whole weights that add up to at most
    WEIGHT: by the triangle inequality the unit is then as short as one record.
    """
    left, right = _shortened(block.left, block.right, squared_length)
    if grouped:
        right = right * record_weights(block.unit_sizes)[:, None, None]
    n_entries = right.shape[2]
    left, right = (side.reshape(-1, n_entries) for side in (left, right))
    # Exact: entries below 2^11 times 2^21, of at most 2^21 rows.
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
    good = np.ones(len(left), dtype=np.bool_)
    for side, longest in ((left, _LARGEST_LEFT), (right, _LARGEST_RIGHT)):
        with np.errstate(invalid="ignore", over="ignore"):
            good &= (np.rint(side) == side).all(axis=(1, 2))  # not of NaN
            squares = (side**2).sum(axis=2)
            good &= (squares <= longest).all(axis=1)
            good &= squares.sum(axis=1) <= _MANY * longest
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
    """Return the squared length of each record's sum, exactly: that of a sum of outer
    products is the sum of the products of their Gram matrices.
    """
    if left.shape[1] == 1:
        found = [
            (side[:, 0] ** 2).sum(axis=1).astype(np.int64) for side in (left, right)
        ]
        return np.asarray(found[0] * found[1])
    if left.shape[1] > left.shape[2]:  # many vectors: the sum itself is smaller
        sums = (left.transpose(0, 2, 1) @ right).astype(np.int64)
        return np.asarray((sums**2).sum(axis=(1, 2)))
    grams = [
        (side @ side.transpose(0, 2, 1)).astype(np.int64) for side in (left, right)
    ]
    return np.asarray((grams[0] * grams[1]).sum(axis=(1, 2)))
