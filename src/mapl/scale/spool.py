"""A folder of encrypted records, sorted into buckets, for the time of one fit.

The key is in memory alone, so what a crash leaves behind can be read by nobody. The
next fit removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mapl.arrays import Bools, Ints, Words
from mapl.errors import ParameterError
from mapl.ledger.files import fcntl, state_folder
from mapl.ledger.secrecy import Cipher
from mapl.records.private import PrivateRecords
from mapl.records.schema import Schema
from mapl.records.table import Table

_LOCK = "in-use"
_PREFIX = "mapl-spool-"

Place = tuple[str, int, int, int]
"""File, offset, and the lengths of keys and records: where a frame is."""


class Spool:
    """Where buckets are, and the key to them.

    Parameters
    ----------
    folder : path or None
        Where to make a folder of our own. On a cluster, one that all machines share.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        parent = _own_place() if folder is None else Path(folder)
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            remove_unused(parent)
            self.path = parent / f"{_PREFIX}{secrets.token_hex(8)}"
            self.path.mkdir(mode=0o700)
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise ParameterError(
                f"{parent} cannot hold intermediate files ({error.strerror}). Name "
                "another folder with spool."
            ) from None
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.key = secrets.token_bytes(32)

    def files(self) -> SpoolFiles:
        """Return what tasks need to read and write: it can be sent to them."""
        return SpoolFiles(str(self.path), self.key)

    def close(self) -> None:
        """Remove the folder."""
        with suppress(OSError):
            os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)

    def __repr__(self) -> str:
        return "Spool()"


def _own_place() -> Path:
    return state_folder() / "spool"


def remove_unused(parent: Path | None = None) -> int:
    """Remove folders whose fit was killed: nobody holds their lock. Return how many."""
    removed = 0
    for folder in (parent or _own_place()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                if fcntl is not None:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                    removed += 1
            finally:
                os.close(lock)
    return removed


@dataclass(frozen=True, repr=False)
class SpoolFiles:
    """Reads and writes frames: some records of one bucket, encrypted."""

    folder: str
    key: bytes

    def write(
        self, name: str, pieces: Iterator[tuple[int, PrivateRecords]]
    ) -> dict[int, list[Place]]:
        """Write records to a file of this task alone; return where those of each bucket
        are. A task that is repeated writes a file of another name.
        """
        cipher, own = Cipher(self.key), f"{name}-{secrets.token_hex(4)}"
        found: dict[int, list[Place]] = {}
        descriptor = os.open(
            Path(self.folder) / own, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600
        )
        with os.fdopen(descriptor, "wb", buffering=2**20) as file:
            for bucket, records in pieces:
                at = file.tell()
                place = f"{own}/{at}".encode()
                keys = cipher.encrypt(records.keys.tobytes(), place + b"/keys")
                data = cipher.encrypt(_packed(records), place)
                file.write(keys)
                file.write(data)
                found.setdefault(bucket, []).append((own, at, len(keys), len(data)))
        return found

    def keys(self, places: list[Place]) -> Words:
        """Return the keys of the records in some frames."""
        cipher = Cipher(self.key)
        parts = [np.empty((0, 2), dtype=np.uint64)]
        for name, at, size, _ in places:
            data = self._read(name, at, size)
            opened = cipher.decrypt(data, f"{name}/{at}".encode() + b"/keys")
            parts.append(np.frombuffer(_intact(opened), np.uint64).reshape(-1, 2))
        return np.concatenate(parts)

    def read(
        self, places: list[Place], schema: Schema, *, grouped: bool
    ) -> PrivateRecords:
        """Return the records in some frames, in their order."""
        cipher, found = Cipher(self.key), []
        for place in places:
            name, at, keys, data = place
            sealed = self._read(name, at + keys, data)
            opened = _intact(cipher.decrypt(sealed, f"{name}/{at}".encode()))
            found.append(_unpacked(opened, schema))
        return joined(found, self.keys(places), schema, grouped=grouped)

    def _read(self, name: str, at: int, size: int) -> bytes:
        with open(Path(self.folder) / name, "rb") as file:
            file.seek(at)
            return file.read(size)


def _intact(data: bytes | None) -> bytes:
    if data is None:
        raise ParameterError(
            "An intermediate file is damaged. Start again; committed charges are "
            "reused."
        )
    return data


def _packed(records: PrivateRecords) -> bytes:
    """Return records as an Arrow batch: columns, then class, unit and usable."""
    import pyarrow as pa

    arrays = [pa.array(column, from_pandas=False) for column in records.table.columns]
    arrays.append(pa.array(records.codes))
    arrays.append(pa.array(records.usable))
    if records.units is not None:
        arrays += [pa.array(np.ascontiguousarray(w)) for w in records.units.T]
    names = [str(i) for i in range(len(arrays))]
    batch = pa.record_batch(arrays, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(data: bytes, schema: Schema) -> list[Any]:
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        batch = stream.read_next_batch()
    kinds = [column.kind for column in schema.columns.values()]
    columns = []
    for i, column in enumerate(batch.columns):
        if i < len(kinds) and kinds[i] == "text":
            texts = np.empty(len(column), dtype=object)
            texts[:] = column.to_pylist()
            columns.append(texts)
        else:
            columns.append(column.to_numpy(zero_copy_only=False))
    return columns


def joined(
    pieces: list[list[Any]], keys: Words, schema: Schema, *, grouped: bool
) -> PrivateRecords:
    """Return pieces of records as one."""
    n = len(schema.columns)
    if pieces:
        columns = [np.concatenate(each) for each in zip(*pieces, strict=True)]
    else:
        columns = _no_columns(schema, grouped=grouped)
    codes: Ints = columns[n].astype(np.int64)
    usable: Bools = columns[n + 1].astype(np.bool_)
    units = np.stack(columns[n + 2 :], axis=1) if grouped else None
    table = Table(schema, columns[:n], np.ones(len(codes), dtype=np.bool_))
    return with_keys(PrivateRecords(table, codes, units, usable, True), keys)


def _no_columns(schema: Schema, *, grouped: bool) -> list[Any]:
    types = {"number": np.float64, "text": object}
    kinds = [types.get(c.kind, np.int64) for c in schema.columns.values()]
    kinds += [np.int64, np.bool_, *([np.uint64] * 2 if grouped else [])]
    return [np.empty(0, dtype=kind) for kind in kinds]


def with_keys(records: PrivateRecords, keys: Words) -> PrivateRecords:
    """Return records whose keys are known."""
    records.__dict__["keys"] = keys
    return records


def taken(records: PrivateRecords, rows: Any) -> PrivateRecords:
    """Return some of the records, with their keys."""
    units = None if records.units is None else records.units[rows]
    some = replace(
        records,
        table=records.table.take(rows),
        codes=records.codes[rows],
        units=units,
        usable=records.usable[rows],
    )
    return with_keys(some, records.keys[rows])
