"""What type each column has: decided by public records or the caller.

A column's type in a private table may depend on any of its records, so it is not looked
at. Each cell is converted by itself; a cell that does not fit is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mapl.arrays import Array
from mapl.errors import ParameterError
from mapl.records import cells
from mapl.records.columns import KINDS, convert
from mapl.records.containers import cells_of, columns_of, container_kind

MISSING_TEXT = "(missing)"


@dataclass(frozen=True)
class Column:
    """The type of a column.

    ``kind`` is "number", "text", "category", "time" or "duration". ``dtype`` is what
    learners see in a frame, where the kind alone does not say it: that of the public
    column. ``categories`` are the texts of a category's values.
    """

    kind: str
    dtype: Any = field(default=None, compare=False)
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(
                f"The kind of a column must be one of {', '.join(KINDS)}, got "
                f"{self.kind!r}."
            )

    def convert(self, column: Any) -> Array:
        """Return each cell in this type: floats, texts, codes or nanoseconds."""
        return convert(column, self.kind, self.categories)


@dataclass(frozen=True)
class Schema:
    """The columns of a table by name, with their types.

    ``container`` is what learners get: "pandas", "polars", "series", "texts", "array"
    or "sparse". In the last two every column is a number.

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

    columns: Mapping[Any, Column]
    container: str = "pandas"
    precision: str = "float64"  # of numbers in an array

    @classmethod
    def of(cls, public: Any) -> Schema:
        """Return the types of a public table of any kind."""
        container = container_kind(public)
        names, columns = columns_of(public)
        if container in ("array", "sparse"):
            width = int(public.shape[1]) if container == "sparse" else len(columns)
            single = getattr(public, "dtype", None) == np.float32
            precision = "float32" if single else "float64"
            return cls(
                dict.fromkeys(range(width), Column("number")), container, precision
            )
        found = [_column_of(column) for column in columns]
        if len(set(names)) < len(names):
            raise ParameterError("The columns of a table must have different names.")
        return cls(dict(zip(names, found, strict=True)), container)

    @classmethod
    def of_numbers_and_texts(cls, public: Any) -> Schema:
        """Take numbers as numbers, and everything else as texts."""
        numbers = set(public.select_dtypes("number").columns)
        return cls(_kinds(public.columns, numbers))

    @classmethod
    def of_encoder(cls, encoder: Any) -> Schema:
        """Return the schema of an encoder from `fit_encoder`."""
        return cls(_kinds(encoder.feature_names_in_, set(encoder.transformers_[0][2])))

    def describe(self) -> str:
        """Return names and types as a text, to identify what was asked for."""
        columns = [(str(n), c.kind, c.categories) for n, c in self.columns.items()]
        return repr((self.container, self.precision, columns))

    @property
    def number_columns(self) -> list[Any]:
        """The names of the columns that hold numbers."""
        return [
            name for name, column in self.columns.items() if column.kind == "number"
        ]

    @property
    def other_columns(self) -> list[Any]:
        """The names of the other columns."""
        return [name for name in self.columns if name not in self.number_columns]

    def cast(self, table: Any) -> Any:
        """Return the table with each cell in its column's type, as learners see it."""
        from mapl.records.table import canonical_table

        return canonical_table(table, self).data

    def fit_encoder(
        self, typed: Any, *, min_frequency: int | None = None
    ) -> tuple[Any, Array]:
        """Fit an encoder to a cast public table; return it, and the table as numbers.

        Numbers are scaled, missing ones replaced by the mean; texts become one-hot
        codes, the rare ones together if ``min_frequency`` is given.
        """
        encoder = self._encoder(min_frequency)
        numbers = encoder.fit_transform(typed)
        return encoder, np.asarray(numbers)

    def encoding_pipeline(self, estimator: Any) -> Any:
        """Return an estimator that encodes the columns itself."""
        from sklearn.pipeline import make_pipeline

        return make_pipeline(self._encoder(None), estimator)

    def _encoder(self, min_frequency: int | None) -> Any:
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        scale = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
        codes = make_pipeline(
            SimpleImputer(strategy="constant", fill_value=MISSING_TEXT),
            OneHotEncoder(
                handle_unknown="ignore",
                sparse_output=False,
                min_frequency=min_frequency,
            ),
        )
        # `of_encoder` relies on this order: numbers first.
        return make_column_transformer(
            (scale, self.number_columns), (codes, self.other_columns)
        )


def _kinds(names: Any, numbers: set[str]) -> dict[str, Column]:
    return {name: Column("number" if name in numbers else "text") for name in names}


# Types of public columns --------------------------------------------------------------


def _column_of(column: Any) -> Column:
    """Return the type of a public column: by its dtype, else by its values."""
    dtype = getattr(column, "dtype", None)
    if type(dtype).__name__ in ("CategoricalDtype", "Categorical", "Enum"):
        return _category(column, dtype)
    kind = getattr(dtype, "kind", None)
    if kind in ("M", "m"):
        return Column("time" if kind == "M" else "duration", dtype)
    if kind is not None and kind in "fiub":
        return Column("number")
    found = _kind_of_values(cells_of(column))
    keeps = found == "text" and str(dtype) in ("str", "string")
    return Column(found, dtype if keeps else None)


def _category(column: Any, dtype: Any) -> Column:
    """Return the type of a categorical column of pandas or polars."""
    if hasattr(column, "iloc"):
        listed = dtype.categories.tolist()
    elif type(dtype).__name__ == "Enum":
        listed = list(dtype.categories)
    else:  # polars numbers the categories of all columns together
        listed = sorted(column.cast(str).drop_nulls().unique().to_list())
    found = [cells.text(value) for value in listed]
    if None in found or len(set(found)) < len(found):
        raise ParameterError(
            "The categories of a public column must be texts or numbers that differ."
        )
    return Column("category", dtype, tuple(str(one) for one in found))


def _kind_of_values(values: Any) -> str:
    """Return the type of values of several types; only public values come here."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return "number"
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        return "time" if values.dtype.kind == "M" else "duration"
    given = [value for value in values if not cells.is_missing(value)]
    if given and not any(isinstance(value, str | bytes) for value in given):
        for kind, reads in (
            ("number", lambda value: cells.number(value) == cells.number(value)),
            ("time", lambda value: cells.time(value) != cells.NAT),
            ("duration", lambda value: cells.duration(value) != cells.NAT),
        ):
            if all(map(reads, given)):
                return kind
    return "text"
