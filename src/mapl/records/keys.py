"""Which record goes to which chunk: a function of that record alone.

Neighbouring data sets then differ in one chunk, hence in one teacher; every guarantee
of mapl rests on this. A record's key is a digest of its own cells in the canonical
table: records with equal keys look the same to every learner, to the last bit.

Proof: docs/proofs/partition.md
"""

from collections.abc import Iterator
from hashlib import sha256
from itertools import islice, pairwise
from typing import Any

import numpy as np

from mapl.arrays import Array, Bools, Ints, Words, n_rows
from mapl.errors import ParameterError
from mapl.records import cells
from mapl.records.columns import distinct_texts, grouped
from mapl.records.containers import cells_of, columns_of, has_names, is_nested
from mapl.records.table import Table

LANE = 16  # bytes that stand for one cell
_BLOCK_BYTES = 1 << 24  # lanes laid out at a time
# The first word of a lane says what the second is; that of a digest has bit 4.
_NUMBER, _MISSING, _COUNT, _DIGEST = 0, 2, 8, 4
_UNREADABLE = 0x9E3779B97F4A7C15  # in the keys of records that cannot be read


def chunk_rows(
    keys: Words, units: Words | None, *, n_chunks: int, salt: int = 0
) -> list[Ints]:
    """Return the row numbers of each chunk, in an order that depends on keys alone.

    ``keys`` come from `record_keys`, ``units`` from `group_keys`: all records of one
    unit go to one chunk. Without units, each record is a unit of its own, and copies of
    a record spread over the chunks. ``salt`` changes the partition; it must not come
    from the data.

    Guarantee: if one unit is added to the data or removed, the content of one chunk
    changes, and that of no other, nor the order of its rows.
    Proof: docs/proofs/partition.md
    """
    if units is None:
        units = with_copy_numbers(keys)
        sort_keys = units.T
    else:
        sort_keys = np.concatenate((keys, units), axis=1).T
    chunk = chunk_numbers(units, n_chunks=n_chunks, salt=salt)
    return rows_by_chunk(sort_keys, chunk, n_chunks)


def chunk_numbers(units: Words, *, n_chunks: int, salt: int) -> Words:
    """Return the chunk of each unit."""
    return np.asarray(_salted(units, salt) % np.uint64(n_chunks))


def rows_by_chunk(sort_keys: Any, chunk: Words, n_chunks: int) -> list[Ints]:
    """Return the rows of each chunk, sorted by the last of these keys first."""
    order = np.lexsort((*sort_keys, chunk))
    ends = np.searchsorted(chunk[order], np.arange(n_chunks + 1))
    return [order[a:b] for a, b in pairwise(ends)]


def record_keys(table: Table, codes: Ints | None) -> Words:
    """Return a 128-bit digest of each record's own values, as two 64-bit words.

    ``codes`` are the labels' class indices; None where labels must not decide.
    """
    if codes is not None and len(codes) != len(table):
        raise ParameterError("X and y must have the same length.")
    if table.schema.container == "sparse":
        rows: Iterator[Any] = _sparse_rows(table.columns[0], codes)
    else:
        rows = _dense_rows(table, codes)
    blocks = []  # joined twice: one list of all digests takes three times the memory
    while block := [sha256(row).digest()[:16] for row in islice(rows, 1 << 16)]:
        blocks.append(b"".join(block))
    digests = b"".join(blocks)
    keys = np.frombuffer(digests, dtype="<u8").reshape(-1, 2).astype(np.uint64)
    # What cannot be read has no cells, and is no copy of a record that has none.
    keys[~table.readable] ^= np.uint64(_UNREADABLE)
    return keys


def group_keys(groups: Any, n: int) -> Words:
    """Return a 128-bit digest of whose record each is.

    A value has one digest whatever stores it (7, 7.0 and "7"). Where nobody is named,
    `is_owned` is False.
    """
    if n_rows(groups) != n:
        raise ParameterError("groups must have one value a record.")
    if is_nested(groups):
        raise ParameterError(
            "groups must hold texts, numbers or times, got a column of lists or "
            "structures. Pass their parts as several columns."
        )
    # Several columns may name a unit together.
    if has_names(groups) or getattr(groups, "ndim", 1) > 1:
        groups = list(zip(*map(_listed, columns_of(groups)[1]), strict=True))
    distinct, places = distinct_texts(groups, cells.group)
    return np.asarray(_text_lanes(distinct)[places].reshape(n, 2).astype(np.uint64))


def unreadable_owners(owners: Words) -> Bools:
    """Return which records have an owner of a kind that cannot be told from others."""
    lane = _text_lanes([cells.UNREADABLE_OWNER]).reshape(1, 2).astype(np.uint64)
    return np.asarray((owners == lane).all(axis=1))


