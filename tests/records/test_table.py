"""Any container becomes one canonical table, each cell by itself."""

import contextlib
import datetime
import math
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import pytz
import scipy.sparse as sp

from mapl.errors import ParameterError
from mapl.records import cells, containers
from mapl.records.columns import distinct_texts
from mapl.records.containers import unwrapped
from mapl.records.schema import Column, Schema
from mapl.records.table import canonical_table, copy_of, take_rows

HOUR = 3600 * 10**9
TWO_MOMENTS = [datetime.datetime(2020, 1, 1, 10), datetime.datetime(2020, 1, 2)]


class Loud:
    """An object whose own code must never run."""

    def __float__(self) -> float:
        raise RuntimeError("a private value")

    __str__ = __repr__ = __eq__ = __hash__ = __float__  # type: ignore[assignment]


class Subclass(str):
    def __str__(self) -> str:
        raise RuntimeError("a private value")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (True, 1.0),
        (np.bool_(True), 1.0),
        (-0.0, 0.0),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.25), 0.25),
        (2**53 + 1, 2.0**53),
        (" 7 ", 7.0),
        ("+1.5e3", 1500.0),
        (".5", 0.5),
        (b"12", 12.0),
        (Decimal("0.1"), 0.1),
        (Fraction(1, 4), 0.25),
        (math.inf, None),
        (10**400, None),
        (Fraction(10**400), None),
        (Decimal("1E+10000000"), None),
        (Decimal("sNaN"), None),
        ("inf", None),
        ("nan", None),
        ("1_000", None),
        ("\uff11", None),
        ("1" * 500, None),
        ("", None),
        (None, None),
        (pd.NA, None),
        (pd.NaT, None),
        (1 + 2j, None),
        (np.complex128(1), 1.0),
        (np.timedelta64(1, "s"), None),
        (datetime.date(2020, 1, 1), None),
        ([1.0], None),
        (Loud(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_number_is_a_finite_float_or_missing(value: Any, expected: Any) -> None:
    found = cells.number(value)
    if expected is None:
        assert math.isnan(found)
    else:
        assert found == expected
        assert math.copysign(1, found) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("York", "York"),
        ("", ""),
        (np.str_("York"), "York"),
        (Subclass("York"), "York"),
        (b"York", "York"),
        (7, "7"),
        (7.0, "7"),
        ("7.0", "7"),
        ("1e+16", "10000000000000000"),
        ("07", "07"),
        ("7.00", "7.00"),
        (-0.0, "0"),
        (7.5, "7.5"),
        (np.int8(7), "7"),
        (True, "1"),
        (np.bool_(False), "0"),
        ("true", "1"),
        ("FALSE", "0"),
        ("nan", None),
        ("1e-7", "1e-07"),
        (1e-7, "1e-07"),
        (np.float32(0.1), "0.1"),
        (float(np.float32(0.1)), "0.1"),
        (0.1, "0.1"),
        ("2020-01-01T00:00:00.000000000", "2020-01-01"),
        ("2020-01-01T10", "2020-01-01T10:00:00"),
        (pd.Interval(0, 1), "right 0 1"),
        (pd.Interval(0.0, 1.0), "right 0 1"),
        (pd.Timestamp, None),
        (pd.offsets.Day(), None),
        (Decimal("7.0"), "7"),
        (Decimal("7.5"), "7.5"),
        (Fraction(7), "7"),
        (Fraction(15, 2), "7.5"),
        (math.inf, "inf"),
        (datetime.date(2020, 1, 1), "2020-01-01"),
        (datetime.datetime(2020, 1, 1), "2020-01-01"),
        (np.datetime64("2020-01-01"), "2020-01-01"),
        (np.datetime64("2020-01-01T10", "h"), "2020-01-01T10:00:00"),
        (pd.Timestamp("2020-01-01 10:30:00.5"), "2020-01-01T10:30:00.5"),
        (datetime.timedelta(seconds=2), "2000000000ns"),
        (datetime.time(10, 30), "10:30:00"),
        (pd.Period("2020-01", "M"), "2020-01"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\xff", None),
        ("\ud800", None),
        (10**5000, None),
        (Decimal("1E+10000000"), None),
        (Decimal("Infinity"), None),
        (Fraction(10**400, 3), None),
        (np.timedelta64("NaT"), None),
        (None, None),
        (pd.NA, None),
        (float("nan"), None),
        (["York"], None),
        (Loud(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_text_is_valid_and_in_one_form_or_missing(value: Any, expected: Any) -> None:
    assert cells.text(value) == expected


class BadZone(datetime.tzinfo):
    def utcoffset(self, dt: Any) -> Any:
        raise RuntimeError("a private value")


@pytest.mark.parametrize(
    ("value", "hours"),
    [
        (datetime.datetime(1970, 1, 1, 1), 1),
        (datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.UTC), 1),
        (pd.Timestamp("1970-01-01 02:00", tz="Europe/Paris"), 1),
        (np.datetime64("1970-01-01T01", "h"), 1),
        (np.datetime64("1970-01", "M"), 0),
        (np.datetime64(HOUR * 1000, "ps"), 1),
        (datetime.date(1970, 1, 2), 24),
        ("1970-01-01T01:00:00", 1),
        (b"1970-01-01T01:00:00", 1),
        (b"\xff", None),
        ("1970-01-01T02:00:00+01:00", 1),
        ("now", None),
        ("today", None),
        ("31.12.2020", None),
        (datetime.datetime(9999, 1, 1), None),
        (np.datetime64("9999-01-01"), None),
        (datetime.datetime(2020, 1, 1, tzinfo=BadZone()), None),
        (np.datetime64("NaT"), None),
        (pd.NaT, None),
        (3600, None),
        (datetime.timedelta(hours=1), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_time_is_one_moment_in_utc_or_missing(value: Any, hours: Any) -> None:
    assert cells.time(value) == (cells.NAT if hours is None else hours * HOUR)


def test_both_hours_of_a_night_in_autumn_differ() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    moments = [
        datetime.datetime(2020, 10, 25, 2, 30, tzinfo=berlin, fold=fold)
        for fold in (0, 1)
    ]
    assert cells.time(moments[1]) - cells.time(moments[0]) == HOUR
    assert cells.text(moments[0]) != cells.text(moments[1])
    bad = datetime.datetime(2020, 1, 1, tzinfo=BadZone())
    assert cells.text(bad) is None


@pytest.mark.parametrize(
    ("value", "hours"),
    [
        (datetime.timedelta(hours=1), 1),
        (pd.Timedelta("1h"), 1),
        (np.timedelta64(1, "h"), 1),
        (np.timedelta64(1, "Y"), None),
        (np.timedelta64(10**6, "W"), None),
        (datetime.timedelta.max, None),
        (pd.NaT, None),
        ("1h", None),
        (3600, None),
    ],
    ids=str,
)
def test_a_duration_is_in_nanoseconds_or_missing(value: Any, hours: Any) -> None:
    assert cells.duration(value) == (cells.NAT if hours is None else hours * HOUR)


# Whole columns ----------------------------------------------------------------------

ODD = [1, 2.5, True, None, "x", "7.0", math.inf, 1 + 1j, [1], 10**400, b"\xff"]


@pytest.mark.parametrize("kind", ["number", "text", "time", "duration", "category"])
def test_no_cell_changes_another(kind: str) -> None:
    column = Column(kind, categories=("1", "7") if kind == "category" else ())
    usual: list[Any] = [1, 2, 7]
    alone = [repr(cell) for cell in column.convert(usual)]
    for odd in [*ODD, pd.Timestamp("2020-01-01"), pd.Timedelta("1h"), Decimal("7.0")]:
        series = [pd.Series([*usual, odd], dtype=object)]
        with contextlib.suppress(OverflowError):  # which pandas 2 cannot make
            series.append(pd.Series([*usual, odd]))
        for held in ([*usual, odd], *series):
            found = [repr(cell) for cell in column.convert(held)]
            assert found[:3] == alone, (kind, odd, type(held))


@pytest.mark.parametrize(
    ("kind", "holders"),
    [
        (
            "number",
            [
                [1, 0, None],
                np.array([1.0, -0.0, np.nan]),
                np.array([True, False, None]),
                np.ma.masked_array([1, 0, 5], mask=[0, 0, 1]),
                pd.Series([1, 0, None], dtype="Int64"),
                pd.Series([True, False, None], dtype="boolean"),
                pd.Series([1, 0, None], dtype="float32"),
                pd.Series([1, 0, None], dtype="int8[pyarrow]"),
                pd.Series(pd.arrays.SparseArray([1.0, 0.0, np.nan])),
                pd.Series(["1", "0", "x"]),
                pd.Series([1, 0, None], dtype="category"),
                pl.Series([1, 0, None]),
                pl.Series([True, False, None]),
                pl.Series([1.0, 0.0, None], dtype=pl.Float32),
                pl.Series(["1", "0", "x"]),
                pl.Series([Decimal(1), Decimal(0), None]),
                pa.array([1, 0, None]),
                pa.array([1.0, 0.0, None], type=pa.float32()),
                pa.array([Decimal(1), Decimal(0), None]),
                pa.array([1, 0, None]).dictionary_encode(),
                pa.array([True, False, None]),
            ],
        ),
        (
            "text",
            [
                ["a", "7", None],
                np.array(["a", 7.0, None], dtype=object),
                pd.Series(["a", "7", None]),
                pd.Series(["a", "7", None], dtype="string"),
                pd.Series(["a", "7", None], dtype="category"),
                pd.Series(["a", "7", None], dtype="string[pyarrow]"),
                pl.Series(["a", "7", None]),
                pl.Series(["a", "7", None], dtype=pl.Categorical),
                pl.Series(["a", "7", None], dtype=pl.Enum(["7", "a"])),
                pa.array(["a", "7", None]),
                pa.array([b"a", b"7", b"\xff"]),
                pa.array(["a", "7", None]).dictionary_encode(),
            ],
        ),
        (
            "time",
            [
                [datetime.datetime(2020, 1, 1, 10), datetime.date(2020, 1, 2), "x"],
                np.array(["2020-01-01T10", "2020-01-02", "NaT"], "M8[h]"),
                pd.Series(pd.to_datetime(["2020-01-01T10", "2020-01-02T00", None])),
                pd.Series(
                    pd.to_datetime(["2020-01-01T10", "2020-01-02T00", None], utc=True)
                ).dt.tz_convert("Asia/Tokyo"),
                pl.Series([*TWO_MOMENTS, None]),
                pa.array(
                    [*TWO_MOMENTS, None],
                    type=pa.timestamp("ms", tz="UTC"),
                ),
                ["2020-01-01T10:00", "2020-01-02", "now"],
            ],
        ),
        (
            "duration",
            [
                [datetime.timedelta(hours=1), pd.Timedelta("2h"), None],
                np.array([1, 2, "NaT"], "m8[h]"),
                pd.Series(pd.to_timedelta(["1h", "2h", None])),
                pl.Series(
                    [datetime.timedelta(hours=1), datetime.timedelta(hours=2)]
                ).extend(pl.Series([None], dtype=pl.Duration)),
                pa.array([3600, 7200, None], type=pa.duration("s")),
            ],
        ),
    ],
)
def test_a_column_is_the_same_whatever_holds_it(kind: str, holders: Any) -> None:
    column = Column(kind)
    expected = [repr(cell) for cell in column.convert(holders[0])]
    for held in holders:
        assert [repr(c) for c in column.convert(held)] == expected, type(held)


def test_arrow_texts_that_are_not_utf8_cost_no_other() -> None:
    good = pa.array(["a", "b", None]).cast(pa.binary())
    bad = pa.array([b"a", b"\xff", None])
    for array, expected in ((good, ["a", "b", None]), (bad, ["a", None, None])):
        texts = pa.Array.from_buffers(pa.string(), 3, array.buffers())
        assert Column("text").convert(texts).tolist() == expected


def test_arrow_cells_without_a_python_form_are_missing() -> None:
    far = pa.array([0, 2**40], type=pa.date32().id and pa.int64()).cast(pa.int64())
    days = far.cast(pa.date64(), safe=False)
    found = Column("time").convert(days)
    assert found[0] == 0

    class Broken:
        def as_py(self) -> Any:
            raise RuntimeError("a private value")

    assert containers._as_python(Broken()) is None
    nested = pa.array([[1, 2], None])
    assert Column("text").convert(nested).tolist() == [None, None]


# Whole tables -----------------------------------------------------------------------


def frame() -> Any:
    return pd.DataFrame(
        {
            "age": [31, 54, 20],
            "town": ["York", "Bath", None],
            "kind": pd.Categorical(["a", "b", "a"]),
            "at": pd.to_datetime(["2020-01-01", "2020-01-02", None]),
            "took": pd.to_timedelta(["1h", None, "2h"]),
            "mixed": pd.Series([1, "a", None], dtype=object),
            "flags": pd.Series([True, None, False], dtype=object),
            "days": pd.Series([datetime.date(2020, 1, 1), None, None], dtype=object),
        }
    )


def test_types_come_from_public_records() -> None:
    schema = Schema.of(frame())
    kinds = [column.kind for column in schema.columns.values()]
    assert kinds == [
        *("number", "text", "category", "time", "duration", "text", "number", "time")
    ]
    polars = pl.DataFrame(
        {
            "n": [1, None],
            "c": pl.Series(["a", "b"], dtype=pl.Categorical),
            "d": [datetime.date(2020, 1, 1), None],
            "m": [Decimal("1.5"), None],
        }
    )
    schema = Schema.of(polars)
    kinds = [column.kind for column in schema.columns.values()]
    assert kinds == ["number", "category", "time", "number"]
    data = canonical_table(polars, schema).data
    assert data["n"].to_list() == [1.0, None] or math.isnan(data["n"].to_list()[1])
    assert data["c"].to_list() == ["a", "b"]
    assert data["d"][0] == datetime.datetime(2020, 1, 1)
    assert data.columns == polars.columns


def test_learners_see_the_public_types_and_an_index_of_their_own() -> None:
    public = frame()
    private = public.iloc[[2, 0, 1]].set_index(pd.Index([77, 88, 99]))
    data = canonical_table(private, Schema.of(public)).data
    assert data.index.tolist() == [0, 1, 2]
    assert data["age"].tolist() == [20.0, 31.0, 54.0]
    assert data["kind"].dtype == public["kind"].dtype
    assert data["at"].dtype == public["at"].dtype
    assert data["took"].dtype == public["took"].dtype
    chunk = take_rows(data, np.array([2, 1]))
    assert chunk.index.tolist() == [0, 1]
    assert chunk["age"].tolist() == [54.0, 31.0]


def test_records_that_lack_a_cell_of_any_kind_are_incomplete() -> None:
    public = frame()[["kind", "at", "took"]]
    whole = pd.DataFrame(
        {"kind": ["a"], "at": ["2020-01-01"], "took": [pd.Timedelta(1)]}
    )
    schema = Schema.of(public)
    assert not canonical_table(whole, schema).incomplete.any()
    for name in whole.columns:
        assert canonical_table(whole.assign(**{name: "?"}), schema).incomplete.all()


def test_times_keep_the_public_zone_and_unit() -> None:
    for zone in (None, "Europe/Paris"):
        public = pd.DataFrame({"at": pd.to_datetime(["2020-01-01"]).tz_localize(zone)})
        schema = Schema.of(public)
        given = pd.DataFrame({"at": ["2020-05-05", "no date", pd.Timestamp.max]})
        found = canonical_table(given, schema).data["at"]
        assert found.dtype == public["at"].dtype
        assert found.isna().tolist() == [False, True, False]
        assert found[0].tz_localize(None) in (
            pd.Timestamp("2020-05-05"),
            pd.Timestamp("2020-05-05 02:00"),
        )


def test_a_table_shares_no_memory_with_the_caller() -> None:
    numbers = np.ones((5, 2))
    public = pd.DataFrame(numbers)
    for X in (numbers, public, sp.csr_matrix(numbers), [[1.0, 1.0]] * 5):
        table = canonical_table(X, Schema.of(X))
        before = table.digest()
        numbers += 1
        assert table.digest() == before
    copied = copy_of(table.data)
    copied[:] = 9
    assert table.digest() == before


def test_columns_go_by_name_or_by_position() -> None:
    public = frame()[["age", "town"]]
    schema = Schema.of(public)
    swapped = public[["town", "age"]]
    assert canonical_table(swapped, schema).data.equals(
        canonical_table(public, schema).data
    )
    rows = public.to_numpy().tolist()
    assert canonical_table(rows, schema).data.equals(
        canonical_table(public, schema).data
    )
    arrow = canonical_table(pa.Table.from_pandas(public), schema).data
    assert arrow.equals(canonical_table(public, schema).data)
    with pytest.raises(ParameterError, match="lacks town"):
        canonical_table(public.rename(columns={"town": "city"}), schema)
    with pytest.raises(ParameterError, match="must have 2 columns"):
        canonical_table(public.to_numpy()[:, :1], schema)
    with pytest.raises(ParameterError, match="different names"):
        Schema.of(pd.DataFrame([[1, 2]], columns=["a", "a"]))


class OnlyAnArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([1.0, 2.0])


def test_types_of_other_columns_come_from_public_values() -> None:
    arrow = pa.table(
        {
            "n": pa.array([1, None]),
            "t": pa.array([datetime.datetime(2020, 1, 1), None]),
            "d": pa.array([datetime.timedelta(1), None]),
            "s": pa.array(["a", None]),
            "l": pa.array([[1], None]),
        }
    )
    schema = Schema.of(arrow)
    kinds = [column.kind for column in schema.columns.values()]
    assert kinds == ["number", "time", "duration", "text", "text"]
    data = canonical_table(arrow, schema).data
    assert data["d"].tolist() == [pd.Timedelta(days=1), pd.NaT]
    assert data["t"].tolist() == [pd.Timestamp("2020-01-01"), pd.NaT]
    spans = pd.DataFrame({"d": pd.Series([datetime.timedelta(1), None], dtype=object)})
    assert Schema.of(spans).columns["d"].kind == "duration"
    enum = pl.DataFrame({"e": pl.Series(["b"], dtype=pl.Enum(["a", "b"]))})
    assert Schema.of(enum).columns["e"].categories == ("a", "b")
    times = pl.DataFrame({"t": [datetime.timedelta(1), None]})
    made = canonical_table(times, Schema.of(times)).data
    assert made["t"].to_list() == [datetime.timedelta(1), None]
    assert Column("number").convert(OnlyAnArray()).tolist() == [1.0, 2.0]
    categories = pd.Series(["a"], dtype="category")
    assert Schema.of(categories).container == "series"
    numbers = canonical_table([1, "x"], Schema.of(pd.Series([1.5])))
    assert numbers.incomplete.tolist() == [False, True]
    assert unwrapped(OnlyAnArray()).tolist() == [1.0, 2.0]
    odd = pd.DataFrame({"o": pd.Series([object(), object()], dtype=object)})
    assert Schema.of(odd).columns["o"].kind == "text"


def test_rows_of_another_length_are_unreadable_alone() -> None:
    public = np.zeros((2, 2))
    table = canonical_table([[1, 2], [1], [3, 4, 5], 7, [5, 6]], Schema.of(public))
    assert table.readable.tolist() == [True, False, False, False, True]
    assert table.data[4].tolist() == [5.0, 6.0]
    assert table.incomplete.tolist() == [False, True, True, True, False]


def test_arrays_frames_and_sparse_matrices_mix() -> None:
    numbers = np.array([[1.0, 0.0], [0.0, np.inf]])
    expected = [[1.0, 0.0], [0.0, np.nan]]
    givens = [numbers, pd.DataFrame(numbers), sp.csr_matrix(numbers), numbers.tolist()]
    for public in (np.zeros((1, 2)), sp.csr_matrix((1, 2))):
        for given in givens:
            table = canonical_table(given, Schema.of(public))
            data = table.data.toarray() if sp.issparse(table.data) else table.data
            np.testing.assert_array_equal(data, expected)
            assert table.incomplete.tolist() == [False, True]
    complex_ = sp.csr_matrix(np.array([[1 + 1j, 0]]))
    table = canonical_table(complex_, Schema.of(sp.csr_matrix((1, 2))))
    assert table.incomplete.all()


def test_single_precision_is_kept_where_it_is_public() -> None:
    schema = Schema.of(np.zeros((1, 1), dtype=np.float32))
    data = canonical_table(np.array([[0.1], [1e300]]), schema).data
    assert data.dtype == np.float32
    assert np.isnan(data[1, 0])


def test_texts_alone_are_a_table() -> None:
    for public in (["a", "b"], np.array(["a", "b"]), pd.Series(["a", "b"])):
        schema = Schema.of(public)
        table = canonical_table(["x", None, "7.0"], schema)
        assert next(iter(table.data)) == "x"
        assert table.incomplete.tolist() == [False, True, False]
        assert table.take(np.array([2])).columns[0].tolist() == ["7"]


def test_categories_that_are_one_text_are_refused() -> None:
    public = pd.DataFrame({"c": pd.Categorical([1, "1"])})
    with pytest.raises(ParameterError, match="texts or numbers that differ"):
        Schema.of(public)


# What one record may not do to the others ----------------------------------------


def invalid_texts(n: int) -> Any:
    """A pandas column of Arrow texts, the last of which is not UTF-8."""
    raw = pa.array([b"York", b"Bath"] * n + [b"secret\xff"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    return pd.Series(pd.arrays.ArrowExtensionArray(texts))


def test_a_text_that_is_not_utf8_costs_no_other_in_pandas() -> None:
    found = Column("text").convert(invalid_texts(2)).tolist()
    assert found == ["York", "Bath", "York", "Bath", None]
    plain = pd.Series(["York", None], dtype="str")
    assert Column("text").convert(plain).tolist() == ["York", None]


@pytest.mark.parametrize(
    ("usual", "promoted"),
    [
        (pd.Series([pd.Interval(0, 1)]), pd.Series([pd.Interval(0, 1), None])),
        (np.array([True, False]), np.array([True, False, 2])),
        (np.array([1.5, np.nan]), np.array([1.5, np.nan, "a"])),
        (
            np.array([0.1], dtype=np.float32),
            np.array([np.float32(0.1), "a"]),
        ),
        (
            np.array([0.1], dtype=np.float32),
            np.append(np.array([0.1], dtype=np.float32), 1e300),
        ),
        (
            np.array(["2020-01-01T10"], "M8[ns]"),
            np.append(np.array(["2020-01-01T10"], "M8[ns]").astype(str), "a"),
        ),
        (
            np.ma.masked_array(np.array(["2020-01-01"], "M8[us]")),
            np.ma.masked_array(np.array(["2020-01-01", "2020-01-02"], "M8[ns]")),
        ),
        (pl.Series([True, False]), pl.Series([True, False, "a"], strict=False)),
        (pl.Series([1e-7, 2.0]), pl.Series([1e-7, 2.0, "a"], strict=False)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_container_makes_of_cells_is_undone(usual: Any, promoted: Any) -> None:
    expected = Column("text").convert(usual).tolist()
    assert Column("text").convert(promoted).tolist()[: len(expected)] == expected


def test_a_sparse_row_changes_no_other() -> None:
    dense = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    schema = Schema.of(sp.csr_matrix(dense))

    def first_rows(matrix: Any) -> Any:
        found = canonical_table(matrix, schema).data
        return found[:2].toarray(), found.indices.dtype

    expected = first_rows(sp.csr_matrix(dense))
    odd = [
        sp.csr_matrix([[1j, 0, 0]]),
        sp.csr_matrix(np.array([[np.longdouble("1e4000"), 0, 0]])),
    ]
    for row in odd:
        found = first_rows(sp.vstack([sp.csr_matrix(dense), row]))
        np.testing.assert_array_equal(found[0], expected[0])
    wide = sp.csr_array(dense)
    wide.indices = wide.indices.astype(np.int64)
    wide.indptr = wide.indptr.astype(np.int64)
    assert first_rows(wide)[1] == expected[1]
    for dtype in (bool, np.int8, np.float32):
        twice = sp.coo_matrix(
            (np.array([100, 100], dtype=dtype), ([0, 0], [1, 1])), shape=(2, 3)
        )
        alone = canonical_table(twice, schema).data.toarray()[0, 1]
        assert alone == (2.0 if dtype is bool else 200.0)


def test_numbers_are_rounded_once_on_the_way_to_single_precision() -> None:
    schema = Schema.of(np.zeros((1, 1), dtype=np.float32))
    n = 2**60 + 2**36 + 1
    whole = canonical_table(np.array([[n]]), schema).data
    holed = canonical_table(np.array([[n], [None]], dtype=object), schema).data
    assert whole[0, 0] == holed[0, 0]


def test_no_records_are_a_table_in_every_container() -> None:
    empties: list[Any] = [[], np.array([]), pd.DataFrame([]), np.empty((0, 2))]
    for public in (np.zeros((1, 2)), frame()[["age", "town"]], sp.csr_matrix((1, 2))):
        for empty in empties:
            table = canonical_table(empty, Schema.of(public))
            assert len(table) == 0
            assert table.data.shape == (0, 2)


def test_rows_that_are_no_rows_are_unreadable() -> None:
    rows = [[1, 2], np.array(5), np.array([3, 4]), np.zeros((2, 2))]
    table = canonical_table(rows, Schema.of(np.zeros((1, 2))))
    assert table.readable.tolist() == [True, False, True, False]


def test_nested_cells_are_missing_whatever_they_hold() -> None:
    far = pl.Series([[2**62]], dtype=pl.List(pl.Int64)).cast(pl.List(pl.Datetime("us")))
    assert Column("text").convert(far).tolist() == [None]
    deep: Any = "x"
    for _ in range(5000):
        deep = (deep,)
    assert cells.group(deep) == cells.UNREADABLE_OWNER
    assert cells.group((((None,),),)) is None
    loop: list[Any] = []
    loop.append(loop)
    assert cells.group(loop) == cells.UNREADABLE_OWNER


def test_a_text_with_a_nul_changes_no_other_one() -> None:
    values = ["Bath\0", "Bath", "Bath\0x", "\0", "", None, "Bath"]
    for column in (
        values,
        pd.Series(values, dtype=object),
        np.array(values, dtype=object),
        pl.Series(values),
        pa.chunked_array([values]),
        pa.chunked_array([values[:3], values[3:]]).dictionary_encode(),
    ):
        codes = Column("category", categories=("Bath", "Bath\0")).convert(column)
        assert codes.tolist() == [1, 0, -1, -1, -1, -1, 0]
        distinct, places = distinct_texts(column)
        assert distinct[places].tolist() == values


@pytest.mark.parametrize("at", [0, 127, 128, 200])
def test_chunks_of_a_dictionary_need_no_type_together(at: int) -> None:
    """Their texts may be more than the type of their numbers counts."""
    small = pa.dictionary(pa.int8(), pa.string())
    parts = [[f"a{i}" for i in range(100)], [None, *(f"b{i}" for i in range(100))]]
    chunks = [pa.array(part, pa.string()).dictionary_encode() for part in parts]
    column = pa.chunked_array([chunk.cast(small) for chunk in chunks])
    whole = [*parts[0], *parts[1]]
    assert Column("text").convert(column).tolist() == whole
    found = Column("category", categories=(f"b{at}",)).convert(column)
    assert found.tolist() == [0 if text == f"b{at}" else -1 for text in whole]


class _Runs:
    """Its code must not run."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AssertionError

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError


def _raise(*_: Any, **__: Any) -> Any:
    raise AssertionError


def hostile(kind: type, *values: Any) -> Any:
    """A value of a subclass whose every method and attribute raises."""
    kept = {"__new__", "__init__", "__class__", "__getattribute__", "__init_subclass__"}
    kept |= {"__subclasshook__", "__doc__", "__dict__"}
    names = [name for name in dir(kind) if name not in kept]
    return type("Hostile", (kind,), {n: property(_raise) for n in names})(*values)


class _Compares(type):
    """A class of classes whose code must not run either."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        raise AssertionError


class _Unhashable(metaclass=_Compares):
    pass


UNREADABLE = cells.UNREADABLE_OWNER
DAY = (2020, 1, 1)
ZONE = type("Zone", (datetime.tzinfo,), {"utcoffset": _raise, "dst": _raise})()


@pytest.mark.parametrize(
    ("make", "text", "number", "owner"),
    [
        (lambda: hostile(str, "7.50"), "7.50", 7.5, "7.50"),
        (lambda: hostile(float, 7.0), "7", 7.0, "7"),
        (lambda: hostile(int, 7), "7", 7.0, "7"),
        (lambda: hostile(bytes, b"ab"), "ab", None, "ab"),
        (lambda: hostile(complex, 7), "7", 7.0, "7"),
        (lambda: hostile(Decimal, "7.5"), "7.5", 7.5, "7.5"),
        (lambda: hostile(datetime.date, *DAY), "2020-01-01", None, "2020-01-01"),
        (
            lambda: hostile(datetime.datetime, *DAY),
            "2020-01-01",
            None,
            "2020-01-01",
        ),
        (lambda: hostile(datetime.timedelta, 0, 0, 1), "1000ns", None, "1000ns"),
        (lambda: hostile(tuple, [1, 2]), None, None, "\0(1:1,1:2)"),
        (lambda: datetime.datetime(2020, 1, 1, tzinfo=ZONE), None, None, UNREADABLE),
        (lambda: datetime.time(10, tzinfo=ZONE), "10:00:00", None, "10:00:00"),
        (_Runs, None, None, UNREADABLE),
        (_Unhashable, None, None, UNREADABLE),
    ],
)
def test_no_cell_runs_code(make: Any, text: Any, number: Any, owner: Any) -> None:
    value = make()
    found = cells.number(value)
    assert (None if np.isnan(found) else found) == number
    assert cells.text(value) == text
    assert cells.group(value) == owner
    assert cells.is_missing(value) == (make is _Runs or make is _Unhashable)
    time, duration = cells.time(value), cells.duration(value)
    assert (time == cells.NAT) == (text != "2020-01-01")
    assert (duration == cells.NAT) == (text != "1000ns")


class Zone(datetime.tzinfo):
    """A time zone of unknown code."""

    def utcoffset(self, _: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=1)

    def dst(self, _: Any) -> datetime.timedelta:
        return datetime.timedelta(0)


def test_times_of_an_unknown_zone_are_missing() -> None:
    moments = [datetime.datetime(2024, 1, 1, 12, tzinfo=Zone())] * 2
    frame = pd.DataFrame({"t": pd.Series(moments)})
    made = canonical_table(frame, Schema({"t": Column("time")}))
    assert (made.columns[0] == cells.NAT).all()
    for zone in (
        datetime.UTC,
        pytz.utc,
        pytz.FixedOffset(60),
        pytz.timezone("Europe/Rome"),
    ):
        assert cells.is_known_zone(zone)
    assert not cells.is_known_zone(Zone())


def test_a_record_may_be_any_list() -> None:
    schema = Schema({0: Column("number"), 1: Column("number")}, "array")
    rows: list[Any] = [[1, 2], (1, 2), np.array([1, 2]), pd.Series([1, 2]), {1: 2}, 7]
    made = canonical_table(rows, schema)
    assert made.readable.tolist() == [True] * 4 + [False] * 2
    assert (made.columns[0][:4] == [1, 2]).all()


def test_values_of_no_known_type_are_texts() -> None:
    assert Schema.of(pd.DataFrame({"z": [1 + 1j, 2 + 0j]})).columns["z"].kind == "text"


def test_what_pandas_or_pytz_know_is_known_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cells._pandas_types(False) == frozenset()
    assert cells._pandas_text(pd.Timestamp(0)) is None
    monkeypatch.delitem(sys.modules, "pytz")
    assert cells.is_known_zone(datetime.UTC)
    assert not cells.is_known_zone(Zone())
