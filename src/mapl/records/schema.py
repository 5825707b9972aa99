"""What type each column has: decided by public records, never by private ones.

A column's type in a private table may depend on any of its records, so it is not looked
at. Each cell is cast by itself; a cell that does not fit is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapl.arrays import Array
from mapl.errors import ParameterError

_MISSING_TEXT = "(missing)"


@dataclass(frozen=True)
class Column:
    """The type of a column: "number", "text", "category", "time" or "object".

    Cells of an "object" column are kept as they are. ``dtype`` is that of the public
    column, where the kind alone does not say it.
    """

    kind: str
    dtype: Any = None

    def cast(self, cells: Any) -> Any:
        """Return a pandas column with each cell in this type, or missing."""
        return _CASTS[self.kind](cells, self.dtype)


@dataclass(frozen=True)
class Schema:
    """The columns of a table by name, with their types.

    Examples
    --------
    >>> import pandas as pd
    >>> from mapl.records.schema import Schema
    >>> public = pd.DataFrame({"age": [31, 54], "town": ["York", "Bath"]})
    >>> schema = Schema.of_numbers_and_texts(public)
    >>> private = pd.DataFrame({"age": ["47", "unknown"], "town": ["York", 7.0]})
    >>> schema.cast(private).to_numpy().tolist()
    [[47.0, 'York'], [nan, '7']]
    """

    columns: Mapping[str, Column]

    @classmethod
    def of(cls, public: Any) -> Schema:
        """Take the types of a public pandas frame as they are."""
        return cls({name: _column(public[name].dtype) for name in public.columns})

    @classmethod
    def of_numbers_and_texts(cls, public: Any) -> Schema:
        """Take numbers as numbers, and everything else as texts."""
        numbers = set(public.select_dtypes("number").columns)
        return cls(_kinds(public.columns, numbers))

    @classmethod
    def of_encoder(cls, encoder: Any) -> Schema:
        """Return the schema of an encoder from `fit_encoder`."""
        return cls(_kinds(encoder.feature_names_in_, set(encoder.transformers_[0][2])))

    @property
    def number_columns(self) -> list[str]:
        """The names of the columns that hold numbers."""
        return [
            name for name, column in self.columns.items() if column.kind == "number"
        ]

    @property
    def other_columns(self) -> list[str]:
        """The names of the other columns."""
        return [name for name in self.columns if name not in self.number_columns]

    def cast(self, table: Any) -> Any:
        """Return a pandas frame with these columns, each cell in its column's type."""
        import pandas as pd

        cells = {
            name: column.cast(table[name]) for name, column in self.columns.items()
        }
        return pd.DataFrame(cells, index=table.index)

    def fit_encoder(
        self, typed: Any, *, min_frequency: int | None = None
    ) -> tuple[Any, Array]:
        """Fit an encoder to a cast public table; return it, and the table as numbers.

        Numbers are scaled, missing ones replaced by the mean; texts become one-hot
        codes, the rare ones together if ``min_frequency`` is given.
        """
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        scale = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
        codes = make_pipeline(
            SimpleImputer(strategy="constant", fill_value=_MISSING_TEXT),
            OneHotEncoder(
                handle_unknown="ignore",
                sparse_output=False,
                min_frequency=min_frequency,
            ),
        )
        # `of_encoder` relies on this order: numbers first.
        encoder = make_column_transformer(
            (scale, self.number_columns), (codes, self.other_columns)
        )
        numbers = encoder.fit_transform(typed)
        return encoder, np.asarray(numbers)


def cast_like(X: Any, public: Any) -> Any:
    """Give a private table the column types of the public one, cell by cell."""
    if frame_kind(X) != frame_kind(public):
        raise ParameterError(
            "X and X_public must be of one kind: both pandas, both polars, or neither."
        )
    if frame_kind(X) == "polars":
        return X.select(public.columns).cast(dict(public.schema), strict=False)
    return X if frame_kind(X) is None else Schema.of(public).cast(X)


def frame_kind(X: Any) -> str | None:
    """Return "pandas" or "polars" for a data frame, None for anything else."""
    if hasattr(X, "get_columns"):
        return "polars"
    return "pandas" if hasattr(X, "iloc") and X.ndim == 2 else None


def cell_text(cell: Any) -> str:
    """Return a cell as text: 7.0 reads "7", since pandas turns integers into floats
    as soon as one of them is missing.
    """
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat()).removesuffix("T00:00:00")
    return str(cell)


def _kinds(names: Any, numbers: set[str]) -> dict[str, Column]:
    return {name: Column("number" if name in numbers else "text") for name in names}


def _column(dtype: Any) -> Column:
    """Return the kind of a public column by its dtype."""
    import pandas as pd

    if isinstance(dtype, pd.CategoricalDtype):
        return Column("category", dtype)
    if dtype.kind in "fiub":
        return Column("number")
    return Column("time", dtype) if dtype.kind in "mM" else Column("object")


# One cast for each kind of column ---------------------------------------------------


def _cast_numbers(column: Any, dtype: Any) -> Any:
    """Finite floats; times are not numbers."""
    import pandas as pd

    if column.dtype.kind in "mM":
        return pd.Series(np.nan, column.index)
    cells = pd.to_numeric(column, errors="coerce").astype(np.float64)
    return cells.where(np.isfinite(cells))


def _cast_texts(column: Any, dtype: Any) -> Any:
    texts = column.astype(object).map(cell_text, na_action="ignore")
    return texts.where(column.notna(), np.nan).astype(object)


def _cast_categories(column: Any, dtype: Any) -> Any:
    import pandas as pd

    return pd.Series(pd.Categorical(column, categories=dtype.categories), column.index)


def _cast_objects(column: Any, dtype: Any) -> Any:
    """The cells as they are; integers that a missing cell made floats are integers."""
    import pandas as pd

    cells = column.astype(object)
    if column.dtype.kind == "f":
        whole = [
            int(cell) if isinstance(cell, float) and cell.is_integer() else cell
            for cell in cells  # some of which may be pandas.NA
        ]
        cells = pd.Series(whole, column.index, dtype=object)
    return cells.where(column.notna(), None)


def _cast_times(column: Any, dtype: Any) -> Any:
    """Times of a type; a time without a zone is in UTC where one is wanted.

    The shortcuts give what `_cast_time` gives, cell by cell.
    """
    import pandas as pd

    zone = getattr(dtype, "tz", None)
    if column.dtype == dtype:
        return column
    if column.dtype.kind == dtype.kind and getattr(column.dtype, "tz", None) == zone:
        try:
            return column.astype(dtype)
        except ValueError:  # some are out of its range
            pass
    unit = np.datetime_data(dtype)[0] if zone is None else dtype.unit
    times = [_cast_time(cell, dtype.kind, unit, zone) for cell in column]
    return pd.Series(times, column.index, dtype=dtype)


def _cast_time(cell: Any, kind: str, unit: str, zone: Any) -> Any:
    """Return one time or duration, NaT for a cell that is none."""
    import pandas as pd

    try:
        if kind == "m":
            return pd.Timedelta(cell).as_unit(unit)
        time = pd.Timestamp(cell)
        time = time.tz_localize("UTC") if time.tz is None else time
        time = time.tz_convert(zone or "UTC").as_unit(unit)
        return time if zone else time.tz_localize(None)
    except (TypeError, ValueError, OverflowError):
        return pd.NaT


_CASTS = {
    "number": _cast_numbers,
    "text": _cast_texts,
    "category": _cast_categories,
    "time": _cast_times,
    "object": _cast_objects,
}
