"""What of a private file does not fit its schema, and how often: for its holder."""

from pathlib import Path
from typing import Any

import numpy as np

from mapl.records.cells import DAY, NAT
from mapl.records.dictionary import Dictionary, Entry
from mapl.records.files import as_texts, blocks, check_column, column_names, is_missing
from mapl.records.labels import UNKNOWN, declared_classes, encode
from mapl.records.table import is_missing as is_missing_cell

_COUNTED = ("missing", "does_not_fit", "out_of_range")


def count_misfits(path: Path, dictionary: Dictionary) -> dict[str, Any]:
    """Count missing cells, cells that do not fit and numbers out of range, column by
    column. Private.
    """
    schema, classes = dictionary.schema, dictionary.class_names
    extra = [name for name in (dictionary.target, dictionary.groups) if name]
    names = column_names(path)
    for name in (*schema.columns, *extra):
        check_column(name, names, path)
    kinds = {name: column.kind for name, column in schema.columns.items()}
    if dictionary.groups:
        kinds[dictionary.groups] = "group"
    if dictionary.target:
        kinds[dictionary.target] = "label"
    counts = {name: np.zeros(3, dtype=np.int64) for name in kinds}
    records = unreadable = 0
    for block in blocks(path, [*schema.columns, *extra]):
        unreadable += block.n_unreadable
        for name, kind in kinds.items():
            texts, outside = as_texts(block.columns[name]), 0
            if kind == "label":
                missing = np.array([is_missing(t, classes) for t in texts], np.bool_)
                codes = encode(texts, declared_classes(classes or ["any"]))
                unfit = (codes == UNKNOWN) & ~missing & bool(classes)
            elif kind == "group":
                missing = np.array([is_missing(t) for t in texts], np.bool_)
                unfit = np.zeros_like(missing)
            else:
                column = schema.columns[name].convert(block.columns[name])
                missing = np.array([t is None for t in texts], np.bool_)
                unfit = is_missing_cell(column, kind) & ~missing
                outside = _n_outside(dictionary.columns[name], column)
            counts[name] += missing.sum(), unfit.sum(), outside
        records += len(texts)
    return {
        "records": records,
        "unreadable_lines": unreadable,
        "columns": {
            name: {"kind": kinds[name]}
            | dict(zip(_COUNTED, map(int, found), strict=True))
            for name, found in counts.items()
        },
    }


def _n_outside(entry: Entry, column: Any) -> int:
    """Return how many numbers lie outside their range."""
    if entry.range is None:
        return 0
    low, high = entry.limits
    values = column
    if entry.kind == "time":
        values = np.where(column == NAT, np.nan, column / DAY)
    with np.errstate(invalid="ignore"):
        return int(((values < low) | (values > high)).sum())
