import datetime
import decimal
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from mapl.errors import ParameterError
from mapl.records.keys import chunk_rows, record_keys

N_CHUNKS = 20


def base_rows(n: int = 300) -> list[list[Any]]:
    rng = np.random.default_rng(0)
    return [
        [int(rng.integers(90)), float(rng.normal()), str(rng.choice(["a", "bb", "c"]))]
        for _ in range(n)
    ]


def to_numpy(rows: Any) -> Any:
    table = np.empty((len(rows), 3), dtype=object)
    for i, row in enumerate(rows):
        table[i] = row
    return table


def to_pandas(rows: Any) -> Any:
    return pd.DataFrame(rows, columns=["age", "score", "town"])


def to_categories(rows: Any) -> Any:
    return to_pandas(rows).astype({"town": "category"})


def to_polars(rows: Any) -> Any:
    return pl.DataFrame(
        rows, schema=["age", "score", "town"], orient="row", strict=False
    )


def to_arrow(rows: Any) -> Any:
    return pa.Table.from_pandas(to_pandas(rows))


def contents(make: Any, rows: Any, labels: Any, groups: Any = None) -> list[Any]:
    """What is in each chunk, in order, as values."""
    chunks = chunk_rows(record_keys(make(rows), labels), groups, n_chunks=N_CHUNKS)
    assert sorted(np.concatenate(chunks)) == list(range(len(rows)))
    return [[(repr(rows[i]), labels[i]) for i in chunk] for chunk in chunks]


ADDED = {
    "an empty cell": [None, 0.5, "a"],
    "a missing number": [40, float("nan"), "bb"],
    "a new category": [40, 0.5, "aardvark"],
    "a longer string": [40, 0.5, "b" * 500],
    "missing text": [40, 0.5, None],
    "a large integer": [2**60 + 1, 0.5, "a"],
    "a duplicate": base_rows()[7],
}
MAKERS = [list, to_numpy, to_pandas, to_categories, to_polars, to_arrow]


@pytest.mark.parametrize("row", ADDED.values(), ids=ADDED.keys())
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("at", [0, 150])
def test_one_added_record_changes_one_chunk(make: Any, row: Any, at: int) -> None:
    rows, labels = base_rows(), [i % 2 for i in range(300)]
    before = contents(make, rows, labels)
    more, more_labels = rows.copy(), labels.copy()
    more.insert(at, row)
    more_labels.insert(at, 1)
    after = contents(make, more, more_labels)
    changed = [j for j in range(N_CHUNKS) if before[j] != after[j]]
    assert len(changed) == 1
    (j,) = changed
    rest = list(after[j])
    rest.remove((repr(row), 1))
    assert rest == before[j]  # the others keep their order


@pytest.mark.parametrize("make", MAKERS)
def test_one_added_person_changes_one_chunk(make: Any) -> None:
    rows, labels = base_rows(), [0] * 300
    groups = [f"p{i % 70}" for i in range(300)]
    before = contents(make, rows, labels, groups)
    more = [*rows, *rows[:5], [None, None, None]]
    after = contents(make, more, [0] * 306, [*groups, *["somebody new"] * 6])
    assert sum(b != a for b, a in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize(
    "unequal",
    [
        np.array([2**53, 2**53 + 1]),
        np.array([2**63, 2**63 + 1], dtype=np.uint64),
        1 + np.array([2**-60, 2**-59], dtype=np.longdouble),
        [2**53, 2**53 + 1],
        [10**400, 10**400 + 1, 10**5000, math.inf],
        [decimal.Decimal("0.1"), 0.1, Fraction(1, 10) + Fraction(1, 10**40)],
        [decimal.Decimal("1e400"), decimal.Decimal("inf")],
    ],
)
def test_different_numbers_have_different_keys(unequal: Any) -> None:
    """Copies are numbered by position: that they are equal is what makes it safe."""
    digests = {row.tobytes() for row in record_keys(unequal, None)}
    assert len(digests) == len(unequal)


def test_the_check_catches_keys_by_float_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_float = lambda value: (0, int(np.float64(value).view(np.uint64)))  # noqa: E731
    monkeypatch.setattr("mapl.records.canonical._number_lane", by_float)
    digests = {row.tobytes() for row in record_keys([2**53, 2**53 + 1], None)}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "equal",
    [
        [decimal.Decimal("0.1"), decimal.Decimal("0.10"), Fraction(1, 10)],
        [decimal.Decimal("1E+30"), 10**30],
        [2**53 + 1, np.longdouble(2**53) + 1],
        [datetime.timedelta(hours=1), pd.Timedelta("1h")],
        [
            datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC),
            pd.Timestamp("2020-01-01 13:00", tz="Europe/Paris"),
        ],
    ],
    ids=str,
)
def test_equal_values_have_one_key(equal: Any) -> None:
    """A container may turn one form into the other because of another record."""
    for value in equal:
        assert (record_keys([value], None) == record_keys(equal[:1], None)).all()


