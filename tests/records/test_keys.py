"""Which record goes to which chunk."""

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from mapl.errors import ParameterError
from mapl.records import keys as keys_module
from mapl.records.keys import (
    chunk_rows,
    group_keys,
    is_owned,
    persons,
    record_keys,
    unit_keys,
)
from mapl.records.private import private_records
from mapl.records.schema import Column, Schema
from mapl.records.table import canonical_table

N_CHUNKS = 20
NAMES = ["age", "score", "town"]
SCHEMA = Schema(
    dict(zip(NAMES, map(Column, ("number", "number", "text")), strict=True))
)


def keys_of(X: Any, codes: Any = None, schema: Schema | None = None) -> Any:
    table = canonical_table(X, schema or Schema.of(X))
    return record_keys(table, None if codes is None else np.asarray(codes))


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
    return pd.DataFrame(rows, columns=NAMES)


def to_categories(rows: Any) -> Any:
    return to_pandas(rows).astype({"town": "category"})


def to_polars(rows: Any) -> Any:
    return pl.DataFrame(rows, schema=NAMES, orient="row", strict=False)


def to_arrow(rows: Any) -> Any:
    return pa.Table.from_pandas(to_pandas(rows))


def contents(make: Any, rows: Any, labels: Any, groups: Any = None) -> list[Any]:
    """What is in each chunk, in order, as values."""
    keys = keys_of(make(rows), labels, SCHEMA)
    units = None if groups is None else group_keys(groups, len(rows))
    chunks = chunk_rows(keys, units, n_chunks=N_CHUNKS)
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


def test_containers_of_the_same_values_give_the_same_chunks() -> None:
    rows, labels = base_rows(), [0] * 300
    expected = contents(list, rows, labels)
    for make in MAKERS:
        assert contents(make, rows, labels) == expected


def test_records_with_equal_keys_look_the_same_to_a_learner() -> None:
    """Copies are numbered by position: that they are equal is what makes it safe."""
    cells: list[Any] = [0, -0.0, 0.0, False, 2**53, 2**53 + 1, None, np.nan, "x", True]
    rows = np.array([[cell] for cell in cells], dtype=object)
    table = canonical_table(rows, Schema({0: Column("number")}, "array"))
    digests = [row.tobytes() for row in record_keys(table, None)]
    seen = [row.tobytes() for row in table.data]
    for i in range(len(cells)):
        for j in range(len(cells)):
            assert (digests[i] == digests[j]) == (seen[i] == seen[j]), (i, j)


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
    keys = [keys_of(codes[:, None]) for codes in (one, two)]
    assert (keys[0] != keys[1]).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, np.uint16, object])
def test_a_number_has_one_key_whatever_stores_it(dtype: Any) -> None:
    values = np.array([[0, 1], [7, 100]])
    expected = keys_of(values.astype(np.float64))
    assert (keys_of(values.astype(dtype)) == expected).all()
    assert (keys_of(-0.0 * np.ones((1, 1))) == keys_of(np.zeros((1, 1)))).all()


def test_sparse_rows_are_keyed_by_their_cells() -> None:
    dense = np.random.default_rng(0).binomial(1, 0.1, size=(200, 30)).astype(float)
    labels = np.arange(200) % 3
    matrix = sp.csr_matrix(dense)
    explicit = sp.csr_matrix(dense + 1)  # every cell stored, zeros too
    explicit.data = explicit.data - 1
    before = keys_of(matrix, labels)
    assert (keys_of(explicit, labels) == before).all()
    assert (keys_of(sp.csc_matrix(dense), labels) == before).all()
    more = keys_of(sp.vstack([matrix, np.ones((1, 30))]), [*labels, 9])
    assert (more[:200] == before).all()
    assert len({row.tobytes() for row in before}) > 150
    assert keys_of(matrix[:0], labels[:0]).shape == (0, 2)


def test_order_of_the_file_never_matters() -> None:
    rows, labels = base_rows(), [i % 2 for i in range(300)]
    order = np.random.default_rng(1).permutation(300)
    shuffled = [rows[i] for i in order], [labels[i] for i in order]
    assert contents(list, rows, labels) == contents(list, *shuffled)


def test_copies_spread_and_salt_makes_another_partition() -> None:
    same = np.zeros((1000, 2))
    sizes = [len(c) for c in chunk_rows(keys_of(same), None, n_chunks=10)]
    assert min(sizes) > 60
    distinct = keys_of(np.arange(1000)[:, None])
    one, two = (chunk_rows(distinct, None, n_chunks=10, salt=s) for s in (0, 1))
    assert one[0].tolist() != two[0].tolist()


def test_more_chunks_than_records_leaves_chunks_empty() -> None:
    chunks = chunk_rows(keys_of(np.arange(3)[:, None]), None, n_chunks=50)
    assert sum(map(len, chunks)) == 3
    assert len(chunks) == 50
    assert chunk_rows(keys_of(np.empty((0, 2))), None, n_chunks=2)[0].size == 0


