"""Tables that are read and written block by block: files that are not private."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mapl.errors import ParameterError
from mapl.records.files import (
    csv_layout,
    is_csv,
    is_parquet,
    opened,
    parquet_file,
    read_table,
    readable,
)

ROWS = 50_000  # of a block


def table_blocks(path: Path, rows: int = ROWS) -> Iterator[Any]:
    """Yield a table as frames of so many records, as `read_table` would return it."""
    if is_parquet(path):
        with readable(path), parquet_file(path) as file:
            for batch in file.iter_batches(rows):
                yield batch.to_pandas()
    elif is_csv(path):
        yield from _csv_frames(path, rows)
    else:
        yield read_table(path)


def _csv_frames(path: Path, rows: int) -> Iterator[Any]:
    import pandas as pd

    with readable(path):
        layout = csv_layout(path)
        layout["encoding"] = layout["encoding"] or _encoding_of(path)
        texts = {"dtype": str, "keep_default_na": False, "na_values": [""]}
        with pd.read_csv(path, chunksize=rows, **texts, **layout) as frames:
            yield from frames


def _encoding_of(path: Path) -> str:
    """Return UTF-8 if a file is that, else Latin-1."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with opened(path) as file:
        try:
            while data := file.read(2**20):
                decoder.decode(data)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "latin-1"
    return "utf-8"


class TableWriter:
    """Writes frames, one below the other, as Parquet or CSV by the ending of the file.

    The file appears when it is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.n_rows = path, 0
        self._part = path.with_name(f".{path.name}.part")
        self._writer: Any = None
        self._schema: Any = None

    def __enter__(self) -> TableWriter:
        return self

    def write(self, frame: Any) -> None:
        """Add a frame; all have the same columns."""
        if is_parquet(self.path):
            self._write_parquet(frame)
        else:
            first = self.n_rows == 0
            mode = "w" if first else "a"
            frame.to_csv(self._part, index=False, header=first, mode=mode)
        self.n_rows += len(frame)

    def _write_parquet(self, frame: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pa.Table.from_pandas(
                frame, schema=self._schema, preserve_index=False
            )
        except pa.ArrowInvalid:
            raise ParameterError(
                "A column holds values of several types: write to a CSV instead."
            ) from None
        if self._writer is None:
            self._schema = table.schema
            self._writer = pq.ParquetWriter(self._part, table.schema)
        self._writer.write_table(table)

    def __exit__(self, kind: Any, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if kind is None and self.n_rows:
            self._part.replace(self.path)
        else:
            self._part.unlink(missing_ok=True)
