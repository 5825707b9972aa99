"""Tables with every odd value, in every container, and their neighbours."""

import csv
import datetime
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mapl.records.files import read_private
from mapl.records.schema import Column, Schema
from mapl.records.table import Table, canonical_table

QUICK = "MAPL_QUICK" in os.environ  # fail at once: a fit takes long to shrink
TIMES = int(os.environ.get("MAPL_FUZZ", "1"))
BERLIN = ZoneInfo("Europe/Berlin")
KINDS = ("number", "text", "category", "time")
CATEGORIES = ("a", "b", "7")
CLASSES = [0, 1]

usual = {
    "number": st.integers(0, 9) | st.floats(-9, 9).map(lambda x: round(x, 2)),
    "text": st.sampled_from(["York", "Bath", "7", "Ely"]),
    "category": st.sampled_from(CATEGORIES),
    "time": st.datetimes(datetime.datetime(2000, 1, 1), datetime.datetime(2030, 1, 1)),
}
ODD_NUMBERS: list[Any] = [
    *(None, math.nan, math.inf, -math.inf, -0.0, True, False, "x", "", "1.0", " 7"),
    *(2**53, 2**53 + 1, -(2**63), 2**64, 10**400, 1e300, 5e-324, 1 + 1j, 3 + 0j),
    *(Decimal("0.1"), Decimal("1E+10000000"), Decimal("NaN"), Fraction(1, 3)),
    *(np.float32(0.1), np.int8(3), np.bool_(True), np.longdouble(0.5), pd.NA, pd.NaT),
    *([1], {"a": 1}, b"7", "now", "1_000", "inf", "nan", "NA"),
]
ODD_TEXTS: list[Any] = [
    *(None, math.nan, "", "NA", "nan", "null", "7.0", "07", "1e5", "\ud800", "x" * 300),
    *("ünïcödé", 7, 7.0, 7.5, True, False, 10**400, Decimal("7.0"), b"York", b"\xff"),
    *(["York"], datetime.date(2020, 1, 1), pd.Timestamp("2020-01-01 10:30"), pd.NA),
    *(pd.Period("2020-01", "M"), np.str_("Bath"), ("York", "Bath"), ",", '"', "a,b"),
    *("Bath\0", "\0", "\0Bath", "Ba\0th", "York\0\0", "7\0", "a\0", "nan\0"),
    *(
        "\x01",
        "\x1b[0m",
        "\x7f",
        "\x85",
        "\u2028",
        "\ufeffBath",
        "Bath\u200b",
        "\uffff",
    ),
    *("\udc80", "Bath\udfff", "\ud83d", "\U0001f600", "\u00e9", "e\u0301", "\u212b"),
    *("\u00c5", "A\u030a", "ﬁ", "fi", "Straße", "STRASSE", "Bath ", " Bath", "bath"),
    *('"Bath', 'Ba"th', "Ba\nth", "Bath\r\n", "\n", "0e1", "0e2", "1e400"),
]
ODD_TIMES: list[Any] = [
    *(None, pd.NaT, "now", "today", "2020-01-01", "2020-05-05T10:30:00+02:00", "x"),
    datetime.date(2020, 1, 1),
    datetime.datetime(9999, 1, 1),
    datetime.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=0),
    datetime.datetime(2020, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    pd.Timestamp("2020-01-01", tz="Asia/Tokyo"),
    pd.Timestamp("2020-01-01 00:00:00.000000001"),
    *(np.datetime64("2020-01-01T10", "h"), np.datetime64("2020-01-01", "D")),
    *(7, 1e18, datetime.timedelta(hours=1), [1]),
]
# Few characters, so that texts differ by little.
odd_text = st.text(max_size=5) | st.text('Ba\0\n"\x1b\ud800e\u0301\u00e97.', max_size=5)
odd = {
    "number": st.sampled_from(ODD_NUMBERS) | st.floats(),
    "text": st.sampled_from(ODD_TEXTS) | odd_text,
    "category": st.sampled_from([*ODD_TEXTS, "aardvark"]) | odd_text,
    "time": st.sampled_from(ODD_TIMES),
}
labels = st.sampled_from([0, 1, 1.0, "0", True, "True", None, "x", 7, 10**400, [0]])
BLANK = st.none()
plain_owners = st.integers(1, 5)
owners = st.sampled_from(
    [
        *(*"abcde", None, 7, 7.0, "7", 2**60, 2**60 + 1, ("a", 1), "a\0", "0e1", "0e2"),
        *("true", "1", "nan", "", "\u00e9", "e\u0301", "\ud800", "2020-01-01", "7.00"),
    ]
)


