"""One set of array types for type hints."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer[Any]]  # of any width
Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.floating[Any]]  # of any width
Singles = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]


def n_rows(data: Any) -> int:
    """Return how many records any container holds."""
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else len(data)


def same_numbers(first: Array, second: Array) -> bool:
    """Whether two arrays hold the same, numbers to nine digits."""
    if first.dtype.kind in "OUS" or second.dtype.kind in "OUS":
        return bool((first.astype(str) == second.astype(str)).all())
    return bool(np.allclose(first, second, rtol=1e-9, atol=1e-12, equal_nan=True))
