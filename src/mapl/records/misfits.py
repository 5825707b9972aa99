"""What of a private file does not fit its schema, and how often: for its holder."""

from pathlib import Path
from typing import Any

import numpy as np

from mapl.records.files import as_texts, blocks, check_column, column_names, is_missing
from mapl.records.labels import UNKNOWN, declared_classes, encode
from mapl.records.schema import Schema
from mapl.records.table import is_missing as is_missing_cell


def count_misfits(
    path: Path,
    schema: Schema,
    *,
    target: str | None = None,
    classes: list[str] | None = None,
    groups: str | None = None,
) -> dict[str, Any]:
    """Count missing cells and cells that do not fit, column by column. Private."""
    extra = [name for name in (target, groups) if name]
    names = column_names(path)
    for name in (*schema.columns, *extra):
        check_column(name, names, path)
    kinds = {name: column.kind for name, column in schema.columns.items()}
    kinds |= dict.fromkeys(extra[1:] if target else extra, "group")
    if target:
        kinds[target] = "label"
    counts = {name: np.zeros(2, dtype=np.int64) for name in kinds}
    records = unreadable = 0
    for block in blocks(path, [*schema.columns, *extra]):
        unreadable += block.n_unreadable
        for name, kind in kinds.items():
            texts = as_texts(block.columns[name])
            if kind == "label":
                missing = np.array([is_missing(t, classes) for t in texts], np.bool_)
                codes = encode(texts, declared_classes(classes))
                unfit = (codes == UNKNOWN) & ~missing
            elif kind == "group":
                missing = np.array([is_missing(t) for t in texts], np.bool_)
                unfit = np.zeros_like(missing)
            else:
                column = schema.columns[name].convert(block.columns[name])
                missing = np.array([t is None for t in texts], np.bool_)
                unfit = is_missing_cell(column, kind) & ~missing
            counts[name] += missing.sum(), unfit.sum()
        records += len(texts)
    return {
        "records": records,
        "unreadable_lines": unreadable,
        "columns": {
            name: {"kind": kinds[name], "missing": int(m), "does_not_fit": int(u)}
            for name, (m, u) in counts.items()
        },
    }
