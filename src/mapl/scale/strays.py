"""Copies of a record: they spread over the chunks, so some change their bucket.

A record's first copy is in the chunk of its key. The others have keys of their own,
by their number among all copies, which stand together in one bucket at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mapl.arrays import Bools, Ints, Words
from mapl.records.keys import chunk_numbers, rows_by_chunk, with_copy_numbers
from mapl.records.private import PrivateRecords
from mapl.records.schema import Schema
from mapl.scale.spool import Place, SpoolFiles, taken, with_keys

if TYPE_CHECKING:
    from mapl.scale.records import StreamedRecords


@dataclass(frozen=True, repr=False)
class Bucket:
    """The records of some chunks, ``first`` to ``last`` - 1, and copies from others."""

    files: SpoolFiles
    places: list[Place]
    strays: list[Place]
    first: int
    last: int
    n_chunks: int
    salt: int

    def own(self, units: Words) -> tuple[Bools, Words]:
        """Return which units belong here, and the chunk of each."""
        chunk = chunk_numbers(units, n_chunks=self.n_chunks, salt=self.salt)
        return (chunk >= self.first) & (chunk < self.last), chunk

    def records(
        self, schema: Schema, *, grouped: bool
    ) -> tuple[PrivateRecords, list[Ints]]:
        """Return the records, and the rows of each of all chunks that a teacher learns
        from; those of other buckets are empty.
        """
        found = self.files.read([*self.places, *self.strays], schema, grouped=grouped)
        if grouped:
            assert found.units is not None
            units, sort_keys = found.units, np.hstack((found.keys, found.units)).T
        else:
            n_here = len(self.files.keys(self.places))
            here = with_copy_numbers(found.keys[:n_here])
            units = np.concatenate((here, found.keys[n_here:]))  # strays have theirs
            sort_keys = units.T
        own, chunk = self.own(units)
        # What belongs elsewhere counts as of one chunk more.
        n = self.n_chunks
        chunk = np.where(own & found.usable, chunk, np.uint64(n))
        rows = rows_by_chunk(sort_keys, chunk, n + 1)[:n]
        return found, rows


def move_strays(records: StreamedRecords, buckets: list[Bucket]) -> list[Bucket]:
    """Write copies that belong to other buckets to where these find them."""
    shared = records.reading.schema, [b.first for b in buckets]
    strays: list[list[Place]] = [[] for _ in buckets]
    moved = records.run_on("Sorting the records", _moved, shared, buckets)
    for _, (_, found) in moved:
        for bucket, places in found.items():
            strays[bucket] += places
    return [replace(b, strays=own) for b, own in zip(buckets, strays, strict=True)]


def _moved(shared: Any, bucket: Bucket) -> tuple[int, dict[int, list[Place]]]:
    """Write the copies of a bucket that belong to others; most buckets have none."""
    schema, firsts = shared
    units = with_copy_numbers(bucket.files.keys(bucket.places))
    own, chunk = bucket.own(units)
    away = np.flatnonzero(~own)
    if not len(away):
        return len(units), {}
    found = bucket.files.read(bucket.places, schema, grouped=False)
    goals = np.searchsorted(firsts, chunk[away].astype(np.int64), side="right") - 1

    def pieces() -> Iterator[tuple[int, PrivateRecords]]:
        for goal in np.unique(goals).tolist():
            rows = away[goals == goal]
            yield goal, with_keys(taken(found, rows), units[rows])

    return len(units), bucket.files.write("stray", pieces())
