"""Private records that need not fit into memory: files, datasets, queries, in parts.

A part is read by itself, in batches, wherever a task runs. It holds no record, only the
way to them.
"""

from __future__ import annotations

import glob
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from mapl.errors import ParameterError, hide_passwords
from mapl.records.csv_records import CsvFormat, csv_format, reading
from mapl.records.files import (
    Block,
    blocks,
    can_be_cut,
    check_column,
    column_names,
    is_parquet,
    is_table,
    parquet_file,
    readable,
    record_starts,
)

_PART_ROWS = 2**19  # of a part of a Parquet file
_PART_BYTES = 2**26  # of a part of a CSV


class Part(Protocol):
    """Some of the records of a source."""

    def blocks(self, names: list[str], rows: int) -> Iterator[Block]:
        """Yield the records in blocks of at most so many, with these columns."""


@dataclass(frozen=True)
class FilePart:
    """A file, or row groups of a Parquet file, or a range of bytes of a CSV."""

    path: str
    start: int = 0
    end: int | None = None
    format: CsvFormat = field(default_factory=CsvFormat)
    stamp: Any = None  # size and time of change

    def blocks(self, names: list[str], rows: int) -> Iterator[Block]:
        """Yield the records in blocks; refuse a file that changed since the start."""
        _refuse_change(self.path, self.stamp, _stamp(self.path))
        how = {"sep": self.format.sep, "encoding": self.format.encoding}
        with reading(**how):
            yield from blocks(
                self.path, names, rows=rows, start=self.start, end=self.end
            )


@dataclass(frozen=True)
class FragmentPart:
    """A fragment of a pyarrow dataset."""

    fragment: Any
    schema: Any
    stamp: Any = None

    def blocks(self, names: list[str], rows: int) -> Iterator[Block]:
        """Yield the records in blocks; refuse a file that changed since the start."""
        path = getattr(self.fragment, "path", "")
        _refuse_change(path, self.stamp, _fragment_stamp(self.fragment))
        with readable(_name_of(self.fragment)):
            yield Block({n: self.schema.empty_table().column(n) for n in names})
            for batch in self.fragment.to_batches(
                schema=self.schema, columns=names, batch_size=rows, use_threads=False
            ):
                yield Block({name: batch.column(name) for name in names})


@dataclass(frozen=True)
class Query:
    """Records that a database returns.

    Parameters
    ----------
    url : str
        As SQLAlchemy writes it, without a password.
    sql : str
        What to ask for.

    Examples
    --------
    >>> from mapl.records.sources import Query
    >>> Query("sqlite:///people.db", "SELECT age, income FROM people")
    Query(url='sqlite:///people.db', sql='SELECT age, income FROM people')
    """

    url: str
    sql: str

    def __post_init__(self) -> None:
        if hide_passwords(self.url) != self.url:
            raise ParameterError(
                "url must hold no password: it would be shown with the parameters. Set "
                "PGPASSWORD, or use ~/.pgpass."
            )

    def blocks(self, names: list[str], rows: int) -> Iterator[Block]:
        """Yield the records in blocks."""
        with self._result(rows) as result:
            places = [list(result.keys()).index(name) for name in names]
            yield Block({name: [] for name in names})
            for some in result.partitions(rows):
                yield Block(
                    {
                        name: [row[at] for row in some]
                        for name, at in zip(names, places, strict=True)
                    }
                )

    def names(self) -> list[str]:
        """Return the names of the columns."""
        with self._result(1) as result:
            return list(result.keys())

    def _result(self, rows: int) -> Any:
        return _QueryResult(self, rows)


