"""A data dictionary: what is public about private records before anybody looks at them.

A file that people can read, review and commit: columns with their kinds, ranges and
categories, the target with its classes, and whom the guarantee is for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mapl.errors import ParameterError
from mapl.records import cells
from mapl.records.containers import columns_of, has_names
from mapl.records.schema import Column, Schema

FORM = "mapl-schema/1"
KINDS = ("number", "integer", "category", "text", "time")
_RANGED = ("number", "integer", "time")
_LARGEST = 1e150  # of a range: squares stay finite
MOST_CATEGORIES = 10_000
_EXAMPLE = (
    '{"columns": {"age": {"kind": "integer", "range": [0, 120]}, "town": {"kind": '
    '"category", "categories": ["Bath", "York"]}}}'
)


@dataclass(frozen=True)
class Entry:
    """What a data dictionary says of one column.

    ``range`` is for numbers, integers and times (ISO dates); ``categories`` for
    categories. ``missing`` says whether cells may be empty, ``source`` where the entry
    came from: both are for people.
    """

    kind: str
    range: tuple[Any, Any] | None = None
    categories: tuple[str, ...] = ()
    missing: bool = True
    source: str = ""

    @classmethod
    def of(cls, form: Any) -> Entry:
        """Read one entry; a ParameterError says what is wrong with it."""
        if not isinstance(form, Mapping):
            raise ParameterError("it must be an object with a kind.")
        unknown = set(form) - {"kind", "range", "categories", "missing", "source"}
        if unknown:
            first = sorted(map(str, unknown))[0]
            raise ParameterError(
                f"unknown field {first!r}; there are kind, range, categories, missing "
                "and source."
            )
        kind = form.get("kind")
        if kind == "duration":  # as in schemas of an earlier version
            kind = "number"
        if kind not in KINDS:
            raise ParameterError(
                f"kind must be one of {', '.join(KINDS)}, got {kind!r:.40}."
            )
        if not isinstance(form.get("missing", True), bool):
            raise ParameterError("missing must be true or false.")
        if form.get("range") is not None and kind not in _RANGED:
            raise ParameterError(f"a {kind} has no range.")
        return cls(
            kind,
            _range_of(form.get("range"), kind),
            _categories_of(form.get("categories"), kind),
            form.get("missing", True),
            str(form.get("source", "")),
        )

    @property
    def limits(self) -> tuple[float, float]:
        """The range as numbers; days since 1970 for times."""
        assert self.range is not None
        low, high = (_as_number(value, self.kind) for value in self.range)
        return low, high

    @property
    def column(self) -> Column:
        """The type of the column."""
        kind = "number" if self.kind == "integer" else self.kind
        return Column(kind, categories=self.categories)

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the form of a file."""
        out: dict[str, Any] = {"kind": self.kind}
        if self.range is not None:
            out["range"] = list(self.range)
        if self.categories:
            out["categories"] = list(self.categories)
        if not self.missing:
            out["missing"] = False
        if self.source:
            out["source"] = self.source
        return out


