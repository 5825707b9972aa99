"""From a record's integers to its image: public integer matrices, kept out of records.

All lengths are bounded so that products and sums are exact in float64 and int64.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from mapl.arrays import Bools, Floats, Ints
from mapl.errors import ParameterError

LARGEST_CELLS = 2**16  # length of a record's integers
LARGEST_IMAGE = 2**20  # length of a block of their image, without its weight
LARGEST_WEIGHT = 4  # of a block
LARGEST_LENGTH = 2**30  # squared, of a record's image, in units
LARGEST_RESIDUALS = 2**16  # length of a record's residuals
LARGEST_ENTRY = 2**30  # of a linear map
LENGTH_UNIT = 2**16  # of squared lengths; they are rounded up to it
LARGEST_SQUARED_LENGTH = 2**48  # in these units


class LinearMap:
    """A public integer matrix and a whole weight for each block of a record's integers.

    A record with integers u speaks as M'u, each block times its weight, and contributes
    the outer product with its residuals. The matrices stay out of the records: sums are
    M'(sum of u r'). Blocks of weight 0 are absent, from the records, too.
    """

    def __init__(
        self, matrices: list[Floats], weights: list[int] | None = None
    ) -> None:
        self.weights = [1] * len(matrices) if weights is None else list(weights)
        self.matrices = [np.asarray(m, dtype=np.float64) for m in matrices]
        for m in self.matrices:
            sound = (np.rint(m) == m).all() and np.abs(m).max(initial=0) < LARGEST_ENTRY
            if not (sound and (np.linalg.norm(m, axis=0) < 2**36).all()):
                raise ParameterError("A linear map must hold integers below 2**30.")
        if not all(0 <= weight <= LARGEST_WEIGHT for weight in self.weights):
            raise ParameterError(f"Weights must be from 0 to {LARGEST_WEIGHT}.")

    def reweighted(self, weights: list[int]) -> LinearMap:
        """Return the map with other weights."""
        return LinearMap(self.matrices, weights)

    @cached_property
    def _parts(self) -> list[tuple[int, slice, Floats]]:
        """Weight, place among the record's integers and matrix of each block."""
        parts, start = [], 0
        for weight, m in zip(self.weights, self.matrices, strict=True):
            if weight:
                parts.append((weight, slice(start, start + len(m)), m))
                start += len(m)
        return parts

    @property
    def width(self) -> int:
        """How many integers a record has."""
        return sum(len(m) for _, _, m in self._parts)

    def image(self, cells: Floats) -> Floats:
        """Return M'u of each record, exactly: all partial sums are below 2^53."""
        parts = [weight * (cells[:, place] @ m) for weight, place, m in self._parts]
        return np.concatenate(parts, axis=1)

    def sound(self, cells: Floats) -> Bools:
        """Return which records' integers are short enough for exact products."""
        return are_sound(cells, LARGEST_CELLS)

    def block_lengths(self, cells: Floats) -> Ints:
        """Return the squared length of each block of each record without its weight;
        -1 for records that count nothing: too long, or not of integers.
        """
        good = self.sound(cells)
        if not good.all():
            cells = np.where(good[:, None], cells, 0.0)
        found = [squared_lengths(cells[:, place] @ m) for _, place, m in self._parts]
        lengths = np.stack(found, axis=1)
        good &= (lengths <= LARGEST_IMAGE**2).all(axis=1)  # before integers overflow
        return np.where(good[:, None], lengths, -1.0).astype(np.int64)

    def lengths(self, block_lengths: Ints) -> Ints:
        """Return each record's squared length in units of `LENGTH_UNIT`, rounded up."""
        squares = np.array([weight**2 for weight in self.weights if weight])
        total = -(-(block_lengths @ squares) // LENGTH_UNIT)
        good = (block_lengths >= 0).all(axis=1) & (total <= LARGEST_LENGTH)
        return np.where(good, total, -1)

    def push(self, sums: Ints) -> Ints:
        """Return M' times sums of records, exactly: 64-bit integers wrap around, and
        the result fits them.
        """
        parts = [
            weight * (m.T.astype(np.int64) @ sums[place])
            for weight, place, m in self._parts
        ]
        return np.concatenate(parts, axis=0)

    def push_floats(self, sums: Floats) -> Floats:
        """Return M' times sums that are public, in floating point."""
        parts = [weight * (m.T @ sums[place]) for weight, place, m in self._parts]
        return np.concatenate(parts, axis=0)


def are_sound(vectors: Floats, longest: int) -> Bools:
    """Return which vectors hold integers, and are not too long for exact sums."""
    with np.errstate(invalid="ignore", over="ignore"):
        whole = (np.rint(vectors) == vectors).all(axis=1)
        return np.asarray(whole & ((vectors**2).sum(axis=1) <= longest**2))


def squared_lengths(vectors: Floats) -> Floats:
    """Return the squared length of each row, exactly where it is below 2^53."""
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors))
