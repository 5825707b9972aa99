"""Which record goes to which chunk: a function of that record alone.

Neighbouring data sets then differ in one chunk, hence in one teacher; every guarantee
of mapl rests on this. A record's key is a digest of its own cells in canonical form.

Proof: docs/proofs/partition.md
"""

import math
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice, pairwise
from typing import Any

import numpy as np

from mapl.arrays import Ints, Words, n_rows
from mapl.errors import ParameterError
from mapl.records.canonical import LANE, columns_of, lane_encoder, number_lanes

_BLOCK_BYTES = 1 << 24  # lanes laid out at a time


def chunk_rows(
    keys: Words, groups: Any | None, *, n_chunks: int, salt: int = 0
) -> list[Ints]:
    """Return the row numbers of each chunk, in an order that depends on keys alone.

    ``keys`` come from `record_keys`. All records with one value of ``groups`` go to one
    chunk; without groups, each record is a unit of its own, and copies of a record
    spread over the chunks. ``salt`` changes the partition; it must not come from the
    data.

    Guarantee: if one unit is added to the data or removed, the content of one chunk
    changes, and that of no other, nor the order of its rows.
    Proof: docs/proofs/partition.md
    """
    if groups is None:
        units = _with_copy_numbers(keys)
        sort_keys = units.T
    else:
        if n_rows(groups) != len(keys):
            raise ParameterError("groups must have one value a record.")
        units = record_keys(groups, None)
        sort_keys = np.concatenate((keys, units), axis=1).T
    chunk = _salted(units, salt) % np.uint64(n_chunks)
    order = np.lexsort((*sort_keys, chunk))
    ends = np.searchsorted(chunk[order], np.arange(n_chunks + 1))
    return [order[a:b] for a, b in pairwise(ends)]


def record_keys(features: Any, labels: Any | None) -> Words:
    """Return a 128-bit digest of each record's own values, as two 64-bit words.

    ``labels`` are part of the record; None where labels must not decide.
    """
    n = n_rows(features)
    if labels is not None and n_rows(labels) != n:
        raise ParameterError("X and y must have the same length.")
    if hasattr(features, "tocsr"):
        rows: Iterator[Any] = _sparse_rows(features.tocsr(copy=True), labels)
    else:
        columns = columns_of(features)
        if labels is not None:
            columns += columns_of(labels)
        rows = _dense_rows(columns, n)
    blocks = []  # joined twice: one list of all digests takes three times the memory
    while block := [sha256(row).digest()[:16] for row in islice(rows, 1 << 16)]:
        blocks.append(b"".join(block))
    digests = b"".join(blocks)
    return np.frombuffer(digests, dtype="<u8").reshape(n, 2).astype(np.uint64)


def _salted(units: Words, salt: int) -> Words:
    """Mix the salt in: 64 bits that depend on a unit and the salt alone."""
    multiplier, offset = np.frombuffer(sha256(b"%d" % salt).digest()[:16], dtype="<u8")
    mixed = (units[:, 0] ^ offset) * (multiplier | np.uint64(1))
    return np.asarray(mixed ^ (mixed >> np.uint64(32)) ^ units[:, 1])


def _with_copy_numbers(digests: Words) -> Words:
    """Number equal records, so that copies get keys of their own.

    Equal records are interchangeable: which copy has which number reveals nothing.
    """
    order = np.lexsort(digests.T)
    ordered = digests[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    position = np.arange(len(order))
    copy_number = position - np.maximum.accumulate(np.where(first, position, 0))
    for i in np.flatnonzero(copy_number):
        numbered = ordered[i].tobytes() + int(copy_number[i]).to_bytes(8, "little")
        ordered[i] = np.frombuffer(sha256(numbered).digest()[:16], dtype="<u8")
    units = np.empty_like(ordered)
    units[order] = ordered
    return units


def _dense_rows(columns: list[Any], n: int) -> Iterator[memoryview]:
    """Yield each record as the lanes of its cells, a block of records at a time."""
    encoders = [lane_encoder(column) for column in columns]
    step = max(1, _BLOCK_BYTES // (LANE * max(1, _n_cells(columns))))
    for start in range(0, n, step):
        stop = min(n, start + step)
        parts = [encode(start, stop) for encode in encoders]
        lanes = np.concatenate(parts, axis=1) if len(parts) != 1 else parts[0]
        block, width = memoryview(lanes.tobytes()), lanes[:1].nbytes
        for at in range(0, len(block), width):
            yield block[at : at + width]


def _n_cells(columns: list[Any]) -> int:
    return sum(math.prod(getattr(column, "shape", ())[1:]) for column in columns)


def _sparse_rows(matrix: Any, labels: Any | None) -> Iterator[bytes]:
    """Yield each record as its label's lane, the columns of its non-zero cells in
    order, then their values. Changes ``matrix``: pass a copy.

    Digests of these bytes are stored in ledgers, so the layout never changes.
    """
    matrix.sum_duplicates()  # sorts by column as well
    matrix.eliminate_zeros()
    n = matrix.shape[0]
    label_lanes = (
        b""
        if labels is None
        else b"".join(map(bytes, _dense_rows(columns_of(labels), n)))
    )
    label_width = len(label_lanes) // n if n else 0
    columns = matrix.indices.astype("<i8").tobytes()
    values = number_lanes(matrix.data).tobytes()
    for i, (a, b) in enumerate(pairwise(matrix.indptr)):
        label = label_lanes[i * label_width : (i + 1) * label_width]
        yield label + columns[8 * a : 8 * b] + values[LANE * a : LANE * b]
