"""Public records whose features must not be published: private ones, and names."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from mapl.arrays import Array, Bools, Words
from mapl.errors import ParameterError, PrivacyWarning
from mapl.records import cells
from mapl.records.containers import cells_of

SHARED = (
    "X_public holds records that are private records, too: their features would be "
    "published. Take other records. If people who do not mind, or others who look "
    "alike, are the reason, pass allow_overlap=True: the certificate then says so."
)
_NOT_COMPARED = (
    "X_public is not compared with the private records: with on_invalid='drop' nothing "
    "may show what these are. Compare them once with on_invalid='error', or pass "
    "allow_overlap=True, which says that records may be in both."
)
_FEWEST, _NEARLY_EVERY = 10, 0.9


def found_among(public: Words, private: Words) -> Bools:
    """Return which public records are among the private ones, by their keys."""
    return np.isin(_as_cells(public), _as_cells(private))


def _as_cells(keys: Words) -> Array:
    """Return each key as one value, which can be looked up."""
    return np.ascontiguousarray(keys).view("V16").reshape(-1)


def refuse_shared(found: Any) -> None:
    """Refuse public records of which one is private, too."""
    if np.any(found):
        raise ParameterError(SHARED)


def must_compare(*, allow_overlap: bool, on_invalid: str, privacy: str) -> bool:
    """Whether public records are compared with the private ones.

    Not where all features are public, nor where they may be in both; and not where a
    refusal would show a private record, which is said whatever the records are.
    """
    if allow_overlap or privacy == "labels":
        return False
    if on_invalid == "drop":
        warnings.warn(_NOT_COMPARED, PrivacyWarning, stacklevel=5)
        return False
    return True


def clause(*, allow_overlap: bool, on_invalid: str) -> str:
    """Return what a certificate says of public records that may be private ones."""
    if allow_overlap:
        return (
            "; records of X_public may be private ones, too (allow_overlap): the "
            "features of those people are published, and only their labels protected"
        )
    if on_invalid == "drop":
        return "; X_public was not compared with the private records"
    return ""


def naming_columns(points: Any) -> list[Any]:
    """Return the columns of a frame in which nearly every value differs: names, ID
    numbers, moments. They say who somebody is.
    """
    return [name for name in points.columns if _names(points[name])]


def _names(column: Any) -> bool:
    values = cells_of(column)
    if not isinstance(values, list):
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
            if not np.array_equal(values, np.floor(values)):
                return False
        elif values.dtype.kind in "mM":
            values = values[~np.isnat(values)]
        found = np.unique(values)
    else:
        values = [text for value in values if (text := cells.text(value)) is not None]
        found = np.array(sorted(set(values)), dtype=object)
    return len(values) >= _FEWEST and len(found) >= _NEARLY_EVERY * len(values)
