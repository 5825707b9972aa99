"""Tables in files: CSV, Parquet and Excel.

Private files are read in blocks, each cell straight into its column's public type. A
CSV is read one record at a time, as RFC 4180 has it: a field in quotes may hold line
breaks. What a record holds decides nothing about another one.
"""

import bz2
import gzip
import lzma
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from mapl.errors import ParameterError
from mapl.records import cells
from mapl.records.cells import MISSING_TEXTS
from mapl.records.containers import cells_of
from mapl.records.csv_records import (
    csv_format,
    fields_of,
    is_open_after,
    records_of,
    skip_mark,
    with_rest,
)
from mapl.records.schema import Schema
from mapl.records.table import Table

_PARQUET, _EXCEL = (".parquet", ".pq"), (".xlsx", ".xlsm")
_SEPARATORS = ",;\t|"  # tried in this order, on the line of names
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BLOCK = 50_000  # records read at a time

Location = Path | str
"""A path, or a URL that fsspec reads."""


@dataclass(frozen=True, repr=False)
class Block:
    """Some records of a file, column by column, and whether all lines were readable.

    Private.
    """

    columns: Mapping[str, Any]
    n_unreadable: int = 0


@dataclass(frozen=True, repr=False)
class PrivateFile:
    """A private file in canonical form, with the texts of some of its columns."""

    table: Table
    texts: dict[str, list[str | None]]
    readable: bool


def read_private(
    path: Path, schema: Schema, *, target: str | None = None, owner: str | None = None
) -> PrivateFile:
    """Read a private file in the types of a schema.

    The columns with labels and owners are read as texts. A record that cannot be read
    is left out; ``readable`` says whether there was none.
    """
    parts: list[list[Any]] = []
    reads = {target: cells.text, owner: cells.group}
    texts = {name: read for name, read in reads.items() if name is not None}
    found: dict[str, list[str | None]] = {name: [] for name in texts}
    unreadable = 0
    for block in blocks(path, [*schema.columns, *texts]):
        unreadable += block.n_unreadable
        parts.append(
            [kind.convert(block.columns[n]) for n, kind in schema.columns.items()]
        )
        for name, read in texts.items():
            found[name] += map(read, cells_of(block.columns[name]))
    columns = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
    readable = np.ones(len(columns[0]), dtype=np.bool_)
    return PrivateFile(Table(schema, columns, readable), found, unreadable == 0)


def as_texts(column: Any) -> list[str | None]:
    """Return each cell of a column as text."""
    return [cells.text(cell) for cell in cells_of(column)]


def suffix(path: Location) -> str:
    """Return the ending of a path or URL."""
    return PurePath(path).suffix


def is_parquet(path: Location) -> bool:
    """Whether a file is Parquet, by its ending."""
    return suffix(path) in _PARQUET


def is_csv(path: Location) -> bool:
    """Whether a file is read as CSV: whatever is nothing else."""
    return suffix(path) not in (*_PARQUET, *_EXCEL)


def can_be_cut(path: Location) -> bool:
    """Whether parts of a file can be read by themselves: not of compressed ones."""
    return suffix(path) not in (*_OPENERS, *_EXCEL)


def is_table(path: Location) -> bool:
    """Whether a file's ending is that of a table."""
    ending = suffix(path)
    return ending in (*_PARQUET, *_EXCEL, *_OPENERS, ".csv", ".tsv", ".txt")


def column_names(path: Location) -> list[str]:
    """Return the names of a file's columns."""
    with readable(path):
        if is_parquet(path):
            with parquet_file(path) as file:
                return list(file.schema_arrow.names)
        if suffix(path) in _EXCEL:
            with _sheet(path) as rows:
                names = [str(name) for name in _without_blanks(next(rows, ()))]
        else:
            line, sep = _first_record(path)
            names = fields_of(line, sep)
            if any("\r" in name for name in names):  # the whole file, of an old Mac
                names = []
    if not names:
        raise ParameterError(f"{path} has no line of column names that can be read.")
    if len(set(names)) < len(names):
        raise ParameterError(f"{path} has two columns of one name.")
    return names