def test_times_of_polars_to_the_nanosecond() -> None:
    moments = pl.Series([1, 2, None, 1000]).cast(pl.Datetime("ns"))
    digests = record_keys(moments, None)
    assert len({row.tobytes() for row in digests}) == 4
    coarse = record_keys(pl.Series([1]).cast(pl.Datetime("us")), None)
    assert (digests[3] == coarse[0]).all()
    with pytest.raises(ParameterError, match="timedelta64"):
        record_keys([np.timedelta64(1, "s")], None)


def test_one_added_moment_changes_no_other() -> None:
    """The unit of an array of times is the finest that any of them needs."""
    days = np.arange("2020-01-01", "2020-03-01", dtype="M8[D]")
    with_hour = np.append(days, np.datetime64("2021-05-05T10:30"))
    assert with_hour.dtype == "M8[m]"
    before, after = (record_keys(times, None) for times in (days, with_hour))
    assert (after[:-1] == before).all()
    missing = record_keys(np.array(["NaT", "2020-01-01"], "M8[ns]"), None)
    assert (
        missing == record_keys([None, "2020-01-01T00:00:00." + 18 * "0"], None)
    ).all()
    with pytest.raises(ParameterError, match="numbers of seconds"):
        record_keys(np.array([1, 2], "m8[s]"), None)


def test_the_check_catches_a_split_by_position() -> None:
    rows = base_rows()
    halves = [np.array_split(np.arange(n), N_CHUNKS) for n in (300, 301)]
    before, after = ([[repr(rows[i % 300]) for i in c] for c in h] for h in halves)
    assert sum(b != a for b, a in zip(before, after, strict=True)) > 1


def test_the_check_catches_keys_of_what_the_container_made() -> None:
    """Category codes: one new category before the others renumbers them."""
    rows = base_rows()
    one, two = (
        to_categories(r)["town"].cat.codes.to_numpy()[:300]
        for r in (rows, [*rows, [1, 1.0, "aardvark"]])
    )
    keys = [record_keys(codes[:, None], None) for codes in (one, two)]
    assert (keys[0] != keys[1]).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, np.uint16, object])
def test_a_number_has_one_key_whatever_stores_it(dtype: Any) -> None:
    values = np.array([[0, 1], [7, 100]])
    expected = record_keys(values.astype(np.float64), None)
    assert (record_keys(values.astype(dtype), None) == expected).all()
    assert (record_keys(-0.0 * np.ones((1, 1)), None) == record_keys([[0]], None)).all()


def test_missing_and_text_have_different_keys() -> None:
    missing = [None, float("nan"), pd.NA, pd.NaT, np.nan]
    keys = {record_keys([[value]], None).tobytes() for value in missing}
    assert len(keys) == 1
    others = [
        "",
        "nan",
        "1",
        1,
        b"1",
        datetime.date(2020, 1, 1),
        True,
        2**60,
        2**60 + 1,
    ]
    assert len({record_keys([[v]], None).tobytes() for v in others}) == 8  # 1 == True
    assert (
        record_keys([[decimal.Decimal("0.5")]], None) == record_keys([[0.5]], None)
    ).all()


