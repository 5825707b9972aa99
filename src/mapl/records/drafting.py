"""A first draft of a data dictionary, from a file that is not private.

Every entry says where it came from: people review it before it is used.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from mapl.errors import ParameterError
from mapl.records import cells
from mapl.records.dictionary import KINDS, Dictionary, Entry
from mapl.records.files import as_texts, check_column, read_table

_MOST_CATEGORIES = 100  # of texts; more are free text
_ROOM = 0.5  # of the range that was seen, added on both sides
# Names of the columns of a data dictionary in a CSV file.
_NAMES = ("column", "name", "variable", "field")
_TYPES = {
    "number": "number", "float": "number", "real": "number", "numeric": "number",
    "continuous": "number", "double": "number", "decimal": "number",
    "integer": "integer", "int": "integer", "count": "integer",
    "category": "category", "categorical": "category", "factor": "category",
    "nominal": "category", "binary": "category", "bool": "category",
    "text": "text", "string": "text", "free text": "text",
    "time": "time", "date": "time", "datetime": "time", "timestamp": "time",
}  # fmt: skip


def draft(path: Path, *, target: str, groups: str | None = None) -> Dictionary:
    """Draft a dictionary from a sample of public records, or from a table that lists
    columns with their types and ranges.
    """
    table = read_table(path)
    names = {str(name).strip().lower(): name for name in table.columns}
    listed = next((names[n] for n in _NAMES if n in names), None)
    kind = names.get("kind", names.get("type"))
    if listed is not None and kind is not None:
        return _of_listing(table, str(listed), str(kind), target, groups, path)
    if not len(table):
        raise ParameterError(f"{path} has no records to draft a schema from.")
    for name in (target, *([groups] if groups else [])):
        check_column(name, table.columns, path)
    entries = {
        str(name): _of_values(as_texts(table[name]))
        for name in table.columns
        if name not in (target, groups)
    }
    classes = sorted({text for text in as_texts(table[target]) if text is not None})
    if not classes:
        raise ParameterError(f"{path} has no label in column {target!r}.")
    if not entries or len(classes) > _MOST_CATEGORIES:
        raise ParameterError(
            f"{path} must have other columns than {target!r}, and at most "
            f"{_MOST_CATEGORIES} classes."
        )
    return Dictionary(entries, target, _as_integers(classes), groups)


def _as_integers(classes: list[str]) -> tuple[Any, ...]:
    """Return classes as integers if all are: then predictions are, too."""
    if all(text.isascii() and text.isdigit() for text in classes):
        return tuple(sorted(int(text) for text in classes))
    return tuple(classes)


def _of_values(texts: list[str | None]) -> Entry:
    """Return the entry of a column by the values that a sample has."""
    given = [text for text in texts if text is not None]
    if not given:
        return Entry("text", source="sample: no value. Set kind and range.")
    numbers = np.array([cells.number(text) for text in given])
    if np.isfinite(numbers).all():
        return _of_numbers(numbers, given)
    times = [cells.time(text) for text in given]
    if cells.NAT not in times:
        days = np.array(times) / cells.DAY
        low, high = _widened(float(days.min()), float(days.max()), whole=True)
        limits = tuple(str(np.datetime64(int(day), "D")) for day in (low, high))
        return Entry("time", (limits[0], limits[1]), source="sample, widened by half.")
    distinct = sorted(set(given))
    if len(distinct) > _MOST_CATEGORIES:
        text = f"sample: {len(distinct)} different texts. List categories if it is one."
        return Entry("text", source=text)
    source = f"sample: {len(distinct)} different texts. Add those that it lacks."
    return Entry("category", categories=tuple(distinct), source=source)


def _of_numbers(numbers: Any, texts: list[str]) -> Entry:
    whole = bool((numbers == np.rint(numbers)).all()) and abs(numbers).max() < 2**53
    low, high = float(numbers.min()), float(numbers.max())
    if whole and {low, high} <= {0.0, 1.0}:
        return Entry("integer", (0, 1), source="sample: 0 and 1.")
    seen = f"sample: {texts[int(numbers.argmin())]} to {texts[int(numbers.argmax())]}"
    wide = _widened(low, high, whole=whole)
    limits = (int(wide[0]), int(wide[1])) if whole else wide
    return Entry(
        "integer" if whole else "number", limits, source=f"{seen}, widened by half."
    )


def _widened(low: float, high: float, *, whole: bool) -> tuple[float, float]:
    """Return a range with room on both sides; what is not negative stays so."""
    room = _ROOM * (high - low) or 1.0
    wide = (0.0 if 0 <= low <= room else low - room), high + room
    return (math.floor(wide[0]), math.ceil(wide[1])) if whole else wide


def _of_listing(
    table: Any, name: str, kind: str, target: str, groups: str | None, path: Path
) -> Dictionary:
    """Return a dictionary from a table with one row a column."""
    lower = {str(c).strip().lower(): c for c in table.columns}
    entries: dict[str, Entry] = {}
    classes: tuple[Any, ...] = ()
    for _, row in table.iterrows():
        own = str(row[name])
        entry = _of_row(row, lower, str(row[kind]).strip().lower(), own, path)
        if own == target:
            classes = _as_integers(list(entry.categories))
        elif own != groups:
            entries[own] = entry
    if target not in table[name].tolist():
        raise ParameterError(f"{path} lists no column {target!r}.")
    return Dictionary(entries, target, classes, groups)


def _of_row(row: Any, lower: dict[str, Any], kind: str, name: str, path: Path) -> Entry:
    def cell(*names: str) -> str | None:
        found = next((row[lower[n]] for n in names if n in lower), None)
        return None if found is None or cells.is_missing(found) else str(found).strip()

    if kind not in _TYPES:
        raise ParameterError(
            f"{path}: the kind of {name!r} must be one of {', '.join(KINDS)}, got "
            f"{kind!r:.40}."
        )
    form: dict[str, Any] = {"kind": _TYPES[kind], "source": f"{path.name}."}
    low, high = cell("min", "minimum", "low"), cell("max", "maximum", "high")
    listed = cell("categories", "values", "levels", "codes")
    if low is not None and high is not None and form["kind"] != "category":
        limits = [low, high]
        form["range"] = (
            limits if form["kind"] == "time" else [cells.number(x) for x in limits]
        )
        if form["kind"] == "integer":
            form["range"] = [int(x) if math.isfinite(x) else x for x in form["range"]]
    if listed is not None and form["kind"] == "category":
        mark = next((m for m in ("|", ";") if m in listed), ",")
        form["categories"] = [text.strip() for text in listed.split(mark)]
    try:
        return Entry.of(form)
    except ParameterError as error:
        raise ParameterError(f"{path}, column {name!r}: {error}") from None