def test_blocks_of_records_give_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = to_pandas(base_rows())
    whole = keys_of(frame)
    monkeypatch.setattr(keys_module, "_BLOCK_BYTES", 1000)
    assert (keys_of(frame) == whole).all()


def group_names(groups: Any, n: int) -> list[bytes]:
    return [row.tobytes() for row in group_keys(groups, n)]


@pytest.mark.parametrize(
    "groups",
    [
        [7, 8, 7],
        [7.0, 8.0, 7.0],
        ["7", "8", "7"],
        np.array([7, 8, 7], dtype=np.uint8),
        pd.Series([7, 8, 7], dtype="Int64"),
        pd.Series(["7", "8", "7"], dtype="category"),
        pl.Series([7, 8, 7]),
        pa.chunked_array([[7, 8], [7]]),
    ],
)
def test_a_group_has_one_key_whatever_stores_it(groups: Any) -> None:
    assert group_names(groups, 3) == group_names(["7", "8", "7"], 3)


def test_one_missing_group_moves_no_other() -> None:
    """A null turns integers into floats, which cannot tell 2^60 from 2^60 + 1."""
    wide = [2**60, 2**60 + 1, 5]
    alone = group_names(wide, 3)
    assert len(set(alone)) == 3
    for holed in (
        [*wide, None],
        pd.Series([*wide, None], dtype="Int64"),
        pl.Series([*wide, None]),
        pa.array([*wide, None]),
        pd.Series(pd.array([*wide, None], dtype="int64[pyarrow]")),
    ):
        assert group_names(holed, 4)[:3] == alone


def test_several_columns_name_a_unit_together() -> None:
    tuples = [("a", 1), ("a", 2), ("a", 1), "a"]
    names = group_names(tuples, 4)
    assert names[0] == names[2]
    assert len(set(names)) == 3
    frame = pd.DataFrame({"ward": ["a", "a", "a"], "bed": [1, 2, 1]})
    assert group_names(frame, 3) == names[:3]
    assert group_names(np.array([["a", "1"], ["a", "2"]]), 2) == names[:2]


def test_frames_of_every_kind_name_units() -> None:
    frame = pd.DataFrame({"ward": ["a", "a", "b"], "bed": [1, 2, 1]})
    expected = group_names(frame, 3)
    assert group_names(pl.from_pandas(frame), 3) == expected
    assert group_names(pa.Table.from_pandas(frame), 3) == expected


def test_lengths_must_agree() -> None:
    with pytest.raises(ParameterError, match="must have the same length"):
        keys_of(np.zeros((3, 1)), [1, 2])
    with pytest.raises(ParameterError, match="groups must have one value a record"):
        group_keys([1], 3)


def test_the_assignment_tells_units_apart() -> None:
    from mapl.records.private import private_records

    table = canonical_table(np.arange(40.0).reshape(20, 2), Schema.of(np.zeros((1, 2))))
    codes = np.zeros(20, dtype=np.int64)

    def digest(owners: Any) -> bytes:
        found = private_records(
            table, codes, owners, takes_missing=True, on_invalid="error"
        )
        return found.assignment(1, salt=0)

    alone = digest([str(i) for i in range(20)])
    joined = {
        digest([str(j) if k == i else str(k) for k in range(20)])
        for i in range(20)
        for j in range(i)
    }
    assert len(joined) == 190
    assert alone not in joined


def test_owners_are_texts_that_stand_as_they_are() -> None:
    """224 of a million hexadecimal ids are the number 0, and ids of 8 people."""
    ids = ["0e123456", "0e998877", "0", "1e5", "100000", "true", "1", "7.00", "7", "07"]
    assert len(set(group_names(ids, len(ids)))) == len(ids)
    forms = ["e\u0301", "\u00e9", "Bath", "Bath\0", "\0Bath", "bath", "Bath "]
    assert len(set(group_names(forms, len(forms)))) == len(forms)
    rng = np.random.default_rng(0)
    random_ids = [f"{x:08x}" for x in rng.integers(0, 2**32, 100_000)]
    assert len(set(group_names(random_ids, 100_000))) == len(set(random_ids))


def test_records_without_an_owner_are_units_by_themselves() -> None:
    table = canonical_table(
        np.array([[1.0], [1.0], [2.0], [2.0], [3.0]]), Schema.of(np.zeros((1, 1)))
    )
    for nobody in (None, np.nan, "", "nan", "NULL", (None, None)):
        groups = [nobody, nobody, nobody, "a", "a"]
        owners = group_keys(groups, 5)
        assert is_owned(owners).tolist() == [False, False, False, True, True]
        units = unit_keys(owners, table, np.zeros(5, dtype=np.int64))
        assert (units[3:] == owners[3:]).all()
        assert (units[0] == units[1]).all()  # equal records are in one chunk
        assert len(np.unique(persons(units), axis=0)) == 4
        fewer = unit_keys(owners[1:], table.take(np.arange(1, 5)), np.zeros(4, int))
        assert (fewer == units[1:]).all()