@dataclass(frozen=True)
class Case:
    """Records, and the unit that a neighbour has more."""

    kinds: tuple[str, ...]
    rows: list[list[Any]]
    labels: list[Any]
    groups: list[Any] | None
    added: list[list[Any]]
    added_labels: list[Any]
    owner: Any
    at: int
    order: int
    container: str

    @property
    def schema(self) -> Schema:
        """The public types."""
        columns = {
            f"c{i}": Column(kind, categories=CATEGORIES if kind == "category" else ())
            for i, kind in enumerate(self.kinds)
        }
        return Schema(columns, "pandas")

    def neighbours(self) -> list[tuple[list[Any], list[Any], list[Any] | None]]:
        """Rows, labels and owners: as they are, with the unit, and permuted."""
        more = self.rows[: self.at] + self.added + self.rows[self.at :]
        y = self.labels[: self.at] + self.added_labels + self.labels[self.at :]
        who = self.groups
        if who is not None:
            who = who[: self.at] + [self.owner] * len(self.added) + who[self.at :]
        place = np.random.default_rng(self.order).permutation(len(more))
        shuffled = [more[i] for i in place], [y[i] for i in place]
        permuted = None if who is None else [who[i] for i in place]
        return [
            (self.rows, self.labels, self.groups),
            (more, y, who),
            (*shuffled, permuted),
        ]

    def alone(self) -> tuple[list[Any], list[Any], list[Any] | None]:
        """The unit that a neighbour has more, by itself."""
        who = None if self.groups is None else [self.owner] * len(self.added)
        return self.added, self.added_labels, who


@st.composite
def cases(
    draw: Any,
    containers: tuple[str, ...],
    *,
    kinds: tuple[str, ...] = KINDS,
    n: int = 12,
) -> Case:
    """Draw a table of mostly usual cells, and a unit of odd ones."""
    container = draw(st.sampled_from(containers))
    if container in OF_NUMBERS:
        kinds = ("number",)
    chosen = tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)))
    cells = [
        draw(st.sampled_from((usual[k], usual[k] | odd[k], BLANK))) for k in chosen
    ]
    row = st.tuples(*cells).map(list)
    strange = st.tuples(*(odd[k] | usual[k] for k in chosen)).map(list)
    rows = draw(st.lists(row, min_size=2, max_size=n))
    grouped = draw(st.booleans())
    person = draw(st.sampled_from((owners, plain_owners)))
    groups = [draw(person) for _ in rows] if grouped else None
    owner = draw(st.sampled_from(("somebody new", None, 99, "0e3", "b\0", "\u212b")))
    if owner in (groups or []):
        owner = None  # whose records are units by themselves
    n_added = draw(st.integers(1, 3)) if grouped and owner is not None else 1
    added = [draw(strange | st.sampled_from(rows)) for _ in range(n_added)]
    label = st.sampled_from(CLASSES) | labels
    return Case(
        kinds=chosen,
        rows=rows,
        labels=[draw(label) for _ in rows],
        groups=groups,
        added=added,
        added_labels=[draw(label) for _ in added],
        owner=owner,
        at=draw(st.integers(0, len(rows))),
        order=draw(st.integers(0, 99)),
        container=container,
    )


# Containers -------------------------------------------------------------------------


def _typed(values: list[Any], kind: str) -> list[Any]:
    """What a typed column can hold of these values; None for the others."""
    types: dict[str, Any] = {"number": (float, int), "time": datetime.datetime}
    wanted = types.get(kind, str)

    def fits(value: Any) -> bool:
        if not isinstance(value, wanted) or value is pd.NaT:
            return False
        if kind == "time":
            coarse = getattr(value, "nanosecond", 0) == 0
            return coarse and value.tzinfo is None and 1700 < value.year < 2200
        if isinstance(value, str):
            return not any("\ud800" <= c <= "\udfff" for c in value)
        return isinstance(value, float) or abs(value) < 2**63

    return [value if fits(value) else None for value in values]


def typed_columns(
    rows: list[list[Any]], kinds: tuple[str, ...]
) -> dict[str, list[Any]]:
    return {
        f"c{i}": _typed([row[i] for row in rows], kind) for i, kind in enumerate(kinds)
    }


def _polars_series(name: str, values: list[Any], kind: str) -> Any:
    whole = all(v is None or (isinstance(v, int) and v < 2**63) for v in values)
    number = pl.Int64 if whole else pl.Float64
    types: dict[str, Any] = {"number": number, "time": pl.Datetime("ns")}
    if kind == "number" and not whole:
        values = [None if v is None else float(v) for v in values]
    return pl.Series(name, values, dtype=types.get(kind, pl.String), strict=False)


def to_polars(rows: Any, kinds: Any) -> Any:
    columns = typed_columns(rows, kinds)
    return pl.DataFrame(
        [_polars_series(n, columns[n], k) for n, k in zip(columns, kinds, strict=True)]
    )


def to_arrow(rows: Any, kinds: Any) -> Any:
    return to_polars(rows, kinds).to_arrow()


def to_pandas(rows: Any, kinds: Any) -> Any:
    names = [f"c{i}" for i in range(len(kinds))]
    safe = [[None if _too_wide(cell) else cell for cell in row] for row in rows]
    frame = pd.DataFrame(safe, columns=names)
    return frame.set_index(pd.Index([f"row {i}" for i in range(len(rows))]))