class _QueryResult:
    """An open result of a query, as a context; errors show their kind alone."""

    def __init__(self, query: Query, rows: int) -> None:
        self._query, self._rows = query, rows
        self._readable = readable("The query")

    def __enter__(self) -> Any:
        from sqlalchemy import create_engine, text

        with self._readable:
            self._engine = create_engine(self._query.url)
            connection = self._engine.connect()
            if self._engine.dialect.name == "sqlite":  # a text may not be UTF-8
                own: Any = connection.connection.driver_connection
                own.text_factory = _as_text
            self._connection = connection.execution_options(
                stream_results=True, max_row_buffer=self._rows
            )
            self._found = self._connection.execute(text(self._query.sql))
            return self._found

    def __exit__(self, *error: Any) -> None:
        self._found.close()
        self._connection.close()
        self._engine.dispose()
        self._readable.__exit__(*error)


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, repr=False)
class Source:
    """Where private records are.

    ``name`` is how messages call it. ``moving`` says that two readings may differ, so
    that records must be copied first.
    """

    name: str
    parts: list[Part]
    names: list[str]
    paths: list[str] = field(default_factory=list)
    moving: bool = False

    @classmethod
    def of(cls, given: Any) -> Source:
        """Take a path, a pattern, a folder, a URL, a list of these, a pyarrow dataset
        or a `Query`.
        """
        if isinstance(given, Source):
            return given
        if isinstance(given, Query):
            return cls("The query", [given], given.names(), moving=True)
        if hasattr(given, "get_fragments"):
            with readable("The dataset"):
                fragments = list(given.get_fragments())
            forms = {type(getattr(each, "format", None)).__name__ for each in fragments}
            if not forms <= {"ParquetFileFormat", "NoneType"}:
                raise ParameterError(
                    "A dataset of files must be Parquet: in others, one record may "
                    "change the type of a column. Give the files instead."
                )
            _refuse_other_types(fragments, given.schema)
            pieces = [piece for each in fragments for piece in _row_groups(each)]
            _refuse_twice(pieces)
            if not pieces:
                raise ParameterError("The dataset has no files to learn from.")
            parts: list[Part] = [
                FragmentPart(piece, given.schema, _fragment_stamp(piece))
                for piece in pieces
            ]
            return cls("The dataset", parts, list(given.schema.names))
        listed = [given] if isinstance(given, str | Path) else list(given)
        paths = [path for each in listed for path in _expanded(str(each))]
        if not paths:
            raise ParameterError("There must be at least one file to learn from.")
        _refuse_twice(paths)
        name = str(listed[0]) if len(listed) == 1 else f"{paths[0]} and others"
        cut = [part for path in paths for part in _parts_of(path)]
        return cls(name, list(cut), column_names(paths[0]), paths)

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a source without these columns."""
        for name in names:
            check_column(name, self.names, self.name)

    def has_file(self, path: Path) -> bool:
        """Whether a file is one of those that are learned from."""
        return any(Path(own).resolve() == path.resolve() for own in self.paths)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Source({self.name!r})"


def _refuse_twice(files: Sequence[Any]) -> None:
    """Refuse a file under two names: its records would count twice.

    ``files`` are paths, URLs and pieces of a dataset.
    """
    seen: set[Any] = set()
    _refuse_shared_memory([f for f in files if _is_in_memory(f)])
    for file in files:
        if _is_in_memory(file):
            continue
        name = file if isinstance(file, str) else _name_of(file)
        with readable(name):
            own = _identities(file)
        if seen & own:
            raise ParameterError(_TWICE.format(name))
        seen |= own


_TWICE = (
    "{} is named twice, or is a link to another one: its records would count twice. "
    "Name each file once."
)


def _is_in_memory(file: Any) -> bool:
    return not isinstance(file, str) and not getattr(file, "path", "")


def _refuse_shared_memory(fragments: Sequence[Any]) -> None:
    """Refuse records in memory that belong to two pieces: slices have one buffer."""
    seen: dict[Any, list[tuple[int, int]]] = {}
    for fragment in fragments:
        for batch in fragment.to_batches():
            for column in batch.columns[:1] if batch.num_rows else ():
                kept = [part.address for part in column.buffers() if part]
                start, end = column.offset, column.offset + len(column)
                others = seen.setdefault(tuple(kept), []) if kept else []
                if any(start < b and a < end for a, b in others):
                    raise ParameterError(_TWICE.format("A part of the dataset"))
                others.append((start, end))


def _refuse_other_types(fragments: Sequence[Any], schema: Any) -> None:
    """Refuse files whose columns have other types than the dataset: whether a cell can
    be converted would depend on the cell.
    """
    for fragment in fragments:
        own = fragment.physical_schema
        for name in own.names:
            wanted = schema.field(name).type if name in schema.names else None
            if wanted is not None and own.field(name).type != wanted:
                raise ParameterError(
                    f"Column {name!r} has different types in the files of the dataset. "
                    "Give the files themselves: each is read in its own types."
                )


def _identities(file: Any) -> set[Any]:
    """Return what tells a file from others, however it is spelt."""
    if not isinstance(file, str):
        groups = tuple(group.id for group in getattr(file, "row_groups", ()))
        return {(own, groups) for own in _identities(_url_of(file))}
    if "://" not in file:
        status = Path(file).stat()
        return {(status.st_dev, status.st_ino)}
    import fsspec

    system, path = fsspec.core.url_to_fs(file)
    if isinstance(system, fsspec.implementations.local.LocalFileSystem):
        return _identities(path)
    info = system.info(path)
    found: set[Any] = {_canonical_url(system.unstrip_protocol(path))}
    if info.get("size") and any(info.get(name) for name in _DIGESTS):
        found.add(tuple(str(info.get(name)) for name in _CHANGES))
    return found


def _canonical_url(url: str) -> str:
    """Return one spelling of a URL."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    ports = {None, {"http": 80, "https": 443, "ftp": 21}.get(parts.scheme)}
    port = "" if parts.port in ports else f":{parts.port}"
    path = posixpath.normpath(f"/{unquote(parts.path)}")
    return f"{parts.scheme}://{host}{port}/{path.lstrip('/')}?{parts.query}"