def test_wide_integers_keep_all_their_digits() -> None:
    wide = record_keys(np.array([[2**60], [2**60 + 1]]), None)
    assert (wide[0] != wide[1]).any()
    assert (wide == record_keys([[2**60], [2**60 + 1]], None)).all()


def test_containers_of_the_same_values_give_the_same_chunks() -> None:
    rows, labels = base_rows(), [0] * 300
    expected = contents(list, rows, labels)
    for make in MAKERS:
        assert contents(make, rows, labels) == expected


def test_sparse_rows_are_keyed_by_their_cells() -> None:
    dense = np.random.default_rng(0).binomial(1, 0.1, size=(200, 30)).astype(float)
    labels = np.arange(200) % 3
    matrix = sp.csr_matrix(dense)
    explicit = sp.csr_matrix(dense + 1)  # every cell stored, zeros too
    explicit.data = explicit.data - 1
    before = record_keys(matrix, labels)
    assert (record_keys(explicit, labels) == before).all()
    assert (record_keys(sp.csc_matrix(dense), labels) == before).all()
    more = record_keys(sp.vstack([matrix, np.ones((1, 30))]), [*labels, 9])
    assert (more[:200] == before).all()
    assert len({row.tobytes() for row in record_keys(matrix, labels)}) > 150
    assert record_keys(matrix[:0], labels[:0]).shape == (0, 2)


def test_texts_are_records() -> None:
    texts = [f"message {i}" for i in range(100)]
    as_list = chunk_rows(record_keys(texts, None), None, n_chunks=5)
    as_array = chunk_rows(record_keys(np.array(texts), None), None, n_chunks=5)
    as_series = chunk_rows(record_keys(pd.Series(texts), None), None, n_chunks=5)
    for a, b, c in zip(as_list, as_array, as_series, strict=True):
        assert a.tolist() == b.tolist() == c.tolist()


def test_order_of_the_file_never_matters() -> None:
    rows, labels = base_rows(), [i % 2 for i in range(300)]
    order = np.random.default_rng(1).permutation(300)
    shuffled = [rows[i] for i in order], [labels[i] for i in order]
    assert contents(list, rows, labels) == contents(list, *shuffled)


def test_copies_spread_and_salt_makes_another_partition() -> None:
    same = np.zeros((1000, 2))
    sizes = [len(c) for c in chunk_rows(record_keys(same, None), None, n_chunks=10)]
    assert min(sizes) > 60
    distinct = np.arange(1000)[:, None]
    one, two = (
        chunk_rows(record_keys(distinct, None), None, n_chunks=10, salt=s)
        for s in (0, 1)
    )
    assert one[0].tolist() != two[0].tolist()


def test_more_chunks_than_records_leaves_chunks_empty() -> None:
    chunks = chunk_rows(record_keys(np.arange(3)[:, None], None), None, n_chunks=50)
    assert sum(map(len, chunks)) == 3
    assert len(chunks) == 50
    assert (
        chunk_rows(record_keys(np.empty((0, 2)), None), None, n_chunks=2)[0].size == 0
    )


def test_tables_of_any_shape_and_dates_have_keys() -> None:
    images = np.arange(24.0).reshape(2, 3, 4)
    flat = images.reshape(2, 12)
    assert (record_keys(images, None) == record_keys(flat, None)).all()
    days = pd.DataFrame({"day": pd.to_datetime(["2020-01-01", "2020-01-02", None])})
    assert len({row.tobytes() for row in record_keys(days, None)}) == 3
    moments = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[s]")
    assert len({row.tobytes() for row in record_keys(moments, None)}) == 2
    lists = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    assert (record_keys(lists, None) == record_keys(np.array(lists), None)).all()


def test_bad_input_says_what_to_do() -> None:
    with pytest.raises(
        ParameterError, match=r"values of type frozenset.*Pass numbers, strings"
    ):
        record_keys([[frozenset({1})]], None)
    with pytest.raises(ParameterError, match="must have the same length"):
        record_keys(np.zeros((3, 1)), [1, 2])
    with pytest.raises(ParameterError, match="groups must have one value a record"):
        chunk_rows(record_keys(np.zeros((3, 1)), None), [1], n_chunks=2)
