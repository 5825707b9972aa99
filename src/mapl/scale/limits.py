"""How much memory a fit may take, and what follows from it."""

from __future__ import annotations

import re
from typing import Any

from mapl.errors import ParameterError

DEFAULT_MEMORY = "1GB"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_LEAST = 50 * 10**6  # bytes
_CELL = 160  # bytes of a cell, from its file to its contribution
_FEWEST_ROWS, _MOST_ROWS = 2**10, 2**16  # of a batch


def bytes_of(memory: Any) -> int:
    """Return a size such as 500MB or 2GB in bytes."""
    found = _SIZE.fullmatch(str(memory).strip())
    size = float(found[1]) * _UNITS[found[2].upper()] if found else 0
    if size < _LEAST:
        raise ParameterError(
            f"memory must be a size of at least 50MB such as 500MB, got {memory!r}."
        )
    return int(size)


def batch_rows(memory: int, *, n_columns: int, n_workers: int) -> int:
    """Return how many records a worker may read at a time."""
    rows = memory // (2 * n_workers * _CELL * (n_columns + 4))
    return min(max(rows, _FEWEST_ROWS), _MOST_ROWS)