def _url_of(fragment: Any) -> str:
    """Return the path of a fragment's file on this machine, else a URL."""
    system, path = fragment.filesystem, fragment.path
    while system.type_name == "subtree":
        path, system = posixpath.join(system.base_path, path), system.base_fs
    if system.type_name == "local":
        return str(path)
    if system.type_name.startswith("py::fsspec"):
        return str(system.handler.fs.unstrip_protocol(path))
    return f"{system.type_name}://{path}"


def _refuse_change(path: str, before: Any, now: Any) -> None:
    if before != now:
        raise ParameterError(
            f"{path} was changed during the fit. Start again when it rests."
        )


def _name_of(fragment: Any) -> str:
    return getattr(fragment, "path", "") or "A part of the dataset"


def _fragment_stamp(fragment: Any) -> Any:
    """Return size and time of change of a fragment's file; None if it has none."""
    if not hasattr(fragment, "filesystem"):
        return None
    with readable(fragment.path):
        found = fragment.filesystem.get_file_info(fragment.path)
    return found.size, found.mtime_ns


def _row_groups(fragment: Any) -> list[Any]:
    if not hasattr(fragment, "split_by_row_group"):
        return [fragment]
    with readable(_name_of(fragment)):
        return list(fragment.split_by_row_group()) or [fragment]


def _expanded(location: str) -> list[str]:
    """Return the files that a path, pattern, folder or URL stands for."""
    if "://" in location:
        found = _remote_files(location)
    elif Path(location).is_dir():
        inside = Path(location).rglob("*")
        found = sorted(str(p) for p in inside if _is_meant(p.relative_to(location)))
    elif Path(location).exists():
        return [location]
    else:
        found = sorted(glob.glob(location, recursive=True))
    if not found:
        raise ParameterError(f"There is no file {location!r}.")
    return found


def _is_meant(place: Path) -> bool:
    """Whether a file in a folder is one of its tables, by its place there: what begins
    with a dot or an underscore is a copy or a note of some program.
    """
    return is_table(str(place)) and not any(p[0] in "._" for p in place.parts)


def _remote_files(url: str) -> list[str]:
    """Return the files that a URL stands for, by fsspec."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ParameterError(
            f"{url} cannot be read: {error}. pip install 'mapl[remote]', and what "
            "fsspec needs for this kind of URL."
        ) from None
    with readable(url):
        found = system.glob(path) if glob.has_magic(path) else [path]
        if not glob.has_magic(path) and system.isdir(path):
            inside = {each: each.removeprefix(path) for each in system.find(path)}
            found = [each for each, place in inside.items() if _is_meant(Path(place))]
        return [system.unstrip_protocol(each) for each in sorted(found)]


_DIGESTS = ("ETag", "etag", "md5Hash")
_CHANGES = ("size", "mtime", "LastModified", "updated", *_DIGESTS)


def _stamp(path: str) -> Any:
    """Return size and time of change of a file, and what else tells of a change."""
    with readable(path):
        if "://" not in path:
            found = Path(path).stat()
            return found.st_size, found.st_mtime_ns
        import fsspec

        system, place = fsspec.core.url_to_fs(path)
        system.invalidate_cache()
        info = system.info(place)
    return tuple(str(info.get(name)) for name in _CHANGES)


def _parts_of(path: str) -> list[FilePart]:
    """Cut a file into parts of a moderate size."""
    stamp, form = _stamp(path), csv_format()
    if not can_be_cut(path):
        return [FilePart(path, format=form, stamp=stamp)]
    if not is_parquet(path):
        size = int(stamp[0])
        wanted = list(range(_PART_BYTES, size - _PART_BYTES // 2, _PART_BYTES))
        starts = record_starts(path, wanted) if wanted else []
        cuts = [0, *dict.fromkeys(starts), size]
    else:
        with readable(path), parquet_file(path) as file:
            cuts, rows = [0], 0
            for group in range(file.num_row_groups):
                rows += file.metadata.row_group(group).num_rows
                if rows >= _PART_ROWS:
                    cuts, rows = [*cuts, group + 1], 0
            if cuts[-1] < file.num_row_groups or cuts == [0]:
                cuts.append(file.num_row_groups)
    return [FilePart(path, a, b, form, stamp) for a, b in pairwise(cuts)]