@dataclass(frozen=True)
class Dictionary:
    """The columns of private records, and what else is public about them.

    Examples
    --------
    >>> from mapl.records.dictionary import Dictionary
    >>> found = Dictionary.read(
    ...     {
    ...         "columns": {
    ...             "age": {"kind": "integer", "range": [0, 120]},
    ...             "town": {"kind": "category", "categories": ["Bath", "York"]},
    ...         },
    ...         "target": {"column": "ill", "classes": ["no", "yes"]},
    ...     }
    ... )
    >>> found.target, found.classes, found.columns["age"].limits
    ('ill', ('no', 'yes'), (0.0, 120.0))
    """

    columns: Mapping[str, Entry]
    target: str | None = None
    classes: tuple[Any, ...] = ()  # texts or whole numbers
    groups: str | None = None

    @classmethod
    def read(cls, source: Any) -> Dictionary:
        """Read a data dictionary: a path to a JSON file, or what such a file holds."""
        if isinstance(source, Dictionary):
            return source
        if isinstance(source, Mapping):
            return cls._of(source, "schema")
        if not isinstance(source, str | Path):
            raise ParameterError(
                "schema must be a path, a dict or a Dictionary, got "
                f"{type(source).__name__}."
            )
        try:
            form = json.loads(Path(source).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ParameterError(
                f"{source} cannot be read: {error.strerror}."
            ) from None
        except (ValueError, RecursionError):
            raise ParameterError(
                f"{source} holds no schema: it is no JSON. It looks like this: "
                f"{_EXAMPLE}."
            ) from None
        return cls._of(form, str(source))

    @classmethod
    def _of(cls, form: Any, name: str) -> Dictionary:
        columns = form.get("columns") if isinstance(form, Mapping) else None
        if not isinstance(columns, Mapping) or not columns:
            raise ParameterError(
                f"{name} holds no schema. It looks like this: {_EXAMPLE}."
            )
        unknown = set(form) - {"form", "columns", "target", "unit", "$schema"}
        if unknown:
            raise ParameterError(
                f"{name} has an unknown field {sorted(map(str, unknown))[0]!r}."
            )
        if form.get("form", FORM) != FORM:
            raise ParameterError(
                f"{name} has the form {form['form']!r:.40}, this version reads {FORM}. "
                "Upgrade mapl."
            )
        entries = {}
        for column, entry in columns.items():
            try:
                entries[str(column)] = Entry.of(entry)
            except ParameterError as error:
                raise ParameterError(f"{name}, column {column!r}: {error}") from None
        target, classes = _target_of(form.get("target"), name)
        groups = _unit_of(form.get("unit", "record"), name)
        for other in (target, groups):
            entries.pop(other or "", None)
        if not entries:
            raise ParameterError(f"{name} has no column to learn from.")
        return cls(entries, target, classes, groups)

    @property
    def class_names(self) -> list[str]:
        """The classes as they stand in a file of texts."""
        return [str(label) for label in self.classes]

    @cached_property
    def schema(self) -> Schema:
        """The types of the columns."""
        return Schema({name: entry.column for name, entry in self.columns.items()})

    def to_json(self) -> dict[str, Any]:
        """Return what a file holds."""
        out: dict[str, Any] = {
            "form": FORM,
            "columns": {name: entry.to_json() for name, entry in self.columns.items()},
        }
        if self.target is not None:
            out["target"] = {"column": self.target, "classes": list(self.classes)}
        if self.groups is not None:
            out["unit"] = {"column": self.groups}
        return out

    def cells_json(self) -> list[Any]:
        """Return what decides the cells: names, kinds, ranges and categories."""
        return [
            [name, entry.kind, entry.range, entry.categories]
            for name, entry in self.columns.items()
        ]

    def require_ranges(self) -> None:
        """Refuse a dictionary that is not enough where there are no public records."""
        lacking = [
            name
            for name, entry in self.columns.items()
            if entry.kind in _RANGED and entry.range is None
        ]
        if lacking:
            raise ParameterError(
                f"The schema gives no range for {', '.join(lacking)}. Without public "
                'records it needs one, such as "range": [0, 1000]; it may be far too '
                "wide, but must not be read off the private records."
            )
        if all(entry.kind == "text" for entry in self.columns.values()):
            raise ParameterError(
                "The schema has free text alone, which needs public records to learn "
                "from: give X_public."
            )


def groups_by_schema(dictionary: Dictionary | None, X: Any, groups: Any) -> Any:
    """Return whose record each is: as given, or the column that is named there."""
    if groups is not None or dictionary is None or dictionary.groups is None:
        return groups
    names, columns = columns_of(X) if has_names(X) else ([], [])
    if dictionary.groups in names:
        return columns[names.index(dictionary.groups)]
    raise ParameterError(
        f"The schema says that records belong to the same unit by {dictionary.groups!r}"
        ", which X does not have. Pass groups=, or set the schema's unit to record."
    )


def columns_by_schema(dictionary: Dictionary | None, X: Any) -> Any:
    """Return the columns of a frame that the dictionary has, in its order."""
    if dictionary is None or not has_names(X):
        return X
    names, wanted = columns_of(X)[0], list(dictionary.columns)
    lacking = [name for name in wanted if name not in names]
    if lacking:
        raise ParameterError(
            f"X must have the columns of the schema; it lacks {', '.join(lacking)}."
        )
    return X[wanted] if hasattr(X, "iloc") else X.select(wanted)


def _range_of(given: Any, kind: str) -> tuple[Any, Any] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ParameterError("range must be a list of two values, [low, high].")
    low, high = (_as_number(value, kind) for value in given)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        of = "ISO dates" if kind == "time" else "numbers"
        raise ParameterError(f"range must be [low, high], {of} with low < high.")
    if max(abs(low), abs(high)) > _LARGEST:
        raise ParameterError("range must lie between -1e150 and 1e150.")
    if kind == "time":
        return str(given[0]), str(given[1])
    return given[0], given[1]


def _as_number(value: Any, kind: str) -> float:
    if kind == "time":
        moment = cells.time(value)
        return math.nan if moment == cells.NAT else moment / cells.DAY
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return cells.number(value)


def _categories_of(given: Any, kind: str) -> tuple[str, ...]:
    if (kind == "category") == (not given):
        if kind == "category":
            raise ParameterError('a category must list its values in "categories".')
        raise ParameterError(f"a {kind} has no categories.")
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise ParameterError("categories must be a list.")
    found = [cells.text(value) for value in given]
    if None in found or len(set(found)) < len(found):
        raise ParameterError("categories must be texts or numbers that differ.")
    if len(found) > MOST_CATEGORIES:
        raise ParameterError(f"more than {MOST_CATEGORIES} categories. Call it text.")
    return tuple(str(one) for one in found)


def _target_of(given: Any, name: str) -> tuple[str | None, tuple[Any, ...]]:
    if given is None:
        return None, ()
    sound = isinstance(given, Mapping) and set(given) <= {"column", "classes", "source"}
    classes = given.get("classes", []) if sound else []
    if not sound or "column" not in given or not isinstance(classes, list | tuple):
        raise ParameterError(
            f'{name}: target must be {{"column": NAME, "classes": [A, B]}}.'
        )
    plain = all(type(one) in (str, int) for one in classes)
    if not plain or len({str(one) for one in classes}) < len(classes):
        raise ParameterError(f"{name}: classes must be texts or integers that differ.")
    return str(given["column"]), tuple(classes)


def _unit_of(given: Any, name: str) -> str | None:
    if given == "record":
        return None
    if isinstance(given, Mapping) and set(given) == {"column"}:
        return str(given["column"])
    raise ParameterError(
        f'{name}: unit must be "record", or {{"column": NAME}} with the column that '
        "says whose record it is."
    )