def is_owned(units: Words) -> Bools:
    """Return which keys of units name somebody."""
    return np.asarray((units[:, 0] & np.uint64(_DIGEST)) != 0)


def unit_keys(owners: Words, table: Table, codes: Ints | None) -> Words:
    """Return the key of each record's unit, by which it finds its chunk.

    ``owners`` come from `group_keys`. A record that nobody owns is a unit of its own,
    and is found by its own key; equal ones are told apart by `persons`.
    """
    units, alone = owners.copy(), np.flatnonzero(~is_owned(owners))
    if len(alone):
        own = None if codes is None else codes[alone]
        units[alone] = _unowned(record_keys(table.take(alone), own))
    return units


def persons(units: Words) -> Words:
    """Return keys of units in which equal records that nobody owns are several."""
    alone = np.flatnonzero(~is_owned(units))
    if not len(alone):
        return units
    found = units.copy()
    found[alone] = _unowned(with_copy_numbers(units[alone]))
    return found


def _unowned(keys: Words) -> Words:
    """Return keys that are not those of an owner."""
    found = keys.copy()
    found[:, 0] &= ~np.uint64(_DIGEST)
    return found


def _listed(column: Any) -> list[Any]:
    values = cells_of(column)
    return values if isinstance(values, list) else list(values)


def _salted(units: Words, salt: int) -> Words:
    """Mix the salt in: 64 bits that depend on a unit and the salt alone."""
    multiplier, offset = np.frombuffer(sha256(b"%d" % salt).digest()[:16], dtype="<u8")
    mixed = (units[:, 0] ^ offset) * (multiplier | np.uint64(1))
    return np.asarray(mixed ^ (mixed >> np.uint64(32)) ^ units[:, 1])


def with_copy_numbers(digests: Words) -> Words:
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


def _dense_rows(table: Table, codes: Ints | None) -> Iterator[memoryview]:
    """Yield each record as the lanes of its cells, a block of records at a time."""
    columns = list(table.columns)
    if codes is not None:
        columns.append(np.asarray(codes, dtype=np.int64))
    n_cells = sum(c.shape[1] if c.ndim == 2 else 1 for c in columns)
    encoded = [_text_lanes(c) if c.dtype == object else c for c in columns]
    step = max(1, _BLOCK_BYTES // (LANE * max(1, n_cells)))
    for start in range(0, len(table), step):
        parts = [_lanes(column[start : start + step]) for column in encoded]
        lanes = np.concatenate(parts, axis=1)
        block, width = memoryview(lanes.tobytes()), lanes[:1].nbytes
        for at in range(0, len(block), width):
            yield block[at : at + width]


def _lanes(column: Any) -> Words:
    """Return the lanes of a block of a column: (rows, cells, 2) words."""
    if column.ndim == 3:  # texts, which have their lanes
        return np.asarray(column)
    if column.dtype.kind == "f":
        return _number_lanes(column)
    lanes = np.empty((len(column), 1, 2), dtype="<u8")
    lanes[:, 0, 0], lanes[:, 0, 1] = _COUNT, column.view(np.uint64)
    return lanes


def _number_lanes(values: Array) -> Words:
    """Return a zero word, then the float64; missing has a lane of its own."""
    table = values.reshape(len(values), -1) if values.ndim == 2 else values[:, None]
    floats = np.ascontiguousarray(table, dtype=np.float64)
    lanes = np.zeros((*floats.shape, 2), dtype="<u8")
    lanes[..., 1] = floats.view("<u8")
    lanes[np.isnan(floats)] = (_MISSING, 0)
    return lanes


def _text_lanes(texts: Any) -> Words:
    """Return the lane of each text, from a digest that is computed once."""
    distinct, places = grouped(texts)
    known = np.empty((len(distinct), 2), dtype="<u8")
    for lane, text in zip(known[:-1], distinct[:-1], strict=True):
        lane[:] = np.frombuffer(sha256(text.encode()).digest()[:16], dtype="<u8")
    known[:, 0] |= np.uint64(_DIGEST)
    known[-1] = _MISSING, 0
    return np.asarray(known[places][:, None, :])


def _sparse_rows(matrix: Any, codes: Ints | None) -> Iterator[bytes]:
    """Yield each record as its label, the columns of its non-zero cells, their values.

    Digests of these bytes are stored in ledgers, so the layout never changes.
    """
    labels = b"" if codes is None else np.asarray(codes, dtype="<i8").tobytes()
    width = 0 if codes is None else 8
    columns = matrix.indices.astype("<i8").tobytes()
    values = _number_lanes(matrix.data).tobytes()
    for i, (a, b) in enumerate(pairwise(matrix.indptr)):
        label = labels[i * width : (i + 1) * width]
        yield label + columns[8 * a : 8 * b] + values[LANE * a : LANE * b]
