"""Private records that are read in parts, and never all at once.

What a pass over them adds up, and which chunk a record is in, is to the last bit what
it would be in memory: sums are of integers, and chunks are functions of units alone.
Proofs: docs/proofs/partition.md, docs/proofs/Moments.md
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np

from mapl.arrays import Array, Ints, Words
from mapl.engines.engine import Engine, Work
from mapl.errors import ParameterError
from mapl.progress import Progress
from mapl.records import cells
from mapl.records.columns import distinct_texts
from mapl.records.files import Block, is_missing
from mapl.records.keys import chunk_numbers, record_keys
from mapl.records.labels import UNKNOWN, encode
from mapl.records.overlap import found_among, refuse_shared
from mapl.records.private import PrivateRecords, private_records
from mapl.records.schema import Schema
from mapl.records.sources import Part, Source
from mapl.records.table import Table
from mapl.scale.spool import Place, Spool, SpoolFiles, taken
from mapl.scale.strays import Bucket, move_strays
from mapl.teachers.voting import Checkpoints

_UNREADABLE = (
    "A file has a line that cannot be read: it has another number of cells than the "
    "first line, an open quote, or bytes that are not UTF-8. See mapl check, or leave "
    "such lines out with on_invalid='drop'."
)
_LEFT_OUT = -2  # the code of a record without a label


@dataclass(frozen=True)
class Reading:
    """How parts of a source become private records, batch by batch. Public."""

    schema: Schema
    target: str
    groups: str | None
    classes: Array
    takes_missing: bool
    on_invalid: str
    rows: int  # of a batch

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [*self.schema.columns, self.target, *([self.groups] * bool(self.groups))]

    def batches(self, part: Part) -> Iterator[PrivateRecords]:
        """Yield the records of a part."""
        with np.errstate(all="ignore"):  # no warning tells of a private cell
            for block in part.blocks(self.names, self.rows):
                yield self._records(block)

    def _records(self, block: Block) -> PrivateRecords:
        """Convert a block; records without a label are left out."""
        if block.n_unreadable and self.on_invalid == "error":
            raise ParameterError(_UNREADABLE)
        columns = [
            kind.convert(block.columns[name])
            for name, kind in self.schema.columns.items()
        ]
        codes = self._codes(block.columns[self.target])
        kept = codes != _LEFT_OUT
        owners = None
        if self.groups is not None:
            texts, places = distinct_texts(block.columns[self.groups], cells.group)
            owners = texts[places]
        if not kept.all():
            columns, codes = [column[kept] for column in columns], codes[kept]
            owners = None if owners is None else owners[kept]
        table = Table(self.schema, columns, np.ones(len(codes), dtype=np.bool_))
        return private_records(
            table,
            codes,
            owners,
            takes_missing=self.takes_missing,
            on_invalid=self.on_invalid,
        )

    def _codes(self, column: Any) -> Ints:
        texts, places = distinct_texts(column)
        codes = encode(texts, self.classes)
        blank = [
            code == UNKNOWN and is_missing(text)
            for text, code in zip(texts, codes.tolist(), strict=True)
        ]
        codes[np.array(blank, dtype=np.bool_)] = _LEFT_OUT
        return np.asarray(codes[places])


@dataclass(frozen=True, repr=False)
class BucketPart:
    """A bucket of spooled records, as one batch."""

    files: SpoolFiles
    places: list[Place]

    def batches(self, reading: Reading) -> Iterator[PrivateRecords]:
        """Yield all records of the bucket together."""
        grouped = reading.groups is not None
        yield self.files.read(self.places, reading.schema, grouped=grouped)


@dataclass(frozen=True, repr=False)
class KnownPart:
    """A part of a source that was read before; a digest of what it held."""

    part: Part
    digest: bytes

    def batches(self, reading: Reading) -> Iterator[PrivateRecords]:
        """Yield the records; refuse others than before."""
        content = Content()
        for records in reading.batches(self.part):
            content.add(records)
            yield records
        if content.digest() != self.digest:
            raise ParameterError(
                "The files were changed during the fit. Start again when they rest."
            )


class Content:
    """What a part held: two readings of the same records have one digest."""

    def __init__(self) -> None:
        self._whole = sha256()

    def add(self, records: PrivateRecords) -> None:
        """Add a batch."""
        import pyarrow as pa

        arrays = [*records.table.columns, records.codes, records.usable]
        arrays += [] if records.units is None else [records.units]
        for array in arrays:
            if array.dtype == object:
                for buffer in pa.array(array, pa.large_string()).buffers():
                    self._whole.update(buffer or b"")
            else:
                self._whole.update(np.ascontiguousarray(array).data)

    def digest(self) -> bytes:
        """Return the digest of all batches."""
        return self._whole.digest()


def batches_of(reading: Reading, part: Any) -> Iterator[PrivateRecords]:
    """Yield the records of a part of a source, or of a bucket."""
    if isinstance(part, BucketPart | KnownPart):
        return part.batches(reading)
    return reading.batches(part)


class StreamedRecords:
    """The private records of one fit, wherever they are. Private.

    Has what a fit needs of `PrivateRecords`: digests, totals of passes, and chunks.
    """

    def __init__(
        self,
        source: Source,
        reading: Reading,
        engine: Engine,
        spool: Spool,
        *,
        memory: int,
    ) -> None:
        self.reading, self.engine, self.memory = reading, engine, memory
        self.parts: list[Any] = list(source.parts)
        self._moving, self._spool = source.moving, spool
        self._digest: Words | None = None
        self._part_digests: dict[int, bytes] = {}
        self._n = 0
        self.checkpoints: Checkpoints | None = None
        self.buckets: list[Bucket] = []

    @property
    def grouped(self) -> bool:
        """Whether a unit may have several records."""
        return self.reading.groups is not None

    def check(self, *, digest: bool, public: Table | None = None) -> None:
        """Read every record once: what cannot be read, or does not fit, stops the fit
        here, before anything is charged. With ``digest``, remember what was read; with
        ``public``, refuse public records that are private ones, too.
        """
        if self._moving:  # from here on, records are what was copied now
            self._copy()
        keys = None if public is None else record_keys(public, None)
        shared = self.reading, digest, keys
        total, n, seen = np.zeros(4, dtype=np.uint64), 0, False
        known = list(self.parts)
        for i, (rows, part) in self.run("Reading the records", _checked, shared):
            own, content, shown = part
            self._part_digests[i] = repr((rows, own.tolist())).encode()
            total, n = total + own, n + rows
            seen = seen or shown
            if not isinstance(known[i], BucketPart):
                known[i] = KnownPart(known[i], content)
        self._digest, self._n, self.parts = total, n, known
        if not n and self.reading.on_invalid == "error":
            raise ParameterError(
                f"There is no record with a {self.reading.target!r}: there is nothing "
                "to learn from."
            )
        refuse_shared(seen)

    def digests(self) -> Words:
        """Return a digest of the records, whatever their order and owners."""
        return np.asarray(self._digest)[:2].reshape(1, 2)

    def assignment(self, n_chunks: int, *, salt: int) -> bytes:
        """Return a digest that says which record is in which chunk: units decide."""
        whole = (n_chunks, salt, self._n, np.asarray(self._digest).tolist())
        return sha256(repr(whole).encode()).digest()

    def partition(self, n_chunks: int, *, salt: int) -> None:
        """Sort all records into buckets, each with the records of some chunks."""
        n_buckets = min(self.needed_buckets(), n_chunks)
        by = _By(self.reading, self._spool.files(), n_chunks, n_buckets, salt)
        buckets = self._spooled("Sorting the records", by)
        self.buckets = [
            Bucket(self._spool.files(), places, [], first, last, n_chunks, salt)
            for places, (first, last) in zip(buckets, by.ranges(), strict=True)
        ]
        if not self.grouped:
            self.buckets = move_strays(self, self.buckets)
        if self.grouped:
            self.parts = [BucketPart(b.files, b.places) for b in self.buckets]
            self._part_digests = {
                i: self.bucket_content(b) for i, b in enumerate(self.buckets)
            }

    def bucket_content(self, bucket: Bucket) -> bytes:
        """Return a digest of what a bucket holds: units decide, and its chunks."""
        which = bucket.first, bucket.last, bucket.n_chunks, bucket.salt
        return repr(which).encode() + self.assignment(bucket.n_chunks, salt=bucket.salt)

    def _copy(self) -> None:
        """Copy the records of a source that may answer differently next time."""
        by = _By(self.reading, self._spool.files(), 64, 64, 0)
        files, self._moving = self._spool.files(), False
        places = self._spooled("Copying the records", by)
        self.parts = [BucketPart(files, own) for own in places]

    def _spooled(self, doing: str, by: _By) -> list[list[Place]]:
        buckets: list[list[Place]] = [[] for _ in range(by.n_buckets)]
        for _, (_, found) in self.run(doing, _sorted_into_buckets, by):
            for bucket, places in found.items():
                buckets[bucket] += places
        return buckets

    def needed_buckets(self) -> int:
        """Return how many buckets make each fit into a worker's memory, and give every
        worker several.
        """
        row = 64 * (len(self.reading.schema.columns) + 4)  # bytes, with what learns
        needed = -(-self._n * row * self.engine.n_workers // self.memory)
        return max(needed, 4 * self.engine.n_workers)

    def run(
        self, doing: str, work: Work[Any, Any], shared: Any, *, kept: bool = False
    ) -> Iterator[tuple[int, tuple[int, Any]]]:
        """Run a task for each part; yield the number of each with its result: how many
        records it had, and what came of them.

        With ``kept``, results that an earlier run finished are not computed again.
        """
        contents = [self._part_digests.get(i, b"") for i in range(len(self.parts))]
        kept_as = contents if kept else None
        yield from self.run_on(doing, work, shared, self.parts, kept_as=kept_as)

    def run_on(
        self,
        doing: str,
        work: Work[Any, Any],
        shared: Any,
        inputs: Sequence[Any],
        *,
        kept_as: list[bytes] | None = None,
        engine: Engine | None = None,
    ) -> Iterator[tuple[int, tuple[int, Any]]]:
        """Do the same for other inputs than the parts; ``kept_as`` says what each of
        them holds, ``engine`` where tasks run if not as usual.
        """
        asked: list[Any] = []
        if kept_as is not None:  # how many records a batch has changes nothing
            plain = replace(self.reading, rows=0)
            asked = [plain if part is self.reading else part for part in shared]
        whole = work.__name__, asked
        store = _Finished(self.checkpoints if kept_as else None, whole, kept_as or [])
        left = []
        with Progress(doing, len(inputs)) as progress:
            for i, _ in enumerate(inputs):
                found = store.load(i)
                if found is None:
                    left.append(i)
                else:
                    progress.advance(1)
                    yield i, found
            tasks = [inputs[i] for i in left]
            for number, result in (engine or self.engine).map(work, shared, tasks):
                store.save(left[number], result)
                progress.advance(1, rows=result[0])
                yield left[number], result

    def close(self) -> None:
        """Remove what was spooled, and end the workers."""
        self._spool.close()
        self.engine.close()

    def __repr__(self) -> str:
        return "StreamedRecords()"


class _Finished:
    """Results of tasks that survive a kill, where the account does."""

    def __init__(
        self, checkpoints: Checkpoints | None, asked: Any, contents: list[bytes]
    ) -> None:
        self._checkpoints, self._contents = checkpoints, contents
        if checkpoints is not None:  # what is asked is public, and names the files
            self._asked = sha256(cloudpickle.dumps(asked)).digest()

    def load(self, i: int) -> tuple[int, Any] | None:
        """Return what an earlier run finished of task i."""
        if self._checkpoints is None:
            return None
        saved = self._checkpoints.load(self._name(i), self._content(i))
        if saved is None:
            return None
        rows, total = np.load(io.BytesIO(saved), allow_pickle=False).values()
        return int(rows), total

    def save(self, i: int, result: tuple[int, Any]) -> None:
        """Keep the result of task i."""
        if self._checkpoints is not None:
            file = io.BytesIO()
            np.savez(file, rows=result[0], total=result[1])
            self._checkpoints.save(self._name(i), self._content(i), file.getvalue())

    def _name(self, i: int) -> str:
        return f"{self._asked.hex()[:16]}-{i}"

    def _content(self, i: int) -> bytes:
        """Return what a result was computed from: what was asked, of which records."""
        return self._asked + self._contents[i]


@dataclass(frozen=True, repr=False)
class _By:
    """Which bucket a record goes to: that of its chunk."""

    reading: Reading
    files: SpoolFiles
    n_chunks: int
    n_buckets: int
    salt: int

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first chunk of each bucket, and the one after its last."""
        cuts = [b * self.n_chunks // self.n_buckets for b in range(self.n_buckets + 1)]
        return list(pairwise(cuts))

    def bucket_of(self, units: Words) -> Ints:
        """Return the bucket of each unit."""
        chunk = chunk_numbers(units, n_chunks=self.n_chunks, salt=self.salt)
        firsts = [first for first, _ in self.ranges()]
        return np.searchsorted(firsts, chunk.astype(np.int64), side="right") - 1


def _checked(
    shared: tuple[Reading, bool, Words | None], part: Part
) -> tuple[int, tuple[Words, bytes, bool]]:
    """Read a part; return how many records it has, a digest that adds up, one of its
    content, and whether a public record is among them.
    """
    reading, digest, public = shared
    total, n, seen = np.zeros(4, dtype=np.uint64), 0, False
    content = Content()
    for records in batches_of(reading, part):
        n += len(records.codes)
        content.add(records)
        if public is not None:
            keys = record_keys(records.table, None)
            seen = seen or bool(found_among(public, keys).any())
        if digest:
            units = records.keys if records.units is None else records.units
            whole = np.concatenate((records.keys, units * records.keys[:, :1]), axis=1)
            total += whole.sum(axis=0, dtype=np.uint64)
    return n, (total, content.digest(), seen)


def _sorted_into_buckets(by: _By, part: Part) -> tuple[int, dict[int, list[Place]]]:
    """Write the records of a part to a file, bucket by bucket."""
    n = [0]

    def pieces() -> Iterator[tuple[int, PrivateRecords]]:
        for records in batches_of(by.reading, part):
            n[0] += len(records.codes)
            units = records.keys if records.units is None else records.units
            buckets = by.bucket_of(units)
            order = np.argsort(buckets, kind="stable")
            ordered = taken(records, order)
            ends = np.searchsorted(buckets[order], np.arange(by.n_buckets + 1))
            for bucket in range(by.n_buckets):
                rows = slice(int(ends[bucket]), int(ends[bucket + 1]))
                if rows.start < rows.stop:
                    yield bucket, taken(ordered, rows)

    found = by.files.write("part", pieces())
    return n[0], found
