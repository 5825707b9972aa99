"""Public records that are private ones, too: their features would be published."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapl.arrays import Array, Bools, Words
from mapl.errors import ParameterError

_LARGE = 0.5  # of what is not explained by copies among the private records
_MOSTLY_COPIES = 0.9  # of the private records: then overlap means nothing


def as_cells(keys: Words) -> Array:
    """Return each key as one value, which can be looked up."""
    return np.ascontiguousarray(keys).view("V16").reshape(-1)


def copies_share(keys: Words) -> float:
    """Return the share of records that have a copy."""
    _, counts = np.unique(as_cells(keys), return_counts=True)
    return float(counts[counts > 1].sum() / max(1, counts.sum()))


def found_among(public: Words, private: Words) -> Bools:
    """Return which public records are among the private ones."""
    return np.isin(as_cells(public), as_cells(private))


def refuse_overlap(found: Any, usual: float) -> None:
    """Refuse public records most of which are private ones, too.

    Copies are common in some data. So the share of public records that are found among
    the private ones is compared with that of private records which have a copy there.
    Where nearly all have one, a public record is like many people's.
    """
    share = float(np.mean(found)) if len(found) else 0.0
    if usual < _MOSTLY_COPIES and share - usual > _LARGE * (1 - usual):
        raise ParameterError(
            "Most of the public records are private records, too: labels.parquet would "
            "publish their features. Take other public records, or permit it with "
            "--allow-overlap."
        )