def blocks(
    path: Location,
    names: list[str],
    *,
    rows: int = _BLOCK,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Block]:
    """Yield the records of a file in blocks, with these columns.

    There is one block at least, so that an empty file has columns. With ``end``, only
    a part is read: row groups of Parquet, or the records of a CSV that begin in a range
    of bytes, at whose start there is one.
    """
    with readable(path):
        if is_parquet(path):
            yield from _parquet_blocks(path, names, rows, start, end)
        elif suffix(path) in _EXCEL:
            yield from _excel_blocks(path, names)
        else:
            yield from _csv_blocks(path, names, rows, start, end)


@contextmanager
def parquet_file(path: Location) -> Iterator[Any]:
    """Open a Parquet file, wherever it is."""
    import pyarrow.parquet as pq

    if "://" not in str(path):
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
        return
    checked = {"page_checksum_verification": True}
    with opened(path) as remote, pq.ParquetFile(remote, **checked) as file:
        yield file


def _parquet_blocks(
    path: Location, names: list[str], rows: int, start: int, end: int | None
) -> Iterator[Block]:
    import pyarrow as pa

    with parquet_file(path) as file:
        schema = file.schema_arrow
        for name in names:
            check_column(name, schema.names, path)
        yield Block({n: pa.chunked_array([], schema.field(n).type) for n in names})
        whole = end is None
        groups = range(start, file.num_row_groups if end is None else end)
        for batch in file.iter_batches(
            rows, row_groups=groups, columns=names, use_threads=whole
        ):
            yield Block({name: batch.column(name) for name in names})


def _excel_blocks(path: Location, names: list[str]) -> Iterator[Block]:
    all_names = column_names(path)
    places = [all_names.index(name) for name in names]
    with _sheet(path) as rows:
        next(rows)
        yield Block({name: [] for name in names})
        while some := list(islice(rows, _BLOCK)):
            given = [row for row in map(_without_blanks, some) if row]
            sound = [row for row in given if len(row) <= len(all_names)]
            columns = {
                name: [row[at] if at < len(row) else None for row in sound]
                for name, at in zip(names, places, strict=True)
            }
            yield Block(columns, len(given) - len(sound))


@contextmanager
def _sheet(path: Location) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Yield the rows of the first sheet: how many cells each has is its own affair."""
    try:
        import openpyxl
    except ImportError:
        raise ParameterError(
            f"{path} needs openpyxl: pip install 'mapl[excel]', or save it as CSV."
        ) from None
    with warnings.catch_warnings():  # which may show a cell
        warnings.simplefilter("ignore")
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            sheet = book.worksheets[0]
            sheet.reset_dimensions()
            yield sheet.iter_rows(values_only=True)
        finally:
            book.close()


def _without_blanks(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row up to its last cell that holds something."""
    n = len(row)
    while n and row[n - 1] is None:
        n -= 1
    return row[:n]


def _csv_blocks(
    path: Location, names: list[str], rows: int, start: int, end: int | None
) -> Iterator[Block]:
    all_names = column_names(path)
    for name in names:
        check_column(name, all_names, path)
    _, sep = _first_record(path)
    places = [all_names.index(name) for name in names]
    with opened(path) as file:
        if start:
            file.seek(start)
        else:  # the names
            skip_mark(file)
            records_of(file, sep, 1)
        yield Block({name: [] for name in names})
        while records := records_of(file, sep, rows, end):
            fields = [fields_of(r, sep) for r in records if r.strip(b"\r\n")]
            sound = [row for row in fields if len(row) == len(all_names)]
            columns = {
                name: [row[at] or None for row in sound]
                for name, at in zip(names, places, strict=True)
            }
            yield Block(columns, len(fields) - len(sound))


def record_starts(path: Location, wanted: list[int]) -> list[int]:
    """Return where the first records of a CSV begin from these places on."""
    _, sep = _first_record(path)
    found: list[int] = []
    is_open = False
    with readable(path), opened(path) as file:
        skip_mark(file)
        records_of(file, sep, 1)
        at = file.tell()
        for line in file:
            if not is_open and len(found) < len(wanted) and at >= wanted[len(found)]:
                found.append(at)
                if len(found) == len(wanted):
                    break
            if is_open or b'"' in line:
                is_open = is_open_after(line, sep, inside=is_open)
            at += len(line)
    return found


def _first_record(path: Location) -> tuple[bytes, str]:
    """Return the record of names, and what separates them."""
    with opened(path) as file:
        skip_mark(file)
        line: bytes = file.readline()
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ParameterError(f"{path} is UTF-16. Save it as UTF-8.")
        known = (sep for sep in _SEPARATORS if sep.encode() in line)
        sep = csv_format().sep or next(known, ",")
        if b'"' in line and is_open_after(line, sep):
            line, _ = with_rest(file, line, sep)
    return line, sep


