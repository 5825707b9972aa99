"""CSV as RFC 4180 has it: records, whose fields may hold line breaks within quotes.

Each record is read by itself: where one ends depends on no other record.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mapl.errors import ParameterError

_MARK = b"\xef\xbb\xbf"
_LONGEST_RECORD = 2**24  # bytes beyond its first line; a longer one is not readable


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV is written; None where the file says so itself."""

    sep: str | None = None
    encoding: str | None = None


_BY_ITSELF = CsvFormat()
_format: ContextVar[CsvFormat] = ContextVar("_format", default=_BY_ITSELF)


def csv_format() -> CsvFormat:
    """Return the format in which CSV files are read now."""
    return _format.get()


@contextmanager
def reading(*, sep: str | None = None, encoding: str | None = None) -> Iterator[None]:
    """Read CSV files in a format of the caller's."""
    sep = {"tab": "\t", "\\t": "\t"}.get(sep or "", sep)
    if sep is not None and (len(sep) != 1 or sep in '"\r\n'):
        raise ParameterError(f"--sep must be one character or tab, got {sep!r}.")
    try:
        plain = encoding is None or "a;\n".encode(encoding) == b"a;\n"
    except LookupError:
        plain = False
    if not plain:
        raise ParameterError(
            "--encoding must be one that contains ASCII, such as utf-8, latin-1 or "
            f"cp1252, got {encoding!r}."
        )
    token = _format.set(CsvFormat(sep, encoding))
    try:
        yield
    finally:
        _format.reset(token)


def records_of(file: Any, sep: str, n: int, end: int | None = None) -> list[bytes]:
    """Return the next n records that begin before a place."""
    found: list[bytes] = []
    at = 0 if end is None else file.tell()
    while len(found) < n and (end is None or at < end):
        line: bytes = file.readline()
        if not line:
            break
        at += len(line)
        if b'"' in line and is_open_after(line, sep):
            line, more = with_rest(file, line, sep)
            at += more
        found.append(line)
    return found


def skip_mark(file: Any) -> int:
    """Go on after the mark of UTF-8 at the start of a file; return how long it is."""
    if file.read(len(_MARK)) == _MARK:
        return len(_MARK)
    file.seek(0)
    return 0


def with_rest(file: Any, line: bytes, sep: str) -> tuple[bytes, int]:
    """Return a record whose first line ends within quotes, and how much was read.

    Where the quotes never close, it goes to the end of the file, and cannot be read.
    """
    lines, more, is_open = [line], 0, True
    while is_open and (line := file.readline()):
        more += len(line)
        is_open = is_open_after(line, sep, inside=True)
        if more <= _LONGEST_RECORD:
            lines.append(line)
    return (b"".join(lines) if more <= _LONGEST_RECORD else b'"'), more


def is_open_after(line: bytes, sep: str, *, inside: bool = False) -> bool:
    """Whether a line ends within quotes; ``inside`` says that it begins so.

    A quote opens a field as its first character alone: 5" is a field like any other.
    """
    if inside and b'"' not in line:
        return True
    text = line.decode(_format.get().encoding or "utf-8", "replace")
    return _closed(sep, inside=inside).fullmatch(text) is None


@lru_cache
def _closed(sep: str, *, inside: bool) -> re.Pattern[str]:
    """Return what a line looks like at whose end no quotes are open."""
    rest = f"[^{re.escape(sep)}]*+"
    quoted = f'(?:[^"]++|"")*+"{rest}'
    field = f'(?:"{quoted}|(?!"){rest})'
    return re.compile(f"{quoted if inside else field}(?:{re.escape(sep)}{field})*+")


def fields_of(record: bytes, sep: str) -> list[str]:
    """Return the fields of one record; none if it cannot be read."""
    try:
        text = record.decode(_format.get().encoding or "utf-8").rstrip("\r\n")
        if '"' not in text:
            return [] if "\r" in text else text.split(sep)
        (fields,) = csv.reader([text], strict=True, delimiter=sep)
    except (UnicodeDecodeError, csv.Error, ValueError):
        return []
    return fields
