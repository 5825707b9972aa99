"""The private records of one fit, and where the public points come from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from mapl.arrays import Ints, Words, n_rows
from mapl.errors import ParameterError
from mapl.records.keys import record_keys
from mapl.records.schema import cast_like


@dataclass(frozen=True, repr=False)
class PrivateRecords:
    """Validated records with the keys that decide their chunks. Private.

    Where only labels are private, ``keys`` are digests of the features alone.
    """

    X: Any
    codes: Ints
    groups: Any
    keys: Words
    labels_in_keys: bool

    def digests(self) -> Words:
        """Return digests of features and labels, by which a ledger notices others."""
        return self.keys if self.labels_in_keys else record_keys(self.X, self.codes)


def private_records(X: Any, codes: Ints, groups: Any, pool: Any) -> PrivateRecords:
    """Give records the types of the public pool, and hash them."""
    X = cast_like(X, pool)
    return PrivateRecords(X, codes, groups, record_keys(X, codes), True)


def private_labels(X: Any, codes: Ints, groups: Any) -> PrivateRecords:
    """Hash features that are public; the labels decide no chunk."""
    return PrivateRecords(X, codes, groups, record_keys(X, None), False)


def split_public_features(
    X: Any, codes: Ints, groups: Any, *, seed: int
) -> tuple[Any, Ints, Any, Any]:
    """Cut records in two by position: private labels, and public points.

    Only for features that are public.
    """
    n = n_rows(X)
    order = np.random.default_rng(seed).permutation(n)
    kept, given = np.sort(order[: (n + 1) // 2]), np.sort(order[(n + 1) // 2 :])
    if given.size == 0:
        given = kept
    if groups is not None:
        groups = _safe_indexing(groups, kept)
    return _safe_indexing(X, kept), codes[kept], groups, _safe_indexing(X, given)


def check_lengths(X: Any, y: Any, groups: Any) -> None:
    """Refuse data of several lengths; the lengths are private."""
    if isinstance(groups, str):
        raise ParameterError(
            "groups must hold one owner for each record, got the name of a column. "
            "Pass the column itself."
        )
    if len({n_rows(data) for data in (X, y, groups) if data is not None}) > 1:
        raise ParameterError("X, y and groups must have the same length.")