UNKNOWN_OWNERS: list[Any] = [
    *({"a": 1}, frozenset("a"), object(), 1 + 1j, 2**2000, bytearray(b"a")),
    *(Decimal("1E+500"), (((((1,),),),),), ("a", object()), np.void(b"ab")),
]


@pytest.mark.parametrize(
    "owner", UNKNOWN_OWNERS, ids=lambda owner: type(owner).__name__
)
def test_an_owner_that_cannot_be_told_from_others_is_refused(owner: Any) -> None:
    """Not nobody: then one person would count as many."""
    table = canonical_table(np.zeros((3, 1)), Schema.of(np.zeros((1, 1))))
    codes, owners = np.zeros(3, dtype=np.int64), ["a", owner, owner]
    kwargs: dict[str, Any] = {"takes_missing": True}
    with pytest.raises(ParameterError, match="cannot be told"):
        private_records(table, codes, owners, **kwargs, on_invalid="error")
    found = private_records(table, codes, owners, **kwargs, on_invalid="drop")
    assert found.usable.tolist() == [True, False, False]


def test_bytes_are_owners_like_texts() -> None:
    digests = [b"\x9f\x9dQ", b"\xff", b"\xfe", b"bob", b"\0bytes:ff"]
    texts = ["bob", "\0bytes:ff", "bytes:ff", "(1:a)", "\ud800", "\ud801"]
    parts = [("a",), ("a", None), ("a", b"\xff"), ("a", "b")]
    listed = [*digests, *texts, *parts]
    names = group_names(listed, len(listed))
    assert names[3] == names[5]  # b"bob" and "bob"
    assert names[4] == names[6]
    assert len(set(names)) == len(listed) - 2
    plain = group_names(pa.array(digests, pa.binary()), len(digests))
    assert plain == names[: len(digests)]
    assert group_names(pl.Series(digests, dtype=pl.Binary), len(digests)) == plain
    assert all(is_owned(group_keys(listed, len(listed))))
    for nested in (pl.Series([["a"], ["b"]]), pa.array([["a"], ["b"]])):
        with pytest.raises(ParameterError, match="a column of lists"):
            group_keys(nested, 2)


def test_numbers_are_owners_whatever_stands_beside_them() -> None:
    for numbers in ([1e16, 7.0, 2.5], [-0.0, 1.0, 1e300], [0.1, 3.0, 1e-7]):
        alone = group_names(np.array(numbers), 3)
        assert group_names(np.array([*numbers, "x"]), 4)[:3] == alone
        assert group_names(pd.Series([*numbers, None]), 4)[:3] == alone
    assert len(set(group_names([0.1, np.float32(0.1)], 2))) == 2


def test_a_record_that_cannot_be_read_is_no_copy_of_an_empty_one() -> None:
    schema = Schema({0: Column("number"), 1: Column("number")}, "array")
    rows = [[1.0, 2.0], [3.0, 4.0], [None, None], [None, None]]
    chunks = []
    for some in (rows, [[9.0, 9.0, 9.0], *rows], [[], *rows], [*rows, [1.0], None]):
        made = canonical_table(some, schema)
        found = chunk_rows(record_keys(made, None), None, n_chunks=9)
        cells_of = [made.columns[0][c[made.readable[c]]].tolist() for c in found]
        chunks.append(repr(cells_of))
    assert len(set(chunks)) == 1
    sparse = Schema(schema.columns, "sparse")
    assert canonical_table([[1, 2], [3]], sparse).readable.tolist() == [True, False]


def test_the_order_of_cells_in_one_sparse_row_changes_no_other() -> None:
    rng = np.random.default_rng(0)
    columns, values = rng.integers(0, 3, (6, 40)), rng.normal(size=(6, 40))

    def digests(order: Any) -> list[bytes]:
        found = sp.csr_matrix((6, 3))
        found.indptr = np.arange(0, 241, 40, dtype=np.int32)
        flat = columns.copy(), values.copy()
        flat[0][-1], flat[1][-1] = columns[-1][order], values[-1][order]
        found.indices, found.data = (
            flat[0].reshape(-1).astype(np.int32),
            flat[1].ravel(),
        )
        schema = Schema({i: Column("number") for i in range(3)}, "sparse")
        made = canonical_table(found, schema)
        assert made.columns[0].has_canonical_format
        return [row.tobytes() for row in record_keys(made, None)][:5]

    orders = [np.argsort(columns[-1], kind="stable"), rng.permutation(40)]
    assert digests(orders[0]) == digests(orders[1])
