"""The private records of one fit, and where the public points come from."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from mapl.arrays import Bools, Ints, Words, n_rows
from mapl.errors import ParameterError
from mapl.records.keys import (
    chunk_rows,
    group_keys,
    record_keys,
    unit_keys,
    unreadable_owners,
)
from mapl.records.labels import UNKNOWN
from mapl.records.table import Table

_INCOMPLETE = (
    "Input X contains NaN or a cell that does not fit its column, and the estimator "
    "takes no missing values. Put an imputer into a pipeline with it, or set "
    "on_invalid='drop' to leave such records out."
)
_UNREADABLE = (
    "X holds a record that has another number of cells than there are columns. Fix it, "
    "or set on_invalid='drop' to leave such records out."
)
_UNREADABLE_OWNER = (
    "groups holds an owner that is no text, number or time, so whose record it is "
    "cannot be told. Make texts of them, or set on_invalid='drop' to leave such "
    "records out."
)
_UNKNOWN_LABEL = (
    "y holds a label that is not among classes. Declare every label that may occur "
    "(blanks count: 'yes ' is not 'yes'), or "
    "set on_invalid='drop' to leave such records out."
)


@dataclass(frozen=True, repr=False)
class PrivateRecords:
    """Records in canonical form with the keys that decide their chunks. Private.

    ``usable`` says which of them teachers learn from. Where only labels are private,
    ``keys`` are digests of the features alone, and chunks do not depend on ``usable``.
    """

    table: Table
    codes: Ints
    units: Words | None
    usable: Bools
    labels_in_keys: bool

    @cached_property
    def keys(self) -> Words:
        """A digest of each record: computed if somebody asks."""
        return record_keys(self.table, self.codes if self.labels_in_keys else None)

    def digests(self) -> Words:
        """Return digests of features and labels, by which a ledger notices others."""
        return self.keys if self.labels_in_keys else record_keys(self.table, self.codes)

    def chunks(self, n_chunks: int, *, salt: int) -> list[Ints]:
        """Return the rows of each chunk that a teacher learns from."""
        rows = self.all_chunks(n_chunks, salt=salt)
        return [chunk[self.usable[chunk]] for chunk in rows]

    def all_chunks(self, n_chunks: int, *, salt: int) -> list[Ints]:
        """Return the rows of each chunk, also those that nobody learns from."""
        return chunk_rows(self.keys, self.units, n_chunks=n_chunks, salt=salt)

    def assignment(self, n_chunks: int, *, salt: int) -> bytes:
        """Return a digest of which record, with which label and of which unit, is in
        which chunk.
        """
        whole = sha256()
        for rows in self.all_chunks(n_chunks, salt=salt):
            whole.update(len(rows).to_bytes(8, "little") + self.keys[rows].tobytes())
            whole.update(self.codes[rows].tobytes())
            if self.units is not None:
                whole.update(self.units[rows].tobytes())
        return whole.digest()


def private_records(
    table: Table,
    codes: Ints,
    groups: Any,
    *,
    takes_missing: bool,
    on_invalid: str,
    privacy: str = "records",
) -> PrivateRecords:
    """Hash records, and decide what to do with those that do not fit.

    This is the one place where a private value may stop a fit: with ``on_invalid``
    "error", in a sentence without values or counts. With "drop" such records are left
    out, and nothing shows it.
    """
    if len(codes) != len(table):
        raise ParameterError("y must hold one label a record.")
    usable = table.readable & (codes != UNKNOWN)
    if not takes_missing:
        usable &= ~table.incomplete
    labels_in_keys, owners = privacy == "records", None
    if groups is not None:
        owners = group_keys(groups, len(table))
        unknown = unreadable_owners(owners)
        if on_invalid == "error" and unknown.any():
            raise ParameterError(_UNREADABLE_OWNER)
        usable &= ~unknown
    if on_invalid == "error" and not usable.all():
        if (codes == UNKNOWN).any():
            raise ParameterError(_UNKNOWN_LABEL)
        raise ParameterError(_INCOMPLETE if table.readable.all() else _UNREADABLE)
    units = None
    if owners is not None:
        units = unit_keys(owners, table, codes if labels_in_keys else None)
    return PrivateRecords(
        table=table,
        codes=codes,
        units=units,
        usable=usable,
        labels_in_keys=labels_in_keys,
    )


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


def check_order(X: Any, y: Any, groups: Any) -> None:
    """Refuse labels or owners that have the index of the records in another order."""
    for name, data in (("y", y), ("groups", groups)):
        if _shuffled(X, data):
            raise ParameterError(
                f"{name} has the index of X in another order. Align them first: "
                f"{name}.loc[X.index]."
            )


def _shuffled(X: Any, other: Any) -> bool:
    """Whether two pandas objects have the same index labels in another order."""
    if not (hasattr(X, "iloc") and hasattr(other, "iloc")):
        return False
    own, index = X.index, other.index
    if len(own) != len(index) or own.equals(index) or not own.is_unique:
        return False
    return bool(index.is_unique and len(own.symmetric_difference(index)) == 0)


def check_lengths(X: Any, y: Any, groups: Any) -> None:
    """Refuse data of several lengths; the lengths are private."""
    if isinstance(groups, str):
        raise ParameterError(
            "groups must hold one owner for each record, got the name of a column. "
            "Pass the column itself."
        )
    if len({n_rows(data) for data in (X, y, groups) if data is not None}) > 1:
        raise ParameterError("X, y and groups must have the same length.")
