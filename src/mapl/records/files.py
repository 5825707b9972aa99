"""Tables in files: CSV and Parquet."""

from pathlib import Path
from typing import Any

from mapl.errors import ParameterError

# Texts that mean "missing" in a label or group column, unless a class has that name.
MISSING_TEXTS = {"", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL", "None"}
_PARQUET = (".parquet", ".pq")


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
    if path.suffix in _PARQUET:
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def is_missing(cells: Any, classes: Any = None) -> Any:
    """Return which cells are missing; a class may have any name."""
    return cells.isna() | cells.isin(MISSING_TEXTS - set(classes or ()))


def check_column(name: str, table: Any, path: Path) -> None:
    """Refuse a table without that column.

    The columns are not listed: in a file without a header they are a record.
    """
    if name not in table.columns:
        hint = "Is the file separated by commas?" if len(table.columns) == 1 else ""
        hint = hint or "Is there a line of column names, and is it spelt like this?"
        raise ParameterError(f"Column {name!r} is not in {path}. {hint}")


def _read(path: Path, **csv_options: Any) -> Any:
    """Read a table; an error shows its kind, and no cell."""
    import pandas as pd

    try:
        if path.suffix in _PARQUET:
            return pd.read_parquet(path)
        return pd.read_csv(path, **csv_options)
    except Exception as error:
        kind = type(error).__name__
        raise ParameterError(f"{path} cannot be read as a table ({kind}).") from None