def _too_wide(cell: Any) -> bool:
    """What pandas itself changes or refuses: wide integers, and halves of pairs."""
    if isinstance(cell, str):
        return any("\ud800" <= c <= "\udfff" for c in cell)
    return isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) >= 2**53


def to_pandas_objects(rows: Any, kinds: Any) -> Any:
    frame = pd.DataFrame(index=range(len(rows)))
    for i in range(len(kinds)):
        column = np.empty(len(rows), dtype=object)
        column[:] = [row[i] for row in rows]
        frame[f"c{i}"] = pd.Series(column, dtype=object)
    return frame


def to_categories(rows: Any, kinds: Any) -> Any:
    # pandas before 3.1 makes one category of texts that are alike up to a NUL.
    columns = {
        name: [None if isinstance(v, str) and "\0" in v else v for v in values]
        for name, values in typed_columns(rows, kinds).items()
    }
    return pd.DataFrame(columns).astype(object).astype("category")


def to_object_array(rows: Any, kinds: Any) -> Any:
    table = np.empty((len(rows), len(kinds)), dtype=object)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            table[i, j] = cell
    return table


def to_floats(rows: Any, kinds: Any) -> Any:
    columns = typed_columns(rows, kinds).values()
    return np.array([[np.nan if v is None else float(v) for v in c] for c in columns]).T


def to_sparse(rows: Any, kinds: Any) -> Any:
    """A CSR matrix that stores every cell, zeros too."""
    dense = to_floats(rows, kinds)
    matrix = sp.csr_matrix(np.ones_like(dense))
    matrix.data = dense.reshape(-1).copy()
    return matrix


def to_scattered(rows: Any, kinds: Any) -> Any:
    """A sparse matrix whose cells stand backwards, in two summands each."""
    dense = to_floats(rows, kinds)
    n, d = dense.shape
    matrix = sp.csr_matrix((n, d))
    matrix.indices = np.tile(np.repeat(np.arange(d)[::-1], 2), n).astype(np.int32)
    matrix.indptr = np.arange(n + 1, dtype=np.int32) * 2 * d
    matrix.data = np.stack([dense[:, ::-1], np.zeros_like(dense)], 2).reshape(-1)
    return matrix


def to_ragged(rows: Any, kinds: Any) -> Any:
    """Lists of several lengths: a missing cell at the end is left away."""
    return [row[:-1] if row[-1] is None else row for row in rows]


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda rows, kinds: rows,
    "array": to_object_array,
    "pandas": to_pandas,
    "pandas objects": to_pandas_objects,
    "pandas categories": to_categories,
    "polars": to_polars,
    "arrow": to_arrow,
    "floats": to_floats,
    "sparse": to_sparse,
    "scattered": to_scattered,
    "ragged": to_ragged,
}
OF_NUMBERS = ("floats", "sparse", "scattered")
FILES = ("csv", "parquet")


def write_file(path: Path, rows: Any, kinds: Any, extra: dict[str, list[Any]]) -> None:
    """Write records: cells as they print, in quotes where the standard wants them."""
    if path.suffix == ".parquet":
        table = to_arrow(rows, kinds)
        for name, values in extra.items():
            texts = [None if v is None else _unicode(v) for v in values]
            table = table.append_column(name, pa.array(texts, pa.string()))
        pq.write_table(table, path)
        return
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([f"c{i}" for i in range(len(kinds))] + list(extra))
    for i, row in enumerate(rows):
        whole = [*row, *(values[i] for values in extra.values())]
        writer.writerow(["" if cell is None else _shown(cell) for cell in whole])
    path.write_bytes(out.getvalue().encode("utf-8", "surrogatepass"))


def _unicode(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _shown(cell: Any) -> str:
    wide = isinstance(cell, int) and abs(cell) > 2**80
    return "9" * 400 if wide else str(cell)


def table_of(case: Case, rows: Any, folder: Path | None = None) -> Table:
    """Return the canonical table of some rows of a case."""
    schema = case.schema
    if case.container in FILES:
        assert folder is not None
        path = folder / f"private.{case.container}"
        write_file(path, rows, case.kinds, {})
        return read_private(path, schema).table
    X = CONTAINERS[case.container](rows, case.kinds)
    if case.container in OF_NUMBERS:
        container = "array" if case.container == "floats" else "sparse"
        columns = {i: Column("number") for i in range(len(case.kinds))}
        schema = Schema(columns, container)
    return canonical_table(X, schema)


def fuzzed(n: int, *strategy: Any, **strategies: Any) -> Callable[[Any], Any]:
    """Run a check on generated cases, more of them if `MAPL_FUZZ` says so."""
    chosen = settings(
        max_examples=n * TIMES,
        deadline=None,
        database=None,
        print_blob=True,
        phases=set(Phase) - {Phase.explain, *({Phase.shrink} if QUICK else ())},
        suppress_health_check=list(HealthCheck),
    )
    return lambda check: given(*strategy, **strategies)(chosen(check))
