"""Teachers of records that are read in parts: a task a bucket, votes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array, Integers
from mapl.engines.local import LocalEngine
from mapl.records.schema import Schema
from mapl.scale.records import StreamedRecords
from mapl.scale.strays import Bucket
from mapl.teachers.voting import Chunks, collect_votes, one_at_a_time


@dataclass(frozen=True, repr=False)
class Asking:
    """Who is trained, and what they are asked. Public."""

    estimator: Any
    n_teachers: int
    points: Any
    classes: Array
    seed: int
    soft: bool
    time_limit: float | None


def votes_by_bucket(records: StreamedRecords, asking: Asking) -> Integers:
    """Train the teachers of each bucket where its records are; return all votes.

    If no two may be trained at once, they are trained in this process.
    """
    shared = records.reading.schema, records.grouped, asking
    buckets = records.buckets
    contents = [records.bucket_content(bucket) for bucket in buckets]
    doing, here = "Training teachers", None
    if one_at_a_time(asking.estimator, asking.time_limit):
        here = LocalEngine(1)
    tasks = records.run_on(
        doing, _votes, shared, buckets, kept_as=contents, engine=here
    )
    votes: Any = None
    for i, (_, own) in tasks:
        bucket = buckets[i]
        assert len(own) == bucket.last - bucket.first
        if votes is None:
            votes = np.empty((asking.n_teachers, *own.shape[1:]), dtype=own.dtype)
        votes[bucket.first : bucket.last] = own
    return np.asarray(votes)


def _votes(shared: tuple[Schema, bool, Asking], bucket: Bucket) -> tuple[int, Integers]:
    """Return how many records a bucket has, and the votes of its teachers.

    All teachers are there, those of other buckets without records: the last bits of a
    product may depend on how many are asked together.
    """
    schema, grouped, asking = shared
    records, rows = bucket.records(schema, grouped=grouped)
    votes = collect_votes(
        asking.estimator,
        Chunks(records.table.data, records.codes, rows, records.keys),
        asking.points,
        labels=asking.classes,
        random_state=asking.seed,
        n_jobs=1,
        time_limit=asking.time_limit,
        soft=asking.soft,
    )
    return len(records.codes), votes[bucket.first : bucket.last]