def opened(path: Location) -> Any:
    """Open a file for reading, unpacked."""
    if "://" not in str(path):
        return _OPENERS.get(suffix(path), open)(path, "rb")
    remote = _remote(str(path))
    opener = _OPENERS.get(suffix(path))
    return remote if opener is None else opener(remote, "rb")


def _remote(url: str) -> Any:
    """Open a URL by fsspec."""
    try:
        import fsspec

        return fsspec.open(url, "rb").open()
    except ImportError as error:
        raise ParameterError(
            f"{url} needs a package to be read: {error} pip install 'mapl[remote]'."
        ) from None


class readable:  # noqa: N801 - used like a function
    """Turn what a file's reader raises into one sentence: its kind, and no cell."""

    def __init__(self, path: Location) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, at: object) -> None:
        passes = (ParameterError, GeneratorExit, KeyboardInterrupt)
        if error is not None and not isinstance(error, passes):
            hint = " Say its --encoding." * isinstance(error, UnicodeDecodeError)
            raise ParameterError(
                f"{self.path} cannot be read as a table ({kind.__name__}).{hint}"
            ) from None


# Files that are not private --------------------------------------------------------


def read_table(path: Path) -> Any:
    """Return a frame whose types no record decides: the cells of a CSV are texts."""
    return _read(path, dtype=str, keep_default_na=False, na_values=[""])


def read_public(path: Path, *, without: str, categories: list[str]) -> Any:
    """Return a frame of public records, with numbers where a column holds nothing else.

    Other columns, and those named as ``categories``, are taken as they stand in the
    file: 01234 is not 1234.
    """
    table = _read(path).drop(columns=[without], errors="ignore")
    if not len(table):
        raise ParameterError(f"{path} has no records.")
    others = set(table.select_dtypes(exclude=["number", "datetime"]).columns)
    others |= set(categories) & set(table.columns)
    if others:
        texts = read_table(path)
        for name in others:
            table[name] = texts[name].astype(object).to_numpy()
    return table


def write_table(table: Any, path: Path) -> None:
    """Write a frame as Parquet or CSV, by the ending of the file."""
    if is_parquet(path):
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def is_missing(text: str | None, classes: Any = ()) -> bool:
    """Whether a text means that there is no label or group; a class may have any
    name.
    """
    return text is None or (text in MISSING_TEXTS and text not in classes)


def check_column(name: str, names: Any, path: Any) -> None:
    """Refuse a table without that column.

    The columns are not listed: in a file without a header they are a record.
    """
    if name not in list(names):
        hint = "How is the file separated? Say it with --sep." * (len(names) == 1)
        hint = hint or "Is there a line of column names, and is it spelt like this?"
        raise ParameterError(f"Column {name!r} is not in {path}. {hint}")


def _read(path: Path, **csv_options: Any) -> Any:
    """Read a table; an error shows its kind, and no cell."""
    import pandas as pd

    with readable(path):
        if is_parquet(path):
            return pd.read_parquet(path)
        if suffix(path) in _EXCEL:
            with _sheet(path):  # or an error that says what to install
                return pd.read_excel(path, **csv_options)
        csv_options |= csv_layout(path)
        try:
            return pd.read_csv(path, **csv_options)
        except UnicodeDecodeError:
            if csv_options["encoding"] is not None:
                raise
            return pd.read_csv(path, **csv_options | {"encoding": "latin-1"})


def csv_layout(path: Path) -> dict[str, Any]:
    """Return how pandas has to read a CSV; no encoding where nobody said one."""
    _, sep = _first_record(path)
    _check_second_record(path, sep)
    return {"sep": sep, "encoding": csv_format().encoding}


def _check_second_record(path: Path, sep: str) -> None:
    """Refuse records with more cells than names: pandas would shift them."""
    with opened(path) as file:
        skip_mark(file)
        second = records_of(file, sep, 2)[1:]
    found, names = sum(len(fields_of(r, sep)) for r in second), len(column_names(path))
    if found > names:
        raise ParameterError(
            f"{path} has {names} names and {found} cells in its first record. Is there "
            "a separator too many at the end of lines?"
        )
